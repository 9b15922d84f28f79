#include "collective/arena/state.h"

#include <string.h>

/* ---- senders and receivers */

bool
dd_arena_is_sender(const arena_call *call, int rank)
{
    return call->traits->has_data && (!call->traits->is_from_root || rank == call->root);
}

bool
dd_arena_is_receiver(const arena_call *call, int rank)
{
    return call->traits->has_data && (!call->traits->is_to_root || rank == call->root);
}

bool
dd_arena_is_giver(const dd_arena *arena, int rank)
{
    const arena_call *call = arena->op.call;
    bool is_only_receiver = (call->traits->is_to_root && rank == call->root) ||
                            (call->traits->is_prefix && rank == arena->nranks - 1);
    return arena->nranks > 1 && dd_arena_is_sender(call, rank) && !is_only_receiver;
}

bool
dd_arena_is_stager(const dd_arena *arena, int rank)
{
    return dd_arena_is_giver(arena, rank) &&
           (arena->block_infos[rank].flags & (ARENA_IN_REGION | ARENA_IS_INLINE)) == 0;
}

size_t
dd_arena_sent_nbytes(const dd_arena *arena, int k)
{
    const arena_call *call = arena->op.call;
    if (!dd_arena_is_sender(call, arena->rank) || !dd_arena_is_receiver(call, k)) {
        return 0;
    }
    return arena->op.args->inputs[call->traits->is_split ? k : 0].nbytes;
}

size_t
dd_arena_received_nbytes(const dd_arena *arena, int k)
{
    const arena_op *op = &arena->op;
    if (!dd_arena_is_receiver(op->call, arena->rank) || !dd_arena_is_sender(op->call, k)) {
        return 0;
    }
    bool is_one = op->call->traits->is_fold || op->call->traits->is_from_root;
    return op->args->outputs[is_one ? 0 : k].nbytes / op->out_size * op->in_size;
}

/* ---- shared memory */

static arena_record *
record_of(const dd_arena *arena, int k, uint32_t number)
{
    return &arena->slots[k].control->records[number % ARENA_NRECORDS];
}

static _Atomic uint64_t *
table_of(const dd_arena *arena, int k, uint32_t number, arena_table table)
{
    size_t index = (size_t)(number % ARENA_NRECORDS) * ARENA_NTABLES + (size_t)table;
    return arena->slots[k].tables + index * (size_t)arena->nranks;
}

static uint64_t
get_word(const arena_record *record, int index)
{
    return atomic_load_explicit(&record->words[index], memory_order_relaxed);
}

_Atomic uint64_t *
dd_arena_word(const dd_arena *arena, int k, int index)
{
    return &record_of(arena, k, arena->number)->words[index];
}

/* ---- this rank's header */

static void
put_word(const dd_arena *arena, int index, uint64_t word)
{
    atomic_store_explicit(dd_arena_word(arena, arena->rank, index), word, memory_order_relaxed);
}

static void
put_tables(dd_arena *arena)
{
    _Atomic uint64_t *sent = table_of(arena, arena->rank, arena->number, ARENA_TABLE_SENT);
    _Atomic uint64_t *received = table_of(arena, arena->rank, arena->number, ARENA_TABLE_RECEIVED);
    for (int k = 0; k < arena->nranks; k++) {
        atomic_store_explicit(&sent[k], dd_arena_sent_nbytes(arena, k), memory_order_relaxed);
        atomic_store_explicit(&received[k], dd_arena_received_nbytes(arena, k), memory_order_relaxed);
    }
}

static void
put_payload(dd_arena *arena)
{
    const arena_op *op = &arena->op;
    const dd_block *inputs = op->args->inputs;
    uint64_t words[ARENA_PAYLOAD_WORDS] = {0};
    size_t used = 0;
    if (op->call->traits->is_split) {
        for (int k = 0; k < arena->nranks; k++) {
            if (k != arena->rank && op->nbytes > 0) {
                memcpy((uint8_t *)words + used, inputs[k].data, op->nbytes);
                used += op->nbytes;
            }
        }
    } else if (inputs[0].nbytes > 0) {
        used = inputs[0].nbytes;
        memcpy(words, inputs[0].data, used);
    }
    for (int i = 0; (size_t)i * 8 < used; i++) {
        put_word(arena, ARENA_WORD_PAYLOAD + i, words[i]);
    }
}

