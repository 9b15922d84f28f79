/* Internals of the libnccl stub. The code is the same for all versions and checks
 * nccl_stub_version; only nccl_stub_api.c, which has the exported functions, is compiled for each
 * version.
 *
 * One lock protects everything that is not atomic. Never hold it during a call to the libcuda stub,
 * which calls functions here with its own lock held. */
#ifndef DD_TESTS_NCCL_STUB_H
#define DD_TESTS_NCCL_STUB_H

#include "cuda_stub_tasks.h"
#include "nccl/driver/lib_api.h"
#include "nccl_stub_wire.h"
#include "stub_internal.h"

#define NCCL_EXPORT __attribute__((visibility("default")))
#define NCCL_TEXT_MAX 256

extern const int nccl_stub_version; /* for example 22703 */
extern pthread_mutex_t nccl_lock;
extern pthread_cond_t nccl_changed;

/* ---- communicators (nccl_stub_comm.c) */

typedef struct nccl_redop {
    bool is_live;
    dd_nccl_dtype dtype;
    const void *device_scalar; /* NULL: use factor */
    double factor;
} nccl_redop;

typedef struct nccl_comm {
    stub_object base;
    int rank;
    int nranks;
    int device;
    /* Strings are not kept; netName is not NULL if the name is unknown. */
    dd_nccl_abi_config config;
    wire_spec spec;
    stub_wire *wire; /* set once, by the job that creates it; owned */

    atomic_bool is_aborted; /* waits for other ranks end */
    atomic_bool is_stopped; /* kernels end: by abort, revoke, or a shrink that aborts */

    /* Protected by nccl_lock. */
    dd_nccl_result state; /* the result of ncclCommGetAsyncError */
    int njobs;            /* running threads of groups */
    /* Calls on this communicator in groups that threads have not ended. */
    int nopen;
    int ninside; /* calls that wait for other ranks now, on their callers' threads */
    int ngraphs; /* kernels in existing graphs or in captures */
    int nrunning;
    uint64_t turn; /* the ticket of the kernel that may run */
    bool is_finalized;
    bool is_revoked;
    bool is_suspended;
    int nchildren; /* splits, shrinks and grows so far, used in names of children */
    nccl_redop *redops;
    int nredops;
    bool is_connected;                    /* for collectives */
    bool is_connected_to[WIRE_MAX_RANKS]; /* for messages to the rank */
    bool is_connected_from[WIRE_MAX_RANKS];
    struct nccl_window *windows;
    struct nccl_comm *next_ended;

    _Atomic uint64_t ntickets; /* kernels launched */
} nccl_comm;

extern stub_table nccl_comms;
extern stub_count nccl_comm_count;
extern stub_count nccl_redop_count;
extern stub_count nccl_memory_count;
extern stub_count nccl_window_count;

/* Create a communicator in the state IN_PROGRESS. The caller adds the reference to the table or
 * releases it. */
nccl_comm *nccl_comm_make(int nranks, int rank, int device, const dd_nccl_abi_config *config);
/* Find and acquire a communicator. If the handle is invalid, warn, set *result and return NULL. */
nccl_comm *nccl_comm_find(dd_nccl_comm_handle handle, dd_nccl_result *result);
/* The state of a communicator that a call requires. Each value includes the requirements of the
 * previous ones. */
typedef enum nccl_need {
    NCCL_NEED_NOT_BUSY,
    NCCL_NEED_WELL,  /* not failed */
    NCCL_NEED_READY, /* not finalized or suspended */
    NCCL_NEED_UNREVOKED,
} nccl_need;
nccl_comm *nccl_comm_find_ready(dd_nccl_comm_handle handle, nccl_need need, dd_nccl_result *result);
void nccl_comm_release(nccl_comm *comm);
void nccl_comm_set_state(nccl_comm *comm, dd_nccl_result state);
/* Report that a call has failed. On a non-blocking communicator, all later calls then fail. Return
 * result. */
