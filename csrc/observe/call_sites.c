#include "observe/call_sites.h"

#include "core/lock.h"
#include "core/mem.h"
#include "core/thread.h"

#include <stdatomic.h>
#include <string.h>

typedef struct known_frame {
    dd_frame_key key;
    dd_frame frame; /* its texts lie behind it */
} known_frame;

/* Constant once it is in the table. */
typedef struct known_stack {
    uint64_t hash;
    uint32_t id;
    uint32_t nframes;
    dd_frame_key keys[DD_STACK_MAX_FRAMES];
    const known_frame *frames[DD_STACK_MAX_FRAMES];
} known_stack;

struct dd_call_sites {
    size_t max_frames;               /* const */
    size_t max_stacks;               /* const */
    size_t frame_mask;               /* const: of frame_buckets */
    size_t stack_mask;               /* const: of stack_buckets */
    _Atomic(known_stack *) *by_id;   /* [max_stacks + 1]; entries are written once, release */
    _Atomic(known_stack *) *by_hash; /* [stack_mask + 1]; the same */
    atomic_bool is_full;             /* of stacks; relaxed: a hint */
    dd_lock mu;
    /* guarded by mu */
    known_frame **frames; /* [frame_mask + 1], by hash */
    size_t nframes;
    size_t nstacks;
};

static uint64_t
mix(uint64_t hash, dd_frame_key key)
{
    hash = (hash ^ (uint64_t)key.code ^ ((uint64_t)(uint32_t)key.instruction << 48)) *
           UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ (hash >> 29);
}

/* Twice as many buckets as entries, and a power of two. */
static size_t
nbuckets_for(size_t nentries)
{
    size_t nbuckets = 16;
    while (nbuckets < 2 * nentries) {
        nbuckets *= 2;
    }
    return nbuckets;
}

static size_t
frames_nbytes(const dd_call_sites *sites)
{
    return (sites->frame_mask + 1) * sizeof(known_frame *);
}

static size_t
by_hash_nbytes(const dd_call_sites *sites)
{
    return (sites->stack_mask + 1) * sizeof *sites->by_hash;
}

static size_t
by_id_nbytes(const dd_call_sites *sites)
{
    return (sites->max_stacks + 1) * sizeof *sites->by_id;
}

dd_status
dd_call_sites_create(size_t max_frames, size_t max_stacks, dd_call_sites **sites, dd_error *err)
{
    dd_call_sites *self = dd_mem_zalloc(sizeof *self);
    if (self == NULL) {
        return dd_error_no_memory(err, sizeof *self);
    }
    self->max_frames = max_frames;
    self->max_stacks = max_stacks;
    self->frame_mask = nbuckets_for(max_frames) - 1;
    self->stack_mask = nbuckets_for(max_stacks) - 1;
    dd_lock_init(&self->mu, DD_LOCK_CALL_SITES);
    self->frames = dd_mem_map(frames_nbytes(self));
    self->by_hash = dd_mem_map(by_hash_nbytes(self));
    self->by_id = dd_mem_map(by_id_nbytes(self));
    if (self->frames == NULL || self->by_hash == NULL || self->by_id == NULL) {
        dd_status status =
            dd_error_no_memory(err, frames_nbytes(self) + by_hash_nbytes(self) + by_id_nbytes(self));
        dd_call_sites_destroy(self);
        return status;
    }
    *sites = self;
    return DD_OK;
}

void
dd_call_sites_destroy(dd_call_sites *sites)
{
    if (sites == NULL) {
        return;
    }
    size_t nbuckets = sites->frames != NULL && sites->nframes > 0 ? sites->frame_mask + 1 : 0;
    for (size_t i = 0; i < nbuckets; i++) {
        dd_mem_free(sites->frames[i]);
    }
    for (size_t i = 1; i <= sites->nstacks; i++) {
        dd_mem_free(atomic_load_explicit(&sites->by_id[i], memory_order_relaxed));
    }
    dd_mem_unmap(sites->frames, frames_nbytes(sites));
    dd_mem_unmap(sites->by_hash, by_hash_nbytes(sites));
    dd_mem_unmap(sites->by_id, by_id_nbytes(sites));
    dd_lock_fini(&sites->mu);
    dd_mem_free(sites);
}

static bool
is_same(const known_stack *stack, uint64_t hash, const dd_frame_key *frames, size_t nframes)
{
    if (stack->hash != hash || stack->nframes != nframes) {
        return false;
    }
    for (size_t i = 0; i < nframes; i++) {
        if (stack->keys[i].code != frames[i].code || stack->keys[i].instruction != frames[i].instruction) {
            return false;
        }
    }
    return true;
}

