/* The search of inputs for NaN before they are sent, for debugging.
 *
 * The device searches with a kernel, and the caller waits for the result. If the driver rejects the
 * kernel, the inputs are copied to the host in pieces, and the host searches. A call in a graph
 * capture puts its kernels into the graph. No thread waits for those kernels: the watchdog, the
 * next call and the end of the group read their report, and fail the group. All captured calls on a
 * device share one report, which is never reset: the first NaN fails the group. Inputs of captured
 * calls live as long as the group, and reports longer: the end of a graph is unknown. */
#include "nccl/call/internal.h"

#include "core/lock.h"

#include <stdio.h>
#include <string.h>

#define PIECE_NBYTES ((size_t)1 << 18)
/* Number of a report's low bits for a float's index; the bits above are the input's number. */
#define NAN_INDEX_BITS 40

/* Format of a dtype's floats. A float is NaN if its bits without the sign are at least `limit`. */
typedef struct nan_format {
    unsigned width; /* size of a float in bytes */
    uint64_t limit;
    unsigned nfloats; /* number of floats in an element; 2 if complex */
} nan_format;

/* One input of a call. */
typedef struct nan_location {
    size_t op; /* index of the operation among the call's `nops` */
    size_t nops;
    int index; /* index of the input among the operation's `ninputs` */
    int ninputs;
    nan_format format;
} nan_location;

/* Start value for next_input: the position before the first input. */
#define NAN_FIRST ((nan_location){.index = -1})

struct nccl_nan_captured {
    nan_location location;
    nccl_origin origin;
    char call[128];
};

static bool
format_of(dd_dtype dtype, nan_format *format)
{
    switch (dtype) {
    case DD_DTYPE_FLOAT16:
        *format = (nan_format){2, 0x7c01, 1};
        return true;
    case DD_DTYPE_BFLOAT16:
        *format = (nan_format){2, 0x7f81, 1};
        return true;
    case DD_DTYPE_FLOAT8_E4M3FN:
        *format = (nan_format){1, 0x7f, 1};
        return true;
    case DD_DTYPE_FLOAT8_E5M2:
        *format = (nan_format){1, 0x7d, 1};
        return true;
    case DD_DTYPE_FLOAT32:
    case DD_DTYPE_COMPLEX64:
        *format = (nan_format){4, 0x7f800001, dtype == DD_DTYPE_FLOAT32 ? 1 : 2};
        return true;
    case DD_DTYPE_FLOAT64:
    case DD_DTYPE_COMPLEX128:
        *format = (nan_format){8, UINT64_C(0x7ff0000000000001), dtype == DD_DTYPE_FLOAT64 ? 1 : 2};
        return true;
    case DD_DTYPE_BOOL:
    case DD_DTYPE_INT8:
    case DD_DTYPE_UINT8:
    case DD_DTYPE_INT16:
    case DD_DTYPE_UINT16:
    case DD_DTYPE_INT32:
    case DD_DTYPE_UINT32:
    case DD_DTYPE_INT64:
    case DD_DTYPE_UINT64:
        break;
    }
    return false;
}

static uint64_t
nan_key(uint64_t number)
{
    return number << NAN_INDEX_BITS;
}

static uint64_t
nan_number(uint64_t reported)
{
    return reported >> NAN_INDEX_BITS;
}

static uint64_t
nan_index(uint64_t reported)
{
    return reported & (nan_key(1) - 1);
}

/* ---- the inputs of a call */

/* Return an operation's inputs; NULL if none has floats. Sets location->ninputs and ->format. */
static const dd_block *
inputs_of(const nccl_launch *launch, const dd_nccl_op *op, nan_location *location)
{
    const dd_nccl_group *group = launch->group;
    bool is_coll = op->kind == DD_NCCL_OP_COLL;
    location->ninputs = is_coll ? dd_coll_ninputs(op->args.coll, op->args.root == group->rank, group->size)
                                : op->kind == DD_NCCL_OP_SEND || op->kind == DD_NCCL_OP_PUT;
    if (location->ninputs == 0 ||
        !format_of(is_coll ? op->args.reduction.dtype : op->dtype, &location->format)) {
        return NULL;
    }
    return is_coll ? op->args.inputs : &op->block;
}

