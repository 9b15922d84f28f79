#include "collective/plan_internal.h"

#include "core/mem.h"

#define ALIGNMENT 64

static bool
is_folding(dd_coll coll)
{
    return coll == DD_COLL_REDUCE || coll == DD_COLL_ALL_REDUCE || coll == DD_COLL_REDUCE_SCATTER;
}

dd_builder
dd_builder_start(const dd_plan_task *task, dd_plan *plan, dd_error *err)
{
    const dd_reduction *reduction = &task->args->reduction;
    bool is_fold = is_folding(task->args->coll);
    size_t element = is_fold ? dd_dtype_size(reduction->dtype) : 1;
    size_t partial = is_fold ? dd_dtype_size(dd_reduce_accumulator(reduction->dtype)) : 1;
    return (dd_builder){
        .args = task->args,
        .rank = task->rank,
        .nranks = task->nranks,
        .segment_nbytes = task->segment_nbytes < ALIGNMENT ? ALIGNMENT : task->segment_nbytes,
        .element_nbytes = element,
        .partial_nbytes = partial,
        .is_lifted = is_fold && (partial != element || reduction->op == DD_REDOP_PREMUL_SUM),
        .plan = plan,
        .status = DD_OK,
        .err = err,
    };
}

dd_status
dd_builder_finish(const dd_builder *builder)
{
    return builder->status;
}

/* The number of a message as it goes into the step. */
static bool
narrow_channel(dd_builder *builder, size_t channel, uint32_t *narrow)
{
    if (builder->status == DD_OK && channel > UINT32_MAX) {
        builder->status =
            dd_error_set(builder->err, DD_INVALID_ARGUMENT,
                         "%s of rank %d: too many messages to one rank for segments of %zu bytes",
                         dd_coll_name(builder->args->coll), builder->rank, builder->segment_nbytes);
    }
    *narrow = (uint32_t)channel;
    return builder->status == DD_OK;
}

static uint32_t
add_send(dd_builder *builder, int peer, size_t channel, dd_plan_range src)
{
    uint32_t narrow = 0;
    uint32_t index = DD_NO_STEP;
    if (narrow_channel(builder, channel, &narrow)) {
        builder->status = dd_plan_add_send(builder->plan, peer, narrow, src, &index, builder->err);
    }
    return index;
}

static uint32_t
add_recv(dd_builder *builder, int peer, size_t channel, dd_plan_range dst)
{
    uint32_t narrow = 0;
    uint32_t index = DD_NO_STEP;
    if (narrow_channel(builder, channel, &narrow)) {
        builder->status = dd_plan_add_recv(builder->plan, peer, narrow, dst, &index, builder->err);
    }
    return index;
}

uint32_t
dd_builder_send(dd_builder *builder, int peer, size_t channel, dd_plan_range src)
{
    return src.nbytes == 0 ? DD_NO_STEP : add_send(builder, peer, channel, src);
}

uint32_t
dd_builder_recv(dd_builder *builder, int peer, size_t channel, dd_plan_range dst)
{
    return dst.nbytes == 0 ? DD_NO_STEP : add_recv(builder, peer, channel, dst);
}

uint32_t
dd_builder_send_empty(dd_builder *builder, int peer, size_t channel)
{
    return add_send(builder, peer, channel, dd_range_scratch(0, 0));
}

uint32_t
dd_builder_recv_empty(dd_builder *builder, int peer, size_t channel)
{
    return add_recv(builder, peer, channel, dd_range_scratch(0, 0));
}

uint32_t
dd_builder_copy(dd_builder *builder, dd_plan_range src, dd_plan_range dst)
{
    uint32_t index = DD_NO_STEP;
    if (src.nbytes > 0 && builder->status == DD_OK) {
        builder->status = dd_plan_add_copy(builder->plan, src, dst, &index, builder->err);
    }
    return index;
}

void
dd_builder_copy_all(dd_builder *builder, dd_plan_range src, dd_plan_range dst)
{
    size_t nbytes = src.nbytes;
    size_t nsegments = dd_nsegments(nbytes, builder->segment_nbytes);
    for (size_t s = 0; s < nsegments && builder->status == DD_OK; s++) {
        dd_span bytes = dd_segment(nbytes, builder->segment_nbytes, s);
        dd_builder_copy(builder, dd_range_part(src, bytes), dd_range_part(dst, bytes));
    }
}

/* What one element takes up at the end of a stage. */
static size_t
result_nbytes(const dd_builder *builder, dd_stage stage)
{
    bool is_partial = stage == DD_STAGE_FIRST || stage == DD_STAGE_MIDDLE;
    return is_partial ? builder->partial_nbytes : builder->element_nbytes;
}

uint32_t
dd_builder_begin_fold(dd_builder *builder, dd_stage stage, dd_plan_range dst)
{
    uint32_t index = DD_NO_STEP;
    if (dst.nbytes > 0 && builder->status == DD_OK) {
        size_t count = dst.nbytes / result_nbytes(builder, stage);
        builder->status = dd_plan_add_reduce(builder->plan, stage, NULL, 0, dst, count, &index, builder->err);
    }
    return index;
}

