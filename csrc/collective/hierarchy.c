#include "collective/hierarchy.h"

#include "collective/plan_internal.h"
#include "core/mem.h"

/* Default limits. Each turnaround between pieces costs a few per cent on a fast network. */
#define USUAL_PIECE_NBYTES ((size_t)4 << 20)
#define LEAST_BLOCK_PIECE_NBYTES ((size_t)64 << 10) /* minimum when the scratch has many blocks */
#define USUAL_LINE_NBYTES ((size_t)4 << 10)
#define USUAL_SMALL_NBYTES ((size_t)32 << 10)

#define NO_SHARE (-1)

typedef enum data_kind {
    NOT_POSSIBLE,
    NO_DATA,
    ARRAY,  /* one array; each carrier carries a share of it */
    BLOCKS, /* one block per rank; a carrier carries all blocks of its local number */
} data_kind;

/* Names of a leg's blocks. If a leg has a block for each of its ranks, block k is rank k's. */
typedef enum block_name {
    OF_INPUTS,  /* the rank's part of the collective's inputs */
    OF_OUTPUTS, /* the rank's part of the collective's outputs */
    INPUT,      /* the current piece of the first input; OUTPUT: of the first output */
    OUTPUT,
    PARTIAL, /* this rank's partial results; in a reduce_scatter, those for one host */
    /* all_gather: the block of one host's rank with this local number; on this host, the input. */
    COLLECTED,
    FOR_ROOT, /* in a reduce: this rank's part of the result */
    /* In a broadcast by one carrier: the piece, in the memory where this rank first has it. */
    FROM_ROOT,
} block_name;

typedef struct leg_row {
    dd_coll coll;
    block_name inputs;
    block_name outputs;
} leg_row;

/* The legs of one piece: inside the hosts, between the hosts, and again inside the hosts. */
typedef struct leg_rows {
    data_kind kind;
    leg_row before;
    leg_row between;
    leg_row after;
} leg_rows;

#define ROW(coll, inputs, outputs)      \
    {                                   \
        DD_COLL_##coll, inputs, outputs \
    }

/* A barrier's row needs names, but a barrier has no blocks. */
#define NO_BLOCKS ROW(BARRIER, OF_INPUTS, OF_OUTPUTS)

/* Collectives of a kind without a row are NOT_POSSIBLE: they use messages between all ranks. */
static const leg_rows rows_of[DD_COLL_COUNT] = {
    [DD_COLL_BARRIER] = {NO_DATA, NO_BLOCKS, NO_BLOCKS, NO_BLOCKS},
    [DD_COLL_BROADCAST] = {ARRAY, ROW(SCATTER, OF_INPUTS, OF_OUTPUTS), ROW(BROADCAST, OF_OUTPUTS, OF_OUTPUTS),
                           ROW(ALL_GATHER, OF_OUTPUTS, OF_OUTPUTS)},
    [DD_COLL_REDUCE] = {ARRAY, ROW(REDUCE_SCATTER, OF_INPUTS, PARTIAL), ROW(REDUCE, PARTIAL, FOR_ROOT),
                        ROW(GATHER, FOR_ROOT, OF_OUTPUTS)},
    [DD_COLL_ALL_REDUCE] = {ARRAY, ROW(REDUCE_SCATTER, OF_INPUTS, PARTIAL),
                            ROW(ALL_REDUCE, PARTIAL, OF_OUTPUTS), ROW(ALL_GATHER, OF_OUTPUTS, OF_OUTPUTS)},
    [DD_COLL_ALL_GATHER] = {BLOCKS, ROW(ALL_GATHER, INPUT, OF_OUTPUTS), ROW(ALL_GATHER, INPUT, COLLECTED),
                            ROW(ALL_GATHER, OF_OUTPUTS, OF_OUTPUTS)},
    [DD_COLL_REDUCE_SCATTER] = {BLOCKS, ROW(REDUCE_SCATTER, OF_INPUTS, PARTIAL),
                                ROW(REDUCE_SCATTER, PARTIAL, OUTPUT), NO_BLOCKS}, /* no leg after */
};

