/* Run one scenario in this process or in a child, or many in children that may crash. */
#ifndef DD_TESTS_SIM_RUNNER_H
#define DD_TESTS_SIM_RUNNER_H

#include "scenario.h"
#include "verdict.h"

typedef struct run_spec {
    uint64_t seed;
    unsigned fault_kinds;
    bool is_traced;
    bool is_strict; /* see verdict_find */
    scenario_edit edit;
} run_spec;

typedef struct run_result {
    char verdict[VERDICT_MAX]; /* "" if the run passed */
    uint64_t digest;
    int64_t nsteps;
    int64_t now_ns;
    int nfaults; /* number of faults that happened */
} run_result;

/* Run a scenario here. Print the scenario and its result if is_traced is set, or if is_by_sends is set
 * and the run failed. */
void run_here(const run_spec *spec, bool is_by_sends, run_result *result);
/* Run a scenario in a child. A crash or a timeout of the child is also a verdict. */
void run_apart(const run_spec *spec, run_result *result);

typedef struct run_batch {
    uint64_t first_seed, nseeds; /* nseeds 0: until the time limit */
    int seconds;                 /* 0: until all seeds are done */
    unsigned fault_kinds;
    bool is_strict;
    /* Run each seed again in a separate process; it must produce the same digest. */
    bool is_replayed;
} run_batch;

typedef struct run_summary {
    uint64_t nseeds, nsteps, nfaults;
    double simulated_s, seconds;
    uint64_t nfailed;
    uint64_t failed[64]; /* the first failed seeds */
} run_summary;

void run_many(const run_batch *batch, run_summary *summary);

#endif
