/* The exports of one version of libnccl. Only this file is compiled for each version, with
 * NCCL_STUB_VERSION. */
#include "nccl_stub.h"

#ifndef NCCL_STUB_VERSION
#error "NCCL_STUB_VERSION is the code of a version, 22703 for 2.27.3"
#endif

const int nccl_stub_version = NCCL_STUB_VERSION;

#define PROTOTYPE(name, since, returns, params) NCCL_EXPORT returns name params;
#define OPTIONAL_PROTOTYPE(name, since, returns, params, capability) NCCL_EXPORT returns name params;
DD_NCCL_REQUIRED(PROTOTYPE)
DD_NCCL_OPTIONAL(OPTIONAL_PROTOTYPE)

/* ---- the library */

dd_nccl_result
ncclGetVersion(int *version)
{
    ENTER("ncclGetVersion");
    if (version == NULL) {
        return DD_NCCL_INVALID_ARGUMENT; /* without a warning */
    }
    *version = NCCL_STUB_VERSION;
    return DD_NCCL_SUCCESS;
}

dd_nccl_result
ncclGetUniqueId(dd_nccl_unique_id *id)
{
    ENTER("ncclGetUniqueId");
    return nccl_unique_id(id);
}

const char *
ncclGetErrorString(dd_nccl_result result)
{
    switch (result) {
    case DD_NCCL_SUCCESS:
        return "no error";
    case DD_NCCL_UNHANDLED_CUDA_ERROR:
        return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case DD_NCCL_SYSTEM_ERROR:
        return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case DD_NCCL_INTERNAL_ERROR:
        return "internal error - please report this issue to the NCCL developers";
    case DD_NCCL_INVALID_ARGUMENT:
        return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case DD_NCCL_INVALID_USAGE:
        return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case DD_NCCL_REMOTE_ERROR:
        return "remote process exited or there was a network error";
    case DD_NCCL_IN_PROGRESS:
        return "NCCL operation in progress";
    case DD_NCCL_TIMEOUT:
        return NCCL_STUB_VERSION >= 23003 ? "timeout" : "unknown result code";
    }
    return "unknown result code";
}

const char *
ncclGetLastError(dd_nccl_comm_handle comm)
{
    (void)comm; /* as in NCCL */
    return nccl_last_error();
}

/* ---- communicators */

dd_nccl_result
ncclCommInitAll(dd_nccl_comm_handle *comms, int ndev, const int *devices)
{
    ENTER("ncclCommInitAll");
    return nccl_init_all(comms, ndev, devices);
}

dd_nccl_result
ncclCommInitRank(dd_nccl_comm_handle *comm, int nranks, dd_nccl_unique_id id, int rank)
{
    ENTER("ncclCommInitRank");
    return nccl_init(comm,
                     &(nccl_init_args){.nranks = nranks, .rank = rank, .device = -1, .ids = &id, .nids = 1});
}

dd_nccl_result
ncclCommInitRankConfig(dd_nccl_comm_handle *comm, int nranks, dd_nccl_unique_id id, int rank,
                       dd_nccl_abi_config *config)
{
    ENTER("ncclCommInitRankConfig");
    return nccl_init(
        comm, &(nccl_init_args){
                  .nranks = nranks, .rank = rank, .device = -1, .ids = &id, .nids = 1, .config = config});
}

dd_nccl_result
ncclCommSplit(dd_nccl_comm_handle comm, int color, int key, dd_nccl_comm_handle *newcomm,
              dd_nccl_abi_config *config)
{
    ENTER("ncclCommSplit");
    return nccl_split(comm, color, key, newcomm, config);
}

dd_nccl_result
ncclCommFinalize(dd_nccl_comm_handle comm)
{
    ENTER("ncclCommFinalize");
    return nccl_finalize(comm);
}

dd_nccl_result
ncclCommDestroy(dd_nccl_comm_handle comm)
{
    ENTER("ncclCommDestroy");
    return nccl_destroy(comm);
}

dd_nccl_result
ncclCommAbort(dd_nccl_comm_handle comm)
{
    ENTER("ncclCommAbort");
    return nccl_abort(comm);
}

dd_nccl_result
ncclCommGetAsyncError(dd_nccl_comm_handle comm, dd_nccl_result *result)
{
    ENTER("ncclCommGetAsyncError");
    return nccl_async_error(comm, result);
}

