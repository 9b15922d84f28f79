#include "collective/hierarchy.h"

#include "collective/hierarchy_internal.h"
#include "core/mem.h"

#define ALIGNMENT ((size_t)64)

/* Long enough that the turn-around between two pieces on a fast network costs a few per cent. */
#define USUAL_PIECE_NBYTES ((size_t)4 << 20)
/* Least piece of a block where a rank has many of them in scratch. */
#define LEAST_BLOCK_PIECE_NBYTES ((size_t)64 << 10)
#define USUAL_LINE_NBYTES ((size_t)4 << 10)
#define USUAL_SMALL_NBYTES ((size_t)32 << 10)

static size_t
round_up(size_t nbytes)
{
    return (nbytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

size_t
dd_hierarchy_block_slots(const dd_topology *topology)
{
    int more = topology->nhosts > topology->max_nlocal ? topology->nhosts : topology->max_nlocal;
    return (size_t)more;
}

dd_status
dd_hierarchy_init(dd_hierarchy *hierarchy, const dd_topology *topology, const dd_hierarchy_limits *limits,
                  dd_error *err)
{
    size_t nblocks = 2 * dd_hierarchy_block_slots(topology);
    size_t nbytes = DD_LANE_COUNT * nblocks * sizeof(dd_block) + (size_t)topology->nhosts * sizeof(int);
    dd_block *blocks = dd_mem_zalloc(nbytes);
    if (blocks == NULL) {
        return dd_error_no_memory(err, nbytes);
    }
    *hierarchy = (dd_hierarchy){
        .topology = topology,
        .limits = {.piece_nbytes = limits->piece_nbytes != 0 ? limits->piece_nbytes : USUAL_PIECE_NBYTES,
                   .line_nbytes = limits->line_nbytes != 0 ? limits->line_nbytes : USUAL_LINE_NBYTES,
                   .small_nbytes = limits->small_nbytes != 0 ? limits->small_nbytes : USUAL_SMALL_NBYTES},
        .blocks = {blocks, blocks + nblocks},
        .ranks = (int *)(void *)(blocks + DD_LANE_COUNT * nblocks),
    };
    return DD_OK;
}

void
dd_hierarchy_fini(dd_hierarchy *hierarchy)
{
    dd_mem_free(hierarchy->blocks[0]);
    *hierarchy = (dd_hierarchy){0};
}

bool
dd_hierarchy_fits(const dd_topology *topology, dd_coll coll)
{
    if (topology->nhosts < 2 || topology->max_nlocal < 2) {
        return false;
    }
    switch (coll) {
    case DD_COLL_BARRIER:
    case DD_COLL_BROADCAST:
    case DD_COLL_REDUCE:
    case DD_COLL_ALL_REDUCE:
        return true;
    case DD_COLL_ALL_GATHER:
    case DD_COLL_REDUCE_SCATTER:
        return topology->min_nlocal == topology->max_nlocal;
    case DD_COLL_GATHER:
    case DD_COLL_SCATTER:
    case DD_COLL_ALL_TO_ALL:
        break;
    }
    return false;
}

/* ---- who carries what */

bool
dd_hierarchy_is_rooted(const dd_hierarchy *hierarchy)
{
    return hierarchy->args->coll == DD_COLL_BROADCAST || hierarchy->args->coll == DD_COLL_REDUCE;
}

int
dd_hierarchy_root_host(const dd_hierarchy *hierarchy)
{
    return hierarchy->topology->host_of[hierarchy->args->root];
}

int
dd_hierarchy_root_place(const dd_hierarchy *hierarchy)
{
    return hierarchy->topology->local_of[hierarchy->args->root];
}

bool
dd_hierarchy_is_on_root_host(const dd_hierarchy *hierarchy)
{
    return dd_hierarchy_is_rooted(hierarchy) &&
           hierarchy->topology->host == dd_hierarchy_root_host(hierarchy);
}

bool
dd_hierarchy_is_root(const dd_hierarchy *hierarchy)
{
    return dd_hierarchy_is_rooted(hierarchy) && hierarchy->topology->rank == hierarchy->args->root;
}

/* Where on a host the carrier of a share sits. */
int
dd_hierarchy_place_of_share(const dd_hierarchy *hierarchy, int host, int share)
{
    if (hierarchy->ncarriers == 1 && dd_hierarchy_is_rooted(hierarchy) &&
        host == dd_hierarchy_root_host(hierarchy)) {
        return dd_hierarchy_root_place(hierarchy);
    }
    return share;
}

/* The share that a rank of this host carries. */
int
dd_hierarchy_share_of_place(const dd_hierarchy *hierarchy, int place)
{
    if (hierarchy->ncarriers == 1) {
        return place == dd_hierarchy_place_of_share(hierarchy, hierarchy->topology->host, 0) ? 0
                                                                                             : DD_NO_SHARE;
    }
    return place < hierarchy->ncarriers ? place : DD_NO_SHARE;
}

/* That piece of `nbytes`; empty past the end. */
dd_span
dd_hierarchy_piece(const dd_hierarchy *hierarchy, size_t nbytes, uint64_t piece)
{
    return dd_segment(nbytes, hierarchy->piece_nbytes, (size_t)piece);
}

/* A carrier's share of a piece of the array, in whole lines. */
dd_span
dd_hierarchy_share(const dd_hierarchy *hierarchy, uint64_t piece, int share)
{
    dd_span span =
        dd_hierarchy_piece(hierarchy,
                           hierarchy->args->coll == DD_COLL_BROADCAST ? hierarchy->args->outputs[0].nbytes
                                                                      : hierarchy->args->inputs[0].nbytes,
                           piece);
    if (share == DD_NO_SHARE) {
        return (dd_span){.first = span.first, .count = 0};
    }
    dd_span part = dd_share_lines(span.count, hierarchy->limits.line_nbytes, hierarchy->ncarriers, share);
    part.first += span.first;
    return part;
}

bool
dd_hierarchy_is_wide(const dd_hierarchy *hierarchy)
{
    return hierarchy->partial_nbytes != hierarchy->element_nbytes;
}

size_t
dd_hierarchy_widen(const dd_hierarchy *hierarchy, size_t nbytes)
{
    return nbytes / hierarchy->element_nbytes * hierarchy->partial_nbytes;
}

/* ---- taking up a collective */

static uint64_t
count_pieces(size_t nbytes, size_t piece_nbytes)
{
    return nbytes == 0 ? 1 : dd_nsegments(nbytes, piece_nbytes);
}

/* all_reduce, reduce, broadcast: one array, shared out. */
static void
begin_array(dd_hierarchy *hierarchy, size_t nbytes)
{
    const dd_topology *topology = hierarchy->topology;
    size_t line = hierarchy->limits.line_nbytes;
    bool is_small = dd_hierarchy_is_rooted(hierarchy) && nbytes <= hierarchy->limits.small_nbytes;
    hierarchy->ncarriers = is_small ? 1 : topology->min_nlocal;
    size_t share_nbytes =
        hierarchy->limits.piece_nbytes / hierarchy->partial_nbytes * hierarchy->element_nbytes;
    share_nbytes = share_nbytes < line ? line : share_nbytes / line * line;
    hierarchy->piece_nbytes = share_nbytes * (size_t)hierarchy->ncarriers;
    hierarchy->npieces = count_pieces(nbytes, hierarchy->piece_nbytes);
    if (hierarchy->args->coll == DD_COLL_REDUCE ||
        (hierarchy->args->coll == DD_COLL_ALL_REDUCE && dd_hierarchy_is_wide(hierarchy))) {
        hierarchy->half_nbytes =
            round_up(dd_hierarchy_widen(hierarchy, dd_hierarchy_share(hierarchy, 0, 0).count));
    }
}

static size_t
largest_block(const dd_block *blocks, int nblocks)
{
    size_t largest = 0;
    for (int i = 0; i < nblocks; i++) {
        largest = blocks[i].nbytes > largest ? blocks[i].nbytes : largest;
    }
    return largest;
}

static void
begin_all_gather(dd_hierarchy *hierarchy)
{
    size_t largest = largest_block(hierarchy->args->outputs, hierarchy->topology->nranks);
    hierarchy->piece_nbytes = round_up(hierarchy->limits.piece_nbytes);
    hierarchy->npieces = count_pieces(largest, hierarchy->piece_nbytes);
    hierarchy->nbefore = 1;
    hierarchy->nafter = (uint64_t)hierarchy->topology->nhosts - 1;
}

static void
begin_reduce_scatter(dd_hierarchy *hierarchy)
{
    size_t nhosts = (size_t)hierarchy->topology->nhosts;
    size_t largest = largest_block(hierarchy->args->inputs, hierarchy->topology->nranks);
    size_t piece = hierarchy->limits.piece_nbytes / nhosts;
    if (piece < LEAST_BLOCK_PIECE_NBYTES && piece < hierarchy->limits.piece_nbytes) {
        piece = hierarchy->limits.piece_nbytes < LEAST_BLOCK_PIECE_NBYTES ? hierarchy->limits.piece_nbytes
                                                                          : LEAST_BLOCK_PIECE_NBYTES;
    }
    hierarchy->piece_nbytes = round_up(piece / hierarchy->partial_nbytes * hierarchy->element_nbytes);
    hierarchy->npieces = count_pieces(largest, hierarchy->piece_nbytes);
    size_t most = largest < hierarchy->piece_nbytes ? largest : hierarchy->piece_nbytes;
    hierarchy->half_nbytes = nhosts * round_up(dd_hierarchy_widen(hierarchy, most));
    hierarchy->nbefore = nhosts;
    hierarchy->nafter = 0;
}

static void
begin_broadcast(dd_hierarchy *hierarchy)
{
    begin_array(hierarchy, hierarchy->args->outputs[0].nbytes);
    hierarchy->nbefore = dd_hierarchy_is_on_root_host(hierarchy) && hierarchy->ncarriers > 1 ? 1 : 0;
    hierarchy->nafter = 1;
}

static void
begin_reduce(dd_hierarchy *hierarchy)
{
    begin_array(hierarchy, hierarchy->args->inputs[0].nbytes);
    hierarchy->nbefore = 1;
    hierarchy->nafter = dd_hierarchy_is_on_root_host(hierarchy) && hierarchy->ncarriers > 1 ? 1 : 0;
}

void
dd_hierarchy_begin(dd_hierarchy *hierarchy, const dd_coll_args *args)
{
    bool is_fold = dd_coll_is_folding(args->coll);
    hierarchy->args = args;
    hierarchy->half_nbytes = 0;
    hierarchy->element_nbytes = is_fold ? dd_dtype_size(args->reduction.dtype) : 1;
    hierarchy->partial_nbytes = is_fold ? dd_dtype_size(dd_reduce_accumulator(args->reduction.dtype)) : 1;
    hierarchy->nbefore = 1;
    hierarchy->nafter = 1;
    if (args->coll == DD_COLL_ALL_REDUCE) {
        begin_array(hierarchy, args->inputs[0].nbytes);
    } else if (args->coll == DD_COLL_REDUCE) {
        begin_reduce(hierarchy);
    } else if (args->coll == DD_COLL_BROADCAST) {
        begin_broadcast(hierarchy);
    } else if (args->coll == DD_COLL_ALL_GATHER) {
        begin_all_gather(hierarchy);
    } else if (args->coll == DD_COLL_REDUCE_SCATTER) {
        begin_reduce_scatter(hierarchy);
    } else {
        hierarchy->npieces = 1;
    }
    hierarchy->scratch_nbytes = hierarchy->half_nbytes * (hierarchy->npieces > 1 ? 2 : 1);
}

/* ---- order */

/* How many arena legs there are up to those before the plan of a piece. */
static uint64_t
count_legs_before(const dd_hierarchy *hierarchy, uint64_t piece)
{
    if (piece == 0 || hierarchy->nbefore == 0) {
        return hierarchy->nbefore;
    }
    return hierarchy->nbefore + (piece - 1) * (hierarchy->nbefore + hierarchy->nafter) + hierarchy->nbefore;
}

/* The legs before a piece's plan come ahead of those after the plan of the piece before it. */
static bool
get_arena_leg(const dd_hierarchy *hierarchy, uint64_t index, dd_leg *leg)
{
    uint64_t each = hierarchy->nbefore + hierarchy->nafter;
    if (index >= hierarchy->npieces * each) {
        return false;
    }
    if (index < hierarchy->nbefore) {
        *leg = dd_hierarchy_leg_before(hierarchy, 0, index);
        return true;
    }
    uint64_t piece = (index - hierarchy->nbefore) / each;
    uint64_t number = (index - hierarchy->nbefore) % each;
    uint64_t nahead = piece + 1 < hierarchy->npieces ? hierarchy->nbefore : 0;
    *leg = number < nahead ? dd_hierarchy_leg_before(hierarchy, piece + 1, number)
                           : dd_hierarchy_leg_after(hierarchy, piece, number - nahead);
    return true;
}

static bool
get_plan_leg(const dd_hierarchy *hierarchy, uint64_t index, dd_leg *leg)
{
    uint64_t piece = index / 2;
    if (piece >= hierarchy->npieces) {
        return false;
    }
    if (index % 2 != 0) {
        *leg = dd_hierarchy_leg_rounding(hierarchy, piece);
        return true;
    }
    *leg = dd_hierarchy_leg_between(hierarchy, piece);
    bool is_independent = hierarchy->args->coll == DD_COLL_ALL_GATHER || leg->kind == DD_LEG_NOTHING;
    leg->needs = is_independent ? 0 : count_legs_before(hierarchy, piece);
    return true;
}

bool
dd_hierarchy_get_leg(dd_hierarchy *hierarchy, dd_lane lane, uint64_t index, dd_leg *leg)
{
    return lane == DD_LANE_ARENA ? get_arena_leg(hierarchy, index, leg) : get_plan_leg(hierarchy, index, leg);
}
