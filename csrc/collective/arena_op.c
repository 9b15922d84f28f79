#include "collective/arena_internal.h"

/* What one call moves at most, about. */
#define BUDGET_BYTES ((size_t)262144)

void
dd_arena_start(dd_arena *arena, const dd_coll_args *args, const dd_arena_op_options *options)
{
    arena_op *op = &arena->op;
    if (__builtin_expect(!arena->is_registered, false)) {
        dd_arena_note_registered(arena);
    }
    op->args = args;
    op->options = *options;
    op->phase = ARENA_OPENING;
    op->parity ^= 1;
    op->first_epoch = arena->epoch + 1;
    op->nrounds = 1;
    op->round = 0;
    op->is_staged = false;
    op->is_read = true;
    op->is_in_place = false;
    op->is_region_read = false;
    op->has_edges = false;
    op->source = 0;
    op->offset = 0;
    op->wanted_in = (dd_arena_ranks){{0}};
    op->wanted_out = (dd_arena_ranks){{0}};
    op->root = (dd_arena_ranks){{0}};
    dd_arena_ranks_add(&op->root, args->root);
    op->is_awaiting = false;
    dd_arena_prepare(arena);
    op->data_epoch = op->first_epoch;
}

/* Publishes the header, with the first round's data unless that stays where it is. */
static bool
open_op(dd_arena *arena)
{
    arena_op *op = &arena->op;
    uint64_t flags = arena->peers[arena->rank].flags;
    if ((flags & (ARENA_IS_INLINE | ARENA_IN_REGION | ARENA_IN_PLACE)) == 0) {
        if (!dd_arena_may_stage(arena, 0)) {
            return false;
        }
        (void)dd_arena_stage(arena, 0);
    }
    dd_arena_write_header(arena);
    dd_arena_publish(arena, op->first_epoch);
    return true;
}

/* All know all headers now, and decide the same. */
static void
agree(dd_arena *arena)
{
    arena_op *op = &arena->op;
    uint64_t any = 0;
    uint64_t every = UINT64_MAX;
    for (int k = 0; k < arena->nranks; k++) {
        any |= arena->peers[k].flags;
        every &= arena->peers[k].flags;
    }
    op->is_in_place = (every & ARENA_IN_PLACE) != 0;
    op->has_edges = op->is_in_place && (any & ARENA_SHARES_PAGES) != 0;
    op->is_region_read = (any & ARENA_IN_REGION) != 0;
    /* Somebody may have staged nothing, hoping that all would be in place: from the beginning, with all. */
    bool is_repeated = !op->is_in_place && (any & ARENA_IN_PLACE) != 0;
    op->data_epoch += is_repeated;
    op->is_staged = !is_repeated;
    dd_arena_count_rounds(arena);
}

static dd_arena_state
greet(dd_arena *arena)
{
    arena_op *op = &arena->op;
    if (!dd_arena_has_come(arena, &arena->all_ranks, op->first_epoch) ||
        dd_arena_is_any(arena, &arena->shared->poisoned)) {
        return DD_ARENA_BLOCKED;
    }
    dd_arena_state state = dd_arena_compare_headers(arena);
    if (state == DD_ARENA_MISMATCH) {
        op->phase = ARENA_IDLE; /* for all: nobody reads or writes */
    }
    if (state == DD_ARENA_MOVED) {
        agree(arena);
        op->phase = op->is_in_place || op->is_region_read ? ARENA_MAPPING : ARENA_ROUNDS;
    }
    return state;
}

static dd_arena_state
stage_round(dd_arena *arena)
{
    arena_op *op = &arena->op;
    if (op->round < op->nrounds) {
        if (!dd_arena_may_stage(arena, op->round)) {
            return DD_ARENA_BLOCKED;
        }
        if (!dd_arena_stage(arena, op->round)) {
            return DD_ARENA_MOVED;
        }
        dd_arena_publish(arena, dd_arena_epoch_of(op, op->round));
    }
    op->is_staged = true;
    return DD_ARENA_MOVED;
}

static dd_arena_state
read_round(dd_arena *arena, uint64_t round)
{
    arena_op *op = &arena->op;
    const dd_arena_ranks *ranks = dd_arena_read_from(arena, round);
    if (ranks != NULL && !dd_arena_has_come(arena, ranks, dd_arena_epoch_of(op, round))) {
        return DD_ARENA_BLOCKED;
    }
    op->is_read = dd_arena_read(arena, round);
    return DD_ARENA_MOVED;
}

/* Whether a rank whose region we have read has given up: its caller may have put other data there
 * meanwhile. A rank poisons the arena before it lets its caller go on, so if the poison is not here, we
 * have read what was meant. The rank cannot have failed in a later operation, which would not concern this
 * one: it ends this one after our closing epoch. */
static bool
has_read_in_vain(const dd_arena *arena)
{
    dd_arena_ranks lenders = {{0}};
    for (int k = 0; k < arena->nranks; k++) {
        if ((arena->peers[k].flags & (ARENA_IN_REGION | ARENA_IN_PLACE)) != 0) {
            dd_arena_ranks_add(&lenders, k);
        }
    }
    /* A write of nothing, and not a load: so this and dd_arena_poison have an order, and where this comes first, all that was read
     * before it was read before the lender's caller goes on. */
    bool is_poisoned = false;
    for (int i = 0; i < arena->nwords; i++) {
        is_poisoned =
            (atomic_fetch_or(&arena->shared->poisoned[i], 0) & lenders.words[i]) != 0 || is_poisoned;
    }
    return is_poisoned;
}

