#include "collective/arena_internal.h"
#include "kernels/copy.h"

/* Folds go in pieces: what was folded is still in the nearest caches when it is passed on. */
#define PIECE_BYTES ((size_t)32768)
/* An all_reduce of so many bytes is worth a second synchronisation for that every rank folds its share only. Measured, both
 * ways in turn: two ranks on cores of one cache break even at 64 KiB (2.25 us), across caches before that (5.2 and 4.7 us
 * at 64 KiB, 2.7 and 3.1 at 32); four ranks on two cores between 16 KiB (6.7 and 8.6 us) and 64 KiB (19 and 14.5). */
#define SHARED_FOLD_MIN_BYTES_PAIR ((size_t)65536)
#define SHARED_FOLD_MIN_BYTES_MANY ((size_t)32768)

static size_t
smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t
round_down(size_t value, size_t multiple)
{
    return value / multiple * multiple;
}

/* Of a buffer that is divided into one part for each other rank. */
static size_t
part_nbytes(const dd_arena *arena, size_t buffer_nbytes)
{
    size_t nparts = arena->nranks > 1 ? (size_t)(arena->nranks - 1) : 1;
    size_t part = buffer_nbytes / nparts;
    return round_down(part, part >= 4 * ARENA_LINE ? ARENA_LINE : DD_DTYPE_MAX_SIZE);
}

/* Where in a slot of `from` the part for rank `to` is. */
static size_t
part_index(int from, int to)
{
    return (size_t)(to > from ? to - 1 : to);
}

size_t
dd_arena_shared_fold_min(int nranks)
{
    return nranks == 2 ? SHARED_FOLD_MIN_BYTES_PAIR : SHARED_FOLD_MIN_BYTES_MANY;
}

void
dd_arena_choose_round(dd_arena *arena)
{
    arena_op *op = &arena->op;
    op->is_shared_fold = op->args->coll == DD_COLL_ALL_REDUCE && arena->nranks > 1 &&
                         op->nbytes >= arena->geometry.shared_fold_min_nbytes;
    op->width = op->is_shared_fold ? 2 : 1;
    size_t buffer_nbytes = op->width * arena->geometry.buffer_nbytes;
    if (op->is_shared_fold) {
        /* The result of a share goes through the same buffers. */
        size_t result = round_down(buffer_nbytes / op->out_size * op->in_size, DD_DTYPE_MAX_SIZE);
        op->round_nbytes = smaller(part_nbytes(arena, buffer_nbytes), result);
    } else {
        op->round_nbytes = op->traits->is_split ? part_nbytes(arena, buffer_nbytes) : buffer_nbytes;
    }
}

static uint64_t
divide_up(uint64_t value, uint64_t divisor)
{
    return value / divisor + (value % divisor != 0);
}

void
dd_arena_count_rounds(dd_arena *arena)
{
    arena_op *op = &arena->op;
    op->nrounds = 1;
    if (op->is_shared_fold) {
        op->nrounds = 2 * divide_up(op->nbytes, op->round_nbytes * (size_t)arena->nranks);
        return;
    }
    for (int k = 0; k < arena->nranks; k++) {
        const arena_peer *peer = &arena->peers[k];
        if (dd_arena_is_giver(arena, k) && (peer->flags & (ARENA_IN_REGION | ARENA_IS_INLINE)) == 0) {
            uint64_t nrounds = divide_up(peer->largest, op->round_nbytes);
            op->nrounds = nrounds > op->nrounds ? nrounds : op->nrounds;
        }
    }
}

static void
spend(arena_op *op, size_t nbytes)
{
    op->budget -= smaller(op->budget, nbytes);
}

static uint8_t *
buffer_of(const dd_arena *arena, int k, uint64_t round)
{
    size_t index = (size_t)((arena->op.data_epoch + arena->op.width * round) % ARENA_NBUFFERS);
    return arena->slots[k].buffers + index * arena->geometry.buffer_nbytes;
}

/* ---- shared fold: chunks are divided into shares, rank k folds share k */

typedef struct share {
    size_t start; /* in the array */
    size_t nbytes;
} share;