void
dd_arena_write_header(dd_arena *arena)
{
    const arena_call *call = arena->op.call;
    const arena_peer *own_peer = &arena->peers[arena->rank];
    for (int i = 0; i < (int)ARENA_SIGNATURE_WORDS; i++) {
        put_word(arena, ARENA_WORD_SIGNATURE + i, call->signature_words[i]);
    }
    put_word(arena, ARENA_WORD_NBYTES, call->nbytes);
    put_word(arena, ARENA_WORD_FLAGS, call->flags);
    if ((call->flags & ARENA_HAS_TABLES) != 0) {
        put_tables(arena);
    }
    if ((call->flags & (ARENA_IN_REGION | ARENA_IN_PLACE)) != 0) {
        const arena_offer *offer = &arena->op.offer;
        put_word(arena, ARENA_WORD_INPUT_ID, offer->input_id);
        put_word(arena, ARENA_WORD_INPUT_OFFSET, offer->input_offset);
        put_word(arena, ARENA_WORD_OUTPUT_ID, offer->output_id);
        put_word(arena, ARENA_WORD_OUTPUT_OFFSET, offer->output_offset);
    }
    if ((call->flags & ARENA_IS_INLINE) != 0) {
        put_payload(arena);
    } else if (dd_arena_is_stager(arena, arena->rank)) {
        put_word(arena, ARENA_WORD_OFFSET, (uint64_t)own_peer->stride << 32 | own_peer->offset);
    }
}

/* ---- other ranks' headers */

/* Return true if a correct rank k can have set these flags for this operation. */
static bool
are_flags_valid(const dd_arena *arena, int k, uint64_t flags)
{
    const arena_op *op = &arena->op;
    uint64_t possible = ARENA_IS_PARTIAL;
    possible |= op->call->traits->has_uneven ? ARENA_HAS_TABLES : 0;
    if (dd_arena_is_giver(arena, k)) {
        bool is_all_reduce = op->args->coll == DD_COLL_ALL_REDUCE;
        possible |= ARENA_IS_INLINE | (is_all_reduce ? ARENA_IN_PLACE : ARENA_IN_REGION);
        possible |= (flags & ARENA_IN_PLACE) != 0 ? ARENA_SHARES_PAGES : 0;
    }
    uint64_t where = flags & (ARENA_IS_INLINE | ARENA_IN_PLACE | ARENA_IN_REGION);
    return (flags & ~possible) == 0 && (where & (where - 1)) == 0 &&
           ((flags ^ op->call->flags) & ARENA_IS_PARTIAL) == 0;
}

/* Read from rank k's header the offset of its data. Return false if the header is malformed. */
static bool
read_location(dd_arena *arena, int k)
{
    const arena_op *op = &arena->op;
    const arena_block_info *info = &arena->block_infos[k];
    arena_peer *peer = &arena->peers[k];
    peer->input = NULL;
    if (info->flags != 0 && !are_flags_valid(arena, k, info->flags)) {
        return false;
    }
    if ((info->flags & ARENA_IS_INLINE) != 0) {
        bool is_all = info->nbytes >= ARENA_PAYLOAD_BYTES || op->call->traits->is_split;
        int nwords = is_all ? ARENA_PAYLOAD_WORDS : (int)(info->nbytes + 7) / 8;
        const arena_record *record = record_of(arena, k, arena->number);
        for (int i = 0; i < nwords; i++) {
            peer->payload[i] = get_word(record, ARENA_WORD_PAYLOAD + i);
        }
    } else if (dd_arena_is_stager(arena, k)) {
        uint64_t word = get_word(record_of(arena, k, arena->number), ARENA_WORD_OFFSET);
        peer->offset = (uint32_t)word;
        peer->stride = (size_t)(word >> 32);
        return peer->offset < arena->geometry.staging_nbytes && peer->stride <= op->first_nbytes;
    }
    return true;
}

/* ---- comparing */

/* A comparison of one operation's headers: of the operation under way, or of an earlier one. */
typedef struct header_check {
    dd_arena *arena;
    uint32_t number;
    const arena_call *call;
    arena_block_info *block_infos;
    const dd_arena_ranks *known; /* ranks whose headers are present, and this rank */
    bool is_under_way;
} header_check;

