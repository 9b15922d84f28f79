#include "collective/plan_internal.h"

#include "core/mem.h"

/* How many partners a rank talks to at once. */
#define WINDOW 16

/* What a rank did last with a partner, by distance modulo WINDOW. */
typedef struct pair_window {
    uint32_t sent[WINDOW];
    uint32_t received[WINDOW];
} pair_window;

static void
exchange(dd_builder *b, pair_window *window, int distance)
{
    int to = dd_builder_at(b, b->rank, distance);
    int from = dd_builder_at(b, b->rank, -distance);
    uint32_t *sent = &window->sent[distance % WINDOW];
    uint32_t *received = &window->received[distance % WINDOW];
    uint32_t before[2] = {*sent, *received};
    size_t nbytes = b->args->inputs[to].nbytes;
    size_t nsegments = dd_nsegments(nbytes, b->segment_nbytes);
    for (size_t s = 0; s < nsegments && b->status == DD_OK; s++) {
        dd_span bytes = dd_segment(nbytes, b->segment_nbytes, s);
        uint32_t send = dd_builder_send(b, to, s, dd_range_input(to, bytes.first, bytes.count));
        dd_builder_after(b, send, before[0]);
        dd_builder_after(b, send, before[1]);
        dd_builder_keep(sent, send);
    }
    nbytes = b->args->outputs[from].nbytes;
    nsegments = dd_nsegments(nbytes, b->segment_nbytes);
    for (size_t s = 0; s < nsegments && b->status == DD_OK; s++) {
        dd_span bytes = dd_segment(nbytes, b->segment_nbytes, s);
        uint32_t recv = dd_builder_recv(b, from, s, dd_range_output(from, bytes.first, bytes.count));
        dd_builder_after(b, recv, before[0]);
        dd_builder_after(b, recv, before[1]);
        dd_builder_keep(received, recv);
    }
}

/* In step d everybody sends to the rank d after it and receives from the one d before it, so that nobody is everybody's
 * target at once. */
dd_status
dd_plan_build_all_to_all_pairwise(const dd_plan_task *task, dd_plan *plan, dd_error *err)
{
    dd_builder b = dd_builder_start(task, plan, err);
    pair_window window;
    for (size_t i = 0; i < WINDOW; i++) {
        window.sent[i] = window.received[i] = DD_NO_STEP;
    }
    for (int distance = 1; distance < b.nranks && b.status == DD_OK; distance++) {
        exchange(&b, &window, distance);
    }
    size_t nbytes = b.args->outputs[b.rank].nbytes;
    dd_builder_copy_all(&b, dd_range_input(b.rank, 0, nbytes), dd_range_output(b.rank, 0, nbytes));
    return dd_builder_finish(&b);
}

/* Place i of a rank holds the block that still has i to go, in steps of powers of two: those of i's bits. In round k all
 * places with bit k go 2^k further, packed into one message. Large blocks go piece by piece, with DD_PLAN_DEPTH sets of scratch. */
typedef struct bruck {
    size_t nbytes; /* of a block */
    size_t per_piece;
    size_t area; /* bytes of scratch for what one round sends, or receives */
    size_t sets[DD_PLAN_DEPTH];
    uint32_t ended[DD_PLAN_DEPTH]; /* the step that ended the last piece there */
    dd_plan_range *held;           /* by place */
    uint32_t *ready;               /* by place: the receive that brought it */
} bruck;

static bruck
bruck_start(dd_builder *b)
{
    bruck state = {.nbytes = b->args->outputs[b->rank].nbytes};
    state.per_piece = dd_builder_piece_nbytes(b, state.nbytes);
    state.area = ((size_t)b->nranks / 2 * state.per_piece + 63) / 64 * 64;
    size_t nrounds = 0;
    for (int distance = 1; distance < b->nranks; nrounds++) {
        distance = distance > b->nranks / 2 ? b->nranks : 2 * distance;
    }
    size_t npieces = dd_nsegments(state.nbytes, state.per_piece);
    for (size_t i = 0; i < DD_PLAN_DEPTH; i++) {
        state.ended[i] = DD_NO_STEP;
        if (i < npieces) {
            state.sets[i] = dd_builder_add_scratch(b, 2 * nrounds * state.area);
        }
    }
    state.ready = dd_builder_steps_alloc(b, (size_t)b->nranks);
    state.held = dd_mem_alloc_array((size_t)b->nranks, sizeof *state.held);
    if (state.held == NULL && b->status == DD_OK) {
        b->status = dd_error_no_memory(b->err, (size_t)b->nranks * sizeof *state.held);
    }
    return state;
}

