/* Ranks as engines in one process, connected like processes, for tests of engine and context. */
#ifndef DD_TESTS_TEST_ENGINE_RIG_H
#define DD_TESTS_TEST_ENGINE_RIG_H

#include "check.h"
#include "core/thread.h"
#include "transport/context.h"
#include "transport/engine.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#define RIG_MAX 4
#define RIG_GROUP UINT64_C(77)

/* The events that a rank's handler has received. */
typedef struct rig_news {
    atomic_int ncolls, naborts, nlosts, ngoodbyes, nanswers;
    int naborts_before_loss; /* before the first loss */
    dd_cause abort_cause;
    dd_error lost_error;
    int lost_rank;
    uint64_t answer_sequence;
    dd_signature last_signature;
} rig_news;

typedef struct rig_rank {
    dd_engine *engine;
    dd_context *context;
    dd_peer *peers[RIG_MAX];
    rig_news news;
} rig_rank;

typedef struct rig_group {
    int nranks;
    bool is_shm;
    int nlanes;
    rig_rank ranks[RIG_MAX];
} rig_group;

/* A message with a flag. */
typedef struct rig_message {
    dd_message message;
    atomic_bool is_done;
    dd_error error; /* its code is DD_OK on success */
} rig_message;

dd_connect_options rig_options(bool is_shm, int nlanes);
bool rig_open(rig_group *self, int nranks, bool is_shm);
bool rig_open_engines(rig_group *self, int nranks, bool is_shm, int nlanes);
/* Open the group RIG_GROUP on one rank. */
bool rig_open_context(rig_group *self, int rank);
/* As rig_open_context, for another group, which replaces the current one. */
/* Return a handler that records the news of a rank. */
dd_context_handler rig_handler(rig_group *self, int rank);
bool rig_open_context_of(rig_group *self, int rank, uint64_t id);
void rig_close_context(rig_group *self, int rank);
void rig_close_rank(rig_group *self, int rank);
void rig_close(rig_group *self);

rig_message rig_p2p(int rank, uint64_t tag, void *data, size_t nbytes);
rig_message rig_coll(int rank, uint64_t sequence, uint32_t channel, const dd_signature *signature, void *data,
                     size_t nbytes);
void rig_post_send(rig_group *self, int rank, rig_message *message);
void rig_post_recv(rig_group *self, int rank, rig_message *message);
void rig_cancel(rig_group *self, int rank, rig_message *message);

/* Blocks a rank's engine: a separate thread holds the lock, so that the caller may wait for other
 * ranks and never holds the locks of two engines. */
typedef struct rig_hold {
    dd_engine *engine;
    pthread_t thread;
    sem_t is_held, is_over;
} rig_hold;

bool rig_hold_begin(rig_hold *self, rig_group *rig, int rank);
void rig_hold_end(rig_hold *self);

/* Drive the rank until the flag is set, for at most 5 s; check that it was set. */
bool rig_wait_flag(rig_group *self, int rank, const atomic_bool *flag);
/* Drive the rank until the message completes; check that it has this code. */
bool rig_wait(rig_group *self, int rank, rig_message *message, dd_status code);
/* Drive all ranks for this time, so that pending data arrives. */
void rig_drive(rig_group *self, int64_t duration_ns);
/* Drive the rank until the counter reaches `wanted`. */
bool rig_wait_count(rig_group *self, int rank, atomic_int *counter, int wanted);

/* Run body(rig, rank) for all ranks, each on a thread. */
void rig_run(rig_group *self, void (*body)(rig_group *self, int rank));

/* Fill with a pattern that identifies the position of each byte. */
void rig_fill(uint8_t *data, size_t nbytes, unsigned seed);
bool rig_is_filled(const uint8_t *data, size_t nbytes, unsigned seed);

#endif
