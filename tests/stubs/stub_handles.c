#include "stub_internal.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static atomic_long nbad_uses;

void
stub_count_bad_use(void)
{
    atomic_fetch_add(&nbad_uses, 1);
}

long
dd_stub_bad_uses(void)
{
    return atomic_load(&nbad_uses);
}

void
stub_count_add(stub_count *count)
{
    atomic_fetch_add(&count->live, 1);
    atomic_fetch_add(&count->made, 1);
}

void
stub_count_remove(stub_count *count)
{
    atomic_fetch_sub(&count->live, 1);
}

static stub_count *
find_count(const char *kind)
{
    for (stub_count *const *at = stub_counts; *at != NULL; at++) {
        if (strcmp((*at)->kind, kind) == 0) {
            return *at;
        }
    }
    return NULL;
}

long
dd_stub_live(const char *kind)
{
    stub_count *count = find_count(kind);
    return count != NULL ? atomic_load(&count->live) : -1;
}

long
dd_stub_made(const char *kind)
{
    stub_count *count = find_count(kind);
    return count != NULL ? atomic_load(&count->made) : -1;
}

/* ---- handles: 0x00dd'tt'iiiiiii0 with the table's tag t and the index i. They are not valid
 * addresses. */

#define HANDLE_BASE 0x00dd000000000000ull

void
stub_object_init(stub_object *object, void (*free_object)(stub_object *object))
{
    *object = (stub_object){.free = free_object};
    atomic_init(&object->refs, 1);
}

void *
stub_object_acquire(stub_object *object)
{
    atomic_fetch_add(&object->refs, 1);
    return object;
}

void
stub_object_release(stub_object *object)
{
    if (atomic_fetch_sub(&object->refs, 1) == 1) {
        object->free(object);
    }
}

void *
stub_table_add(stub_table *table, stub_object *object)
{
    pthread_mutex_lock(&table->lock);
    if (table->nobjects == table->capacity) {
        table->capacity = table->capacity == 0 ? 64 : 2 * table->capacity;
        table->objects = realloc(table->objects, table->capacity * sizeof(stub_object *));
        if (table->objects == NULL) {
            abort();
        }
    }
    table->objects[table->nobjects++] = object;
    uint64_t number = HANDLE_BASE | (uint64_t)table->tag << 40 | (uint64_t)table->nobjects << 4;
    void *handle = (void *)(uintptr_t)number;
    object->handle = handle;
    pthread_mutex_unlock(&table->lock);
    stub_count_add(table->count);
    return handle;
}

/* Return the address of the table's entry, or NULL if the handle is invalid. */
static stub_object **
slot_locked(stub_table *table, const void *handle)
{
    uint64_t number = (uint64_t)(uintptr_t)handle;
    uint64_t index = (number & 0xfffffffff0ull) >> 4;
    uint64_t expected = HANDLE_BASE | (uint64_t)table->tag << 40 | index << 4;
    if (number != expected || index == 0 || index > table->nobjects || table->objects[index - 1] == NULL) {
        stub_count_bad_use();
        return NULL;
    }
    return &table->objects[index - 1];
}

void *
stub_table_find(stub_table *table, const void *handle)
{
    pthread_mutex_lock(&table->lock);
    stub_object **slot = slot_locked(table, handle);
    void *object = slot != NULL ? stub_object_acquire(*slot) : NULL;
    pthread_mutex_unlock(&table->lock);
    return object;
}

void *
stub_table_remove(stub_table *table, const void *handle)
{
    pthread_mutex_lock(&table->lock);
    stub_object **slot = slot_locked(table, handle);
    stub_object *object = NULL;
    if (slot != NULL) {
        object = *slot;
        *slot = NULL;
    }
    pthread_mutex_unlock(&table->lock);
    if (object != NULL) {
        stub_count_remove(table->count);
    }
    return object;
}

void
stub_table_each(stub_table *table, void (*visit)(stub_object *object, void *ctx), void *ctx)
{
    pthread_mutex_lock(&table->lock);
    for (size_t i = 0; i < table->nobjects; i++) {
        if (table->objects[i] != NULL) {
            visit(table->objects[i], ctx);
        }
    }
    pthread_mutex_unlock(&table->lock);
}

/* ---- helpers */

void *
stub_zalloc(size_t nbytes)
{
    void *memory = calloc(1, nbytes > 0 ? nbytes : 1);
    if (memory == NULL) {
        abort();
    }
    return memory;
}

int64_t
stub_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static struct timespec
timespec_of(int64_t ns)
{
    return (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
}

void
stub_sleep_ns(int64_t duration_ns)
{
    struct timespec duration = timespec_of(duration_ns);
    while (nanosleep(&duration, &duration) != 0 && errno == EINTR) {
    }
}

void
stub_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
}

void
stub_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline_ns)
{
    struct timespec deadline = timespec_of(deadline_ns);
    (void)pthread_cond_timedwait(cond, lock, &deadline);
}

void
stub_thread_start(const char *name, void *(*run)(void *), void *arg)
{
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    int failure = pthread_create(&thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failure != 0) {
        fprintf(stderr, "stubs: a thread (%s) cannot be started: %s\n", name, strerror(failure));
        abort();
    }
    pthread_setname_np(thread, name);
    pthread_detach(thread);
}
