/* Polling for a while before sleeping.
 *
 * Waking a thread costs tens of microseconds, an answer from another core less than one: so a short poll always
 * comes before sleep. The longer part of a poll gives the core away at times. Others that poll give it back at
 * once; when two such yields in a row take long, somebody works on this core. Then waits rest: for a while, and
 * that is a length of time and no number of waits, they poll shortly and sleep. One long yield alone proves
 * nothing, since the host of a virtual machine takes a core away, too. */
#ifndef DD_CORE_SPIN_H
#define DD_CORE_SPIN_H

#include <stdbool.h>
#include <stdint.h>

typedef struct dd_spin {
    int64_t budget_ns;      /* how long to poll, at most; 0 for not at all */
    int64_t rests_until_ns; /* 0: does not rest */
    int64_t last_long_ns;   /* how long the last yield took if that was long, else 0 */
} dd_spin;

/* What a user may ask for who knows better. The numbers are the Python package's, too. */
typedef enum dd_spin_policy {
    DD_SPIN_ADAPTIVE, /* as said above */
    DD_SPIN_POLL, /* for those who own their cores: never sleeps, however long the wait and whatever yields take */
    DD_SPIN_SLEEP, /* does not poll */
} dd_spin_policy;

/* No spinning on a machine of one core: there nobody can answer meanwhile. */
dd_spin dd_spin_make(int64_t budget_ns);
/* Before the first wait. */
void dd_spin_set_policy(dd_spin *spin, dd_spin_policy policy);
bool dd_spin_is_endless(const dd_spin *spin); /* DD_SPIN_POLL */

/* At the start of a wait: how long to poll. */
int64_t dd_spin_start(dd_spin *spin);
bool dd_spin_is_resting(dd_spin *spin);

/* Between two looks: gives the core away, or, while waits rest, only pauses. */
void dd_spin_yield(dd_spin *spin);
/* The same in two steps, for those who share the spin and give up its lock meanwhile. */
int64_t dd_spin_time_yield(void);
void dd_spin_note_yield(dd_spin *spin, int64_t took_ns);

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
