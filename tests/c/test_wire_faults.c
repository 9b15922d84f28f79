/* Bytes of an encrypted group are changed in transit: no rank may accept a wrong value or wait
 * longer than its timeout, and errors must name the two ranks of the connection. */
#include "check.h"
#include "group_team.h"
#include "wire_faults.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define TIMEOUT_NS (400 * DD_NS_PER_MS)
#define ELEMENTS 20000

static void
note_error(wire_fault_outcome *out, const dd_error *err)
{
    wire_fault_note_error(out, err, err->blamed.rank >= 0 || strstr(err->message, "rank ") != NULL);
}

static dd_status
sum(dd_group *group, double *values, size_t count, dd_error *err)
{
    dd_block block = {.data = values, .nbytes = count * sizeof *values};
    dd_coll_args args = {.coll = DD_COLL_ALL_REDUCE,
                         .reduction = {.dtype = DD_DTYPE_FLOAT64, .op = DD_REDOP_SUM},
                         .inputs = &block,
                         .outputs = &block};
    dd_wait wait = dd_wait_after(20 * TIMEOUT_NS * check_slow());
    return dd_group_collective_and_wait(group, &args, &team_no_options, &wait, err);
}

static void
use_group(team_rank *self, dd_group *group)
{
    wire_fault_outcome *out = self->arg;
    double *values = calloc(ELEMENTS, sizeof *values);
    REQUIRE(values != NULL);
    for (int round = 0; round < 4; round++) {
        size_t count = round % 2 == 0 ? 3 : ELEMENTS;
        for (size_t i = 0; i < count; i++) {
            values[i] = (double)(self->rank + 1) * (double)(i % 100);
        }
        dd_error err = {0};
        if (sum(group, values, count, &err) != DD_OK) {
            note_error(out, &err);
            break;
        }
        for (size_t i = 0; i < count; i++) {
            if (values[i] != 3.0 * (double)(i % 100)) {
                atomic_fetch_add(&out->nwrong, 1);
                break;
            }
        }
    }
    free(values);
}

static void
meet_and_use(team_rank *self)
{
    wire_fault_outcome *out = self->arg;
    dd_group *group = NULL;
    dd_error err = {0};
    dd_group_options options = team_group_options("team");
    options.timeout_ns = TIMEOUT_NS * check_slow();
    dd_wait wait = dd_wait_after(options.timeout_ns);
    int64_t began_ns = dd_clock_now_ns();
    if (!CHECK_OK(dd_selection_parse("", &options.selection, check_err()))) {
        return;
    }
    if (dd_group_open(self->engine, self->store, self->rank, self->size, &options, &group, &wait, &err) ==
        DD_OK) {
        use_group(self, group);
        wait = dd_wait_after(TIMEOUT_NS * check_slow());
        (void)!dd_group_close(group, &wait, NULL);
        dd_group_release(group);
    } else {
        note_error(out, &err);
    }
    if (dd_clock_now_ns() - began_ns > 8 * TIMEOUT_NS * check_slow()) {
        atomic_fetch_add(&out->nlate, 1);
    }
}

static const team_options encrypted = {.size = 2, .is_shm_disabled = true, .secret = "sesame"};

static void
run_group(wire_fault_outcome *out)
{
    team_run_apart(&encrypted, meet_and_use, out);
}

TEST(collectives_succeed_without_injected_faults)
{
    CHECK(wire_fault_run_without(run_group) > 2 * ELEMENTS * sizeof(double));
}

WIRE_FAULT_TESTS(run_group, 9)
