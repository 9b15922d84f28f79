/* Trees of pairs. The order of the fold is the same in both algorithms and for every root: with p the largest power of two
 * that is at most nranks and r = nranks - p, ranks 2i and 2i + 1 are folded first for i < r; what is then p partial results
 * is folded in pairs of neighbours, those in pairs, and so on, the lower ranks' part always first. */
#include "collective/plan_internal.h"

/* What a rank holds of a segment, and the slots that partial results come into, alternately. */
typedef struct tree_set {
    size_t slots[2];
    size_t raw;         /* an input as it came; only where inputs have to be lifted */
    uint32_t folded[2]; /* by slot: the last fold that read or wrote it */
    uint32_t sent[2];   /* by slot: the last send of it */
    uint32_t raw_folded;
    uint32_t input_sent; /* the send of this rank's input as it is */
    dd_plan_range held;  /* the partial result */
    uint32_t ready;      /* the step that made it */
    int held_slot;       /* -1: it is the input */
} tree_set;

typedef struct tree {
    size_t per_segment; /* elements */
    size_t count;
    size_t nsegments;
    int npairs;  /* that are folded first */
    int nplaces; /* then; a power of two */
    int nrounds; /* log2 of it */
    tree_set sets[DD_PLAN_DEPTH];
} tree;

static tree
tree_start(dd_builder *b)
{
    tree state = {.per_segment = b->segment_nbytes / b->partial_nbytes,
                  .count = b->args->inputs[0].nbytes / b->element_nbytes,
                  .nplaces = 1};
    state.nsegments = dd_nsegments(state.count, state.per_segment);
    while (state.nplaces <= b->nranks / 2) {
        state.nplaces *= 2;
        state.nrounds++;
    }
    state.npairs = b->nranks - state.nplaces;
    size_t count = state.count < state.per_segment ? state.count : state.per_segment;
    for (size_t i = 0; i < DD_PLAN_DEPTH; i++) {
        tree_set *set = &state.sets[i];
        set->folded[0] = set->folded[1] = set->sent[0] = set->sent[1] = DD_NO_STEP;
        set->raw_folded = set->input_sent = DD_NO_STEP;
        if (i < state.nsegments && b->nranks > 1) {
            set->slots[0] = dd_builder_add_scratch(b, count * b->partial_nbytes);
            set->slots[1] = dd_builder_add_scratch(b, count * b->partial_nbytes);
            set->raw = b->is_lifted ? dd_builder_add_scratch(b, count * b->element_nbytes) : 0;
        }
    }
    return state;
}

static dd_plan_range
input_of(const dd_builder *b, dd_span segment)
{
    return dd_range_input(0, segment.first * b->element_nbytes, segment.count * b->element_nbytes);
}

static dd_plan_range
output_of(const dd_builder *b, dd_span segment)
{
    return dd_range_output(0, segment.first * b->element_nbytes, segment.count * b->element_nbytes);
}

static dd_plan_range
slot_of(const dd_builder *b, const tree_set *set, int slot, dd_span segment)
{
    return dd_range_scratch(set->slots[slot], segment.count * b->partial_nbytes);
}

static void
hold(dd_builder *b, tree_set *set, int slot, dd_span segment, uint32_t step)
{
    set->held = slot_of(b, set, slot, segment);
    set->held_slot = slot;
    set->ready = step;
    set->folded[slot] = step;
}

static void
after_slot(dd_builder *b, uint32_t step, const tree_set *set, int slot)
{
    dd_builder_after(b, step, set->folded[slot]);
    dd_builder_after(b, step, set->sent[slot]);
}

/* Begins with this rank's input. */
static void
hold_input(dd_builder *b, tree_set *set, dd_span segment)
{
    dd_plan_range own = input_of(b, segment);
    set->input_sent = DD_NO_STEP;
    if (!b->is_lifted) {
        set->held = own;
        set->held_slot = -1;
        set->ready = DD_NO_STEP;
        return;
    }
    uint32_t lift = dd_builder_fold(b, DD_STAGE_FIRST, &own, NULL, slot_of(b, set, 0, segment));
    after_slot(b, lift, set, 0);
    hold(b, set, 0, segment, lift);
}

/* Begins with the inputs of a pair, the other's being received. */
static void
hold_pair(dd_builder *b, tree_set *set, dd_span segment, int peer, size_t channel)
{
    dd_plan_range own = input_of(b, segment);
    dd_plan_range slot = slot_of(b, set, 0, segment);
    dd_plan_range other = b->is_lifted ? dd_range_scratch(set->raw, own.nbytes) : slot;
    set->input_sent = DD_NO_STEP;
    uint32_t recv = dd_builder_recv(b, peer, channel, other);
    if (b->is_lifted) {
        dd_builder_after(b, recv, set->raw_folded);
    } else {
        after_slot(b, recv, set, 0);
    }
    bool is_lower = b->rank < peer;
    uint32_t fold =
        dd_builder_fold(b, DD_STAGE_FIRST, is_lower ? &own : &other, is_lower ? &other : &own, slot);
    dd_builder_after(b, fold, recv);
    if (b->is_lifted) {
        after_slot(b, fold, set, 0);
        set->raw_folded = fold;
    }
    hold(b, set, 0, segment, fold);
}

static uint32_t
send_held(dd_builder *b, tree_set *set, int peer, size_t channel)
{
    uint32_t send = dd_builder_send(b, peer, channel, set->held);
    dd_builder_after(b, send, set->ready);
    if (set->held_slot >= 0) {
        set->sent[set->held_slot] = send;
    } else {
        set->input_sent = send;
    }
    return send;
}

