#include "core/wait.h"

#include "core/system.h"

#include <time.h>

dd_wait
dd_wait_after(int64_t timeout_ns)
{
    int64_t now_ns = dd_clock_now_ns();
    return (dd_wait){.start_ns = now_ns, .deadline_ns = dd_deadline_from(now_ns, timeout_ns)};
}

dd_wait
dd_wait_at_most(const dd_wait *wait, int64_t timeout_ns)
{
    dd_wait shorter = *wait;
    int64_t deadline_ns = dd_deadline_after(timeout_ns);
    if (deadline_ns < shorter.deadline_ns) {
        shorter.deadline_ns = deadline_ns;
    }
    return shorter;
}

bool
dd_wait_has_expired(const dd_wait *wait)
{
    return dd_deadline_left_ns(wait->deadline_ns) == 0;
}

double
dd_wait_elapsed_s(const dd_wait *wait)
{
    return (double)(dd_clock_now_ns() - wait->start_ns) / (double)DD_NS_PER_S;
}

double
dd_wait_limit_s(const dd_wait *wait)
{
    return (double)(wait->deadline_ns - wait->start_ns) / (double)DD_NS_PER_S;
}

int64_t
dd_wait_slice_ns(const dd_wait *wait)
{
    int64_t left_ns = dd_deadline_left_ns(wait->deadline_ns);
    int64_t slice_ns = (dd_clock_now_ns() - wait->start_ns) / 16;
    slice_ns = slice_ns < DD_WAIT_SLICE_NS        ? DD_WAIT_SLICE_NS
               : slice_ns > DD_WAIT_LONG_SLICE_NS ? DD_WAIT_LONG_SLICE_NS
                                                  : slice_ns;
    return left_ns < slice_ns ? left_ns : slice_ns;
}

dd_status
dd_wait_check(const dd_wait *wait, dd_error *err)
{
    if (wait->is_interrupted != NULL && wait->is_interrupted(wait->ctx)) {
        return dd_error_set(err, DD_INTERRUPTED, "interrupted after %.3f s", dd_wait_elapsed_s(wait));
    }
    return DD_OK;
}

dd_status
dd_wait_sleep(const dd_wait *wait, int64_t duration_ns, dd_error *err)
{
    dd_wait nap = dd_wait_at_most(wait, duration_ns);
    for (;;) {
        int64_t slice_ns = dd_wait_slice_ns(&nap);
        if (slice_ns == 0) {
            return DD_OK;
        }
        struct timespec slice = {slice_ns / DD_NS_PER_S, slice_ns % DD_NS_PER_S};
        dd_sys_nanosleep(&slice, NULL);
        dd_status status = dd_wait_check(wait, err);
        if (status != DD_OK) {
            return status;
        }
    }
}