dd_nccl_result nccl_comm_fail(nccl_comm *comm, dd_nccl_result result);
/* Same, for a handle that may be invalid. */
dd_nccl_result nccl_refuse(dd_nccl_comm_handle handle, dd_nccl_result result);
/* Stop the kernels. Running kernels end soon afterwards. */
void nccl_comm_stop(nccl_comm *comm);
/* Same, and wait for the running kernels. */
void nccl_comm_halt(nccl_comm *comm);
/* Wait until the other ranks make the same call. Return false if the communicator was aborted. */
bool nccl_comm_barrier(nccl_comm *comm);
/* Check a call that the real library does not allow during a capture, unless the thread's capture
 * mode is relaxed. */
dd_nccl_result nccl_check_unsafe(const char *function);
bool nccl_comm_is_blocking(const nccl_comm *comm);
void nccl_comm_begin_job(nccl_comm *comm);
void nccl_comm_end_job(nccl_comm *comm);
/* Call these around a wait for other ranks on the caller's thread. */
void nccl_comm_begin_inside(nccl_comm *comm);
void nccl_comm_end_inside(nccl_comm *comm);

dd_nccl_result nccl_abort(dd_nccl_comm_handle handle);
dd_nccl_result nccl_destroy(dd_nccl_comm_handle handle);
dd_nccl_result nccl_finalize(dd_nccl_comm_handle handle);
dd_nccl_result nccl_revoke(dd_nccl_comm_handle handle);
/* Suspend or resume, with a barrier of all ranks before and after. */
dd_nccl_result nccl_suspend(dd_nccl_comm_handle handle, bool is_suspended);
dd_nccl_result nccl_mem_stat(dd_nccl_comm_handle handle, dd_nccl_mem_stat stat, uint64_t *value);
dd_nccl_result nccl_properties(dd_nccl_comm_handle handle, dd_nccl_abi_properties *properties);
dd_nccl_result nccl_async_error(dd_nccl_comm_handle handle, dd_nccl_result *state);
dd_nccl_result nccl_comm_info(const char *function, dd_nccl_comm_handle handle, int what, int *value);
enum { NCCL_INFO_COUNT, NCCL_INFO_DEVICE, NCCL_INFO_RANK };

/* Make this the last warning of the process, which ncclGetLastError returns for every call. */
void nccl_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Warn and return result. For errors without a text in the real library, return the result without
 * this. */