dd_nccl_result
ncclCommCount(const dd_nccl_comm_handle comm, int *count)
{
    ENTER("ncclCommCount");
    return nccl_comm_info("CommCount", comm, NCCL_INFO_COUNT, count);
}

dd_nccl_result
ncclCommCuDevice(const dd_nccl_comm_handle comm, int *device)
{
    ENTER("ncclCommCuDevice");
    return nccl_comm_info("CommCuDevice", comm, NCCL_INFO_DEVICE, device);
}

dd_nccl_result
ncclCommUserRank(const dd_nccl_comm_handle comm, int *rank)
{
    ENTER("ncclCommUserRank");
    return nccl_comm_info("CommUserRank", comm, NCCL_INFO_RANK, rank);
}

dd_nccl_result
ncclRedOpCreatePreMulSum(dd_nccl_redop *op, void *scalar, dd_nccl_dtype dtype,
                         dd_nccl_scalar_residence residence, dd_nccl_comm_handle comm)
{
    ENTER("ncclRedOpCreatePreMulSum");
    return nccl_redop_create(op, scalar, dtype, residence, comm);
}

dd_nccl_result
ncclRedOpDestroy(dd_nccl_redop op, dd_nccl_comm_handle comm)
{
    ENTER("ncclRedOpDestroy");
    return nccl_redop_destroy(op, comm);
}

dd_nccl_result
ncclGroupStart(void)
{
    ENTER("ncclGroupStart");
    nccl_group_start();
    return DD_NCCL_SUCCESS;
}

/* A fault fails the group, but the group still ends. */
dd_nccl_result
ncclGroupEnd(void)
{
    static stub_site site = {.name = "ncclGroupEnd"};
    dd_nccl_result fault = nccl_enter(&site);
    if (fault != DD_NCCL_SUCCESS) {
        (void)nccl_group_fail(fault);
    }
    return nccl_group_end();
}

/* ---- operations, each with its variant that takes a configuration in versions that have it */

/* The members that all operations share, from parameters of these names. */
#define OP(function, op_kind, ...) \
    (&(nccl_op){                   \
        .name = function, .kind = (op_kind), .send = send, .dtype = dtype, .stream = stream, __VA_ARGS__})

#define DO(function, kind, ...)                                \
    do {                                                       \
        ENTER_OPERATION(function);                             \
        return nccl_do(OP(function, kind, __VA_ARGS__), comm); \
    } while (0)

#define DO_CONFIG(function, kind, ...)                                                   \
    do {                                                                                 \
        ENTER_OPERATION(function);                                                       \
        dd_nccl_result checked = nccl_coll_config_check(config);                         \
        dd_cuda_event started = nccl_coll_config_event(config);                          \
        return checked != DD_NCCL_SUCCESS                                                \
                   ? nccl_group_fail(checked)                                            \
                   : nccl_do(OP(function, kind, .started = started, __VA_ARGS__), comm); \
    } while (0)

dd_nccl_result
ncclReduce(const void *send, void *recv, size_t count, dd_nccl_dtype dtype, dd_nccl_redop op, int root,
           dd_nccl_comm_handle comm, dd_cuda_stream stream)
{
    DO("ncclReduce", NCCL_REDUCE, .recv = recv, .count = count, .redop = op, .peer = root);
}

dd_nccl_result
ncclBroadcast(const void *send, void *recv, size_t count, dd_nccl_dtype dtype, int root,
              dd_nccl_comm_handle comm, dd_cuda_stream stream)
{
    DO("ncclBroadcast", NCCL_BROADCAST, .recv = recv, .count = count, .peer = root);
}

dd_nccl_result
ncclAllReduce(const void *send, void *recv, size_t count, dd_nccl_dtype dtype, dd_nccl_redop op,
              dd_nccl_comm_handle comm, dd_cuda_stream stream)
{
    DO("ncclAllReduce", NCCL_ALL_REDUCE, .recv = recv, .count = count, .redop = op);
}

dd_nccl_result
ncclReduceScatter(const void *send, void *recv, size_t recvcount, dd_nccl_dtype dtype, dd_nccl_redop op,
                  dd_nccl_comm_handle comm, dd_cuda_stream stream)
{
    DO("ncclReduceScatter", NCCL_REDUCE_SCATTER, .recv = recv, .count = recvcount, .redop = op);
}

