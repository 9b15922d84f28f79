/* Conversion of operations into NCCL calls. */
#include "nccl/call/internal.h"

#include <string.h>

dd_status
nccl_launch_copy_bytes(const nccl_launch *launch, void *dst, const void *src, size_t nbytes)
{
    if (nbytes == 0 || dst == src || launch->estimate != NULL) {
        return DD_OK;
    }
    const dd_cuda_api *api = &launch->group->cuda->api;
    return nccl_launch_check_cuda(launch,
                                  api->cuMemcpyAsync((dd_cuda_ptr)(uintptr_t)dst, (dd_cuda_ptr)(uintptr_t)src,
                                                     nbytes, launch->channel->stream),
                                  "cuMemcpyAsync");
}

bool
nccl_are_equal(const dd_block *blocks, int n)
{
    for (int k = 1; k < n; k++) {
        if (blocks[k].nbytes != blocks[0].nbytes) {
            return false;
        }
    }
    return true;
}

/* ---- factors of PREMUL_SUM */

/* Convert the reduction's factor to an element of NCCL's dtype. */
static void
make_scalar(const dd_reduction *reduction, void *out)
{
    float narrow = (float)reduction->factor;
    const void *source = &narrow;
    switch (dd_dtype_size(reduction->dtype)) {
    case 2: {
        dd_reduction round = {.dtype = reduction->dtype, .op = DD_REDOP_SUM};
        dd_reduce(&round, DD_STAGE_LAST, out, &source, 1, 1);
        break;
    }
    default: {
        bool is_double = reduction->dtype == DD_DTYPE_FLOAT64 || reduction->dtype == DD_DTYPE_COMPLEX128;
        memcpy(out, is_double ? (const void *)&reduction->factor : source,
               is_double ? sizeof(double) : sizeof(float));
        break;
    }
    }
}

/* Set NCCL's dtype and operation. For PREMUL_SUM, create an operation; call end_reduction after. */
static dd_status
begin_reduction(nccl_launch *launch, const dd_nccl_op *op, nccl_wire *wire)
{
    dd_status status = nccl_wire_of(launch->group->lib, &op->args.reduction, op->factor, wire, launch->err);
    if (status != DD_OK || !wire->is_premul) {
        return status;
    }
    const dd_nccl_api *api = &launch->group->lib->api;
    double scalar;
    void *factor = &scalar;
    dd_nccl_scalar_residence residence = DD_NCCL_SCALAR_HOST;
    if (op->factor != NULL) {
        /* NCCL only reads the factor, although its prototype lacks const */
        memcpy(&factor, &op->factor, sizeof factor);
        residence = DD_NCCL_SCALAR_DEVICE;
    } else {
        make_scalar(&op->args.reduction, &scalar);
    }
    return nccl_launch_check(
        launch, api->ncclRedOpCreatePreMulSum(&wire->op, factor, wire->dtype, residence, launch->comm),
        "ncclRedOpCreatePreMulSum");
}

static dd_status
end_reduction(nccl_launch *launch, const nccl_wire *wire, dd_status status)
{
    if (!wire->is_premul) {
        return status;
    }
    dd_nccl_result result = launch->group->lib->api.ncclRedOpDestroy(wire->op, launch->comm);
    return status == DD_OK ? nccl_launch_check(launch, result, "ncclRedOpDestroy") : status;
}

/* ---- single NCCL calls. All ranks know the sizes, so all ranks omit empty calls */

static dd_status
post_item(const nccl_launch *launch, const dd_nccl_item *item)
{
    dd_nccl_result result =
        dd_nccl_item_call(&launch->group->lib->api, item, launch->comm, launch->channel->stream);
    return nccl_launch_check(launch, result, dd_nccl_item_function(item->kind));
}

/* Enqueue one NCCL call that moves bytes: item.count is a number of bytes. */
static dd_status
post_bytes(const nccl_launch *launch, const dd_nccl_op *op, dd_nccl_item item)
{
    item.dtype = DD_NCCL_DTYPE_UINT8;
    item.config = op->config;
    return item.count > 0 ? post_item(launch, &item) : DD_OK;
}

/* Enqueue one NCCL call that reduces. item.count is a number of bytes. */
static dd_status
post_reduction(nccl_launch *launch, const dd_nccl_op *op, dd_nccl_item item)
{
    if (item.count == 0) {
        return DD_OK;
    }
    nccl_wire wire;
    dd_status status = begin_reduction(launch, op, &wire);
    if (status != DD_OK) {
        return status;
    }
    item.count /= wire.element;
    item.dtype = wire.dtype;
    item.redop = wire.op;
    item.config = op->config;
    return end_reduction(launch, &wire, post_item(launch, &item));
}

