/* Shared folds: in an all_reduce of more than a few bytes, each share of the array is folded
 * (reduced) by one rank for all ranks. The rules are at the top of layout.h. */
#include "collective/arena/state.h"
#include "kernels/copy.h"

/* From these sizes in bytes on, it is worth a second synchronisation to fold each share on one
 * rank. Measured times of folding the whole array on each rank / in shares: two ranks whose cores
 * share a cache, equal at 64 KiB (2.25 us); without a shared cache 5.2 / 4.7 us at 64 KiB, 2.7 /
 * 3.1 at 32 KiB; four ranks on two cores 6.7 / 8.6 us at 16 KiB, 19 / 14.5 at 64 KiB. */
#define FOLD_MIN_BYTES_PAIR ((size_t)65536)
#define FOLD_MIN_BYTES_MANY ((size_t)32768)
/* If ranks take turns on the cores, shares are faster from this size on: the last rank to arrive
 * folds all shares, and no rank waits for it a second time. */
#define FOLD_MIN_BYTES_CROWDED ((size_t)2048)

size_t
dd_arena_fold_min(int nranks, bool is_crowded)
{
    return is_crowded ? FOLD_MIN_BYTES_CROWDED : nranks == 2 ? FOLD_MIN_BYTES_PAIR : FOLD_MIN_BYTES_MANY;
}

#define PIECE_BYTES ((size_t)32768) /* pieces of results, copied on from the nearest caches */

/* ---- chunks and shares */

typedef struct share {
    size_t start; /* byte offset in the array */
    size_t nbytes;
} share;

/* Return the size of a part if `nbytes` is divided into nparts parts of whole cache lines. */
static size_t
whole_lines(size_t nbytes, size_t nparts)
{
    size_t each = nbytes / nparts + (nbytes % nparts != 0);
    return (each / ARENA_LINE + (each % ARENA_LINE != 0)) * ARENA_LINE;
}

/* Return part k of `entire` if each part has `each` bytes; the last part ends with `entire`. */
static share
fold_part_of(share entire, size_t each, int k)
{
    size_t before = dd_arena_smaller(entire.nbytes, each * (size_t)k);
    return (share){.start = entire.start + before, .nbytes = dd_arena_smaller(entire.nbytes - before, each)};
}

/* Return the size of a share if each rank may stage up to `nbytes` of a chunk. */
static size_t
share_capacity(const dd_arena *arena, size_t nbytes)
{
    const arena_op *op = &arena->op;
    size_t nranks = (size_t)arena->nranks;
    size_t staged = nbytes / (op->is_claimed ? nranks : nranks - 1);
    size_t folded = ARENA_RESULTS_BYTES / nranks / op->out_size * op->in_size;
    size_t capacity = dd_arena_smaller(staged, folded);
    size_t multiple = capacity >= ARENA_LINE ? ARENA_LINE : DD_DTYPE_MAX_SIZE;
    return capacity / multiple * multiple;
}

bool
dd_arena_choose_chunks(dd_arena *arena)
{
    arena_op *op = &arena->op;
    op->is_shared_fold = op->args->coll == DD_COLL_ALL_REDUCE && arena->nranks > 1 &&
                         op->nbytes >= dd_arena_fold_min(arena->nranks, arena->is_crowded);
    op->is_claimed = op->is_shared_fold && arena->is_crowded;
    if (op->is_shared_fold) {
        size_t buffer_nbytes = arena->geometry.buffer_nbytes;
        op->first_nbytes = share_capacity(arena, buffer_nbytes);
        op->round_nbytes =
            share_capacity(arena, dd_arena_smaller(ARENA_NBUFFERS * buffer_nbytes, ARENA_CHUNK_BYTES));
    }
    return op->is_shared_fold;
}

static share
chunk_of(const dd_arena *arena, uint64_t chunk)
{
    const arena_op *op = &arena->op;
    size_t nranks = (size_t)arena->nranks;
    size_t first = dd_arena_smaller(op->nbytes, op->first_nbytes * nranks);
    if (chunk == 0) {
        return (share){.start = 0, .nbytes = first};
    }
    size_t start = first + (size_t)(chunk - 1) * op->round_nbytes * nranks;
    return (share){.start = start, .nbytes = dd_arena_smaller(op->nbytes - start, op->round_nbytes * nranks)};
}

size_t
dd_arena_first_chunk_nbytes(const dd_arena *arena)
{
    const arena_op *op = &arena->op;
    return dd_arena_smaller(op->nbytes, op->first_nbytes * (size_t)(arena->nranks - !op->is_claimed));
}

uint64_t
dd_arena_count_chunks(const dd_arena *arena)
{
    const arena_op *op = &arena->op;
    size_t left = op->nbytes - chunk_of(arena, 0).nbytes;
    size_t each = op->round_nbytes * (size_t)arena->nranks;
    return 1 + left / each + (left % each != 0);
}

