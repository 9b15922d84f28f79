/* Runs simulated worlds, one after the other, and looks whether each has kept what the library promises. */
#include "ranks.h"
#include "verdict.h"

#include "core/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIMIT_NS (400 * DD_NS_PER_S)
#define LIMIT_STEPS INT64_C(400000000)

typedef struct run_options {
    uint64_t first_seed, nseeds;
    unsigned fault_kinds;
    bool is_traced;
} run_options;

static bool
run_seed(const run_options *options, uint64_t seed)
{
    scenario which;
    char text[VERDICT_MAX];
    scenario_make(&which, seed, options->fault_kinds);
    which.world.is_traced = options->is_traced;
    sim_begin(&which.world);
    ranks_spawn(&which);
    for (int i = 0; i < which.nfaults; i++) {
        sim_plan_fault(&which.faults[i]);
    }
    sim_outcome outcome = sim_run(LIMIT_NS, LIMIT_STEPS);
    verdict_find(&which, outcome, text);
    if (text[0] != '\0' || options->is_traced) {
        printf("seed %llu: %s\n", (unsigned long long)seed, text);
        scenario_print(&which);
        printf("%lld steps, %.6f s, digest %016llx\n", (long long)sim_nsteps(), (double)sim_now_ns() / 1e9,
               (unsigned long long)sim_digest());
        if (outcome != SIM_ALL_ENDED) {
            sim_print_threads();
        }
    }
    sim_end();
    return text[0] == '\0';
}

int
main(int argc, char **argv)
{
    run_options options = {.first_seed = 1, .nseeds = 100, .fault_kinds = ALL_FAULTS};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--trace") == 0) {
            options.is_traced = true;
        } else if (strcmp(argv[i], "--seed") == 0) {
            options.first_seed = strtoull(argv[++i], NULL, 0);
            options.nseeds = 1;
        } else if (strcmp(argv[i], "--seeds") == 0) {
            options.nseeds = strtoull(argv[++i], NULL, 0);
        } else if (strcmp(argv[i], "--faults") == 0) {
            options.fault_kinds = (unsigned)strtoul(argv[++i], NULL, 0);
        }
    }
    int nfailed = 0;
    for (uint64_t i = 0; i < options.nseeds; i++) {
        nfailed += run_seed(&options, options.first_seed + i) ? 0 : 1;
    }
    printf("%llu seeds, %d failed\n", (unsigned long long)options.nseeds, nfailed);
    return nfailed > 0;
}
