/* A group of threads: each rank is a thread with an engine of its own. */
#ifndef DD_TESTS_GROUP_TEAM_H
#define DD_TESTS_GROUP_TEAM_H

#include "group/group.h"

typedef struct team_options {
    int size;
    bool is_shm_disabled;  /* TCP between all */
    uint64_t lonely_ranks; /* bits: ranks without shared memory, each like a host of its own */
    const char *algorithms;
    size_t segment_nbytes; /* 0: by the selection */
    int nlanes;            /* 0: one */
    int64_t timeout_ns;    /* 0: plenty */
    const char *secret;    /* NULL: none */
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

/* Opens the group on every rank, runs `body` there, closes it, and checks that all of it works. */
void team_run(const team_options *options, void (*body)(team_rank *self), void *arg);

/* The same over shared memory, then over TCP. */
void team_run_both(const team_options *options, void (*body)(team_rank *self), void *arg);

/* Runs `body` on threads with an engine, without a group. */
void team_run_apart(const team_options *options, void (*body)(team_rank *self), void *arg);

/* All ranks come here before any leaves; without the group. A name is good for one use. */
void team_rendezvous(team_rank *self, const char *name);

dd_connect_options team_connect_options(bool is_shm_disabled);
dd_group_options team_group_options(const char *name);

/* One collective, waited for: of plain calls, in the caller's thread. */
dd_status team_call(team_rank *self, const dd_coll_args *args);
dd_status team_barrier(dd_group *group);
dd_status team_start(dd_standing_call *call) DD_MUST_CHECK;
/* dd_group_p2p and dd_group_p2p_and_wait. */
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
/* The same by a standing call that is started once. */
dd_status team_call_standing(team_rank *self, const dd_coll_args *args);
/* A sum of one float32 each, which is checked. */
bool team_check_sum(dd_group *group);

/* A rank that has an engine to itself, and meets the others in the file `path`: for those that are processes and end as such. */
typedef struct team_mortal {
    dd_engine *engine;
    dd_store *store;
    dd_group *group;
} team_mortal;
/* True: the group stands. What there is of it is closed either way. */
bool team_mortal_meet(const char *path, int rank, int size, bool is_shm_disabled, team_mortal *self);
/* And has been used: all have links to all. */
bool team_mortal_open(const char *path, int rank, int size, bool is_shm_disabled, team_mortal *self);
void team_mortal_close(team_mortal *self);
/* Waits long enough for a work, releases it. */
dd_status team_wait(dd_group *group, dd_work *work);

extern const dd_call_options team_no_options;
/* For calls that do not block: nobody to let go of anything. */
extern const dd_wait team_no_wait;

#endif