static share
fold_share_of(const dd_arena *arena, uint64_t chunk, int k)
{
    const arena_op *op = &arena->op;
    share entire = chunk_of(arena, chunk);
    size_t each = whole_lines(entire.nbytes, (size_t)arena->nranks);
    if (op->is_claimed && each < ARENA_CLAIMED_SHARE_BYTES) {
        each = ARENA_CLAIMED_SHARE_BYTES;
    } else {
        each = dd_arena_smaller(each, chunk == 0 ? op->first_nbytes : op->round_nbytes);
    }
    return fold_part_of(entire, each, k);
}

/* ---- staging */

/* Chunk 0 is staged at the rank's offset in its slot, later chunks at the start of the slot. */
static uint8_t *
staging_of(const dd_arena *arena, int k, uint64_t chunk)
{
    return arena->slots[k].buffers + (chunk == 0 ? arena->peers[k].offset : 0);
}

/* Return the place of share k. A rank does not stage its own share, so later ones move up. */
static size_t
staged_at(const dd_arena *arena, int from, uint64_t chunk, int k)
{
    size_t offset = fold_share_of(arena, chunk, k).start - chunk_of(arena, chunk).start;
    bool is_behind = !arena->op.is_claimed && k > from;
    return offset - (is_behind ? fold_share_of(arena, chunk, from).nbytes : 0);
}

void
dd_arena_stage_chunk(dd_arena *arena, uint64_t chunk)
{
    arena_op *op = &arena->op;
    const uint8_t *input = op->args->inputs[0].data;
    uint8_t *staging = staging_of(arena, arena->rank, chunk);
    share entire = chunk_of(arena, chunk);
    share own_share =
        op->is_claimed ? (share){.start = entire.start} : fold_share_of(arena, chunk, arena->rank);
    size_t before = own_share.start - entire.start;
    size_t behind = entire.nbytes - before - own_share.nbytes;
    dd_arena_copy_in(arena, staging, input + entire.start, before);
    dd_arena_copy_in(arena, staging + before, input + own_share.start + own_share.nbytes, behind);
}

/* ---- folding */

/* Return the rank that folds share k; claim the share for this rank if no rank has claimed it. */
static int
claim_share(dd_arena *arena, int k, uint64_t chunk)
{
    _Atomic uint64_t *claim = &arena->slots[k].control->claim;
    uint64_t number = arena->nchunks + chunk + 1;
    /* A claim only excludes other ranks; the data is ordered by the marks. Acquire keeps a later
     * claim from being visible before this load (load buffering,
     * docs/contributing/memory-orders.md). */
    uint64_t seen = atomic_load_explicit(claim, memory_order_acquire);
    while (seen >> ARENA_CLAIM_BITS < number) {
        if (atomic_compare_exchange_weak_explicit(claim, &seen,
                                                  number << ARENA_CLAIM_BITS | (uint64_t)arena->rank,
                                                  memory_order_acquire, memory_order_acquire)) {
            return arena->rank;
        }
    }
    int claimer = (int)(seen & ((1 << ARENA_CLAIM_BITS) - 1));
    /* A claim that names this rank or no rank is corrupt. Then return k: the result is wrong, but
     * no memory is overrun. */
    return claimer < arena->nranks && claimer != arena->rank ? claimer : k;
}

bool
dd_arena_fold(dd_arena *arena, size_t start, size_t nbytes, arena_write_result *write_result)
{
    arena_op *op = &arena->op;
    while (op->offset < nbytes) {
        if (op->budget == 0) {
            return false;
        }
        size_t from = start + op->offset;
        size_t piece = dd_arena_smaller(nbytes - op->offset, PIECE_BYTES);
        uint8_t *result = dd_arena_result_at(arena, from);
        dd_reduce(&op->args->reduction, op->args->stage, result, arena->sources, (size_t)op->nfolded,
                  piece / op->in_size);
        if (write_result != NULL) {
            write_result(arena, from / op->in_size * op->out_size, result,
                         piece / op->in_size * op->out_size);
        }
        for (int k = 0; k < op->nfolded; k++) {
            arena->sources[k] = (const uint8_t *)arena->sources[k] + piece;
        }
        op->offset += piece;
        dd_arena_spend(op, piece * (size_t)op->nfolded);
    }
    return true;
}

/* The results of chunks rotate through their memory, as staged data does in slots. */
static uint8_t *
results_of(const dd_arena *arena, uint64_t chunk)
{
    const arena_op *op = &arena->op;
    size_t nbytes = chunk_of(arena, chunk).nbytes / op->in_size * op->out_size;
    if (arena->is_crowded || nbytes < ARENA_ROTATED_MIN_BYTES) {
        return arena->results;
    }
    size_t each = dd_arena_round_up(nbytes, ARENA_PAGE);
    return arena->results + (arena->nchunks + chunk) % (ARENA_RESULTS_SPACE_BYTES / each) * each;
}

