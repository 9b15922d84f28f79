#ifndef DD_TESTS_PLAN_SIM_INTERNAL_H
#define DD_TESTS_PLAN_SIM_INTERNAL_H

#include "plan_sim.h"

typedef struct sim_rank {
    dd_plan plan;
    dd_block *inputs;
    dd_block *outputs;
    int ninputs;
    int noutputs;
    void **originals; /* copies of the inputs, for comparison */
    void *scratch;
    uint32_t *waiting; /* by step: dependencies that have not ended */
    uint32_t *partner; /* by step: the matching step of the peer */
    uint8_t *state;    /* by step */
    void **eager_data; /* by step: data of an eager send */
} sim_rank;

typedef struct sim_world {
    const sim_case *sim;
    sim_rank *ranks;
    unsigned random;
} sim_world;

unsigned sim_random(sim_world *world);

/* plan_sim.c: the number of elements that rank `from` has for rank `to`, and the element sizes of
 * inputs and outputs */
size_t sim_count(const sim_case *sim, int from, int to);
size_t sim_input_size(const sim_case *sim);
size_t sim_output_size(const sim_case *sim);
void sim_make_rank(sim_world *world, int rank, bool has_memory);
void sim_free_rank(sim_rank *rank);
void *sim_address(const sim_rank *rank, dd_plan_range range);

/* plan_sim_static.c */
bool sim_check_plan(const sim_world *world, int rank);
bool sim_match(sim_world *world);

/* plan_sim_run.c */
bool sim_run(sim_world *world);

/* plan_sim_oracle.c */
bool sim_check_results(sim_world *world);

#endif
