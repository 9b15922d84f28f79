#include "collective/arena/state.h"
#include "kernels/copy.h"

static size_t
round_down(size_t value, size_t multiple)
{
    return value / multiple * multiple;
}

/* Return the size of a part of a buffer that has one part for each other rank. */
static size_t
part_nbytes(const dd_arena *arena, size_t buffer_nbytes)
{
    size_t nparts = arena->nranks > 1 ? (size_t)(arena->nranks - 1) : 1;
    size_t part = buffer_nbytes / nparts;
    return round_down(part, part >= 4 * ARENA_LINE ? ARENA_LINE : DD_DTYPE_MAX_SIZE);
}

/* Return the index of rank `to`'s part in the slot of rank `from`. */
static size_t
part_index(int from, int to)
{
    return (size_t)(to > from ? to - 1 : to);
}

/* ---- rounds */

void
dd_arena_choose_round(dd_arena *arena)
{
    arena_op *op = &arena->op;
    size_t buffer_nbytes = arena->geometry.buffer_nbytes;
    bool is_shared_fold = dd_arena_choose_chunks(arena);
    op->is_wide = arena->is_crowded && !is_shared_fold;
    op->reads_first = op->is_wide || is_shared_fold;
    if (!is_shared_fold) {
        bool is_split = op->call->traits->is_split;
        size_t wide_nbytes = op->is_wide ? 2 * buffer_nbytes : buffer_nbytes;
        op->first_nbytes = is_split ? part_nbytes(arena, buffer_nbytes) : buffer_nbytes;
        op->round_nbytes = is_split ? part_nbytes(arena, wide_nbytes) : wide_nbytes;
    }
    dd_arena_choose_copy(arena);
}

void
dd_arena_count_rounds(dd_arena *arena)
{
    arena_op *op = &arena->op;
    dd_arena_start_clock(arena);
    op->nrounds = 1;
    if (op->is_shared_fold) {
        op->nrounds = 2 * dd_arena_count_chunks(arena);
        return;
    }
    for (int k = 0; k < arena->nranks; k++) {
        bool is_known = dd_arena_ranks_have(&op->known, k) && dd_arena_is_stager(arena, k);
        if (is_known && arena->block_infos[k].largest > op->first_nbytes) {
            uint64_t left = arena->block_infos[k].largest - op->first_nbytes;
            uint64_t nrounds = 1 + left / op->round_nbytes + (left % op->round_nbytes != 0);
            op->nrounds = nrounds > op->nrounds ? nrounds : op->nrounds;
        }
    }
}

/* Return the offset of a round in rank k's slot: see the top of layout.h. */
static size_t
offset_of_round(const dd_arena *arena, int k, uint64_t round)
{
    size_t offset = arena->peers[k].offset;
    size_t width = arena->op.is_wide ? 2 : 1;
    size_t first = offset / (width * arena->geometry.buffer_nbytes);
    size_t index = (first + (size_t)round) % (ARENA_NBUFFERS / width);
    return round == 0 ? offset : index * width * arena->geometry.buffer_nbytes;
}

/* Return the distance in a slot from the part for one rank to the next part. */
static size_t
stride_of(const dd_arena *arena, int k, uint64_t round)
{
    return round == 0 ? arena->peers[k].stride : arena->op.round_nbytes;
}

/* Return the offset at which a round begins in a block or in a rank's part of a block. */
static size_t
start_of(const arena_op *op, uint64_t round)
{
    return round == 0 ? 0 : op->first_nbytes + (size_t)(round - 1) * op->round_nbytes;
}

static size_t
capacity_of(const arena_op *op, uint64_t round)
{
    return round == 0 ? op->first_nbytes : op->round_nbytes;
}

/* ---- staging */

/* Return the step that a reader publishes when it has finished reading a round. */
static uint32_t
end_step_of(const arena_op *op, uint64_t round)
{
    return dd_arena_step_of(op, round) + (op->reads_first ? 1 : 2);
}

