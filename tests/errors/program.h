/* Whole programs of a few ranks, each a process, that tell how far they come. */
#ifndef DD_TESTS_ERRORS_PROGRAM_H
#define DD_TESTS_ERRORS_PROGRAM_H

#include "core/system.h"
#include "core/wait.h"
#include "faults/faults.h"
#include "store/store.h"
#include "store/tcp_server.h"

#include <stdatomic.h>

#define PROGRAM_RANKS_MAX 3
#define TRACE_DEPTH 16

/* What a process has that it could leave behind. */
typedef struct belongings {
    long nfds;
    long nmappings;
    long nthreads;
    long nblocks;
} belongings;

/* What the starter of a program sees of a rank: shared memory. */
typedef struct rank_report {
    const char *step;    /* the one under way; the first that has failed, if one has */
    dd_error error;      /* its error; DD_OK: all went well */
    char complaint[160]; /* what the rank has seen itself that must not be; empty: nothing */
    bool has_ended;
    int64_t elapsed_ns;
    belongings before;
    belongings after;
    long ncalls[DD_SYS_CALL_COUNT];
    bool was_hit; /* the call that is to fail has failed */
    void *trace[TRACE_DEPTH];
    int trace_depth;
} rank_report;

typedef struct run_board {
    rank_report ranks[PROGRAM_RANKS_MAX];
    /* When those who wait for ranks that have nowhere to say that they failed are told, as a launcher tells them: by a signal. */
    atomic_int_fast64_t stop_at_ns;
    atomic_int port; /* of the store's server in rank 0, when it is there */
} run_board;

typedef struct rank_env {
    int rank;
    int size;
    const char *name;    /* of this run, unlike that of any other */
    const char *folder;  /* for its files */
    uint16_t agent_port; /* of a store that is in none of the ranks */
    run_board *board;
    rank_report *report;
    dd_error error; /* for the step under way */
} rank_env;

/* How the other ranks of a program hear of a failure: by the group, once there is one. */
typedef enum failure_scope {
    SCOPE_STARTER, /* not at all; their starter ends them */
    SCOPE_MEETING, /* by the store in which they meet, if that can still be reached; else by their starter */
    SCOPE_GROUP,
} failure_scope;

/* if (STEP(self, SCOPE_GROUP, "barrier", barrier(self, &self->error))): whether it went well. */
#define STEP(self, scope, name, call) (begin_step((self), (name)), end_step((self), (scope), (call)))
void begin_step(rank_env *self, const char *name);
bool end_step(rank_env *self, failure_scope scope, dd_status status);
/* What must not be, whatever has failed. */
void complain(rank_env *self, const char *format, ...) DD_PRINTF(2, 3);
bool has_failed(const rank_env *self);
/* A wait of the length that users have, which the starter can end. */
dd_wait step_wait(rank_env *self);

typedef struct test_program {
    const char *name;
    int size;
    void (*run)(rank_env *self);
    bool has_own_store; /* with its server in rank 0 */
    bool writes_files;  /* by write(); all others ring bells with it, which cannot fail */
} test_program;

extern const test_program programs[];
extern const int nprograms;

/* A TCPStore with its server in rank 0; false: that has failed. Either way the caller releases what there is. */
bool open_own_store(rank_env *self, dd_bytes secret, dd_tcp_server **server, dd_store **store);

/* world_programs.c, store_programs.c */
void run_world_by_shared_memory(rank_env *self);
void run_world_by_tcp(rank_env *self);
void run_world_of_two_hosts(rank_env *self);
void run_world_with_own_store(rank_env *self);
void run_world_with_secret(rank_env *self);
void run_watched_world(rank_env *self);
void run_dump(rank_env *self);
void run_tcp_store(rank_env *self);
void run_file_store(rank_env *self);

#endif
