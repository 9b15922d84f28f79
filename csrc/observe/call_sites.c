#include "observe/call_sites.h"

#include "core/lock.h"
#include "core/mem.h"

#include <stdatomic.h>
#include <string.h>

/* A stack of the table. Its data is constant once its number is in a bucket. */
typedef struct known_stack {
    uint64_t hash;
    size_t nkeys;
    dd_call_site_key keys[DD_STACK_MAX_FRAMES];
    size_t nframes;       /* number of frames that are shown */
    dd_call_site *frames; /* the shown frames; owned; their texts follow in the same block */
} known_stack;

/* The table. Stacks are numbered from 1. The arrays follow this struct in the same mapping. */
struct dd_call_sites {
    size_t max_stacks; /* const, like the next four fields */
    /* number of buckets minus one; the buckets are at least twice as many as the stacks */
    size_t mask;
    size_t nbytes;       /* bytes of the whole mapping */
    known_stack *stacks; /* [max_stacks + 1]: the stacks, by their numbers */
    /* [mask + 1]: numbers of stacks, placed by hash. Each bucket is written once, with release. */
    _Atomic(uint32_t) *buckets;
    atomic_bool is_full; /* relaxed, because it is only a hint */
    dd_lock mu;
    uint32_t nstacks; /* guarded by mu */
};

dd_status
dd_call_sites_create(size_t max_stacks, dd_call_sites **sites, dd_error *err)
{
    size_t nbuckets = 16;
    while (nbuckets < 2 * max_stacks) {
        nbuckets *= 2;
    }
    size_t nbytes =
        sizeof **sites + (max_stacks + 1) * sizeof(known_stack) + nbuckets * sizeof(_Atomic(uint32_t));
    dd_call_sites *self = dd_mem_map(nbytes);
    if (self == NULL) {
        return dd_error_no_memory(err, nbytes);
    }
    self->max_stacks = max_stacks;
    self->mask = nbuckets - 1;
    self->nbytes = nbytes;
    self->stacks = (known_stack *)(self + 1);
    self->buckets = (_Atomic(uint32_t) *)(self->stacks + max_stacks + 1);
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
    for (uint32_t i = 1; i <= sites->nstacks; i++) {
        dd_mem_free(sites->stacks[i].frames);
    }
    dd_lock_fini(&sites->mu);
    dd_mem_unmap(sites, sites->nbytes);
}

static uint64_t
hash_of(const dd_call_site_key *keys, size_t nkeys)
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
is_stack_of(const known_stack *stack, uint64_t hash, const dd_call_site_key *keys, size_t nkeys)
{
    bool is_same = stack->hash == hash && stack->nkeys == nkeys;
    for (size_t i = 0; is_same && i < nkeys; i++) {
        is_same = stack->keys[i].code == keys[i].code && stack->keys[i].instruction == keys[i].instruction;
    }
    return is_same;
}

/* Find a stack's bucket, or an empty bucket for the stack. There is always an empty one. */
static _Atomic(uint32_t) *
find_bucket(const dd_call_sites *sites, uint64_t hash, const dd_call_site_key *keys, size_t nkeys)
{
    for (size_t i = (size_t)hash & sites->mask;; i = (i + 1) & sites->mask) {
        uint32_t id = atomic_load_explicit(&sites->buckets[i], memory_order_acquire);
        if (id == 0 || is_stack_of(&sites->stacks[id], hash, keys, nkeys)) {
            return &sites->buckets[i];
        }
    }
}

uint32_t
dd_call_sites_find(const dd_call_sites *sites, const dd_call_site_key *keys, size_t nframes, bool *can_add)
{
    *can_add = nframes > 0 && !atomic_load_explicit(&sites->is_full, memory_order_relaxed);
    return atomic_load_explicit(find_bucket(sites, hash_of(keys, nframes), keys, nframes),
                                memory_order_acquire);
}

static const char *
copy_text(char **at, const char *text)
{
    size_t nbytes = strlen(text) + 1;
    char *copy = memcpy(*at, text, nbytes);
    *at += nbytes;
    return copy;
}

/* Copy the frames that are shown, and their texts, to one block. Return NULL if out of memory. */
static dd_call_site *
copy_frames(const dd_call_site *frames, size_t nframes, size_t *nshown)
{
    size_t nbytes = nframes * sizeof *frames;
    for (size_t i = 0; i < nframes; i++) {
        nbytes += strlen(frames[i].function) + strlen(frames[i].file) + 2;
    }
    dd_call_site *copy = dd_mem_alloc(nbytes);
    char *at = (char *)(copy + nframes);
    for (size_t i = 0; copy != NULL && i < nframes; i++) {
        if (!frames[i].is_hidden) {
            copy[(*nshown)++] = (dd_call_site){.function = copy_text(&at, frames[i].function),
                                               .file = copy_text(&at, frames[i].file),
                                               .line = frames[i].line};
        }
    }
    return copy;
}

static uint32_t
add_locked(dd_call_sites *sites, const known_stack *stack)
{
    _Atomic(uint32_t) *bucket = find_bucket(sites, stack->hash, stack->keys, stack->nkeys);
    uint32_t id = atomic_load_explicit(bucket, memory_order_relaxed);
    if (id == 0 && sites->nstacks < sites->max_stacks) {
        sites->stacks[id = ++sites->nstacks] = *stack;
        atomic_store_explicit(bucket, id, memory_order_release);
    } else {
        dd_mem_free(stack->frames);
    }
    return id;
}

uint32_t
dd_call_sites_add(dd_call_sites *sites, const dd_call_site_key *keys, const dd_call_site *frames,
                  size_t nframes)
{
    known_stack stack = {.hash = hash_of(keys, nframes), .nkeys = nframes};
    memcpy(stack.keys, keys, nframes * sizeof *keys);
    stack.frames = copy_frames(frames, nframes, &stack.nframes);
    uint32_t id = 0;
    if (stack.frames != NULL) {
        dd_lock_take(&sites->mu);
        id = add_locked(sites, &stack);
        dd_lock_release(&sites->mu);
    }
    /* the table is full; after a failed allocation, in contrast, the next attempt may succeed */
    if (id == 0 && stack.frames != NULL) {
        atomic_store_explicit(&sites->is_full, true, memory_order_relaxed);
    }
    return id;
}

size_t
dd_call_sites_get(const dd_call_sites *sites, uint32_t stack, const dd_call_site **frames)
{
    const known_stack *known = &sites->stacks[stack <= sites->max_stacks ? stack : 0];
    *frames = known->frames;
    return known->nframes;
}