bool
dd_arena_find_offset(dd_arena *arena)
{
    arena_op *op = &arena->op;
    arena_peer *own_peer = &arena->peers[arena->rank];
    size_t buffer_nbytes = arena->geometry.buffer_nbytes;
    bool is_one = op->is_shared_fold || op->nbytes <= op->first_nbytes;
    size_t nbytes = op->is_shared_fold ? dd_arena_first_chunk_nbytes(arena) : op->nbytes;
    own_peer->offset = own_peer->stride = 0;
    if (!dd_arena_is_stager(arena, arena->rank) || nbytes == 0) {
        return true;
    }
    if (op->call->traits->is_split) {
        size_t lines = dd_arena_round_up(nbytes, ARENA_LINE);
        own_peer->stride = is_one ? dd_arena_smaller(lines, op->first_nbytes) : op->first_nbytes;
        nbytes = own_peer->stride * (size_t)(arena->nranks - 1);
    }
    nbytes = is_one ? nbytes : buffer_nbytes;
    if (!dd_arena_find_space(arena, nbytes, is_one ? ARENA_SPACING : buffer_nbytes, &own_peer->offset)) {
        return false;
    }
    bool may_be_repeated = (op->call->flags & ARENA_IN_PLACE) != 0;
    dd_arena_lend(arena, own_peer->offset, nbytes, end_step_of(op, 0) + may_be_repeated);
    return true;
}

bool
dd_arena_may_stage(dd_arena *arena, uint64_t round)
{
    const arena_op *op = &arena->op;
    if (op->is_shared_fold && round > 0) {
        /* Odd rounds fold after all ranks have staged; even rounds stage after all have folded. */
        const dd_arena_ranks *ranks = round % 2 == 1 ? &arena->all_ranks : &op->folders;
        return dd_arena_have_reached(arena, ranks, dd_arena_mark_of(arena, dd_arena_step_of(op, round - 1)));
    }
    if (!dd_arena_is_stager(arena, arena->rank) ||
        start_of(op, round) >= arena->block_infos[arena->rank].largest || round == 0) {
        return true;
    }
    size_t nbytes = (op->is_wide ? 2 : 1) * arena->geometry.buffer_nbytes;
    return dd_arena_is_space_free(arena, offset_of_round(arena, arena->rank, round), nbytes);
}

static void
stage_blocks(dd_arena *arena, uint64_t round)
{
    const arena_op *op = &arena->op;
    bool is_split = op->call->traits->is_split;
    size_t offset = offset_of_round(arena, arena->rank, round);
    size_t start = start_of(op, round);
    if (round > 0 && start < arena->block_infos[arena->rank].largest) {
        size_t nbytes = (op->is_wide ? 2 : 1) * arena->geometry.buffer_nbytes;
        dd_arena_lend(arena, offset, nbytes, end_step_of(op, round));
    }
    for (int k = 0; k < arena->nranks; k++) {
        const dd_block *input = &op->args->inputs[is_split ? k : 0];
        size_t index = is_split ? part_index(arena->rank, k) : 0;
        bool has_no_receiver = is_split ? k == arena->rank : k > 0;
        if (!has_no_receiver && start < input->nbytes) {
            uint8_t *to =
                arena->slots[arena->rank].buffers + offset + index * stride_of(arena, arena->rank, round);
            size_t nbytes = dd_arena_smaller(input->nbytes - start, capacity_of(op, round));
            dd_arena_copy_in(arena, to, (const uint8_t *)input->data + start, nbytes);
        }
    }
}

bool
dd_arena_stage(dd_arena *arena, uint64_t round)
{
    const arena_op *op = &arena->op;
    if (op->is_shared_fold && round % 2 == 1) {
        return dd_arena_fold_shares(arena, round / 2);
    }
    if (op->is_shared_fold) {
        dd_arena_stage_chunk(arena, round / 2);
    } else if (dd_arena_is_stager(arena, arena->rank)) {
        stage_blocks(arena, round);
    }
    if (round == 0) {
        dd_arena_stop_clock(arena);
    }
    return true;
}

/* ---- reading */

/* Find the ranks with data in this round; other ranks need not publish the round. */
static const dd_arena_ranks *
find_stagers(dd_arena *arena, uint64_t round)
{
    arena_op *op = &arena->op;
    op->stagers = (dd_arena_ranks){{0}};
    for (int k = 0; k < arena->nranks; k++) {
        if (dd_arena_is_stager(arena, k) && arena->block_infos[k].largest > start_of(op, round)) {
            dd_arena_ranks_add(&op->stagers, k);
        }
    }
    return &op->stagers;
}

