#include "core/fork.h"
#include "core/assert.h"
#include "core/lock.h"

#include "core/mem.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

/* State of the process (like its pid), not of an object, so it may be global. */
static atomic_uint_fast64_t generation;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static dd_lock register_mu = DD_LOCK_INITIALIZER(DD_LOCK_FORK);
/* guarded by register_mu; one bit for each descriptor that a forked child must close */
static uint64_t *owned_bits;
static size_t owned_words;

static void
before_fork(void)
{
    dd_lock_take(&register_mu);
}

static void
after_fork_in_parent(void)
{
    dd_lock_release(&register_mu);
}

/* May use only system calls and plain memory, which are safe in the child of a threaded process. */
static void
after_fork_in_child(void)
{
    atomic_fetch_add_explicit(&generation, 1, memory_order_relaxed);
    for (size_t word = 0; word < owned_words; word++) {
        for (; owned_bits[word] != 0; owned_bits[word] &= owned_bits[word] - 1) {
            close((int)(word * 64 + (size_t)__builtin_ctzll(owned_bits[word])));
        }
    }
    dd_lock_release(&register_mu);
}

static void
watch_forks(void)
{
    (void)pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

uint64_t
dd_fork_generation(void)
{
    (void)pthread_once(&once, watch_forks);
    return atomic_load_explicit(&generation, memory_order_relaxed);
}

/* Make space for `words` words of bits. If there is no memory, the descriptor is not registered: it
 * stays open in a forked child, which is better than a failure. */
static void
grow_register_locked(size_t words)
{
    dd_assert_holds(FORK);
    if (words <= owned_words) {
        return;
    }
    uint64_t *bits = dd_mem_realloc(owned_bits, words * 2 * sizeof *bits);
    if (bits != NULL) {
        memset(bits + owned_words, 0, (words * 2 - owned_words) * sizeof *bits);
        owned_bits = bits;
        owned_words = words * 2;
    }
}

int
dd_fork_register(int fd)
{
    if (fd < 0) {
        return fd;
    }
    (void)pthread_once(&once, watch_forks);
    size_t word = (size_t)fd / 64;
    int saved_errno = errno;
    dd_lock_take(&register_mu);
    grow_register_locked(word + 1);
    if (word < owned_words) {
        owned_bits[word] |= UINT64_C(1) << (fd % 64);
    }
    dd_lock_release(&register_mu);
    errno = saved_errno;
    return fd;
}

void
dd_fork_close(int fd)
{
    if (fd < 0) {
        return;
    }
    size_t word = (size_t)fd / 64;
    dd_lock_take(&register_mu);
    if (word < owned_words) {
        owned_bits[word] &= ~(UINT64_C(1) << (fd % 64));
    }
    /* Close under the lock: a fork between the two steps would give the child a descriptor that it
     * never closes. */
    close(fd);
    dd_lock_release(&register_mu);
}
