#include "collective/plan_internal.h"

static size_t
largest_output(const dd_builder *b)
{
    size_t largest = 0;
    for (int k = 0; k < b->nranks; k++) {
        size_t nbytes = b->args->outputs[k].nbytes;
        largest = nbytes > largest ? nbytes : largest;
    }
    return largest;
}

static dd_span
block_segment(const dd_builder *b, int block, size_t s)
{
    return dd_segment(b->args->outputs[block].nbytes, b->segment_nbytes, s);
}

/* A segment of a block as this rank has it: its own is the input. */
static dd_plan_range
range_held(const dd_builder *b, int block, dd_span bytes)
{
    return block == b->rank ? dd_range_input(0, bytes.first, bytes.count)
                            : dd_range_output(block, bytes.first, bytes.count);
}

static void
copy_own(dd_builder *b)
{
    size_t nbytes = b->args->outputs[b->rank].nbytes;
    dd_builder_copy_all(b, dd_range_input(0, 0, nbytes), dd_range_output(b->rank, 0, nbytes));
}

/* Everybody sends its block to everybody. */
dd_status
dd_plan_build_all_gather_direct(const dd_plan_task *task, dd_plan *plan, dd_error *err)
{
    dd_builder b = dd_builder_start(task, plan, err);
    size_t nsegments = dd_nsegments(largest_output(&b), b.segment_nbytes);
    for (size_t s = 0; s < nsegments && b.status == DD_OK; s++) {
        dd_span own = block_segment(&b, b.rank, s);
        for (int distance = 1; distance < b.nranks; distance++) {
            dd_builder_send(&b, dd_builder_at(&b, b.rank, distance), s, range_held(&b, b.rank, own));
        }
        for (int distance = 1; distance < b.nranks; distance++) {
            int peer = dd_builder_at(&b, b.rank, -distance);
            dd_builder_recv(&b, peer, s, range_held(&b, peer, block_segment(&b, peer, s)));
        }
    }
    copy_own(&b);
    return dd_builder_finish(&b);
}

/* Every block goes around. */
dd_status
dd_plan_build_all_gather_ring(const dd_plan_task *task, dd_plan *plan, dd_error *err)
{
    dd_builder b = dd_builder_start(task, plan, err);
    size_t nsegments = dd_nsegments(largest_output(&b), b.segment_nbytes);
    size_t nrounds = (size_t)b.nranks - 1;
    int next = dd_builder_at(&b, b.rank, 1);
    int previous = dd_builder_at(&b, b.rank, -1);
    for (size_t s = 0; s < nsegments && b.status == DD_OK; s++) {
        int block = b.rank;
        uint32_t recv = DD_NO_STEP;
        for (size_t round = 0; round < nrounds; round++) {
            size_t channel = s * nrounds + round;
            dd_plan_range src = range_held(&b, block, block_segment(&b, block, s));
            uint32_t send = dd_builder_send(&b, next, channel, src);
            dd_builder_after(&b, send, recv);
            block = dd_builder_at(&b, block, -1);
            recv = dd_builder_recv(&b, previous, channel, range_held(&b, block, block_segment(&b, block, s)));
        }
    }
    copy_own(&b);
    return dd_builder_finish(&b);
}

/* Large blocks go piece by piece, with DD_PLAN_DEPTH sets of scratch. */
typedef struct bruck {
    size_t nbytes; /* of a block */
    size_t per_piece;
    size_t sets[DD_PLAN_DEPTH];
    uint32_t ended[DD_PLAN_DEPTH]; /* the step that ended the last piece there */
} bruck;

static bruck
bruck_start(dd_builder *b)
{
    bruck state = {.nbytes = b->args->outputs[b->rank].nbytes};
    state.per_piece = dd_builder_piece_nbytes(b, state.nbytes);
    size_t npieces = dd_nsegments(state.nbytes, state.per_piece);
    for (size_t i = 0; i < DD_PLAN_DEPTH; i++) {
        state.ended[i] = DD_NO_STEP;
        if (i < npieces) {
            state.sets[i] = dd_builder_add_scratch(b, (size_t)b->nranks * state.per_piece);
        }
    }
    return state;
}

/* Scratch holds the blocks of this rank and those after it, one after the other; in each round the number of them doubles.
 * Then they go to their places; that of this rank, last, ends the piece. */
static void
bruck_piece(dd_builder *b, bruck *state, size_t s)
{
    dd_span bytes = dd_segment(state->nbytes, state->per_piece, s);
    size_t set = state->sets[s % DD_PLAN_DEPTH];
    uint32_t *ended = &state->ended[s % DD_PLAN_DEPTH];
    dd_plan_range own = dd_range_input(0, bytes.first, bytes.count);
    uint32_t filled[33] = {0};
    uint32_t sends[32];
    int nrounds = 0;
    filled[0] = dd_builder_copy(b, own, dd_range_scratch(set, bytes.count));
    dd_builder_after(b, filled[0], *ended);
    for (int have = 1; have < b->nranks; nrounds++) {
        int count = have < b->nranks - have ? have : b->nranks - have;
        size_t nbytes = (size_t)count * bytes.count;
        sends[nrounds] =
            dd_builder_send(b, dd_builder_at(b, b->rank, -have), s, dd_range_scratch(set, nbytes));
        for (int i = 0; i <= nrounds; i++) {
            dd_builder_after(b, sends[nrounds], filled[i]);
        }
        dd_plan_range dst = dd_range_scratch(set + (size_t)have * bytes.count, nbytes);
        filled[nrounds + 1] = dd_builder_recv(b, dd_builder_at(b, b->rank, have), s, dst);
        dd_builder_after(b, filled[nrounds + 1], *ended);
        have += count;
    }
    uint32_t first_copy = b->plan->nsteps;
    for (int place = 1, end = 2, round = 1; place < b->nranks; place++) {
        if (place == end) {
            end *= 2;
            round++;
        }
        dd_plan_range src = dd_range_scratch(set + (size_t)place * bytes.count, bytes.count);
        int block = dd_builder_at(b, b->rank, place);
        uint32_t copy = dd_builder_copy(b, src, dd_range_output(block, bytes.first, bytes.count));
        dd_builder_after(b, copy, filled[round]);
    }
    uint32_t end_copy = b->plan->nsteps;
    uint32_t last = dd_builder_copy(b, own, dd_range_output(b->rank, bytes.first, bytes.count));
    dd_builder_after(b, last, filled[0]);
    for (uint32_t copy = first_copy; copy < end_copy; copy++) {
        dd_builder_after(b, last, copy);
    }
    for (int i = 0; i < nrounds; i++) {
        dd_builder_after(b, last, sends[i]);
    }
    *ended = last;
}

dd_status
dd_plan_build_all_gather_bruck(const dd_plan_task *task, dd_plan *plan, dd_error *err)
{
    dd_builder b = dd_builder_start(task, plan, err);
    bruck state = bruck_start(&b);
    size_t npieces = dd_nsegments(state.nbytes, state.per_piece);
    for (size_t s = 0; s < npieces && b.status == DD_OK; s++) {
        bruck_piece(&b, &state, s);
    }
    return dd_builder_finish(&b);
}
