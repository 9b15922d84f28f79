#include "core/wait_policy.h"

#include "core/cpu.h"
#include "core/system.h"

#define ENDLESS_NS (INT64_MAX / 2) /* half of the maximum, so that adding a time cannot overflow */
/* Minimum time of polling, about the cost of a wake-up. */
#define LEAST_NS (20 * DD_NS_PER_US)

dd_spin
dd_spin_create(int64_t most_ns)
{
    bool has_one_core = sysconf(_SC_NPROCESSORS_ONLN) == 1 || dd_cpu_quota() == 1;
    int64_t budget_ns = has_one_core ? 0 : most_ns;
    return (dd_spin){.max_ns = budget_ns, .budget_ns = budget_ns};
}

void
dd_spin_set_policy(dd_spin *spin, dd_spin_policy policy)
{
    if (policy != DD_SPIN_ADAPTIVE) {
        spin->max_ns = spin->budget_ns = policy == DD_SPIN_POLL ? ENDLESS_NS : 0;
    }
}

bool
dd_spin_is_endless(const dd_spin *spin)
{
    return spin->max_ns == ENDLESS_NS;
}

static int64_t
larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

void
dd_spin_note_wait(dd_spin *spin, int64_t waited_ns)
{
    if (dd_spin_is_endless(spin)) {
        return;
    }
    bool was_worth_it = waited_ns <= spin->max_ns;
    int64_t wanted_ns =
        was_worth_it ? larger(spin->budget_ns, 2 * waited_ns) : larger(spin->budget_ns / 2, LEAST_NS);
    spin->budget_ns = wanted_ns < spin->max_ns ? wanted_ns : spin->max_ns;
}

bool
dd_spin_may_continue(dd_spin *spin)
{
    int64_t now_ns = dd_clock_now_ns();
    if (spin->waits_since_ns == 0) {
        spin->waits_since_ns = now_ns;
    }
    if (now_ns - spin->waits_since_ns >= spin->budget_ns) {
        return false;
    }
    (void)dd_sys_sched_yield();
    return true;
}

void
dd_spin_end_wait(dd_spin *spin)
{
    if (spin->waits_since_ns != 0) {
        dd_spin_note_wait(spin, dd_clock_now_ns() - spin->waits_since_ns);
        spin->waits_since_ns = 0;
    }
}
