#include "collective/plan_internal.h"

static bool
is_root(const dd_builder *b)
{
    return b->rank == b->args->root;
}

static void
send_all(dd_builder *b, int peer, dd_plan_range src)
{
    size_t nsegments = dd_nsegments(src.nbytes, b->segment_nbytes);
    for (size_t s = 0; s < nsegments && b->status == DD_OK; s++) {
        dd_builder_send(b, peer, s, dd_range_part(src, dd_segment(src.nbytes, b->segment_nbytes, s)));
    }
}

static void
recv_all(dd_builder *b, int peer, dd_plan_range dst)
{
    size_t nsegments = dd_nsegments(dst.nbytes, b->segment_nbytes);
    for (size_t s = 0; s < nsegments && b->status == DD_OK; s++) {
        dd_builder_recv(b, peer, s, dd_range_part(dst, dd_segment(dst.nbytes, b->segment_nbytes, s)));
    }
}

static dd_plan_range
whole_input(const dd_builder *b, int block)
{
    return dd_range_input(block, 0, b->args->inputs[block].nbytes);
}

static dd_plan_range
whole_output(const dd_builder *b, int block)
{
    return dd_range_output(block, 0, b->args->outputs[block].nbytes);
}

dd_status
dd_plan_build_gather_direct(const dd_plan_task *task, dd_plan *plan, dd_error *err)
{
    dd_builder b = dd_builder_start(task, plan, err);
    if (!is_root(&b)) {
        send_all(&b, b.args->root, whole_input(&b, 0));
        return dd_builder_finish(&b);
    }
    for (int distance = 1; distance < b.nranks; distance++) {
        int peer = dd_builder_at(&b, b.rank, distance);
        recv_all(&b, peer, whole_output(&b, peer));
    }
    dd_builder_copy_all(&b, whole_input(&b, 0), whole_output(&b, b.rank));
    return dd_builder_finish(&b);
}

dd_status
dd_plan_build_scatter_direct(const dd_plan_task *task, dd_plan *plan, dd_error *err)
{
    dd_builder b = dd_builder_start(task, plan, err);
    if (!is_root(&b)) {
        recv_all(&b, b.args->root, whole_output(&b, 0));
        return dd_builder_finish(&b);
    }
    for (int distance = 1; distance < b.nranks; distance++) {
        int peer = dd_builder_at(&b, b.rank, distance);
        send_all(&b, peer, whole_input(&b, peer));
    }
    dd_builder_copy_all(&b, whole_input(&b, b.rank), whole_output(&b, 0));
    return dd_builder_finish(&b);
}

/* A binomial tree over places, ranks counted from the root: place p speaks for p up to p + its lowest bit. The blocks of
 * these lie side by side in scratch; large ones go piece by piece, with DD_PLAN_DEPTH sets of scratch. */
typedef struct binomial {
    int place;
    int nspoken;   /* places this one speaks for, itself included */
    int parent;    /* rank */
    size_t nbytes; /* of a block */
    size_t per_piece;
    size_t sets[DD_PLAN_DEPTH];
    uint32_t ended[DD_PLAN_DEPTH]; /* the step that ended the last piece there */
} binomial;

static int
rank_at(const dd_builder *b, int place)
{
    return (int)(((long)place + b->args->root) % b->nranks);
}

static binomial
binomial_start(dd_builder *b, size_t nbytes)
{
    binomial state = {.place = dd_builder_at(b, b->rank, -b->args->root), .nbytes = nbytes};
    int lowest = state.place & -state.place;
    int rest = b->nranks - state.place;
    state.nspoken = state.place == 0 || lowest > rest ? rest : lowest;
    state.parent = rank_at(b, state.place - lowest);
    state.per_piece = dd_builder_piece_nbytes(b, nbytes);
    size_t npieces = dd_nsegments(nbytes, state.per_piece);
    for (size_t i = 0; i < DD_PLAN_DEPTH; i++) {
        state.ended[i] = DD_NO_STEP;
        if (i < npieces && state.nspoken > 1) {
            state.sets[i] = dd_builder_add_scratch(b, (size_t)state.nspoken * state.per_piece);
        }
    }
    return state;
}

