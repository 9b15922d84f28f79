#include "core/spin.h"

#include "core/clock.h"
#include "core/system.h"

/* Dozens of others that spin as we do take microseconds of a yield each; who works takes a time slice. */
#define LONG_YIELD_NS (2 * DD_NS_PER_MS)
/* What two long yields have cost is a tenth of what follows without any. */
#define REST_FACTOR 10
#define MAX_REST_NS (200 * DD_NS_PER_MS)
#define ENDLESS_NS (INT64_MAX / 2) /* the time may be added to it */
/* About what it costs to be woken. */
#define SHORT_POLL_NS (50 * DD_NS_PER_US)

dd_spin
dd_spin_make(int64_t budget_ns)
{
    return (dd_spin){.budget_ns = sysconf(_SC_NPROCESSORS_ONLN) > 1 ? budget_ns : 0};
}

void
dd_spin_set_policy(dd_spin *spin, dd_spin_policy policy)
{
    if (policy != DD_SPIN_ADAPTIVE) {
        spin->budget_ns = policy == DD_SPIN_POLL ? ENDLESS_NS : 0;
    }
}

bool
dd_spin_is_endless(const dd_spin *spin)
{
    return spin->budget_ns == ENDLESS_NS;
}

bool
dd_spin_is_resting(dd_spin *spin)
{
    if (spin->rests_until_ns != 0 && dd_clock_now_ns() >= spin->rests_until_ns) {
        spin->rests_until_ns = 0;
        spin->last_long_ns = 0;
    }
    return spin->rests_until_ns != 0;
}

int64_t
dd_spin_start(dd_spin *spin)
{
    return dd_spin_is_resting(spin) && spin->budget_ns > SHORT_POLL_NS ? SHORT_POLL_NS : spin->budget_ns;
}

int64_t
dd_spin_time_yield(void)
{
    int64_t began_ns = dd_clock_now_ns();
    dd_sys_sched_yield();
    return dd_clock_now_ns() - began_ns;
}

void
dd_spin_note_yield(dd_spin *spin, int64_t took_ns)
{
    if (dd_spin_is_endless(spin)) {
        return;
    }
    int64_t before_ns = spin->last_long_ns;
    spin->last_long_ns = took_ns < LONG_YIELD_NS ? 0 : took_ns;
    if (before_ns > 0 && spin->last_long_ns > 0) {
        int64_t rest_ns = (before_ns + took_ns) * REST_FACTOR;
        spin->rests_until_ns = dd_clock_now_ns() + (rest_ns < MAX_REST_NS ? rest_ns : MAX_REST_NS);
    }
}

void
dd_spin_yield(dd_spin *spin)
{
    if (dd_spin_is_resting(spin)) {
        dd_spin_pause();
    } else {
        dd_spin_note_yield(spin, dd_spin_time_yield());
    }
}