static share
share_of(const dd_arena *arena, uint64_t chunk, int k)
{
    const arena_op *op = &arena->op;
    size_t nranks = (size_t)arena->nranks;
    size_t start = (size_t)chunk * op->round_nbytes * nranks;
    size_t length = smaller(op->nbytes - start, op->round_nbytes * nranks);
    size_t each = (size_t)divide_up(divide_up(length, nranks), ARENA_LINE) * ARENA_LINE;
    each = smaller(each, op->round_nbytes);
    size_t before = smaller(length, each * (size_t)k);
    return (share){.start = start + before, .nbytes = smaller(length - before, each)};
}

static uint8_t *
result_at(const dd_arena *arena, size_t offset)
{
    const arena_op *op = &arena->op;
    return (uint8_t *)op->args->outputs[0].data + offset / op->in_size * op->out_size;
}

static void
stage_shares(dd_arena *arena, uint64_t round)
{
    arena_op *op = &arena->op;
    const uint8_t *input = op->args->inputs[0].data;
    uint8_t *buffer = buffer_of(arena, arena->rank, round);
    for (int k = 0; k < arena->nranks; k++) {
        if (k != arena->rank) {
            share part = share_of(arena, round / 2, k);
            dd_copy(buffer + part_index(arena->rank, k) * op->round_nbytes, input + part.start, part.nbytes);
            spend(op, part.nbytes);
        }
    }
}

static void
fold_share(dd_arena *arena, uint64_t round)
{
    arena_op *op = &arena->op;
    share own = share_of(arena, round / 2, arena->rank);
    uint8_t *buffer = buffer_of(arena, arena->rank, round);
    for (size_t done = 0, nbytes; done < own.nbytes; done += nbytes) {
        nbytes = smaller(own.nbytes - done, PIECE_BYTES);
        for (int k = 0; k < arena->nranks; k++) {
            const uint8_t *theirs =
                buffer_of(arena, k, round - 1) + part_index(k, arena->rank) * op->round_nbytes + done;
            const uint8_t *ours = (const uint8_t *)op->args->inputs[0].data + own.start + done;
            arena->sources[k] = k == arena->rank ? ours : theirs;
        }
        uint8_t *result = result_at(arena, own.start + done);
        size_t count = nbytes / op->in_size;
        dd_reduce(&op->args->reduction, op->stage, result, arena->sources, (size_t)arena->nranks, count);
        dd_copy(buffer + done / op->in_size * op->out_size, result, count * op->out_size);
        spend(op, nbytes * (size_t)arena->nranks);
    }
}

static bool
read_shares(dd_arena *arena, uint64_t round)
{
    arena_op *op = &arena->op;
    for (int i = 1; round % 2 == 1 && i < arena->nranks; i++) {
        int k = (arena->rank + i) % arena->nranks;
        share part = share_of(arena, round / 2, k);
        size_t nbytes = part.nbytes / op->in_size * op->out_size;
        if (nbytes > 0) {
            dd_copy(result_at(arena, part.start), buffer_of(arena, k, round), nbytes);
        }
        spend(op, nbytes);
    }
    return true;
}

/* ---- staging */

static bool
is_stager(const dd_arena *arena)
{
    uint64_t flags = arena->peers[arena->rank].flags;
    return dd_arena_is_giver(arena, arena->rank) && (flags & (ARENA_IN_REGION | ARENA_IS_INLINE)) == 0;
}

bool
dd_arena_may_stage(dd_arena *arena, uint64_t round)
{
    const arena_op *op = &arena->op;
    if (!is_stager(arena)) {
        return true;
    }
    uint64_t epoch = dd_arena_epoch_of(op, round);
    return epoch < 2 || dd_arena_has_come(arena, arena->all_ranks, epoch - 2);
}

