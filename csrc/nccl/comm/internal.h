/* The record of a communicator, and internal functions on it. */
#ifndef DD_NCCL_COMM_INTERNAL_H
#define DD_NCCL_COMM_INTERNAL_H

#include "core/list.h"
#include "core/lock.h"
#include "core/thread.h"
#include "nccl/comm/comm.h"

/* Time that aborts and short calls give a thread inside to leave. */
#define DD_NCCL_LEAVE_NS (1 * DD_NS_PER_S)
/* Time that an abort waits for a thread inside after ending its call. */
#define DD_NCCL_CANCEL_NS (5 * DD_NS_PER_S)
/* Interval for polling NCCL: doubled from the minimum up to the maximum. */
#define DD_NCCL_POLL_MIN_NS (50 * DD_NS_PER_US)
#define DD_NCCL_POLL_MAX_NS (5 * DD_NS_PER_MS)

typedef enum dd_nccl_comm_state {
    DD_NCCL_COMM_READY,
    DD_NCCL_COMM_ABORTED,
    DD_NCCL_COMM_DESTROYED,
} dd_nccl_comm_state;

/* The communicators that an abort reaches; family.c. */
typedef enum dd_nccl_reach {
    DD_NCCL_REACH_NONE,    /* it is not aborted */
    DD_NCCL_REACH_SHARING, /* communicators that share its resources */
    DD_NCCL_REACH_ALL,     /* also those that were split from it */
} dd_nccl_reach;

/* Guarded by family_lock (family.c). */
typedef struct dd_nccl_family {
    dd_list link;         /* in the list of all that have relatives */
    dd_nccl_comm *parent; /* the communicator it was split from; NULL if none */
    uint64_t flag;        /* equal for communicators that share resources */
    dd_nccl_reach reach;
    dd_nccl_comm_owner owner;
} dd_nccl_family;

struct dd_nccl_comm {
    atomic_uint refs;
    const dd_nccl_lib *lib; /* const after creation, up to shares_shrunk */
    const dd_cuda *cuda;
    uint64_t fork_generation;
    int device;
    int rank;
    int size;
    bool is_blocking;
    bool shares_splits; /* communicators split from it share its resources */
    bool shares_shrunk;
    dd_nccl_family family;
    dd_lock mu;
    pthread_cond_t changed;          /* signalled when state or is_inside changes */
    dd_nccl_comm_state state;        /* guarded by mu */
    dd_nccl_comm_handle handle;      /* guarded by mu; the thread inside may use it; NULL once ended */
    bool is_inside;                  /* guarded by mu */
    dd_nccl_last_error at_entry;     /* owned by the thread inside */
    dd_nccl_last_error last_success; /* guarded by mu; as of the last call or successful check */
    bool must_abort;                 /* guarded by mu; destroying it would hang */
    bool is_revoked;                 /* guarded by mu */
    uint64_t nsplits;                /* guarded by mu */
    char reason[256];                /* guarded by mu; why it was aborted */
};

/* Create a record without a handle; NULL if there is no memory. free_record never calls NCCL. */
dd_nccl_comm *dd_nccl_comm_new_record(const dd_nccl_lib *lib, const dd_cuda *cuda, int device);
void dd_nccl_comm_free_record(dd_nccl_comm *comm);

dd_status dd_nccl_comm_check_fork(const dd_nccl_comm *comm, dd_error *err) DD_MUST_CHECK;
/* Wait until no thread is inside, or the communicator has ended. The caller must hold mu, which the
 * wait releases. DD_ABORTED if *stop (may be NULL), DD_OP_TIMED_OUT, DD_INTERRUPTED. */
dd_status dd_nccl_comm_await_turn_locked(dd_nccl_comm *comm, const atomic_bool *stop, const dd_wait *wait,
                                         dd_error *err) DD_MUST_CHECK;
/* Call ncclCommGetAsyncError: *result is success or in progress; else DD_BACKEND with `what`,
 * DD_ABORTED or DD_CLOSED. If it is nonblocking, only the thread inside may call this. */
dd_status dd_nccl_comm_poll(dd_nccl_comm *comm, const char *what, dd_nccl_result *result,
                            dd_error *err) DD_MUST_CHECK;
/* Add a new child. is_split: the parent's abort reaches it. shares: NCCL has one abort flag. */
void dd_nccl_family_add(dd_nccl_comm *parent, dd_nccl_comm *child, bool is_split, bool shares);
/* Call it before the record is freed. */
void dd_nccl_family_remove(dd_nccl_comm *comm);
/* Mark comm as about to be aborted. Then call dd_nccl_family_next until it returns NULL. */
void dd_nccl_family_mark_abort(dd_nccl_comm *comm, dd_nccl_reach reach);
/* Return the next communicator that an abort reaches, acquired; NULL if there are no more. *owner
 * is acquired, or empty. *why is the beginning of the reason. */
dd_nccl_comm *dd_nccl_family_next(dd_nccl_comm_owner *owner, const char **why);
/* DD_ABORTED with the reason if it has been aborted. */
dd_status dd_nccl_comm_check_aborted(dd_nccl_comm *comm, dd_error *err) DD_MUST_CHECK;
/* Print "rank 1 of 4 on device 1" to out; return out. */
const char *dd_nccl_comm_print(const dd_nccl_comm *comm, char *out, size_t size);
/* DD_ABORTED if *stop, DD_OP_TIMED_OUT at the deadline, DD_INTERRUPTED; `what` names the call. */
dd_status dd_nccl_check_wait(const char *what, const atomic_bool *stop, const dd_wait *wait,
                             dd_error *err) DD_MUST_CHECK;
/* Sleep until `changed` is signalled, at most a slice of `wait`, then call dd_nccl_check_wait. Both
 * release mu, which the caller must hold. On failure first check for the change. */
dd_status dd_nccl_await_change_locked(pthread_cond_t *changed, dd_lock *mu, const char *what,
                                      const atomic_bool *stop, const dd_wait *wait,
                                      dd_error *err) DD_MUST_CHECK;
/* Register memory that all ranks register together, by a call on a thread of its own. */
dd_status dd_nccl_comm_register_window(dd_nccl_comm *comm, void *data, size_t nbytes, dd_nccl_window *window,
                                       const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

#endif
