/* The policy of waiting: when a thread polls again, when it yields its core, and when it sleeps.
 * All constants of this policy are here.
 *
 * A wait has up to four stages. First the caller polls a fixed number of times, with a pause of
 * some nanoseconds between two polls: an answer from another core takes less than a microsecond.
 * Then it polls for a time, because waking a thread takes tens of microseconds. This time adapts,
 * between LEAST_NS (the cost of a wake-up) and the caller's maximum: it grows if polling would have
 * avoided the last sleeps, and shrinks otherwise. If the ranks outnumber the cores, the awaited
 * thread probably needs this core, so the waiting thread yields between two polls; otherwise it
 * does not, because a yield can cost a time slice. Then the thread sleeps until it is woken. Some
 * events wake no thread: events of a library that moves a group's data, and of NCCL's works. For
 * such events the thread naps: it sleeps for a short time and polls again. */
#ifndef DD_CORE_WAIT_POLICY_H
#define DD_CORE_WAIT_POLICY_H

#include "core/clock.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- numbers of polls */

/* Number of polls by a caller whose lock others need (Python's): less than a microsecond. */
#define DD_POLLS_HASTY 16
/* Number of polls for a collective or a message: ranks usually arrive within 2 microseconds. */
#define DD_POLLS_PATIENT 64
/* Number of polls of a window's word, unlocked. CROWDED: if ranks share cores; each poll yields. */
#define DD_POLLS_OF_WORD 512
#define DD_POLLS_OF_WORD_CROWDED 8
/* Number of polls of the engine's lock, which the driving thread releases after each round. */
#define DD_POLLS_OF_LOCK 200
/* Number of polls of a carrier library's operation before a failing group abandons it: enough to
 * find data that a rank sent before it left. */
#define DD_POLLS_LAST 1000
/* Number of polls between two yields if ranks share a core. */
#define DD_POLLS_PER_YIELD 4
/* Number of polls of one peer that cost as much as one round over all links of the engine. */
#define DD_POLLS_PER_ROUND 16
/* Number of rounds of the engine between two readings of the clock. */
#define DD_ROUNDS_PER_CLOCK 16u

/* ---- maximum times of polling */

/* Maximum time that a caller which drives the engine polls for peers. */
#define DD_POLL_PEERS_NS (1 * DD_NS_PER_MS)
/* Maximum time that a thread without a lock polls for other ranks of a large collective: no rank
 * needs longer for a piece. CROWDED: the time if ranks share cores, since they then take turns. */
#define DD_POLL_PIECE_NS (100 * DD_NS_PER_US)
#define DD_POLL_PIECE_CROWDED_NS (1 * DD_NS_PER_MS)
/* Maximum time that the engine's own thread polls, which takes its core from computing threads. */
#define DD_POLL_BACKGROUND_NS (150 * DD_NS_PER_US)
/* Maximum time that a client polls for a store's server, and the server for its clients; longer
 * than it takes to wake the other process. */
#define DD_POLL_STORE_NS (200 * DD_NS_PER_US)
/* Maximum time to poll for a thread of this process that calls a library for the others. */
#define DD_POLL_THREAD_NS (50 * DD_NS_PER_US)
/* Maximum time to poll for a GPU's event before the thread naps. */
#define DD_POLL_EVENT_NS (20 * DD_NS_PER_US)
/* A yield that takes this long has run a computing thread. The caller must then sleep, because a
 * thread that is woken runs before a thread that polls. */
#define DD_YIELD_LONG_NS (1 * DD_NS_PER_MS)

/* ---- naps */

/* Time to nap while a carrier library runs an operation. For the first DD_AWAKE_LIBRARY_NS of the
 * operation, the thread polls instead. */
#define DD_NAP_LIBRARY_NS DD_NS_PER_MS
#define DD_AWAKE_LIBRARY_NS (50 * DD_NS_PER_MS)
/* Shortest and longest time to nap for a GPU's event; the time doubles with each nap. */
#define DD_NAP_EVENT_MIN_NS (50 * DD_NS_PER_US)
#define DD_NAP_EVENT_MAX_NS DD_NS_PER_MS
/* Time that the engine's own thread naps before it checks whether callers have driven the engine;
 * if not, it drives. LONG: while callers drive repeatedly, because waking this thread may take a
 * core from a caller. PROMPT: while another host relies on answers. */
#define DD_NAP_ENGINE_LONG_NS (100 * DD_NS_PER_MS)
#define DD_NAP_ENGINE_NS (10 * DD_NS_PER_MS)
#define DD_NAP_ENGINE_PROMPT_NS (150 * DD_NS_PER_US)

/* ---- polling for an adaptive time */

typedef struct dd_spin {
    int64_t max_ns;         /* longest time to poll; 0 to never poll */
    int64_t budget_ns;      /* time to poll in the next wait */
    int64_t waits_since_ns; /* start of the current wait; 0 if no wait is in progress */
} dd_spin;

/* Policies of waiting that a user can choose. The Python package uses the same numbers. */
typedef enum dd_spin_policy {
    DD_SPIN_ADAPTIVE,
    DD_SPIN_POLL,  /* poll without a limit and never sleep; for ranks with their own cores */
    DD_SPIN_SLEEP, /* never poll */
} dd_spin_policy;

/* Create the state of an adaptive wait. It never polls if the machine, or the quota of the process,
 * has only one core, because polling would take time from the awaited thread. The affinity does not
 * matter: ranks that are bound to one core each wait for ranks on other cores. Reads files. */
dd_spin dd_spin_create(int64_t most_ns);
/* Set the policy of waiting. Must be called before the first wait. */
void dd_spin_set_policy(dd_spin *spin, dd_spin_policy policy);
bool dd_spin_is_endless(const dd_spin *spin); /* true for the policy DD_SPIN_POLL */

/* Record the duration of a wait, from its first poll to its end, including any sleep. */
void dd_spin_note_wait(dd_spin *spin, int64_t waited_ns);

/* Return true if the caller must poll again (this yields once), false if it must sleep. Call this
 * after each poll that found nothing, in a wait for one event of another process or thread. */
bool dd_spin_may_continue(dd_spin *spin);
/* Record the end of a wait, when the event has happened. No effect if dd_spin_may_continue was not
 * called since the last wait. */
void dd_spin_end_wait(dd_spin *spin);

/* Pause the core for some nanoseconds between two polls. */
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