dd_nccl_result nccl_fail(dd_nccl_result result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* "CommCount : count argument is NULL" */
dd_nccl_result nccl_fail_null(const char *function, const char *argument);
/* Return the calling thread's copy of the last warning, valid until its next call. */
const char *nccl_last_error(void);

/* ---- encryption (nccl_stub_encryption.c) */

dd_nccl_result nccl_set_encryption(const dd_nccl_abi_encryption *config);
/* Return a hash of the key, 0 for none. The key cannot be changed afterwards. */
uint64_t nccl_settle_encryption(void);
void nccl_forget_encryption(void);

/* ---- configurations (nccl_stub_config.c) */

/* Convert a caller's struct, which may be NULL, as this version does. */
dd_nccl_result nccl_config_take(const dd_nccl_abi_config *given, dd_nccl_abi_config *taken);
/* Check the configuration, and record it for dd_stub_coll_config. */
dd_nccl_result nccl_coll_config_check(const dd_nccl_abi_coll_config *given);
void nccl_forget_coll_config(void);
/* Return its launchCompletionEvent, or NULL. */
dd_cuda_event nccl_coll_config_event(const dd_nccl_abi_coll_config *given);

/* ---- operations (nccl_stub_ops.c) and their kernels (nccl_stub_kernel.c) */

typedef enum nccl_op_kind {
    NCCL_ALL_REDUCE,
    NCCL_REDUCE,
    NCCL_REDUCE_SCATTER,
    NCCL_BROADCAST,
    NCCL_ALL_GATHER,
    NCCL_ALL_TO_ALL,
    NCCL_GATHER,
    NCCL_SCATTER,
    NCCL_SEND,
    NCCL_RECV,
    NCCL_PUT, /* the first one-sided operation */
    NCCL_SIGNAL,
    NCCL_WAIT_SIGNAL,
} nccl_op_kind;

typedef struct nccl_window nccl_window;

typedef struct nccl_op {
    const char *name;
    nccl_op_kind kind;
    const void *send;
    void *recv;
    size_t count;
    dd_nccl_dtype dtype;
    dd_nccl_redop redop;
    int peer; /* or root */
    dd_cuda_stream stream;
    dd_cuda_event started; /* recorded when the kernel begins; or NULL */
    nccl_redop scalar;     /* if is_live: the scalar of PreMulSum at the time of the call */
    bool would_crash;      /* the device cannot use a buffer: the kernel does nothing */
    /* One-sided operations. */
    nccl_window *window; /* a reference, once the operation is in a group */
    size_t offset;
    int signal;
    int nwaits;
    dd_nccl_signal_wait waits[WIRE_MAX_RANKS];
    bool is_captured;
} nccl_op;

dd_nccl_result nccl_check_stream(const nccl_comm *comm, const nccl_op *op);
bool nccl_is_dtype(dd_nccl_dtype dtype);
/* Check the operation and add it to the thread's group. */
dd_nccl_result nccl_do(const nccl_op *op, dd_nccl_comm_handle handle);
dd_nccl_result nccl_redop_create(dd_nccl_redop *made, void *scalar, dd_nccl_dtype dtype,
                                 dd_nccl_scalar_residence residence, dd_nccl_comm_handle handle);
dd_nccl_result nccl_redop_destroy(dd_nccl_redop op, dd_nccl_comm_handle handle);
double nccl_read_scalar(const void *scalar, dd_nccl_dtype dtype);
size_t nccl_dtype_size(dd_nccl_dtype dtype);
bool nccl_is_message(nccl_op_kind kind);

/* The first collective of a communicator, and the first message in one direction between two ranks,
 * wait on the host until the other ranks make their calls. */
bool nccl_must_connect(const nccl_comm *comm, const nccl_op *ops, size_t nops);
dd_nccl_result nccl_connect(nccl_comm *comm, const nccl_op *ops, size_t nops);
/* Enqueue the operations of one communicator in one group on its stream. ops is copied. */
dd_nccl_result nccl_launch(nccl_comm *comm, const nccl_op *ops, size_t nops);
/* Transfer the bytes. */
wire_result nccl_run_op(nccl_comm *comm, const nccl_op *op);
wire_result nccl_run_messages(nccl_comm *comm, const nccl_op *ops, size_t nops);

/* ---- groups (nccl_stub_group.c) and creation of communicators (nccl_stub_make.c) */

typedef struct nccl_job nccl_job;
struct nccl_job {
    dd_nccl_result (*run)(nccl_job *job);
    nccl_comm *comm;   /* its state reports progress */
    nccl_comm *made;   /* may be NULL */
    nccl_comm *parent; /* may be NULL */
    dd_nccl_comm_handle *out;
    bool is_early;  /* *out is already set */
    bool is_bad_id; /* the unique id is invalid */
    wire_spec spec; /* of the new communicator, as far as known */
    dd_nccl_abi_config config;
    int color; /* of a split */
    int key;
    bool is_abort;      /* of a shrink */
    bool is_end;        /* ends comm; the end of a group always waits for it */
    const nccl_op *ops; /* of a connection; borrowed */
    size_t nops;
    void *data; /* of a window */
    size_t nbytes;
    dd_nccl_window *window;
    dd_nccl_result result;
    nccl_job *next;
};

void nccl_group_start(void);
bool nccl_group_is_open(void); /* of the calling thread */
dd_nccl_result nccl_group_end(void);
dd_nccl_result nccl_group_simulate_end(dd_nccl_sim_info *info);
/* Take over the argument. */
dd_nccl_result nccl_group_add_job(nccl_job *job);
dd_nccl_result nccl_group_add_op(nccl_comm *comm, const nccl_op *op);
/* Report that a call in the group has failed: the end of the group then also fails. */
dd_nccl_result nccl_group_fail(dd_nccl_result result);

typedef struct nccl_init_args {
    int nranks;
    int rank;
    int device; /* -1: the current device */
    const dd_nccl_unique_id *ids;
    int nids;
    const dd_nccl_abi_config *config;
} nccl_init_args;

dd_nccl_result nccl_unique_id(dd_nccl_unique_id *id);
dd_nccl_result nccl_init(dd_nccl_comm_handle *out, const nccl_init_args *args);
dd_nccl_result nccl_init_all(dd_nccl_comm_handle *out, int ndevices, const int *devices);
dd_nccl_result nccl_split(dd_nccl_comm_handle handle, int color, int key, dd_nccl_comm_handle *out,
                          const dd_nccl_abi_config *config);
typedef struct nccl_shrink_args {
    const int *excluded;
    int nexcluded;
    bool is_abort;
    const dd_nccl_abi_config *config;
} nccl_shrink_args;
dd_nccl_result nccl_shrink(dd_nccl_comm_handle handle, const nccl_shrink_args *args,
                           dd_nccl_comm_handle *out);
dd_nccl_result nccl_grow_id(dd_nccl_comm_handle handle, dd_nccl_unique_id *id);
dd_nccl_result nccl_grow(dd_nccl_comm_handle handle, const nccl_init_args *args, dd_nccl_comm_handle *out);
void nccl_job_free(nccl_job *job);

/* ---- memory (nccl_stub_memory.c) */

dd_nccl_result nccl_mem_alloc(void **data, size_t nbytes);
dd_nccl_result nccl_mem_free(void *data);
bool nccl_is_mem(const void *data, size_t nbytes);
dd_nccl_result nccl_register(dd_nccl_comm_handle handle, void *data, size_t nbytes, void **registration);
dd_nccl_result nccl_deregister(dd_nccl_comm_handle handle, void *registration);

/* ---- windows and one-sided operations (nccl_stub_window.c) */

/* Collective: all ranks wait for each other. */
dd_nccl_result nccl_window_register(dd_nccl_comm_handle handle, void *data, size_t nbytes,
                                    dd_nccl_window *window);
dd_nccl_result nccl_window_deregister(dd_nccl_comm_handle handle, dd_nccl_window window);
dd_nccl_result nccl_window_pointer(dd_nccl_comm_handle handle, dd_nccl_window window, void **data);
/* End the remaining windows of a communicator. */
void nccl_windows_end(nccl_comm *comm);

bool nccl_is_one_sided(nccl_op_kind kind);
typedef struct nccl_one_sided {
    dd_nccl_window window; /* of a put */
    int ctx;
    unsigned int flags;
    const dd_nccl_signal_wait *waits; /* of a wait; op.nwaits entries */
} nccl_one_sided;
/* Same as nccl_do, for one-sided operations. */
dd_nccl_result nccl_do_one_sided(const nccl_op *op, const nccl_one_sided *more, dd_nccl_comm_handle handle);
void nccl_window_acquire(nccl_window *window); /* both accept NULL */
void nccl_window_release(nccl_window *window);
/* Set is_captured. In a capture, operations use separate signals, and a put waits until the
 * previous one has been taken. */
void nccl_find_capture(nccl_op *op);
wire_result nccl_run_one_sided(nccl_comm *comm, const nccl_op *op);

/* ---- faults (nccl_stub_faults.c) */

/* Raise a pending asynchronous error before a kernel of the rank is launched. */
void nccl_fault_on_launch(nccl_comm *comm);
/* Return the delay of the next kernel in milliseconds; -1: it hangs. */
int nccl_fault_of_kernel(const nccl_comm *comm);
int nccl_fault_launch_delay_ms(void);
/* Delay the end of a communicator. */
void nccl_fault_on_end(void);
bool nccl_fault_ends_apart(void);
/* Same as ENTER, for a function or a part of one: return the result of a pending fault, or
 * SUCCESS. */
dd_nccl_result nccl_enter(stub_site *site);

/* Same as ENTER, for a call with an operation on `comm`: a fault also fails the communicator. */
#define ENTER_OPERATION(function)                              \
    do {                                                       \
        static stub_site site_ = {.name = function};           \
        dd_nccl_result fault_ = nccl_enter(&site_);            \
        if (fault_ != DD_NCCL_SUCCESS) {                       \
            return nccl_group_fail(nccl_refuse(comm, fault_)); \
        }                                                      \
    } while (0)

#define ENTER(function)                              \
    do {                                             \
        static stub_site site_ = {.name = function}; \
        dd_nccl_result fault_ = nccl_enter(&site_);  \
        if (fault_ != DD_NCCL_SUCCESS) {             \
            return nccl_group_fail(fault_);          \
        }                                            \
    } while (0)

#endif
