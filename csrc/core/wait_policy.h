/* The policy of waiting: when a thread looks again, when it yields its core, and when it sleeps.
 * All of its numbers are here.
 *
 * A wait has up to four stages. A caller first looks a counted number of times, with a pause of
 * some nanoseconds between two looks: an answer from another core takes less than a microsecond.
 * Then it polls for a time, since waking a thread takes tens of microseconds. This time adapts,
 * between LEAST (the cost of a wake-up) and the caller's maximum, by whether polling would have
 * avoided the last sleeps. If the ranks outnumber the cores, the awaited thread probably needs this
 * core, so the waiting thread yields between two looks; otherwise a yield can cost a time slice, so
 * it does not. Then it sleeps until it is woken. Some events wake no thread: those of a library
 * that moves a group's data, or NCCL's works. For these it naps. */
#ifndef DD_CORE_WAIT_POLICY_H
#define DD_CORE_WAIT_POLICY_H

#include "core/clock.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- looks */

/* By a caller that holds a lock that other threads need, such as Python's: below a microsecond. */
#define DD_POLLS_HASTY 16
/* By a caller of a collective or a message: the others usually arrive within 2 microseconds. */
#define DD_POLLS_PATIENT 64
/* At a word of a window, without a lock. With more ranks than cores, each look yields. */
#define DD_POLLS_OF_WORD 512
#define DD_POLLS_OF_WORD_CROWDED 8
/* At the engine's lock, which a driver releases after each round. */
#define DD_POLLS_OF_LOCK 200
/* At a library's operation before a failing group abandons it: enough to find data that a rank sent
 * before it left. */
#define DD_POLLS_LAST 1000
/* Looks per yield if ranks share a core. */
#define DD_POLLS_PER_YIELD 4
/* Number of looks at one peer that cost as much as a round over everything. */
#define DD_POLLS_PER_ROUND 16
/* Rounds per reading of the clock. */
#define DD_ROUNDS_PER_CLOCK 16u

/* ---- polling, maximum times */

/* For peers, by a caller that drives the engine. */
#define DD_POLL_PEERS_NS (1 * DD_NS_PER_MS)
/* For ranks of a large collective, by a thread that holds no lock: no rank needs longer for a
 * piece. Ranks that outnumber the cores take turns, and so publish later. */
#define DD_POLL_PIECE_NS (100 * DD_NS_PER_US)
#define DD_POLL_PIECE_CROWDED_NS (1 * DD_NS_PER_MS)
/* By the engine's own thread, which takes its core from computing threads. */
#define DD_POLL_BACKGROUND_NS (150 * DD_NS_PER_US)
/* For a store's server, and by it for its clients: longer than waking the other takes. */
#define DD_POLL_STORE_NS (200 * DD_NS_PER_US)
/* For a thread of this process that makes a library's calls one by one. */
#define DD_POLL_THREAD_NS (50 * DD_NS_PER_US)
/* For a GPU's event, before naps. */
#define DD_POLL_EVENT_NS (20 * DD_NS_PER_US)
/* A yield this long ran a computing thread: sleep now, to run first when woken. */
#define DD_YIELD_LONG_NS (1 * DD_NS_PER_MS)

/* ---- naps */

/* While a library has an operation. For the first AWAKE it is polled instead. */
#define DD_NAP_LIBRARY_NS DD_NS_PER_MS
#define DD_AWAKE_LIBRARY_NS (50 * DD_NS_PER_MS)
/* For a GPU's event; doubles each time. */
#define DD_NAP_EVENT_MIN_NS (50 * DD_NS_PER_US)
#define DD_NAP_EVENT_MAX_NS DD_NS_PER_MS
/* Of the engine's own thread, which takes over if no caller has driven since the last nap. LONG:
 * while callers drive repeatedly, since its wake-up may take a core from one of them. ATTENTIVE:
 * while another host relies on answers. */
#define DD_NAP_ENGINE_LONG_NS (100 * DD_NS_PER_MS)
#define DD_NAP_ENGINE_NS (10 * DD_NS_PER_MS)
#define DD_NAP_ENGINE_PROMPT_NS (150 * DD_NS_PER_US)

/* ---- adaptive polling */

typedef struct dd_spin {
    int64_t max_ns;         /* longest time to poll; 0 to never poll */
    int64_t budget_ns;      /* time to poll in the next wait */
    int64_t waits_since_ns; /* used by dd_spin_may_continue; 0 if there is no wait */
} dd_spin;

/* Policies that a user can choose. The Python package uses the same numbers. */
typedef enum dd_spin_policy {
    DD_SPIN_ADAPTIVE,
    DD_SPIN_POLL,  /* never sleeps, however long the wait; for ranks with cores of their own */
    DD_SPIN_SLEEP, /* never polls */
} dd_spin_policy;

/* Create a spin. It never polls if the machine has one core, or if the process's quota is one core:
 * polling would take time from the awaited thread. The affinity does not matter: ranks bound to one
 * core each wait for ranks on other cores. Reads files. */
dd_spin dd_spin_create(int64_t most_ns);
/* Set a policy. Must be called before the first wait. */
void dd_spin_set_policy(dd_spin *spin, dd_spin_policy policy);
bool dd_spin_is_endless(const dd_spin *spin); /* DD_SPIN_POLL */

/* Record the time of a wait from its first look on, including the sleep. */
void dd_spin_note_wait(dd_spin *spin, int64_t waited_ns);

/* Continue to wait for one event that another process or thread causes, perhaps on this core. Call
 * it after a look that found nothing: it yields once. Return false if it is time to sleep. */
bool dd_spin_may_continue(dd_spin *spin);
/* End the wait when the event has happened, and record its time, if there was a wait. */
void dd_spin_end_wait(dd_spin *spin);

/* Let the core rest for some nanoseconds between two looks. */
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
