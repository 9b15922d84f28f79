/* The names of the threads that call. */
#include "observe/recorder_internal.h"

#include "core/lock.h"
#include "core/thread.h"
#include <pthread.h>
#include <string.h>

static size_t
place_of(uint64_t self)
{
    return (size_t)((self * UINT64_C(0x9E3779B97F4A7C15)) >> 32) & (THREADS_KNOWN - 1);
}

/* The entry of the thread, or the free one where it belongs; NULL: neither. */
static known_thread *
find_thread(dd_recorder *recorder, uint64_t self)
{
    size_t place = place_of(self);
    for (size_t i = 0; i < THREADS_KNOWN; i++) {
        known_thread *thread = &recorder->threads[(place + i) & (THREADS_KNOWN - 1)];
        uint64_t found = atomic_load_explicit(&thread->self, memory_order_acquire);
        if (found == self || found == 0) {
            return thread;
        }
    }
    return NULL;
}

static void
add_thread(dd_recorder *recorder, uint64_t self)
{
    char name[16] = "";
    dd_thread_own_name(name, sizeof name);
    dd_lock_take(&recorder->threads_mu);
    known_thread *thread = find_thread(recorder, self);
    if (thread != NULL && atomic_load_explicit(&thread->self, memory_order_relaxed) == 0) {
        memcpy(thread->name, name, sizeof name);
        atomic_store_explicit(&thread->self, self, memory_order_release);
    }
    dd_lock_release(&recorder->threads_mu);
}

void
recorder_note_thread(dd_recorder *recorder, uint64_t self)
{
    const known_thread *thread = find_thread(recorder, self);
    if (thread != NULL && atomic_load_explicit(&thread->self, memory_order_relaxed) == 0) {
        add_thread(recorder, self);
    } /* else it is known, or there are too many */
}

void
recorder_print_thread(dd_recorder *recorder, uint64_t self, char name[16])
{
    const known_thread *thread = find_thread(recorder, self);
    bool is_known = thread != NULL && atomic_load_explicit(&thread->self, memory_order_acquire) == self;
    memcpy(name, is_known ? thread->name : "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 16);
}