dd_nccl_result
ncclAllGather(const void *send, void *recv, size_t sendcount, dd_nccl_dtype dtype, dd_nccl_comm_handle comm,
              dd_cuda_stream stream)
{
    DO("ncclAllGather", NCCL_ALL_GATHER, .recv = recv, .count = sendcount);
}

dd_nccl_result
ncclSend(const void *send, size_t count, dd_nccl_dtype dtype, int peer, dd_nccl_comm_handle comm,
         dd_cuda_stream stream)
{
    DO("ncclSend", NCCL_SEND, .count = count, .peer = peer);
}

dd_nccl_result
ncclRecv(void *recv, size_t count, dd_nccl_dtype dtype, int peer, dd_nccl_comm_handle comm,
         dd_cuda_stream stream)
{
    const void *send = NULL;
    DO("ncclRecv", NCCL_RECV, .recv = recv, .count = count, .peer = peer);
}

#if NCCL_STUB_VERSION >= 22803
dd_nccl_result
ncclAlltoAll(const void *send, void *recv, size_t count, dd_nccl_dtype dtype, dd_nccl_comm_handle comm,
             dd_cuda_stream stream)
{
    DO("ncclAlltoAll", NCCL_ALL_TO_ALL, .recv = recv, .count = count);
}

dd_nccl_result
ncclGather(const void *send, void *recv, size_t count, dd_nccl_dtype dtype, int root,
           dd_nccl_comm_handle comm, dd_cuda_stream stream)
{
    DO("ncclGather", NCCL_GATHER, .recv = recv, .count = count, .peer = root);
}

dd_nccl_result
ncclScatter(const void *send, void *recv, size_t count, dd_nccl_dtype dtype, int root,
            dd_nccl_comm_handle comm, dd_cuda_stream stream)
{
    DO("ncclScatter", NCCL_SCATTER, .recv = recv, .count = count, .peer = root);
}
#endif

#if NCCL_STUB_VERSION >= 23102
dd_nccl_result
ncclReduceConfig(const void *send, void *recv, size_t count, dd_nccl_dtype dtype, dd_nccl_redop op, int root,
                 dd_nccl_comm_handle comm, dd_cuda_stream stream, const dd_nccl_abi_coll_config *config)
{
    DO_CONFIG("ncclReduceConfig", NCCL_REDUCE, .recv = recv, .count = count, .redop = op, .peer = root);
}

dd_nccl_result
ncclBroadcastConfig(const void *send, void *recv, size_t count, dd_nccl_dtype dtype, int root,
                    dd_nccl_comm_handle comm, dd_cuda_stream stream, const dd_nccl_abi_coll_config *config)
{
    DO_CONFIG("ncclBroadcastConfig", NCCL_BROADCAST, .recv = recv, .count = count, .peer = root);
}

dd_nccl_result
ncclAllReduceConfig(const void *send, void *recv, size_t count, dd_nccl_dtype dtype, dd_nccl_redop op,
                    dd_nccl_comm_handle comm, dd_cuda_stream stream, const dd_nccl_abi_coll_config *config)
{
    DO_CONFIG("ncclAllReduceConfig", NCCL_ALL_REDUCE, .recv = recv, .count = count, .redop = op);
}

dd_nccl_result
ncclReduceScatterConfig(const void *send, void *recv, size_t recvcount, dd_nccl_dtype dtype, dd_nccl_redop op,
                        dd_nccl_comm_handle comm, dd_cuda_stream stream,
                        const dd_nccl_abi_coll_config *config)
{
    DO_CONFIG("ncclReduceScatterConfig", NCCL_REDUCE_SCATTER, .recv = recv, .count = recvcount, .redop = op);
}

dd_nccl_result
ncclAllGatherConfig(const void *send, void *recv, size_t sendcount, dd_nccl_dtype dtype,
                    dd_nccl_comm_handle comm, dd_cuda_stream stream, const dd_nccl_abi_coll_config *config)
{
    DO_CONFIG("ncclAllGatherConfig", NCCL_ALL_GATHER, .recv = recv, .count = sendcount);
}

dd_nccl_result
ncclAlltoAllConfig(const void *send, void *recv, size_t count, dd_nccl_dtype dtype, dd_nccl_comm_handle comm,
                   dd_cuda_stream stream, const dd_nccl_abi_coll_config *config)
{
    DO_CONFIG("ncclAlltoAllConfig", NCCL_ALL_TO_ALL, .recv = recv, .count = count);
}

