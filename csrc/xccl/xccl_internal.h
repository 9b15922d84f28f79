/* Declarations shared by the files of csrc/xccl.
 *
 * A oneCCL call blocks until it is complete, and oneCCL keeps state for each thread. So each
 * communicator has a thread that makes all of its calls. The thread that holds the engine's lock
 * gives this thread a job and polls until the job is done. */
#ifndef DD_XCCL_XCCL_INTERNAL_H
#define DD_XCCL_XCCL_INTERNAL_H

#include "core/background_task.h"
#include "core/dylib.h"
#include "core/wait_policy.h"
#include "group/group.h"
#include "xccl/xccl.h"
#include "xccl/xccl_api.h"

#include <stdatomic.h>

typedef struct xccl_library {
    dd_carrier_library base; /* must be first, for casts */
    xccl_api api;
    dd_dylib dylib;
    char version[32];
} xccl_library;

typedef enum xccl_job {
    XCCL_IDLE,
    XCCL_GET_ID, /* on rank 0: create a unique id */
    XCCL_JOIN,   /* create the communicator with `id` */
    XCCL_CALL,
    XCCL_ABANDON, /* last job: abandon the communicator */
    XCCL_END,     /* last job: destroy the communicator */
} xccl_job;

typedef struct xccl_carrier {
    dd_carrier base; /* must be first, for casts */
    const xccl_library *library;
    int rank;
    int nranks;
    dd_background_task thread; /* owns this struct together with the caller */
    dd_spin spin;              /* used only by the thread, to wait for a job */
    size_t *counts;            /* used only by the thread; 2 * nranks counts */
    xccl_comm comm;            /* used only by the thread; NULL before XCCL_JOIN */
    xccl_unique_id id;
    dd_carried_call call;
    dd_lock mu;
    pthread_cond_t changed;
    /* An xccl_job; written only with mu held. Stored with release and read with acquire, to publish
     * the job's data. While it is XCCL_IDLE, the carrier's owner owns all fields except those that
     * only the thread uses; during a job, the thread owns all. */
    atomic_int job;
    bool has_turn;    /* the thread must release the turn that it holds (xccl_try_turn) */
    dd_status status; /* result of the last job */
    dd_error error;
} xccl_carrier;

/* ---- xccl_error.c. Both functions must be called on the thread that made the oneCCL call */

/* Print "onecclError (1): Generic error: <oneCCL's last error>" to `text`, as one line. */
void xccl_describe(const xccl_api *api, xccl_result result, char *text, size_t nbytes);
/* Convert a result: DD_OK, or DD_BACKEND "onecclSend of rank 1 of 4: onecclInvalidArgument (4):
 * Invalid argument: <oneCCL's last error>". */
dd_status xccl_check(const xccl_carrier *self, xccl_result result, const char *function,
                     dd_error *err) DD_MUST_CHECK;

/* ---- xccl_thread.c */

/* Create a carrier and its thread, which is then idle. */
dd_status xccl_create(const xccl_library *library, const dd_group *group, xccl_carrier **carrier,
                      dd_error *err) DD_MUST_CHECK;
bool xccl_is_idle(const xccl_carrier *self);
/* Give the thread a job. The thread must be idle unless the job is XCCL_ABANDON. Never waits. */
void xccl_post(xccl_carrier *self, xccl_job job);
/* Give the thread a job, and wait until it is done, the deadline, or a failure of the group. */
dd_status xccl_do(xccl_carrier *self, xccl_job job, dd_group *group, const dd_wait *wait,
                  dd_error *err) DD_MUST_CHECK;

/* The turn is a lock of the process: oneCCL can create or destroy only one object at a time, and
 * communicators that are created concurrently hang. A caller must hold the turn to post
 * XCCL_GET_ID, XCCL_JOIN or XCCL_END; the thread releases the turn after the job. */
bool xccl_try_turn(void);
dd_status xccl_take_turn(const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
void xccl_end_turn(void);
/* Sleep briefly between two tries to take the turn. DD_OP_TIMED_OUT after the deadline. */
dd_status xccl_await_turn(const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* ---- xccl_call.c */

bool xccl_has(const dd_carrier *carrier, const dd_carried_call *call);
/* Make a collective's oneCCL calls, on the carrier's thread. After XCCL_ABANDON, a collective of
 * several calls ends early, with any status. */
dd_status xccl_call(xccl_carrier *self, const dd_carried_call *call, dd_error *err) DD_MUST_CHECK;

/* ---- xccl_carrier.c */

dd_status xccl_make(dd_carrier_library *library, dd_group *group, dd_carrier **carrier, const dd_wait *wait,
                    dd_error *err) DD_MUST_CHECK;

#endif
