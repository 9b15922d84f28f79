/* Reductions in which every rank sends its input as it is, and one fold takes all ranks' parts in their order. */
#include "collective/plan_internal.h"

#include "core/mem.h"

/* A segment's parts of the other ranks lie side by side in one of DD_PLAN_DEPTH sets of slots. */
typedef struct direct {
    size_t per_segment; /* elements */
    size_t stride;      /* bytes between the slots of two ranks */
    size_t slots[DD_PLAN_DEPTH];
    uint32_t folded[DD_PLAN_DEPTH]; /* the fold that last read the set */
    uint32_t *sends;                /* by rank: the last send to it */
    uint32_t *recvs;                /* by rank: the last receive from it */
} direct;

/* largest: elements that this rank folds, 0 where it folds nothing. */
static direct
direct_start(dd_builder *b, size_t largest)
{
    direct state = {.per_segment = b->segment_nbytes / b->element_nbytes};
    size_t count = largest < state.per_segment ? largest : state.per_segment;
    state.stride = (count * b->element_nbytes + 63) / 64 * 64;
    size_t nsets = dd_nsegments(largest, state.per_segment);
    for (size_t i = 0; i < DD_PLAN_DEPTH; i++) {
        state.folded[i] = DD_NO_STEP;
        if (i < nsets) {
            state.slots[i] = dd_builder_add_scratch(b, state.stride * (size_t)(b->nranks - 1));
        }
    }
    state.sends = dd_builder_steps_alloc(b, (size_t)b->nranks);
    state.recvs = dd_builder_steps_alloc(b, (size_t)b->nranks);
    return state;
}

static dd_status
direct_finish(const dd_builder *b, direct *state)
{
    dd_mem_free(state->sends);
    dd_mem_free(state->recvs);
    return dd_builder_finish(b);
}

/* No further ahead than there are sets of slots, so that peers are not flooded. */
static void
send_part(dd_builder *b, direct *state, int peer, size_t s, dd_plan_range part)
{
    uint32_t send = dd_builder_send(b, peer, s, part);
    dd_builder_after(b, send, state->folded[s % DD_PLAN_DEPTH]);
    state->sends[peer] = send;
}

static void
receive_parts(dd_builder *b, direct *state, size_t s, size_t nbytes)
{
    for (int distance = 1; distance < b->nranks; distance++) {
        int peer = dd_builder_at(b, b->rank, -distance);
        size_t slot = (size_t)(peer < b->rank ? peer : peer - 1);
        size_t offset = state->slots[s % DD_PLAN_DEPTH] + slot * state->stride;
        state->recvs[peer] = dd_builder_recv(b, peer, s, dd_range_scratch(offset, nbytes));
        dd_builder_after(b, state->recvs[peer], state->folded[s % DD_PLAN_DEPTH]);
    }
}

static uint32_t
fold_parts(dd_builder *b, direct *state, size_t s, dd_plan_range own, dd_plan_range dst)
{
    size_t set = s % DD_PLAN_DEPTH;
    uint32_t fold = dd_builder_fold_all(b, own, state->slots[set], state->stride, dst);
    for (int k = 0; k < b->nranks; k++) {
        if (k != b->rank) {
            dd_builder_after(b, fold, state->recvs[k]);
        }
    }
    dd_builder_keep(&state->folded[set], fold);
    return fold;
}

static dd_span
block_segment(const dd_builder *b, const direct *state, int k, size_t s)
{
    return dd_segment(dd_builder_block(b, k).count, state->per_segment, s);
}

/* One segment of everybody's block: this rank's, folded, goes to dst. */
static uint32_t
scatter_and_fold(dd_builder *b, direct *state, size_t s, dd_plan_range dst)
{
    for (int distance = 1; distance < b->nranks; distance++) {
        int peer = dd_builder_at(b, b->rank, distance);
        send_part(b, state, peer, s, dd_builder_block_input(b, peer, block_segment(b, state, peer, s)));
    }
    dd_plan_range own = dd_builder_block_input(b, b->rank, block_segment(b, state, b->rank, s));
    receive_parts(b, state, s, own.nbytes);
    return fold_parts(b, state, s, own, dst);
}

dd_status
dd_plan_build_reduce_scatter_direct(const dd_plan_task *task, dd_plan *plan, dd_error *err)
{
    dd_builder b = dd_builder_start(task, plan, err);
    direct state = direct_start(&b, dd_builder_block(&b, b.rank).count);
    size_t nsegments = dd_nsegments(dd_builder_largest_block(&b), state.per_segment);
    for (size_t s = 0; s < nsegments && b.status == DD_OK; s++) {
        dd_span segment = block_segment(&b, &state, b.rank, s);
        scatter_and_fold(&b, &state, s, dd_builder_block_output(&b, b.rank, segment));
    }
    return direct_finish(&b, &state);
}

/* Takes the folded segments of the others, where the output may be the input that was sent to them. */
static void
take_folded(dd_builder *b, const direct *state, size_t s, size_t channel)
{
    for (int distance = 1; distance < b->nranks; distance++) {
        int peer = dd_builder_at(b, b->rank, -distance);
        dd_plan_range dst = dd_builder_block_output(b, peer, block_segment(b, state, peer, s));
        uint32_t recv = dd_builder_recv(b, peer, channel, dst);
        dd_builder_after(b, recv, state->sends[peer]);
    }
}

