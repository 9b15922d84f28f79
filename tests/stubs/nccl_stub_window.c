/* Windows, and one-sided operations on other ranks' windows: puts, signals, and waits for signals.
 *
 * Memory of ncclMemAlloc has a file, which other ranks map at registration by its owner's
 * descriptor number. So a put is a copy, without any action of the target. */
#include "nccl_stub.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Half of the signals on the wire are for graphs. */
#define MAX_SIGNALS (WIRE_MAX_SIGNALS / 2)

/* Since this version, windows require memory from cuMemCreate. */
#define REFUSES_OTHER_MEMORY_SINCE 22803

/* The memory of one rank as mapped by this rank. */
typedef struct mapping {
    char *file; /* whole file */
    size_t file_nbytes;
    size_t offset; /* of the window */
} mapping;

struct nccl_window {
    stub_object base;
    const nccl_comm *comm; /* not counted: the communicator ends its windows */
    void *handle;
    char *data;
    size_t nbytes;
    int nranks;
    mapping ranks[WIRE_MAX_RANKS];
    nccl_window *next; /* of the communicator; under nccl_lock */
};

stub_count nccl_window_count = {.kind = "window"};
static stub_table windows = STUB_TABLE(&nccl_window_count, 10);

static void
free_window(stub_object *object)
{
    nccl_window *window = (nccl_window *)object;
    for (int rank = 0; rank < window->nranks; rank++) {
        if (window->ranks[rank].file != NULL) {
            munmap(window->ranks[rank].file, window->ranks[rank].file_nbytes);
        }
    }
    free(window);
}

void
nccl_window_acquire(nccl_window *window)
{
    if (window != NULL) {
        (void)stub_object_acquire(&window->base);
    }
}

void
nccl_window_release(nccl_window *window)
{
    if (window != NULL) {
        stub_object_release(&window->base);
    }
}

/* ---- collective registration */

typedef struct window_card {
    pid_t process;
    dd_stub_file file;
    size_t nbytes;
    bool is_mem; /* from ncclMemAlloc */
} window_card;

static bool
map_rank(mapping *made, const window_card *card)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)card->process, card->file.file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) {
        return false;
    }
    void *memory = mmap(NULL, card->file.nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED) {
        return false;
    }
    *made = (mapping){.file = memory, .file_nbytes = card->file.nbytes, .offset = card->file.offset};
    return true;
}

static dd_nccl_result
map_all(nccl_window *window, const window_card *cards)
{
    for (int rank = 0; rank < window->nranks; rank++) {
        if (!map_rank(&window->ranks[rank], &cards[rank])) {
            return nccl_fail(DD_NCCL_SYSTEM_ERROR, "the memory of rank %d cannot be mapped: errno %d", rank,
                             errno);
        }
    }
    return DD_NCCL_SUCCESS;
}

static dd_nccl_result
exchange(nccl_comm *comm, const void *mine, size_t nbytes, void *all)
{
    wire_exchange_args args = {.mine = mine, .nbytes = nbytes, .all = all};
    return wire_exchange(comm->wire, &args, &comm->is_aborted) == WIRE_OK
               ? DD_NCCL_SUCCESS
               : nccl_fail(DD_NCCL_INTERNAL_ERROR,
                           "the communicator was aborted while a window was registered");
}

static void
add_window(nccl_comm *comm, nccl_window *window, dd_nccl_window *out)
{
    nccl_window_acquire(window);
    window->handle = stub_table_add(&windows, &window->base);
    *out = window->handle;
    pthread_mutex_lock(&nccl_lock);
    window->next = comm->windows;
    comm->windows = window;
    pthread_mutex_unlock(&nccl_lock);
}

/* Return false and set the result if there is no window. Memory from other functions made all
 * windows NULL before 2.28, and is an error since. */
