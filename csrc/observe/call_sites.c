#include "observe/call_sites.h"

#include "core/lock.h"
#include "core/mem.h"

#include <stdatomic.h>
#include <string.h>

/* Constant, as stacks are, once a bucket has its number. */
typedef struct known_frame {
    dd_frame_key key;
    dd_frame frame; /* both texts are one block */
} known_frame;

typedef struct known_stack {
    uint64_t hash;
    size_t nframes;
    dd_frame_key keys[DD_STACK_MAX_FRAMES];
    uint32_t frames[DD_STACK_MAX_FRAMES]; /* their numbers */
} known_stack;

/* Frames and stacks are numbered from 1; 0 is none. Their tables follow the struct, in the same pages. */
struct dd_call_sites {
    size_t max_frames; /* const, as are these */
    size_t max_stacks;
    size_t mask;                      /* of the buckets: there are twice as many as entries */
    size_t nbytes;                    /* of it all */
    known_frame *frames;              /* [max_frames + 1] */
    known_stack *stacks;              /* [max_stacks + 1] */
    uint32_t *frame_buckets;          /* [mask + 1], by hash; guarded by mu */
    _Atomic(uint32_t) *stack_buckets; /* [mask + 1], by hash; written once, release */
    atomic_bool is_full;              /* relaxed: a hint */
    dd_lock mu;
    uint32_t nframes; /* guarded by mu, as is the next */
    uint32_t nstacks;
};

dd_status
dd_call_sites_create(size_t max_frames, size_t max_stacks, dd_call_sites **sites, dd_error *err)
{
    size_t nbuckets = 16;
    while (nbuckets < 2 * max_frames || nbuckets < 2 * max_stacks) {
        nbuckets *= 2;
    }
    size_t nbytes = sizeof **sites + (max_stacks + 1) * sizeof(known_stack) +
                    (max_frames + 1) * sizeof(known_frame) + 2 * nbuckets * sizeof(uint32_t);
    dd_call_sites *self = dd_mem_map(nbytes);
    if (self == NULL) {
        return dd_error_no_memory(err, nbytes);
    }
    self->max_frames = max_frames;
    self->max_stacks = max_stacks;
    self->mask = nbuckets - 1;
    self->nbytes = nbytes;
    self->stacks = (known_stack *)(self + 1);
    self->frames = (known_frame *)(self->stacks + max_stacks + 1);
    self->frame_buckets = (uint32_t *)(self->frames + max_frames + 1);
    self->stack_buckets = (_Atomic(uint32_t) *)(self->frame_buckets + nbuckets);
    dd_lock_init(&self->mu, DD_LOCK_CALL_SITES);
    *sites = self;
    return DD_OK;
}

void
dd_call_sites_destroy(dd_call_sites *sites)
{
    if (sites == NULL) {
        return;
    }
    for (uint32_t i = 1; i <= sites->nframes; i++) {
        dd_mem_free((char *)sites->frames[i].frame.function);
    }
    dd_lock_fini(&sites->mu);
    dd_mem_unmap(sites, sites->nbytes);
}

static uint64_t
hash_of(const dd_frame_key *keys, size_t nkeys)
{
    uint64_t hash = nkeys;
    for (size_t i = 0; i < nkeys; i++) {
        hash = (hash ^ (uint64_t)keys[i].code ^ ((uint64_t)(uint32_t)keys[i].instruction << 48)) *
               UINT64_C(0x9E3779B97F4A7C15);
        hash ^= hash >> 29;
    }
    return hash;
}

static bool
are_same(const dd_frame_key *a, const dd_frame_key *b, size_t nkeys)
{
    for (size_t i = 0; i < nkeys; i++) {
        if (a[i].code != b[i].code || a[i].instruction != b[i].instruction) {
            return false;
        }
    }
    return true;
}

/* The bucket of the stack, or the empty one where it belongs. There is always one. */
static _Atomic(uint32_t) *
find_stack(const dd_call_sites *sites, uint64_t hash, const dd_frame_key *keys, size_t nkeys)
{
    for (size_t i = (size_t)hash & sites->mask;; i = (i + 1) & sites->mask) {
        uint32_t id = atomic_load_explicit(&sites->stack_buckets[i], memory_order_acquire);
        const known_stack *stack = &sites->stacks[id];
        if (id == 0 ||
            (stack->hash == hash && stack->nframes == nkeys && are_same(stack->keys, keys, nkeys))) {
            return &sites->stack_buckets[i];
        }
    }
}

