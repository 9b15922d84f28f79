/* Monotonic time. Deadlines are absolute times, which a public function computes only once. */
#ifndef DD_CORE_CLOCK_H
#define DD_CORE_CLOCK_H

#include <stdint.h>

#define DD_NS_PER_US INT64_C(1000)
#define DD_NS_PER_MS INT64_C(1000000)
#define DD_NS_PER_S INT64_C(1000000000)
#define DD_NEVER_NS INT64_MAX /* a deadline that never passes */

int64_t dd_clock_now_ns(void);

/* Return the nanoseconds since 1970. Only for display: the calendar clock jumps when it is set. */
int64_t dd_clock_calendar_ns(void);

/* Return the time timeout_ns from now; DD_NEVER_NS on overflow. A negative timeout counts as 0. */
int64_t dd_deadline_after(int64_t timeout_ns);
/* Like dd_deadline_after, but from now_ns instead of the current time. */
int64_t dd_deadline_from(int64_t now_ns, int64_t timeout_ns);

/* Return the nanoseconds left until the deadline, at least 0; DD_NEVER_NS for DD_NEVER_NS. */
int64_t dd_deadline_left_ns(int64_t deadline_ns);

#endif