static dd_arena_state
blame_signature(const header_check *check, int k, const uint64_t *words)
{
    dd_arena_mismatch *mismatch = &check->arena->mismatch;
    *mismatch =
        (dd_arena_mismatch){.rank = k, .other = check->arena->rank, .sequence = check->call->sequence};
    memcpy(&mismatch->signature, words, sizeof(mismatch->signature));
    memcpy(&mismatch->other_signature, check->call->signature_words, sizeof(mismatch->other_signature));
    return DD_ARENA_MISMATCH;
}

/* Record a mismatch of sizes. As sizes are compared only after the signatures have matched, both
 * calls have the same signature. */
static dd_arena_state
blame_size(const header_check *check, int rank, uint64_t theirs, int other, uint64_t ours)
{
    dd_arena_mismatch *mismatch = &check->arena->mismatch;
    *mismatch = (dd_arena_mismatch){.rank = rank,
                                    .other = other,
                                    .sequence = check->call->sequence,
                                    .is_size = true,
                                    .nbytes = theirs,
                                    .other_nbytes = ours};
    memcpy(&mismatch->signature, check->call->signature_words, sizeof(mismatch->signature));
    mismatch->other_signature = mismatch->signature;
    return DD_ARENA_MISMATCH;
}

static dd_arena_state
read_header(const header_check *check, int k)
{
    const arena_record *record = record_of(check->arena, k, check->number);
    uint64_t signature[ARENA_SIGNATURE_WORDS];
    uint64_t difference = 0;
    for (int i = 0; i < (int)ARENA_SIGNATURE_WORDS; i++) {
        signature[i] = get_word(record, ARENA_WORD_SIGNATURE + i);
        difference |= signature[i] ^ check->call->signature_words[i];
    }
    if (difference != 0) {
        return blame_signature(check, k, signature);
    }
    check->block_infos[k].nbytes = get_word(record, ARENA_WORD_NBYTES);
    check->block_infos[k].flags = get_word(record, ARENA_WORD_FLAGS);
    return DD_ARENA_MOVED;
}

static uint64_t
table_or(const header_check *check, int owner, arena_table table, int k)
{
    if ((check->block_infos[owner].flags & ARENA_HAS_TABLES) == 0) {
        return check->block_infos[owner].nbytes;
    }
    _Atomic uint64_t *words = table_of(check->arena, owner, check->number, table);
    return atomic_load_explicit(&words[k], memory_order_relaxed);
}

/* Compare the size that rank `from` sends to rank `to` with the size that `to` expects. In the
 * operation under way, this rank's sizes come from its blocks, because a faulty rank may have
 * changed its tables in shared memory. */
static dd_arena_state
compare_pair(const header_check *check, int from, int to)
{
    const dd_arena *arena = check->arena;
    bool is_from_this = check->is_under_way && from == arena->rank;
    bool is_to_this = check->is_under_way && to == arena->rank;
    uint64_t sent =
        is_from_this ? dd_arena_sent_nbytes(arena, to) : table_or(check, from, ARENA_TABLE_SENT, to);
    if (from != to && sent > check->block_infos[from].largest) {
        check->block_infos[from].largest = sent;
    }
    if (!dd_arena_ranks_have(check->known, to)) {
        return DD_ARENA_MOVED;
    }
    uint64_t expected =
        is_to_this ? dd_arena_received_nbytes(arena, from) : table_or(check, to, ARENA_TABLE_RECEIVED, from);
    if (sent == expected) {
        return DD_ARENA_MOVED;
    }
    return from == arena->rank ? blame_size(check, to, expected, from, sent)
                               : blame_size(check, from, sent, to, expected);
}

/* Compare all pairs of ranks, even without this rank, so that every rank sees a mismatch. */
static dd_arena_state
compare_pairs(const header_check *check)
{
    dd_arena *arena = check->arena;
    dd_arena_state state = DD_ARENA_MOVED;
    bool is_own_seen = false;
    for (int from = 0; from < arena->nranks; from++) {
        if (!dd_arena_ranks_have(check->known, from) || !dd_arena_is_sender(check->call, from)) {
            continue;
        }
        check->block_infos[from].largest = 0;
        for (int to = 0; to < arena->nranks && !is_own_seen; to++) {
            if (!dd_arena_is_receiver(check->call, to)) {
                continue;
            }
            dd_arena_mismatch before = arena->mismatch;
            bool is_own = (from == arena->rank) != (to == arena->rank);
            if (compare_pair(check, from, to) == DD_ARENA_MISMATCH) {
                is_own_seen = is_own;
                if (state == DD_ARENA_MISMATCH && !is_own) {
                    arena->mismatch = before;
                }
                state = DD_ARENA_MISMATCH;
            }
        }
    }
    return state;
}

