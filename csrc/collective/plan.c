#include "collective/plan_internal.h"

#include "core/mem.h"

#define ALIGNMENT ((size_t)64)

void
dd_plan_fini(dd_plan *plan)
{
    dd_mem_free(plan->steps);
    dd_mem_free(plan->sources);
    dd_mem_free(plan->followers);
    *plan = (dd_plan){0};
}

dd_status
dd_plan_build(const dd_algorithm *algorithm, const dd_plan_task *task, dd_plan *plan, dd_error *err)
{
    dd_builder builder = dd_builder_start(task, plan, err);
    algorithm->build(&builder);
    return dd_builder_finish(&builder);
}

/* ---- a builder */

static bool
has_element_input(dd_stage stage)
{
    return stage == DD_STAGE_WHOLE || stage == DD_STAGE_FIRST;
}

static bool
has_element_output(dd_stage stage)
{
    return stage == DD_STAGE_WHOLE || stage == DD_STAGE_LAST;
}

/* Return the stage, in a collective of stage `entire`, of a fold that is `stage` in a WHOLE one. */
static dd_stage
stage_within(dd_stage entire, dd_stage stage)
{
    bool is_first = has_element_input(entire) && has_element_input(stage);
    bool is_last = has_element_output(entire) && has_element_output(stage);
    return is_first ? (is_last ? DD_STAGE_WHOLE : DD_STAGE_FIRST)
                    : (is_last ? DD_STAGE_LAST : DD_STAGE_MIDDLE);
}

dd_builder
dd_builder_start(const dd_plan_task *task, dd_plan *plan, dd_error *err)
{
    const dd_coll_args *args = task->args;
    dd_coll_args part = *args;
    part.stage = DD_STAGE_MIDDLE;
    size_t partial = dd_coll_input_size(&part);
    size_t input = dd_coll_input_size(args);
    return (dd_builder){
        .args = args,
        .rank = task->rank,
        .nranks = task->nranks,
        .segment_nbytes = task->segment_nbytes < ALIGNMENT ? ALIGNMENT : task->segment_nbytes,
        .input_nbytes = input,
        .output_nbytes = dd_coll_output_size(args),
        .partial_nbytes = partial,
        .is_lifted = dd_coll_is_folding(args->coll) && has_element_input(args->stage) &&
                     (partial != input || args->reduction.op == DD_REDOP_PREMUL_SUM),
        .plan = plan,
        .status = DD_OK,
        .err = err,
    };
}

/* Double the capacity, so that the cost of adding an item stays constant on average. */
bool
dd_builder_grow(dd_builder *builder, void **items, uint32_t *capacity, uint32_t used, size_t size)
{
    if (builder->status != DD_OK || used < *capacity) {
        return builder->status == DD_OK;
    }
    uint64_t larger = *capacity < 16 ? 16 : 2 * (uint64_t)*capacity;
    void *moved = larger < UINT32_MAX ? dd_mem_realloc(*items, larger * size) : NULL;
    if (moved == NULL) {
        builder->status = dd_error_no_memory(builder->err, larger * size);
        return false;
    }
    *items = moved;
    *capacity = (uint32_t)larger;
    return true;
}

static uint32_t
add_step(dd_builder *builder, dd_plan_step step)
{
    dd_plan *plan = builder->plan;
    bool is_empty = step.src.nbytes == 0 && step.dst.nbytes == 0;
    void *steps = plan->steps;
    if ((is_empty && builder->args->coll != DD_COLL_BARRIER) ||
        !dd_builder_grow(builder, &steps, &plan->capacity[0], plan->nsteps, sizeof step)) {
        return DD_NO_STEP;
    }
    plan->steps = steps;
    step.first_source = plan->nsources;
    step.first_follower = step.last_follower = DD_PLAN_NONE;
    plan->steps[plan->nsteps] = step;
    return plan->nsteps++;
}

