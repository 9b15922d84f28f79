/* Ranks of NCCL groups as threads of one process, each with a stub device. The store is in
 * memory. */
#ifndef DD_TESTS_NCCL_RIG_H
#define DD_TESTS_NCCL_RIG_H

#include "nccl/group.h"
#include "stubs/stub_control.h"

#include <pthread.h>

/* The functions of stub_control.h in one library. */
typedef struct nccl_rig_stub {
    __typeof__(dd_stub_fail) *fail;
    __typeof__(dd_stub_hang) *hang;
    __typeof__(dd_stub_release) *release;
    __typeof__(dd_stub_hanging) *hanging;
    __typeof__(dd_stub_calls) *calls;
    __typeof__(dd_stub_reset) *reset;
    __typeof__(dd_stub_live) *live;
    __typeof__(dd_stub_made) *made;
    __typeof__(dd_stub_bad_uses) *bad_uses;
} nccl_rig_stub;

typedef struct nccl_rig_options {
    int size;
    const char *version; /* of the stubbed NCCL; NULL for the newest */
    bool is_nonblocking;
    bool has_timing;
    bool has_no_event_cache;
    bool is_nan_check;
    bool is_abort_off;
    int64_t timeout_ns;  /* 0 for a generous timeout */
    int64_t interval_ns; /* of the watchdog; 0 for 1 ms */
    /* The ranks close or leak their groups themselves. */
    bool is_not_closed;
    bool leaves_some; /* resources are left when the driver is closed */
} nccl_rig_options;

typedef struct nccl_rig {
    nccl_rig_options options;
    nccl_rig_stub cuda_stub;
    nccl_rig_stub nccl_stub;
    __typeof__(dd_stub_shut_down) *shut_down;
    __typeof__(dd_stub_slow_write) *slow_write;
    __typeof__(dd_stub_gate) *gate;
    __typeof__(dd_stub_open_gate) *open_gate;
    __typeof__(dd_stub_async_error) *async_error;
    __typeof__(dd_stub_hang_kernel) *hang_kernel;
    __typeof__(dd_stub_slow_kernels) *slow_kernels;
    __typeof__(dd_stub_slow_launches) *slow_launches;
    __typeof__(dd_stub_slow_ends) *slow_ends;
    __typeof__(dd_stub_end_apart) *end_apart;
    int (*free)(void *data); /* returns without waiting for the device, unlike cuMemFree */
    dd_cuda *cuda;
    dd_nccl_lib *lib;
    dd_nccl_watchdog *watchdog;
    dd_recorder *recorder;
    dd_store *store;
    pthread_barrier_t barrier; /* for all ranks */
} nccl_rig;

typedef struct nccl_rig_rank {
    nccl_rig *rig;
    int rank;
    int size;
    dd_nccl_group *group;
    dd_cuda_stream stream; /* the caller's stream */
    void *arg;
} nccl_rig_rank;

/* Open the stubs and groups, run `body` on a thread for each rank, close everything, and check that
 * no resources are left in the stubs. */
void nccl_rig_run(const nccl_rig_options *options, void (*body)(nccl_rig_rank *self), void *arg);
/* Run the same for every supported range of NCCL versions and both kinds of communicators, with 1,
 * 2 and 4 ranks. */
void nccl_rig_run_all(void (*body)(nccl_rig_rank *self), void *arg);

/* Open a group of this rank, and use it instead of the current one. */
bool nccl_rig_open_group(nccl_rig_rank *self, const char *name);

/* Wait until all ranks have called this. */
void nccl_rig_meet(nccl_rig_rank *self);

/* Allocate memory of the rank's device, which the host may read between operations. Freeing it
 * waits for nothing, as in a framework with a caching allocator. */
void *nccl_rig_alloc(nccl_rig_rank *self, size_t nbytes);
void nccl_rig_free(nccl_rig_rank *self, void *data);

/* Return a call on this rank's device, ordered after its stream. Several operations are a batch. */
dd_nccl_call nccl_rig_call(nccl_rig_rank *self, const char *label, const dd_nccl_op *ops, size_t nops);
dd_nccl_op nccl_rig_coll(dd_coll coll, dd_dtype dtype, const dd_block *inputs, const dd_block *outputs);
dd_nccl_op nccl_rig_all_reduce(dd_dtype dtype, dd_redop op, const dd_block *block);

/* The driver's functions for CUDA graphs, which the library never calls. */
typedef struct nccl_rig_graphs {
    int (*begin)(dd_cuda_stream stream, int mode);
    int (*end)(dd_cuda_stream stream, void **graph);
    int (*instantiate)(void **exec, void *graph, unsigned long long flags);
    int (*launch)(void *exec, dd_cuda_stream stream);
    int (*destroy)(void *graph);
    int (*destroy_exec)(void *exec);
} nccl_rig_graphs;
bool nccl_rig_find_graphs(nccl_rig_graphs *graphs);

/* Return an unused number for the stub's gates. A gate stays open once opened. */
int nccl_rig_new_gate(void);

/* Return a wait with a generous timeout. */
dd_wait nccl_rig_patience(void);
/* Start the call, wait for it on the host, and release it. Return its result. */
dd_status nccl_rig_do(nccl_rig_rank *self, const dd_nccl_call *call, dd_error *err);
dd_status nccl_rig_start(nccl_rig_rank *self, const dd_nccl_call *call, dd_nccl_work **work, dd_error *err);
dd_status nccl_rig_wait(dd_nccl_work *work, dd_error *err);
/* Sum one float32 over all ranks, and check the result. */
bool nccl_rig_check_sum(nccl_rig_rank *self);

#endif
