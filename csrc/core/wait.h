/* How long a caller is willing to block, and how it can be interrupted.
 *
 * Everything that may block takes a `const dd_wait *`. It sleeps in slices and asks `is_interrupted` between them, so that
 * the caller (an interpreter with signals to look after) gets control back soon, from any thread. Slices
 * grow with the time that the caller has waited already: hundreds of processes that wait for the last one must not
 * keep it from its core. */
#ifndef DD_CORE_WAIT_H
#define DD_CORE_WAIT_H

#include "core/clock.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>

#define DD_WAIT_SLICE_NS (25 * DD_NS_PER_MS)
#define DD_WAIT_LONG_SLICE_NS (50 * DD_NS_PER_MS) /* after 0.8 s */

typedef struct dd_wait {
    int64_t start_ns;                  /* when the call began: errors tell how long it took */
    int64_t deadline_ns;               /* absolute, DD_NEVER_NS for none */
    bool (*is_interrupted)(void *ctx); /* NULL: cannot be interrupted. True ends the wait */
    void *ctx;
    /* May be NULL. Told, once or more often and without a lock, before a call that may be over in a microsecond
     * begins to wait after all: the caller lets go of what others need, such as an interpreter's lock. Only for
     * calls that say so. */
    void (*let_go)(void *ctx);
} dd_wait;

/* A wait of timeout_ns from now, DD_NEVER_NS for ever, that nobody interrupts. */
dd_wait dd_wait_after(int64_t timeout_ns);

/* The same caller and start, with a deadline no later than timeout_ns from now. */
dd_wait dd_wait_at_most(const dd_wait *wait, int64_t timeout_ns);

static inline void
dd_wait_let_go(const dd_wait *wait)
{
    if (wait->let_go != NULL) {
        wait->let_go(wait->ctx);
    }
}

bool dd_wait_is_over(const dd_wait *wait);
double dd_wait_elapsed_s(const dd_wait *wait);
/* How long the caller is willing to wait, from the start to the deadline. */
double dd_wait_limit_s(const dd_wait *wait);

/* How long to sleep before looking at the wait again: the rest of the deadline, at most one slice. That is a 16th of the time
 * since the start, within the bounds above. */
int64_t dd_wait_slice_ns(const dd_wait *wait);

/* DD_OK, or DD_INTERRUPTED when the caller wants out. Call it after every slice and every EINTR. */
dd_status dd_wait_check(const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* Sleeps for duration_ns or until the deadline, whichever is first; DD_INTERRUPTED as above. */
dd_status dd_wait_sleep(const dd_wait *wait, int64_t duration_ns, dd_error *err) DD_MUST_CHECK;

#endif