static bool
agree(const nccl_comm *comm, const window_card *cards, dd_nccl_result *result)
{
    *result = DD_NCCL_SUCCESS;
    bool is_mem = true;
    for (int rank = 0; rank < comm->nranks; rank++) {
        is_mem = is_mem && cards[rank].is_mem;
        if (cards[rank].nbytes != cards[0].nbytes) {
            *result = nccl_fail(DD_NCCL_INVALID_ARGUMENT,
                                "ncclCommWindowRegister: %zu bytes on rank 0, and %zu on rank %d",
                                cards[0].nbytes, cards[rank].nbytes, rank);
        }
    }
    if (!is_mem && *result == DD_NCCL_SUCCESS && nccl_stub_version >= REFUSES_OTHER_MEMORY_SINCE) {
        *result = nccl_fail(DD_NCCL_UNHANDLED_CUDA_ERROR, "Cuda failure 1 'invalid argument'");
    }
    return is_mem && *result == DD_NCCL_SUCCESS;
}

static dd_nccl_result
run_register(nccl_job *job)
{
    nccl_comm *comm = job->comm;
    window_card own = {.process = getpid(), .nbytes = job->nbytes};
    own.is_mem = nccl_is_mem(job->data, job->nbytes) && dd_stub_find_file(job->data, &own.file);
    window_card cards[WIRE_MAX_RANKS];
    dd_nccl_result result = exchange(comm, &own, sizeof own, cards);
    if (result != DD_NCCL_SUCCESS || !agree(comm, cards, &result)) {
        return result;
    }
    nccl_window *window = stub_zalloc(sizeof *window);
    stub_object_init(&window->base, free_window);
    window->comm = comm;
    window->data = job->data;
    window->nbytes = job->nbytes;
    window->nranks = comm->nranks;
    result = map_all(window, cards);
    /* The descriptor numbers are valid only until the other ranks continue. */
    dd_nccl_result results[WIRE_MAX_RANKS];
    dd_nccl_result met = exchange(comm, &result, sizeof result, results);
    if (result == DD_NCCL_SUCCESS && met == DD_NCCL_SUCCESS) {
        add_window(comm, window, job->window);
    }
    nccl_window_release(window);
    return result == DD_NCCL_SUCCESS ? met : result;
}

dd_nccl_result
nccl_window_register(dd_nccl_comm_handle handle, void *data, size_t nbytes, dd_nccl_window *window)
{
    dd_nccl_result result;
    nccl_comm *comm = nccl_comm_find_ready(handle, NCCL_NEED_UNREVOKED, &result);
    if (comm == NULL) {
        return nccl_group_fail(result);
    }
    int device = dd_stub_memory_device(data, nbytes);
    if ((device != -1 && device != comm->device) || nbytes == 0 || window == NULL) {
        nccl_comm_release(comm);
        return nccl_group_fail(
            nccl_fail(DD_NCCL_INVALID_ARGUMENT, "%zu bytes at %p cannot be registered", nbytes, data));
    }
    *window = NULL;
    nccl_job *job = stub_zalloc(sizeof *job);
    job->run = run_register;
    job->comm = comm;
    job->data = data;
    job->nbytes = nbytes;
    job->window = window;
    nccl_group_start();
    (void)nccl_group_add_job(job);
    return nccl_group_end();
}

/* ---- lookup and deregistration */

/* Find and acquire a window. Return NULL if it does not belong to the communicator. */
static nccl_window *
find_window(const nccl_comm *comm, dd_nccl_window handle)
{
    nccl_window *window = handle != NULL ? stub_table_find(&windows, handle) : NULL;
    if (window != NULL && window->comm != comm) {
        nccl_window_release(window);
        window = NULL;
    }
    return window;
}

static void
take_out(nccl_comm *comm, const nccl_window *window)
{
    pthread_mutex_lock(&nccl_lock);
    nccl_window **link = &comm->windows;
    while (*link != window) {
        link = &(*link)->next;
    }
    *link = window->next;
    pthread_mutex_unlock(&nccl_lock);
}

dd_nccl_result
nccl_window_deregister(dd_nccl_comm_handle handle, dd_nccl_window window)
{
    if (window == NULL) {
        return DD_NCCL_SUCCESS;
    }
    dd_nccl_result result;
    nccl_comm *comm = nccl_comm_find(handle, &result);
    if (comm == NULL) {
        return result;
    }
    nccl_window *found = find_window(comm, window);
    if (found == NULL) {
        result =
            nccl_fail(DD_NCCL_INVALID_ARGUMENT, "deregistration of an unknown window %p", (void *)window);
    } else {
        take_out(comm, found);
        nccl_window_release(stub_table_remove(&windows, window));
        nccl_window_release(found);
    }
    nccl_comm_release(comm);
    return result;
}