/* Advance to the call's next input that has floats. Return false after the last one. */
static bool
next_input(const nccl_launch *launch, nan_location *location, const dd_block **block)
{
    const dd_nccl_call *call = launch->call;
    location->nops = call->nops;
    location->index++;
    for (; location->op < call->nops; location->op++, location->index = 0) {
        const dd_block *inputs = inputs_of(launch, &call->ops[location->op], location);
        for (; inputs != NULL && location->index < location->ninputs; location->index++) {
            if (inputs[location->index].nbytes > 0) {
                *block = &inputs[location->index];
                return true;
            }
        }
    }
    return false;
}

/* Set the error "all_reduce: input 2 has a NaN at element 7". `at` is the index of a float. */
static dd_status
describe_nan(const char *label, const nan_location *location, uint64_t at, dd_error *err)
{
    char which[32] = "the input";
    uint64_t nfloats = location->format.nfloats > 1 ? location->format.nfloats : 1;
    if (location->ninputs > 1) {
        snprintf(which, sizeof which, "input %d", location->index);
    }
    dd_status status = dd_error_set(err, DD_INVALID_ARGUMENT, "%s: %s has a NaN at element %llu", label,
                                    which, (unsigned long long)(at / nfloats));
    if (location->nops > 1) {
        dd_error_prepend(err, "operation %zu of %zu", location->op, location->nops);
    }
    return status;
}

/* ---- search by the device */

/* Wait until the stream is idle. DD_OP_TIMED_OUT at the deadline. */
static dd_status
wait_for_stream(nccl_launch *launch, const dd_wait *wait)
{
    const dd_cuda *cuda = launch->group->cuda;
    for (;;) {
        dd_cuda_result result = cuda->api.cuStreamQuery(launch->channel->stream);
        if (result != DD_CUDA_NOT_READY) {
            return nccl_launch_check_cuda(launch, result, "cuStreamQuery");
        }
        if (dd_wait_has_expired(wait)) {
            return dd_error_set(launch->err, DD_OP_TIMED_OUT,
                                "the search for NaN did not finish within %.3f s", dd_wait_elapsed_s(wait));
        }
        if (atomic_load(&launch->group->stop)) {
            return dd_nccl_group_check(launch->group, launch->err);
        }
        dd_status status = dd_wait_sleep(wait, 50 * DD_NS_PER_US, launch->err);
        if (status != DD_OK) {
            return status;
        }
    }
}

/* Enqueue a kernel for each input of the call. The inputs get numbers from `first` on. */
static dd_status
enqueue_kernels(nccl_launch *launch, uint64_t first, dd_cuda_nan_report *report)
{
    nan_location location = NAN_FIRST;
    const dd_block *block;
    dd_status status = DD_OK;
    for (uint64_t number = first; status == DD_OK && next_input(launch, &location, &block); number++) {
        dd_cuda_nan_search search = {.data = block->data,
                                     .nfloats = block->nbytes / location.format.width,
                                     .width = location.format.width,
                                     .limit = location.format.limit,
                                     .key = nan_key(number),
                                     .report = report};
        dd_cuda_result result = dd_cuda_nan_enqueue(launch->group->cuda->nan, launch->channel->device->number,
                                                    &search, launch->channel->stream);
        status = nccl_launch_check_cuda(launch, result, "cuLaunchKernel");
    }
    return status;
}

/* Create the channel's report, or reset it in stream order: earlier kernels may still write it. */
static dd_status
reset_report(nccl_launch *launch)
{
    const dd_cuda *cuda = launch->group->cuda;
    nccl_channel *channel = launch->channel;
    if (channel->nan_report == NULL) {
        return nccl_launch_check_cuda(launch, dd_cuda_nan_report_create(cuda->nan, &channel->nan_report),
                                      "cuMemHostAlloc");
    }
    dd_cuda_ptr report = (dd_cuda_ptr)(uintptr_t)channel->nan_report;
    return nccl_launch_check_cuda(
        launch, cuda->api.cuMemsetD8Async(report, 0xff, sizeof *channel->nan_report, channel->stream),
        "cuMemsetD8Async");
}

static dd_status
describe_found(const nccl_launch *launch, uint64_t reported)
{
    nan_location location = NAN_FIRST;
    const dd_block *block;
    for (uint64_t number = 0; next_input(launch, &location, &block); number++) {
        if (number == nan_number(reported)) {
            break;
        }
    }
    return describe_nan(launch->call->label, &location, nan_index(reported), launch->err);
}

