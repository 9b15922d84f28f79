#include "nccl/driver/item.h"

static dd_nccl_result
call_plain(const dd_nccl_api *api, const dd_nccl_item *item, dd_nccl_comm_handle comm, dd_cuda_stream stream)
{
    const void *send = item->send;
    void *recv = item->recv;
    switch (item->kind) {
    case DD_NCCL_ITEM_ALL_REDUCE:
        return api->ncclAllReduce(send, recv, item->count, item->dtype, item->redop, comm, stream);
    case DD_NCCL_ITEM_BROADCAST:
        return api->ncclBroadcast(send, recv, item->count, item->dtype, item->root, comm, stream);
    case DD_NCCL_ITEM_REDUCE:
        return api->ncclReduce(send, recv, item->count, item->dtype, item->redop, item->root, comm, stream);
    case DD_NCCL_ITEM_ALL_GATHER:
        return api->ncclAllGather(send, recv, item->count, item->dtype, comm, stream);
    case DD_NCCL_ITEM_REDUCE_SCATTER:
        return api->ncclReduceScatter(send, recv, item->count, item->dtype, item->redop, comm, stream);
    case DD_NCCL_ITEM_ALL_TO_ALL:
        return api->ncclAlltoAll(send, recv, item->count, item->dtype, comm, stream);
    case DD_NCCL_ITEM_GATHER:
        return api->ncclGather(send, recv, item->count, item->dtype, item->root, comm, stream);
    case DD_NCCL_ITEM_SCATTER:
        return api->ncclScatter(send, recv, item->count, item->dtype, item->root, comm, stream);
    case DD_NCCL_ITEM_SEND:
        return api->ncclSend(send, item->count, item->dtype, item->root, comm, stream);
    case DD_NCCL_ITEM_RECV:
        break;
    }
    return api->ncclRecv(recv, item->count, item->dtype, item->root, comm, stream);
}

static dd_nccl_result
call_configured(const dd_nccl_api *api, const dd_nccl_item *item, dd_nccl_comm_handle comm,
                dd_cuda_stream stream)
{
    const void *send = item->send;
    void *recv = item->recv;
    size_t count = item->count;
    dd_nccl_dtype dtype = item->dtype;
    switch (item->kind) {
    case DD_NCCL_ITEM_ALL_REDUCE:
        return api->ncclAllReduceConfig(send, recv, count, dtype, item->redop, comm, stream, item->config);
    case DD_NCCL_ITEM_BROADCAST:
        return api->ncclBroadcastConfig(send, recv, count, dtype, item->root, comm, stream, item->config);
    case DD_NCCL_ITEM_REDUCE:
        return api->ncclReduceConfig(send, recv, count, dtype, item->redop, item->root, comm, stream,
                                     item->config);
    case DD_NCCL_ITEM_ALL_GATHER:
        return api->ncclAllGatherConfig(send, recv, count, dtype, comm, stream, item->config);
    case DD_NCCL_ITEM_REDUCE_SCATTER:
        return api->ncclReduceScatterConfig(send, recv, count, dtype, item->redop, comm, stream,
                                            item->config);
    case DD_NCCL_ITEM_ALL_TO_ALL:
        return api->ncclAlltoAllConfig(send, recv, count, dtype, comm, stream, item->config);
    case DD_NCCL_ITEM_GATHER:
        return api->ncclGatherConfig(send, recv, count, dtype, item->root, comm, stream, item->config);
    case DD_NCCL_ITEM_SCATTER:
        return api->ncclScatterConfig(send, recv, count, dtype, item->root, comm, stream, item->config);
    case DD_NCCL_ITEM_SEND:
    case DD_NCCL_ITEM_RECV:
        break;
    }
    return call_plain(api, item, comm, stream);
}

dd_nccl_result
dd_nccl_item_call(const dd_nccl_api *api, const dd_nccl_item *item, dd_nccl_comm_handle comm,
                  dd_cuda_stream stream)
{
    return item->config == NULL ? call_plain(api, item, comm, stream)
                                : call_configured(api, item, comm, stream);
}

const char *
dd_nccl_item_function(dd_nccl_item_kind kind)
{
    static const char *const NAMES[] = {
        [DD_NCCL_ITEM_ALL_REDUCE] = "ncclAllReduce",
        [DD_NCCL_ITEM_BROADCAST] = "ncclBroadcast",
        [DD_NCCL_ITEM_REDUCE] = "ncclReduce",
        [DD_NCCL_ITEM_ALL_GATHER] = "ncclAllGather",
        [DD_NCCL_ITEM_REDUCE_SCATTER] = "ncclReduceScatter",
        [DD_NCCL_ITEM_ALL_TO_ALL] = "ncclAlltoAll",
        [DD_NCCL_ITEM_GATHER] = "ncclGather",
        [DD_NCCL_ITEM_SCATTER] = "ncclScatter",
        [DD_NCCL_ITEM_SEND] = "ncclSend",
        [DD_NCCL_ITEM_RECV] = "ncclRecv",
    };
    return NAMES[kind];
}