dd_nccl_result
ncclGatherConfig(const void *send, void *recv, size_t count, dd_nccl_dtype dtype, int root,
                 dd_nccl_comm_handle comm, dd_cuda_stream stream, const dd_nccl_abi_coll_config *config)
{
    DO_CONFIG("ncclGatherConfig", NCCL_GATHER, .recv = recv, .count = count, .peer = root);
}

dd_nccl_result
ncclScatterConfig(const void *send, void *recv, size_t count, dd_nccl_dtype dtype, int root,
                  dd_nccl_comm_handle comm, dd_cuda_stream stream, const dd_nccl_abi_coll_config *config)
{
    DO_CONFIG("ncclScatterConfig", NCCL_SCATTER, .recv = recv, .count = count, .peer = root);
}
#endif

/* ---- functions of newer versions */

#if NCCL_STUB_VERSION >= 21901
dd_nccl_result
ncclMemAlloc(void **data, size_t nbytes)
{
    ENTER("ncclMemAlloc");
    return nccl_mem_alloc(data, nbytes);
}

dd_nccl_result
ncclMemFree(void *data)
{
    ENTER("ncclMemFree");
    return nccl_mem_free(data);
}

dd_nccl_result
ncclCommRegister(const dd_nccl_comm_handle comm, void *data, size_t nbytes, void **handle)
{
    ENTER("ncclCommRegister");
    return nccl_register(comm, data, nbytes, handle);
}

dd_nccl_result
ncclCommDeregister(const dd_nccl_comm_handle comm, void *handle)
{
    ENTER("ncclCommDeregister");
    return nccl_deregister(comm, handle);
}
#endif

#if NCCL_STUB_VERSION >= 22203
dd_nccl_result
ncclGroupSimulateEnd(dd_nccl_sim_info *info)
{
    static stub_site site = {.name = "ncclGroupSimulateEnd"};
    dd_nccl_result fault = nccl_enter(&site);
    if (fault != DD_NCCL_SUCCESS) {
        (void)nccl_group_fail(fault);
    }
    return nccl_group_simulate_end(info);
}
#endif

#if NCCL_STUB_VERSION >= 22304
dd_nccl_result
ncclCommInitRankScalable(dd_nccl_comm_handle *comm, int nranks, int rank, int nids, dd_nccl_unique_id *ids,
                         dd_nccl_abi_config *config)
{
    ENTER("ncclCommInitRankScalable");
    return nccl_init(
        comm, &(nccl_init_args){
                  .nranks = nranks, .rank = rank, .device = -1, .ids = ids, .nids = nids, .config = config});
}
#endif

#if NCCL_STUB_VERSION >= 22403
void
ncclResetDebugInit(void)
{
    static stub_site site = {.name = "ncclResetDebugInit"};
    (void)nccl_enter(&site);
}
#endif

#if NCCL_STUB_VERSION >= 22703
dd_nccl_result
ncclCommShrink(dd_nccl_comm_handle comm, int *excluded, int nexcluded, dd_nccl_comm_handle *newcomm,
               dd_nccl_abi_config *config, int flags)
{
    ENTER("ncclCommShrink");
    return nccl_shrink(comm,
                       &(nccl_shrink_args){.excluded = excluded,
                                           .nexcluded = nexcluded,
                                           .is_abort = (flags & DD_NCCL_SHRINK_ABORT) != 0,
                                           .config = config},
                       newcomm);
}

dd_nccl_result
ncclCommWindowRegister(dd_nccl_comm_handle comm, void *data, size_t nbytes, dd_nccl_window *window, int flags)
{
    ENTER("ncclCommWindowRegister");
    (void)flags;
    return nccl_window_register(comm, data, nbytes, window);
}

dd_nccl_result
ncclCommWindowDeregister(dd_nccl_comm_handle comm, dd_nccl_window window)
{
    ENTER("ncclCommWindowDeregister");
    return nccl_window_deregister(comm, window);
}
#endif

#if NCCL_STUB_VERSION >= 22807
dd_nccl_result
ncclCommRevoke(dd_nccl_comm_handle comm, int flags)
{
    ENTER("ncclCommRevoke");
    return flags == DD_NCCL_REVOKE_DEFAULT
               ? nccl_revoke(comm)
               : nccl_fail(DD_NCCL_INVALID_ARGUMENT, "ncclCommRevoke: invalid flags %d", flags);
}
#endif