/* Enqueue the kernels, wait for the stream, and read the report. */
static dd_status
check_on_device(nccl_launch *launch)
{
    dd_wait wait = dd_wait_at_most(launch->wait, launch->work->timeout_ns);
    dd_status status = reset_report(launch);
    if (status == DD_OK) {
        status = enqueue_kernels(launch, 0, launch->channel->nan_report);
    }
    if (status == DD_OK) {
        status = wait_for_stream(launch, &wait);
    }
    if (status != DD_OK) {
        return status;
    }
    uint64_t reported = atomic_load_explicit(launch->channel->nan_report, memory_order_acquire);
    return reported == DD_CUDA_NAN_NONE ? DD_OK : describe_found(launch, reported);
}

/* ---- search by the host */

/* Return the index of the first NaN among n little-endian floats; n if there is none. */
static size_t
find_nan(const nan_format *format, const char *data, size_t n)
{
    uint64_t magnitude = UINT64_MAX >> (65 - 8 * format->width);
    for (size_t i = 0; i < n; i++) {
        uint64_t bits = 0;
        memcpy(&bits, data + i * format->width, format->width);
        if ((bits & magnitude) >= format->limit) {
            return i;
        }
    }
    return n;
}

static dd_status
nan_check_block(nccl_launch *launch, const dd_block *block, const nan_location *location, const dd_wait *wait)
{
    const dd_cuda_api *api = &launch->group->cuda->api;
    nccl_device *device = launch->channel->device;
    const unsigned width = location->format.width;
    for (size_t at = 0; at < block->nbytes; at += PIECE_NBYTES) {
        size_t nbytes = block->nbytes - at < PIECE_NBYTES ? block->nbytes - at : PIECE_NBYTES;
        dd_cuda_ptr src = (dd_cuda_ptr)(uintptr_t)block->data + at;
        dd_status status = nccl_launch_check_cuda(
            launch, api->cuMemcpyDtoHAsync(device->host, src, nbytes, launch->channel->stream),
            "cuMemcpyDtoHAsync");
        if (status == DD_OK) {
            status = wait_for_stream(launch, wait);
        }
        if (status != DD_OK) {
            return status;
        }
        size_t n = nbytes / width;
        size_t found = find_nan(&location->format, device->host, n);
        if (found < n) {
            return describe_nan(launch->call->label, location, at / width + found, launch->err);
        }
    }
    return DD_OK;
}

static dd_status
check_on_host(nccl_launch *launch)
{
    nccl_device *device = launch->channel->device;
    const dd_cuda *cuda = launch->group->cuda;
    dd_status status = DD_OK;
    if (device->host == NULL) {
        status = dd_cuda_check(
            cuda, cuda->api.cuMemHostAlloc(&device->host, PIECE_NBYTES, DD_CUDA_MEMHOSTALLOC_PORTABLE),
            launch->err, "cuMemHostAlloc of %zu bytes", PIECE_NBYTES);
    }
    dd_wait wait = dd_wait_at_most(launch->wait, launch->work->timeout_ns);
    nan_location location = NAN_FIRST;
    const dd_block *block;
    while (status == DD_OK && next_input(launch, &location, &block)) {
        status = nan_check_block(launch, block, &location, &wait);
    }
    return status;
}

/* ---- calls in a graph capture */

static size_t
count_inputs(const nccl_launch *launch)
{
    nan_location location = NAN_FIRST;
    const dd_block *block;
    size_t n = 0;
    while (next_input(launch, &location, &block)) {
        n++;
    }
    return n;
}

static dd_status
reserve_locked(dd_nccl_group *group, size_t n, dd_error *err)
{
    nccl_nan_captures *captures = &group->nan_captures;
    if (captures->capacity - captures->count >= n) {
        return DD_OK;
    }
    size_t capacity = captures->count + (n > captures->count ? n : captures->count);
    nccl_nan_captured *items = dd_mem_realloc(captures->items, capacity * sizeof *items);
    if (items == NULL) {
        return dd_error_no_memory(err, capacity * sizeof *items);
    }
    captures->items = items;
    captures->capacity = capacity;
    return DD_OK;
}

