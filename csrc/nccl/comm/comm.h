/* One NCCL communicator: created with a deadline, ended once, usable from any thread.
 *
 * NCCL allows one thread at a time on a communicator, except for aborts and, on blocking
 * communicators, queries for errors. A dd_nccl_comm has a lock for this: the thread that has
 * entered it is called the thread inside. A communicator is ready, aborted (every call returns
 * DD_ABORTED with the reason) or destroyed. It is reference counted. Error messages have NCCL's
 * reasons: the call, the result's name and text, and the text of ncclGetLastError if it is new. */
#ifndef DD_NCCL_COMM_COMM_H
#define DD_NCCL_COMM_COMM_H

#include "core/status.h"
#include "core/wait.h"
#include "nccl/comm/config.h"
#include "nccl/driver/cuda.h"
#include "nccl/driver/lib.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct dd_nccl_comm dd_nccl_comm;

dd_status dd_nccl_make_unique_id(const dd_nccl_lib *lib, dd_nccl_unique_id *id, dd_error *err) DD_MUST_CHECK;

/* Parameters of a communicator. lib and cuda must outlive it; threads it abandons have copies. */
typedef struct dd_nccl_comm_spec {
    const dd_nccl_lib *lib;
    const dd_cuda *cuda;
    int device;
    int rank;
    int size;
    const dd_nccl_config *config; /* copied; if `blocking` is not set, the communicator blocks */
} dd_nccl_comm_spec;

/* Create a communicator. All functions that create one return DD_OP_TIMED_OUT at the deadline,
 * DD_INTERRUPTED, DD_BACKEND, or DD_ABORTED if `stop` (may be NULL) becomes true. On failure a
 * nonblocking communicator is aborted; the thread that creates a blocking one is abandoned, as
 * nothing can end NCCL's call. The current context stays the same. Several ids need NCCL 2.23. */
dd_status dd_nccl_comm_init(const dd_nccl_comm_spec *spec, const dd_nccl_unique_id *ids, int nids,
                            dd_nccl_comm **comm, const atomic_bool *stop, const dd_wait *wait,
                            dd_error *err) DD_MUST_CHECK;
/* Split a communicator (NCCL 2.18). A rank with DD_NCCL_NO_COLOR must call it too; it gets NULL. */
dd_status dd_nccl_comm_split(dd_nccl_comm *parent, int color, int key, const dd_nccl_config *config,
                             dd_nccl_comm **comm, const atomic_bool *stop, const dd_wait *wait,
                             dd_error *err) DD_MUST_CHECK;
