/* How long a caller is willing to block, and how it can be interrupted.
 *
 * Every function that may block takes a `const dd_wait *`. It sleeps in slices and calls
 * `is_interrupted` between them, on any thread, so that the caller (an interpreter that handles
 * signals) soon regains control. Slices grow with the time that the caller has already waited:
 * hundreds of processes that wait for the last one must not keep it from its core. */
#ifndef DD_CORE_WAIT_H
#define DD_CORE_WAIT_H

#include "core/clock.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>

#define DD_WAIT_SLICE_NS (25 * DD_NS_PER_MS)
#define DD_WAIT_LONG_SLICE_NS (50 * DD_NS_PER_MS) /* after 0.8 s */

typedef struct dd_wait {
    int64_t start_ns;                  /* start of the call; errors report the elapsed time */
    int64_t deadline_ns;               /* absolute; DD_NEVER_NS for none */
    bool (*is_interrupted)(void *ctx); /* returns true to end the wait; may be NULL */
    void *ctx;
    /* Called, once or more often and without a lock, before a call that usually takes a microsecond
     * begins to wait: the caller releases resources that other threads need, such as an
     * interpreter's lock. Only for calls that document it. May be NULL. */
    void (*on_block)(void *ctx);
} dd_wait;

/* Return a wait of timeout_ns from now, DD_NEVER_NS for no limit, that cannot be interrupted. */
dd_wait dd_wait_after(int64_t timeout_ns);

/* Return the same wait with a deadline no later than timeout_ns from now. */
dd_wait dd_wait_at_most(const dd_wait *wait, int64_t timeout_ns);

static inline void
dd_wait_will_block(const dd_wait *wait)
{
    if (wait->on_block != NULL) {
        wait->on_block(wait->ctx);
    }
}

bool dd_wait_has_expired(const dd_wait *wait);
double dd_wait_elapsed_s(const dd_wait *wait);
/* Return the caller's timeout: the time from the start to the deadline. */
double dd_wait_limit_s(const dd_wait *wait);

/* Return how long to sleep before checking the wait again: a 16th of the time since the start,
 * within the bounds above, and at most until the deadline. */
int64_t dd_wait_slice_ns(const dd_wait *wait);

/* DD_OK, or DD_INTERRUPTED by the caller. Call it after every slice and every EINTR. */
dd_status dd_wait_check(const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* Sleep for duration_ns or until the deadline, whichever is earlier; DD_INTERRUPTED as above. */
dd_status dd_wait_sleep(const dd_wait *wait, int64_t duration_ns, dd_error *err) DD_MUST_CHECK;

#endif
