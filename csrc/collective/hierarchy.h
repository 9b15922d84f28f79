/* A collective over several hosts, taken apart into legs: through the arenas inside the hosts, as plans
 * between them. Pure.
 *
 * Every host has as many *carriers* as the smallest host has ranks, and the carriers of the same place
 * talk to each other: so each of them carries a share of the data between hosts, of partial results in the
 * accumulation type where there is something to reduce. Large data is cut into *pieces*, so that the
 * arenas work on the next piece while the messages of the last are under way, and so that scratch is
 * bounded:
 *
 *     all_reduce       arena reduce_scatter -> plan all_reduce -> arena all_gather
 *     reduce           arena reduce_scatter -> plan reduce -> arena gather (the root's host)
 *     broadcast        arena scatter (the root's host) -> plan broadcast -> arena all_gather
 *     all_gather       plan all_gather -> arena all_gathers, one for each host's blocks, our own at once
 *     reduce_scatter   arena reduce_scatters, one for each host's blocks -> plan reduce_scatter
 *     barrier          arena barrier -> plan barrier -> arena barrier
 *
 * Small arrays have one carrier a host, on the root's host the root itself. A rank goes through two
 * *lanes* at the same time: the arena legs in their order, which is the same for all ranks of a host, and
 * beside them the plans in theirs. For a rank that is alone on its host all legs are plans. */
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
    DD_LEG_NOTHING, /* this rank has no part in it */
    DD_LEG_ARENA,   /* a collective of the ranks of this host */
    DD_LEG_PLAN,    /* a collective of one carrier of each host */
    DD_LEG_CARRIER, /* a whole collective by a library; never of a hierarchy */
} dd_leg_kind;

/* Blocks and ranks are the hierarchy's, and stay until the next leg of the lane is asked for. */
typedef struct dd_leg {
    dd_leg_kind kind;
    dd_coll_args args; /* root: of the leg's ranks. Inside hosts a reduction is FIRST, between them LAST */
    int rank;          /* among those */
    int nranks;
    const int *ranks; /* of the group, that take part */
    uint64_t needs;   /* how many legs of the other lane must have ended before */
} dd_leg;

typedef struct dd_hierarchy_limits {
    size_t piece_nbytes; /* of what a carrier has of a piece, in partial results; 0 for the usual */
    size_t line_nbytes;  /* shares are multiples of this; a power of two from 64 on, 0 for the usual */
    size_t small_nbytes; /* broadcast and reduce: up to here one carrier; 0 for the usual */
} dd_hierarchy_limits;

/* One collective after the other. */
typedef struct dd_hierarchy {
    const dd_topology *topology;
    dd_hierarchy_limits limits;
    dd_block *blocks[DD_LANE_COUNT]; /* of the current leg: inputs, then outputs */
    int *ranks;                      /* [nhosts], of the plan's leg */

    /* of the collective */
    const dd_coll_args *args;
    const struct leg_rows *rows; /* what its legs are */
    size_t scratch_nbytes;       /* that its legs want */
    char *scratch;               /* aligned to 64 bytes; set by the owner before he asks for legs */
    size_t half_nbytes;          /* of scratch: pieces take turns */
    size_t element_nbytes;
    size_t partial_nbytes; /* of an element of a partial result */
    size_t piece_nbytes;   /* of an array or a block, how much goes into one piece */
    uint64_t npieces;
    int ncarriers;
    uint64_t nbefore; /* legs of the arena lane for a piece before its plan, and after it */
    uint64_t nafter;
} dd_hierarchy;

/* The topology stays the caller's. Limits are the same on all ranks. */
dd_status dd_hierarchy_init(dd_hierarchy *hierarchy, const dd_topology *topology,
                            const dd_hierarchy_limits *limits, dd_error *err) DD_MUST_CHECK;
void dd_hierarchy_fini(dd_hierarchy *hierarchy);

/* Whether the collective can go this way: several hosts, one of them with several ranks, and hosts of the
 * same size for all_gather and reduce_scatter. */
bool dd_hierarchy_fits(const dd_topology *topology, dd_coll coll);

/* Takes up a collective that fits. `args` stays valid while legs are asked for. Sets scratch_nbytes. */
void dd_hierarchy_begin(dd_hierarchy *hierarchy, const dd_coll_args *args);

/* The leg number `index`, from 0, of a lane; false when there are no more. */
bool dd_hierarchy_get_leg(dd_hierarchy *hierarchy, dd_leg_lane lane, uint64_t index, dd_leg *leg);

#endif
