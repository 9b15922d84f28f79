#include "collective/arena/state.h"
#include "core/mem.h"

/* Smaller data is staged: copying costs less than the second synchronisation of a region. */
#define REGION_MIN_BYTES ((size_t)8192)
/* Largest broadcast to one receiver that is read from a region. Larger arrays are in no cache; from
 * a region only the receiver copies, but when staged, both ranks do. Times relative to private
 * arrays: 16 MiB take 1.15 times as long from a region, 1.03 staged; 8 MiB take 0.9 from a
 * region. */
#define ONE_READER_MAX_BYTES ((size_t)12 << 20)

static arena_region *
region_by_id(const dd_arena *arena, int owner, uint32_t id)
{
    for (size_t i = 0; i < arena->nregions; i++) {
        if (arena->regions[i].owner == owner && arena->regions[i].id == id) {
            return &arena->regions[i];
        }
    }
    return NULL;
}

dd_status
dd_arena_add_region(dd_arena *arena, int owner, uint32_t id, void *base, size_t nbytes, dd_error *err)
{
    if (owner < 0 || owner >= arena->nranks || id == 0 || region_by_id(arena, owner, id) != NULL) {
        return dd_error_set(err, DD_INVALID_ARGUMENT,
                            "invalid shared array: got number %u of rank %d, expected a new one of %d ranks",
                            id, owner, arena->nranks);
    }
    if (arena->nregions == arena->regions_capacity) {
        size_t capacity = arena->regions_capacity == 0 ? 16 : 2 * arena->regions_capacity;
        arena_region *regions = dd_mem_realloc(arena->regions, capacity * sizeof(*regions));
        if (regions == NULL) {
            return dd_error_no_memory(err, capacity * sizeof(*regions));
        }
        arena->regions = regions;
        arena->regions_capacity = capacity;
    }
    arena->regions[arena->nregions++] =
        (arena_region){.owner = owner, .id = id, .base = base, .nbytes = nbytes};
    return DD_OK;
}

void
dd_arena_remove_region(dd_arena *arena, int owner, uint32_t id)
{
    arena_region *region = region_by_id(arena, owner, id);
    if (region != NULL) {
        *region = arena->regions[--arena->nregions];
    }
}

/* Return the region of `owner` that contains all these bytes, or NULL if there is none. */
static const arena_region *
find_region(const dd_arena *arena, int owner, const void *data, size_t nbytes)
{
    uintptr_t start = (uintptr_t)data;
    for (size_t i = 0; i < arena->nregions; i++) {
        const arena_region *region = &arena->regions[i];
        uintptr_t base = (uintptr_t)region->base;
        if (region->owner == owner && start >= base && start - base <= region->nbytes &&
            nbytes <= region->nbytes - (start - base)) {
            return region;
        }
    }
    return NULL;
}

/* ---- this rank's regions */

static uint64_t
offset_in(const arena_region *region, const void *data)
{
    return (uint64_t)((uintptr_t)data - (uintptr_t)region->base);
}

/* Return true if the block shares its first or last page with other bytes. Other ranks write to an
 * offered output. If the operation fails, the output's pages are detached from these ranks
 * (dd_arena_find_written), which must not affect other bytes, as a thread of the caller may be
 * writing these. So other ranks write only whole pages, unless the block ends with the region. */
static bool
shares_pages(const arena_region *region, const dd_block *block)
{
    size_t start = offset_in(region, block->data);
    size_t end = start + block->nbytes;
    return start % ARENA_PAGE != 0 || (end % ARENA_PAGE != 0 && end != region->nbytes);
}

/* Set the sizes of an output's edges. `start` is the output's offset in its region. */
static void
measure_edges(arena_peer *peer, bool is_sharing, size_t start, size_t nbytes)
{
    peer->lead = is_sharing ? -start % ARENA_PAGE : 0;
    peer->tail = is_sharing ? (start + nbytes) % ARENA_PAGE : 0;
}

static uint64_t
offer_in_place(dd_arena *arena)
{
    arena_op *op = &arena->op;
    const dd_block *input = &op->args->inputs[0];
    const dd_block *output = &op->args->outputs[0];
    const arena_region *in = find_region(arena, arena->rank, input->data, input->nbytes);
    const arena_region *out = find_region(arena, arena->rank, output->data, output->nbytes);
    if (in == NULL || out == NULL) {
        return 0;
    }
    bool is_sharing = shares_pages(out, output);
    op->offer = (arena_offer){.input_id = in->id,
                              .input_offset = offset_in(in, input->data),
                              .output_id = out->id,
                              .output_offset = offset_in(out, output->data)};
    measure_edges(&arena->peers[arena->rank], is_sharing, op->offer.output_offset, output->nbytes);
    return ARENA_IN_PLACE | (is_sharing ? ARENA_SHARES_PAGES : 0);
}

/* Offer the blocks to other ranks if all of them lie in one region; otherwise return 0. */
static uint64_t
offer_blocks(dd_arena *arena)
{
    const dd_block *inputs = arena->op.args->inputs;
    _Atomic uint64_t *offsets = arena->slots[arena->rank].offsets;
    const arena_region *common = NULL;
    for (int k = 0; k < arena->nranks; k++) {
        if (k == arena->rank || inputs[k].nbytes == 0) {
            continue;
        }
        const arena_region *region = find_region(arena, arena->rank, inputs[k].data, inputs[k].nbytes);
        if (region == NULL || (common != NULL && region != common)) {
            return 0;
        }
        common = region;
        atomic_store_explicit(&offsets[k], offset_in(region, inputs[k].data), memory_order_relaxed);
    }
    if (common == NULL) {
        return 0;
    }
    arena->op.offer = (arena_offer){.input_id = common->id};
    return ARENA_IN_REGION;
}

