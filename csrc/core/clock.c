#include "core/clock.h"

#include <time.h>

static int64_t
read_clock(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * DD_NS_PER_S + now.tv_nsec;
}

int64_t
dd_clock_now_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

int64_t
dd_clock_calendar_ns(void)
{
    return read_clock(CLOCK_REALTIME);
}

int64_t
dd_deadline_after(int64_t timeout_ns)
{
    return dd_deadline_from(dd_clock_now_ns(), timeout_ns);
}

int64_t
dd_deadline_from(int64_t now_ns, int64_t timeout_ns)
{
    if (timeout_ns <= 0) {
        return now_ns;
    }
    return timeout_ns > DD_NEVER_NS - now_ns ? DD_NEVER_NS : now_ns + timeout_ns;
}

int64_t
dd_deadline_left_ns(int64_t deadline_ns)
{
    if (deadline_ns == DD_NEVER_NS) {
        return DD_NEVER_NS;
    }
    int64_t left_ns = deadline_ns - dd_clock_now_ns();
    return left_ns > 0 ? left_ns : 0;
}
