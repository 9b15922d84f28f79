/* One NCCL communicator: created with a deadline, ended once, usable from any thread.
 *
 * NCCL allows one thread at a time on a communicator, except for aborts and, if it blocks, queries
 * for errors. A communicator here has a lock for that, and three states: ready, aborted (every call
 * is DD_ABORTED with the reason) and destroyed. It is reference counted. Every error has NCCL's
 * reasons: the call, the result's name and text, and any new ncclGetLastError. */
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

/* Parameters of a communicator. lib and cuda must outlive it; abandoned threads have own copies. */
typedef struct dd_nccl_comm_spec {
    const dd_nccl_lib *lib;
    const dd_cuda *cuda;
    int device;
    int rank;
    int size;
    const dd_nccl_config *config; /* copied; without `blocking`, the communicator blocks */
} dd_nccl_comm_spec;

/* For all functions that create communicators: DD_OP_TIMED_OUT at the deadline, DD_INTERRUPTED,
 * DD_ABORTED if `stop` (may be NULL) becomes true, DD_BACKEND. On failure a nonblocking
 * communicator is aborted; the thread that creates a blocking one is abandoned, because nothing can
 * end its call. The current context stays the same. ids: several for scalable init (2.23). */
dd_status dd_nccl_comm_init(const dd_nccl_comm_spec *spec, const dd_nccl_unique_id *ids, int nids,
                            dd_nccl_comm **comm, const atomic_bool *stop, const dd_wait *wait,
                            dd_error *err) DD_MUST_CHECK;
/* With DD_NCCL_NO_COLOR a rank takes part, but gets no communicator (*comm is NULL). 2.18. */
dd_status dd_nccl_comm_split(dd_nccl_comm *parent, int color, int key, const dd_nccl_config *config,
                             dd_nccl_comm **comm, const atomic_bool *stop, const dd_wait *wait,
                             dd_error *err) DD_MUST_CHECK;
