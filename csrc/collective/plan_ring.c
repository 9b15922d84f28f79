/* Rings: block b of a reduction sets out from rank b + 1 and goes around, through every rank's hands, to rank b.
 *
 * Segments take turns on a few lanes, and each goes all the way around before the next of its lane sets out. A lane has two
 * slots, which its transfers use alternately: while one partial result is on its way to the next rank, the following one comes
 * in. With all segments of a block in each round, a transfer could wait for its slot in a circle around the ring; so it
 * waits only for transfers that were earlier in the lane. */
#include "collective/plan_internal.h"

#include "core/mem.h"

#define LANES 4

typedef struct ring_lane {
    size_t slots[2]; /* partial results, in scratch */
    size_t lift; /* where this rank's input is lifted, or, in the first transfer, the other's as it came */
    uint32_t slot_user[2];
    uint32_t lift_user;
    uint32_t folded; /* the last fold of the segment before */
} ring_lane;

typedef struct ring {
    size_t per_segment; /* elements */
    size_t nsegments;
    int next;
    int previous;
    ring_lane lanes[LANES];
    uint32_t *readers; /* by block: what reads this rank's input of the present segment */
} ring;

static ring
ring_start(dd_builder *b)
{
    size_t largest = dd_builder_largest_block(b);
    ring state = {.per_segment = b->segment_nbytes / b->partial_nbytes,
                  .next = dd_builder_at(b, b->rank, 1),
                  .previous = dd_builder_at(b, b->rank, -1)};
    state.nsegments = dd_nsegments(largest, state.per_segment);
    size_t count = largest < state.per_segment ? largest : state.per_segment;
    for (size_t i = 0; i < LANES; i++) {
        ring_lane *lane = &state.lanes[i];
        lane->slot_user[0] = lane->slot_user[1] = lane->lift_user = lane->folded = DD_NO_STEP;
        if (i < state.nsegments && b->nranks > 1) {
            lane->slots[0] = dd_builder_add_scratch(b, count * b->partial_nbytes);
            lane->slots[1] = dd_builder_add_scratch(b, count * b->partial_nbytes);
            lane->lift = b->is_lifted ? dd_builder_add_scratch(b, count * b->partial_nbytes) : 0;
        }
    }
    state.readers = dd_builder_steps_alloc(b, (size_t)b->nranks);
    return state;
}

static dd_status
ring_finish(const dd_builder *b, ring *state)
{
    dd_mem_free(state->readers);
    return dd_builder_finish(b);
}

/* One transfer of a segment: what comes in, what it is folded with, where that goes. */
typedef struct transfer {
    int block; /* that comes in */
    bool is_first;
    bool is_last;
    size_t channel;
    unsigned slot;
    dd_span segment; /* of the block */
} transfer;

static dd_stage
stage_of(const transfer *t)
{
    if (t->is_first) {
        return t->is_last ? DD_STAGE_WHOLE : DD_STAGE_FIRST;
    }
    return t->is_last ? DD_STAGE_LAST : DD_STAGE_MIDDLE;
}

/* This rank's part as a partial result. */
static dd_plan_range
lift_own(dd_builder *b, ring_lane *lane, const transfer *t, uint32_t *reader)
{
    dd_plan_range own = dd_builder_block_input(b, t->block, t->segment);
    if (!b->is_lifted || t->is_first) {
        *reader = DD_NO_STEP;
        return own;
    }
    dd_plan_range lifted = dd_range_scratch(lane->lift, t->segment.count * b->partial_nbytes);
    *reader = dd_builder_fold(b, DD_STAGE_FIRST, &own, NULL, lifted);
    dd_builder_after(b, *reader, lane->lift_user);
    dd_builder_keep(&lane->lift_user, *reader);
    return lifted;
}

/* Receives and folds; the fold's step. In the first transfer inputs travel as they are. */
static uint32_t
receive_and_fold(dd_builder *b, ring *state, ring_lane *lane, const transfer *t)
{
    size_t nbytes = t->segment.count * b->partial_nbytes;
    dd_plan_range slot = dd_range_scratch(lane->slots[t->slot], nbytes);
    dd_plan_range dst = t->is_last ? dd_builder_block_output(b, b->rank, t->segment) : slot;
    bool is_raw = t->is_first && b->is_lifted;
    dd_plan_range came = is_raw ? dd_range_scratch(lane->lift, t->segment.count * b->element_nbytes) : slot;
    uint32_t recv = dd_builder_recv(b, state->previous, t->channel, came);
    dd_builder_after(b, recv, is_raw ? lane->lift_user : lane->slot_user[t->slot]);
    uint32_t lift = DD_NO_STEP;
    dd_plan_range own = lift_own(b, lane, t, &lift);
    uint32_t fold = dd_builder_fold(b, stage_of(t), &came, &own, dst);
    dd_builder_after(b, fold, recv);
    dd_builder_after(b, fold, lift);
    if (is_raw) {
        dd_builder_after(b, fold, lane->slot_user[t->slot]);
    }
    if (b->is_lifted) {
        dd_builder_keep(&lane->lift_user, fold);
    }
    dd_builder_keep(&lane->slot_user[t->slot], fold);
    state->readers[t->block] = lift != DD_NO_STEP ? lift : fold;
    return fold;
}

