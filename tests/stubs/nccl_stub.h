/* The double of libnccl inside. Everything but the file of exported functions (nccl_stub_api.c) is the same for all versions and asks
 * nccl_stub_version.
 *
 * One lock for all that is not atomic; it is never held while calling into the double of libcuda, which calls here with its own held. */
#ifndef DD_TESTS_NCCL_STUB_H
#define DD_TESTS_NCCL_STUB_H

#include "cuda_stub_tasks.h"
#include "nccl/driver/lib_api.h"
#include "nccl_stub_wire.h"
#include "stub_internal.h"

#define NCCL_EXPORT __attribute__((visibility("default")))
#define NCCL_TEXT_MAX 256

extern const int nccl_stub_version; /* 22703 */
extern pthread_mutex_t nccl_lock;
extern pthread_cond_t nccl_changed;

/* ---- communicators (nccl_stub_comm.c) */

typedef struct nccl_redop {
    bool is_live;
    dd_nccl_dtype dtype;
    const void *device_scalar; /* NULL: factor */
    double factor;
} nccl_redop;

typedef struct nccl_comm {
    stub_object base;
    int rank;
    int nranks;
    int device;
    dd_nccl_abi_config config; /* texts are not kept; netName is not NULL if it is unknown */
    wire_spec spec;
    stub_wire *wire; /* set once, by the job that makes it; owned */

    atomic_bool is_aborted; /* what waits for other ranks gives up */
    atomic_bool is_stopped; /* kernels end: by abort, revoke, or a shrink that aborts */

    /* Under nccl_lock. */
    dd_nccl_result state; /* what ncclCommGetAsyncError says */
    int njobs;            /* threads of groups under way */
    int nopen;            /* calls on it in groups that threads have not ended yet */
    int ninside;          /* calls that wait for other ranks just now, on threads of their callers */
    int ngraphs;          /* kernels in graphs that are alive, or in captures */
    int nrunning;
    uint64_t turn; /* the ticket of the kernel that may run */
    bool is_finalized;
    bool is_revoked;
    bool is_suspended;
    int nchildren; /* splits, shrinks and grows so far: part of their names */
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

/* With the state IN_PROGRESS; a reference, for the table or to be released. */
nccl_comm *nccl_comm_make(int nranks, int rank, int device, const dd_nccl_abi_config *config);
/* Acquired. NULL, with *result and a warning, if the handle is none. */
nccl_comm *nccl_comm_find(dd_nccl_comm_handle handle, dd_nccl_result *result);
/* The same for calls that need a communicator in a certain state, each with the demands of those before it. */
typedef enum nccl_need {
    NCCL_NEED_NOT_BUSY,
    NCCL_NEED_WELL,  /* not failed */
    NCCL_NEED_READY, /* not finalized or suspended */
    NCCL_NEED_UNREVOKED,
} nccl_need;
nccl_comm *nccl_comm_find_ready(dd_nccl_comm_handle handle, nccl_need need, dd_nccl_result *result);
void nccl_comm_release(nccl_comm *comm);
void nccl_comm_set_state(nccl_comm *comm, dd_nccl_result state);
/* A call on it has failed with result: one that does not block fails all calls from then on. Return result. */
dd_nccl_result nccl_comm_spoil(nccl_comm *comm, dd_nccl_result result);
/* The same by its handle, which may be none. */
dd_nccl_result nccl_refuse(dd_nccl_comm_handle handle, dd_nccl_result result);
/* Ends its kernels, those that have begun soon after. */
void nccl_comm_stop(nccl_comm *comm);
/* The same, and waits for those that have begun. */
void nccl_comm_halt(nccl_comm *comm);
/* Waits for the other ranks to come to the same call. False: it was aborted. */
bool nccl_comm_barrier(nccl_comm *comm);
/* A call of the real library that may not be made while somebody captures, unless the thread says that it knows what it does. */
dd_nccl_result nccl_check_unsafe(const char *function);
bool nccl_comm_is_blocking(const nccl_comm *comm);
void nccl_comm_begin_job(nccl_comm *comm);
void nccl_comm_end_job(nccl_comm *comm);
/* Around what waits for other ranks on the caller's thread. */
void nccl_comm_begin_inside(nccl_comm *comm);
void nccl_comm_end_inside(nccl_comm *comm);

dd_nccl_result nccl_abort(dd_nccl_comm_handle handle);
dd_nccl_result nccl_destroy(dd_nccl_comm_handle handle);
dd_nccl_result nccl_finalize(dd_nccl_comm_handle handle);
dd_nccl_result nccl_revoke(dd_nccl_comm_handle handle);
/* A barrier of all ranks, before and after. */
dd_nccl_result nccl_suspend(dd_nccl_comm_handle handle, bool is_suspended);
dd_nccl_result nccl_mem_stat(dd_nccl_comm_handle handle, dd_nccl_mem_stat stat, uint64_t *value);
dd_nccl_result nccl_properties(dd_nccl_comm_handle handle, dd_nccl_abi_properties *properties);
dd_nccl_result nccl_async_error(dd_nccl_comm_handle handle, dd_nccl_result *state);
dd_nccl_result nccl_comm_info(const char *function, dd_nccl_comm_handle handle, int what, int *value);
enum { NCCL_INFO_COUNT, NCCL_INFO_DEVICE, NCCL_INFO_RANK };

/* Make this the last warning of the process, which ncclGetLastError returns whatever call it belongs to. */
void nccl_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Warn and return result. An error that has no text in the real library returns its result without this. */
dd_nccl_result nccl_fail(dd_nccl_result result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* "CommCount : count argument is NULL" */
dd_nccl_result nccl_fail_null(const char *function, const char *argument);
/* The calling thread's copy of the last warning, until its next call. */
const char *nccl_last_error(void);

/* ---- encryption (nccl_stub_encryption.c) */

dd_nccl_result nccl_set_encryption(const dd_nccl_abi_encryption *config);
/* What tells keys apart, 0 for none. From now on it is too late for another. */
uint64_t nccl_settle_encryption(void);
void nccl_forget_encryption(void);

/* ---- configurations (nccl_stub_config.c) */

/* What this version makes of a caller's struct, which may be NULL. */
dd_nccl_result nccl_config_take(const dd_nccl_abi_config *given, dd_nccl_abi_config *taken);
/* Also notes it for dd_stub_coll_config. */
dd_nccl_result nccl_coll_config_check(const dd_nccl_abi_coll_config *given);
void nccl_forget_coll_config(void);
/* Its launchCompletionEvent, or NULL. */
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
    NCCL_PUT, /* the first of the one-sided ones */
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
    dd_cuda_event started; /* is recorded where its kernel begins; or NULL */
    nccl_redop scalar;     /* is_live: of PreMulSum, as it was at the call */
    bool would_crash;      /* a buffer is none that the device can use: its kernel does nothing */
    /* One-sided. */
    nccl_window *window; /* a reference, once the operation is in a group */
    size_t offset;
    int signal;
    int nwaits;
    dd_nccl_signal_wait waits[WIRE_MAX_RANKS];
    bool is_captured;
} nccl_op;

dd_nccl_result nccl_check_stream(const nccl_comm *comm, const nccl_op *op);
bool nccl_is_dtype(dd_nccl_dtype dtype);
/* Checks it and adds it to the thread's group. */
dd_nccl_result nccl_do(const nccl_op *op, dd_nccl_comm_handle handle);
dd_nccl_result nccl_redop_create(dd_nccl_redop *made, void *scalar, dd_nccl_dtype dtype,
                                 dd_nccl_scalar_residence residence, dd_nccl_comm_handle handle);
dd_nccl_result nccl_redop_destroy(dd_nccl_redop op, dd_nccl_comm_handle handle);
double nccl_read_scalar(const void *scalar, dd_nccl_dtype dtype);
size_t nccl_dtype_size(dd_nccl_dtype dtype);
bool nccl_is_message(nccl_op_kind kind);

/* The first collective of a communicator, and the first message between two ranks in a direction, wait on the host until the others call
 * theirs. */
bool nccl_must_connect(const nccl_comm *comm, const nccl_op *ops, size_t nops);
dd_nccl_result nccl_connect(nccl_comm *comm, const nccl_op *ops, size_t nops);
/* Puts the operations of one communicator in one group onto its stream. Copies ops. */
dd_nccl_result nccl_launch(nccl_comm *comm, const nccl_op *ops, size_t nops);
/* Moves the bytes. */
wire_result nccl_run_op(nccl_comm *comm, const nccl_op *op);
wire_result nccl_run_messages(nccl_comm *comm, const nccl_op *ops, size_t nops);

/* ---- groups (nccl_stub_group.c) and what makes communicators (nccl_stub_make.c) */

typedef struct nccl_job nccl_job;
struct nccl_job {
    dd_nccl_result (*run)(nccl_job *job);
    nccl_comm *comm;   /* whose state tells how it goes */
    nccl_comm *made;   /* NULL: none */
    nccl_comm *parent; /* NULL: none */
    dd_nccl_comm_handle *out;
    bool is_early;  /* *out is set already */
    bool is_bad_id; /* the unique id is none */
    wire_spec spec; /* of what is made, as far as it is known */
    dd_nccl_abi_config config;
    int color; /* of a split */
    int key;
    bool is_abort;      /* of a shrink */
    bool is_end;        /* an end of comm, for which the end of a group always waits */
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
/* Take what they are given. */
dd_nccl_result nccl_group_add_job(nccl_job *job);
dd_nccl_result nccl_group_add_op(nccl_comm *comm, const nccl_op *op);
/* A call within the group has failed: its end will, too. */
dd_nccl_result nccl_group_spoil(dd_nccl_result result);

typedef struct nccl_init_args {
    int nranks;
    int rank;
    int device; /* -1: the current one */
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

/* All ranks call it, and wait for each other. */
dd_nccl_result nccl_window_register(dd_nccl_comm_handle handle, void *data, size_t nbytes,
                                    dd_nccl_window *window);
dd_nccl_result nccl_window_deregister(dd_nccl_comm_handle handle, dd_nccl_window window);
dd_nccl_result nccl_window_pointer(dd_nccl_comm_handle handle, dd_nccl_window window, void **data);
/* Those that a communicator still has at its end. */
void nccl_windows_end(nccl_comm *comm);

bool nccl_is_one_sided(nccl_op_kind kind);
typedef struct nccl_one_sided {
    dd_nccl_window window; /* of a put */
    int ctx;
    unsigned int flags;
    const dd_nccl_signal_wait *waits; /* of a wait, which has op.nwaits */
} nccl_one_sided;
/* nccl_do for these. */
dd_nccl_result nccl_do_one_sided(const nccl_op *op, const nccl_one_sided *more, dd_nccl_comm_handle handle);
void nccl_window_acquire(nccl_window *window); /* NULL is fine, for both */
void nccl_window_release(nccl_window *window);
/* In a stream that captures they have signals of their own, and a put waits until the one before has been taken. */
void nccl_find_capture(nccl_op *op);
wire_result nccl_run_one_sided(nccl_comm *comm, const nccl_op *op);

/* ---- faults (nccl_stub_faults.c) */

/* A kernel of the rank is about to be launched; an asynchronous error may be due. */
void nccl_fault_on_launch(nccl_comm *comm);
/* What the kernel that begins does first: -1 hang, else sleep so many ms. */
int nccl_fault_of_kernel(const nccl_comm *comm);
int nccl_fault_launch_delay_ms(void);
/* A communicator is being freed. */
void nccl_fault_on_end(void);
bool nccl_fault_ends_apart(void);
/* Of a function or a part of one, as ENTER: the result of a fault that is due, else SUCCESS. */
dd_nccl_result nccl_enter(stub_site *site);

/* ENTER for a call that puts an operation on `comm`: a fault also spoils the communicator. */
#define ENTER_OPERATION(function)                               \
    do {                                                        \
        static stub_site site_ = {.name = function};            \
        dd_nccl_result fault_ = nccl_enter(&site_);             \
        if (fault_ != DD_NCCL_SUCCESS) {                        \
            return nccl_group_spoil(nccl_refuse(comm, fault_)); \
        }                                                       \
    } while (0)

#define ENTER(function)                              \
    do {                                             \
        static stub_site site_ = {.name = function}; \
        dd_nccl_result fault_ = nccl_enter(&site_);  \
        if (fault_ != DD_NCCL_SUCCESS) {             \
            return nccl_group_spoil(fault_);         \
        }                                            \
    } while (0)

#endif
