#include "collective/arena_internal.h"

#include <string.h>

static const arena_traits all_traits[DD_COLL_COUNT] = {
    [DD_COLL_BARRIER] = {.has_data = false},
    [DD_COLL_BROADCAST] = {.has_data = true, .is_from_root = true},
    [DD_COLL_REDUCE] = {.has_data = true, .is_to_root = true, .is_fold = true},
    [DD_COLL_ALL_REDUCE] = {.has_data = true, .is_fold = true},
    [DD_COLL_GATHER] = {.has_data = true, .is_to_root = true, .has_uneven = true},
    [DD_COLL_SCATTER] = {.has_data = true, .is_from_root = true, .is_split = true, .has_uneven = true},
    [DD_COLL_ALL_GATHER] = {.has_data = true, .has_uneven = true},
    [DD_COLL_REDUCE_SCATTER] = {.has_data = true, .is_split = true, .is_fold = true, .has_uneven = true},
    [DD_COLL_ALL_TO_ALL] = {.has_data = true, .is_split = true, .has_uneven = true},
};

/* ---- who sends what to whom */

bool
dd_arena_is_sender(const dd_arena *arena, int rank)
{
    const arena_traits *traits = arena->op.traits;
    return traits->has_data && (!traits->is_from_root || rank == arena->op.args->root);
}

bool
dd_arena_is_receiver(const dd_arena *arena, int rank)
{
    const arena_traits *traits = arena->op.traits;
    return traits->has_data && (!traits->is_to_root || rank == arena->op.args->root);
}

bool
dd_arena_is_giver(const dd_arena *arena, int rank)
{
    bool is_only_receiver = arena->op.traits->is_to_root && rank == arena->op.args->root;
    return arena->nranks > 1 && dd_arena_is_sender(arena, rank) && !is_only_receiver;
}

size_t
dd_arena_sent_nbytes(const dd_arena *arena, int k)
{
    if (!dd_arena_is_sender(arena, arena->rank) || !dd_arena_is_receiver(arena, k)) {
        return 0;
    }
    return arena->op.args->inputs[arena->op.traits->is_split ? k : 0].nbytes;
}

size_t
dd_arena_received_nbytes(const dd_arena *arena, int k)
{
    const arena_op *op = &arena->op;
    if (!dd_arena_is_receiver(arena, arena->rank) || !dd_arena_is_sender(arena, k)) {
        return 0;
    }
    bool is_one = op->traits->is_fold || op->traits->is_from_root;
    return op->args->outputs[is_one ? 0 : k].nbytes / op->out_size * op->in_size;
}

_Atomic uint64_t *
dd_arena_table(const dd_arena *arena, int k, arena_table table)
{
    size_t index = arena->op.parity * ARENA_NTABLES + (size_t)table;
    return arena->slots[k].tables + index * (size_t)arena->nranks;
}

/* ---- our part */