static dd_span
ring_segment(const dd_builder *b, const ring *state, int block, size_t s)
{
    return dd_segment(dd_builder_block(b, block).count, state->per_segment, s);
}

/* The s-th segment of every block goes around; the fold that ends this rank's block. */
static uint32_t
reduce_segment(dd_builder *b, ring *state, size_t s)
{
    ring_lane *lane = &state->lanes[s % LANES];
    size_t nrounds = (size_t)b->nranks - 1;
    int block = state->previous;
    dd_plan_range held = dd_builder_block_input(b, block, ring_segment(b, state, block, s));
    uint32_t fold = lane->folded;
    uint32_t *user = &state->readers[block];
    for (size_t round = 0; round < nrounds; round++) {
        transfer t = {.block = dd_builder_at(b, block, -1),
                      .is_first = round == 0,
                      .is_last = round + 1 == nrounds,
                      .channel = s * nrounds + round,
                      .slot = (unsigned)((s / LANES * nrounds + round) % 2)};
        t.segment = ring_segment(b, state, t.block, s);
        uint32_t send = dd_builder_send(b, state->next, t.channel, held);
        dd_builder_after(b, send, fold);
        if (round == 0) {
            *user = send;
        } else {
            dd_builder_keep(user, send);
        }
        fold = receive_and_fold(b, state, lane, &t);
        block = t.block;
        held = dd_range_scratch(lane->slots[t.slot], t.segment.count * b->partial_nbytes);
        user = &lane->slot_user[t.slot];
    }
    dd_builder_keep(&lane->folded, fold);
    return fold;
}

/* The s-th segment of every block's result goes around. */
static void
gather_segment(dd_builder *b, ring *state, size_t s, uint32_t folded)
{
    size_t nrounds = (size_t)b->nranks - 1;
    int block = b->rank;
    uint32_t held = folded;
    for (size_t round = 0; round < nrounds; round++) {
        size_t channel = (state->nsegments + s) * nrounds + round;
        dd_plan_range src = dd_builder_block_output(b, block, ring_segment(b, state, block, s));
        uint32_t send = dd_builder_send(b, state->next, channel, src);
        dd_builder_after(b, send, held);
        block = dd_builder_at(b, block, -1);
        dd_plan_range dst = dd_builder_block_output(b, block, ring_segment(b, state, block, s));
        held = dd_builder_recv(b, state->previous, channel, dst);
        dd_builder_after(b, held, state->readers[block]);
    }
}

/* With one rank there is nobody to go around to. */
static uint32_t
reduce_alone(dd_builder *b, const ring *state, size_t s)
{
    dd_span segment = ring_segment(b, state, 0, s);
    dd_plan_range own = dd_builder_block_input(b, 0, segment);
    return dd_builder_fold(b, DD_STAGE_WHOLE, &own, NULL, dd_builder_block_output(b, 0, segment));
}

dd_status
dd_plan_build_reduce_scatter_ring(const dd_plan_task *task, dd_plan *plan, dd_error *err)
{
    dd_builder b = dd_builder_start(task, plan, err);
    ring state = ring_start(&b);
    for (size_t s = 0; s < state.nsegments && b.status == DD_OK; s++) {
        if (b.nranks == 1) {
            reduce_alone(&b, &state, s);
        } else {
            reduce_segment(&b, &state, s);
        }
    }
    return ring_finish(&b, &state);
}

dd_status
dd_plan_build_all_reduce_ring(const dd_plan_task *task, dd_plan *plan, dd_error *err)
{
    dd_builder b = dd_builder_start(task, plan, err);
    ring state = ring_start(&b);
    for (size_t s = 0; s < state.nsegments && b.status == DD_OK; s++) {
        if (b.nranks == 1) {
            reduce_alone(&b, &state, s);
        } else {
            gather_segment(&b, &state, s, reduce_segment(&b, &state, s));
        }
    }
    return ring_finish(&b, &state);
}
