#include "collective/hierarchy_internal.h"

/* ---- blocks */

static int
own_share(const dd_hierarchy *hierarchy)
{
    return dd_hierarchy_share_of_place(hierarchy, hierarchy->topology->local);
}

static dd_block
part_of(const dd_block *block, dd_span span)
{
    char *data = block->data;
    return (dd_block){.data = span.count > 0 ? data + span.first : NULL, .nbytes = span.count};
}

/* That piece of a block of its own, of the collectives with one block a rank. */
static dd_block
block_piece(const dd_hierarchy *hierarchy, const dd_block *block, uint64_t piece)
{
    return part_of(block, dd_hierarchy_piece(hierarchy, block->nbytes, piece));
}

static dd_block *
inputs_of(const dd_hierarchy *hierarchy, dd_lane lane)
{
    return hierarchy->blocks[lane];
}

static dd_block *
outputs_of(const dd_hierarchy *hierarchy, dd_lane lane)
{
    return hierarchy->blocks[lane] + dd_hierarchy_block_slots(hierarchy->topology);
}

static char *
half_of_scratch(const dd_hierarchy *hierarchy, uint64_t piece)
{
    return hierarchy->scratch + (piece % 2) * hierarchy->half_nbytes;
}

/* Where this rank's share of the partial results of all_reduce and reduce lies: in the result's place if
 * it fits there. */
static dd_block
partial_share(const dd_hierarchy *hierarchy, uint64_t piece)
{
    dd_span span = dd_hierarchy_share(hierarchy, piece, own_share(hierarchy));
    bool has_output = hierarchy->args->coll == DD_COLL_ALL_REDUCE || dd_hierarchy_is_root(hierarchy);
    if (has_output && !dd_hierarchy_is_wide(hierarchy)) {
        return part_of(&hierarchy->args->outputs[0], span);
    }
    dd_block block = {.nbytes = dd_hierarchy_widen(hierarchy, span.count)};
    block.data = block.nbytes > 0 ? half_of_scratch(hierarchy, piece) : NULL;
    return block;
}

/* And where its share of the result lies before the last leg. */
static dd_block
finished_share(const dd_hierarchy *hierarchy, uint64_t piece)
{
    dd_span span = dd_hierarchy_share(hierarchy, piece, own_share(hierarchy));
    if (hierarchy->args->coll != DD_COLL_REDUCE || dd_hierarchy_is_root(hierarchy)) {
        return part_of(&hierarchy->args->outputs[0], span);
    }
    return (dd_block){.data = span.count > 0 ? half_of_scratch(hierarchy, piece) : NULL,
                      .nbytes = span.count};
}

/* A host's block of the partial results of reduce_scatter. */
static dd_block
partial_block(const dd_hierarchy *hierarchy, uint64_t piece, int host)
{
    const dd_topology *topology = hierarchy->topology;
    int rank = dd_topology_rank_at(topology, host, topology->local);
    size_t stride = hierarchy->half_nbytes / (size_t)topology->nhosts;
    dd_block block = block_piece(hierarchy, &hierarchy->args->inputs[rank], piece);
    if (block.nbytes > 0) {
        block.nbytes = dd_hierarchy_widen(hierarchy, block.nbytes);
        block.data = half_of_scratch(hierarchy, piece) + (size_t)host * stride;
    }
    return block;
}

/* ---- legs */

static dd_leg
make_leg(const dd_hierarchy *hierarchy, dd_lane lane, dd_coll coll)
{
    const dd_topology *topology = hierarchy->topology;
    bool is_arena = lane == DD_LANE_ARENA;
    return (dd_leg){
        .kind = is_arena ? DD_LEG_ARENA : DD_LEG_PLAN,
        .args = {.coll = coll,
                 .reduction = hierarchy->args->reduction,
                 .inputs = inputs_of(hierarchy, lane),
                 .outputs = outputs_of(hierarchy, lane)},
        .rank = is_arena ? topology->local : topology->host,
        .nranks = is_arena ? topology->nlocal : topology->nhosts,
        .ranks = is_arena ? NULL : hierarchy->ranks,
    };
}

