/* One run of a program, in which a call of the system fails on one rank. */
#ifndef DD_TESTS_ERRORS_TRIAL_H
#define DD_TESTS_ERRORS_TRIAL_H

#include "faults/faults.h"
#include "program.h"

#include <sys/types.h>

typedef struct trial {
    const test_program *program;
    int victim;         /* the rank on which the call fails */
    dd_sys_fault fault; /* number < 0: none */
} trial;

/* How a rank has ended. */
typedef enum rank_end {
    RANK_ENDED,
    RANK_CRASHED, /* by a signal, or a sanitizer's verdict */
    RANK_HUNG,    /* has been killed */
} rank_end;

typedef struct trial_result {
    run_board board;
    rank_end ends[PROGRAM_RANKS_MAX];
    int status[PROGRAM_RANKS_MAX]; /* as waitpid says */
    int nfiles;                    /* that were left in the folder, stores apart */
} trial_result;

/* Where trials are run, one after the other: shared memory, a folder, and a process with a store. */
typedef struct trial_place {
    run_board *board;
    char folder[64];
    pid_t agent;
    uint16_t agent_port;
    int agent_life; /* its end of a pipe: closed, the agent ends */
    int id;
    long nruns;
} trial_place;

/* False: it cannot be made, and says so on stderr. Places of several processes have different ids. */
bool trial_place_init(trial_place *place, int id);
void trial_place_fini(trial_place *place);
/* Returns when all ranks have ended, those that hang after limit_ns by force. */
void trial_run(trial_place *place, const trial *what, int64_t limit_ns, trial_result *result);

#endif