/* One piece of all blocks. */
typedef struct tree_piece {
    size_t channel;
    size_t set; /* where the blocks lie in scratch */
    uint32_t *ended;
    dd_span bytes; /* of each block */
} tree_piece;

static tree_piece
piece_at(binomial *state, size_t s)
{
    return (tree_piece){.channel = s,
                        .set = state->sets[s % DD_PLAN_DEPTH],
                        .ended = &state->ended[s % DD_PLAN_DEPTH],
                        .bytes = dd_segment(state->nbytes, state->per_piece, s)};
}

/* The blocks that the child at a distance speaks for. */
static dd_plan_range
child_range(const binomial *state, const tree_piece *piece, int distance)
{
    int count = distance < state->nspoken - distance ? distance : state->nspoken - distance;
    return dd_range_scratch(piece->set + (size_t)distance * piece->bytes.count,
                            (size_t)count * piece->bytes.count);
}

/* Gives how many receives there are. */
static int
receive_from_children(dd_builder *b, const binomial *state, const tree_piece *piece, uint32_t *recvs)
{
    int nrecvs = 0;
    for (long distance = 1; distance < state->nspoken; distance *= 2) {
        int peer = rank_at(b, state->place + (int)distance);
        dd_plan_range range = child_range(state, piece, (int)distance);
        recvs[nrecvs] = dd_builder_recv(b, peer, piece->channel, range);
        dd_builder_after(b, recvs[nrecvs], *piece->ended);
        nrecvs++;
    }
    return nrecvs;
}

/* Up the tree: whoever has children collects theirs behind its own. */
static void
gather_piece(dd_builder *b, const binomial *state, const tree_piece *piece)
{
    dd_plan_range own = dd_range_input(0, piece->bytes.first, piece->bytes.count);
    if (state->nspoken == 1) {
        dd_builder_send(b, state->parent, piece->channel, own);
        return;
    }
    uint32_t recvs[32];
    int nrecvs = receive_from_children(b, state, piece, recvs);
    uint32_t copy = dd_builder_copy(b, own, dd_range_scratch(piece->set, own.nbytes));
    dd_builder_after(b, copy, *piece->ended);
    dd_plan_range all = dd_range_scratch(piece->set, (size_t)state->nspoken * piece->bytes.count);
    uint32_t send = dd_builder_send(b, state->parent, piece->channel, all);
    dd_builder_after(b, send, copy);
    for (int i = 0; i < nrecvs; i++) {
        dd_builder_after(b, send, recvs[i]);
    }
    *piece->ended = send;
}

/* The root hands out to its outputs what came; its own block, last, ends the piece. */
static void
gather_piece_on_root(dd_builder *b, const binomial *state, const tree_piece *piece)
{
    uint32_t recvs[32];
    int nrecvs = receive_from_children(b, state, piece, recvs);
    uint32_t first_copy = b->plan->nsteps;
    for (int place = 1, child = 0; place < state->nspoken; place++) {
        if (child + 1 < nrecvs && place >> (child + 1) != 0) {
            child++;
        }
        dd_plan_range src =
            dd_range_scratch(piece->set + (size_t)place * piece->bytes.count, piece->bytes.count);
        dd_plan_range dst = dd_range_output(rank_at(b, place), piece->bytes.first, piece->bytes.count);
        dd_builder_after(b, dd_builder_copy(b, src, dst), recvs[child]);
    }
    uint32_t end_copy = b->plan->nsteps;
    dd_plan_range own = dd_range_input(0, piece->bytes.first, piece->bytes.count);
    uint32_t last = dd_builder_copy(b, own, dd_range_output(b->rank, piece->bytes.first, piece->bytes.count));
    for (uint32_t copy = first_copy; copy < end_copy; copy++) {
        dd_builder_after(b, last, copy);
    }
    *piece->ended = last;
}