/* Whether all blocks of this rank have one size, op->nbytes; if not, that is the size of the largest it sends. */
static bool
measure_blocks(dd_arena *arena)
{
    arena_op *op = &arena->op;
    const dd_coll_args *args = op->args;
    if (!op->traits->has_uneven) {
        const dd_block *blocks = op->traits->is_from_root ? args->outputs : args->inputs;
        op->nbytes = op->traits->has_data ? blocks[0].nbytes : 0;
        return true;
    }
    size_t largest_sent = 0;
    size_t smallest = SIZE_MAX;
    size_t largest = 0;
    for (int k = 0; k < arena->nranks; k++) {
        if (dd_arena_is_sender(arena, arena->rank) && dd_arena_is_receiver(arena, k)) {
            size_t sent = dd_arena_sent_nbytes(arena, k);
            largest_sent = sent > largest_sent ? sent : largest_sent;
            largest = sent > largest ? sent : largest;
            smallest = sent < smallest ? sent : smallest;
        }
        if (dd_arena_is_receiver(arena, arena->rank) && dd_arena_is_sender(arena, k)) {
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
    return !op->traits->is_split ||
           (is_even && (size_t)(arena->nranks - 1) * op->nbytes <= ARENA_PAYLOAD_BYTES);
}

void
dd_arena_prepare(dd_arena *arena)
{
    arena_op *op = &arena->op;
    const dd_coll_args *args = op->args;
    op->traits = &all_traits[args->coll];
    bool is_partial = op->options.is_partial && op->traits->is_fold;
    op->in_size = dd_dtype_size(args->reduction.dtype);
    op->out_size = is_partial ? dd_dtype_size(dd_reduce_accumulator(args->reduction.dtype)) : op->in_size;
    op->stage = is_partial ? DD_STAGE_FIRST : DD_STAGE_WHOLE;
    memcpy(op->signature_words, &op->options.signature, sizeof(op->signature_words));
    bool is_even = measure_blocks(arena);
    dd_arena_choose_round(arena);
    uint64_t flags = (is_even ? 0 : ARENA_HAS_TABLES) | (is_partial ? ARENA_IS_PARTIAL : 0);
    if (fits_header(arena, is_even)) {
        flags |= ARENA_IS_INLINE;
    } else if (arena->nregions > 0) {
        flags |= dd_arena_offer_regions(arena);
    }
    arena_peer *own = &arena->peers[arena->rank];
    own->nbytes = op->nbytes;
    own->flags = flags;
}

static void
put_word(const dd_arena *arena, int index, uint64_t word)
{
    arena_record *record = &arena->slots[arena->rank].control->records[arena->op.parity];
    atomic_store_explicit(&record->words[index], word, memory_order_relaxed);
}

static void
put_tables(dd_arena *arena)
{
    _Atomic uint64_t *sent = dd_arena_table(arena, arena->rank, ARENA_TABLE_SENT);
    _Atomic uint64_t *received = dd_arena_table(arena, arena->rank, ARENA_TABLE_RECEIVED);
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
    if (op->traits->is_split) {
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
    const arena_op *op = &arena->op;
    uint64_t flags = arena->peers[arena->rank].flags;
    for (int i = 0; i < (int)ARENA_SIGNATURE_WORDS; i++) {
        put_word(arena, ARENA_WORD_SIGNATURE + i, op->signature_words[i]);
    }
    put_word(arena, ARENA_WORD_NBYTES, op->nbytes);
    put_word(arena, ARENA_WORD_FLAGS, flags);
    if ((flags & ARENA_HAS_TABLES) != 0) {
        put_tables(arena);
    }
    if ((flags & ARENA_IS_INLINE) != 0) {
        put_payload(arena);
    }
}

/* ---- everybody's */

static uint64_t
get_word(const arena_record *record, int index)
{
    return atomic_load_explicit(&record->words[index], memory_order_relaxed);
}

/* Flags that no rank that keeps to the rules has set for this operation. */
static bool
are_flags_sane(const dd_arena *arena, int k, uint64_t flags)
{
    const arena_op *op = &arena->op;
    uint64_t possible = ARENA_IS_PARTIAL;
    possible |= op->traits->has_uneven ? ARENA_HAS_TABLES : 0;
    if (dd_arena_is_giver(arena, k)) {
        bool is_all_reduce = op->args->coll == DD_COLL_ALL_REDUCE;
        possible |= ARENA_IS_INLINE | (is_all_reduce ? ARENA_IN_PLACE : ARENA_IN_REGION);
        possible |= (flags & ARENA_IN_PLACE) != 0 ? ARENA_SHARES_PAGES : 0;
    }
    uint64_t where = flags & (ARENA_IS_INLINE | ARENA_IN_PLACE | ARENA_IN_REGION);
    return (flags & ~possible) == 0 && (where & (where - 1)) == 0 &&
           ((flags ^ arena->peers[arena->rank].flags) & ARENA_IS_PARTIAL) == 0;
}

static dd_arena_state
blame_signature(dd_arena *arena, int k, const uint64_t *words)
{
    arena->culprit = (dd_arena_culprit){.rank = k, .other = arena->rank};
    memcpy(&arena->culprit.signature, words, sizeof(arena->culprit.signature));
    return DD_ARENA_MISMATCH;
}

/* Signatures are the same when sizes are compared. */
static dd_arena_state
blame_size(dd_arena *arena, int rank, uint64_t theirs, int other, uint64_t ours)
{
    arena->culprit = (dd_arena_culprit){.rank = rank,
                                        .other = other,
                                        .signature = arena->op.options.signature,
                                        .is_size = true,
                                        .theirs = theirs,
                                        .ours = ours};
    return DD_ARENA_MISMATCH;
}

static dd_arena_state
read_header(dd_arena *arena, int k)
{
    const arena_op *op = &arena->op;
    const arena_record *record = &arena->slots[k].control->records[op->parity];
    arena_peer *peer = &arena->peers[k];
    uint64_t signature[ARENA_SIGNATURE_WORDS];
    uint64_t difference = 0;
    for (int i = 0; i < (int)ARENA_SIGNATURE_WORDS; i++) {
        signature[i] = get_word(record, ARENA_WORD_SIGNATURE + i);
        difference |= signature[i] ^ op->signature_words[i];
    }
    if (difference != 0) {
        return blame_signature(arena, k, signature);
    }
    peer->nbytes = get_word(record, ARENA_WORD_NBYTES);
    peer->flags = get_word(record, ARENA_WORD_FLAGS);
    peer->input = NULL;
    if (peer->flags == 0) {
        return DD_ARENA_MOVED;
    }
    if (!are_flags_sane(arena, k, peer->flags)) {
        return DD_ARENA_BROKEN;
    }
    if ((peer->flags & ARENA_IS_INLINE) != 0) {
        int nwords = peer->nbytes >= ARENA_PAYLOAD_BYTES || op->traits->is_split
                         ? ARENA_PAYLOAD_WORDS
                         : (int)(peer->nbytes + 7) / 8;
        for (int i = 0; i < nwords; i++) {
            peer->payload[i] = get_word(record, ARENA_WORD_PAYLOAD + i);
        }
    }
    return DD_ARENA_MOVED;
}

static uint64_t
table_or(const dd_arena *arena, int owner, arena_table table, int k)
{
    if ((arena->peers[owner].flags & ARENA_HAS_TABLES) == 0) {
        return arena->peers[owner].nbytes;
    }
    return atomic_load_explicit(&dd_arena_table(arena, owner, table)[k], memory_order_relaxed);
}

/* What one rank sends to another and what that expects. Our own numbers are taken from our blocks and not from shared memory,
 * where a peer may have changed them. */
static dd_arena_state
compare_pair(dd_arena *arena, int from, int to)
{
    uint64_t sent =
        from == arena->rank ? dd_arena_sent_nbytes(arena, to) : table_or(arena, from, ARENA_TABLE_SENT, to);
    uint64_t expected = to == arena->rank ? dd_arena_received_nbytes(arena, from)
                                          : table_or(arena, to, ARENA_TABLE_RECEIVED, from);
    if (from != to && sent > arena->peers[from].largest) {
        arena->peers[from].largest = sent;
    }
    if (sent == expected) {
        return DD_ARENA_MOVED;
    }
    return from == arena->rank ? blame_size(arena, to, expected, from, sent)
                               : blame_size(arena, from, sent, to, expected);
}

/* Every rank compares all pairs, also those that are none of its business: so that all see that one does not fit. */
static dd_arena_state
compare_pairs(dd_arena *arena)
{
    dd_arena_state state = DD_ARENA_MOVED;
    bool is_own_seen = false;
    for (int from = 0; from < arena->nranks; from++) {
        arena->peers[from].largest = 0;
        for (int to = 0; to < arena->nranks; to++) {
            if (is_own_seen || !dd_arena_is_sender(arena, from) || !dd_arena_is_receiver(arena, to)) {
                continue;
            }
            dd_arena_culprit before = arena->culprit;
            bool is_own = (from == arena->rank) != (to == arena->rank);
            if (compare_pair(arena, from, to) == DD_ARENA_MISMATCH) {
                is_own_seen = is_own;
                if (state == DD_ARENA_MISMATCH && !is_own) {
                    arena->culprit = before;
                }
                state = DD_ARENA_MISMATCH;
            }
        }
    }
    return state;
}

static dd_arena_state
compare_sizes(dd_arena *arena)
{
    const arena_op *op = &arena->op;
    bool has_tables = false;
    int different = -1;
    for (int k = arena->nranks - 1; k >= 0; k--) {
        arena_peer *peer = &arena->peers[k];
        has_tables = has_tables || (peer->flags & ARENA_HAS_TABLES) != 0;
        different = peer->nbytes != op->nbytes ? k : different;
        peer->largest = peer->nbytes;
    }
    if (!has_tables && different < 0) {
        return DD_ARENA_MOVED;
    }
    if (!op->traits->has_uneven) {
        return blame_size(arena, different, arena->peers[different].nbytes, arena->rank, op->nbytes);
    }
    return compare_pairs(arena);
}

/* Data in a header is as long as we have now agreed, or the header lies. */
static bool
are_payloads_sane(const dd_arena *arena)
{
    const arena_op *op = &arena->op;
    for (int k = 0; k < arena->nranks; k++) {
        const arena_peer *peer = &arena->peers[k];
        size_t nparts = op->traits->is_split ? (size_t)(arena->nranks - 1) : 1;
        bool is_inline = k != arena->rank && (peer->flags & ARENA_IS_INLINE) != 0;
        bool is_split_table = op->traits->is_split && (peer->flags & ARENA_HAS_TABLES) != 0;
        if (is_inline && (is_split_table || peer->largest > ARENA_PAYLOAD_BYTES / nparts ||
                          (!op->traits->is_split && peer->nbytes < peer->largest))) {
            return false;
        }
    }
    return true;
}

dd_arena_state
dd_arena_compare_headers(dd_arena *arena)
{
    for (int k = 0; k < arena->nranks; k++) {
        if (k != arena->rank) {
            dd_arena_state state = read_header(arena, k);
            if (state != DD_ARENA_MOVED) {
                return state;
            }
        }
    }
    dd_arena_state state = compare_sizes(arena);
    if (state == DD_ARENA_MOVED && !are_payloads_sane(arena)) {
        return DD_ARENA_BROKEN;
    }
    return state;
}
