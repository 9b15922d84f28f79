/* A collective over several hosts, divided into legs: through the arenas inside the hosts, and as
 * plans between them. Pure.
 *
 * Every host has as many *carriers* (ranks, unlike in carrier.h) as the smallest host has ranks.
 * The carriers of the same place on each host exchange data, so each of them carries a share of the
 * data between hosts; in a reduction, partial results in the accumulation type. Large data is cut
 * into *pieces*: the arenas work on the next piece while the messages of the last one are under
 * way, and scratch is bounded.
 *
 *      all_reduce       arena reduce_scatter -> plan all_reduce -> arena all_gather
 *      reduce           arena reduce_scatter -> plan reduce -> arena gather (the root's host)
 *      broadcast        arena scatter (the root's host) -> plan broadcast -> arena all_gather
 *      all_gather       plan all_gather -> arena all_gathers, one per host (own: before the plan)
 *      reduce_scatter   arena reduce_scatters, one per host's blocks -> plan reduce_scatter
 *      barrier          arena barrier -> plan barrier -> arena barrier
 *
 * A small array has one carrier per host, on the root's host the root itself. A rank runs two
 * *lanes* in parallel: the arena legs, in the same order on all ranks of a host, and the plans. For
 * a rank that is alone on its host all legs are plans. */
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
    DD_LEG_NOTHING, /* this rank takes no part */
    DD_LEG_ARENA,   /* a collective of the ranks of this host */
    DD_LEG_PLAN,    /* a collective of one carrier of each host */
    DD_LEG_CARRIER, /* a whole collective by a library; not in a hierarchy */
} dd_leg_kind;

/* The hierarchy owns blocks and ranks; they stay valid until the lane's next leg is requested. */
typedef struct dd_leg {
    dd_leg_kind kind;
    dd_coll_args args; /* root is among the leg's ranks; stage: FIRST inside hosts, LAST between */
    int rank;          /* among the leg's ranks */
    int nranks;
    const int *ranks; /* the leg's ranks, as ranks of the group */
    uint64_t needs;   /* legs of the other lane that must have ended before this one starts */
} dd_leg;

typedef struct dd_hierarchy_limits {
    size_t piece_nbytes; /* of a carrier's part of a piece, in partial results; 0 for the default */
    size_t line_nbytes;  /* shares are multiples of this; a power of two >= 64, 0 for the default */
    size_t small_nbytes; /* broadcast, reduce: up to here one carrier; 0 for the default */
} dd_hierarchy_limits;

/* Used for one collective at a time. */
typedef struct dd_hierarchy {
    const dd_topology *topology;
    dd_hierarchy_limits limits;
    dd_block *blocks[DD_LANE_COUNT]; /* of the current leg: inputs, then outputs */
    int *ranks;                      /* [nhosts]: of the plan's leg */

    /* of the current collective: */
    const dd_coll_args *args;
    const struct leg_rows *rows; /* its legs */
    size_t scratch_nbytes;       /* needed by its legs */
    char *scratch;               /* aligned to 64 bytes; set by the owner before it requests legs */
    size_t half_nbytes;          /* of scratch: pieces alternate */
    size_t element_nbytes;
    size_t partial_nbytes; /* of an element of a partial result */
    size_t piece_nbytes;   /* of an array or a block, in one piece */
    uint64_t npieces;
    int ncarriers;
    uint64_t nbefore; /* arena legs of a piece before its plan, and after */
    uint64_t nafter;
} dd_hierarchy;

/* The caller keeps the topology. Limits must be equal on all ranks. */
dd_status dd_hierarchy_init(dd_hierarchy *hierarchy, const dd_topology *topology,
                            const dd_hierarchy_limits *limits, dd_error *err) DD_MUST_CHECK;
void dd_hierarchy_fini(dd_hierarchy *hierarchy);

/* Return true if the hierarchy can carry out the collective: several hosts, at least one with
 * several ranks; for all_gather and reduce_scatter, hosts of equal size. */
bool dd_hierarchy_fits(const dd_topology *topology, dd_coll coll);

/* Begin a collective that fits, and set scratch_nbytes. `args` must outlive requests for legs. */
void dd_hierarchy_begin(dd_hierarchy *hierarchy, const dd_coll_args *args);

/* Get leg `index`, from 0, of a lane; false after the last one. */
bool dd_hierarchy_get_leg(dd_hierarchy *hierarchy, dd_leg_lane lane, uint64_t index, dd_leg *leg);

#endif
