/* One scenario, run in this process or in a child; and many, in children that may crash. */
#ifndef DD_TESTS_SIM_RUNNER_H
#define DD_TESTS_SIM_RUNNER_H

#include "scenario.h"
#include "verdict.h"

typedef struct run_spec {
    uint64_t seed;
    unsigned fault_kinds;
    bool is_traced;
    bool is_strict; /* as in verdict_find */
    scenario_edit edit;
} run_spec;

typedef struct run_result {
    char verdict[VERDICT_MAX]; /* "": all is well */
    uint64_t digest;
    int64_t nsteps;
    int64_t now_ns;
    int nfaults; /* that have happened */
} run_result;

/* With is_traced, and with is_told if it has failed, prints the scenario and what came of it. */
void run_here(const run_spec *spec, bool is_told, run_result *result);
/* The same in a child: a crash, or too long a time, is a verdict, too. */
void run_apart(const run_spec *spec, run_result *result);

typedef struct run_batch {
    uint64_t first_seed, nseeds; /* nseeds 0: until the time is up */
    int seconds;                 /* 0: until all seeds are done */
    unsigned fault_kinds;
    bool is_strict;
    /* Each seed runs once more, in a process of its own, and has to end with the same digest. */
    bool is_replayed;
} run_batch;

typedef struct run_summary {
    uint64_t nseeds, nsteps, nfaults;
    double simulated_s, seconds;
    uint64_t nfailed;
    uint64_t failed[64]; /* the first of them */
} run_summary;

void run_many(const run_batch *batch, run_summary *summary);

#endif
