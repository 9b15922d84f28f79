/* Calls of NCCL that wait for other ranks: making communicators, finalising, suspending and resuming them, registering windows.
 *
 * NCCL gives such a call no deadline. So it is made on a thread of its own, whose record holds copies of all that it needs; the caller waits,
 * and may give it up. The thread of a call that hangs then stays behind, and undoes what the call has made, should it ever come
 * back. With a communicator that does not block the call comes back at once, and the thread polls, and aborts when it is given
 * up. Having a thread for every call also leaves the caller's current context, and his groups of NCCL, alone. */
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

/* Constant while the thread runs, but for what says otherwise. */
typedef struct dd_nccl_task {
    atomic_uint refs; /* the caller's and the thread's */
    dd_nccl_task_kind kind;
    char what[160];
    dd_nccl_lib lib; /* copies, with those that follow: the originals may end before a thread that hangs */
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
    void *data;                /* of the window */
    size_t nbytes;
    int ncomms;
    dd_nccl_comm **comms; /* the records that get the handles */

    dd_lock mu;
    pthread_cond_t changed;
    bool is_done;     /* guarded by mu: status, error, handles, is_async and window are there */
    bool is_given_up; /* guarded by mu: nobody will take them */
    bool is_in_call;  /* guarded by mu: the call that may hang */
    dd_status status; /* the thread's until is_done, with those that follow */
    dd_error error;
    dd_nccl_last_error before;
    bool is_async; /* the call came back before it was through */
    dd_nccl_window window;
    dd_nccl_comm_handle *handles; /* written by NCCL's threads, too */
} dd_nccl_task;

/* Where a call runs. */
typedef struct dd_nccl_place {
    const dd_nccl_lib *lib;
    const dd_cuda *cuda;
    int device;
} dd_nccl_place;

/* `ncomms` records without handles; what is created is released, or run. */
dd_status dd_nccl_task_create(dd_nccl_task_kind kind, const dd_nccl_place *at, int ncomms,
                              dd_nccl_task **task, dd_error *err) DD_MUST_CHECK;
void dd_nccl_task_release(dd_nccl_task *task); /* NULL is fine */

/* Takes the task, and the caller's being inside its parent. comms gets what has been made, NULL where there is none. */
dd_status dd_nccl_task_run(dd_nccl_task *task, dd_nccl_comm **comms, const atomic_bool *stop,
                           const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

#endif