/* Says that we have read all that we wanted of others' regions, and written all that they get from us. */
static dd_arena_state
close_regions(dd_arena *arena)
{
    if (has_read_in_vain(arena)) {
        return DD_ARENA_BLOCKED;
    }
    dd_arena_publish(arena, arena->epoch + 1);
    arena->op.phase = arena->op.has_edges ? ARENA_EDGES : ARENA_CLOSING;
    return DD_ARENA_MOVED;
}

/* A round is staged and published before the one before it is read, or after that: see arena_internal.h. */
static dd_arena_state
go_round(dd_arena *arena)
{
    arena_op *op = &arena->op;
    bool is_reading = !op->is_read && (op->is_staged || op->reads_first);
    if (is_reading) {
        return read_round(arena, op->round - 1);
    }
    if (!op->is_staged) {
        return stage_round(arena);
    }
    if (op->round == op->nrounds && op->is_region_read) {
        return close_regions(arena);
    }
    op->phase = op->round == op->nrounds ? ARENA_IDLE : op->phase;
    op->round++;
    op->is_staged = false;
    op->is_read = false;
    return DD_ARENA_MOVED;
}

static dd_arena_state
take_edges(dd_arena *arena)
{
    arena_op *op = &arena->op;
    if (!dd_arena_has_come(arena, &arena->all_ranks, arena->epoch)) {
        return DD_ARENA_BLOCKED;
    }
    dd_arena_take_edges(arena);
    op->has_edges = false;
    return close_regions(arena);
}

/* Owners of regions that were read wait for all who may have read them; in place everybody is one. */
static dd_arena_state
close_op(dd_arena *arena)
{
    arena_op *op = &arena->op;
    bool is_owner = (arena->peers[arena->rank].flags & (ARENA_IN_REGION | ARENA_IN_PLACE)) != 0;
    if (is_owner && !dd_arena_has_come(arena, &arena->all_ranks, arena->epoch)) {
        return DD_ARENA_BLOCKED;
    }
    op->phase = ARENA_IDLE;
    return DD_ARENA_MOVED;
}

static dd_arena_state
step(dd_arena *arena)
{
    arena_op *op = &arena->op;
    dd_arena_state state = DD_ARENA_MOVED;
    switch (op->phase) {
    case ARENA_OPENING:
        if (!open_op(arena)) {
            return DD_ARENA_BLOCKED;
        }
        op->phase = ARENA_GREETING;
        break;
    case ARENA_GREETING:
        return greet(arena);
    case ARENA_MAPPING:
        state = dd_arena_map_regions(arena);
        if (state == DD_ARENA_MOVED) {
            op->phase = op->is_in_place ? ARENA_IN_PLACE_FOLD : ARENA_ROUNDS;
        }
        return state;
    case ARENA_IN_PLACE_FOLD:
        return dd_arena_fold_in_place(arena) ? close_regions(arena) : DD_ARENA_MOVED;
    case ARENA_EDGES:
        return take_edges(arena);
    case ARENA_ROUNDS:
        return go_round(arena);
    case ARENA_CLOSING:
        return close_op(arena);
    case ARENA_IDLE:
        break;
    }
    return state;
}

dd_arena_state
dd_arena_progress(dd_arena *arena)
{
    arena_op *op = &arena->op;
    dd_arena_stay_awake(arena);
    op->budget = BUDGET_BYTES;
    bool has_moved = false;
    while (op->phase != ARENA_IDLE && op->budget > 0) {
        dd_arena_state state = step(arena);
        if (state == DD_ARENA_MISMATCH || state == DD_ARENA_BROKEN) {
            return state;
        }
        if (state == DD_ARENA_BLOCKED) {
            return has_moved ? DD_ARENA_MOVED : DD_ARENA_BLOCKED;
        }
        has_moved = true;
    }
    return op->phase == ARENA_IDLE ? DD_ARENA_DONE : DD_ARENA_MOVED;
}

/* ---- giving up */

void
dd_arena_poison(dd_arena *arena)
{
    /* Before anything that our caller writes once it knows: see has_read_in_vain. */
    atomic_fetch_or(&arena->shared->poisoned[arena->rank / 64], UINT64_C(1) << arena->rank % 64);
}

/* Other ranks write to us only in an all_reduce in place: from when they have seen all headers, and no
 * poison, until they publish the closing epoch. If a header is still missing here, it is missing for all
 * of them, and a rank that finds it later finds the poison. */
bool
dd_arena_find_written(const dd_arena *arena, dd_block *block)
{
    const arena_op *op = &arena->op;
    bool is_offered = (arena->peers[arena->rank].flags & ARENA_IN_PLACE) != 0;
    bool is_running = op->phase == ARENA_GREETING || (op->phase > ARENA_GREETING && op->is_in_place);
    if (!is_offered || !is_running) {
        return false;
    }
    dd_arena_ranks missing;
    bool has_ended = op->phase == ARENA_EDGES || op->phase == ARENA_CLOSING;
    uint64_t closing_epoch = arena->epoch + (has_ended ? 0 : 1);
    if (dd_arena_find_missing(arena, &arena->all_ranks, op->first_epoch, &missing) ||
        !dd_arena_find_missing(arena, &arena->all_ranks, closing_epoch, &missing)) {
        return false;
    }
    const arena_peer *own = &arena->peers[arena->rank];
    const dd_block *output = &op->args->outputs[0];
    *block = (dd_block){(uint8_t *)output->data + own->lead, output->nbytes - own->lead - own->tail};
    return true;
}