static void
stage_blocks(dd_arena *arena, uint64_t round)
{
    arena_op *op = &arena->op;
    uint8_t *buffer = buffer_of(arena, arena->rank, round);
    size_t start = (size_t)round * op->round_nbytes;
    for (int k = 0; k < arena->nranks; k++) {
        const dd_block *input = &op->args->inputs[op->traits->is_split ? k : 0];
        size_t index = op->traits->is_split ? part_index(arena->rank, k) : 0;
        bool is_for_nobody = op->traits->is_split ? k == arena->rank : k > 0;
        if (!is_for_nobody && start < input->nbytes) {
            size_t nbytes = smaller(input->nbytes - start, op->round_nbytes);
            dd_copy(buffer + index * op->round_nbytes, (const uint8_t *)input->data + start, nbytes);
            spend(op, nbytes);
        }
    }
}

void
dd_arena_stage(dd_arena *arena, uint64_t round)
{
    const arena_op *op = &arena->op;
    if (!is_stager(arena)) {
        return;
    }
    if (!op->is_shared_fold) {
        stage_blocks(arena, round);
    } else if (round % 2 == 0) {
        stage_shares(arena, round);
    } else {
        fold_share(arena, round);
    }
}

/* ---- reading */

uint64_t
dd_arena_read_from(const dd_arena *arena, uint64_t round)
{
    const arena_op *op = &arena->op;
    if (!dd_arena_is_receiver(arena, arena->rank) || (op->is_shared_fold && round % 2 == 0)) {
        return 0;
    }
    return op->traits->is_from_root ? UINT64_C(1) << op->args->root : arena->all_ranks;
}

/* Data that lies somewhere else than in a buffer, from its beginning; NULL for a buffer. */
static const uint8_t *
unstaged(const dd_arena *arena, int k)
{
    const arena_op *op = &arena->op;
    if (k == arena->rank) {
        return op->args->inputs[op->traits->is_split ? k : 0].data;
    }
    const arena_peer *peer = &arena->peers[k];
    if ((peer->flags & ARENA_IS_INLINE) != 0) {
        size_t index = op->traits->is_split ? part_index(k, arena->rank) : 0;
        return (const uint8_t *)peer->payload + index * op->nbytes;
    }
    return (peer->flags & ARENA_IN_REGION) != 0 ? peer->input : NULL;
}

static const uint8_t *
data_of(const dd_arena *arena, int k, uint64_t round, size_t offset)
{
    const arena_op *op = &arena->op;
    const uint8_t *data = unstaged(arena, k);
    if (data != NULL) {
        return data + offset;
    }
    size_t index = op->traits->is_split ? part_index(k, arena->rank) : 0;
    size_t start = (size_t)round * op->round_nbytes;
    return buffer_of(arena, k, round) + index * op->round_nbytes + (offset - start);
}

/* Up to which offset a round goes. What is not staged has no rounds: the last takes all that is left. */
static size_t
end_of(const dd_arena *arena, uint64_t round, size_t nbytes)
{
    bool is_last = round + 1 == arena->op.nrounds;
    return is_last ? nbytes : smaller(nbytes, (size_t)(round + 1) * arena->op.round_nbytes);
}

static bool
read_fold(dd_arena *arena, uint64_t round)
{
    arena_op *op = &arena->op;
    size_t end = end_of(arena, round, op->args->outputs[0].nbytes / op->out_size * op->in_size);
    while (op->offset < end) {
        if (op->budget == 0) {
            return false;
        }
        size_t nbytes = smaller(end - op->offset, PIECE_BYTES);
        for (int k = 0; k < arena->nranks; k++) {
            arena->sources[k] = data_of(arena, k, round, op->offset);
        }
        dd_reduce(&op->args->reduction, op->stage, result_at(arena, op->offset), arena->sources,
                  (size_t)arena->nranks, nbytes / op->in_size);
        op->offset += nbytes;
        spend(op, nbytes * (size_t)arena->nranks);
    }
    return true;
}

/* One source's part of a round; true at its end. */
static bool
copy_block(dd_arena *arena, int k, uint64_t round)
{
    arena_op *op = &arena->op;
    const dd_block *output = &op->args->outputs[op->traits->is_from_root ? 0 : k];
    size_t start = smaller(output->nbytes, (size_t)round * op->round_nbytes);
    size_t end = end_of(arena, round, output->nbytes);
    while (start + op->offset < end) {
        if (op->budget == 0) {
            return false;
        }
        size_t from = start + op->offset;
        size_t nbytes = smaller(end - from, op->budget);
        const uint8_t *data = data_of(arena, k, round, from);
        uint8_t *place = (uint8_t *)output->data + from;
        if (place != data) {
            dd_copy(place, data, nbytes);
        }
        op->offset += nbytes;
        spend(op, nbytes);
    }
    return true;
}

