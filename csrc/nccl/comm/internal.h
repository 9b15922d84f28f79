/* The record of a communicator, and what its makers need of it. */
#ifndef DD_NCCL_COMM_INTERNAL_H
#define DD_NCCL_COMM_INTERNAL_H

#include "core/list.h"
#include "core/lock.h"
#include "core/thread.h"
#include "nccl/comm/comm.h"

/* How long an abort, and others that cannot wait for long, give a thread inside to leave. */
#define DD_NCCL_LEAVE_NS (1 * DD_NS_PER_S)
/* How long an abort waits for a thread inside that has been told to give up. */
#define DD_NCCL_GIVE_UP_NS (5 * DD_NS_PER_S)
/* Polling NCCL: at first soon again, later with less effort. */
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
    DD_NCCL_REACH_SHARING, /* those that share its resources */
    DD_NCCL_REACH_ALL,     /* also those that were split from it */
} dd_nccl_reach;

/* Guarded by the lock of all families. */
typedef struct dd_nccl_family {
    dd_list link;         /* of all that have relatives */
    dd_nccl_comm *parent; /* that it was split from; NULL if there is none */
    uint64_t flag;        /* the same for all that share resources */
    dd_nccl_reach reach;
    dd_nccl_comm_owner owner;
} dd_nccl_family;

struct dd_nccl_comm {
    atomic_uint refs;
    const dd_nccl_lib *lib; /* const after it is made, with all until mu */
    const dd_cuda *cuda;
    uint64_t fork_generation;
    int device;
    int rank;
    int size;
    bool is_blocking;
    bool shares_splits; /* those that are split from it share its resources */
    bool shares_shrunk;
    dd_nccl_family family;
    dd_lock mu;
    pthread_cond_t changed;       /* state, is_inside */
    dd_nccl_comm_state state;     /* guarded by mu */
    dd_nccl_comm_handle handle;   /* guarded by mu: NULL once it has ended. Used by the thread inside */
    bool is_inside;               /* guarded by mu */
    dd_nccl_last_error at_entry;  /* the thread inside's */
    dd_nccl_last_error when_well; /* guarded by mu: at the end of the last call, or of the last good answer */
    bool must_abort;              /* guarded by mu: destroying it would hang */
    bool is_revoked;              /* guarded by mu */
    uint64_t nsplits;             /* guarded by mu */
    char reason[256];             /* of the abort; guarded by mu */
};

/* A record without a handle; NULL without memory. free_record never calls NCCL. */
dd_nccl_comm *dd_nccl_comm_new_record(const dd_nccl_lib *lib, const dd_cuda *cuda, int device);
void dd_nccl_comm_free_record(dd_nccl_comm *comm);

dd_status dd_nccl_comm_check_fork(const dd_nccl_comm *comm, dd_error *err) DD_MUST_CHECK;
/* Wait until no thread is inside, or the communicator has ended. The caller must hold comm->mu, which
 * is released during the wait. DD_ABORTED if `stop` (may be NULL) becomes true, DD_OP_TIMED_OUT,
 * DD_INTERRUPTED. */
dd_status dd_nccl_comm_await_turn_locked(dd_nccl_comm *comm, const atomic_bool *stop, const dd_wait *wait,
                                         dd_error *err) DD_MUST_CHECK;
/* ncclCommGetAsyncError, unless it has ended (DD_ABORTED, DD_CLOSED): success, in progress, or DD_BACKEND of `what`. For the thread that is
 * inside; one that does not block may be asked by no other. */
dd_status dd_nccl_comm_poll(dd_nccl_comm *comm, const char *what, dd_nccl_result *result,
                            dd_error *err) DD_MUST_CHECK;
/* A child that has just been made. is_split: an abort of the parent reaches it. shares: NCCL has one abort flag for both. */
void dd_nccl_family_add(dd_nccl_comm *parent, dd_nccl_comm *child, bool is_split, bool shares);
/* Before the record is freed. */
void dd_nccl_family_remove(dd_nccl_comm *comm);
/* comm is about to be aborted. Call dd_nccl_family_next afterwards until it gives NULL. */
void dd_nccl_family_doom(dd_nccl_comm *comm, dd_nccl_reach reach);
/* Give a communicator that an abort reaches, once, acquired; NULL if there are no more. *owner is acquired, or empty. *why begins the
 * reason. */
dd_nccl_comm *dd_nccl_family_next(dd_nccl_comm_owner *owner, const char **why);
/* DD_ABORTED with the reason if it has been aborted. */
dd_status dd_nccl_comm_check_aborted(dd_nccl_comm *comm, dd_error *err) DD_MUST_CHECK;
/* "rank 1 of 4 on device 1"; returns out. */
const char *dd_nccl_comm_print(const dd_nccl_comm *comm, char *out, size_t size);
/* DD_ABORTED when stop says so, DD_OP_TIMED_OUT after the deadline, DD_INTERRUPTED; `what` is for the message. */
dd_status dd_nccl_check_wait(const char *what, const atomic_bool *stop, const dd_wait *wait,
                             dd_error *err) DD_MUST_CHECK;
/* Sleep until `changed` is signalled, for a slice of `wait` at the most, then call dd_nccl_check_wait. The caller must hold mu, which
 * both steps release. On failure the awaited change may have happened all the same: check it first. */
dd_status dd_nccl_await_change_locked(pthread_cond_t *changed, dd_lock *mu, const char *what,
                                      const atomic_bool *stop, const dd_wait *wait,
                                      dd_error *err) DD_MUST_CHECK;
/* For memory that all ranks register at once: a call on a thread of its own, like the makers'. */
dd_status dd_nccl_comm_register_window(dd_nccl_comm *comm, void *data, size_t nbytes, dd_nccl_window *window,
                                       const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

#endif