uint64_t
dd_arena_offer_regions(dd_arena *arena)
{
    arena_op *op = &arena->op;
    bool has_only_reader = op->args->coll == DD_COLL_BROADCAST && arena->nranks == 2;
    if (op->nbytes < REGION_MIN_BYTES || (has_only_reader && op->nbytes > ONE_READER_MAX_BYTES) ||
        !dd_arena_is_giver(arena, arena->rank)) {
        return 0;
    }
    if (op->args->coll == DD_COLL_ALL_REDUCE) {
        return offer_in_place(arena);
    }
    if (op->call->traits->is_split) {
        return offer_blocks(arena);
    }
    const dd_block *input = &op->args->inputs[0];
    /* Do not offer inputs that outputs overwrite: other ranks may read a region until the operation
     * closes, but ranks of a prefix (scan) write their outputs earlier. */
    bool is_overwritten = op->call->traits->is_prefix && input->data == op->args->outputs[0].data;
    const arena_region *region =
        is_overwritten ? NULL : find_region(arena, arena->rank, input->data, input->nbytes);
    if (region == NULL) {
        return 0;
    }
    op->offer = (arena_offer){.input_id = region->id, .input_offset = offset_in(region, input->data)};
    return ARENA_IN_REGION;
}

/* ---- other ranks' regions */

typedef struct arena_region_ref {
    int id_word;
    bool is_split;
    uint64_t nbytes;
    dd_arena_ranks *wanted; /* owners whose region has already been requested */
    size_t offset;          /* result: offset of the data in the region */
} arena_region_ref;

static dd_arena_state
map_region_ref(dd_arena *arena, int owner, arena_region_ref *ref, uint8_t **data)
{
    arena_op *op = &arena->op;
    uint64_t id = atomic_load_explicit(dd_arena_word(arena, owner, ref->id_word), memory_order_relaxed);
    if (id == 0 || id > UINT32_MAX) {
        return DD_ARENA_BROKEN;
    }
    const arena_region *region = region_by_id(arena, owner, (uint32_t)id);
    if (region == NULL) {
        if (!dd_arena_ranks_have(ref->wanted, owner) && op->options.want_region != NULL) {
            op->options.want_region(op->options.ctx, owner, (uint32_t)id);
        }
        dd_arena_ranks_add(ref->wanted, owner);
        return DD_ARENA_BLOCKED;
    }
    const _Atomic uint64_t *word = ref->is_split ? &arena->slots[owner].offsets[arena->rank]
                                                 : dd_arena_word(arena, owner, ref->id_word + 1);
    uint64_t offset = atomic_load_explicit(word, memory_order_relaxed);
    if (offset > region->nbytes || ref->nbytes > region->nbytes - offset) {
        return DD_ARENA_BROKEN;
    }
    ref->offset = (size_t)offset;
    *data = region->base + offset;
    return DD_ARENA_MOVED;
}

static dd_arena_state
map_in_place(dd_arena *arena, int owner)
{
    arena_op *op = &arena->op;
    arena_peer *peer = &arena->peers[owner];
    uint8_t *input = NULL;
    arena_region_ref in = {.id_word = ARENA_WORD_INPUT_ID, .nbytes = op->nbytes, .wanted = &op->wanted_in};
    arena_region_ref out = {.id_word = ARENA_WORD_OUTPUT_ID,
                            .nbytes = op->nbytes / op->in_size * op->out_size,
                            .wanted = &op->wanted_out};
    dd_arena_state in_state = map_region_ref(arena, owner, &in, &input);
    dd_arena_state out_state = map_region_ref(arena, owner, &out, &peer->output);
    if (in_state == DD_ARENA_MOVED && out_state == DD_ARENA_MOVED) {
        peer->input = input;
        measure_edges(peer, (arena->block_infos[owner].flags & ARENA_SHARES_PAGES) != 0, out.offset,
                      (size_t)out.nbytes);
        return DD_ARENA_MOVED;
    }
    bool is_broken = in_state == DD_ARENA_BROKEN || out_state == DD_ARENA_BROKEN;
    return is_broken ? DD_ARENA_BROKEN : DD_ARENA_BLOCKED;
}

static dd_arena_state
map_input(dd_arena *arena, int owner)
{
    arena_op *op = &arena->op;
    arena_region_ref in = {.id_word = ARENA_WORD_INPUT_ID,
                           .is_split = op->call->traits->is_split,
                           .nbytes = dd_arena_received_nbytes(arena, owner),
                           .wanted = &op->wanted_in};
    if (in.nbytes == 0) {
        return DD_ARENA_MOVED; /* no bytes are read, and the owner may not have set an offset */
    }
    uint8_t *input = NULL;
    dd_arena_state state = map_region_ref(arena, owner, &in, &input);
    arena->peers[owner].input = input;
    return state;
}

dd_arena_state
dd_arena_map_regions(dd_arena *arena)
{
    const arena_op *op = &arena->op;
    dd_arena_state result = DD_ARENA_MOVED;
    for (int k = 0; k < arena->nranks; k++) {
        uint64_t flags = arena->block_infos[k].flags;
        bool is_known = k != arena->rank && dd_arena_ranks_have(&op->known, k);
        if (!is_known || arena->peers[k].input != NULL) {
            continue;
        }
        dd_arena_state state = DD_ARENA_MOVED;
        if (op->is_in_place && (flags & ARENA_IN_PLACE) != 0) {
            state = map_in_place(arena, k);
        } else if ((flags & ARENA_IN_REGION) != 0 && dd_arena_is_receiver(op->call, arena->rank)) {
            state = map_input(arena, k);
        }
        if (state == DD_ARENA_BROKEN) {
            return state;
        }
        result = state == DD_ARENA_BLOCKED ? state : result;
    }
    return result;
}
