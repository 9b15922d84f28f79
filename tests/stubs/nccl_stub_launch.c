/* Kernels: the operations of one communicator in one group, as work of a stream. The kernels of a
 * communicator run in launch order, even on different streams. */
#include "nccl_stub.h"

#include <stdlib.h>
#include <string.h>

struct kernel {
    nccl_comm *comm; /* a reference */
    bool is_of_graph;
    size_t nops;
    nccl_op ops[];
};

static void *
launch_kernel(void *ctx)
{
    struct kernel *kernel = ctx;
    return (void *)(uintptr_t)atomic_fetch_add(&kernel->comm->ntickets, 1);
}

static void
move_bytes(const struct kernel *kernel)
{
    nccl_comm *comm = kernel->comm;
    int fault = nccl_fault_of_kernel(comm);
    wire_result result = fault != 0 ? wire_sleep(&comm->is_stopped, fault) : WIRE_OK;
    size_t nmessages = 0;
    for (size_t i = 0; i < kernel->nops; i++) {
        if (kernel->ops[i].would_crash) {
            return;
        }
    }
    for (size_t i = 0; i < kernel->nops && result == WIRE_OK; i++) {
        bool is_message = nccl_is_message(kernel->ops[i].kind);
        bool is_later = is_message || nccl_is_one_sided(kernel->ops[i].kind);
        nmessages += is_message;
        result = is_later ? WIRE_OK : nccl_run_op(comm, &kernel->ops[i]);
    }
    if (nmessages > 0 && result == WIRE_OK) {
        result = nccl_run_messages(comm, kernel->ops, kernel->nops);
    }
    for (size_t i = 0; i < kernel->nops && result == WIRE_OK; i++) {
        bool is_one_sided = nccl_is_one_sided(kernel->ops[i].kind);
        result = is_one_sided ? nccl_run_one_sided(comm, &kernel->ops[i]) : WIRE_OK;
    }
}

static void
run_kernel(void *ctx, void *launched)
{
    struct kernel *kernel = ctx;
    nccl_comm *comm = kernel->comm;
    uint64_t ticket = (uint64_t)(uintptr_t)launched;
    pthread_mutex_lock(&nccl_lock);
    while (comm->turn != ticket && !atomic_load(&comm->is_stopped)) {
        pthread_cond_wait(&nccl_changed, &nccl_lock);
    }
    bool does_run = !atomic_load(&comm->is_stopped);
    comm->nrunning += does_run;
    pthread_mutex_unlock(&nccl_lock);
    if (does_run) {
        move_bytes(kernel);
    }
    pthread_mutex_lock(&nccl_lock);
    comm->nrunning -= does_run;
    comm->turn++;
    pthread_cond_broadcast(&nccl_changed);
    pthread_mutex_unlock(&nccl_lock);
}

static void
count_graphs(const struct kernel *kernel, int n)
{
    if (kernel->is_of_graph) {
        pthread_mutex_lock(&nccl_lock);
        kernel->comm->ngraphs += n;
        pthread_cond_broadcast(&nccl_changed);
        pthread_mutex_unlock(&nccl_lock);
    }
}

static void
release_kernel(void *ctx)
{
    struct kernel *kernel = ctx;
    count_graphs(kernel, -1);
    for (size_t i = 0; i < kernel->nops; i++) {
        nccl_window_release(kernel->ops[i].window);
    }
    nccl_comm_release(kernel->comm);
    free(kernel);
}

static dd_nccl_result
launch_on_device(nccl_comm *comm, const nccl_op *ops, size_t nops)
{
    nccl_fault_on_launch(comm);
    struct kernel *kernel = stub_zalloc(sizeof *kernel + nops * sizeof(nccl_op));
    kernel->comm = stub_object_acquire(&comm->base);
    kernel->nops = nops;
    memcpy(kernel->ops, ops, nops * sizeof *ops);
    kernel->is_of_graph = dd_stub_is_capturing(ops[0].stream);
    count_graphs(kernel, 1);
    for (size_t i = 0; i < nops; i++) {
        nccl_window_acquire(kernel->ops[i].window);
        nccl_find_capture(&kernel->ops[i]);
    }
    /* The kernel is on the first stream. Earlier work of the other streams precedes it, and later
     * work follows it. */
    void *stream = ops[0].stream;
    int cuda = 0;
    for (size_t i = 1; i < nops && cuda == 0; i++) {
        if (ops[i].stream != stream) {
            cuda = dd_stub_join(ops[i].stream, stream);
        }
    }
    for (size_t i = 0; i < nops && cuda == 0; i++) {
        cuda = ops[i].started != NULL ? dd_stub_record(ops[i].started, stream) : 0;
    }
    dd_stub_work work = {
        .launch = launch_kernel, .run = run_kernel, .release = release_kernel, .ctx = kernel};
    if (cuda != 0) {
        release_kernel(kernel);
    } else {
        cuda = dd_stub_enqueue(stream, &work);
    }
    for (size_t i = 1; i < nops && cuda == 0; i++) {
        if (ops[i].stream != stream) {
            cuda = dd_stub_join(stream, ops[i].stream);
        }
    }
    return cuda == 0
               ? DD_NCCL_SUCCESS
               : nccl_fail(DD_NCCL_UNHANDLED_CUDA_ERROR, "Cuda failure %d when a kernel was launched", cuda);
}

/* A NULL stream is the default stream of the communicator's device, not of the current device. */
dd_nccl_result
nccl_launch(nccl_comm *comm, const nccl_op *ops, size_t nops)
{
    int before = dd_stub_exchange_device(comm->device);
    dd_nccl_result result = launch_on_device(comm, ops, nops);
    (void)dd_stub_exchange_device(before);
    return result;
}
