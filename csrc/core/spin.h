/* Polling for a moment before sleeping, where that pays.
 *
 * Waking a thread costs tens of microseconds, an answer from another core less than one. But a core that others want is
 * not to be spun on. Where there are more who spin than cores, answers come late, and every one that does makes the next
 * spin shorter, down to a small part. And between two looks the spinner yields: when a yield takes long, somebody who does not wait for us has
 * had the core meanwhile, and there is no spinning for a while, longer each time. */
#ifndef DD_CORE_SPIN_H
#define DD_CORE_SPIN_H

#include <stdbool.h>
#include <stdint.h>

typedef struct dd_spin {
    int64_t max_ns;    /* how long to poll, at most; 0 for not at all */
    int64_t budget_ns; /* how long to poll now */
    unsigned rest;     /* occasions to pass by */
    unsigned last_rest;
    unsigned nsuccesses;
} dd_spin;

/* No spinning on a machine of one core: there nobody can answer meanwhile. */
dd_spin dd_spin_make(int64_t budget_ns);

/* On each occasion, once: how long to poll now. */
int64_t dd_spin_start(dd_spin *spin);
bool dd_spin_is_resting(const dd_spin *spin);

/* Between two looks. */
void dd_spin_yield(dd_spin *spin);

/* What was waited for came while polling. */
void dd_spin_note_success(dd_spin *spin);

/* How long was polled, and whether it came: lengthens or shortens the polls to come. */
void dd_spin_adapt(dd_spin *spin, int64_t waited_ns, bool has_come);

#endif
