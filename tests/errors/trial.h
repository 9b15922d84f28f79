/* One run of a program, in which a system call fails on one rank. */
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
    RANK_CRASHED, /* by a signal, or a sanitizer's report */
    RANK_HUNG,    /* was killed */
} rank_end;

typedef struct trial_result {
    run_board board;
    rank_end ends[PROGRAM_RANKS_MAX];
    int status[PROGRAM_RANKS_MAX]; /* from waitpid */
    int nfiles;                    /* files left in the folder, except stores */
} trial_result;

/* The environment of successive trials: shared memory, a folder, and a process with a store. */
typedef struct trial_place {
    run_board *board;
    char folder[64];
    pid_t agent;
    uint16_t agent_port;
    int agent_life_fd; /* write end of a pipe: the agent exits when it is closed */
    int id;
    long nruns;
} trial_place;

/* Create a place. Return false and print the reason to stderr on failure. Places of several
 * processes must have different ids. */
bool trial_place_init(trial_place *place, int id);
void trial_place_fini(trial_place *place);
/* Return when all ranks have exited. Ranks that hang are killed after limit_ns. */
void trial_run(trial_place *place, const trial *trial_spec, int64_t limit_ns, trial_result *result);

#endif
