#include "collective/hierarchy.h"

#include "collective/plan_internal.h"
#include "core/mem.h"

/* Long enough that the turn-around between two pieces on a fast network costs a few per cent. */
#define USUAL_PIECE_NBYTES ((size_t)4 << 20)
/* Least piece of a block where a rank has many of them in scratch. */
#define LEAST_BLOCK_PIECE_NBYTES ((size_t)64 << 10)
#define USUAL_LINE_NBYTES ((size_t)4 << 10)
#define USUAL_SMALL_NBYTES ((size_t)32 << 10)

/* Of a rank that carries nothing. */
#define NO_SHARE (-1)

typedef enum data_kind {
    NOT_POSSIBLE,
    NO_DATA,
    ARRAY,  /* one, of which carriers have shares */
    BLOCKS, /* one for each rank, carried by those at its place: of hosts that have equally many */
} data_kind;

/* What is done inside the hosts, before the plan between them and after it. */
typedef struct parts {
    data_kind kind;
    dd_coll before;
    dd_coll after;
} parts;

static const parts parts_of[DD_COLL_COUNT] = {
    [DD_COLL_BARRIER] = {NO_DATA, DD_COLL_BARRIER, DD_COLL_BARRIER},
    [DD_COLL_BROADCAST] = {ARRAY, DD_COLL_SCATTER, DD_COLL_ALL_GATHER},
    [DD_COLL_REDUCE] = {ARRAY, DD_COLL_REDUCE_SCATTER, DD_COLL_GATHER},
    [DD_COLL_ALL_REDUCE] = {ARRAY, DD_COLL_REDUCE_SCATTER, DD_COLL_ALL_GATHER},
    [DD_COLL_ALL_GATHER] = {BLOCKS, DD_COLL_ALL_GATHER, DD_COLL_ALL_GATHER},
    [DD_COLL_REDUCE_SCATTER] = {.kind = BLOCKS, .before = DD_COLL_REDUCE_SCATTER}, /* nothing after it */
};

/* Of the inputs, or outputs, of a leg. */
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
    data_kind kind = parts_of[coll].kind;
    return topology->nhosts > 1 && topology->max_nlocal > 1 && kind != NOT_POSSIBLE &&
           (kind != BLOCKS || topology->min_nlocal == topology->max_nlocal);
}

/* ---- who carries what */

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

/* Where on a host the carrier of a share sits. */
static int
place_of_share(const dd_hierarchy *h, int host, int share)
{
    bool is_with_root = h->ncarriers == 1 && is_on_root_host(h, host);
    return is_with_root ? h->topology->local_of[h->args->root] : share;
}

/* The share that a rank of this host carries. */
static int
share_of_place(const dd_hierarchy *h, int place)
{
    if (h->ncarriers == 1) {
        return place == place_of_share(h, h->topology->host, 0) ? 0 : NO_SHARE;
    }
    return place < h->ncarriers ? place : NO_SHARE;
}

static bool
is_wide(const dd_hierarchy *h)
{
    return h->partial_nbytes != h->element_nbytes;
}

static size_t
widen(const dd_hierarchy *h, size_t nbytes)
{
    return nbytes / h->element_nbytes * h->partial_nbytes;
}

/* A share of a piece of an array, in whole lines. */
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
part_of(const dd_block *block, dd_span span)
{
    char *data = block->data;
    return (dd_block){.data = span.count > 0 ? data + span.first : NULL, .nbytes = span.count};
}

/* What belongs to the rank at a place of a host: a share of the array, or that rank's block. */
static dd_block
part_at(const dd_hierarchy *h, const dd_block *blocks, uint64_t piece, int host, int place)
{
    if (parts_of[h->args->coll].kind == ARRAY) {
        return part_of(blocks, cut_share(h, blocks->nbytes, piece, share_of_place(h, place)));
    }
    const dd_block *block = &blocks[dd_topology_rank_at(h->topology, host, place)];
    return part_of(block, dd_segment(block->nbytes, h->piece_nbytes, (size_t)piece));
}

static dd_block
in_scratch(const dd_hierarchy *h, uint64_t piece, int host, size_t nbytes)
{
    size_t first = (size_t)(piece % 2) * h->half_nbytes;
    if (parts_of[h->args->coll].kind == BLOCKS) {
        first += (size_t)host * (h->half_nbytes / (size_t)h->topology->nhosts);
    }
    return (dd_block){.data = nbytes > 0 ? h->scratch + first : NULL, .nbytes = nbytes};
}

