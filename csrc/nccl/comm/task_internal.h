/* NCCL calls that wait for other ranks: creating, finalising, suspending and resuming
 * communicators, and registering windows. NCCL gives such a call no deadline. So a separate thread
 * makes the call, with a task that has copies of all that the thread needs; the caller waits, and
 * may abandon the task. If the call hangs, its thread stays behind, and aborts the new
 * communicators if the call ever returns. On a nonblocking communicator the call returns
 * immediately; the thread polls NCCL, and aborts the new communicators if the task is abandoned.
 * The caller's context and NCCL groups are unaffected. */
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

/* One call. Fields are constant while the thread runs, except as noted. */
typedef struct dd_nccl_task {
    atomic_uint refs; /* one reference for the caller, one for the thread */
    dd_nccl_task_kind kind;
    char label[160];
    dd_nccl_lib lib; /* lib and cuda are copies: a thread that hangs may outlive the originals */
    dd_cuda cuda;
    dd_cuda_context context;
    dd_nccl_comm *parent; /* owned reference, entered while the thread runs; or NULL */
    dd_nccl_comm_handle parent_handle;
    int rank;
    int size;
    int color;
    int key;
    bool is_abort;
    dd_nccl_unique_id *ids;
    int nids;
    int *numbers; /* excluded ranks (for a shrink), or devices (for init_all) */
    int nnumbers;
    bool has_config;
    dd_nccl_config config;
    dd_nccl_abi_config packed; /* configuration for NCCL; points into `config` */
    void *data;                /* memory of the window to register */
    size_t nbytes;
    int ncomms;
    dd_nccl_comm **comms; /* the new communicators' records, which get their handles at the end */

    dd_lock mu;
    pthread_cond_t changed;
    bool is_done;      /* guarded by mu; the thread has finished, and the results below are set */
    bool is_cancelled; /* guarded by mu; the caller has abandoned the task */
    bool is_in_call;   /* guarded by mu; the thread is in an NCCL call, which may hang */
    dd_status status;  /* owned by the thread until is_done, like all fields below */
    dd_error error;
    dd_nccl_last_error before;
    bool is_async; /* the call returned before it was complete, so NCCL must be polled */
    dd_nccl_window window;
    dd_nccl_comm_handle *handles; /* the communicators' handles; NCCL's threads also write them */
} dd_nccl_task;

/* The device of a call, with the NCCL and CUDA libraries to use. */
typedef struct dd_nccl_device_ref {
    const dd_nccl_lib *lib;
    const dd_cuda *cuda;
    int device;
} dd_nccl_device_ref;

/* Create a task with `ncomms` new records. Pass it to dd_nccl_task_run or dd_nccl_task_release. */
dd_status dd_nccl_task_create(dd_nccl_task_kind kind, const dd_nccl_device_ref *at, int ncomms,
                              dd_nccl_task **task, dd_error *err) DD_MUST_CHECK;
void dd_nccl_task_release(dd_nccl_task *task); /* may be NULL */

/* Run and release the task, and leave its parent. The caller must have entered the parent. comms[i]
 * is the i-th new communicator, or NULL if NCCL created none for it. */
dd_status dd_nccl_task_run(dd_nccl_task *task, dd_nccl_comm **comms, const atomic_bool *stop,
                           const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

#endif
