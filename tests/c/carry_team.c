#include "carry_team.h"

#include "check.h"

fake_library carry_library;

dd_status
carry_group(dd_group *group, dd_error *err)
{
    dd_wait wait = dd_wait_after(20 * DD_NS_PER_S * check_slow());
    return dd_group_set_carrier(group, &carry_library.base, &wait, err);
}

bool
carry_team_begin(team_rank *self)
{
    bool is_good = CHECK_OK(carry_group(self->group, check_err()));
    team_rendezvous(self, "all are carried");
    return is_good;
}

void
carry_team_run(int size, void (*body)(team_rank *self), void *arg)
{
    team_options options = {.size = size};
    team_run(&options, body, arg);
    fake_library_fini(&carry_library);
}

int
carry_total(size_t member)
{
    int total = 0;
    for (int rank = 0; rank < FAKE_MAX_RANKS; rank++) {
        total += atomic_load((atomic_int *)(void *)((char *)&carry_library.counts[rank] + member));
    }
    return total;
}

void
carry_sum_init(carry_sum *sum, int64_t value)
{
    sum->value = value;
    sum->block = (dd_block){.data = &sum->value, .nbytes = sizeof sum->value};
    sum->args = (dd_coll_args){.coll = DD_COLL_ALL_REDUCE,
                               .reduction = {.dtype = DD_DTYPE_INT64, .op = DD_REDOP_SUM},
                               .inputs = &sum->block,
                               .outputs = &sum->block};
}

dd_status
carry_sum_call(team_rank *self, dd_error *err)
{
    carry_sum sum;
    carry_sum_init(&sum, 1);
    dd_wait wait = dd_wait_after(60 * DD_NS_PER_S * check_slow());
    return dd_group_collective_and_wait(self->group, &sum.args, &team_no_options, &wait, err);
}

double
carry_seconds_since(int64_t start_ns)
{
    return (double)(dd_clock_now_ns() - start_ns) * 1e-9;
}

void
carry_sleep(int64_t duration_ns)
{
    dd_wait wait = dd_wait_after(duration_ns);
    CHECK_OK(dd_wait_sleep(&wait, duration_ns, check_err()));
}

void
carry_await_start(const team_rank *self, int nstarts)
{
    dd_wait wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
    while (atomic_load(&carry_library.counts[self->rank].nstarts) < nstarts && !dd_wait_has_expired(&wait)) {
        carry_sleep(DD_NS_PER_MS);
    }
    CHECK_INT(carry_library.counts[self->rank].nstarts, nstarts);
}
