/* The actions of the ranks of a scenario, with the real library, and a record of their results. */
#ifndef DD_TESTS_SIM_RANKS_H
#define DD_TESTS_SIM_RANKS_H

#include "core/status.h"
#include "scenario.h"

#define CALLS_MAX 64

typedef struct rank_call {
    const char *name;
    int step;                   /* -1 before the first step */
    int64_t began_ns, ended_ns; /* ended_ns is 0 until the call ends */
    int64_t limit_ns;           /* the call must end before this time */
    dd_error error;             /* the code is DD_OK if the call succeeded */
    int blamed;                 /* a rank of the scenario; -1 for none */
} rank_call;

typedef struct rank_record {
    rank_call calls[CALLS_MAX];
    int ncalls;
    bool has_wrong_data;
    char wrong[160];
    bool has_closed;       /* has closed everything cleanly */
    bool has_joined_again; /* has worked in a new world after STEP_PART */
    bool has_left;         /* has exited without notice, as the scenario requires */
} rank_record;

/* Spawn the processes of the scenario, the agent last: process r is rank r. */
void ranks_spawn(const scenario *which);
/* Return the record of a rank in the last scenario. */
const rank_record *ranks_record(int rank);

#endif
