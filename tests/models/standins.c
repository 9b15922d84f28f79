/* Replacements for system functions: memory, bells, locks and conditions, the fence of
 * core/fence.h, and clocks that never advance. */
#include "models/checker_internal.h"

#include "core/clock.h"
#include "core/fence.h"
#include "core/fork.h"
#include "core/lock.h"
#include "core/mem.h"
#include "core/shared_memory.h"
#include "core/system.h"
#include "core/thread.h"
#include "core/wait_policy.h"
#include "kernels/copy.h"
#include "models/standins.h"

#include <stdlib.h>
#include <string.h>

/* ---- memory: separate for each thread, so that allocations of one do not change addresses of
 * another */

#define HEAP_NBYTES ((size_t)64 << 20)
#define THREAD_HEAP_NBYTES ((size_t)1 << 20)
#define ALIGNMENT ((size_t)4096)

#define LINE ((size_t)64)

static _Alignas(4096) uint8_t heap[HEAP_NBYTES];
static size_t heap_used;
static uint8_t owners[HEAP_NBYTES / LINE]; /* owner thread + 1; 0: shared */
static int allocates_for = -1;

typedef struct owned_block {
    uint8_t *at;
    size_t nbytes;
    int owner;
} owned_block;

#define MAX_OWNED 64
static owned_block owned[MAX_OWNED];
static int nowned;

static _Alignas(4096) uint8_t thread_heaps[CHECKER_MAX_THREADS][THREAD_HEAP_NBYTES];
static size_t thread_heaps_used[CHECKER_MAX_THREADS];