/* The shares of a piece of the array, one block for each rank of this host. */
static void
share_out(const dd_hierarchy *hierarchy, uint64_t piece, const dd_block *array, dd_block *blocks)
{
    for (int place = 0; place < hierarchy->topology->nlocal; place++) {
        dd_span span = dd_hierarchy_share(hierarchy, piece, dd_hierarchy_share_of_place(hierarchy, place));
        blocks[place] = part_of(array, span);
    }
}

/* One block of each rank of a host, that piece of it. */
static void
take_blocks(const dd_hierarchy *hierarchy, uint64_t piece, int host, const dd_block *from, dd_block *to)
{
    const dd_topology *topology = hierarchy->topology;
    for (int place = 0; place < topology->nlocal_of[host]; place++) {
        int rank = dd_topology_rank_at(topology, host, place);
        to[place] = block_piece(hierarchy, &from[rank], piece);
    }
}

static dd_leg
reduce_shares(const dd_hierarchy *hierarchy, uint64_t piece)
{
    dd_leg leg = make_leg(hierarchy, DD_LANE_ARENA, DD_COLL_REDUCE_SCATTER);
    leg.is_partial = true;
    share_out(hierarchy, piece, &hierarchy->args->inputs[0], inputs_of(hierarchy, DD_LANE_ARENA));
    outputs_of(hierarchy, DD_LANE_ARENA)[0] = partial_share(hierarchy, piece);
    return leg;
}

static dd_leg
reduce_blocks(const dd_hierarchy *hierarchy, uint64_t piece, int host)
{
    dd_leg leg = make_leg(hierarchy, DD_LANE_ARENA, DD_COLL_REDUCE_SCATTER);
    leg.is_partial = true;
    take_blocks(hierarchy, piece, host, hierarchy->args->inputs, inputs_of(hierarchy, DD_LANE_ARENA));
    outputs_of(hierarchy, DD_LANE_ARENA)[0] = partial_block(hierarchy, piece, host);
    return leg;
}

static dd_leg
scatter_shares(const dd_hierarchy *hierarchy, uint64_t piece)
{
    dd_leg leg = make_leg(hierarchy, DD_LANE_ARENA, DD_COLL_SCATTER);
    leg.args.root = dd_hierarchy_root_place(hierarchy);
    if (dd_hierarchy_is_root(hierarchy)) {
        share_out(hierarchy, piece, &hierarchy->args->inputs[0], inputs_of(hierarchy, DD_LANE_ARENA));
    }
    outputs_of(hierarchy, DD_LANE_ARENA)[0] = finished_share(hierarchy, piece);
    return leg;
}

static dd_leg
gather_blocks(const dd_hierarchy *hierarchy, uint64_t piece, int host, const dd_block *own)
{
    dd_leg leg = make_leg(hierarchy, DD_LANE_ARENA, DD_COLL_ALL_GATHER);
    take_blocks(hierarchy, piece, host, hierarchy->args->outputs, outputs_of(hierarchy, DD_LANE_ARENA));
    inputs_of(hierarchy, DD_LANE_ARENA)[0] = block_piece(hierarchy, own, piece);
    return leg;
}

static dd_leg
gather_shares(const dd_hierarchy *hierarchy, uint64_t piece)
{
    bool is_to_root = hierarchy->args->coll == DD_COLL_REDUCE;
    dd_leg leg = make_leg(hierarchy, DD_LANE_ARENA, is_to_root ? DD_COLL_GATHER : DD_COLL_ALL_GATHER);
    inputs_of(hierarchy, DD_LANE_ARENA)[0] = finished_share(hierarchy, piece);
    if (is_to_root) {
        leg.args.root = dd_hierarchy_root_place(hierarchy);
    }
    if (!is_to_root || dd_hierarchy_is_root(hierarchy)) {
        share_out(hierarchy, piece, &hierarchy->args->outputs[0], outputs_of(hierarchy, DD_LANE_ARENA));
    }
    return leg;
}

/* What the one carrier has goes to the other ranks of its host. */
static dd_leg
spread_piece(const dd_hierarchy *hierarchy, uint64_t piece)
{
    dd_leg leg = make_leg(hierarchy, DD_LANE_ARENA, DD_COLL_BROADCAST);
    leg.args.root = dd_hierarchy_place_of_share(hierarchy, hierarchy->topology->host, 0);
    const dd_block *source =
        dd_hierarchy_is_root(hierarchy) ? hierarchy->args->inputs : hierarchy->args->outputs;
    if (leg.args.root == leg.rank) {
        inputs_of(hierarchy, DD_LANE_ARENA)[0] = block_piece(hierarchy, source, piece);
    }
    outputs_of(hierarchy, DD_LANE_ARENA)[0] = block_piece(hierarchy, hierarchy->args->outputs, piece);
    return leg;
}

