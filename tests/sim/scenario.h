/* What happens in one simulated run: hosts, ranks, what all ranks do in turn, and what goes wrong. All of it follows from a number. */
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
    STEP_RING,   /* each rank sends to the next one, and receives */
    STEP_SPLIT,  /* halves of the group, with a collective in each */
    STEP_WINDOW, /* each rank puts into the memory of the next one */
    STEP_REOPEN, /* the group is closed, and another one made */
    STEP_ENGINE, /* the same, and the engine, too */
    STEP_PAUSE,  /* one rank is late */
    /* what comes last, if at all */
    STEP_ABORT,    /* one rank aborts the group */
    STEP_LEAVE,    /* one rank exits without a word */
    STEP_LATE,     /* one rank comes after the deadline of the others */
    STEP_MISMATCH, /* one rank calls something else than the others */
    STEP_LAST,     /* one rank aborts the group right after a collective */
    STEP_PART,     /* the network between two hosts is cut and heals; then all ranks make a new world */
    STEP_KINDS,
} step_kind;

typedef struct scenario_step {
    step_kind kind;
    dd_coll coll;
    int rank;  /* root, or who does it */
    int count; /* elements; milliseconds of a cut; a pause: tens of microseconds */
} scenario_step;

typedef struct scenario {
    uint64_t seed;
    sim_options world;
    int nranks;
    int host_of[RANKS_MAX];
    bool has_file_store; /* on a disk that all share; else there is a server */
    bool has_agent;      /* the store's server is in a process of its own, on host 0; else it is rank 0's */
    bool has_secret;
    bool is_encryption_off;
    bool is_shm_disabled;
    int nlanes;
    dd_spin_policy waiting;
    const char *algorithms;
    int64_t timeout_ns; /* of a call */
    bool exits_at_once; /* who has failed exits without closing anything */
    scenario_step steps[STEPS_MAX];
    int nsteps;
    sim_fault faults[FAULTS_MAX];
    int nfaults;
} scenario;

/* Which faults may happen; a bit for each kind of fault. */
#define ALL_FAULTS ((1U << SIM_FAULT_KINDS) - 1)

/* What a shrunk scenario goes without, and in which order of things it still fails. A zeroed one changes nothing. */
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