const dd_arena_ranks *
dd_arena_read_from(dd_arena *arena, uint64_t round)
{
    const arena_op *op = &arena->op;
    if (op->is_shared_fold) {
        return round % 2 == 1 ? &op->folders : NULL;
    }
    if (!dd_arena_is_receiver(op->call, arena->rank)) {
        return NULL;
    }
    if (op->call->traits->is_to_root) {
        return find_stagers(arena, round);
    }
    return op->call->traits->is_from_root ? &op->root : &arena->all_ranks;
}

/* Return the address of byte `offset` in the block that rank k has for this rank. If the block is
 * staged, the byte must be in this round. */
static const uint8_t *
data_of(const dd_arena *arena, int k, uint64_t round, size_t offset)
{
    const arena_op *op = &arena->op;
    bool is_split = op->call->traits->is_split;
    if (k == arena->rank) {
        return (const uint8_t *)op->args->inputs[is_split ? k : 0].data + offset;
    }
    const arena_peer *peer = &arena->peers[k];
    uint64_t flags = arena->block_infos[k].flags;
    size_t index = is_split ? part_index(k, arena->rank) : 0;
    if ((flags & ARENA_IS_INLINE) != 0) {
        return (const uint8_t *)peer->payload + index * op->nbytes + offset;
    }
    if ((flags & ARENA_IN_REGION) != 0 && peer->input != NULL) {
        return peer->input + offset;
    }
    return arena->slots[k].buffers + offset_of_round(arena, k, round) + index * stride_of(arena, k, round) +
           (offset - start_of(op, round));
}

/* Return the offset at which a round ends. The last round ends at the end of the block, because
 * data that is not staged has only one round. */
static size_t
end_of(const dd_arena *arena, uint64_t round, size_t nbytes)
{
    bool is_last = round + 1 == arena->op.nrounds;
    return is_last ? nbytes : dd_arena_smaller(nbytes, start_of(&arena->op, round + 1));
}

static bool
read_fold(dd_arena *arena, uint64_t round)
{
    const arena_op *op = &arena->op;
    size_t end = end_of(arena, round, op->args->outputs[0].nbytes / op->out_size * op->in_size);
    for (int k = 0; k < op->nfolded && op->offset < end; k++) {
        arena->sources[k] = data_of(arena, k, round, op->offset);
    }
    return dd_arena_fold(arena, 0, end, NULL);
}

/* Copy the part of a round that comes from one source. Return true at the end. */
static bool
copy_block(dd_arena *arena, int k, uint64_t round)
{
    arena_op *op = &arena->op;
    const dd_block *output = &op->args->outputs[op->call->traits->is_from_root ? 0 : k];
    size_t start = dd_arena_smaller(output->nbytes, start_of(op, round));
    size_t end = end_of(arena, round, output->nbytes);
    while (start + op->offset < end) {
        if (op->budget == 0) {
            return false;
        }
        size_t from = start + op->offset;
        size_t nbytes = dd_arena_smaller(end - from, op->budget);
        const uint8_t *data = data_of(arena, k, round, from);
        uint8_t *target = (uint8_t *)output->data + from;
        if (target != data) {
            dd_arena_copy_out(arena, target, data, nbytes);
        }
        op->offset += nbytes;
    }
    return true;
}

static bool
read_copy(dd_arena *arena, uint64_t round)
{
    arena_op *op = &arena->op;
    for (; op->source < arena->nranks; op->source++) {
        /* Each rank starts with a different source, to spread the readers over the slots. */
        int k = (arena->rank + op->source) % arena->nranks;
        if (dd_arena_is_sender(op->call, k) && !copy_block(arena, k, round)) {
            return false;
        }
        op->offset = 0;
    }
    op->source = 0;
    return true;
}

static bool
move_read_round(dd_arena *arena, uint64_t round)
{
    const arena_op *op = &arena->op;
    if (!dd_arena_is_receiver(op->call, arena->rank) || op->nfolded == 0) {
        return true;
    }
    if (op->is_shared_fold) {
        if (round % 2 == 1) {
            dd_arena_read_shares(arena, round / 2);
        }
        return true;
    }
    return op->call->traits->is_fold ? read_fold(arena, round) : read_copy(arena, round);
}

bool
dd_arena_read(dd_arena *arena, uint64_t round)
{
    bool is_read = move_read_round(arena, round);
    if (is_read && round + 1 == arena->op.nrounds) {
        dd_arena_end_trial(arena);
    }
    return is_read;
}