/* Copy a piece of the result to the shared results of the chunk that is being folded. */
static void
write_shared_result(dd_arena *arena, size_t at, const uint8_t *result, size_t nbytes)
{
    const arena_op *op = &arena->op;
    size_t chunk_at = chunk_of(arena, op->round / 2).start / op->in_size * op->out_size;
    dd_arena_copy_in(arena, results_of(arena, op->round / 2) + (at - chunk_at), result, nbytes);
}

bool
dd_arena_fold_shares(dd_arena *arena, uint64_t chunk)
{
    arena_op *op = &arena->op;
    if (op->source == 0 && op->offset == 0) {
        op->folders = (dd_arena_ranks){{0}};
        op->folded = (dd_arena_ranks){{0}};
    }
    for (; op->source < arena->nranks; op->source++) {
        int k = (arena->rank + op->source) % arena->nranks;
        share own_share = fold_share_of(arena, chunk, k);
        if (own_share.nbytes == 0) {
            continue;
        }
        if (op->offset == 0) {
            if (op->budget == 0) {
                return false;
            }
            int folder = op->is_claimed ? claim_share(arena, k, chunk) : k;
            dd_arena_ranks_add(&op->folders, folder);
            if (folder != arena->rank) {
                continue;
            }
            dd_arena_ranks_add(&op->folded, k);
        }
        for (int from = 0; from < arena->nranks; from++) {
            const uint8_t *staged = from == arena->rank
                                        ? (const uint8_t *)op->args->inputs[0].data + own_share.start
                                        : staging_of(arena, from, chunk) + staged_at(arena, from, chunk, k);
            arena->sources[from] = staged + op->offset;
        }
        if (!dd_arena_fold(arena, own_share.start, own_share.nbytes, write_shared_result)) {
            return false;
        }
        op->offset = 0;
    }
    op->source = 0;
    return true;
}

void
dd_arena_read_shares(dd_arena *arena, uint64_t chunk)
{
    arena_op *op = &arena->op;
    size_t chunk_start = chunk_of(arena, chunk).start;
    const uint8_t *results = results_of(arena, chunk);
    for (int i = 1; i <= arena->nranks; i++) {
        int k = (arena->rank + i) % arena->nranks;
        share part = fold_share_of(arena, chunk, k);
        if (part.nbytes > 0 && !dd_arena_ranks_have(&op->folded, k)) {
            size_t nbytes = part.nbytes / op->in_size * op->out_size;
            const uint8_t *result = results + (part.start - chunk_start) / op->in_size * op->out_size;
            dd_arena_copy_out(arena, dd_arena_result_at(arena, part.start), result, nbytes);
        }
    }
}

/* ---- in place: the whole array is one chunk */

static share
in_place_share_of(const arena_op *op, int nranks, int k)
{
    return fold_part_of((share){.nbytes = op->nbytes}, whole_lines(op->nbytes, (size_t)nranks), k);
}

/* Copy a piece of the result to all other ranks' outputs, except edges, which their ranks copy. */
static void
write_each_output(dd_arena *arena, size_t at, const uint8_t *result, size_t nbytes)
{
    size_t total = arena->op.args->outputs[0].nbytes;
    for (int i = 1; i < arena->nranks; i++) {
        const arena_peer *peer = &arena->peers[(arena->rank + i) % arena->nranks];
        size_t last = dd_arena_smaller(at + nbytes, total - dd_arena_smaller(total, peer->tail));
        size_t first = at > peer->lead ? at : peer->lead;
        if (first < last) {
            dd_copy(peer->output + first, result + (first - at), last - first);
        }
    }
}

static void
take_sources(const dd_arena *arena, size_t begin, size_t end)
{
    const arena_op *op = &arena->op;
    for (int k = 0; k < arena->nranks; k++) {
        share part = in_place_share_of(op, arena->nranks, k);
        size_t first = part.start / op->in_size * op->out_size;
        size_t last = dd_arena_smaller(end, first + part.nbytes / op->in_size * op->out_size);
        first = first > begin ? first : begin;
        if (k != arena->rank && first < last) {
            dd_copy((uint8_t *)op->args->outputs[0].data + first, arena->peers[k].output + first,
                    last - first);
        }
    }
}

void
dd_arena_copy_edges(dd_arena *arena)
{
    const arena_peer *own_peer = &arena->peers[arena->rank];
    size_t total = arena->op.args->outputs[0].nbytes;
    take_sources(arena, 0, own_peer->lead);
    take_sources(arena, total - own_peer->tail, total);
}

bool
dd_arena_fold_in_place(dd_arena *arena)
{
    const arena_op *op = &arena->op;
    share own_share = in_place_share_of(op, arena->nranks, arena->rank);
    for (int k = 0; k < arena->nranks; k++) {
        const uint8_t *input = k == arena->rank ? op->args->inputs[0].data : arena->peers[k].input;
        arena->sources[k] = input + own_share.start + op->offset;
    }
    return dd_arena_fold(arena, own_share.start, own_share.nbytes, write_each_output);
}