static dd_status
bruck_finish(const dd_builder *b, bruck *state)
{
    dd_mem_free(state->held);
    dd_mem_free(state->ready);
    return dd_builder_finish(b);
}

/* `area` is where the round's packed message lies, followed by where the other's comes; gives the send. */
static uint32_t
bruck_round(dd_builder *b, bruck *state, size_t s, int distance, size_t area)
{
    size_t nbytes = dd_segment(state->nbytes, state->per_piece, s).count;
    uint32_t ended = state->ended[s % DD_PLAN_DEPTH];
    uint32_t first_copy = b->plan->nsteps;
    size_t packed = 0;
    for (int place = distance; place < b->nranks; place++) {
        if ((place & distance) != 0) {
            uint32_t copy = dd_builder_copy(b, state->held[place], dd_range_scratch(area + packed, nbytes));
            dd_builder_after(b, copy, ended);
            dd_builder_after(b, copy, state->ready[place]);
            packed += nbytes;
        }
    }
    uint32_t end_copy = b->plan->nsteps;
    uint32_t send =
        dd_builder_send(b, dd_builder_at(b, b->rank, distance), s, dd_range_scratch(area, packed));
    for (uint32_t copy = first_copy; copy < end_copy; copy++) {
        dd_builder_after(b, send, copy);
    }
    dd_plan_range came = dd_range_scratch(area + state->area, packed);
    uint32_t recv = dd_builder_recv(b, dd_builder_at(b, b->rank, -distance), s, came);
    dd_builder_after(b, recv, ended);
    size_t unpacked = 0;
    for (int place = distance; place < b->nranks; place++) {
        if ((place & distance) != 0) {
            state->held[place] = dd_range_scratch(came.offset + unpacked, nbytes);
            state->ready[place] = recv;
            unpacked += nbytes;
        }
    }
    return send;
}

static void
bruck_piece(dd_builder *b, bruck *state, size_t s)
{
    dd_span bytes = dd_segment(state->nbytes, state->per_piece, s);
    for (int place = 0; place < b->nranks; place++) {
        state->held[place] = dd_range_input(dd_builder_at(b, b->rank, place), bytes.first, bytes.count);
        state->ready[place] = DD_NO_STEP;
    }
    uint32_t sends[32];
    size_t nrounds = 0;
    for (int distance = 1; distance < b->nranks; nrounds++) {
        size_t area = state->sets[s % DD_PLAN_DEPTH] + 2 * nrounds * state->area;
        sends[nrounds] = bruck_round(b, state, s, distance, area);
        distance = distance > b->nranks / 2 ? b->nranks : 2 * distance;
    }
    uint32_t first_copy = b->plan->nsteps;
    for (int place = 1; place < b->nranks; place++) {
        int block = dd_builder_at(b, b->rank, -place);
        dd_plan_range dst = dd_range_output(block, bytes.first, bytes.count);
        dd_builder_after(b, dd_builder_copy(b, state->held[place], dst), state->ready[place]);
    }
    uint32_t end_copy = b->plan->nsteps;
    uint32_t last = dd_builder_copy(b, state->held[0], dd_range_output(b->rank, bytes.first, bytes.count));
    for (uint32_t copy = first_copy; copy < end_copy; copy++) {
        dd_builder_after(b, last, copy);
    }
    for (size_t i = 0; i < nrounds; i++) {
        dd_builder_after(b, last, sends[i]);
    }
    state->ended[s % DD_PLAN_DEPTH] = last;
}

dd_status
dd_plan_build_all_to_all_bruck(const dd_plan_task *task, dd_plan *plan, dd_error *err)
{
    dd_builder b = dd_builder_start(task, plan, err);
    bruck state = bruck_start(&b);
    size_t npieces = dd_nsegments(state.nbytes, state.per_piece);
    for (size_t s = 0; s < npieces && b.status == DD_OK; s++) {
        bruck_piece(&b, &state, s);
    }
    return bruck_finish(&b, &state);
}