/* Where this rank's partial results lie, in reduce_scatter those for a host: in the result's place if they fit there. */
static dd_block
partial_block(const dd_hierarchy *h, uint64_t piece, int host)
{
    dd_block part = part_at(h, h->args->inputs, piece, host, h->topology->local);
    if (!is_wide(h) && (h->args->coll == DD_COLL_ALL_REDUCE || is_root(h))) {
        return part_at(h, h->args->outputs, piece, host, h->topology->local);
    }
    return in_scratch(h, piece, host, widen(h, part.nbytes));
}

/* And what is whole: this rank's part of the result, or of what is gathered from a host. */
static dd_block
whole_block(const dd_hierarchy *h, uint64_t piece, int host)
{
    const dd_coll_args *args = h->args;
    int local = h->topology->local;
    if (args->coll == DD_COLL_REDUCE && !is_root(h)) {
        return in_scratch(h, piece, host, part_at(h, args->inputs, piece, host, local).nbytes);
    }
    if (args->coll == DD_COLL_REDUCE_SCATTER) {
        return part_of(&args->outputs[0],
                       dd_segment(args->outputs[0].nbytes, h->piece_nbytes, (size_t)piece));
    }
    if (args->coll == DD_COLL_ALL_GATHER && host == h->topology->host) {
        /* It comes into the outputs by the arena. */
        return part_of(&args->inputs[0], dd_segment(args->inputs[0].nbytes, h->piece_nbytes, (size_t)piece));
    }
    bool is_only_sent = args->coll == DD_COLL_BROADCAST && h->ncarriers == 1 && is_root(h);
    return part_at(h, is_only_sent ? args->inputs : args->outputs, piece, host, local);
}

/* ---- legs */

static dd_block *
inputs_of(const dd_hierarchy *h, dd_lane lane)
{
    return h->blocks[lane];
}

static dd_block *
outputs_of(const dd_hierarchy *h, dd_lane lane)
{
    return h->blocks[lane] + count_slots(h->topology);
}

static dd_leg
make_leg(const dd_hierarchy *h, dd_lane lane, dd_coll coll)
{
    const dd_topology *topology = h->topology;
    bool is_arena = lane == DD_LANE_ARENA;
    return (dd_leg){
        .kind = is_arena ? DD_LEG_ARENA : DD_LEG_PLAN,
        .args = {.coll = coll,
                 .reduction = h->args->reduction,
                 .inputs = inputs_of(h, lane),
                 .outputs = outputs_of(h, lane)},
        .rank = is_arena ? topology->local : topology->host,
        .nranks = is_arena ? topology->nlocal : topology->nhosts,
        .ranks = is_arena ? NULL : h->ranks,
    };
}

static void
fill_each(const dd_hierarchy *h, uint64_t piece, int host, const dd_block *from, dd_block *to)
{
    for (int place = 0; place < h->topology->nlocal; place++) {
        to[place] = part_at(h, from, piece, host, place);
    }
}

/* Inside the host; of those with a block for each rank, the blocks of a host's ranks. */
static dd_leg
leg_inside(const dd_hierarchy *h, dd_coll coll, uint64_t piece, int host)
{
    dd_leg leg = make_leg(h, DD_LANE_ARENA, coll);
    dd_block *inputs = inputs_of(h, DD_LANE_ARENA);
    dd_block *outputs = outputs_of(h, DD_LANE_ARENA);
    if (coll == DD_COLL_BROADCAST) {
        leg.args.root = place_of_share(h, h->topology->host, 0);
    } else if (coll == DD_COLL_SCATTER || coll == DD_COLL_GATHER) {
        leg.args.root = h->topology->local_of[h->args->root];
    }
    bool is_here = leg.args.root == leg.rank;
    if (coll == DD_COLL_REDUCE_SCATTER || (coll == DD_COLL_SCATTER && is_here)) {
        fill_each(h, piece, host, h->args->inputs, inputs);
    } else if (coll != DD_COLL_BARRIER && coll != DD_COLL_SCATTER && (coll != DD_COLL_BROADCAST || is_here)) {
        inputs[0] = whole_block(h, piece, host);
    }
    if (coll == DD_COLL_ALL_GATHER || (coll == DD_COLL_GATHER && is_here)) {
        fill_each(h, piece, host, h->args->outputs, outputs);
    } else if (coll == DD_COLL_REDUCE_SCATTER) {
        leg.is_partial = true;
        outputs[0] = partial_block(h, piece, host);
    } else if (coll == DD_COLL_SCATTER) {
        outputs[0] = whole_block(h, piece, host);
    } else if (coll == DD_COLL_BROADCAST) {
        const dd_block *array = &h->args->outputs[0];
        outputs[0] = part_of(array, dd_segment(array->nbytes, h->piece_nbytes, (size_t)piece));
    }
    return leg;
}