dd_status
dd_plan_build_gather_binomial(const dd_plan_task *task, dd_plan *plan, dd_error *err)
{
    dd_builder b = dd_builder_start(task, plan, err);
    binomial state = binomial_start(&b, b.args->inputs[0].nbytes);
    size_t npieces = dd_nsegments(state.nbytes, state.per_piece);
    for (size_t s = 0; s < npieces && b.status == DD_OK; s++) {
        tree_piece piece = piece_at(&state, s);
        if (is_root(&b)) {
            gather_piece_on_root(&b, &state, &piece);
        } else {
            gather_piece(&b, &state, &piece);
        }
    }
    return dd_builder_finish(&b);
}

/* Down the tree, after all steps from first_ready on. The copy of this rank's own block ends the piece. */
static void
scatter_to_children(dd_builder *b, const binomial *state, const tree_piece *piece, uint32_t first_ready,
                    dd_plan_range own)
{
    uint32_t end_ready = b->plan->nsteps;
    long distance = 1;
    while (2 * distance < state->nspoken) {
        distance *= 2;
    }
    for (; distance > 0 && distance < state->nspoken; distance /= 2) {
        int peer = rank_at(b, state->place + (int)distance);
        dd_plan_range range = child_range(state, piece, (int)distance);
        uint32_t send = dd_builder_send(b, peer, piece->channel, range);
        for (uint32_t ready = first_ready; ready < end_ready; ready++) {
            dd_builder_after(b, send, ready);
        }
    }
    dd_plan_range dst = dd_range_output(0, piece->bytes.first, piece->bytes.count);
    uint32_t end_sends = b->plan->nsteps;
    uint32_t copy = dd_builder_copy(b, own, dst);
    for (uint32_t step = first_ready; step < end_sends; step++) {
        dd_builder_after(b, copy, step);
    }
    *piece->ended = copy;
}

static void
scatter_piece_on_root(dd_builder *b, const binomial *state, const tree_piece *piece)
{
    uint32_t first = b->plan->nsteps;
    for (int place = 1; place < state->nspoken; place++) {
        size_t offset = piece->set + (size_t)place * piece->bytes.count;
        uint32_t copy =
            dd_builder_copy(b, dd_range_input(rank_at(b, place), piece->bytes.first, piece->bytes.count),
                            dd_range_scratch(offset, piece->bytes.count));
        dd_builder_after(b, copy, *piece->ended);
    }
    scatter_to_children(b, state, piece, first,
                        dd_range_input(b->rank, piece->bytes.first, piece->bytes.count));
}

static void
scatter_piece(dd_builder *b, const binomial *state, const tree_piece *piece)
{
    if (state->nspoken == 1) {
        dd_builder_recv(b, state->parent, piece->channel,
                        dd_range_output(0, piece->bytes.first, piece->bytes.count));
        return;
    }
    uint32_t first = b->plan->nsteps;
    dd_plan_range all = dd_range_scratch(piece->set, (size_t)state->nspoken * piece->bytes.count);
    uint32_t recv = dd_builder_recv(b, state->parent, piece->channel, all);
    dd_builder_after(b, recv, *piece->ended);
    scatter_to_children(b, state, piece, first, dd_range_scratch(piece->set, piece->bytes.count));
}

dd_status
dd_plan_build_scatter_binomial(const dd_plan_task *task, dd_plan *plan, dd_error *err)
{
    dd_builder b = dd_builder_start(task, plan, err);
    binomial state = binomial_start(&b, b.args->outputs[0].nbytes);
    size_t npieces = dd_nsegments(state.nbytes, state.per_piece);
    for (size_t s = 0; s < npieces && b.status == DD_OK; s++) {
        tree_piece piece = piece_at(&state, s);
        if (is_root(&b)) {
            scatter_piece_on_root(&b, &state, &piece);
        } else {
            scatter_piece(&b, &state, &piece);
        }
    }
    return dd_builder_finish(&b);
}
