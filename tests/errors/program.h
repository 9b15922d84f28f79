/* Test programs of a few ranks, each a process, that report their progress. */
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

/* Resources of a process that it could leak. */
typedef struct belongings {
    long nfds;
    long nmappings;
    long nthreads;
    long nblocks;
} belongings;

/* A rank's report to the starter of the program, in shared memory. */
typedef struct rank_report {
    const char *step; /* the current step, or the first failed one */
    dd_error error;   /* the error of that step; DD_OK if none */
    /* A violation that the rank has detected itself; empty if there is none. */
    char complaint[160];
    bool has_ended;
    int64_t elapsed_ns;
    belongings before;
    belongings after;
    long ncalls[DD_SYS_CALL_COUNT];
    bool was_hit; /* the call with the fault was made */
    void *trace[TRACE_DEPTH];
    int trace_depth;
} rank_report;

typedef struct run_board {
    rank_report ranks[PROGRAM_RANKS_MAX];
    /* ^ When to signal, as a launcher does, the ranks that wait for a rank which cannot report its
     * failure. */
    atomic_int_fast64_t stop_at_ns;
    atomic_int port; /* of the store's server in rank 0, once it runs */
} run_board;

typedef struct rank_env {
    int rank;
    int size;
    const char *name;    /* unique name of this run */
    const char *folder;  /* for its files */
    uint16_t agent_port; /* of a store outside all ranks */
    run_board *board;
    rank_report *report;
    dd_error error; /* for the current step */
} rank_env;

/* How the other ranks of a program learn of a failure: through the group, once it exists. */
typedef enum failure_scope {
    SCOPE_STARTER, /* not at all; the starter ends them */
    /* Through the rendezvous store if it can be reached, otherwise by the starter. */
    SCOPE_MEETING,
    SCOPE_GROUP,
} failure_scope;

/* True if the call succeeded. Example: if (STEP(self, SCOPE_GROUP, "barrier", barrier(self,
 * &self->error))) */
#define STEP(self, scope, name, call) (begin_step((self), (name)), end_step((self), (scope), (call)))
void begin_step(rank_env *self, const char *name);
bool end_step(rank_env *self, failure_scope scope, dd_status status);
/* Report a violation that no fault can justify. */
void complain(rank_env *self, const char *format, ...) DD_PRINTF(2, 3);
bool has_failed(const rank_env *self);
/* Return a wait with a typical user timeout, which the starter can interrupt. */
dd_wait step_wait(rank_env *self);

typedef struct test_program {
    const char *name;
    int size;
    void (*run)(rank_env *self);
    bool has_own_store; /* its server runs in rank 0 */
    bool writes_files;  /* by write(); other programs only ring bells with it, which cannot fail */
} test_program;

extern const test_program programs[];
extern const int nprograms;

/* Open a TCPStore with its server in rank 0. Return false on failure. In any case the caller
 * releases both. */
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