/* Ranks that a shrunk communicator leaves out. These ranks must not call shrink. NCCL 2.27. */
typedef struct dd_nccl_exclusion {
    const int *ranks;
    int nranks;
    bool is_abort; /* the parent has failed: NCCL aborts the parent's operations */
} dd_nccl_exclusion;
dd_status dd_nccl_comm_shrink(dd_nccl_comm *parent, const dd_nccl_exclusion *excluded,
                              const dd_nccl_config *config, dd_nccl_comm **comm, const atomic_bool *stop,
                              const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
/* Grow to spec->size ranks (NCCL 2.29). Members pass their parent; spec->rank is then ignored. New
 * ranks pass NULL as parent, and the id that a root got from dd_nccl_comm_grow_id. */
dd_status dd_nccl_comm_grow_id(dd_nccl_comm *parent, dd_nccl_unique_id *id, dd_error *err) DD_MUST_CHECK;
dd_status dd_nccl_comm_grow(dd_nccl_comm *parent, const dd_nccl_comm_spec *spec, const dd_nccl_unique_id *id,
                            dd_nccl_comm **comm, const atomic_bool *stop, const dd_wait *wait,
                            dd_error *err) DD_MUST_CHECK;
/* Create n communicators of this process, one for each device, with ncclCommInitAll. */
dd_status dd_nccl_comm_init_all(const dd_nccl_lib *lib, const dd_cuda *cuda, const int *devices, int n,
                                dd_nccl_comm **comms, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

dd_nccl_comm *dd_nccl_comm_acquire(dd_nccl_comm *comm);
/* May be NULL. The last release destroys the communicator, unless it ended or predates a fork. */
void dd_nccl_comm_release(dd_nccl_comm *comm);

int dd_nccl_comm_rank(const dd_nccl_comm *comm);
int dd_nccl_comm_size(const dd_nccl_comm *comm);
int dd_nccl_comm_device(const dd_nccl_comm *comm);
const dd_nccl_lib *dd_nccl_comm_lib(const dd_nccl_comm *comm);
const dd_cuda *dd_nccl_comm_cuda(const dd_nccl_comm *comm);
bool dd_nccl_comm_is_blocking(const dd_nccl_comm *comm);
bool dd_nccl_comm_has_ended(dd_nccl_comm *comm); /* true once aborted or destroyed */
/* Return the ncclComm_t, to pass to other libraries; NULL once the communicator has ended. */
dd_nccl_comm_handle dd_nccl_comm_pointer(dd_nccl_comm *comm);
uint64_t dd_nccl_comm_nsplits(dd_nccl_comm *comm);

/* Enter the communicator: until dd_nccl_comm_leave, no other thread can call NCCL on the handle,
 * and aborts wait (see dd_nccl_comm_abort). If another thread is inside, wait for it:
 * DD_OP_TIMED_OUT, DD_INTERRUPTED, or DD_ABORTED if `stop` (may be NULL) becomes true. DD_ABORTED
 * or DD_CLOSED if the communicator has ended. */
dd_status dd_nccl_comm_enter(dd_nccl_comm *comm, const atomic_bool *stop, const dd_wait *wait,
                             dd_nccl_comm_handle *handle, dd_error *err) DD_MUST_CHECK;
void dd_nccl_comm_leave(dd_nccl_comm *comm);
/* Return the ncclGetLastError text to pass to dd_nccl_check as `before`; only for the thread
 * inside. The text was saved when the thread entered or, if `result` may have an older cause (such
 * as a lost connection), when the communicator was last healthy. */
const dd_nccl_last_error *dd_nccl_comm_before(const dd_nccl_comm *comm, dd_nccl_result result);
/* Wait until NCCL has finished the current call on a nonblocking communicator; DD_OK for a blocking
 * one. For the thread inside, before it leaves: until then, NCCL refuses other threads' calls. */
dd_status dd_nccl_comm_wait_ready(dd_nccl_comm *comm, const char *label, const atomic_bool *stop,
                                  const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* Query NCCL for an asynchronous error: DD_OK, or DD_BACKEND with the reason. Never blocks. DD_OK
 * also if the communicator has ended, or is nonblocking with a thread inside. */
dd_status dd_nccl_comm_check(dd_nccl_comm *comm, dd_error *err) DD_MUST_CHECK;

/* Abort the communicator and all that were split from it (family.c), from any thread, whatever
 * other threads do with the communicator. Idempotent; the first reason stays. Kernels under way
 * end. May block in NCCL: a caller that must not block needs a separate thread.
 *
 * A thread that is in a call on a handle would access freed memory if NCCL freed the handle. So the
 * handle is freed when no thread is inside. A thread inside a nonblocking communicator leaves
 * quickly. Inside a blocking one it may wait for ranks that never join, for example in its first
 * collective; NCCL 2.22.3 and newer can end that call before anything is freed. If the thread stays
 * nevertheless, the result is DD_OP_TIMED_OUT after 5 s, and the abort finishes when it leaves.
 * Older versions free the handle after 1 s with the thread inside: nothing else would end its
 * call. */
dd_status dd_nccl_comm_abort(dd_nccl_comm *comm, const char *reason, dd_error *err);
/* Abort the communicator, and of those split from it only the ones that share its resources. */
dd_status dd_nccl_comm_abort_alone(dd_nccl_comm *comm, const char *reason, dd_error *err);

/* The object that uses a communicator, such as a group. The owner must fail before NCCL aborts the
 * communicator along with a related one: otherwise operations would look successful. try_acquire is
 * called under a lock; it returns false if the owner is ending. */
typedef struct dd_nccl_comm_owner {
    void *ctx;
    bool (*try_acquire)(void *ctx);
    void (*abort)(void *ctx, const char *reason); /* abort without waiting, and release the owner */
} dd_nccl_comm_owner;
/* Set the owner; NULL removes it. */
void dd_nccl_comm_set_owner(dd_nccl_comm *comm, const dd_nccl_comm_owner *owner);
/* Finalise: wait until NCCL has executed everything enqueued. The caller must then call destroy. */
dd_status dd_nccl_comm_finalize(dd_nccl_comm *comm, const atomic_bool *stop, const dd_wait *wait,
                                dd_error *err) DD_MUST_CHECK;
/* Destroy the communicator. Waits without a limit for a thread inside, and for NCCL. */
dd_status dd_nccl_comm_destroy(dd_nccl_comm *comm, dd_error *err);
/* Destroy the communicator within `wait`. While another thread is inside, DD_OP_TIMED_OUT and
 * DD_INTERRUPTED leave the communicator unchanged. Once NCCL has begun, which waits for all work on
 * the device, a background thread finishes after DD_INTERRUPTED or the deadline (then DD_OK). If
 * that thread cannot be created, the caller waits for NCCL. */
dd_status dd_nccl_comm_destroy_within(dd_nccl_comm *comm, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* The functions below return DD_NOT_SUPPORTED if NCCL is older than the version noted. */
dd_status dd_nccl_comm_revoke(dd_nccl_comm *comm, dd_error *err) DD_MUST_CHECK; /* since 2.28.7 */
/* Since NCCL 2.29.7. All ranks must call suspend and resume; each call waits for all ranks. */
dd_status dd_nccl_comm_suspend(dd_nccl_comm *comm, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
dd_status dd_nccl_comm_resume(dd_nccl_comm *comm, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
dd_status dd_nccl_comm_mem_stat(dd_nccl_comm *comm, int stat, uint64_t *value, dd_error *err) DD_MUST_CHECK;

/* Get NCCL's properties of the communicator (2.29.2). Sets only the fields that this NCCL has. */
dd_status dd_nccl_comm_properties(dd_nccl_comm *comm, dd_nccl_abi_properties *properties,
                                  dd_error *err) DD_MUST_CHECK;

/* Register memory: ncclCommRegister (NCCL 2.19), or for a window ncclCommWindowRegister (2.27),
 * which all ranks must call. The communicator owns *registration; NULL if NCCL cannot use the
 * memory. Since 2.28.3, a window needs memory from ncclMemAlloc (else DD_INVALID_ARGUMENT). */
dd_status dd_nccl_comm_register(dd_nccl_comm *comm, void *data, size_t nbytes, bool is_window,
                                void **registration, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
dd_status dd_nccl_comm_deregister(dd_nccl_comm *comm, void *registration, bool is_window,
                                  dd_error *err) DD_MUST_CHECK;

#endif
