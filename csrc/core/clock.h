/* Monotonic time. Deadlines are absolute, computed once where a caller passes a timeout. */
#ifndef DD_CORE_CLOCK_H
#define DD_CORE_CLOCK_H

#include <stdint.h>

#define DD_NS_PER_US INT64_C(1000)
#define DD_NS_PER_MS INT64_C(1000000)
#define DD_NS_PER_S INT64_C(1000000000)
#define DD_NEVER_NS INT64_MAX /* the deadline that never passes */

int64_t dd_clock_now_ns(void);

/* Return calendar time since 1970, only for display: it jumps when the clock is set. */
int64_t dd_clock_calendar_ns(void);

/* Return now plus timeout_ns, or DD_NEVER_NS on overflow. A negative timeout counts as 0. */
int64_t dd_deadline_after(int64_t timeout_ns);
/* Return the deadline timeout_ns after now_ns. */
int64_t dd_deadline_from(int64_t now_ns, int64_t timeout_ns);

/* Return the time left until the deadline, at least 0. */
int64_t dd_deadline_left_ns(int64_t deadline_ns);

#endif