/* Store the call's inputs in the group, to describe a NaN later. Set *first to the first index. */
static dd_status
save_inputs(nccl_launch *launch, uint64_t *first)
{
    dd_nccl_group *group = launch->group;
    size_t n = count_inputs(launch);
    nccl_nan_captured item = {.origin = nccl_work_origin(launch->work), .location = NAN_FIRST};
    item.origin.is_captured = true;
    nccl_work_print(launch->work, item.call);
    item.origin.call_len += 1; /* also counts ": ", which replaces the last space */
    dd_lock_take(&group->lock);
    dd_status status = reserve_locked(group, n, launch->err);
    *first = group->nan_captures.count;
    const dd_block *block;
    while (status == DD_OK && next_input(launch, &item.location, &block)) {
        group->nan_captures.items[group->nan_captures.count++] = item;
    }
    dd_lock_release(&group->lock);
    return status;
}

/* Return the device's report for CUDA graphs; the first captured call creates it. */
static dd_status
take_report(nccl_launch *launch, dd_cuda_nan_report **report)
{
    nccl_device *device = launch->channel->device;
    *report = atomic_load_explicit(&device->nan_report, memory_order_relaxed);
    if (*report != NULL) {
        return DD_OK;
    }
    dd_status status = nccl_launch_check_cuda(
        launch, dd_cuda_nan_report_create(launch->group->cuda->nan, report), "cuMemHostAlloc");
    if (status == DD_OK) {
        atomic_store_explicit(&device->nan_report, *report, memory_order_release);
        atomic_store_explicit(&launch->group->has_nan_graphs, true, memory_order_release);
    }
    return status;
}

static dd_status
capture_kernels(nccl_launch *launch)
{
    uint64_t first;
    dd_cuda_nan_report *report;
    dd_status status = take_report(launch, &report);
    if (status == DD_OK) {
        status = save_inputs(launch, &first);
    }
    return status == DD_OK ? enqueue_kernels(launch, first, report) : status;
}

/* ---- the check, for every call */

static dd_status
check_inputs(nccl_launch *launch)
{
    nan_location location = NAN_FIRST;
    const dd_block *block;
    if (!next_input(launch, &location, &block)) {
        return DD_OK;
    }
    bool has_kernels = dd_cuda_nan_is_ready(launch->group->cuda->nan, launch->channel->device->number);
    if (!launch->is_capturing) {
        return has_kernels ? check_on_device(launch) : check_on_host(launch);
    }
    if (has_kernels) {
        return capture_kernels(launch);
    }
    nccl_nan_missed none = NCCL_NAN_MISSED_NONE;
    (void)atomic_compare_exchange_strong(&launch->group->nan_missed, &none, NCCL_NAN_MISSED_UNREPORTED);
    return DD_OK;
}

dd_status
nccl_check_nan(nccl_launch *launch)
{
    /* Relax the capture mode: allocations and queries here must not invalidate a graph capture. */
    dd_cuda_capture_mode mode = dd_cuda_relax_capture(launch->group->cuda);
    dd_status status = check_inputs(launch);
    dd_cuda_restore_capture(launch->group->cuda, mode);
    return status;
}

/* ---- reports of CUDA graphs */

static uint64_t
reported_by_graphs(dd_nccl_group *group)
{
    if (dd_cuda_is_shut_down(group->cuda)) {
        return DD_CUDA_NAN_NONE; /* the driver has freed the reports */
    }
    for (int number = 0; number < group->cuda->ndevices; number++) {
        nccl_device *device = atomic_load_explicit(&group->devices[number], memory_order_acquire);
        dd_cuda_nan_report *report =
            device != NULL ? atomic_load_explicit(&device->nan_report, memory_order_acquire) : NULL;
        uint64_t reported =
            report != NULL ? atomic_load_explicit(report, memory_order_acquire) : DD_CUDA_NAN_NONE;
        if (reported != DD_CUDA_NAN_NONE) {
            return reported;
        }
    }
    return DD_CUDA_NAN_NONE;
}

void
nccl_nan_poll(dd_nccl_group *group)
{
    if (!atomic_load_explicit(&group->has_nan_graphs, memory_order_acquire) || atomic_load(&group->stop)) {
        return;
    }
    uint64_t reported = reported_by_graphs(group);
    if (reported == DD_CUDA_NAN_NONE) {
        return;
    }
    dd_lock_take(&group->lock);
    nccl_nan_captured found = group->nan_captures.items[nan_number(reported)];
    dd_lock_release(&group->lock);
    dd_error cause;
    (void)describe_nan("in a CUDA graph", &found.location, nan_index(reported), &cause);
    dd_error_prepend(&cause, "%.*s", (int)found.origin.call_len - 2, found.call);
    nccl_group_end(group, &cause, &found.origin, NCCL_END_FAILED);
}