dd_leg
dd_hierarchy_leg_before(const dd_hierarchy *hierarchy, uint64_t piece, uint64_t number)
{
    dd_leg leg;
    if (hierarchy->args->coll == DD_COLL_BARRIER) {
        leg = make_leg(hierarchy, DD_LANE_ARENA, DD_COLL_BARRIER);
    } else if (hierarchy->args->coll == DD_COLL_BROADCAST) {
        leg = scatter_shares(hierarchy, piece);
    } else if (hierarchy->args->coll == DD_COLL_ALL_GATHER) {
        leg = gather_blocks(hierarchy, piece, hierarchy->topology->host, &hierarchy->args->inputs[0]);
    } else if (hierarchy->args->coll == DD_COLL_REDUCE_SCATTER) {
        leg = reduce_blocks(hierarchy, piece, (int)number);
    } else {
        leg = reduce_shares(hierarchy, piece);
    }
    /* The half of the scratch must not be in use any more. */
    leg.needs = piece < 2 ? 0 : 2 * (piece - 1);
    return leg;
}

dd_leg
dd_hierarchy_leg_after(const dd_hierarchy *hierarchy, uint64_t piece, uint64_t number)
{
    const dd_topology *topology = hierarchy->topology;
    dd_leg leg;
    bool has_data = false;
    if (hierarchy->args->coll == DD_COLL_BARRIER) {
        leg = make_leg(hierarchy, DD_LANE_ARENA, DD_COLL_BARRIER);
    } else if (hierarchy->args->coll == DD_COLL_ALL_GATHER) {
        int host = (int)number < topology->host ? (int)number : (int)number + 1;
        int rank = dd_topology_rank_at(topology, host, topology->local);
        leg = gather_blocks(hierarchy, piece, host, &hierarchy->args->outputs[rank]);
    } else if (hierarchy->args->coll == DD_COLL_BROADCAST && hierarchy->ncarriers == 1) {
        leg = spread_piece(hierarchy, piece);
        has_data = dd_hierarchy_is_on_root_host(hierarchy);
    } else {
        leg = gather_shares(hierarchy, piece);
    }
    leg.needs = has_data ? 0 : 2 * (piece + 1);
    return leg;
}

/* ---- legs between hosts */

static void
name_carriers(const dd_hierarchy *hierarchy, int share)
{
    for (int host = 0; host < hierarchy->topology->nhosts; host++) {
        int place = dd_hierarchy_place_of_share(hierarchy, host, share);
        hierarchy->ranks[host] = dd_topology_rank_at(hierarchy->topology, host, place);
    }
}

/* The reduction of partial results. Results that need no rounding are finished by it. */
static dd_reduction
reduction_between(const dd_hierarchy *hierarchy)
{
    dd_reduction reduction = hierarchy->args->reduction;
    reduction.dtype = dd_reduce_accumulator(reduction.dtype);
    if (reduction.op == DD_REDOP_PREMUL_SUM ||
        (reduction.op == DD_REDOP_AVG && dd_hierarchy_is_wide(hierarchy))) {
        reduction.op = DD_REDOP_SUM;
    }
    return reduction;
}

/* all_reduce, reduce, broadcast: each carrier's share. */
static dd_leg
exchange_share(const dd_hierarchy *hierarchy, uint64_t piece)
{
    dd_leg leg = make_leg(hierarchy, DD_LANE_PLAN, hierarchy->args->coll);
    bool is_broadcast = hierarchy->args->coll == DD_COLL_BROADCAST;
    dd_block block = is_broadcast ? finished_share(hierarchy, piece) : partial_share(hierarchy, piece);
    if (is_broadcast && hierarchy->ncarriers == 1 && dd_hierarchy_is_root(hierarchy)) {
        /* The arena brings it into the output; the plan sends, and what it takes for an output it leaves
         * alone. */
        block = block_piece(hierarchy, &hierarchy->args->inputs[0], piece);
    }
    if (block.nbytes == 0) {
        return (dd_leg){.kind = DD_LEG_NOTHING};
    }
    leg.args.root = dd_hierarchy_is_rooted(hierarchy) ? dd_hierarchy_root_host(hierarchy) : 0;
    if (!is_broadcast) {
        leg.args.reduction = reduction_between(hierarchy);
    }
    inputs_of(hierarchy, DD_LANE_PLAN)[0] = block;
    outputs_of(hierarchy, DD_LANE_PLAN)[0] = block;
    name_carriers(hierarchy, own_share(hierarchy));
    return leg;
}