void
nccl_windows_end(nccl_comm *comm)
{
    while (comm->windows != NULL) {
        nccl_window *window = comm->windows;
        comm->windows = window->next;
        nccl_window_release(stub_table_remove(&windows, window->handle));
    }
}

dd_nccl_result
nccl_window_pointer(dd_nccl_comm_handle handle, dd_nccl_window window, void **data)
{
    dd_nccl_result result;
    nccl_comm *comm = nccl_comm_find(handle, &result);
    if (comm == NULL) {
        return result;
    }
    nccl_window *found = find_window(comm, window);
    *data = found != NULL ? found->data : NULL;
    nccl_window_release(found);
    nccl_comm_release(comm);
    return DD_NCCL_SUCCESS;
}

/* ---- operations: calls */

bool
nccl_is_one_sided(nccl_op_kind kind)
{
    return kind >= NCCL_PUT;
}

/* Return the number of signals per rank, which is configurable since 2.31. */
static int
count_signals(const nccl_comm *comm)
{
    int count = nccl_stub_version >= 23102 ? comm->config.numRmaSig : 1;
    return count < 1 ? 1 : count < MAX_SIGNALS ? count : MAX_SIGNALS;
}

static dd_nccl_result
check_signal(const nccl_comm *comm, const char *name, int peer, int signal)
{
    if (peer < 0 || peer >= comm->nranks) {
        return nccl_fail(DD_NCCL_INVALID_ARGUMENT, "%s: invalid peer %d of %d ranks", name, peer,
                         comm->nranks);
    }
    if (signal < 0 || signal >= count_signals(comm)) {
        return nccl_fail(DD_NCCL_INVALID_ARGUMENT, "%s: signal index %d is invalid, there are %d", name,
                         signal, count_signals(comm));
    }
    return DD_NCCL_SUCCESS;
}

static bool
is_registered(nccl_comm *comm, const void *data, size_t nbytes)
{
    pthread_mutex_lock(&nccl_lock);
    const nccl_window *window = comm->windows;
    while (window != NULL && ((uintptr_t)data < (uintptr_t)window->data ||
                              (uintptr_t)data + nbytes > (uintptr_t)window->data + window->nbytes)) {
        window = window->next;
    }
    pthread_mutex_unlock(&nccl_lock);
    return window != NULL;
}

static dd_nccl_result
check_put(nccl_comm *comm, const nccl_op *op)
{
    if (op->window == NULL) {
        return nccl_fail(DD_NCCL_INVALID_ARGUMENT, "ncclPutSignal: no window of this communicator");
    }
    if (!nccl_is_dtype(op->dtype)) {
        return nccl_fail(DD_NCCL_INVALID_ARGUMENT, "ncclPutSignal: invalid data type %d", (int)op->dtype);
    }
    size_t nbytes = op->count * nccl_dtype_size(op->dtype);
    if (op->send == NULL || !is_registered(comm, op->send, nbytes)) {
        return nccl_fail(DD_NCCL_INVALID_ARGUMENT, "ncclPutSignal: the source is in no window");
    }
    if (op->offset > op->window->nbytes || nbytes > op->window->nbytes - op->offset) {
        return nccl_fail(DD_NCCL_INVALID_ARGUMENT, "ncclPutSignal: %zu bytes at %zu of %zu", nbytes,
                         op->offset, op->window->nbytes);
    }
    return DD_NCCL_SUCCESS;
}

static dd_nccl_result
take_waits(const nccl_comm *comm, nccl_op *op, const dd_nccl_signal_wait *waits)
{
    if (waits == NULL || op->nwaits < 1 || op->nwaits > WIRE_MAX_RANKS) {
        return nccl_fail(DD_NCCL_INVALID_ARGUMENT, "ncclWaitSignal: %d descriptors", op->nwaits);
    }
    memcpy(op->waits, waits, (size_t)op->nwaits * sizeof *waits);
    dd_nccl_result result = DD_NCCL_SUCCESS;
    for (int i = 0; i < op->nwaits && result == DD_NCCL_SUCCESS; i++) {
        result = waits[i].opCnt < 1 || waits[i].ctx != 0
                     ? nccl_fail(DD_NCCL_INVALID_ARGUMENT, "ncclWaitSignal: opCnt %d, context %d",
                                 waits[i].opCnt, waits[i].ctx)
                     : check_signal(comm, op->name, waits[i].peer, waits[i].sigIdx);
    }
    return result;
}

