/* All ranks of one collective in one thread: builds everybody's plan, checks the plans as they stand, runs them against each
 * other in an order made to be unkind, and compares what comes out with a fold done in one place.
 *
 * As they stand: ranges within their blocks, never into inputs; every send with its receive, of the same size, in the same
 * order for each pair of ranks; any two steps that touch the same memory, one of them writing, joined by a path of
 * dependencies, inputs and outputs taken for the same memory wherever coll.h lets them be. */
#ifndef DD_TESTS_PLAN_SIM_H
#define DD_TESTS_PLAN_SIM_H

#include "collective/plan.h"

typedef enum sim_policy {
    SIM_RANDOM,
    SIM_NEWEST, /* what became possible last is done first */
    SIM_OLDEST,
    SIM_LAGGARD, /* one rank acts only when nobody else can */
    SIM_NPOLICIES,
} sim_policy;

typedef struct sim_case {
    const dd_algorithm *algorithm;
    int nranks;
    int root;
    dd_reduction reduction;
    dd_stage stage; /* that the whole of it is */
    size_t count;   /* elements of the array, or of each block */
    bool is_uneven; /* blocks: of sizes up to count */
    bool is_in_place;
    size_t segment_nbytes;
    sim_policy policy;
    bool is_eager; /* sends end at once; else only when the receive has begun, and the bytes are taken then */
    unsigned seed;
} sim_case;

/* CHECKs all that; false when one failed, which is printed with the case. */
bool plan_sim_check(const sim_case *sim);

/* Builds all plans of the case, and gives them to `visit` or ends with the first failure: for tests of running out of memory
 * and of cost. */
dd_status plan_sim_build(const sim_case *sim, void (*visit)(int rank, const dd_plan *plan, void *ctx),
                         void *ctx, dd_error *err) DD_MUST_CHECK;

#endif
