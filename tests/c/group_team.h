/* A group of threads. Each rank is a thread with its own engine. */
#ifndef DD_TESTS_GROUP_TEAM_H
#define DD_TESTS_GROUP_TEAM_H

#include "group/group.h"

typedef struct team_options {
    int size;
    bool is_shm_disabled;  /* use TCP between all ranks */
    uint64_t single_ranks; /* bit mask of ranks without shared memory, each as if on its own host */
    const char *algorithms;
    size_t segment_nbytes; /* 0 to let the selection choose */
    int nlanes;            /* 0 for one lane */
    int64_t timeout_ns;    /* 0 for a generous timeout */
    const char *secret;    /* NULL if there is none */
    bool is_encryption_off;
    dd_spin_policy waiting;
} team_options;

typedef struct team_rank {
    int rank;
    int size;
    dd_group *group;
    dd_engine *engine;
    dd_store *store;
    const team_options *options;
    void *arg;
} team_rank;

/* Open the group on every rank, run `body`, close the group, and check that all steps succeed. */
void team_run(const team_options *options, void (*body)(team_rank *self), void *arg);

/* Run the same over shared memory, then over TCP. */
void team_run_both(const team_options *options, void (*body)(team_rank *self), void *arg);

/* Run `body` on threads with an engine, without a group. */
void team_run_apart(const team_options *options, void (*body)(team_rank *self), void *arg);

/* Wait until all ranks have called this. Does not use the group. A name can be used once. */
void team_rendezvous(team_rank *self, const char *name);

dd_connect_options team_connect_options(bool is_shm_disabled);
dd_group_options team_group_options(const char *name);

/* Run one collective with plain calls in the caller's thread, and wait for it. */
dd_status team_call(team_rank *self, const dd_coll_args *args);
dd_status team_barrier(dd_group *group);
dd_status team_start(dd_prepared_call *call) DD_MUST_CHECK;
/* Wrappers of dd_group_p2p and dd_group_p2p_and_wait. */
dd_status team_send(dd_group *group, dd_block block, int rank, uint64_t tag, const dd_call_options *options,
                    dd_work **work, dd_error *err) DD_MUST_CHECK;
dd_status team_recv(dd_group *group, dd_block block, int rank, uint64_t tag, const dd_call_options *options,
                    dd_work **work, dd_error *err) DD_MUST_CHECK;
dd_status team_send_and_wait(dd_group *group, dd_block block, int rank, uint64_t tag,
                             const dd_call_options *options, const dd_wait *wait,
                             dd_error *err) DD_MUST_CHECK;
dd_status team_recv_and_wait(dd_group *group, dd_block block, int rank, uint64_t tag,
                             const dd_call_options *options, int *source, const dd_wait *wait,
                             dd_error *err) DD_MUST_CHECK;
/* Run one collective as a prepared call that is started once. */
dd_status team_call_prepared(team_rank *self, const dd_coll_args *args);
/* Sum one float32 over all ranks, and check the result. */
bool team_check_sum(dd_group *group);

/* A rank in its own process, which may be killed. It has its own engine and meets the other ranks
 * in the file `path`. */
typedef struct team_process {
    dd_engine *engine;
    dd_store *store;
    dd_group *group;
} team_process;
/* Create the group; return true on success. On failure, close all that was created. */
bool team_process_meet(const char *path, int rank, int size, bool is_shm_disabled, team_process *self);
/* As team_process_meet, and also run a collective, so that all ranks are linked. */
bool team_process_open(const char *path, int rank, int size, bool is_shm_disabled, team_process *self);
void team_process_close(team_process *self);
/* Wait for the work with a generous timeout, and release it. */
dd_status team_wait(dd_group *group, dd_work *work);

extern const dd_call_options team_no_options;
/* For calls that do not block: has no callback for blocking. */
extern const dd_wait team_no_wait;

#endif
