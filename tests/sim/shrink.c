#include "shrink.h"

#include <stdio.h>

/* A smaller scenario has another schedule: try it with this many schedules. */
#define ORDERS 24

/* Return true if the scenario fails with some schedule, and store that schedule in the edit. */
static bool
still_fails(run_spec *spec, const scenario_edit *smaller)
{
    for (uint64_t order = 0; order < ORDERS; order++) {
        run_spec tried = *spec;
        run_result result;
        tried.edit = *smaller;
        tried.edit.order = order;
        run_apart(&tried, &result);
        if (result.verdict[0] != '\0') {
            spec->edit = tried.edit;
            return true;
        }
    }
    return false;
}

static bool
drop_one(run_spec *spec)
{
    scenario whole;
    scenario_make(&whole, spec->seed, spec->fault_kinds);
    for (int i = whole.nsteps; i-- > 0;) {
        scenario_edit smaller = spec->edit;
        smaller.without_steps |= 1U << i;
        if (smaller.without_steps != spec->edit.without_steps && still_fails(spec, &smaller)) {
            return true;
        }
    }
    for (int i = 0; i < whole.nfaults; i++) {
        scenario_edit smaller = spec->edit;
        smaller.without_faults |= 1U << i;
        if (smaller.without_faults != spec->edit.without_faults && still_fails(spec, &smaller)) {
            return true;
        }
    }
    scenario_edit smaller = spec->edit;
    smaller.is_plain = true;
    return !spec->edit.is_plain && still_fails(spec, &smaller);
}

void
shrink(run_spec *spec)
{
    run_result result;
    while (drop_one(spec)) {
    }
    printf("smallest:\n");
    run_apart(spec, &result);
    scenario left;
    scenario_make(&left, spec->seed, spec->fault_kinds);
    scenario_apply(&left, &spec->edit);
    printf("  %s\n", result.verdict);
    scenario_print(&left);
    printf(
        "  build/sim/sim --seed %llu --faults %#x --without-steps %#x --without-faults %#x --order %llu%s --trace\n",
        (unsigned long long)spec->seed, spec->fault_kinds, spec->edit.without_steps,
        spec->edit.without_faults, (unsigned long long)spec->edit.order,
        spec->edit.is_plain ? " --plain" : "");
}