/* The reduction of partial results. Results that need no rounding are finished by it. */
static dd_reduction
reduction_between(const dd_hierarchy *h)
{
    dd_reduction reduction = h->args->reduction;
    reduction.dtype = dd_reduce_accumulator(reduction.dtype);
    if (reduction.op == DD_REDOP_PREMUL_SUM || (reduction.op == DD_REDOP_AVG && is_wide(h))) {
        reduction.op = DD_REDOP_SUM;
    }
    return reduction;
}

/* Between the carriers of one share. */
static dd_leg
leg_between(const dd_hierarchy *h, uint64_t piece)
{
    dd_coll coll = h->args->coll;
    dd_leg leg = make_leg(h, DD_LANE_PLAN, coll);
    dd_block *inputs = inputs_of(h, DD_LANE_PLAN);
    dd_block *outputs = outputs_of(h, DD_LANE_PLAN);
    int share = share_of_place(h, h->topology->local);
    bool is_fold = dd_coll_is_folding(coll);
    size_t nbytes = 0;
    if (share == NO_SHARE) {
        return (dd_leg){.kind = DD_LEG_NOTHING};
    }
    for (int host = 0; host < h->topology->nhosts; host++) {
        h->ranks[host] = dd_topology_rank_at(h->topology, host, place_of_share(h, host, share));
        if (coll != DD_COLL_BARRIER) {
            inputs[host] = outputs[host] = (is_fold ? partial_block : whole_block)(h, piece, host);
            nbytes += inputs[host].nbytes;
        }
    }
    /* What a rank has one block of: its own. An array is one block at both ends. */
    if (coll == DD_COLL_ALL_GATHER) {
        inputs[0] = inputs[h->topology->host];
    } else if (coll == DD_COLL_REDUCE_SCATTER) {
        outputs[0] = is_wide(h) ? outputs[h->topology->host] : whole_block(h, piece, h->topology->host);
    }
    if (is_fold) {
        leg.args.reduction = reduction_between(h);
    }
    leg.args.root = dd_coll_has_root(h->args->coll) ? h->topology->host_of[h->args->root] : 0;
    leg.kind = nbytes > 0 || coll == DD_COLL_BARRIER ? DD_LEG_PLAN : DD_LEG_NOTHING;
    return leg;
}

/* After the plan: accumulators become elements, where this rank has a part of the result. */
static dd_leg
leg_rounding(const dd_hierarchy *h, uint64_t piece)
{
    dd_coll coll = h->args->coll;
    dd_leg leg = make_leg(h, DD_LANE_PLAN, coll);
    leg.kind = DD_LEG_NOTHING;
    if (is_wide(h) && (coll != DD_COLL_REDUCE || is_on_root_host(h, h->topology->host))) {
        inputs_of(h, DD_LANE_PLAN)[0] = partial_block(h, piece, h->topology->host);
        outputs_of(h, DD_LANE_PLAN)[0] = whole_block(h, piece, h->topology->host);
        leg.kind = outputs_of(h, DD_LANE_PLAN)[0].nbytes > 0 ? DD_LEG_ROUND : DD_LEG_NOTHING;
    }
    return leg;
}

/* ---- taking up a collective */

/* One array, shared out among carriers: of the piece, each has as much as fits. */
static void
begin_array(dd_hierarchy *h, size_t nbytes)
{
    size_t line = h->limits.line_nbytes;
    h->ncarriers =
        dd_coll_has_root(h->args->coll) && nbytes <= h->limits.small_nbytes ? 1 : h->topology->min_nlocal;
    size_t share_nbytes = h->limits.piece_nbytes / h->partial_nbytes * h->element_nbytes;
    share_nbytes = share_nbytes < line ? line : share_nbytes / line * line;
    h->piece_nbytes = share_nbytes * (size_t)h->ncarriers;
    if (h->args->coll == DD_COLL_REDUCE || is_wide(h)) {
        h->half_nbytes = dd_round_up(widen(h, cut_share(h, nbytes, 0, 0).count));
    }
}