void
dd_builder_add_source(dd_builder *builder, dd_plan_range source)
{
    if (source.nbytes > 0 && builder->status == DD_OK) {
        builder->status = dd_plan_add_source(builder->plan, source, builder->err);
    }
}

uint32_t
dd_builder_fold(dd_builder *builder, dd_stage stage, const dd_plan_range *a, const dd_plan_range *b,
                dd_plan_range dst)
{
    uint32_t index = dd_builder_begin_fold(builder, stage, dst);
    dd_builder_add_source(builder, *a);
    if (b != NULL) {
        dd_builder_add_source(builder, *b);
    }
    return index;
}

uint32_t
dd_builder_fold_all(dd_builder *builder, dd_plan_range own, size_t slots, size_t stride, dd_plan_range dst)
{
    uint32_t index = dd_builder_begin_fold(builder, DD_STAGE_WHOLE, dst);
    for (int k = 0; k < builder->nranks; k++) {
        size_t slot = (size_t)(k < builder->rank ? k : k - 1);
        dd_builder_add_source(builder,
                              k == builder->rank ? own : dd_range_scratch(slots + slot * stride, own.nbytes));
    }
    return index;
}

void
dd_builder_keep(uint32_t *step, uint32_t latest)
{
    if (latest != DD_NO_STEP) {
        *step = latest;
    }
}

void
dd_builder_after(dd_builder *builder, uint32_t step, uint32_t on)
{
    if (step != DD_NO_STEP && on != DD_NO_STEP && builder->status == DD_OK) {
        builder->status = dd_plan_add_dep(builder->plan, on, builder->err);
    }
}

size_t
dd_builder_add_scratch(dd_builder *builder, size_t nbytes)
{
    size_t offset = builder->plan->scratch_nbytes;
    builder->plan->scratch_nbytes += (nbytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return offset;
}

uint32_t *
dd_builder_steps_alloc(dd_builder *builder, size_t count)
{
    if (builder->status != DD_OK) {
        return NULL;
    }
    uint32_t *steps = dd_mem_alloc_array(count, sizeof *steps);
    if (steps == NULL) {
        builder->status = dd_error_no_memory(builder->err, count * sizeof *steps);
        return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        steps[i] = DD_NO_STEP;
    }
    return steps;
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
dd_range_scratch(size_t offset, size_t nbytes)
{
    return (dd_plan_range){.buffer = DD_PLAN_SCRATCH, .offset = offset, .nbytes = nbytes};
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
    return (rank + distance + builder->nranks) % builder->nranks;
}

dd_span
dd_share(size_t count, int nshares, int k)
{
    size_t each = count / (size_t)nshares;
    size_t longer = count % (size_t)nshares;
    size_t before = (size_t)k < longer ? (size_t)k : longer;
    return (dd_span){.first = each * (size_t)k + before, .count = each + ((size_t)k < longer ? 1 : 0)};
}

dd_span
dd_share_bytes(size_t nbytes, int nshares, int k)
{
    dd_span lines = dd_share((nbytes + ALIGNMENT - 1) / ALIGNMENT, nshares, k);
    size_t first = lines.first * ALIGNMENT;
    size_t end = first + lines.count * ALIGNMENT;
    first = first < nbytes ? first : nbytes;
    end = end < nbytes ? end : nbytes;
    return (dd_span){.first = first, .count = end - first};
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

size_t
dd_builder_piece_nbytes(const dd_builder *builder, size_t nbytes)
{
    size_t piece = builder->segment_nbytes / (size_t)builder->nranks / ALIGNMENT * ALIGNMENT;
    piece = piece < ALIGNMENT ? ALIGNMENT : piece;
    return nbytes < piece && nbytes > 0 ? nbytes : piece;
}

static bool
is_one_array(const dd_builder *builder)
{
    return builder->args->coll != DD_COLL_REDUCE_SCATTER;
}

dd_span
dd_builder_block(const dd_builder *builder, int k)
{
    if (is_one_array(builder)) {
        return dd_share(builder->args->inputs[0].nbytes / builder->element_nbytes, builder->nranks, k);
    }
    return (dd_span){.first = 0, .count = builder->args->inputs[k].nbytes / builder->element_nbytes};
}

size_t
dd_builder_largest_block(const dd_builder *builder)
{
    if (is_one_array(builder)) {
        return dd_builder_block(builder, 0).count;
    }
    size_t largest = 0;
    for (int k = 0; k < builder->nranks; k++) {
        size_t count = dd_builder_block(builder, k).count;
        largest = count > largest ? count : largest;
    }
    return largest;
}

dd_plan_range
dd_builder_block_input(const dd_builder *builder, int k, dd_span segment)
{
    size_t first = dd_builder_block(builder, k).first + segment.first;
    return dd_range_input(is_one_array(builder) ? 0 : k, first * builder->element_nbytes,
                          segment.count * builder->element_nbytes);
}

dd_plan_range
dd_builder_block_output(const dd_builder *builder, int k, dd_span segment)
{
    size_t first = dd_builder_block(builder, k).first + segment.first;
    return dd_range_output(0, first * builder->element_nbytes, segment.count * builder->element_nbytes);
}