static uint32_t
add_message(dd_builder *builder, size_t channel, dd_plan_step step)
{
    if (builder->status == DD_OK && channel > UINT32_MAX) {
        builder->status = dd_error_set(
            builder->err, DD_INVALID_ARGUMENT,
            "%s of rank %d: segments of %zu bytes are too small: more than 2^32 messages to one rank",
            dd_coll_name(builder->args->coll), builder->rank, builder->segment_nbytes);
    }
    step.channel = (uint32_t)channel;
    step.message = builder->plan->nmessages;
    uint32_t index = add_step(builder, step);
    builder->plan->nmessages += index != DD_NO_STEP;
    return index;
}

uint32_t
dd_builder_send(dd_builder *builder, int peer, size_t channel, dd_plan_range src)
{
    return add_message(builder, channel, (dd_plan_step){.kind = DD_PLAN_SEND, .peer = peer, .src = src});
}

uint32_t
dd_builder_recv(dd_builder *builder, int peer, size_t channel, dd_plan_range dst)
{
    return add_message(builder, channel, (dd_plan_step){.kind = DD_PLAN_RECV, .peer = peer, .dst = dst});
}

uint32_t
dd_builder_copy(dd_builder *builder, dd_plan_range src, dd_plan_range dst)
{
    return add_step(builder, (dd_plan_step){.kind = DD_PLAN_COPY, .peer = -1, .src = src, .dst = dst});
}

void
dd_builder_copy_all(dd_builder *builder, dd_plan_range src, dd_plan_range dst)
{
    size_t nsegments = dd_nsegments(src.nbytes, builder->segment_nbytes);
    for (size_t s = 0; s < nsegments && builder->status == DD_OK; s++) {
        dd_span bytes = dd_segment(src.nbytes, builder->segment_nbytes, s);
        dd_builder_copy(builder, dd_range_part(src, bytes), dd_range_part(dst, bytes));
    }
}

uint32_t
dd_builder_fold(dd_builder *builder, dd_stage stage, dd_plan_range dst)
{
    size_t count =
        dst.nbytes / (has_element_output(stage) ? builder->output_nbytes : builder->partial_nbytes);
    return add_step(builder, (dd_plan_step){.kind = DD_PLAN_REDUCE,
                                            .stage = stage_within(builder->args->stage, stage),
                                            .peer = -1,
                                            .dst = dst,
                                            .count = count});
}

void
dd_builder_add_source(dd_builder *builder, dd_plan_range source)
{
    dd_plan *plan = builder->plan;
    void *sources = plan->sources;
    if (source.nbytes > 0 &&
        dd_builder_grow(builder, &sources, &plan->capacity[1], plan->nsources, sizeof source)) {
        plan->sources = sources;
        plan->sources[plan->nsources++] = source;
        uint32_t nsources = ++plan->steps[plan->nsteps - 1].nsources;
        plan->max_nsources = nsources > plan->max_nsources ? nsources : plan->max_nsources;
    }
}

void
dd_builder_after(dd_builder *builder, uint32_t step, uint32_t on)
{
    dd_plan *plan = builder->plan;
    void *followers = plan->followers;
    if (step == DD_NO_STEP || on == DD_NO_STEP ||
        !dd_builder_grow(builder, &followers, &plan->capacity[2], plan->nfollowers,
                         sizeof *plan->followers)) {
        return;
    }
    plan->followers = followers;
    plan->followers[plan->nfollowers] = (dd_plan_follower){.step = step, .next = DD_PLAN_NONE};
    uint32_t last = plan->steps[on].last_follower;
    *(last == DD_PLAN_NONE ? &plan->steps[on].first_follower : &plan->followers[last].next) =
        plan->nfollowers;
    plan->steps[on].last_follower = plan->nfollowers++;
    plan->steps[step].ndeps++;
}

void
dd_builder_update_step(uint32_t *step, uint32_t latest)
{
    if (latest != DD_NO_STEP) {
        *step = latest;
    }
}