#if NCCL_STUB_VERSION >= 22902
dd_nccl_result
ncclCommGrow(dd_nccl_comm_handle comm, int nranks, const dd_nccl_unique_id *id, int rank,
             dd_nccl_comm_handle *newcomm, dd_nccl_abi_config *config)
{
    ENTER("ncclCommGrow");
    return nccl_grow(
        comm,
        &(nccl_init_args){
            .nranks = nranks, .rank = rank, .device = -1, .ids = id, .nids = 1, .config = config},
        newcomm);
}

dd_nccl_result
ncclCommGetUniqueId(dd_nccl_comm_handle comm, dd_nccl_unique_id *id)
{
    ENTER("ncclCommGetUniqueId");
    return nccl_grow_id(comm, id);
}

dd_nccl_result
ncclPutSignal(const void *data, size_t count, dd_nccl_dtype dtype, int peer, dd_nccl_window window,
              size_t offset, int sigIdx, int ctx, unsigned int flags, dd_nccl_comm_handle comm,
              dd_cuda_stream stream)
{
    ENTER_OPERATION("ncclPutSignal");
    return nccl_do_one_sided(
        &(nccl_op){
            .name = "ncclPutSignal",
            .kind = NCCL_PUT,
            .send = data,
            .count = count,
            .dtype = dtype,
            .peer = peer,
            .offset = offset,
            .signal = sigIdx,
            .stream = stream,
        },
        &(nccl_one_sided){.window = window, .ctx = ctx, .flags = flags}, comm);
}

dd_nccl_result
ncclSignal(int peer, int sigIdx, int ctx, unsigned int flags, dd_nccl_comm_handle comm, dd_cuda_stream stream)
{
    ENTER_OPERATION("ncclSignal");
    return nccl_do_one_sided(
        &(nccl_op){
            .name = "ncclSignal", .kind = NCCL_SIGNAL, .peer = peer, .signal = sigIdx, .stream = stream},
        &(nccl_one_sided){.ctx = ctx, .flags = flags}, comm);
}

dd_nccl_result
ncclWaitSignal(int nwaits, dd_nccl_signal_wait *waits, dd_nccl_comm_handle comm, dd_cuda_stream stream)
{
    ENTER_OPERATION("ncclWaitSignal");
    return nccl_do_one_sided(
        &(nccl_op){.name = "ncclWaitSignal", .kind = NCCL_WAIT_SIGNAL, .nwaits = nwaits, .stream = stream},
        &(nccl_one_sided){.waits = waits}, comm);
}

dd_nccl_result
ncclCommQueryProperties(dd_nccl_comm_handle comm, dd_nccl_abi_properties *properties)
{
    ENTER("ncclCommQueryProperties");
    return nccl_properties(comm, properties);
}

dd_nccl_result
ncclWinGetUserPtr(dd_nccl_comm_handle comm, dd_nccl_window window, void **data)
{
    ENTER("ncclWinGetUserPtr");
    return nccl_window_pointer(comm, window, data);
}
#endif

#if NCCL_STUB_VERSION >= 22907
dd_nccl_result
ncclCommSuspend(dd_nccl_comm_handle comm, int flags)
{
    ENTER("ncclCommSuspend");
    return flags == DD_NCCL_SUSPEND_MEM
               ? nccl_suspend(comm, true)
               : nccl_fail(DD_NCCL_INVALID_ARGUMENT, "ncclCommSuspend: invalid flags %d", flags);
}

dd_nccl_result
ncclCommResume(dd_nccl_comm_handle comm)
{
    ENTER("ncclCommResume");
    return nccl_suspend(comm, false);
}

dd_nccl_result
ncclCommMemStats(dd_nccl_comm_handle comm, dd_nccl_mem_stat stat, uint64_t *value)
{
    ENTER("ncclCommMemStats");
    return nccl_mem_stat(comm, stat, value);
}
#endif

#if NCCL_STUB_VERSION >= 23203
dd_nccl_result
ncclSetEncryption(const dd_nccl_abi_encryption *config)
{
    ENTER("ncclSetEncryption");
    return nccl_set_encryption(config);
}
#endif
