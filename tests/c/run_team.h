/* Ranks as threads that run collectives without a group. Each rank has an engine, a context and a
 * run. The test assigns ranks to hosts. Ranks of one host use shared memory and have an arena;
 * other ranks use TCP. */
#ifndef DD_TESTS_RUN_TEAM_H
#define DD_TESTS_RUN_TEAM_H

#include "coll_world.h"
#include "collective/run.h"

#include <pthread.h>

#define RUN_TEAM_MAX 8

typedef struct run_team_options {
    int nranks;
    int host_of[RUN_TEAM_MAX];
    const char *selection;
    size_t segment_nbytes;
} run_team_options;

typedef struct run_team run_team;

typedef struct run_member {
    run_team *team;
    int rank;
    void *arg;
    dd_engine *engine;
    dd_peer *peers[RUN_TEAM_MAX];
    dd_context *context;
    dd_topology topology;
    dd_arena *arena;
    dd_run *run;
    uint64_t sequence;
    dd_signature signature; /* of the current call */
    /* Guarded by the engine's lock. True after an abort or a loss: nothing more is started. */
    bool has_failed;
    dd_error failure;
    atomic_bool is_done; /* for the current call */
    dd_error outcome;    /* its code is DD_OK on success */
} run_member;

/* Run `body` on every rank, in a thread each. It must return on all ranks. */
void run_team_do(const run_team_options *options, void (*body)(run_member *self), void *arg);

/* Wait until all ranks have called this. */
void run_team_meet(run_member *self);

/* Run one collective to completion. On failure check_err() has the error, which is also sent to the
 * other ranks. */
dd_status run_team_call(run_member *self, const dd_coll_args *args, const dd_signature *signature);

/* Start a collective without waiting for it. */
void run_team_start(run_member *self, const dd_coll_args *args, const dd_signature *signature);
dd_status run_team_wait(run_member *self);
/* Wait, for some seconds, until this many ranks are missing in the current call. Return their
 * number, and store the ranks in `missing`. */
int run_team_await_missing(run_member *self, int nwanted, int *missing);

/* Set outcome and is_done of the member that is ctx. A completion callback for calls that the test
 * starts itself. */
void run_team_on_done(void *ctx, const dd_error *error);

/* Close the rank's context and engine abruptly, as if its process were killed. The rank must make
 * no more calls. */
void run_team_die(run_member *self);

#endif