/* ---- memory */

size_t
dd_round_up(size_t nbytes)
{
    return (nbytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

void
dd_builder_begin_segment(dd_builder *builder, size_t s, size_t depth)
{
    builder->set = (int)(s % depth);
    builder->set_used = 0;
}

dd_plan_range
dd_builder_add_scratch(dd_builder *builder, size_t nbytes)
{
    size_t offset = builder->set_used;
    builder->set_used += dd_round_up(nbytes);
    if (builder->set_used > builder->set_nbytes) {
        builder->set_nbytes = builder->set_used;
    }
    builder->nsets = builder->set >= builder->nsets ? builder->set + 1 : builder->nsets;
    return (dd_plan_range){
        .buffer = DD_PLAN_SCRATCH, .block = builder->set, .offset = offset, .nbytes = nbytes};
}

static void
locate_range(const dd_builder *builder, dd_plan_range *range)
{
    if (range->buffer == DD_PLAN_SCRATCH) {
        range->offset += (size_t)range->block * builder->set_nbytes;
        range->block = 0;
    }
}

static void
locate_scratch(dd_builder *builder)
{
    dd_plan *plan = builder->plan;
    plan->scratch_nbytes = (size_t)builder->nsets * builder->set_nbytes;
    for (uint32_t i = 0; i < plan->nsteps; i++) {
        locate_range(builder, &plan->steps[i].src);
        locate_range(builder, &plan->steps[i].dst);
    }
    for (uint32_t i = 0; i < plan->nsources; i++) {
        locate_range(builder, &plan->sources[i]);
    }
}

dd_status
dd_builder_finish(dd_builder *builder)
{
    if (builder->status == DD_OK) {
        locate_scratch(builder);
        dd_builder_order(builder);
    }
    return builder->status;
}

dd_plan_range
dd_range_input(int block, size_t offset, size_t nbytes)
{
    return (dd_plan_range){.buffer = DD_PLAN_INPUT, .block = block, .offset = offset, .nbytes = nbytes};
}

dd_plan_range
dd_range_output(int block, size_t offset, size_t nbytes)
{
    return (dd_plan_range){.buffer = DD_PLAN_OUTPUT, .block = block, .offset = offset, .nbytes = nbytes};
}

dd_plan_range
dd_range_part(dd_plan_range range, dd_span bytes)
{
    range.offset += bytes.first;
    range.nbytes = bytes.count;
    return range;
}

int
dd_builder_at(const dd_builder *builder, int rank, int distance)
{
    return (int)(((long)rank + distance + builder->nranks) % builder->nranks);
}

bool
dd_builder_is_root(const dd_builder *builder)
{
    return builder->rank == builder->args->root;
}

/* Return share k of nshares. Shares are as even as possible; larger shares come first. */
static dd_span
plan_share_of(size_t count, int nshares, int k)
{
    size_t each = count / (size_t)nshares;
    size_t longer = count % (size_t)nshares;
    size_t before = (size_t)k < longer ? (size_t)k : longer;
    return (dd_span){.first = each * (size_t)k + before, .count = each + ((size_t)k < longer ? 1 : 0)};
}

dd_span
dd_share_lines(size_t nbytes, size_t line, int nshares, int k)
{
    dd_span lines = plan_share_of((nbytes + line - 1) / line, nshares, k);
    size_t first = lines.first * line < nbytes ? lines.first * line : nbytes;
    return (dd_span){.first = first, .count = dd_segment(nbytes - first, lines.count * line, 0).count};
}

size_t
dd_nsegments(size_t count, size_t per_segment)
{
    return count / per_segment + (count % per_segment != 0 ? 1 : 0);
}

dd_span
dd_segment(size_t count, size_t per_segment, size_t s)
{
    size_t first = s * per_segment;
    if (first >= count) {
        return (dd_span){.first = count, .count = 0};
    }
    size_t rest = count - first;
    return (dd_span){.first = first, .count = rest < per_segment ? rest : per_segment};
}

/* ---- blocks */

/* Return rank k's block as a range of elements, equal for the block's input and output. */
static dd_span
block_span(const dd_builder *builder, int k)
{
    const dd_coll_args *args = builder->args;
    if (args->coll == DD_COLL_ALL_GATHER) {
        return (dd_span){.count = args->outputs[k].nbytes};
    }
    if (args->coll == DD_COLL_REDUCE_SCATTER) {
        return (dd_span){.count = args->inputs[k].nbytes / builder->input_nbytes};
    }
    size_t count = args->inputs[0].nbytes / builder->input_nbytes;
    return builder->has_whole_blocks ? (dd_span){.count = count} : plan_share_of(count, builder->nranks, k);
}

size_t
dd_builder_cut_blocks(dd_builder *builder, size_t element_nbytes)
{
    size_t largest = 0;
    for (int k = 0; k < builder->nranks; k++) {
        size_t count = block_span(builder, k).count;
        largest = count > largest ? count : largest;
    }
    size_t per_segment = builder->segment_nbytes / element_nbytes;
    per_segment = per_segment > 0 ? per_segment : 1;
    builder->per_segment = per_segment;
    builder->largest_segment = largest < per_segment ? largest : per_segment;
    return dd_nsegments(largest, per_segment);
}

static dd_plan_range
block_range(const dd_builder *builder, dd_plan_buffer buffer, int block, int k, size_t s)
{
    size_t size = buffer == DD_PLAN_INPUT ? builder->input_nbytes : builder->output_nbytes;
    dd_span span = block_span(builder, k);
    dd_span segment = dd_segment(span.count, builder->per_segment, s);
    return (dd_plan_range){.buffer = buffer,
                           .block = block,
                           .offset = (span.first + segment.first) * size,
                           .nbytes = segment.count * size};
}

dd_plan_range
dd_builder_block_input(const dd_builder *builder, int k, size_t s)
{
    int block = builder->args->coll == DD_COLL_REDUCE_SCATTER ? k : 0;
    return block_range(builder, DD_PLAN_INPUT, block, k, s);
}

dd_plan_range
dd_builder_block_output(const dd_builder *builder, int k, size_t s)
{
    bool is_gather = builder->args->coll == DD_COLL_ALL_GATHER;
    return is_gather && k == builder->rank ? block_range(builder, DD_PLAN_INPUT, 0, k, s)
                                           : block_range(builder, DD_PLAN_OUTPUT, is_gather ? k : 0, k, s);
}

void
dd_builder_collect(dd_builder *builder, size_t s, size_t channel)
{
    for (int distance = 1; distance < builder->nranks; distance++) {
        int peer = dd_builder_at(builder, builder->rank, -distance);
        dd_builder_recv(builder, peer, channel, dd_builder_block_output(builder, peer, s));
    }
}

void
dd_builder_spread(dd_builder *builder, size_t s, size_t channel)
{
    dd_plan_range own_range = dd_builder_block_output(builder, builder->rank, s);
    for (int distance = 1; distance < builder->nranks; distance++) {
        dd_builder_send(builder, dd_builder_at(builder, builder->rank, distance), channel, own_range);
    }
    dd_builder_collect(builder, s, channel);
}

void
dd_builder_pass_around(dd_builder *builder, size_t s, size_t channel)
{
    int next = dd_builder_at(builder, builder->rank, 1);
    int previous = dd_builder_at(builder, builder->rank, -1);
    int block = builder->rank;
    for (int round = 1; round < builder->nranks; round++, channel++) {
        dd_builder_send(builder, next, channel, dd_builder_block_output(builder, block, s));
        block = dd_builder_at(builder, block, -1);
        dd_builder_recv(builder, previous, channel, dd_builder_block_output(builder, block, s));
    }
}