/* In a broadcast of a small array, each host has one carrier, which broadcasts the array there. */
static const leg_rows broadcast_by_one = {ARRAY, NO_BLOCKS, /* no leg before */
                                          ROW(BROADCAST, INPUT, FROM_ROOT),
                                          ROW(BROADCAST, FROM_ROOT, OUTPUT)};

/* Return the maximum number of inputs, or of outputs, of a leg. */
static size_t
count_slots(const dd_topology *topology)
{
    return (size_t)(topology->nhosts > topology->max_nlocal ? topology->nhosts : topology->max_nlocal);
}

dd_status
dd_hierarchy_init(dd_hierarchy *hierarchy, const dd_topology *topology, const dd_hierarchy_limits *limits,
                  dd_error *err)
{
    size_t nblocks = 2 * count_slots(topology);
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
    data_kind kind = rows_of[coll].kind;
    return topology->nhosts > 1 && topology->max_nlocal > 1 && kind != NOT_POSSIBLE &&
           (kind != BLOCKS || topology->min_nlocal == topology->max_nlocal);
}

/* ---- shares of the carriers */

static bool
is_on_root_host(const dd_hierarchy *h, int host)
{
    return dd_coll_has_root(h->args->coll) && host == h->topology->host_of[h->args->root];
}

static bool
is_root(const dd_hierarchy *h)
{
    return dd_coll_has_root(h->args->coll) && h->topology->rank == h->args->root;
}

/* Return the local number of the rank that carries `share` on `host`. */
static int
local_of_share(const dd_hierarchy *h, int host, int share)
{
    bool is_with_root = h->ncarriers == 1 && is_on_root_host(h, host);
    return is_with_root ? h->topology->local_of[h->args->root] : share;
}

/* Return the share that a local rank of this host carries, or NO_SHARE. */
static int
share_of_local(const dd_hierarchy *h, int local)
{
    if (h->ncarriers == 1) {
        return local == local_of_share(h, h->topology->host, 0) ? 0 : NO_SHARE;
    }
    return local < h->ncarriers ? local : NO_SHARE;
}

static bool
is_wide(const dd_hierarchy *h)
{
    return h->partial_nbytes != h->element_nbytes;
}

static size_t
hierarchy_widen(const dd_hierarchy *h, size_t nbytes)
{
    return nbytes / h->element_nbytes * h->partial_nbytes;
}

/* Return the part of an array's piece that a carrier carries: its share, in whole lines. */
static dd_span
cut_share(const dd_hierarchy *h, size_t nbytes, uint64_t piece, int share)
{
    dd_span span = dd_segment(nbytes, h->piece_nbytes, (size_t)piece);
    if (share == NO_SHARE) {
        return (dd_span){.first = span.first, .count = 0};
    }
    dd_span part = dd_share_lines(span.count, h->limits.line_nbytes, h->ncarriers, share);
    part.first += span.first;
    return part;
}

/* ---- blocks of a piece */

static dd_block
hierarchy_part_of(const dd_block *block, dd_span span)
{
    char *data = block->data;
    return (dd_block){.data = span.count > 0 ? data + span.first : NULL, .nbytes = span.count};
}

static dd_block
piece_of(const dd_hierarchy *h, const dd_block *block, uint64_t piece)
{
    return hierarchy_part_of(block, dd_segment(block->nbytes, h->piece_nbytes, (size_t)piece));
}

/* Return the part of a local rank: its share of the array, or its block. */
static dd_block
part_at(const dd_hierarchy *h, const dd_block *blocks, uint64_t piece, int host, int local)
{
    if (rows_of[h->args->coll].kind == ARRAY) {
        return hierarchy_part_of(blocks, cut_share(h, blocks->nbytes, piece, share_of_local(h, local)));
    }
    return piece_of(h, &blocks[dd_topology_rank_at(h->topology, host, local)], piece);
}

/* Return scratch for a piece. Pieces alternate between two halves of the scratch; for BLOCKS, each
 * half has one part per host. */
static dd_block
in_scratch(const dd_hierarchy *h, uint64_t piece, int host, size_t nbytes)
{
    size_t first = (size_t)(piece % 2) * h->half_nbytes;
    if (rows_of[h->args->coll].kind == BLOCKS) {
        first += (size_t)host * (h->half_nbytes / (size_t)h->topology->nhosts);
    }
    return (dd_block){.data = nbytes > 0 ? h->scratch + first : NULL, .nbytes = nbytes};
}

