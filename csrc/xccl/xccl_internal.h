/* Declarations shared by the files of csrc/xccl.
 *
 * A oneCCL call blocks until it is done, and oneCCL keeps state per thread. Each communicator
 * therefore has a thread that makes all of its calls. The holder of the engine's lock gives the
 * thread a job and polls for its end. */
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
    dd_carrier_library base; /* must be first */
    xccl_api api;
    dd_dylib dylib;
    char version[32];
} xccl_library;

typedef enum xccl_job {
    XCCL_IDLE,
    XCCL_GET_ID, /* on rank 0: get a new id */
    XCCL_JOIN,   /* create the communicator with that id */
    XCCL_CALL,
    XCCL_CANCEL, /* last job: leave the communicator as it is */
    XCCL_END,    /* last job: destroy the communicator */
} xccl_job;

typedef struct xccl_carrier {
    dd_carrier base; /* must be first */
    const xccl_library *library;
    int rank;
    int nranks;
    dd_background_task thread; /* the thread's lifetime; its owners share this whole struct */
    dd_spin spin;              /* used only by the thread */
    size_t *counts;            /* used only by the thread: two for each rank */
    xccl_comm comm;            /* used only by the thread */
    xccl_unique_id id;
    dd_carried_call call;
    dd_lock mu;
    pthread_cond_t changed;
    /* Written with mu held, read without it; release and acquire, because it publishes the job's
     * data. While idle, the carrier's owner owns all fields except the thread's; otherwise the
     * thread does. */
    atomic_int job;
    bool has_turn;    /* the thread holds the process's turn */
    dd_status status; /* of the last job */
    dd_error error;
} xccl_carrier;

/* ---- xccl_error.c: call on the thread that made the oneCCL call */

/* Write "onecclError (1): Generic error: <oneCCL's last error>" as one line. */
void xccl_describe(const xccl_api *api, xccl_result result, char *text, size_t nbytes);
/* Return DD_OK, or DD_BACKEND with a message like "onecclSend of rank 1 of 4: onecclInvalidArgument
 * (4): Invalid argument: <oneCCL's last error>". */
dd_status xccl_check(const xccl_carrier *self, xccl_result result, const char *function,
                     dd_error *err) DD_MUST_CHECK;

/* ---- xccl_thread.c */

/* Create a carrier and its thread, which is idle. */
dd_status xccl_create(const xccl_library *library, const dd_group *group, xccl_carrier **carrier,
                      dd_error *err) DD_MUST_CHECK;
bool xccl_is_idle(const xccl_carrier *self);
/* Give the thread a job. It must be idle unless the job is XCCL_CANCEL. Never waits. */
void xccl_post(xccl_carrier *self, xccl_job job);
/* Post a job and wait for its end, the deadline, or a failure of the group. */
dd_status xccl_do(xccl_carrier *self, xccl_job job, dd_group *group, const dd_wait *wait,
                  dd_error *err) DD_MUST_CHECK;

/* The turn is a lock of the process: oneCCL creates and destroys one object at a time, and
 * communicators that are created concurrently hang. The holder of the turn posts XCCL_GET_ID,
 * XCCL_JOIN or XCCL_END; the thread releases the turn after the job. */
bool xccl_try_turn(void);
dd_status xccl_take_turn(const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
void xccl_end_turn(void);
/* Nap between two tries. Returns DD_OP_TIMED_OUT after the deadline. */
dd_status xccl_await_turn(const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* ---- xccl_call.c */

bool xccl_has(const dd_carrier *carrier, const dd_carried_call *call);
/* Call on the thread. A call of several steps ends early, with any status, after XCCL_CANCEL. */
dd_status xccl_call(xccl_carrier *self, const dd_carried_call *call, dd_error *err) DD_MUST_CHECK;

/* ---- xccl_carrier.c */

dd_status xccl_make(dd_carrier_library *library, dd_group *group, dd_carrier **carrier, const dd_wait *wait,
                    dd_error *err) DD_MUST_CHECK;

#endif