static uint8_t *
take_from(uint8_t *from, size_t *used, size_t capacity, size_t nbytes)
{
    size_t whole = (nbytes + LINE - 1) / LINE * LINE;
    size_t begin = nbytes >= ALIGNMENT ? (*used + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT : *used;
    if (begin + whole > capacity) {
        (void)fprintf(stderr, "the scenario needs too much memory\n");
        abort();
    }
    *used = begin + whole;
    return from + begin;
}

void *
checker_alloc(size_t nbytes)
{
    int self = checker_self();
    if (self >= 0) {
        return take_from(thread_heaps[self], &thread_heaps_used[self], THREAD_HEAP_NBYTES, nbytes);
    }
    uint8_t *block = take_from(heap, &heap_used, HEAP_NBYTES, nbytes);
    for (size_t i = (size_t)(block - heap); i < heap_used; i += LINE) {
        owners[i / LINE] = (uint8_t)(allocates_for + 1);
    }
    if (allocates_for >= 0) {
        if (nowned == MAX_OWNED) {
            abort();
        }
        owned[nowned++] = (owned_block){block, nbytes / 8 * 8, allocates_for};
    }
    return block;
}

void
checker_allocate_for(int thread)
{
    allocates_for = thread;
}

int
standins_owner_of(const void *at)
{
    uintptr_t offset = (uintptr_t)at - (uintptr_t)heap;
    return offset < HEAP_NBYTES ? owners[offset / LINE] - 1 : -1;
}

void
checker_forget(uint64_t where)
{
    uint64_t hash = where;
    for (int i = 0; i < nowned; i++) {
        for (size_t k = 0; owned[i].owner == checker_self() && k < owned[i].nbytes; k += 8) {
            uint64_t word;
            memcpy(&word, owned[i].at + k, sizeof word);
            hash = (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15);
            hash ^= hash >> 32;
        }
    }
    explore_forget_seen(hash);
    buffering_forget();
}

void *
dd_mem_alloc(size_t nbytes)
{
    return checker_alloc(nbytes);
}

void *
dd_mem_zalloc(size_t nbytes)
{
    return checker_alloc(nbytes); /* memory is never reused */
}

void *
dd_mem_alloc_array(size_t count, size_t size)
{
    return checker_alloc(count * size);
}

void
dd_mem_free(void *ptr)
{
    (void)ptr;
}

void *
dd_mem_map(size_t nbytes)
{
    return checker_alloc(nbytes);
}

void
dd_mem_unmap(void *pages, size_t nbytes)
{
    (void)pages;
    (void)nbytes;
}

/* ---- shared memory of processes: one object, which is always mapped */

static uint8_t *shared;
static size_t shared_nbytes;

dd_status
dd_shared_memory_create(const char *name, size_t nbytes, int *fd, dd_error *err)
{
    (void)name;
    (void)err;
    int owner = allocates_for;
    allocates_for = -1;
    shared = checker_alloc(nbytes);
    shared_nbytes = nbytes;
    allocates_for = owner;
    *fd = CHECKER_MEMORY_FD;
    return DD_OK;
}

dd_status
dd_shared_memory_measure(int fd, size_t *nbytes, dd_error *err)
{
    (void)fd;
    (void)err;
    *nbytes = shared_nbytes;
    return DD_OK;
}

void *
dd_sys_mmap(void *at, size_t nbytes, int access, int flags, int fd, off_t from)
{
    (void)at;
    (void)nbytes;
    (void)access;
    (void)flags;
    (void)fd;
    (void)from;
    return shared;
}

int
dd_sys_munmap(void *at, size_t nbytes)
{
    (void)at;
    (void)nbytes;
    return 0;
}

int
dd_sys_madvise(void *at, size_t nbytes, int advice)
{
    (void)at;
    (void)nbytes;
    (void)advice;
    return 0;
}

ssize_t
dd_sys_pwrite(int fd, const void *data, size_t nbytes, off_t at)
{
    (void)fd;
    memcpy(shared + at, data, nbytes);
    return (ssize_t)nbytes;
}

ssize_t
dd_sys_pread(int fd, void *data, size_t nbytes, off_t at)
{
    (void)fd;
    memcpy(data, shared + at, nbytes);
    return (ssize_t)nbytes;
}

void
dd_fork_close(int fd)
{
    (void)fd;
}

/* ---- copies: non-temporal stores are visible to a thread that sees a later release
 * (kernels/copy.h) */

void *checker_memmove(void *dst, const void *src, size_t nbytes);

void
dd_copy(void *dst, const void *src, size_t nbytes)
{
    (void)checker_memmove(dst, src, nbytes);
}

void
dd_copy_streaming(void *dst, const void *src, size_t nbytes)
{
    (void)checker_memmove(dst, src, nbytes);
}

/* ---- clocks, processors, processes */

int64_t
dd_clock_now_ns(void)
{
    return 0;
}

uint64_t
dd_fork_generation(void)
{
    return 0;
}

int
dd_sys_sched_getcpu(void)
{
    return checker_self() + 1;
}

int
dd_sys_sched_yield(void)
{
    return 0;
}

int
dd_sys_nanosleep(const struct timespec *time, struct timespec *left)
{
    (void)time;
    (void)left;
    explore_yield(NULL, NULL);
    return 0;
}

/* ---- bells: the kernel orders only the sender and the receiver of a ring */

static bool
to_sum(uint64_t before, uint64_t operand, uint64_t expected, uint64_t *after)
{
    (void)expected;
    *after = before + operand;
    return true;
}

static bool
to_operand(uint64_t before, uint64_t operand, uint64_t expected, uint64_t *after)
{
    (void)before;
    (void)expected;
    *after = operand;
    return true;
}

/* Change the last value, as the kernel does after all earlier changes. */
static uint64_t
change_latest(void *at, memory_change *how, uint64_t operand)
{
    memory_rmw rmw = {
        .at = at, .size = 4, .change = how, .operand = operand, .order = ORDER_ACQ_REL, .is_latest = true};
    return memory_change_value(&rmw);
}

void
checker_ring(checker_bell *bell, uint32_t nrings)
{
    (void)change_latest(bell, to_sum, nrings);
    if (explore_is_tracing()) {
        explore_trace("rings");
    }
}

static bool
is_not_zero(const void *at)
{
    return memory_latest(at, 4) != 0;
}

static bool
is_zero(const void *at)
{
    return memory_latest(at, 4) == 0;
}

void
checker_sleep(const checker_bell *bell)
{
    if (explore_is_tracing()) {
        explore_trace("sleeps");
    }
    explore_yield(is_not_zero, (const void *)bell);
}

uint32_t
checker_take_rings(checker_bell *bell)
{
    return (uint32_t)change_latest(bell, to_operand, 0);
}

static bool
has_news(const void *thread)
{
    return memory_has_news((int)(intptr_t)thread);
}

void
checker_poll(void)
{
    if (memory_was_poll_unchanged()) {
        explore_prune();
    }
    memory_end_look();
    if (explore_is_tracing()) {
        explore_trace("polls");
    }
    explore_yield(has_news, (const void *)(intptr_t)checker_self());
    memory_begin_look();
}

/* ---- locks: a word that is 1 while the lock is held */

static void *
word_of(dd_lock *lock)
{
    return &lock->mutex;
}

void
dd_lock_init(dd_lock *lock, dd_lock_kind kind)
{
    lock->kind = kind;
    memory_store(word_of(lock), 4, 0, ORDER_RELAXED, NULL);
}

void
dd_lock_fini(dd_lock *lock)
{
    (void)lock;
}

void
dd_lock_take(dd_lock *lock)
{
    if (checker_self() >= 0) {
        explore_yield(is_zero, word_of(lock));
        while (change_latest(word_of(lock), to_operand, 1) != 0) {
            explore_yield(is_zero, word_of(lock));
        }
    }
}

bool
dd_lock_try(dd_lock *lock)
{
    return checker_self() < 0 || change_latest(word_of(lock), to_operand, 1) == 0;
}

void
dd_lock_release(dd_lock *lock)
{
    if (checker_self() >= 0) {
        (void)change_latest(word_of(lock), to_operand, 0);
    }
}

/* A condition is a count of its signals. Each signal has at most one waiting thread. */
void
dd_cond_init(pthread_cond_t *cond)
{
    memory_store(cond, 4, 0, ORDER_RELAXED, NULL);
}

void
dd_cond_fini(pthread_cond_t *cond)
{
    (void)cond;
}

void
dd_cond_signal(pthread_cond_t *cond)
{
    (void)change_latest(cond, to_sum, 1);
}

typedef struct cond_wait {
    const void *cond;
    uint64_t before;
} cond_wait;

static bool
is_signalled(const void *arg)
{
    const cond_wait *wait = arg;
    return memory_latest(wait->cond, 4) != wait->before;
}

static int64_t patience_ns = -1;

void
checker_set_patience(int64_t ns)
{
    patience_ns = ns;
}

/* Wait for a signal. A thread that is not woken never continues. */
static void
wait_for_signal(pthread_cond_t *cond, dd_lock *lock)
{
    cond_wait wait = {.cond = cond, .before = memory_latest(cond, 4)};
    dd_lock_release(lock);
    explore_yield(is_signalled, &wait);
    dd_lock_take(lock);
}

void
dd_cond_wait(pthread_cond_t *cond, dd_lock *lock)
{
    wait_for_signal(cond, lock);
}

void
dd_cond_wait_until(pthread_cond_t *cond, dd_lock *lock, const struct timespec *until)
{
    int64_t until_ns = until->tv_sec * DD_NS_PER_S + until->tv_nsec;
    if (until_ns <= patience_ns) {
        dd_lock_release(lock);
        dd_lock_take(lock);
    } else {
        wait_for_signal(cond, lock);
    }
}

void
dd_cond_wait_slice(pthread_cond_t *cond, dd_lock *lock, const dd_wait *wait)
{
    (void)wait;
    wait_for_signal(cond, lock);
}

/* ---- the fence of all processes */

static bool is_fenced[CHECKER_MAX_THREADS];
static bool was_fenced[CHECKER_MAX_THREADS]; /* the state after setup */
static bool are_fences_refused;

void
checker_set_fenced(bool is_now_fenced)
{
    for (int i = 0; i < CHECKER_MAX_THREADS; i++) {
        if (checker_self() < 0 || checker_self() == i) {
            is_fenced[i] = is_now_fenced;
        }
    }
}

void
checker_refuse_fences(void)
{
    are_fences_refused = true;
}

bool
dd_fence_is_registered(void)
{
    return is_fenced[checker_self() < 0 ? 0 : checker_self()];
}

/* The other threads execute their fences one after the other, in any order and interleaved with
 * other accesses. The calling thread executes its own with the first and with the last of these:
 * more fences would only restrict other threads. */
bool
dd_fence_all(void)
{
    if (are_fences_refused) {
        return false;
    }
    memory_order_ order = weaken_order(__builtin_return_address(0), SITE_FENCE, ORDER_SEQ_CST);
    if (checker_self() < 0 || order != ORDER_SEQ_CST) {
        return true;
    }
    int left[CHECKER_MAX_THREADS];
    int nleft = 0;
    memory_fence(order);
    for (int i = 0; i < explore_current()->nthreads; i++) {
        if (i != checker_self() && is_fenced[i]) {
            left[nleft++] = i;
        }
    }
    while (nleft > 0) {
        int which = explore_choose(nleft);
        memory_fence_other(left[which]);
        if (explore_is_tracing()) {
            explore_trace("fences %d", left[which]);
        }
        explore_note_seen((uint64_t)left[which]);
        left[which] = left[--nleft];
        if (nleft > 0) {
            explore_yield(NULL, NULL);
        }
    }
    memory_fence_other(checker_self());
    return true;
}

void
standins_begin_scenario(void)
{
    memset(heap, 0, heap_used);
    memset(owners, 0, heap_used / LINE);
    allocates_for = -1;
    nowned = 0;
    nowned = 0;
    heap_used = 0;
    are_fences_refused = false;
    patience_ns = -1;
    memset(is_fenced, 0, sizeof is_fenced);
}

void
standins_end_setup(void)
{
    memcpy(was_fenced, is_fenced, sizeof is_fenced);
}

void
standins_begin_run(void)
{
    memset(thread_heaps_used, 0, sizeof thread_heaps_used);
    memcpy(is_fenced, was_fenced, sizeof is_fenced);
}
