/* Ranks as threads that run collectives without a group above: each has an engine, a context and a run of
 * its own, and hosts are what the test says they are. Ranks of one host meet over shared memory and have
 * an arena; others meet over TCP. */
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
    dd_signature signature; /* of the call under way */
    bool has_failed;        /* with the engine's lock: an abort, a loss; nothing more is started */
    dd_error failure;
    atomic_bool is_done; /* the call under way */
    dd_error outcome;    /* code DD_OK: success */
} run_member;

/* Does `body` on every rank, in a thread each; all of them must come back from it. */
void run_team_do(const run_team_options *options, void (*body)(run_member *self), void *arg);

/* All ranks come here before any leaves. */
void run_team_meet(run_member *self);

/* One collective from start to end; check_err() has the failure, which the other ranks are told. */
dd_status run_team_call(run_member *self, const dd_coll_args *args, const dd_signature *signature);

/* Starts it only. */
void run_team_start(run_member *self, const dd_coll_args *args, const dd_signature *signature);
dd_status run_team_wait(run_member *self);
/* Waits until that many ranks are missing in the call under way, for some seconds; how many are, and
 * which. */
int run_team_await_missing(run_member *self, int nwanted, int *missing);

/* What a call that the test has started itself may be told by: sets outcome and is_done of the member that
 * is its ctx. */
void run_team_on_done(void *ctx, const dd_error *error);

/* The rank's context and engine go at once, as when its process is killed. It must not call anything after
 * it. */
void run_team_die(run_member *self);

#endif
