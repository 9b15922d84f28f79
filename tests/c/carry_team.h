/* Groups of threads that are carried by the fake library. */
#ifndef DD_TESTS_CARRY_TEAM_H
#define DD_TESTS_CARRY_TEAM_H

#include "fake_carrier.h"
#include "group_team.h"

#include <stddef.h>

/* Of the process: what it holds on to stays where the leak sanitizer finds it. */
extern fake_library carry_library;

dd_status carry_group(dd_group *group, dd_error *err);
/* The team's group gets its carrier on every rank, before any of them uses it. */
bool carry_team_begin(team_rank *self);
/* A team whose library has been initialised; finishes it. */
void carry_team_run(int size, void (*body)(team_rank *self), void *arg);

/* Of all ranks. */
#define CARRY_TOTAL(name) carry_total(offsetof(fake_counts, name))
int carry_total(size_t member);

/* One all_reduce(SUM) of an int64, in place. */
typedef struct carry_sum {
    int64_t value;
    dd_block block;
    dd_coll_args args;
} carry_sum;

void carry_sum_init(carry_sum *sum, int64_t value);
/* Calls one, and waits long enough. */
dd_status carry_sum_call(team_rank *self, dd_error *err);

double carry_seconds_since(int64_t start_ns);
void carry_doze(int64_t duration_ns);
/* Waits for a collective to be in this rank's library. */
void carry_await_start(const team_rank *self, int nstarts);

#endif