static uint32_t *
find_frame_locked(const dd_call_sites *sites, const dd_frame_key *key)
{
    for (size_t i = (size_t)hash_of(key, 1) & sites->mask;; i = (i + 1) & sites->mask) {
        uint32_t *bucket = &sites->frame_buckets[i];
        if (*bucket == 0 || are_same(&sites->frames[*bucket].key, key, 1)) {
            return bucket;
        }
    }
}

/* The number of the new stack, which lies behind the last; 0 as dd_call_sites_find says. */
static uint32_t
add_stack_locked(dd_call_sites *sites, uint64_t hash, const dd_frame_key *keys, size_t nkeys, size_t *unknown)
{
    if (sites->nstacks == sites->max_stacks) {
        atomic_store_explicit(&sites->is_full, true, memory_order_relaxed);
        return 0;
    }
    known_stack *stack = &sites->stacks[sites->nstacks + 1];
    for (size_t i = 0; i < nkeys; i++) {
        stack->keys[i] = keys[i];
        stack->frames[i] = *find_frame_locked(sites, &keys[i]);
        if (stack->frames[i] == 0) {
            *unknown = i;
            return 0;
        }
    }
    stack->hash = hash;
    stack->nframes = nkeys;
    return ++sites->nstacks;
}

uint32_t
dd_call_sites_find(dd_call_sites *sites, const dd_frame_key *frames, size_t nframes, size_t *unknown)
{
    uint64_t hash = hash_of(frames, nframes);
    uint32_t id = atomic_load_explicit(find_stack(sites, hash, frames, nframes), memory_order_acquire);
    if (id != 0) {
        return id;
    }
    *unknown = nframes;
    if (nframes == 0 || atomic_load_explicit(&sites->is_full, memory_order_relaxed)) {
        return 0;
    }
    dd_lock_take(&sites->mu);
    _Atomic(uint32_t) *bucket = find_stack(sites, hash, frames, nframes);
    id = atomic_load_explicit(bucket, memory_order_relaxed);
    if (id == 0) {
        id = add_stack_locked(sites, hash, frames, nframes, unknown);
        atomic_store_explicit(bucket, id, memory_order_release);
    }
    dd_lock_release(&sites->mu);
    return id;
}

/* False: there is no memory. */
static bool
add_frame_locked(dd_call_sites *sites, dd_frame_key key, const dd_frame *frame)
{
    size_t function_size = strlen(frame->function) + 1;
    size_t file_size = strlen(frame->file) + 1;
    char *text = dd_mem_alloc(function_size + file_size);
    if (text == NULL) {
        return false;
    }
    memcpy(text, frame->function, function_size);
    memcpy(text + function_size, frame->file, file_size);
    known_frame *added = &sites->frames[++sites->nframes];
    *added = (known_frame){.key = key, .frame = *frame};
    added->frame.function = text;
    added->frame.file = text + function_size;
    return true;
}

bool
dd_call_sites_tell(dd_call_sites *sites, dd_frame_key key, const dd_frame *frame)
{
    dd_lock_take(&sites->mu);
    uint32_t *bucket = find_frame_locked(sites, &key);
    if (*bucket == 0 && sites->nframes < sites->max_frames && add_frame_locked(sites, key, frame)) {
        *bucket = sites->nframes;
    }
    bool is_known = *bucket != 0;
    if (!is_known) {
        atomic_store_explicit(&sites->is_full, true, memory_order_relaxed);
    }
    dd_lock_release(&sites->mu);
    return is_known;
}

size_t
dd_call_sites_get(dd_call_sites *sites, uint32_t stack, dd_frame frames[DD_STACK_MAX_FRAMES])
{
    const known_stack *known = &sites->stacks[stack <= sites->max_stacks ? stack : 0]; /* 0 has no frames */
    size_t count = 0;
    for (size_t i = 0; i < known->nframes; i++) {
        const dd_frame *frame = &sites->frames[known->frames[i]].frame;
        if (!frame->is_hidden) {
            frames[count++] = *frame;
        }
    }
    return count;
}
