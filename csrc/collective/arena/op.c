#include "collective/arena/state.h"

#include <string.h>

#define BUDGET_BYTES ((size_t)262144) /* about the most bytes that one dd_arena_progress moves */

/* ---- this rank's part */

/* Set op->nbytes to the size of this rank's blocks. If sizes differ, set it to the size of the
 * largest block that this rank sends, and return false. */
static bool
measure_blocks(dd_arena *arena)
{
    arena_op *op = &arena->op;
    const dd_coll_traits *traits = op->call->traits;
    if (!traits->has_uneven) {
        const dd_block *blocks = traits->is_from_root ? op->args->outputs : op->args->inputs;
        op->nbytes = traits->has_data ? blocks[0].nbytes : 0;
        return true;
    }
    size_t largest_sent = 0;
    size_t smallest = SIZE_MAX;
    size_t largest = 0;
    for (int k = 0; k < arena->nranks; k++) {
        if (dd_arena_is_sender(op->call, arena->rank) && dd_arena_is_receiver(op->call, k)) {
            size_t sent = dd_arena_sent_nbytes(arena, k);
            largest_sent = sent > largest_sent ? sent : largest_sent;
            largest = sent > largest ? sent : largest;
            smallest = sent < smallest ? sent : smallest;
        }
        if (dd_arena_is_receiver(op->call, arena->rank) && dd_arena_is_sender(op->call, k)) {
            size_t received = dd_arena_received_nbytes(arena, k);
            largest = received > largest ? received : largest;
            smallest = received < smallest ? received : smallest;
        }
    }
    op->nbytes = smallest == largest ? largest : largest_sent;
    return smallest == largest;
}

static bool
fits_header(const dd_arena *arena, bool is_even)
{
    const arena_op *op = &arena->op;
    if (!dd_arena_is_giver(arena, arena->rank) || op->nbytes > ARENA_PAYLOAD_BYTES) {
        return false;
    }
    return !op->call->traits->is_split ||
           (is_even && (size_t)(arena->nranks - 1) * op->nbytes <= ARENA_PAYLOAD_BYTES);
}

/* Return this rank and the ranks whose headers it needs before it can continue. */
static dd_arena_ranks
find_needed_ranks(const dd_arena *arena)
{
    const arena_call *call = arena->op.call;
    bool is_root = arena->rank == call->root;
    dd_arena_ranks own_rank_set = {{0}};
    dd_arena_ranks_add(&own_rank_set, arena->rank);
    if (call->traits->is_from_root && !is_root) {
        dd_arena_ranks_add(&own_rank_set, call->root);
    } else if (!call->traits->is_from_root && (!call->traits->is_to_root || is_root)) {
        return arena->all_ranks;
    }
    return own_rank_set;
}

/* Determine the contents of this rank's header, and choose the operation's rounds. */
static void
prepare(dd_arena *arena)
{
    arena_op *op = &arena->op;
    const dd_coll_args *args = op->args;
    arena_call *call = op->call;
    bool is_partial = args->stage == DD_STAGE_FIRST && call->traits->is_fold;
    op->in_size = dd_dtype_size(args->reduction.dtype);
    op->out_size = call->traits->is_fold ? dd_coll_output_size(args) : op->in_size;
    op->nfolded = dd_coll_nfolded(args->coll, arena->rank, arena->nranks);
    bool is_even = measure_blocks(arena);
    dd_arena_choose_round(arena);
    call->nbytes = op->nbytes;
    call->flags = (is_even ? 0 : ARENA_HAS_TABLES) | (is_partial ? ARENA_IS_PARTIAL : 0);
    if (fits_header(arena, is_even)) {
        call->flags |= ARENA_IS_INLINE;
    } else if (arena->nregions > 0) {
        call->flags |= dd_arena_offer_regions(arena);
    }
    arena->block_infos[arena->rank] = (arena_block_info){.nbytes = call->nbytes, .flags = call->flags};
}

void
dd_arena_start(dd_arena *arena, const dd_coll_args *args, const dd_arena_op_options *options)
{
    arena_op *op = &arena->op;
    if (__builtin_expect(!arena->is_registered, false)) {
        dd_arena_note_registered(arena);
    }
    arena->number++;
    op->args = args;
    op->options = *options;
    op->call = &arena->calls[arena->number % ARENA_NRECORDS];
    op->call->traits = &dd_coll_traits_of[args->coll];
    op->call->root = args->root;
    op->call->sequence = options->sequence;
    memcpy(op->call->signature_words, &options->signature, sizeof(op->call->signature_words));
    op->phase = ARENA_OPENING;
    op->data_step = 0;
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
    op->known = find_needed_ranks(arena);
    op->knows_all = memcmp(&op->known, &arena->all_ranks, sizeof(op->known)) == 0;
    op->is_awaiting = false;
    op->is_rejected = false;
    prepare(arena);
}

