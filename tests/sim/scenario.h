/* One simulated run: its hosts, its ranks, the steps of all ranks, and the faults. A seed
 * determines all of it. */
#ifndef DD_TESTS_SIM_SCENARIO_H
#define DD_TESTS_SIM_SCENARIO_H

#include "collective/coll.h"
#include "core/wait_policy.h"
#include "sim/world/sim.h"

#include <stdbool.h>
#include <stdint.h>

#define RANKS_MAX 6
#define STEPS_MAX 12
#define FAULTS_MAX 3

typedef enum step_kind {
    STEP_COLL,   /* a collective of the group */
    STEP_RING,   /* each rank sends to the next rank and receives */
    STEP_SPLIT,  /* halves of the group, with a collective in each */
    STEP_WINDOW, /* each rank puts into the memory of the next rank */
    STEP_REOPEN, /* close the group and create another */
    STEP_ENGINE, /* the same, and also the engine */
    STEP_PAUSE,  /* delay one rank */
    /* an optional last step */
    STEP_ABORT,    /* one rank aborts the group */
    STEP_LEAVE,    /* one rank exits without notice */
    STEP_LATE,     /* one rank joins after the deadline of the others */
    STEP_MISMATCH, /* one rank makes a different call */
    STEP_LAST,     /* one rank aborts the group right after a collective */
    STEP_PART,     /* a cut between two hosts heals; then all ranks create a new world */
    STEP_KINDS,
} step_kind;

typedef struct scenario_step {
    step_kind kind;
    dd_coll coll;
    int rank;  /* the root, or the rank that acts */
    int count; /* elements; milliseconds of a cut; tens of microseconds of a pause */
} scenario_step;

typedef struct scenario {
    uint64_t seed;
    sim_options world;
    int nranks;
    int host_of[RANKS_MAX];
    bool has_file_store; /* on a disk that all hosts share; false: a server */
    bool has_agent;      /* the server has its own process on host 0; false: rank 0 runs it */
    bool has_secret;
    bool is_encryption_off;
    bool is_shm_disabled;
    int nlanes;
    dd_spin_policy waiting;
    const char *algorithms;
    int64_t timeout_ns; /* timeout of a call */
    bool exits_at_once; /* a rank that fails exits without closing anything */
    scenario_step steps[STEPS_MAX];
    int nsteps;
    sim_fault faults[FAULTS_MAX];
    int nfaults;
} scenario;

/* Bits of the faults that may happen, one for each kind. */
#define ALL_FAULTS ((1U << SIM_FAULT_KINDS) - 1)

/* The parts that a shrunk scenario lacks, and a schedule in which it still fails. A zeroed edit
 * changes nothing. */
typedef struct scenario_edit {
    uint32_t without_steps, without_faults; /* bits */
    bool is_plain;                          /* no secret, no interrupts, no small queues, one lane */
    uint64_t order;
} scenario_edit;

void scenario_make(scenario *made, uint64_t seed, unsigned fault_kinds);
void scenario_apply(scenario *made, const scenario_edit *edit);
void scenario_print(const scenario *which);
const char *step_name(step_kind kind);

#endif
