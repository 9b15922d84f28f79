/* Teams of threads whose groups use the fake carrier library. */
#ifndef DD_TESTS_CARRY_TEAM_H
#define DD_TESTS_CARRY_TEAM_H

#include "fake_carrier.h"
#include "group_team.h"

#include <stddef.h>

/* One per process. Global, so that the leak sanitizer still reaches the memory that it keeps. */
extern fake_library carry_library;

dd_status carry_group(dd_group *group, dd_error *err);
/* Create the carrier of the team's group on every rank, before any rank uses the group. */
bool carry_team_begin(team_rank *self);
/* Run a team with an initialised library, and finalise the library afterwards. */
void carry_team_run(int size, void (*body)(team_rank *self), void *arg);

/* Sum the counter over all ranks. */
#define CARRY_TOTAL(name) carry_total(offsetof(fake_counts, name))
int carry_total(size_t member);

/* One all_reduce(SUM) of an int64, in place. */
typedef struct carry_sum {
    int64_t value;
    dd_block block;
    dd_coll_args args;
} carry_sum;

void carry_sum_init(carry_sum *sum, int64_t value);
/* Run one all_reduce, with a generous timeout. */
dd_status carry_sum_call(team_rank *self, dd_error *err);

double carry_seconds_since(int64_t start_ns);
void carry_sleep(int64_t duration_ns);
/* Wait until this rank's library has started this many collectives. */
void carry_await_start(const team_rank *self, int nstarts);

#endif