static dd_nccl_result
check_one_sided(nccl_comm *comm, nccl_op *op, const nccl_one_sided *more)
{
    if (more->ctx != 0 || more->flags != 0) {
        return nccl_fail(DD_NCCL_INVALID_ARGUMENT, "%s: context %d and flags %u must be 0", op->name,
                         more->ctx, more->flags);
    }
    dd_nccl_result result = nccl_check_stream(comm, op);
    if (result == DD_NCCL_SUCCESS && op->kind != NCCL_WAIT_SIGNAL) {
        result = check_signal(comm, op->name, op->peer, op->signal);
    }
    if (result == DD_NCCL_SUCCESS && op->kind == NCCL_PUT) {
        result = check_put(comm, op);
    }
    return result == DD_NCCL_SUCCESS && op->kind == NCCL_WAIT_SIGNAL ? take_waits(comm, op, more->waits)
                                                                     : result;
}

dd_nccl_result
nccl_do_one_sided(const nccl_op *op, const nccl_one_sided *more, dd_nccl_comm_handle handle)
{
    dd_nccl_result result;
    nccl_comm *comm = nccl_comm_find_ready(handle, NCCL_NEED_UNREVOKED, &result);
    if (comm == NULL) {
        return nccl_group_fail(result);
    }
    nccl_op checked = *op;
    checked.window = find_window(comm, more->window);
    result = check_one_sided(comm, &checked, more);
    if (result != DD_NCCL_SUCCESS) {
        result = nccl_comm_fail(comm, result);
    } else {
        nccl_group_start();
        (void)nccl_group_add_op(comm, &checked);
        result = nccl_group_end();
    }
    nccl_window_release(checked.window);
    nccl_comm_release(comm);
    return result == DD_NCCL_SUCCESS || result == DD_NCCL_IN_PROGRESS ? result : nccl_group_fail(result);
}

/* ---- operations: on the stream */

void
nccl_find_capture(nccl_op *op)
{
    op->is_captured = nccl_is_one_sided(op->kind) && dd_stub_is_capturing(op->stream);
}

static wire_signal
signal_of(const nccl_op *op, int peer, int signal)
{
    return (wire_signal){.peer = peer, .index = op->is_captured ? MAX_SIGNALS + signal : signal};
}

static wire_result
run_put(nccl_comm *comm, const nccl_op *op)
{
    wire_signal to = signal_of(op, op->peer, op->signal);
    wire_result result = op->is_captured ? wire_await_taken(comm->wire, to, &comm->is_stopped) : WIRE_OK;
    if (result != WIRE_OK) {
        return result;
    }
    if (op->kind == NCCL_PUT) {
        const mapping *target = &op->window->ranks[op->peer];
        memmove(target->file + target->offset + op->offset, op->send, op->count * nccl_dtype_size(op->dtype));
    }
    wire_send_signal(comm->wire, to);
    return WIRE_OK;
}

static wire_result
run_wait(nccl_comm *comm, const nccl_op *op)
{
    wire_result result = WIRE_OK;
    for (int i = 0; i < op->nwaits && result == WIRE_OK; i++) {
        const dd_nccl_signal_wait *wait = &op->waits[i];
        int step = op->is_captured ? 1 : wait->opCnt;
        for (int n = 0; n < wait->opCnt && result == WIRE_OK; n += step) {
            result = wire_take_signals(comm->wire, signal_of(op, wait->peer, wait->sigIdx), (uint64_t)step,
                                       &comm->is_stopped);
        }
    }
    return result;
}

wire_result
nccl_run_one_sided(nccl_comm *comm, const nccl_op *op)
{
    return op->kind == NCCL_WAIT_SIGNAL ? run_wait(comm, op) : run_put(comm, op);
}