/* Ranks that a shrunk communicator leaves out; they do not call. 2.27. */
typedef struct dd_nccl_exclusion {
    const int *ranks;
    int nranks;
    bool is_abort; /* the parent has failed */
} dd_nccl_exclusion;
dd_status dd_nccl_comm_shrink(dd_nccl_comm *parent, const dd_nccl_exclusion *excluded,
                              const dd_nccl_config *config, dd_nccl_comm **comm, const atomic_bool *stop,
                              const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
/* Grow to `size` ranks. Members pass their parent; the spec's rank is then ignored. New ranks pass
 * parent NULL, a spec, and the id that the root got from dd_nccl_comm_grow_id. 2.29. */
dd_status dd_nccl_comm_grow_id(dd_nccl_comm *parent, dd_nccl_unique_id *id, dd_error *err) DD_MUST_CHECK;
dd_status dd_nccl_comm_grow(dd_nccl_comm *parent, const dd_nccl_comm_spec *spec, const dd_nccl_unique_id *id,
                            dd_nccl_comm **comm, const atomic_bool *stop, const dd_wait *wait,
                            dd_error *err) DD_MUST_CHECK;
/* Create n communicators, one for each device of this process, with ncclCommInitAll. */
dd_status dd_nccl_comm_init_all(const dd_nccl_lib *lib, const dd_cuda *cuda, const int *devices, int n,
                                dd_nccl_comm **comms, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

dd_nccl_comm *dd_nccl_comm_acquire(dd_nccl_comm *comm);
/* The last release destroys the communicator, unless ended or from before a fork. May be NULL. */
void dd_nccl_comm_release(dd_nccl_comm *comm);

int dd_nccl_comm_rank(const dd_nccl_comm *comm);
int dd_nccl_comm_size(const dd_nccl_comm *comm);
int dd_nccl_comm_device(const dd_nccl_comm *comm);
const dd_nccl_lib *dd_nccl_comm_lib(const dd_nccl_comm *comm);
const dd_cuda *dd_nccl_comm_cuda(const dd_nccl_comm *comm);
bool dd_nccl_comm_is_blocking(const dd_nccl_comm *comm);
bool dd_nccl_comm_has_ended(dd_nccl_comm *comm); /* aborted or destroyed */
/* Return the ncclComm_t, for other libraries; NULL once the communicator has ended. */
dd_nccl_comm_handle dd_nccl_comm_pointer(dd_nccl_comm *comm);
uint64_t dd_nccl_comm_nsplits(dd_nccl_comm *comm);

/* Enter the communicator: until leave, no other thread is in a call on the handle, and aborts wait
 * (see dd_nccl_comm_abort). Waits for another thread inside: DD_OP_TIMED_OUT, DD_INTERRUPTED,
 * DD_ABORTED if `stop` (may be NULL) becomes true. DD_ABORTED or DD_CLOSED if it has ended. */
dd_status dd_nccl_comm_enter(dd_nccl_comm *comm, const atomic_bool *stop, const dd_wait *wait,
                             dd_nccl_comm_handle *handle, dd_error *err) DD_MUST_CHECK;
void dd_nccl_comm_leave(dd_nccl_comm *comm);
/* Return the last error for dd_nccl_check, for the thread inside: as of its entering. If the cause
 * of the result may be older (a lost connection): as of when the communicator was last healthy. */
const dd_nccl_last_error *dd_nccl_comm_before(const dd_nccl_comm *comm, dd_nccl_result result);
/* Wait until NCCL has finished a call on a nonblocking communicator; DD_OK for a blocking one. A
 * thread inside may call it, and so keeps out other threads, whose calls NCCL would refuse. */
dd_status dd_nccl_comm_wait_ready(dd_nccl_comm *comm, const char *what, const atomic_bool *stop,
                                  const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* Return an error that NCCL has noticed since: DD_OK, or DD_BACKEND with the reason. Never blocks.
 * DD_OK if the communicator has ended, and while a thread is inside a nonblocking one. */
dd_status dd_nccl_comm_check(dd_nccl_comm *comm, dd_error *err) DD_MUST_CHECK;

/* End the communicator, and all that were split from it (family.c), from any thread, whatever other
 * threads do with it. Idempotent; the first reason stays. Kernels under way end. May block in NCCL:
 * a caller that must not block needs a thread for it.
 *
 * A thread in a call on a communicator that NCCL frees would access freed memory. So the handle is
 * freed when no thread is inside. In a nonblocking communicator that thread leaves quickly. In a
 * blocking one it may wait for ranks that never join, for example in its first collective; NCCL
 * 2.22.3 and newer can end that call before anything is freed. If the thread stays nevertheless,
 * the result is DD_OP_TIMED_OUT after 5 s, and the abort finishes when it leaves. Older versions
 * free the handle after 1 s beside the thread, since nothing else would end its call. */
dd_status dd_nccl_comm_abort(dd_nccl_comm *comm, const char *reason, dd_error *err);
/* Abort it, but not the communicators split from it, except those that share its resources. */
dd_status dd_nccl_comm_abort_alone(dd_nccl_comm *comm, const char *reason, dd_error *err);

/* The object that uses a communicator. It must fail before NCCL aborts the communicator because of
 * a relative: otherwise its operations would look successful. */
typedef struct dd_nccl_comm_owner {
    void *ctx;
    bool (*try_acquire)(void *ctx);               /* called under a lock; false if it is ending */
    void (*abort)(void *ctx, const char *reason); /* abort without waiting, and release it */
} dd_nccl_comm_owner;
/* owner may be NULL, to remove it. */
void dd_nccl_comm_set_owner(dd_nccl_comm *comm, const dd_nccl_comm_owner *owner);
/* Finalise: NCCL executes everything enqueued. Then call destroy. `stop` as for creation. */
dd_status dd_nccl_comm_finalize(dd_nccl_comm *comm, const atomic_bool *stop, const dd_wait *wait,
                                dd_error *err) DD_MUST_CHECK;
/* Destroy the communicator. Waits without a limit for a thread inside and for NCCL. */
dd_status dd_nccl_comm_destroy(dd_nccl_comm *comm, dd_error *err);
/* Destroy it within `wait`. While a thread is inside, DD_OP_TIMED_OUT or DD_INTERRUPTED leave the
 * communicator as it is. Once NCCL has begun, DD_INTERRUPTED and the deadline, which is DD_OK then,
 * leave the rest to a background thread: NCCL frees memory, and so waits for all work on the
 * device. If there is no memory or no thread for that, the caller waits for NCCL. */
dd_status dd_nccl_comm_destroy_within(dd_nccl_comm *comm, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* The functions below: DD_NOT_SUPPORTED if NCCL is too old; the message has the version needed. */
dd_status dd_nccl_comm_revoke(dd_nccl_comm *comm, dd_error *err) DD_MUST_CHECK; /* 2.28.7 */
/* 2.29.7. All ranks must call both; they wait for each other. */
dd_status dd_nccl_comm_suspend(dd_nccl_comm *comm, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
dd_status dd_nccl_comm_resume(dd_nccl_comm *comm, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
dd_status dd_nccl_comm_mem_stat(dd_nccl_comm *comm, int stat, uint64_t *value, dd_error *err) DD_MUST_CHECK;

/* 2.29.2. Fills in the fields that this NCCL has; DD_NCCL_PROPERTY_LIST has their versions. */
dd_status dd_nccl_comm_properties(dd_nccl_comm *comm, dd_nccl_abi_properties *properties,
                                  dd_error *err) DD_MUST_CHECK;

/* Register memory: ncclCommRegister (2.19), or ncclCommWindowRegister for a window (2.27), which
 * all ranks must call. The communicator owns the registration; NULL if NCCL cannot use the memory.
 * Since 2.28.3, a window needs memory from ncclMemAlloc (DD_INVALID_ARGUMENT). */
dd_status dd_nccl_comm_register(dd_nccl_comm *comm, void *data, size_t nbytes, bool is_window,
                                void **registration, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
dd_status dd_nccl_comm_deregister(dd_nccl_comm *comm, void *registration, bool is_window,
                                  dd_error *err) DD_MUST_CHECK;

#endif