/* Return the memory of this rank's partial results: the outputs if they fit there, else scratch. */
static dd_block
partial_block(const dd_hierarchy *h, uint64_t piece, int host)
{
    dd_block part = part_at(h, h->args->inputs, piece, host, h->topology->local);
    if (!is_wide(h) && (h->args->coll == DD_COLL_ALL_REDUCE || is_root(h))) {
        return part_at(h, h->args->outputs, piece, host, h->topology->local);
    }
    return in_scratch(h, piece, host, hierarchy_widen(h, part.nbytes));
}

/* Return this rank's block of a reduce's result, which the root gathers: in the outputs on the
 * root; elsewhere in scratch, after the partial results or, if both have one size, over them. */
static dd_block
block_for_root(const dd_hierarchy *h, uint64_t piece, int host, int local)
{
    if (is_root(h)) {
        return part_at(h, h->args->outputs, piece, host, local);
    }
    dd_block part = part_at(h, h->args->inputs, piece, host, local);
    dd_block block = in_scratch(h, piece, host, part.nbytes);
    if (is_wide(h) && part.nbytes > 0) {
        block.data = (char *)block.data + dd_round_up(hierarchy_widen(h, part.nbytes));
    }
    return block;
}

static dd_block
block_at(const dd_hierarchy *h, block_name name, uint64_t piece, int host, int local)
{
    const dd_coll_args *args = h->args;
    switch (name) {
    case OF_INPUTS:
        return part_at(h, args->inputs, piece, host, local);
    case OF_OUTPUTS:
        break;
    case INPUT:
        return piece_of(h, &args->inputs[0], piece);
    case OUTPUT:
        return piece_of(h, &args->outputs[0], piece);
    case PARTIAL:
        return partial_block(h, piece, host);
    case COLLECTED:
        /* The arena copies the blocks of this host from the inputs to the outputs. */
        if (host == h->topology->host) {
            return piece_of(h, &args->inputs[0], piece);
        }
        break;
    case FOR_ROOT:
        return block_for_root(h, piece, host, local);
    case FROM_ROOT:
        return piece_of(h, is_root(h) ? &args->inputs[0] : &args->outputs[0], piece);
    }
    return part_at(h, args->outputs, piece, host, local);
}

/* ---- legs */

static void
fill(const dd_hierarchy *h, const dd_leg *leg, block_name name, int count, uint64_t piece, int host,
     dd_block *to)
{
    bool is_inside = leg->kind == DD_LEG_ARENA;
    for (int i = 0; i < count; i++) {
        to[i] = block_at(h, name, piece, is_inside || count == 1 ? host : i,
                         is_inside && count > 1 ? i : h->topology->local);
    }
}

/* Make a leg of a piece: inside the host (all_gather and reduce_scatter have one leg for the blocks
 * of each host), or between the carriers of one share. */
static dd_leg
make_leg(const dd_hierarchy *h, dd_leg_lane lane, const leg_row *row, uint64_t piece, int host)
{
    const dd_topology *topology = h->topology;
    bool is_inside = lane == DD_LANE_ARENA;
    int share = share_of_local(h, topology->local);
    if (!is_inside && share == NO_SHARE) {
        return (dd_leg){.kind = DD_LEG_NOTHING};
    }
    dd_block *blocks = h->blocks[lane];
    dd_leg leg = {
        .kind = is_inside ? DD_LEG_ARENA : DD_LEG_PLAN,
        .args = {.coll = row->coll,
                 .reduction = h->args->reduction,
                 .stage = is_inside ? DD_STAGE_FIRST : DD_STAGE_LAST,
                 .inputs = blocks,
                 .outputs = blocks + count_slots(topology)},
        .rank = is_inside ? topology->local : topology->host,
        .nranks = is_inside ? topology->nlocal : topology->nhosts,
        .ranks = is_inside ? topology->local_ranks : h->ranks,
    };
    int root_host = dd_coll_has_root(h->args->coll) ? topology->host_of[h->args->root] : 0;
    leg.args.root = !is_inside                           ? root_host
                    : is_on_root_host(h, topology->host) ? topology->local_of[h->args->root]
                                                         : 0;
    bool is_root_of_leg = leg.args.root == leg.rank;
    fill(h, &leg, row->inputs, dd_coll_ninputs(row->coll, is_root_of_leg, leg.nranks), piece, host, blocks);
    fill(h, &leg, row->outputs, dd_coll_noutputs(row->coll, is_root_of_leg, leg.nranks), piece, host,
         blocks + count_slots(topology));
    for (int k = 0; k < topology->nhosts && !is_inside; k++) {
        h->ranks[k] = dd_topology_rank_at(topology, k, local_of_share(h, k, share));
    }
    if (!is_inside && row->coll != DD_COLL_BARRIER && dd_coll_nbytes(&leg.args, leg.rank, leg.nranks) == 0) {
        leg.kind = DD_LEG_NOTHING;
    }
    return leg;
}

