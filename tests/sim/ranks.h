/* What the ranks of a scenario do, with the real library, and what they have seen. */
#ifndef DD_TESTS_SIM_RANKS_H
#define DD_TESTS_SIM_RANKS_H

#include "core/status.h"
#include "scenario.h"

#define CALLS_MAX 64

typedef struct rank_call {
    const char *name;
    int step;                   /* -1: before the first */
    int64_t began_ns, ended_ns; /* 0: has not ended */
    int64_t limit_ns;           /* by when it has to end */
    dd_error error;             /* code DD_OK: none */
    int blamed;                 /* as a rank of the scenario; -1: nobody */
} rank_call;

typedef struct rank_record {
    rank_call calls[CALLS_MAX];
    int ncalls;
    bool has_wrong_data;
    char wrong[160];
    bool has_closed;       /* has let go of everything, in good order */
    bool has_joined_again; /* has worked in a new world after STEP_PART */
    bool has_left;         /* has exited without a word, as the scenario has it */
} rank_record;

/* Spawns the processes of the scenario, the agent last: process r is rank r. */
void ranks_spawn(const scenario *which);
/* Of the last scenario. */
const rank_record *ranks_record(int rank);

#endif
