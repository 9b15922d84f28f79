/* One NCCL communicator: made with a deadline, ended once, usable from any thread.
 *
 * NCCL allows one thread at a time on a communicator, but for abort and, where it blocks, the question for errors. A communicator here has a lock for that,
 * and states: being made, ready, aborted (its handle is gone, every call is DD_ABORTED with the reason), destroyed. It is counted.
 *
 * Every error has NCCL's reasons: the call, the result's name and text, and the text of ncclGetLastError if this call has changed it. */
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

/* What a communicator is made of. lib and cuda outlive it, but for a thread that has been left behind, which has its own copy. */
typedef struct dd_nccl_comm_spec {
    const dd_nccl_lib *lib;
    const dd_cuda *cuda;
    int device;
    int rank;
    int size;
    const dd_nccl_config
        *config; /* copied. is blocking unless config says otherwise; either way there is a deadline */
} dd_nccl_comm_spec;

/* All makers: DD_OP_TIMED_OUT at the deadline, DD_INTERRUPTED, DD_ABORTED when `stop` (may be NULL) becomes true, DD_BACKEND for NCCL's own
 * errors. A communicator that is not blocking is polled, and aborted when it is given up; a blocking one is made on a thread of its
 * own, which is left behind, with what it holds, when it is given up: nothing can end that call. The current context of
 * the calling thread is as before afterwards. ids: several for scalable init (NCCL 2.23). */
dd_status dd_nccl_comm_init(const dd_nccl_comm_spec *spec, const dd_nccl_unique_id *ids, int nids,
                            dd_nccl_comm **comm, const atomic_bool *stop, const dd_wait *wait,
                            dd_error *err) DD_MUST_CHECK;
/* color DD_NCCL_NO_COLOR: takes part and gets none (*comm is NULL). 2.18. */
dd_status dd_nccl_comm_split(dd_nccl_comm *parent, int color, int key, const dd_nccl_config *config,
                             dd_nccl_comm **comm, const atomic_bool *stop, const dd_wait *wait,
                             dd_error *err) DD_MUST_CHECK;
