/* The record of a communicator. "The thread inside" has called dd_nccl_comm_enter. */
#ifndef DD_NCCL_COMM_INTERNAL_H
#define DD_NCCL_COMM_INTERNAL_H

#include "core/list.h"
#include "core/lock.h"
#include "core/thread.h"
#include "nccl/comm/comm.h"

/* Time that aborts and short calls wait for the thread inside to leave. */
#define DD_NCCL_LEAVE_NS (1 * DD_NS_PER_S)
/* Time for the thread inside to leave after an abort has ended its NCCL call. */
#define DD_NCCL_CANCEL_NS (5 * DD_NS_PER_S)
/* Interval for polling NCCL: starts at the minimum and doubles up to the maximum. */
#define DD_NCCL_POLL_MIN_NS (50 * DD_NS_PER_US)
#define DD_NCCL_POLL_MAX_NS (5 * DD_NS_PER_MS)

typedef enum dd_nccl_comm_state {
    DD_NCCL_COMM_READY,
    DD_NCCL_COMM_ABORTED,
    DD_NCCL_COMM_DESTROYED,
} dd_nccl_comm_state;

/* The related communicators that an abort also ends; see family.c. */
typedef enum dd_nccl_reach {
    DD_NCCL_REACH_NONE,    /* the communicator is not being aborted */
    DD_NCCL_REACH_SHARING, /* communicators that share resources with the aborted one */
    DD_NCCL_REACH_ALL,     /* as SHARING, plus all communicators split from the aborted one */
} dd_nccl_reach;

/* A communicator's relations to other communicators. Guarded by family_lock (family.c). */
typedef struct dd_nccl_family {
    dd_list link;         /* link in the list of all communicators with relatives */
    dd_nccl_comm *parent; /* communicator that this one was split from; NULL if none */
    uint64_t flag;        /* equal in all communicators that share resources */
    dd_nccl_reach reach;
    dd_nccl_comm_owner owner;
} dd_nccl_family;

struct dd_nccl_comm {
    atomic_uint refs;
    const dd_nccl_lib *lib; /* const after creation, like all fields up to shares_shrunk */
    const dd_cuda *cuda;
    uint64_t fork_generation;
    int device;
    int rank;
    int size;
    bool is_blocking;
    bool shares_splits; /* communicators split from this one share its resources */
    bool shares_shrunk;
    dd_nccl_family family;
    dd_lock mu;
    pthread_cond_t changed;          /* signalled when state or is_inside changes */
    dd_nccl_comm_state state;        /* guarded by mu */
    dd_nccl_comm_handle handle;      /* guarded by mu; lent to the thread inside; NULL once ended */
    bool is_inside;                  /* guarded by mu; a thread has entered and not left */
    dd_nccl_last_error at_entry;     /* owned by the thread inside; last error text at its entry */
    dd_nccl_last_error last_success; /* guarded by mu; last error text when comm was last healthy */
    bool must_abort;                 /* guarded by mu; true if destroy would hang: then abort */
    bool is_revoked;                 /* guarded by mu; ncclCommRevoke was called */
    uint64_t nsplits;                /* guarded by mu; number of successful splits */
    char reason[256];                /* guarded by mu; reason of the abort */
};

/* Create a record without a handle; NULL if there is no memory. Does not call NCCL. */
dd_nccl_comm *dd_nccl_comm_new_record(const dd_nccl_lib *lib, const dd_cuda *cuda, int device);
void dd_nccl_comm_free_record(dd_nccl_comm *comm);

dd_status dd_nccl_comm_check_fork(const dd_nccl_comm *comm, dd_error *err) DD_MUST_CHECK;
/* Wait until no thread is inside, or the communicator has ended. Call with mu held; the wait
 * releases mu. DD_OP_TIMED_OUT, DD_INTERRUPTED, DD_ABORTED if *stop is true (may be NULL). */
dd_status dd_nccl_comm_await_turn_locked(dd_nccl_comm *comm, const atomic_bool *stop, const dd_wait *wait,
                                         dd_error *err) DD_MUST_CHECK;
/* Call ncclCommGetAsyncError. On DD_OK, *result is success or in progress; else DD_BACKEND with
 * `label`, DD_ABORTED or DD_CLOSED. On a nonblocking comm, only the thread inside may call this. */
dd_status dd_nccl_comm_poll(dd_nccl_comm *comm, const char *label, dd_nccl_result *result,
                            dd_error *err) DD_MUST_CHECK;
/* Add a child. is_split: aborting the parent aborts the child. shares: both have one abort flag. */
void dd_nccl_family_add(dd_nccl_comm *parent, dd_nccl_comm *child, bool is_split, bool shares);
/* Remove a communicator from its family. Must be called before the record is freed. */
void dd_nccl_family_remove(dd_nccl_comm *comm);
/* Mark comm as about to be aborted. Then call dd_nccl_family_next until it returns NULL. */
void dd_nccl_family_mark_abort(dd_nccl_comm *comm, dd_nccl_reach reach);
/* Return the next communicator that an abort must also end, acquired; NULL if there are no more.
 * Sets *owner to its owner, acquired, or to zeros, and *why to the beginning of the reason. */
dd_nccl_comm *dd_nccl_family_next(dd_nccl_comm_owner *owner, const char **why);
/* Return DD_ABORTED, with the reason, if the communicator has been aborted, else DD_OK. */
dd_status dd_nccl_comm_check_aborted(dd_nccl_comm *comm, dd_error *err) DD_MUST_CHECK;
/* Print "rank 1 of 4 on device 1" to out; return out. */
const char *dd_nccl_comm_print(const dd_nccl_comm *comm, char *out, size_t size);
/* Check if a wait must end: DD_OK, DD_ABORTED if *stop is true, DD_OP_TIMED_OUT, DD_INTERRUPTED. */
dd_status dd_nccl_check_wait(const char *label, const atomic_bool *stop, const dd_wait *wait,
                             dd_error *err) DD_MUST_CHECK;
/* Wait until `changed` is signalled, at most a slice of `wait`, then call dd_nccl_check_wait. The
 * caller must hold mu, and must check for the change first: mu is released during the wait. */
dd_status dd_nccl_await_change_locked(pthread_cond_t *changed, dd_lock *mu, const char *label,
                                      const atomic_bool *stop, const dd_wait *wait,
                                      dd_error *err) DD_MUST_CHECK;
/* Register memory for a window, on a separate thread, because NCCL waits for all ranks. */
dd_status dd_nccl_comm_register_window(dd_nccl_comm *comm, void *data, size_t nbytes, dd_nccl_window *window,
                                       const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

#endif