/* ---- collectives made of several NCCL calls */

static dd_status
post_reduce(nccl_launch *launch, const dd_nccl_op *op, const dd_block *input, const dd_block *output,
            int root)
{
    return post_reduction(launch, op,
                          (dd_nccl_item){.kind = DD_NCCL_ITEM_REDUCE,
                                         .send = input->data,
                                         .recv = root == launch->group->rank ? output->data : NULL,
                                         .count = input->nbytes,
                                         .root = root});
}

static dd_status
reduce_scatter_grouped(nccl_launch *launch, const dd_nccl_op *op)
{
    dd_status status = DD_OK;
    for (int root = 0; root < launch->group->size && status == DD_OK; root++) {
        status = post_reduce(launch, op, &op->args.inputs[root], op->args.outputs, root);
    }
    return status;
}

static dd_status
post_barrier(const nccl_launch *launch)
{
    void *data = (void *)(uintptr_t)launch->channel->device->barrier;
    return post_item(launch, &(dd_nccl_item){.kind = DD_NCCL_ITEM_ALL_REDUCE,
                                             .send = data,
                                             .recv = data,
                                             .count = 1,
                                             .dtype = DD_NCCL_DTYPE_UINT8,
                                             .redop = DD_NCCL_MAX});
}

/* Broadcast the root's input to `output` on every rank. */
static dd_status
post_broadcast(const nccl_launch *launch, const dd_nccl_op *op, const dd_block *output, int root)
{
    bool is_root = root == launch->group->rank;
    return post_bytes(launch, op,
                      (dd_nccl_item){.kind = DD_NCCL_ITEM_BROADCAST,
                                     .send = is_root ? op->args.inputs[0].data : output->data,
                                     .recv = output->data,
                                     .count = output->nbytes,
                                     .root = root});
}

static dd_status
all_gather_grouped(nccl_launch *launch, const dd_nccl_op *op)
{
    dd_status status = DD_OK;
    for (int root = 0; root < launch->group->size && status == DD_OK; root++) {
        status = post_broadcast(launch, op, &op->args.outputs[root], root);
    }
    return status;
}

/* Convert a rank of the group into a rank of the channel's communicator. */
static int
peer_in_comm(const nccl_launch *launch, int peer)
{
    return launch->channel->peer == NCCL_ALL_RANKS ? peer : peer > launch->group->rank;
}

static dd_status
post_send(const nccl_launch *launch, const dd_nccl_op *op, const dd_block *block, int peer)
{
    return post_bytes(launch, op,
                      (dd_nccl_item){.kind = DD_NCCL_ITEM_SEND,
                                     .send = block->data,
                                     .count = block->nbytes,
                                     .root = peer_in_comm(launch, peer)});
}

static dd_status
recv_block(const nccl_launch *launch, const dd_nccl_op *op, const dd_block *block, int peer)
{
    return post_bytes(launch, op,
                      (dd_nccl_item){.kind = DD_NCCL_ITEM_RECV,
                                     .recv = block->data,
                                     .count = block->nbytes,
                                     .root = peer_in_comm(launch, peer)});
}

/* Send to and receive from all other ranks. `to` or `from` is NULL to omit that direction. */
static dd_status
post_pairwise(nccl_launch *launch, const dd_nccl_op *op, const dd_block *to, const dd_block *from)
{
    int rank = launch->group->rank;
    dd_status status = DD_OK;
    for (int k = 0; k < launch->group->size && status == DD_OK; k++) {
        if (k != rank && to != NULL) {
            status = post_send(launch, op, &to[k], k);
        }
        if (k != rank && from != NULL && status == DD_OK) {
            status = recv_block(launch, op, &from[k], k);
        }
    }
    return status;
}

static dd_status
all_to_all_grouped(nccl_launch *launch, const dd_nccl_op *op)
{
    const dd_block *own_to = &op->args.inputs[launch->group->rank];
    dd_status status = nccl_launch_copy_bytes(launch, op->args.outputs[launch->group->rank].data,
                                              own_to->data, own_to->nbytes);
    return status == DD_OK ? post_pairwise(launch, op, op->args.inputs, op->args.outputs) : status;
}

static dd_status
gather_grouped(nccl_launch *launch, const dd_nccl_op *op)
{
    const dd_block *input = &op->args.inputs[0];
    if (op->args.root != launch->group->rank) {
        return post_send(launch, op, input, op->args.root);
    }
    dd_status status =
        nccl_launch_copy_bytes(launch, op->args.outputs[op->args.root].data, input->data, input->nbytes);
    return status == DD_OK ? post_pairwise(launch, op, NULL, op->args.outputs) : status;
}

