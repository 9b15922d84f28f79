#include "core/spin.h"

#include "core/clock.h"

#include <sched.h>
#include <unistd.h>

/* Dozens of others that spin as we do take microseconds of a yield each; who works takes a time slice. */
#define LONG_YIELD_NS (2 * DD_NS_PER_MS)
#define FIRST_REST 64u
#define MAX_REST 8192u
#define SUCCESSES_TO_FORGET 1024u

dd_spin
dd_spin_make(int64_t budget_ns)
{
    return (dd_spin){.budget_ns = sysconf(_SC_NPROCESSORS_ONLN) > 1 ? budget_ns : 0};
}

int64_t
dd_spin_start(dd_spin *spin)
{
    if (spin->rest > 0) {
        spin->rest--;
        return 0;
    }
    return spin->budget_ns;
}

bool
dd_spin_is_resting(const dd_spin *spin)
{
    return spin->rest > 0;
}

void
dd_spin_yield(dd_spin *spin)
{
    int64_t began_ns = dd_clock_now_ns();
    sched_yield();
    if (dd_clock_now_ns() - began_ns < LONG_YIELD_NS) {
        return;
    }
    unsigned rest = spin->last_rest > 0 ? spin->last_rest * 2 : FIRST_REST;
    spin->last_rest = rest < MAX_REST ? rest : MAX_REST;
    spin->rest = spin->last_rest;
}

/* Forgets slowly: one yield to a busy process costs as much as hundreds of successes gain. */
void
dd_spin_note_success(dd_spin *spin)
{
    if (++spin->nsuccesses % SUCCESSES_TO_FORGET == 0) {
        spin->last_rest /= 2;
    }
}