/* Receives the peer's partial result and folds it with what is held; into the output when it is the last. */
static uint32_t
receive_and_fold(dd_builder *b, tree_set *set, dd_span segment, int peer, size_t channel, bool is_last)
{
    int slot = set->held_slot == 0 ? 1 : 0;
    dd_plan_range came = slot_of(b, set, slot, segment);
    dd_plan_range held = set->held;
    int held_slot = set->held_slot;
    uint32_t recv = dd_builder_recv(b, peer, channel, came);
    after_slot(b, recv, set, slot);
    bool is_lower = b->rank < peer;
    uint32_t fold = dd_builder_fold(b, is_last ? DD_STAGE_LAST : DD_STAGE_MIDDLE, is_lower ? &held : &came,
                                    is_lower ? &came : &held, is_last ? output_of(b, segment) : came);
    dd_builder_after(b, fold, recv);
    dd_builder_after(b, fold, set->ready);
    if (is_last) {
        dd_builder_after(b, fold, set->input_sent);
    }
    hold(b, set, slot, segment, fold);
    if (held_slot >= 0) {
        set->folded[held_slot] = fold;
    }
    return fold;
}

static void
fold_alone(dd_builder *b, dd_span segment)
{
    dd_plan_range own = input_of(b, segment);
    dd_builder_fold(b, DD_STAGE_WHOLE, &own, NULL, output_of(b, segment));
}

/* All ranks hold all of what was folded so far, in groups that double. */
static void
double_segment(dd_builder *b, tree *state, size_t s)
{
    dd_span segment = dd_segment(state->count, state->per_segment, s);
    tree_set *set = &state->sets[s % DD_PLAN_DEPTH];
    size_t channel = s * ((size_t)state->nrounds + 2);
    size_t last_channel = channel + (size_t)state->nrounds + 1;
    bool is_paired = b->rank < 2 * state->npairs;
    if (is_paired && b->rank % 2 != 0) {
        uint32_t send = dd_builder_send(b, b->rank - 1, channel, input_of(b, segment));
        uint32_t recv = dd_builder_recv(b, b->rank - 1, last_channel, output_of(b, segment));
        dd_builder_after(b, recv, send);
        return;
    }
    if (is_paired) {
        hold_pair(b, set, segment, b->rank + 1, channel);
    } else {
        hold_input(b, set, segment);
    }
    int place = is_paired ? b->rank / 2 : b->rank - state->npairs;
    uint32_t fold = DD_NO_STEP;
    for (int distance = 1; distance < state->nplaces; distance *= 2) {
        int other = place ^ distance;
        int peer = other < state->npairs ? 2 * other : other + state->npairs;
        channel++;
        send_held(b, set, peer, channel);
        fold = receive_and_fold(b, set, segment, peer, channel, 2 * distance == state->nplaces);
    }
    if (is_paired) {
        uint32_t send = dd_builder_send(b, b->rank + 1, last_channel, output_of(b, segment));
        dd_builder_after(b, send, fold);
    }
}

dd_status
dd_plan_build_all_reduce_doubling(const dd_plan_task *task, dd_plan *plan, dd_error *err)
{
    dd_builder b = dd_builder_start(task, plan, err);
    tree state = tree_start(&b);
    for (size_t s = 0; s < state.nsegments && b.status == DD_OK; s++) {
        if (b.nranks == 1) {
            fold_alone(&b, dd_segment(state.count, state.per_segment, s));
        } else {
            double_segment(&b, &state, s);
        }
    }
    return dd_builder_finish(&b);
}

/* The rank that stands for a place: of a pair, the root if it is one of them, else the lower one. */
static int
rank_of_place(const dd_builder *b, const tree *state, int place)
{
    if (place >= state->npairs) {
        return place + state->npairs;
    }
    return b->args->root / 2 == place ? b->args->root : 2 * place;
}

/* Partial results move toward the root's place. */
static void
reduce_segment(dd_builder *b, tree *state, size_t s)
{
    dd_span segment = dd_segment(state->count, state->per_segment, s);
    tree_set *set = &state->sets[s % DD_PLAN_DEPTH];
    bool is_paired = b->rank < 2 * state->npairs;
    int root = b->args->root;
    int place = is_paired ? b->rank / 2 : b->rank - state->npairs;
    int root_place = root < 2 * state->npairs ? root / 2 : root - state->npairs;
    if (is_paired) {
        int stands = rank_of_place(b, state, place);
        if (stands != b->rank) {
            dd_builder_send(b, stands, s, input_of(b, segment));
            return;
        }
        hold_pair(b, set, segment, b->rank ^ 1, s);
    } else {
        hold_input(b, set, segment);
    }
    for (int distance = 1; distance < state->nplaces; distance *= 2) {
        int peer = rank_of_place(b, state, place ^ distance);
        if (((place ^ root_place) & distance) != 0) {
            send_held(b, set, peer, s);
            return;
        }
        receive_and_fold(b, set, segment, peer, s, 2 * distance == state->nplaces);
    }
}

dd_status
dd_plan_build_reduce_binomial(const dd_plan_task *task, dd_plan *plan, dd_error *err)
{
    dd_builder b = dd_builder_start(task, plan, err);
    tree state = tree_start(&b);
    for (size_t s = 0; s < state.nsegments && b.status == DD_OK; s++) {
        if (b.nranks == 1) {
            fold_alone(&b, dd_segment(state.count, state.per_segment, s));
        } else {
            reduce_segment(&b, &state, s);
        }
    }
    return dd_builder_finish(&b);
}
