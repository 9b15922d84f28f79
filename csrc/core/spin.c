#include "core/spin.h"

#include "core/clock.h"

#include <sched.h>
#include <unistd.h>

/* Others that wait for us, too, take a few microseconds of a yield each; who works takes a time slice. */
#define LONG_YIELD_NS (500 * DD_NS_PER_US)
#define FIRST_REST 64u
#define MAX_REST 8192u
#define SUCCESSES_TO_FORGET 1024u
/* Parts of the longest poll: an answer within the first is a quick one, no poll is shorter than the second. */
#define QUICK_PART 8
#define LEAST_PART 64

dd_spin
dd_spin_make(int64_t budget_ns)
{
    int64_t max_ns = sysconf(_SC_NPROCESSORS_ONLN) > 1 ? budget_ns : 0;
    return (dd_spin){.max_ns = max_ns, .budget_ns = max_ns};
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

bool
dd_spin_is_resting(const dd_spin *spin)
{
    return spin->rest > 0;
}

/* Forgets slowly: one yield to a busy process costs as much as hundreds of successes gain. */
void
dd_spin_note_success(dd_spin *spin)
{
    if (++spin->nsuccesses % SUCCESSES_TO_FORGET == 0) {
        spin->last_rest /= 2;
    }
}

void
dd_spin_adapt(dd_spin *spin, int64_t waited_ns, bool has_come)
{
    int64_t least_ns = spin->max_ns / LEAST_PART;
    if (has_come && waited_ns <= spin->max_ns / QUICK_PART) {
        spin->budget_ns = spin->budget_ns * 2 < spin->max_ns ? spin->budget_ns * 2 : spin->max_ns;
    } else {
        spin->budget_ns = spin->budget_ns / 2 > least_ns ? spin->budget_ns / 2 : least_ns;
    }
}