static dd_leg
exchange_blocks(const dd_hierarchy *hierarchy, uint64_t piece)
{
    const dd_topology *topology = hierarchy->topology;
    const dd_coll_args *args = hierarchy->args;
    dd_leg leg = make_leg(hierarchy, DD_LANE_PLAN, args->coll);
    bool is_gather = args->coll == DD_COLL_ALL_GATHER;
    dd_block *one = is_gather ? inputs_of(hierarchy, DD_LANE_PLAN) : outputs_of(hierarchy, DD_LANE_PLAN);
    dd_block *each = is_gather ? outputs_of(hierarchy, DD_LANE_PLAN) : inputs_of(hierarchy, DD_LANE_PLAN);
    size_t nbytes = 0;
    for (int host = 0; host < topology->nhosts; host++) {
        hierarchy->ranks[host] = dd_topology_rank_at(topology, host, topology->local);
        each[host] = is_gather ? block_piece(hierarchy, &args->outputs[hierarchy->ranks[host]], piece)
                               : partial_block(hierarchy, piece, host);
        nbytes += each[host].nbytes;
    }
    if (is_gather) {
        /* Our own block comes into the outputs by the arena. */
        each[topology->host] = block_piece(hierarchy, &args->inputs[0], piece);
        one[0] = each[topology->host];
    } else {
        one[0] = dd_hierarchy_is_wide(hierarchy) ? each[topology->host]
                                                 : block_piece(hierarchy, &args->outputs[0], piece);
        leg.args.reduction = reduction_between(hierarchy);
    }
    leg.kind = nbytes > 0 ? DD_LEG_PLAN : DD_LEG_NOTHING;
    return leg;
}

static dd_leg
meet_hosts(const dd_hierarchy *hierarchy)
{
    name_carriers(hierarchy, 0);
    if (hierarchy->topology->local != 0) {
        return (dd_leg){.kind = DD_LEG_NOTHING};
    }
    return make_leg(hierarchy, DD_LANE_PLAN, DD_COLL_BARRIER);
}

dd_leg
dd_hierarchy_leg_between(const dd_hierarchy *hierarchy, uint64_t piece)
{
    if (hierarchy->args->coll == DD_COLL_BARRIER) {
        return meet_hosts(hierarchy);
    }
    if (hierarchy->args->coll == DD_COLL_ALL_GATHER || hierarchy->args->coll == DD_COLL_REDUCE_SCATTER) {
        return exchange_blocks(hierarchy, piece);
    }
    return exchange_share(hierarchy, piece);
}

/* After the plan: accumulators become elements, where this rank has a part of the result. */
dd_leg
dd_hierarchy_leg_rounding(const dd_hierarchy *hierarchy, uint64_t piece)
{
    dd_leg leg = make_leg(hierarchy, DD_LANE_PLAN, hierarchy->args->coll);
    dd_block *input = inputs_of(hierarchy, DD_LANE_PLAN);
    dd_block *output = outputs_of(hierarchy, DD_LANE_PLAN);
    bool has_result = hierarchy->args->coll != DD_COLL_REDUCE || dd_hierarchy_is_on_root_host(hierarchy);
    if (!dd_hierarchy_is_wide(hierarchy) || !has_result) {
        return (dd_leg){.kind = DD_LEG_NOTHING};
    }
    if (hierarchy->args->coll == DD_COLL_REDUCE_SCATTER) {
        *input = partial_block(hierarchy, piece, hierarchy->topology->host);
        *output = block_piece(hierarchy, &hierarchy->args->outputs[0], piece);
    } else {
        *input = partial_share(hierarchy, piece);
        *output = finished_share(hierarchy, piece);
    }
    leg.kind = output->nbytes > 0 ? DD_LEG_ROUND : DD_LEG_NOTHING;
    return leg;
}