/* Return true if a rank has failed in this operation or an earlier one. A rank that failed in a
 * later operation has ended this operation. */
static bool
has_any_failed(const dd_arena *arena)
{
    bool has_any = false;
    if (__builtin_expect(dd_arena_is_any(arena, &arena->shared->poisoned), false)) {
        for (int k = 0; k < arena->nranks; k++) {
            bool is_poisoned = (atomic_load(&arena->shared->poisoned[k / 64]) >> k % 64 & 1) != 0;
            uint32_t number =
                atomic_load_explicit(&arena->slots[k].control->poisoned_from, memory_order_relaxed);
            has_any = has_any || (is_poisoned && (int32_t)(number - arena->number) <= 0);
        }
    }
    return has_any;
}

/* Publish the header, and with it the first round's data if that is staged. */
static dd_arena_state
open_op(dd_arena *arena)
{
    arena_op *op = &arena->op;
    op->is_rejected = has_any_failed(arena);
    if (op->is_rejected) {
        op->is_awaiting = false; /* no publication of another rank unblocks it */
        return DD_ARENA_BLOCKED;
    }
    dd_arena_state state = dd_arena_verify(arena, arena->number - 1);
    if (state != DD_ARENA_MOVED && state != DD_ARENA_BLOCKED) {
        return state;
    }
    bool is_too_far = arena->number - arena->nverified > ARENA_WINDOW;
    if (is_too_far &&
        !dd_arena_have_reached(arena, &arena->all_ranks, dd_arena_mark(arena->nverified + 1, 0))) {
        return DD_ARENA_BLOCKED;
    }
    if (!dd_arena_find_offset(arena)) {
        return DD_ARENA_BLOCKED;
    }
    if (dd_arena_is_stager(arena, arena->rank) && (op->call->flags & ARENA_IN_PLACE) == 0) {
        (void)dd_arena_stage(arena, 0);
    }
    dd_arena_write_header(arena);
    dd_arena_publish(arena, 0);
    op->phase = ARENA_AWAITING_HEADERS;
    return DD_ARENA_MOVED;
}

/* Choose the steps. All ranks that share rounds know the same headers, and so choose alike. */
static void
choose_steps(dd_arena *arena)
{
    arena_op *op = &arena->op;
    uint64_t any = 0;
    uint64_t every = UINT64_MAX;
    for (int k = 0; k < arena->nranks; k++) {
        if (dd_arena_ranks_have(&op->known, k)) {
            any |= arena->block_infos[k].flags;
            every &= arena->block_infos[k].flags;
        }
    }
    op->is_in_place = (every & ARENA_IN_PLACE) != 0;
    op->has_edges = op->is_in_place && (any & ARENA_SHARES_PAGES) != 0;
    op->is_region_read = (any & ARENA_IN_REGION) != 0;
    /* A rank that expected to work in place has staged nothing, so all ranks must stage again. */
    bool is_repeated = !op->is_in_place && (any & ARENA_IN_PLACE) != 0;
    op->data_step = is_repeated;
    op->is_staged = !is_repeated;
    dd_arena_count_rounds(arena);
}

static dd_arena_state
op_await_headers(dd_arena *arena)
{
    arena_op *op = &arena->op;
    const dd_arena_ranks *wanted = op->knows_all ? &arena->all_ranks : &op->known;
    if (!dd_arena_have_reached(arena, wanted, dd_arena_mark_of(arena, 0))) {
        return DD_ARENA_BLOCKED;
    }
    /* In place, the next step writes to all ranks' memory: see dd_arena_find_written. */
    if ((op->call->flags & ARENA_IN_PLACE) != 0 && has_any_failed(arena)) {
        return DD_ARENA_BLOCKED;
    }
    dd_arena_state state = DD_ARENA_MOVED;
    if (wanted == &arena->all_ranks) {
        state = dd_arena_verify(arena, arena->number - 1);
    }
    if (state == DD_ARENA_MOVED) {
        state = dd_arena_compare_headers(arena);
    }
    if (state == DD_ARENA_MOVED) {
        choose_steps(arena);
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
        dd_arena_publish(arena, dd_arena_step_of(op, op->round));
    }
    op->is_staged = true;
    return DD_ARENA_MOVED;
}