/* ---- beginning a collective */

/* Begin a collective of one array. A piece has as much of each carrier's share as is allowed. */
static void
begin_array(dd_hierarchy *h, size_t nbytes)
{
    size_t line = h->limits.line_nbytes;
    h->ncarriers =
        dd_coll_has_root(h->args->coll) && nbytes <= h->limits.small_nbytes ? 1 : h->topology->min_nlocal;
    bool is_reduce = h->args->coll == DD_COLL_REDUCE;
    /* Bytes of scratch that block_for_root needs for each element. */
    size_t aside_nbytes = is_reduce && is_wide(h) ? h->element_nbytes : 0;
    size_t share_nbytes = h->limits.piece_nbytes / (h->partial_nbytes + aside_nbytes) * h->element_nbytes;
    share_nbytes = share_nbytes < line ? line : share_nbytes / line * line;
    h->piece_nbytes = share_nbytes * (size_t)h->ncarriers;
    if (is_reduce || is_wide(h)) {
        size_t first_nbytes = cut_share(h, nbytes, 0, 0).count;
        h->half_nbytes = dd_round_up(hierarchy_widen(h, first_nbytes)) +
                         (aside_nbytes > 0 ? dd_round_up(first_nbytes) : 0);
    }
}

/* Begin a collective with a block per rank. In a reduce_scatter, scratch has one block per host. */
static void
begin_blocks(dd_hierarchy *h, size_t largest)
{
    size_t nhosts = (size_t)h->topology->nhosts;
    bool is_fold = dd_coll_is_folding(h->args->coll);
    size_t piece = h->limits.piece_nbytes;
    if (is_fold) {
        size_t least = piece < LEAST_BLOCK_PIECE_NBYTES ? piece : LEAST_BLOCK_PIECE_NBYTES;
        piece = piece / nhosts < least ? least : piece / nhosts;
    }
    h->ncarriers = h->topology->max_nlocal;
    h->piece_nbytes = dd_round_up(piece / h->partial_nbytes * h->element_nbytes);
    size_t most = largest < h->piece_nbytes ? largest : h->piece_nbytes;
    h->half_nbytes = is_fold ? nhosts * dd_round_up(hierarchy_widen(h, most)) : 0;
    h->nbefore = is_fold ? nhosts : 1;
    h->nafter = is_fold ? 0 : nhosts - 1;
}

void
dd_hierarchy_begin(dd_hierarchy *hierarchy, const dd_coll_args *args)
{
    dd_hierarchy *h = hierarchy;
    bool is_even;
    size_t nbytes = dd_coll_known_nbytes(args, h->topology->nranks, true, &is_even);
    dd_coll_args part = *args;
    part.stage = DD_STAGE_FIRST;
    h->args = args;
    h->half_nbytes = 0;
    h->element_nbytes = dd_coll_input_size(&part);
    h->partial_nbytes = dd_coll_output_size(&part);
    h->piece_nbytes = h->limits.piece_nbytes;
    h->ncarriers = 1;
    h->nbefore = h->nafter = 1;
    if (rows_of[args->coll].kind == ARRAY) {
        begin_array(h, nbytes);
    } else if (rows_of[args->coll].kind == BLOCKS) {
        begin_blocks(h, nbytes);
    }
    bool is_by_one = args->coll == DD_COLL_BROADCAST && h->ncarriers == 1;
    h->rows = is_by_one ? &broadcast_by_one : &rows_of[args->coll];
    bool is_sharing = h->ncarriers > 1 && is_on_root_host(h, h->topology->host);
    if (args->coll == DD_COLL_BROADCAST) {
        h->nbefore = is_sharing ? 1 : 0;
    } else if (args->coll == DD_COLL_REDUCE) {
        h->nafter = is_sharing ? 1 : 0;
    }
    h->npieces = nbytes == 0 ? 1 : dd_nsegments(nbytes, h->piece_nbytes);
    h->scratch_nbytes = h->half_nbytes * (h->npieces > 1 ? 2 : 1);
}