/* The bucket of the stack, or the empty one where it belongs. There is always one. */
static _Atomic(known_stack *) *
find_bucket(const dd_call_sites *sites, uint64_t hash, const dd_frame_key *frames, size_t nframes)
{
    for (size_t i = (size_t)hash & sites->stack_mask;; i = (i + 1) & sites->stack_mask) {
        const known_stack *stack = atomic_load_explicit(&sites->by_hash[i], memory_order_acquire);
        if (stack == NULL || is_same(stack, hash, frames, nframes)) {
            return &sites->by_hash[i];
        }
    }
}

static known_frame **
find_frame_locked(const dd_call_sites *sites, dd_frame_key key)
{
    for (size_t i = (size_t)mix(0, key) & sites->frame_mask;; i = (i + 1) & sites->frame_mask) {
        known_frame **bucket = &sites->frames[i];
        if (*bucket == NULL ||
            ((*bucket)->key.code == key.code && (*bucket)->key.instruction == key.instruction)) {
            return bucket;
        }
    }
}

/* Adds a stack that is not there. */
static uint32_t
add_stack_locked(dd_call_sites *sites, uint64_t hash, const dd_frame_key *frames, size_t nframes,
                 size_t *unknown)
{
    known_stack stack = {.hash = hash, .nframes = (uint32_t)nframes};
    for (size_t i = 0; i < nframes; i++) {
        stack.keys[i] = frames[i];
        stack.frames[i] = *find_frame_locked(sites, frames[i]);
        if (stack.frames[i] == NULL) {
            *unknown = i;
            return 0;
        }
    }
    known_stack *added = sites->nstacks < sites->max_stacks ? dd_mem_alloc(sizeof *added) : NULL;
    if (added == NULL) {
        atomic_store_explicit(&sites->is_full, true, memory_order_relaxed);
        return 0;
    }
    stack.id = (uint32_t)++sites->nstacks;
    *added = stack;
    atomic_store_explicit(&sites->by_id[stack.id], added, memory_order_release);
    atomic_store_explicit(find_bucket(sites, hash, frames, nframes), added, memory_order_release);
    return stack.id;
}

uint32_t
dd_call_sites_find(dd_call_sites *sites, const dd_frame_key *frames, size_t nframes, size_t *unknown)
{
    uint64_t hash = nframes;
    for (size_t i = 0; i < nframes; i++) {
        hash = mix(hash, frames[i]);
    }
    const known_stack *stack =
        atomic_load_explicit(find_bucket(sites, hash, frames, nframes), memory_order_acquire);
    if (stack != NULL) {
        return stack->id;
    }
    *unknown = nframes;
    if (nframes == 0 || atomic_load_explicit(&sites->is_full, memory_order_relaxed)) {
        return 0;
    }
    dd_lock_take(&sites->mu);
    stack = atomic_load_explicit(find_bucket(sites, hash, frames, nframes), memory_order_relaxed);
    uint32_t id = stack != NULL ? stack->id : add_stack_locked(sites, hash, frames, nframes, unknown);
    dd_lock_release(&sites->mu);
    return id;
}

static known_frame *
copy_frame(dd_frame_key key, const dd_frame *frame)
{
    size_t function_size = strlen(frame->function) + 1;
    size_t file_size = strlen(frame->file) + 1;
    known_frame *copy = dd_mem_alloc(sizeof *copy + function_size + file_size);
    if (copy != NULL) {
        char *text = (char *)(copy + 1);
        memcpy(text, frame->function, function_size);
        memcpy(text + function_size, frame->file, file_size);
        *copy = (known_frame){.key = key, .frame = *frame};
        copy->frame.function = text;
        copy->frame.file = text + function_size;
    }
    return copy;
}

bool
dd_call_sites_tell(dd_call_sites *sites, dd_frame_key key, const dd_frame *frame)
{
    dd_lock_take(&sites->mu);
    known_frame **bucket = find_frame_locked(sites, key);
    if (*bucket == NULL && sites->nframes < sites->max_frames) {
        *bucket = copy_frame(key, frame);
        sites->nframes += *bucket != NULL;
    }
    bool is_known = *bucket != NULL;
    if (!is_known) {
        atomic_store_explicit(&sites->is_full, true, memory_order_relaxed);
    }
    dd_lock_release(&sites->mu);
    return is_known;
}

size_t
dd_call_sites_get(dd_call_sites *sites, uint32_t stack, dd_frame frames[DD_STACK_MAX_FRAMES])
{
    const known_stack *known = stack > 0 && stack <= sites->max_stacks
                                   ? atomic_load_explicit(&sites->by_id[stack], memory_order_acquire)
                                   : NULL;
    size_t count = 0;
    for (size_t i = 0; known != NULL && i < known->nframes; i++) {
        if (!known->frames[i]->frame.is_hidden) {
            frames[count++] = known->frames[i]->frame;
        }
    }
    return count;
}
