/* All ranks of one collective in one thread. Builds the plans of all ranks, checks them statically,
 * runs them in an adverse order, and compares the results with a fold done in one place.
 *
 * The static checks: ranges are within their blocks, and inputs are never written; every send has
 * its receive, of the same size, and in the same order for each pair of ranks; two steps that touch
 * the same memory, if one writes, are ordered by dependencies. Inputs and outputs count as the same
 * memory wherever coll.h permits. */
#ifndef DD_TESTS_PLAN_SIM_H
#define DD_TESTS_PLAN_SIM_H

#include "collective/plan.h"

typedef enum sim_policy {
    SIM_RANDOM,
    SIM_NEWEST, /* the step that became ready last runs first */
    SIM_OLDEST,
    SIM_LAGGARD, /* one rank acts only when no other rank can */
    SIM_NPOLICIES,
} sim_policy;

typedef struct sim_case {
    const dd_algorithm *algorithm;
    int nranks;
    int root;
    dd_reduction reduction;
    dd_stage stage; /* the stage of the whole reduction */
    size_t count;   /* elements of the array, or of each block */
    bool is_uneven; /* blocks have different sizes, up to count */
    bool is_in_place;
    size_t segment_nbytes;
    sim_policy policy;
    /* sends complete without a receive; else the receive must have started, and the bytes are read
     * then */
    bool is_eager;
    unsigned seed;
} sim_case;

/* CHECK all of this. Print the case and return false if a check fails. */
bool plan_sim_check(const sim_case *sim);

/* Build all plans of the case and pass them to `visit`, or return the first failure. For tests of
 * cost and of allocation failures. */
dd_status plan_sim_build(const sim_case *sim, void (*visit)(int rank, const dd_plan *plan, void *ctx),
                         void *ctx, dd_error *err) DD_MUST_CHECK;

#endif