/* ---- order */

/* Return leg `number` of a piece: nbefore inside the host, one between hosts, nafter inside. */
static dd_leg
leg_of(const dd_hierarchy *h, uint64_t piece, uint64_t number)
{
    int host = h->topology->host;
    dd_leg leg;
    if (number == h->nbefore) {
        return make_leg(h, DD_LANE_PLAN, &h->rows->between, piece, host);
    }
    if (number < h->nbefore) {
        leg = make_leg(h, DD_LANE_ARENA, &h->rows->before, piece, h->nbefore == 1 ? host : (int)number);
        /* The previous piece in this half of the scratch must have ended its plan. */
        leg.needs = piece < 2 ? 0 : piece - 1;
        return leg;
    }
    if (h->args->coll == DD_COLL_ALL_GATHER) {
        int other = (int)(number - h->nbefore) - 1;
        host = other < host ? other : other + 1;
    }
    leg = make_leg(h, DD_LANE_ARENA, &h->rows->after, piece, host);
    bool has_data = h->rows == &broadcast_by_one && is_on_root_host(h, host);
    leg.needs = has_data ? 0 : piece + 1;
    return leg;
}

/* Order of arena legs: a piece's legs before its plan, then the previous piece's after its plan. */
static bool
get_arena_leg(const dd_hierarchy *h, uint64_t index, dd_leg *leg)
{
    uint64_t each = h->nbefore + h->nafter;
    if (index >= h->npieces * each || h->topology->nlocal == 1) {
        return false;
    }
    if (index < h->nbefore) {
        *leg = leg_of(h, 0, index);
        return true;
    }
    uint64_t piece = (index - h->nbefore) / each;
    uint64_t number = (index - h->nbefore) % each;
    uint64_t nahead = piece + 1 < h->npieces ? h->nbefore : 0;
    *leg =
        number < nahead ? leg_of(h, piece + 1, number) : leg_of(h, piece, h->nbefore + 1 + number - nahead);
    return true;
}

/* Get a leg of the plans' lane. A rank alone on its host has no arena: all its legs are plans. */
static bool
get_plan_leg(const dd_hierarchy *h, uint64_t index, dd_leg *leg)
{
    bool is_alone = h->topology->nlocal == 1;
    uint64_t each = is_alone ? h->nbefore + 1 + h->nafter : 1;
    uint64_t piece = index / each;
    if (piece >= h->npieces) {
        return false;
    }
    *leg = leg_of(h, piece, is_alone ? index % each : h->nbefore);
    leg->kind = leg->kind == DD_LEG_ARENA ? DD_LEG_PLAN : leg->kind;
    bool is_independent =
        is_alone || h->args->coll == DD_COLL_ALL_GATHER || leg->kind == DD_LEG_NOTHING || h->nbefore == 0;
    /* Wait for the arena legs before this piece's plan, and for those ordered ahead of them. */
    uint64_t nafter = piece > 0 ? (piece - 1) * h->nafter : 0;
    leg->needs = is_independent ? 0 : (piece + 1) * h->nbefore + nafter;
    return true;
}

bool
dd_hierarchy_get_leg(dd_hierarchy *hierarchy, dd_leg_lane lane, uint64_t index, dd_leg *leg)
{
    return lane == DD_LANE_ARENA ? get_arena_leg(hierarchy, index, leg) : get_plan_leg(hierarchy, index, leg);
}
