/* A wait: how long a caller is willing to block, and how it can interrupt the wait.
 *
 * Every function that may block takes a `const dd_wait *`. The function sleeps in slices and calls
 * `is_interrupted` between them, on any thread, so that the caller (an interpreter that handles
 * signals) soon regains control. Slices grow with the time that the caller has already waited:
 * hundreds of processes that wait for one late process must not keep that process from its core. */
#ifndef DD_CORE_WAIT_H
#define DD_CORE_WAIT_H

#include "core/clock.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>

#define DD_WAIT_SLICE_NS (25 * DD_NS_PER_MS)
#define DD_WAIT_LONG_SLICE_NS (50 * DD_NS_PER_MS) /* longest slice; reached after 0.8 s */

typedef struct dd_wait {
    int64_t start_ns;                  /* start of the call, for the elapsed time in errors */
    int64_t deadline_ns;               /* absolute time of the end; DD_NEVER_NS if there is none */
    bool (*is_interrupted)(void *ctx); /* callback that returns true to end the wait; may be NULL */
    void *ctx;
    /* Callback of calls that usually take a microsecond and document that they use on_block. Called
     * without a lock, at least once before such a call begins to block, so that the caller can
     * release what other threads need, such as an interpreter's lock. May be NULL. */
    void (*on_block)(void *ctx);
} dd_wait;

/* Return a wait that ends timeout_ns from now (DD_NEVER_NS: never) and cannot be interrupted. */
dd_wait dd_wait_after(int64_t timeout_ns);

/* Return a copy of `wait` whose deadline is at most timeout_ns from now. */
dd_wait dd_wait_at_most(const dd_wait *wait, int64_t timeout_ns);

/* Return a copy of `wait` without a deadline, to wait for an event that is certain to happen. */
static inline dd_wait
dd_wait_without_deadline(const dd_wait *wait)
{
    dd_wait endless = *wait;
    endless.deadline_ns = DD_NEVER_NS;
    return endless;
}

static inline void
dd_wait_will_block(const dd_wait *wait)
{
    if (wait->on_block != NULL) {
        wait->on_block(wait->ctx);
    }
}

bool dd_wait_has_expired(const dd_wait *wait);
double dd_wait_elapsed_s(const dd_wait *wait);
/* Return the caller's timeout in seconds, from the start of the call to the deadline. */
double dd_wait_limit_s(const dd_wait *wait);

/* Return the time to sleep before the next check of the wait: a 16th of the time since its start,
 * limited by the two slice constants above and by the deadline. */
int64_t dd_wait_slice_ns(const dd_wait *wait);

/* Return DD_INTERRUPTED if the caller interrupts, else DD_OK. Call after each slice or EINTR. */
dd_status dd_wait_check(const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* Sleep for duration_ns or until the deadline; DD_INTERRUPTED if the caller interrupts the wait. */
dd_status dd_wait_sleep(const dd_wait *wait, int64_t duration_ns, dd_error *err) DD_MUST_CHECK;

#endif