static dd_arena_state
op_read_round(dd_arena *arena, uint64_t round)
{
    arena_op *op = &arena->op;
    const dd_arena_ranks *ranks = dd_arena_read_from(arena, round);
    uint64_t mark = dd_arena_mark_of(arena, dd_arena_step_of(op, round));
    if (ranks != NULL && !dd_arena_have_reached(arena, ranks, mark)) {
        return DD_ARENA_BLOCKED;
    }
    op->is_read = dd_arena_read(arena, round);
    return DD_ARENA_MOVED;
}

/* Return true if a rank whose region this rank has read has failed: the failed rank's caller may
 * have written other data there. A failed rank poisons the arena before its caller continues, so
 * without poison the data is valid. The failure cannot concern only a later operation, because the
 * owner of a region ends this operation only after this rank's last step. */
static bool
peer_aborted_during_read(const dd_arena *arena)
{
    dd_arena_ranks lenders = {{0}};
    for (int k = 0; k < arena->nranks; k++) {
        if (dd_arena_ranks_have(&arena->op.known, k) &&
            (arena->block_infos[k].flags & (ARENA_IN_REGION | ARENA_IN_PLACE)) != 0) {
            dd_arena_ranks_add(&lenders, k);
        }
    }
    /* fetch_or(0), not a load: a read-modify-write is ordered with the one in dd_arena_poison. If
     * this one comes first, all reads before it precede all that the owner's caller does next. */
    bool is_poisoned = false;
    for (int i = 0; i < arena->nwords; i++) {
        is_poisoned =
            (atomic_fetch_or(&arena->shared->poisoned[i], 0) & lenders.words[i]) != 0 || is_poisoned;
    }
    return is_poisoned;
}

/* Publish that this rank has finished reading and writing other ranks' regions. */
static dd_arena_state
close_regions(dd_arena *arena)
{
    if (peer_aborted_during_read(arena)) {
        return DD_ARENA_BLOCKED;
    }
    bool has_edges = arena->op.has_edges;
    dd_arena_publish(arena, has_edges ? ARENA_STEP_FOLDED : ARENA_STEP_CLOSED);
    arena->op.phase = has_edges ? ARENA_EDGES : ARENA_CLOSING;
    return DD_ARENA_MOVED;
}

static dd_arena_state
end_op(dd_arena *arena)
{
    arena_op *op = &arena->op;
    if (op->is_shared_fold) {
        arena->nchunks += dd_arena_count_chunks(arena);
        arena->nleases = 0; /* all chunks are folded; older data is no longer read */
    } else {
        dd_arena_shorten_leases(arena, dd_arena_step_of(op, op->nrounds - 1));
    }
    op->phase = ARENA_IDLE;
    arena->nended = arena->number;
    return DD_ARENA_MOVED;
}

/* Run a round: stage and publish it, before or after the previous round is read (see layout.h). */
static dd_arena_state
run_round(dd_arena *arena)
{
    arena_op *op = &arena->op;
    bool is_reading = !op->is_read && (op->is_staged || op->reads_first);
    if (is_reading) {
        return op_read_round(arena, op->round - 1);
    }
    if (!op->is_staged) {
        return stage_round(arena);
    }
    if (op->round == op->nrounds && op->is_region_read) {
        return close_regions(arena);
    }
    if (op->round == op->nrounds) {
        return end_op(arena);
    }
    op->round++;
    op->is_staged = false;
    op->is_read = false;
    return DD_ARENA_MOVED;
}

static dd_arena_state
op_copy_edges(dd_arena *arena)
{
    arena_op *op = &arena->op;
    if (!dd_arena_have_reached(arena, &arena->all_ranks, dd_arena_mark_of(arena, ARENA_STEP_FOLDED))) {
        return DD_ARENA_BLOCKED;
    }
    dd_arena_copy_edges(arena);
    op->has_edges = false;
    return close_regions(arena);
}

/* Wait, as the owner of a region, for all ranks that may have read it; in place, for all ranks. */
static dd_arena_state
close_op(dd_arena *arena)
{
    const arena_op *op = &arena->op;
    const dd_arena_ranks *readers = op->call->traits->is_to_root ? &op->root : &arena->all_ranks;
    bool is_owner = (op->call->flags & (ARENA_IN_REGION | ARENA_IN_PLACE)) != 0;
    if (is_owner && !dd_arena_have_reached(arena, readers, dd_arena_mark_of(arena, ARENA_STEP_CLOSED))) {
        return DD_ARENA_BLOCKED;
    }
    return end_op(arena);
}