static dd_status
scatter_grouped(nccl_launch *launch, const dd_nccl_op *op)
{
    const dd_block *output = &op->args.outputs[0];
    if (op->args.root != launch->group->rank) {
        return recv_block(launch, op, output, op->args.root);
    }
    dd_status status =
        nccl_launch_copy_bytes(launch, output->data, op->args.inputs[op->args.root].data, output->nbytes);
    return status == DD_OK ? post_pairwise(launch, op, op->args.inputs, NULL) : status;
}

/* ---- the NCCL calls of each collective */

/* Condition for using NCCL's own call for a collective. All ranks must decide the same. */
typedef enum native_when {
    NATIVE_ALWAYS,
    NATIVE_IF_OUTPUTS_ARE_EQUAL,
    NATIVE_IF_INPUTS_ARE_EQUAL,
    /* if is_flat is set and NCCL has the call: ranks have compared their settings and versions */
    NATIVE_IF_FLAT,
} native_when;

typedef struct launch_row {
    dd_nccl_item_kind item; /* NCCL's own call for the collective */
    bool counts_output;     /* the call's count is the size of the output, not of the input */
    native_when when;
    dd_nccl_capability capability; /* NCCL function that NATIVE_IF_FLAT needs */
    /* Several calls in an NCCL group, used if NCCL's own call cannot be used. */
    dd_status (*grouped)(nccl_launch *launch, const dd_nccl_op *op);
    bool has_messages; /* `grouped` consists of sends and receives */
} launch_row;

static const launch_row colls[] = {
    [DD_COLL_BROADCAST] = {DD_NCCL_ITEM_BROADCAST, .counts_output = true},
    [DD_COLL_REDUCE] = {.item = DD_NCCL_ITEM_REDUCE},
    [DD_COLL_ALL_REDUCE] = {.item = DD_NCCL_ITEM_ALL_REDUCE},
    [DD_COLL_GATHER] = {DD_NCCL_ITEM_GATHER, false, NATIVE_IF_FLAT, DD_NCCL_CAN_GATHER, gather_grouped, true},
    [DD_COLL_SCATTER] = {DD_NCCL_ITEM_SCATTER, true, NATIVE_IF_FLAT, DD_NCCL_CAN_SCATTER, scatter_grouped,
                         true},
    [DD_COLL_ALL_GATHER] = {DD_NCCL_ITEM_ALL_GATHER, .when = NATIVE_IF_OUTPUTS_ARE_EQUAL,
                            .grouped = all_gather_grouped},
    [DD_COLL_REDUCE_SCATTER] = {DD_NCCL_ITEM_REDUCE_SCATTER, true, NATIVE_IF_INPUTS_ARE_EQUAL,
                                .grouped = reduce_scatter_grouped},
    [DD_COLL_ALL_TO_ALL] = {DD_NCCL_ITEM_ALL_TO_ALL, false, NATIVE_IF_FLAT, DD_NCCL_CAN_ALL_TO_ALL,
                            all_to_all_grouped, true},
};
DD_COLL_CHECK_COMMON_TABLE(colls);

static bool
is_native(const dd_nccl_group *group, const dd_nccl_op *op)
{
    if (op->kind != DD_NCCL_OP_COLL) {
        return true;
    }
    const launch_row *row = &colls[op->args.coll];
    switch (row->when) {
    case NATIVE_ALWAYS:
        break;
    case NATIVE_IF_OUTPUTS_ARE_EQUAL:
        return nccl_are_equal(op->args.outputs, group->size);
    case NATIVE_IF_INPUTS_ARE_EQUAL:
        return nccl_are_equal(op->args.inputs, group->size);
    case NATIVE_IF_FLAT:
        return op->is_flat && !group->options.has_grouped_messages &&
               dd_nccl_has(group->lib, row->capability);
    }
    return true;
}

bool
nccl_may_have_messages(const dd_nccl_op *op)
{
    return op->kind != DD_NCCL_OP_COLL || colls[op->args.coll].has_messages;
}

bool
nccl_is_made_of_messages(const dd_nccl_group *group, const dd_nccl_op *op)
{
    return nccl_may_have_messages(op) && (op->kind != DD_NCCL_OP_COLL || !is_native(group, op));
}