/* Without some ranks, which do not call. 2.27. */
typedef struct dd_nccl_exclusion {
    const int *ranks;
    int nranks;
    bool is_abort; /* the parent has failed */
} dd_nccl_exclusion;
dd_status dd_nccl_comm_shrink(dd_nccl_comm *parent, const dd_nccl_exclusion *excluded,
                              const dd_nccl_config *config, dd_nccl_comm **comm, const atomic_bool *stop,
                              const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
/* To `size` ranks. Members give their parent (rank -1); newcomers parent NULL, a spec and the id that the root has got by
 * dd_nccl_comm_grow_id. 2.29. */
dd_status dd_nccl_comm_grow_id(dd_nccl_comm *parent, dd_nccl_unique_id *id, dd_error *err) DD_MUST_CHECK;
dd_status dd_nccl_comm_grow(dd_nccl_comm *parent, const dd_nccl_comm_spec *spec, const dd_nccl_unique_id *id,
                            dd_nccl_comm **comm, const atomic_bool *stop, const dd_wait *wait,
                            dd_error *err) DD_MUST_CHECK;
/* One for each device, of one process: ncclCommInitAll. `comms` has room for n. */
dd_status dd_nccl_comm_init_all(const dd_nccl_lib *lib, const dd_cuda *cuda, const int *devices, int n,
                                dd_nccl_comm **comms, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

dd_nccl_comm *dd_nccl_comm_acquire(dd_nccl_comm *comm);
/* The last reference destroys it, or nothing if it has ended already or belongs to the process before a fork. NULL is fine. */
void dd_nccl_comm_release(dd_nccl_comm *comm);

int dd_nccl_comm_rank(const dd_nccl_comm *comm);
int dd_nccl_comm_size(const dd_nccl_comm *comm);
int dd_nccl_comm_device(const dd_nccl_comm *comm);
const dd_nccl_lib *dd_nccl_comm_lib(const dd_nccl_comm *comm);
const dd_cuda *dd_nccl_comm_cuda(const dd_nccl_comm *comm);
bool dd_nccl_comm_is_blocking(const dd_nccl_comm *comm);
bool dd_nccl_comm_is_over(dd_nccl_comm *comm); /* aborted, or destroyed */
/* ncclComm_t, for other libraries; NULL once it has ended. */
dd_nccl_comm_handle dd_nccl_comm_pointer(dd_nccl_comm *comm);
uint64_t dd_nccl_comm_nsplits(dd_nccl_comm *comm);

/* Use of the handle: between enter and leave nobody else is in a call on it, and abort waits, see there. DD_ABORTED with the reason, DD_CLOSED
 * once it is destroyed. Waits for another thread inside: DD_OP_TIMED_OUT, DD_INTERRUPTED, DD_ABORTED when `stop` (may be NULL) becomes true. */
dd_status dd_nccl_comm_enter(dd_nccl_comm *comm, const atomic_bool *stop, const dd_wait *wait,
                             dd_nccl_comm_handle *handle, dd_error *err) DD_MUST_CHECK;
void dd_nccl_comm_leave(dd_nccl_comm *comm);
/* For dd_nccl_check by the thread inside: the last error as it entered. NCCL also fails a call because of something that happened
 * earlier, as the loss of a connection; of such a result it is the last error when the communicator was last known to be well. */
const dd_nccl_last_error *dd_nccl_comm_before(const dd_nccl_comm *comm, dd_nccl_result result);
/* After a call on a communicator that is not blocking: waits until NCCL is through with it. Inside or not; a thread inside keeps others
 * from calling meanwhile, which NCCL would refuse. DD_OK at once for a blocking one. */
dd_status dd_nccl_comm_wait_ready(dd_nccl_comm *comm, const char *what, const atomic_bool *stop,
                                  const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* What NCCL has noticed since: DD_OK, or DD_BACKEND with its reason. Never blocks; DD_OK for one that is aborted, and while a thread is inside one
 * that does not block. */
dd_status dd_nccl_comm_check(dd_nccl_comm *comm, dd_error *err) DD_MUST_CHECK;

/* Ends it from any thread, with all that were split from it (family.c), whatever another one does with it; idempotent, the first reason stays. Kernels under way end. May block in NCCL:
 * callers that must not have a thread for it.
 *
 * NCCL promises nothing when a communicator is freed while a thread is in a call on it: that thread would come back to memory that is gone. So
 * the handle is freed when no thread is inside. One that does not block lets its thread go at once. In a blocking one a thread may wait for
 * ranks that never come, in its first collective for example; NCCL 2.22.3 and newer can be told to give that up before
 * anything is freed. A thread that stays inside all the same keeps the communicator: DD_OP_TIMED_OUT after a while, and what is left happens when it
 * leaves. Older ones are freed beside it after a second, since nothing else would ever end that thread's call. */
dd_status dd_nccl_comm_abort(dd_nccl_comm *comm, const char *reason, dd_error *err);
/* The same without the communicators that were split from it, except those that share its resources. */
dd_status dd_nccl_comm_abort_alone(dd_nccl_comm *comm, const char *reason, dd_error *err);

/* An object that uses a communicator, and is to fail before NCCL aborts it because of a relative: afterwards its operations look as if
 * they had succeeded. */
typedef struct dd_nccl_comm_owner {
    void *ctx;
    bool (*try_acquire)(void *ctx); /* called with a lock; false if it is ending */
    void (*abort)(void *ctx,
                  const char *reason); /* aborts its communicators, without waiting, and releases it */
} dd_nccl_comm_owner;
/* owner: NULL removes it. */
void dd_nccl_comm_set_owner(dd_nccl_comm *comm, const dd_nccl_comm_owner *owner);
/* In good order: everything enqueued is carried out first. finalize, then destroy. `stop` as with the makers. */
dd_status dd_nccl_comm_finalize(dd_nccl_comm *comm, const atomic_bool *stop, const dd_wait *wait,
                                dd_error *err) DD_MUST_CHECK;
/* Waits, without a limit, until no thread is inside, and for NCCL. */
dd_status dd_nccl_comm_destroy(dd_nccl_comm *comm, dd_error *err);
/* The same within `wait`. While a thread is inside, DD_OP_TIMED_OUT or DD_INTERRUPTED leave the
 * communicator as it is. Once NCCL has begun, DD_INTERRUPTED and the deadline, which is DD_OK then,
 * leave the rest to a background thread: NCCL frees memory, and so waits for all work on the device.
 * If there is no memory or no thread for that, the caller waits for NCCL. */
dd_status dd_nccl_comm_destroy_within(dd_nccl_comm *comm, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* DD_NOT_SUPPORTED, naming the version that has it, where NCCL is older. */
dd_status dd_nccl_comm_revoke(dd_nccl_comm *comm, dd_error *err) DD_MUST_CHECK; /* 2.28.7 */
/* 2.29.7. All ranks call both, which wait for each other: hence `wait`. */
dd_status dd_nccl_comm_suspend(dd_nccl_comm *comm, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
dd_status dd_nccl_comm_resume(dd_nccl_comm *comm, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
dd_status dd_nccl_comm_mem_stat(dd_nccl_comm *comm, int stat, uint64_t *value, dd_error *err) DD_MUST_CHECK;

/* 2.29.2. Fills what this NCCL has: see the versions in DD_NCCL_PROPERTY_LIST. */
dd_status dd_nccl_comm_properties(dd_nccl_comm *comm, dd_nccl_abi_properties *properties,
                                  dd_error *err) DD_MUST_CHECK;

/* Buffers: ncclCommRegister (2.19), windows (2.27; ncclCommWindowRegister, which all ranks call, hence `wait`). The registration is
 * the communicator's and ends with it. *registration may become NULL: NCCL cannot use such memory, and does not mind. From 2.28.3 on, memory
 * that is not of ncclMemAlloc cannot be a window: DD_INVALID_ARGUMENT. */
dd_status dd_nccl_comm_register(dd_nccl_comm *comm, void *data, size_t nbytes, bool is_window,
                                void **registration, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
dd_status dd_nccl_comm_deregister(dd_nccl_comm *comm, void *registration, bool is_window,
                                  dd_error *err) DD_MUST_CHECK;

#endif