/* Gives the folded segment to all and takes theirs. */
static void
gather_segment(dd_builder *b, const direct *state, size_t s, size_t channel, uint32_t folded)
{
    dd_plan_range own = dd_builder_block_output(b, b->rank, block_segment(b, state, b->rank, s));
    for (int distance = 1; distance < b->nranks; distance++) {
        uint32_t send = dd_builder_send(b, dd_builder_at(b, b->rank, distance), channel, own);
        dd_builder_after(b, send, folded);
    }
    take_folded(b, state, s, channel);
}

dd_status
dd_plan_build_all_reduce_direct(const dd_plan_task *task, dd_plan *plan, dd_error *err)
{
    dd_builder b = dd_builder_start(task, plan, err);
    direct state = direct_start(&b, dd_builder_block(&b, b.rank).count);
    size_t nsegments = dd_nsegments(dd_builder_largest_block(&b), state.per_segment);
    for (size_t s = 0; s < nsegments && b.status == DD_OK; s++) {
        dd_span segment = block_segment(&b, &state, b.rank, s);
        uint32_t fold = scatter_and_fold(&b, &state, s, dd_builder_block_output(&b, b.rank, segment));
        gather_segment(&b, &state, s, nsegments + s, fold);
    }
    return direct_finish(&b, &state);
}

dd_status
dd_plan_build_reduce_direct_scatter_gather(const dd_plan_task *task, dd_plan *plan, dd_error *err)
{
    dd_builder b = dd_builder_start(task, plan, err);
    bool is_root = b.rank == b.args->root;
    direct state = direct_start(&b, dd_builder_block(&b, b.rank).count);
    size_t results[DD_PLAN_DEPTH] = {0};
    uint32_t sent[DD_PLAN_DEPTH];
    for (size_t i = 0; i < DD_PLAN_DEPTH; i++) {
        sent[i] = DD_NO_STEP;
        results[i] = is_root ? 0 : dd_builder_add_scratch(&b, state.stride);
    }
    size_t nsegments = dd_nsegments(dd_builder_largest_block(&b), state.per_segment);
    for (size_t s = 0; s < nsegments && b.status == DD_OK; s++) {
        dd_plan_range dst = dd_builder_block_output(&b, b.rank, block_segment(&b, &state, b.rank, s));
        if (is_root) {
            scatter_and_fold(&b, &state, s, dst);
            take_folded(&b, &state, s, nsegments + s);
        } else {
            size_t set = s % DD_PLAN_DEPTH;
            dst = dd_range_scratch(results[set], dst.nbytes);
            uint32_t fold = scatter_and_fold(&b, &state, s, dst);
            dd_builder_after(&b, fold, sent[set]);
            uint32_t send = dd_builder_send(&b, b.args->root, nsegments + s, dst);
            dd_builder_after(&b, send, fold);
            dd_builder_keep(&sent[set], send);
        }
    }
    return direct_finish(&b, &state);
}

static size_t
array_count(const dd_builder *b)
{
    return b->args->inputs[0].nbytes / b->element_nbytes;
}

static dd_span
array_bytes(const dd_builder *b, const direct *state, size_t s)
{
    dd_span segment = dd_segment(array_count(b), state->per_segment, s);
    return (dd_span){segment.first * b->element_nbytes, segment.count * b->element_nbytes};
}

/* Root receives all inputs, whole. */
dd_status
dd_plan_build_reduce_direct(const dd_plan_task *task, dd_plan *plan, dd_error *err)
{
    dd_builder b = dd_builder_start(task, plan, err);
    bool is_root = b.rank == b.args->root;
    direct state = direct_start(&b, is_root ? array_count(&b) : 0);
    size_t nsegments = dd_nsegments(array_count(&b), state.per_segment);
    for (size_t s = 0; s < nsegments && b.status == DD_OK; s++) {
        dd_span bytes = array_bytes(&b, &state, s);
        dd_plan_range own = dd_range_input(0, bytes.first, bytes.count);
        if (is_root) {
            receive_parts(&b, &state, s, bytes.count);
            fold_parts(&b, &state, s, own, dd_range_output(0, bytes.first, bytes.count));
        } else {
            dd_builder_send(&b, b.args->root, s, own);
        }
    }
    return direct_finish(&b, &state);
}

/* Everybody receives all inputs, whole. */
dd_status
dd_plan_build_all_reduce_exchange(const dd_plan_task *task, dd_plan *plan, dd_error *err)
{
    dd_builder b = dd_builder_start(task, plan, err);
    direct state = direct_start(&b, array_count(&b));
    size_t nsegments = dd_nsegments(array_count(&b), state.per_segment);
    for (size_t s = 0; s < nsegments && b.status == DD_OK; s++) {
        dd_span bytes = array_bytes(&b, &state, s);
        dd_plan_range own = dd_range_input(0, bytes.first, bytes.count);
        for (int distance = 1; distance < b.nranks; distance++) {
            send_part(&b, &state, dd_builder_at(&b, b.rank, distance), s, own);
        }
        receive_parts(&b, &state, s, bytes.count);
        uint32_t fold = fold_parts(&b, &state, s, own, dd_range_output(0, bytes.first, bytes.count));
        for (int k = 0; k < b.nranks; k++) {
            if (k != b.rank) {
                dd_builder_after(&b, fold, state.sends[k]);
            }
        }
    }
    return direct_finish(&b, &state);
}
