/* A collective over several hosts, divided into legs: through the arenas inside the hosts, and as
 * plans between them. Pure functions.
 *
 * Every host has as many *carriers* (ranks, unlike in carrier.h) as the smallest host has ranks.
 * The carriers with the same local number on each host exchange data, so each of them carries a
 * share of the data between hosts (in a reduction, partial results in the accumulation type). Large
 * data is cut into *pieces*: the arenas work on the next piece while the messages of the last one
 * are under way, and scratch is bounded.
 *
 *      all_reduce       arena reduce_scatter -> plan all_reduce -> arena all_gather
 *      reduce           arena reduce_scatter -> plan reduce -> arena gather (the root's host)
 *      broadcast        arena scatter (the root's host) -> plan broadcast -> arena all_gather
 *      all_gather       plan all_gather -> arena all_gathers, one per host (own: before the plan)
 *      reduce_scatter   arena reduce_scatters, one per host's blocks -> plan reduce_scatter
 *      barrier          arena barrier -> plan barrier -> arena barrier
 *
 * A small array of a broadcast or reduce has one carrier per host, on the root's host the root. A
 * rank runs two *lanes* in parallel: the arena legs, in the same order on all ranks of a host, and
 * the plans. For a rank that is alone on its host all legs are plans. */
#ifndef DD_COLLECTIVE_HIERARCHY_H
#define DD_COLLECTIVE_HIERARCHY_H

#include "collective/coll.h"
#include "collective/topology.h"

typedef enum dd_leg_lane {
    DD_LANE_ARENA,
    DD_LANE_PLAN,
} dd_leg_lane;

#define DD_LANE_COUNT 2

typedef enum dd_leg_kind {
    DD_LEG_NOTHING, /* this rank takes no part in the leg */
    DD_LEG_ARENA,   /* a collective among the ranks of this host */
    DD_LEG_PLAN,    /* a collective between hosts, with one carrier of each host */
    DD_LEG_CARRIER, /* a whole collective, moved by a library; never part of a hierarchy */
} dd_leg_kind;

/* One part of a collective. The hierarchy owns the leg's blocks and ranks; they stay valid until
 * the next leg of the same lane is requested. */
typedef struct dd_leg {
    dd_leg_kind kind;
    /* args.root is among the leg's ranks; args.stage is FIRST inside hosts, LAST between them. */
    dd_coll_args args;
    int rank; /* this rank's index among the leg's ranks */
    int nranks;
    const int *ranks; /* the leg's ranks, as rank numbers of the group */
    uint64_t needs;   /* number of legs that the other lane must have ended first */
} dd_leg;

typedef struct dd_hierarchy_limits {
    size_t piece_nbytes; /* a carrier's partial results in one piece, in bytes; 0 for the default */
    size_t line_nbytes;  /* shares are multiples of this power of two >= 64; 0 for the default */
    size_t small_nbytes; /* largest broadcast or reduce with one carrier; 0 for the default */
} dd_hierarchy_limits;

/* Divides collectives into legs, one collective at a time. */
typedef struct dd_hierarchy {
    const dd_topology *topology;
    dd_hierarchy_limits limits;
    dd_block *blocks[DD_LANE_COUNT]; /* blocks of each lane's current leg: inputs, then outputs */
    int *ranks;                      /* [nhosts]: the ranks that run the current plan */

    /* The fields from here on describe the current collective. */
    const dd_coll_args *args;
    const struct leg_rows *rows; /* the collective's row in the table of legs */
    size_t scratch_nbytes;       /* bytes of scratch memory that the legs need */
    char *scratch;               /* aligned to 64 bytes; must be set before a leg is requested */
    size_t half_nbytes;          /* bytes in half the scratch; pieces alternate between halves */
    size_t element_nbytes;
    size_t partial_nbytes; /* size in bytes of one element of a partial result */
    size_t piece_nbytes;   /* bytes of the array (or of a block) in one piece */
    uint64_t npieces;
    int ncarriers;
    uint64_t nbefore; /* number of a piece's arena legs before its plan; nafter: after it */
    uint64_t nafter;
} dd_hierarchy;

/* Initialise. The caller must keep `topology` valid. Limits must be equal on all ranks. */
dd_status dd_hierarchy_init(dd_hierarchy *hierarchy, const dd_topology *topology,
                            const dd_hierarchy_limits *limits, dd_error *err) DD_MUST_CHECK;
void dd_hierarchy_fini(dd_hierarchy *hierarchy);

/* Return true if the hierarchy can carry out the collective: there are several hosts, one or more
 * with several ranks, and for all_gather and reduce_scatter all hosts have equally many ranks. */
bool dd_hierarchy_fits(const dd_topology *topology, dd_coll coll);

/* Begin a collective for which dd_hierarchy_fits is true, and set scratch_nbytes. `args` must stay
 * valid until the last leg has been requested. */
void dd_hierarchy_begin(dd_hierarchy *hierarchy, const dd_coll_args *args);

/* Get the lane's leg number `index`, counted from 0. Return false after the last leg. */
bool dd_hierarchy_get_leg(dd_hierarchy *hierarchy, dd_leg_lane lane, uint64_t index, dd_leg *leg);

#endif