/* A block for each rank, carried by those at its place; reduce_scatter has one for each host in scratch. */
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
    h->half_nbytes = is_fold ? nhosts * dd_round_up(widen(h, most)) : 0;
    h->nbefore = is_fold ? nhosts : 1;
    h->nafter = is_fold ? 0 : nhosts - 1;
}

void
dd_hierarchy_begin(dd_hierarchy *hierarchy, const dd_coll_args *args)
{
    dd_hierarchy *h = hierarchy;
    bool is_even;
    bool is_fold = dd_coll_is_folding(args->coll);
    size_t nbytes = dd_coll_known_nbytes(args, h->topology->nranks, true, &is_even);
    h->args = args;
    h->half_nbytes = 0;
    h->element_nbytes = is_fold ? dd_dtype_size(args->reduction.dtype) : 1;
    h->partial_nbytes = is_fold ? dd_dtype_size(dd_reduce_accumulator(args->reduction.dtype)) : 1;
    h->piece_nbytes = h->limits.piece_nbytes;
    h->ncarriers = 1;
    h->nbefore = h->nafter = 1;
    if (parts_of[args->coll].kind == ARRAY) {
        begin_array(h, nbytes);
    } else if (parts_of[args->coll].kind == BLOCKS) {
        begin_blocks(h, nbytes);
    }
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

static dd_leg
leg_before(const dd_hierarchy *h, uint64_t piece, uint64_t number)
{
    int host = h->nbefore == 1 ? h->topology->host : (int)number;
    dd_leg leg = leg_inside(h, parts_of[h->args->coll].before, piece, host);
    /* The half of the scratch must not be in use any more. */
    leg.needs = piece < 2 ? 0 : 2 * (piece - 1);
    return leg;
}

static dd_leg
leg_after(const dd_hierarchy *h, uint64_t piece, uint64_t number)
{
    bool is_one_carriers = h->args->coll == DD_COLL_BROADCAST && h->ncarriers == 1;
    int host = h->topology->host;
    if (h->args->coll == DD_COLL_ALL_GATHER) {
        host = (int)number < host ? (int)number : (int)number + 1;
    }
    dd_leg leg =
        leg_inside(h, is_one_carriers ? DD_COLL_BROADCAST : parts_of[h->args->coll].after, piece, host);
    bool has_data = is_one_carriers && is_on_root_host(h, host);
    leg.needs = has_data ? 0 : 2 * (piece + 1);
    return leg;
}

/* The legs before a piece's plan come ahead of those after the plan of the piece before it. */
static bool
get_arena_leg(const dd_hierarchy *h, uint64_t index, dd_leg *leg)
{
    uint64_t each = h->nbefore + h->nafter;
    if (index >= h->npieces * each) {
        return false;
    }
    if (index < h->nbefore) {
        *leg = leg_before(h, 0, index);
        return true;
    }
    uint64_t piece = (index - h->nbefore) / each;
    uint64_t number = (index - h->nbefore) % each;
    uint64_t nahead = piece + 1 < h->npieces ? h->nbefore : 0;
    *leg = number < nahead ? leg_before(h, piece + 1, number) : leg_after(h, piece, number - nahead);
    return true;
}

static bool
get_plan_leg(const dd_hierarchy *h, uint64_t index, dd_leg *leg)
{
    uint64_t piece = index / 2;
    if (piece >= h->npieces) {
        return false;
    }
    if (index % 2 != 0) {
        *leg = leg_rounding(h, piece);
        return true;
    }
    *leg = leg_between(h, piece);
    bool is_independent =
        h->args->coll == DD_COLL_ALL_GATHER || leg->kind == DD_LEG_NOTHING || h->nbefore == 0;
    /* Those before its plan, and what comes ahead of them. */
    uint64_t nafter = piece > 0 ? (piece - 1) * h->nafter : 0;
    leg->needs = is_independent ? 0 : (piece + 1) * h->nbefore + nafter;
    return true;
}

bool
dd_hierarchy_get_leg(dd_hierarchy *hierarchy, dd_lane lane, uint64_t index, dd_leg *leg)
{
    return lane == DD_LANE_ARENA ? get_arena_leg(hierarchy, index, leg) : get_plan_leg(hierarchy, index, leg);
}
