/* Ranks of NCCL's groups as threads of one process, each with a device of the stubs, and a store in memory. */
#ifndef DD_TESTS_NCCL_RIG_H
#define DD_TESTS_NCCL_RIG_H

#include "nccl/group.h"
#include "stubs/stub_control.h"

#include <pthread.h>

/* One library's part of stub_control.h. */
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
    const char *version; /* of the NCCL that is doubled; NULL: the newest */
    bool is_nonblocking;
    bool has_timing;
    bool has_no_event_cache;
    bool is_nan_check;
    bool is_abort_off;
    int64_t timeout_ns;  /* 0: plenty */
    int64_t interval_ns; /* of the watchdog; 0: 1 ms */
    /* Some groups do not end well: their ranks end them, or leave them. */
    bool is_not_closed;
    bool leaves_some; /* the driver's end leaves things behind */
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
    int (*free)(void *data); /* at once, where cuMemFree waits for the device */
    dd_cuda *cuda;
    dd_nccl_lib *lib;
    dd_nccl_watchdog *watchdog;
    dd_recorder *recorder;
    dd_store *store;
    pthread_barrier_t barrier; /* of the ranks */
} nccl_rig;

typedef struct nccl_rig_rank {
    nccl_rig *rig;
    int rank;
    int size;
    dd_nccl_group *group;
    dd_cuda_stream stream; /* the caller's */
    void *arg;
} nccl_rig_rank;

/* Opens everything, runs `body` on a thread for each rank, closes everything, and checks that nothing is left in the stubs. */
void nccl_rig_run(const nccl_rig_options *options, void (*body)(nccl_rig_rank *self), void *arg);
/* The same for every era of NCCL and both kinds of communicators, with 1, 2 and 4 ranks. */
void nccl_rig_run_all(void (*body)(nccl_rig_rank *self), void *arg);

/* A group of this rank, in place of the one that it has. */
bool nccl_rig_open_group(nccl_rig_rank *self, const char *name);

/* All ranks come here before any leaves. */
void nccl_rig_meet(nccl_rig_rank *self);

/* Memory of the rank's device, which the host may look at between operations, as of a framework that keeps what is given back: freeing
 * it waits for nothing. */
void *nccl_rig_alloc(nccl_rig_rank *self, size_t nbytes);
void nccl_rig_free(nccl_rig_rank *self, void *data);

/* A call on this rank's device after its stream, of these operations: a batch if there are several. */
dd_nccl_call nccl_rig_call(nccl_rig_rank *self, const char *what, const dd_nccl_op *ops, size_t nops);
dd_nccl_op nccl_rig_coll(dd_coll coll, dd_dtype dtype, const dd_block *inputs, const dd_block *outputs);
dd_nccl_op nccl_rig_all_reduce(dd_dtype dtype, dd_redop op, const dd_block *block);

/* The part of the driver that is about CUDA graphs, which we never call ourselves. */
typedef struct nccl_rig_graphs {
    int (*begin)(dd_cuda_stream stream, int mode);
    int (*end)(dd_cuda_stream stream, void **graph);
    int (*instantiate)(void **exec, void *graph, unsigned long long flags);
    int (*launch)(void *exec, dd_cuda_stream stream);
    int (*destroy)(void *graph);
    int (*destroy_exec)(void *exec);
} nccl_rig_graphs;
bool nccl_rig_find_graphs(nccl_rig_graphs *graphs);

/* A number for the stub's gates that has not been used: a gate stays open. */
int nccl_rig_new_gate(void);

/* A wait that is long enough for whatever should happen at all. */
dd_wait nccl_rig_patience(void);
/* Starts, waits for it on the host, and releases it: how it ended. */
dd_status nccl_rig_do(nccl_rig_rank *self, const dd_nccl_call *call, dd_error *err);
dd_status nccl_rig_start(nccl_rig_rank *self, const dd_nccl_call *call, dd_nccl_work **work, dd_error *err);
dd_status nccl_rig_wait(dd_nccl_work *work, dd_error *err);
/* A sum of one float32 on all ranks. */
bool nccl_rig_check_sum(nccl_rig_rank *self);

#endif