static dd_arena_state
op_step(dd_arena *arena)
{
    arena_op *op = &arena->op;
    dd_arena_state state = DD_ARENA_MOVED;
    switch (op->phase) {
    case ARENA_OPENING:
        return open_op(arena);
    case ARENA_AWAITING_HEADERS:
        return op_await_headers(arena);
    case ARENA_MAPPING:
        state = dd_arena_map_regions(arena);
        if (state == DD_ARENA_MOVED) {
            op->phase = op->is_in_place ? ARENA_IN_PLACE_FOLD : ARENA_ROUNDS;
        }
        return state;
    case ARENA_IN_PLACE_FOLD:
        return dd_arena_fold_in_place(arena) ? close_regions(arena) : DD_ARENA_MOVED;
    case ARENA_EDGES:
        return op_copy_edges(arena);
    case ARENA_ROUNDS:
        return run_round(arena);
    case ARENA_CLOSING:
        return close_op(arena);
    case ARENA_IDLE:
        break;
    }
    return state;
}

/* Return the last operation whose headers a blocked rank compares. */
static uint32_t
last_compared(const dd_arena *arena)
{
    bool is_verified = arena->nverified == arena->number;
    return arena->number - (arena->op.knows_all && !is_verified);
}

/* Two ranks may wait for each other in different operations. To detect this, a blocked rank
 * compares all headers that have been published. */
static dd_arena_state
compare_while_blocked(dd_arena *arena)
{
    dd_arena_state state = dd_arena_verify(arena, last_compared(arena));
    return state == DD_ARENA_MOVED ? DD_ARENA_BLOCKED : state;
}

/* Return false until the operation is opened, so that dd_arena_progress checks for failed ranks. */
bool
dd_arena_is_blocked(dd_arena *arena)
{
    arena_op *op = &arena->op;
    dd_arena_stay_awake(arena);
    return op->phase != ARENA_OPENING && op->is_awaiting &&
           dd_arena_find_missing(arena, &op->awaited, op->awaited_mark, &op->awaited) &&
           (arena->nverified == last_compared(arena) || dd_arena_lacks_header(arena));
}

dd_arena_state
dd_arena_progress(dd_arena *arena)
{
    arena_op *op = &arena->op;
    dd_arena_stay_awake(arena);
    op->budget = BUDGET_BYTES;
    bool has_moved = false;
    while (op->phase != ARENA_IDLE && op->budget > 0) {
        dd_arena_state state = op_step(arena);
        if (state == DD_ARENA_BLOCKED && has_moved) {
            return DD_ARENA_MOVED;
        }
        if (state == DD_ARENA_BLOCKED && op->phase != ARENA_OPENING) {
            state = compare_while_blocked(arena);
        }
        if (state == DD_ARENA_MISMATCH) {
            op->phase = ARENA_IDLE; /* no rank reads or writes after a mismatch */
        }
        if (state != DD_ARENA_MOVED) {
            return state;
        }
        has_moved = true;
    }
    return op->phase == ARENA_IDLE ? DD_ARENA_DONE : DD_ARENA_MOVED;
}

/* ---- failure */

void
dd_arena_poison(dd_arena *arena)
{
    arena_control *own_control = arena->slots[arena->rank].control;
    atomic_store_explicit(&own_control->poisoned_from, arena->nended + 1, memory_order_relaxed);
    /* Poison the arena before this rank's caller can write again: see peer_aborted_during_read. */
    atomic_fetch_or(&arena->shared->poisoned[arena->rank / 64], UINT64_C(1) << arena->rank % 64);
}

/* Other ranks write to this rank's memory only in an all_reduce in place: from when they have seen
 * all headers and no poison, until they publish ARENA_STEP_FOLDED. If a header is missing after
 * this rank has stored the poison, a rank that finds the header later also finds the poison. */
bool
dd_arena_find_written(const dd_arena *arena, dd_block *block)
{
    const arena_op *op = &arena->op;
    bool is_running =
        op->phase == ARENA_AWAITING_HEADERS || (op->phase > ARENA_AWAITING_HEADERS && op->is_in_place);
    if (!is_running || (op->call->flags & ARENA_IN_PLACE) == 0) {
        return false;
    }
    dd_arena_ranks missing;
    uint64_t end = dd_arena_mark_of(arena, ARENA_STEP_FOLDED);
    if (dd_arena_find_missing(arena, &arena->all_ranks, dd_arena_mark_of(arena, 0), &missing) ||
        !dd_arena_find_missing(arena, &arena->all_ranks, end, &missing)) {
        return false;
    }
    const arena_peer *own_peer = &arena->peers[arena->rank];
    const dd_block *output = &op->args->outputs[0];
    *block = (dd_block){(uint8_t *)output->data + own_peer->lead,
                        output->nbytes - own_peer->lead - own_peer->tail};
    return true;
}