static dd_arena_state
compare_sizes(const header_check *check)
{
    uint64_t nbytes = check->call->nbytes;
    bool has_tables = false;
    int different = -1;
    for (int k = check->arena->nranks - 1; k >= 0; k--) {
        if (dd_arena_ranks_have(check->known, k)) {
            arena_block_info *info = &check->block_infos[k];
            has_tables = has_tables || (info->flags & ARENA_HAS_TABLES) != 0;
            different = info->nbytes != nbytes ? k : different;
            info->largest = info->nbytes;
        }
    }
    if (!has_tables && different < 0) {
        return DD_ARENA_MOVED;
    }
    if (!check->call->traits->has_uneven && has_tables) {
        return DD_ARENA_BROKEN;
    }
    if (!check->call->traits->has_uneven) {
        return blame_size(check, different, check->block_infos[different].nbytes, check->arena->rank, nbytes);
    }
    return compare_pairs(check);
}

static dd_arena_state
compare_all(const header_check *check)
{
    check->block_infos[check->arena->rank] =
        (arena_block_info){.nbytes = check->call->nbytes, .flags = check->call->flags};
    for (int k = 0; k < check->arena->nranks; k++) {
        if (k != check->arena->rank && dd_arena_ranks_have(check->known, k)) {
            dd_arena_state state = read_header(check, k);
            if (state != DD_ARENA_MOVED) {
                return state;
            }
        }
    }
    return compare_sizes(check);
}

/* Return false if rank k's inline data does not have the size on which the ranks have agreed. */
static bool
is_payload_valid(const dd_arena *arena, int k)
{
    const arena_block_info *info = &arena->block_infos[k];
    bool is_split = arena->op.call->traits->is_split;
    size_t nparts = is_split ? (size_t)(arena->nranks - 1) : 1;
    bool is_split_table = is_split && (info->flags & ARENA_HAS_TABLES) != 0;
    return (info->flags & ARENA_IS_INLINE) == 0 ||
           (!is_split_table && info->largest <= ARENA_PAYLOAD_BYTES / nparts &&
            (is_split || info->nbytes >= info->largest));
}

static void
note_verified(dd_arena *arena)
{
    arena->nverified++;
    arena->unverified = arena->all_ranks;
    uint64_t mark = dd_arena_mark(arena->nverified, 0);
    if (!dd_arena_is_reached(arena->floor, mark)) {
        arena->floor = mark;
    }
}

dd_arena_state
dd_arena_compare_headers(dd_arena *arena)
{
    const arena_op *op = &arena->op;
    header_check check = {.arena = arena,
                          .number = arena->number,
                          .call = op->call,
                          .block_infos = arena->block_infos,
                          .known = &op->known,
                          .is_under_way = true};
    dd_arena_state state = compare_all(&check);
    if (state != DD_ARENA_MOVED) {
        return state;
    }
    for (int k = 0; k < arena->nranks; k++) {
        bool is_other = k != arena->rank && dd_arena_ranks_have(&op->known, k);
        if (is_other && (!read_location(arena, k) || !is_payload_valid(arena, k))) {
            return DD_ARENA_BROKEN;
        }
    }
    if (op->knows_all) {
        note_verified(arena);
    }
    return DD_ARENA_MOVED;
}

bool
dd_arena_lacks_header(dd_arena *arena)
{
    uint64_t mark = dd_arena_mark(arena->nverified + 1, 0);
    return !dd_arena_is_reached(arena->floor, mark) &&
           dd_arena_find_missing(arena, &arena->unverified, mark, &arena->unverified);
}

dd_arena_state
dd_arena_verify(dd_arena *arena, uint32_t number)
{
    while (arena->nverified != number) {
        uint32_t next = arena->nverified + 1;
        if (dd_arena_lacks_header(arena)) {
            return DD_ARENA_BLOCKED;
        }
        header_check check = {.arena = arena,
                              .number = next,
                              .call = &arena->calls[next % ARENA_NRECORDS],
                              .block_infos = arena->block_infos + arena->nranks,
                              .known = &arena->all_ranks};
        dd_arena_state state = compare_all(&check);
        if (state != DD_ARENA_MOVED) {
            return state;
        }
        note_verified(arena);
    }
    return DD_ARENA_MOVED;
}
