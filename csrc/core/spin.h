/* Polling for a moment before sleeping, where that pays.
 *
 * Waking a thread costs tens of microseconds, an answer from another core less than one. But a core that others want is
 * not to be spun on: between two looks the spinner yields. Others that spin give the core back at once; when a yield
 * takes long, somebody who does not wait for us has had it meanwhile, and then there is no spinning for a while, longer
 * each time. */
#ifndef DD_CORE_SPIN_H
#define DD_CORE_SPIN_H

#include <stdbool.h>
#include <stdint.h>

typedef struct dd_spin {
    int64_t budget_ns; /* how long to poll, at most; 0 for not at all */
    unsigned rest;     /* occasions to pass by */
    unsigned last_rest;
    unsigned nsuccesses;
} dd_spin;

/* No spinning on a machine of one core: there nobody can answer meanwhile. */
dd_spin dd_spin_make(int64_t budget_ns);

/* On each occasion, once: how long to poll now. */
int64_t dd_spin_start(dd_spin *spin);
bool dd_spin_is_resting(const dd_spin *spin);

/* Between two looks: lets others have the core; or lets it rest for some nanoseconds. */
void dd_spin_yield(dd_spin *spin);
static inline void
dd_spin_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* What was waited for came while polling. */
void dd_spin_note_success(dd_spin *spin);

#endif
