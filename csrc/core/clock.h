/* Monotonic time. Deadlines are absolute and made once, at the edge where a caller gives a time-out. */
#ifndef DD_CORE_CLOCK_H
#define DD_CORE_CLOCK_H

#include <stdint.h>

#define DD_NS_PER_US INT64_C(1000)
#define DD_NS_PER_MS INT64_C(1000000)
#define DD_NS_PER_S INT64_C(1000000000)
#define DD_NEVER_NS INT64_MAX /* a deadline that does not come */

int64_t dd_clock_now_ns(void);

/* Calendar time, since 1970: only for people to read. It jumps when it is set. */
int64_t dd_clock_calendar_ns(void);

/* Now plus timeout_ns; past the end of time it is DD_NEVER_NS. A negative time-out counts as 0. */
int64_t dd_deadline_after(int64_t timeout_ns);
/* The same, from a moment that the caller knows. */
int64_t dd_deadline_from(int64_t now_ns, int64_t timeout_ns);

/* Time left until the deadline, at least 0. */
int64_t dd_deadline_left_ns(int64_t deadline_ns);

#endif
