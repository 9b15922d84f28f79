/* The policy of waiting: when a thread looks again, when it gives its core away, and when it sleeps. All of its numbers are here.
 *
 * A wait has up to four stages. A caller first looks a counted number of times, with a pause of some nanoseconds between two looks:
 * an answer from another core takes less than a microsecond. Then it polls for a time, since waking a thread costs tens of
 * microseconds; the time adapts, from LEAST (what a wake-up costs) to the most that the caller allows, by whether polling would
 * have spared the last sleeps. If the ranks outnumber the cores, the awaited thread probably needs this core, and the waiting one yields
 * between two looks; elsewhere a yield can cost the rest of a time slice, so it does not. Then it sleeps until it is woken.
 *
 * Some things wake no thread: a library that moves a group's data, or NCCL's works. For those there are naps instead of a sleep. */
#ifndef DD_CORE_WAIT_POLICY_H
#define DD_CORE_WAIT_POLICY_H

#include "core/clock.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- looks */

/* By a caller that holds what other threads need, as Python's lock: less than a microsecond. */
#define DD_LOOKS_HASTY 16
/* By a caller of a collective or a message: the other ranks usually arrive within a microsecond or two. */
#define DD_LOOKS_PATIENT 64
/* At a word of a window, which needs no lock. With more ranks than cores, each look yields. */
#define DD_LOOKS_AT_WORD 512
#define DD_LOOKS_AT_WORD_CROWDED 8
/* At the engine's lock, which a driver gives up after each round. */
#define DD_LOOKS_AT_LOCK 200
/* At a library's operation, before a failing group gives it up: what a rank has sent before it left is found by then. */
#define DD_LOOKS_LAST 1000
/* Looks for each yield where ranks share a core. */
#define DD_LOOKS_PER_YIELD 4
/* Looks at one peer that cost as much as a round of everything. */
#define DD_LOOKS_PER_ROUND 16
/* Rounds for each look at the clock. */
#define DD_ROUNDS_PER_CLOCK 16u

/* ---- polling, at most */

/* For peers: a caller that drives the engine. */
#define DD_POLL_PEERS_NS (1 * DD_NS_PER_MS)
/* For ranks of a large collective, by a thread that holds no lock: no rank needs longer for a piece. Ranks that outnumber the cores
 * publish late, since they take turns. */
#define DD_POLL_PIECE_NS (100 * DD_NS_PER_US)
#define DD_POLL_PIECE_CROWDED_NS (1 * DD_NS_PER_MS)
/* By the engine's own thread, which takes its core from threads that compute. */
#define DD_POLL_BACKGROUND_NS (150 * DD_NS_PER_US)
/* For a store's server, and by it for its clients: longer than it takes to wake the other. */
#define DD_POLL_STORE_NS (200 * DD_NS_PER_US)
/* For a thread of this process that makes calls of a library, one after the other. */
#define DD_POLL_THREAD_NS (50 * DD_NS_PER_US)
/* For a GPU's event, before naps. */
#define DD_POLL_EVENT_NS (20 * DD_NS_PER_US)
/* A yield that took this long went to a thread that computes: sleep now, to run first when there is something. */
#define DD_YIELD_LONG_NS (1 * DD_NS_PER_MS)

/* ---- naps */

/* While a library has an operation. For the first AWAKE it is polled instead. */
#define DD_NAP_LIBRARY_NS DD_NS_PER_MS
#define DD_AWAKE_LIBRARY_NS (50 * DD_NS_PER_MS)
/* For a GPU's event: twice as long each time. */
#define DD_NAP_EVENT_MIN_NS (50 * DD_NS_PER_US)
#define DD_NAP_EVENT_MAX_NS DD_NS_PER_MS
/* Of the engine's own thread, which takes over if no caller has driven in the meantime: while callers come and go, since its wake-up may take
 * a core from one of them; else; and while another host counts on answers. */
#define DD_NAP_ENGINE_LONG_NS (100 * DD_NS_PER_MS)
#define DD_NAP_ENGINE_NS (10 * DD_NS_PER_MS)
#define DD_NAP_ENGINE_ATTENTIVE_NS (150 * DD_NS_PER_US)

/* ---- the time of polling, which adapts */

typedef struct dd_spin {
    int64_t most_ns;        /* how long to poll, at most; 0 for not at all */
    int64_t budget_ns;      /* how long to poll next */
    int64_t waits_since_ns; /* 0: does not wait; of dd_spin_goes_on */
} dd_spin;

/* What a user who knows better may ask for. The numbers are the Python package's, too. */
typedef enum dd_spin_policy {
    DD_SPIN_ADAPTIVE,
    DD_SPIN_POLL,  /* for those who own their cores: never sleeps, however long the wait */
    DD_SPIN_SLEEP, /* does not poll */
} dd_spin_policy;

/* The spin never polls if the machine has one core, or if the quota of the process is one core: polling would take the time of the
 * thread that is awaited. The affinity does not count: ranks that are bound to one core each wait for ranks on other cores.
 * Reads files. */
dd_spin dd_spin_make(int64_t most_ns);
/* Before the first wait. */
void dd_spin_set_policy(dd_spin *spin, dd_spin_policy policy);
bool dd_spin_is_endless(const dd_spin *spin); /* DD_SPIN_POLL */

/* How long a wait has lasted from its first look on, the sleep included. */
void dd_spin_note_wait(dd_spin *spin, int64_t waited_ns);

/* For a thread that waits for one thing, which another process or thread is to do, perhaps on this core. After a look that has found
 * nothing: gives the core away once. False: it is time to sleep. */
bool dd_spin_goes_on(dd_spin *spin);
/* It has come: notes how long that took, if it was waited for. */
void dd_spin_end_wait(dd_spin *spin);

/* Between two looks: lets the core rest for some nanoseconds. */
static inline void
dd_spin_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
