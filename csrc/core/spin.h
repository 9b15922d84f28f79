/* Polling for a while before sleeping.
 *
 * Waking a thread costs tens of microseconds, an answer from another core less than one: so a short poll always
 * comes before sleep, and a longer one where that would have spared the last sleeps. Who is awaited for longer
 * is probably not running, because somebody else works on its core. Then polling does harm: the system lets
 * those run first who have slept, and two who both poll get their cores in turn and seldom at once. Giving
 * the core away does more; where somebody else works on it, that costs the rest of a time slice. So it is for those alone
 * who know that whom they await needs this core. */
#ifndef DD_CORE_SPIN_H
#define DD_CORE_SPIN_H

#include <stdbool.h>
#include <stdint.h>

typedef struct dd_spin {
    int64_t most_ns;        /* how long to poll, at most; 0 for not at all */
    int64_t budget_ns;      /* how long to poll next */
    int64_t waits_since_ns; /* 0: does not wait; of dd_spin_goes_on */
} dd_spin;

/* What a user who knows better may ask for. The numbers are the Python package's, too. */
typedef enum dd_spin_policy {
    DD_SPIN_ADAPTIVE, /* as said above */
    DD_SPIN_POLL,     /* for those who own their cores: never sleeps, however long the wait */
    DD_SPIN_SLEEP,    /* does not poll */
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
