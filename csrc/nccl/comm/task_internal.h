/* NCCL calls that wait for other ranks: creating, finalising, suspending and resuming
 * communicators, and registering windows. NCCL gives such a call no deadline. So a thread of its
 * own makes it, with a task that has copies of all it needs; the caller waits, and may abandon the
 * task. A thread whose call hangs then stays behind, and aborts what the call makes if it ever
 * returns. On a nonblocking communicator the call returns immediately; the thread polls, and aborts
 * if the task is abandoned. The caller's context and NCCL groups are not affected. */
#ifndef DD_NCCL_COMM_TASK_INTERNAL_H
#define DD_NCCL_COMM_TASK_INTERNAL_H

#include "core/lock.h"
#include "nccl/comm/internal.h"

typedef enum dd_nccl_task_kind {
    DD_NCCL_TASK_INIT,
    DD_NCCL_TASK_INIT_ALL,
    DD_NCCL_TASK_SPLIT,
    DD_NCCL_TASK_SHRINK,
    DD_NCCL_TASK_GROW,
    DD_NCCL_TASK_FINALIZE,
    DD_NCCL_TASK_SUSPEND,
    DD_NCCL_TASK_RESUME,
    DD_NCCL_TASK_WINDOW,
} dd_nccl_task_kind;

/* Constant while the thread runs, except as noted. */
typedef struct dd_nccl_task {
    atomic_uint refs; /* one for the caller, one for the thread */
    dd_nccl_task_kind kind;
    char what[160];
    dd_nccl_lib lib; /* copies, like cuda: a thread that hangs may outlive the originals */
    dd_cuda cuda;
    dd_cuda_context context;
    dd_nccl_comm *parent; /* acquired and, while the thread runs, entered; or NULL */
    dd_nccl_comm_handle parent_handle;
    int rank;
    int size;
    int color;
    int key;
    bool is_abort;
    dd_nccl_unique_id *ids;
    int nids;
    int *numbers; /* excluded ranks, or devices */
    int nnumbers;
    bool has_config;
    dd_nccl_config config;
    dd_nccl_abi_config packed; /* points into config */
    void *data;                /* the window's memory */
    size_t nbytes;
    int ncomms;
    dd_nccl_comm **comms; /* records that receive the handles */

    dd_lock mu;
    pthread_cond_t changed;
    bool is_done;      /* guarded by mu; the results below are set */
    bool is_cancelled; /* guarded by mu; the caller has abandoned the task */
    bool is_in_call;   /* guarded by mu; the thread is in NCCL, which may hang */
    dd_status status;  /* owned by the thread until is_done, like the fields below */
    dd_error error;
    dd_nccl_last_error before;
    bool is_async; /* the call returned before it was complete */
    dd_nccl_window window;
    dd_nccl_comm_handle *handles; /* NCCL's threads also write here */
} dd_nccl_task;

/* The library and device of a call. */
typedef struct dd_nccl_device_ref {
    const dd_nccl_lib *lib;
    const dd_cuda *cuda;
    int device;
} dd_nccl_device_ref;

/* Create a task with `ncomms` records without handles. Pass it to dd_nccl_task_run or _release. */
dd_status dd_nccl_task_create(dd_nccl_task_kind kind, const dd_nccl_device_ref *at, int ncomms,
                              dd_nccl_task **task, dd_error *err) DD_MUST_CHECK;
void dd_nccl_task_release(dd_nccl_task *task); /* may be NULL */

/* Run and release the task, and leave its parent, which the caller must have entered. comms gets
 * the new communicators, and NULL for each that NCCL did not make. */
dd_status dd_nccl_task_run(dd_nccl_task *task, dd_nccl_comm **comms, const atomic_bool *stop,
                           const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

#endif
