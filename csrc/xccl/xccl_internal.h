/* What the files of csrc/xccl share.
 *
 * A call of oneCCL waits for the other ranks, and returns when it is done. So each communicator has a thread that makes all of its calls. The
 * holder of the engine's lock gives the thread a job, and looks whether it is done. oneCCL also keeps state for each thread. */
#ifndef DD_XCCL_XCCL_INTERNAL_H
#define DD_XCCL_XCCL_INTERNAL_H

#include "core/dylib.h"
#include "core/errand.h"
#include "core/wait_policy.h"
#include "group/group.h"
#include "xccl/xccl.h"
#include "xccl/xccl_api.h"

#include <stdatomic.h>

typedef struct xccl_library {
    dd_carrier_library base; /* first */
    xccl_api api;
    dd_dylib dylib;
    char version[32];
} xccl_library;

typedef enum xccl_job {
    XCCL_IDLE,
    XCCL_GET_ID, /* rank 0: a new id */
    XCCL_JOIN,   /* the communicator of that id */
    XCCL_CALL,
    XCCL_LEAVE, /* the last: the communicator stays where it is */
    XCCL_END,   /* the last: it is destroyed */
} xccl_job;

typedef struct xccl_carrier {
    dd_carrier base; /* first */
    const xccl_library *library;
    int rank;
    int nranks;
    dd_errand thread; /* the life of the thread; its owners are those of all this */
    dd_spin spin;     /* the thread's */
    size_t *counts;   /* the thread's: two for each rank */
    xccl_comm comm;   /* the thread's */
    xccl_unique_id id;
    dd_carried_call call;
    dd_lock mu;
    pthread_cond_t changed;
    /* Written with mu, read without: release and acquire, since what jobs are about goes with it. While it is XCCL_IDLE, all but what is
     * the thread's belongs to the owner, and otherwise to the thread. */
    atomic_int job;
    bool has_turn;    /* the job is one of those that need it */
    dd_status status; /* how the last job has ended */
    dd_error error;
} xccl_carrier;

/* ---- xccl_error.c. On the thread that has made the call */

/* "onecclError (1): Generic error: <its last error>", in one line. */
void xccl_describe(const xccl_api *api, xccl_result result, char *text, size_t nbytes);
/* DD_OK, or DD_BACKEND: "onecclSend of rank 1 of 4: onecclInvalidArgument (4): Invalid argument: <its last error>". */
dd_status xccl_check(const xccl_carrier *self, xccl_result result, const char *function,
                     dd_error *err) DD_MUST_CHECK;

/* ---- xccl_thread.c */

/* With its thread, which is idle. */
dd_status xccl_create(const xccl_library *library, const dd_group *group, xccl_carrier **carrier,
                      dd_error *err) DD_MUST_CHECK;
bool xccl_is_idle(const xccl_carrier *self);
/* Of an idle one; XCCL_LEAVE at any time. Never waits. */
void xccl_post(xccl_carrier *self, xccl_job job);
/* Posts, and waits for the end, the deadline, or a failure of the group. */
dd_status xccl_do(xccl_carrier *self, xccl_job job, dd_group *group, const dd_wait *wait,
                  dd_error *err) DD_MUST_CHECK;

/* oneCCL makes and destroys one thing at a time in a process: communicators that are made beside each other hang. So a process has one turn,
 * and XCCL_GET_ID, XCCL_JOIN and XCCL_END are posted by who has it. The thread gives it back afterwards. */
bool xccl_try_turn(void);
dd_status xccl_take_turn(const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
void xccl_end_turn(void);
/* Between two tries. DD_OP_TIMED_OUT at the deadline. */
dd_status xccl_await_turn(const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* ---- xccl_call.c */

bool xccl_has(const dd_carrier *carrier, const dd_carried_call *call);
/* On the thread. A call of several steps ends early, with any status, when it has been left. */
dd_status xccl_call(xccl_carrier *self, const dd_carried_call *call, dd_error *err) DD_MUST_CHECK;

/* ---- xccl_carrier.c */

dd_status xccl_make(dd_carrier_library *library, dd_group *group, dd_carrier **carrier, const dd_wait *wait,
                    dd_error *err) DD_MUST_CHECK;

#endif