/* Use NCCL's own call for a collective, with `staged` instead of its blocks if it is not NULL. */
static dd_status
post_native(nccl_launch *launch, const dd_nccl_op *op, void *staged)
{
    const launch_row *row = &colls[op->args.coll];
    const dd_coll_args *args = &op->args;
    int size = launch->group->size;
    bool is_root = args->root == launch->group->rank;
    bool has_input = dd_coll_ninputs(args->coll, is_root, size) > 0;
    bool has_output = dd_coll_noutputs(args->coll, is_root, size) > 0;
    dd_block input = has_input ? args->inputs[0] : (dd_block){.data = NULL};
    dd_block output = has_output ? args->outputs[0] : (dd_block){.data = NULL};
    dd_nccl_item item = {.kind = row->item,
                         .send = has_input ? input.data : output.data,
                         .recv = output.data,
                         .count = row->counts_output ? output.nbytes : input.nbytes,
                         .root = args->root};
    if (staged != NULL && row->counts_output) {
        item.send = staged;
    } else if (staged != NULL) {
        item.recv = staged;
    }
    return dd_coll_is_folding(args->coll) ? post_reduction(launch, op, item) : post_bytes(launch, op, item);
}

static dd_status
post_coll(nccl_launch *launch, const dd_nccl_op *op, void *staged)
{
    if (op->args.coll == DD_COLL_BARRIER) {
        return post_barrier(launch);
    }
    return is_native(launch->group, op) ? post_native(launch, op, staged)
                                        : colls[op->args.coll].grouped(launch, op);
}

static dd_status
post_op(nccl_launch *launch, size_t i)
{
    const dd_nccl_op *op = &launch->call->ops[i];
    if (op->kind == DD_NCCL_OP_SEND) {
        return post_send(launch, op, &op->block, op->peer);
    }
    if (op->kind == DD_NCCL_OP_RECV) {
        return recv_block(launch, op, &op->block, op->peer);
    }
    if (nccl_is_one_sided(op)) {
        return nccl_window_post(launch, op);
    }
    return post_coll(launch, op, launch->staged != NULL ? launch->staged[i] : NULL);
}

/* End the thread's NCCL group without executing it, and store the estimated time. */
static dd_nccl_result
end_estimate(const nccl_launch *launch)
{
    const dd_nccl_lib *lib = launch->group->lib;
    int version = lib->version < DD_NCCL_VERSION_KNOWN ? lib->version : DD_NCCL_VERSION_KNOWN;
    dd_nccl_sim_info info = {.size = sizeof info,
                             .magic = DD_NCCL_SIM_MAGIC,
                             .version = (unsigned)version,
                             .estimatedTime = DD_NCCL_NO_ESTIMATE};
    dd_nccl_result result = lib->api.ncclGroupSimulateEnd(&info);
    *launch->estimate = info.estimatedTime;
    return result;
}

/* Call NCCL for all operations. Use an NCCL group only if it is needed, because it costs time. */
static dd_status
post_ops(nccl_launch *launch)
{
    const dd_nccl_api *api = &launch->group->lib->api;
    bool is_group = launch->call->nops != 1 || !is_native(launch->group, &launch->call->ops[0]) ||
                    launch->estimate != NULL;
    dd_status status = is_group ? nccl_launch_check(launch, api->ncclGroupStart(), "ncclGroupStart") : DD_OK;
    if (status != DD_OK) {
        return status;
    }
    for (size_t i = 0; i < launch->call->nops && status == DD_OK; i++) {
        status = post_op(launch, i);
    }
    /* The NCCL group must end even after a failure. The first error is returned. */
    if (is_group && launch->estimate != NULL) {
        dd_nccl_result result = end_estimate(launch);
        status = status == DD_OK ? nccl_launch_check(launch, result, "ncclGroupSimulateEnd") : status;
    } else if (is_group) {
        dd_nccl_result result = api->ncclGroupEnd();
        status = status == DD_OK ? nccl_launch_check(launch, result, "ncclGroupEnd") : status;
    }
    return status;
}

dd_status
nccl_launch_post(nccl_launch *launch)
{
    dd_nccl_comm *comm = atomic_load_explicit(&launch->channel->comm, memory_order_acquire);
    if (launch->call->nops == 0) {
        return DD_OK;
    }
    dd_status status =
        dd_nccl_comm_enter(comm, &launch->group->stop, launch->wait, &launch->comm, launch->err);
    if (status != DD_OK) {
        return status;
    }
    launch->is_posted = launch->estimate == NULL;
    status = nccl_may_connect(launch) ? nccl_post_on_thread(launch, post_ops) : post_ops(launch);
    if (status == DD_OK && !launch->channel->is_blocking) {
        dd_wait wait = dd_wait_at_most(launch->wait, launch->work->timeout_ns);
        status = dd_nccl_comm_wait_ready(comm, launch->call->label, &launch->group->stop, &wait, launch->err);
    }
    dd_nccl_comm_leave(comm);
    return status;
}