static bool
read_copy(dd_arena *arena, uint64_t round)
{
    arena_op *op = &arena->op;
    for (; op->source < arena->nranks; op->source++) {
        /* Everybody starts with another source. */
        int k = (arena->rank + op->source) % arena->nranks;
        if (dd_arena_is_sender(arena, k) && !copy_block(arena, k, round)) {
            return false;
        }
        op->offset = 0;
    }
    op->source = 0;
    return true;
}

bool
dd_arena_read(dd_arena *arena, uint64_t round)
{
    const arena_op *op = &arena->op;
    if (!dd_arena_is_receiver(arena, arena->rank)) {
        return true;
    }
    if (op->is_shared_fold) {
        return read_shares(arena, round);
    }
    return op->traits->is_fold ? read_fold(arena, round) : read_copy(arena, round);
}

/* ---- in place: the whole array is one chunk */

static share
in_place_share_of(const arena_op *op, int nranks, int k)
{
    size_t each = (size_t)divide_up(divide_up(op->nbytes, (size_t)nranks), ARENA_LINE) * ARENA_LINE;
    size_t start = smaller(op->nbytes, each * (size_t)k);
    return (share){.start = start, .nbytes = smaller(op->nbytes - start, each)};
}

/* Part of the result into another rank's output, but for the edges of that, which it takes itself. */
static void
give(const dd_arena *arena, int k, size_t at, const uint8_t *result, size_t nbytes)
{
    const arena_peer *peer = &arena->peers[k];
    size_t total = arena->op.args->outputs[0].nbytes;
    size_t last = smaller(at + nbytes, total - smaller(total, peer->tail));
    size_t first = at > peer->lead ? at : peer->lead;
    if (first < last) {
        dd_copy(peer->output + first, result + (first - at), last - first);
    }
}

static void
take(const dd_arena *arena, size_t begin, size_t end)
{
    const arena_op *op = &arena->op;
    for (int k = 0; k < arena->nranks; k++) {
        share part = in_place_share_of(op, arena->nranks, k);
        size_t first = part.start / op->in_size * op->out_size;
        size_t last = smaller(end, first + part.nbytes / op->in_size * op->out_size);
        first = first > begin ? first : begin;
        if (k != arena->rank && first < last) {
            dd_copy((uint8_t *)op->args->outputs[0].data + first, arena->peers[k].output + first,
                    last - first);
        }
    }
}

void
dd_arena_take_edges(dd_arena *arena)
{
    const arena_peer *own = &arena->peers[arena->rank];
    size_t total = arena->op.args->outputs[0].nbytes;
    take(arena, 0, own->lead);
    take(arena, total - own->tail, total);
}

bool
dd_arena_fold_in_place(dd_arena *arena)
{
    arena_op *op = &arena->op;
    size_t nranks = (size_t)arena->nranks;
    share own = in_place_share_of(op, arena->nranks, arena->rank);
    size_t start = own.start;
    size_t end = own.start + own.nbytes;
    while (start + op->offset < end) {
        if (op->budget == 0) {
            return false;
        }
        size_t from = start + op->offset;
        size_t nbytes = smaller(end - from, PIECE_BYTES);
        for (int k = 0; k < arena->nranks; k++) {
            const uint8_t *input = k == arena->rank ? op->args->inputs[0].data : arena->peers[k].input;
            arena->sources[k] = input + from;
        }
        uint8_t *result = result_at(arena, from);
        size_t count = nbytes / op->in_size;
        dd_reduce(&op->args->reduction, op->stage, result, arena->sources, nranks, count);
        for (int i = 1; i < arena->nranks; i++) {
            int k = (arena->rank + i) % arena->nranks;
            give(arena, k, from / op->in_size * op->out_size, result, count * op->out_size);
        }
        op->offset += nbytes;
        spend(op, nbytes * nranks);
    }
    return true;
}
