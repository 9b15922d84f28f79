/* Starting, polling and cancelling collectives as UCC calls. */
#include "ucc/ucc_internal.h"

/* The state of one collective in progress, stored in dd_carried.state. */
typedef struct ucc_call {
    dd_ucc_request *request;
    dd_coll coll; /* the collective, for error messages */
} ucc_call;

_Static_assert(sizeof(ucc_call) <= sizeof((dd_carried){0}.state), "a carried operation has room for it");

static ucc_call *
call_of(dd_carried *carried)
{
    return (ucc_call *)(void *)carried->state;
}

typedef struct ucc_type {
    bool is_known;
    int number; /* UCC's number of the data type */
} ucc_type;

static const ucc_type TYPES[DD_DTYPE_COUNT] = {
    [DD_DTYPE_INT8] = {true, 0},     [DD_DTYPE_INT16] = {true, 1},      [DD_DTYPE_INT32] = {true, 2},
    [DD_DTYPE_INT64] = {true, 3},    [DD_DTYPE_UINT8] = {true, 5},      [DD_DTYPE_UINT16] = {true, 6},
    [DD_DTYPE_UINT32] = {true, 7},   [DD_DTYPE_UINT64] = {true, 8},     [DD_DTYPE_FLOAT32] = {true, 11},
    [DD_DTYPE_FLOAT64] = {true, 12}, [DD_DTYPE_COMPLEX64] = {true, 15}, [DD_DTYPE_COMPLEX128] = {true, 16},
};

typedef struct ucc_operation {
    bool is_known;
    dd_ucc_op ucc_op;
} ucc_operation;

static const ucc_operation OPERATIONS[DD_REDOP_COUNT] = {
    [DD_REDOP_SUM] = {true, DD_UCC_SUM},   [DD_REDOP_PRODUCT] = {true, DD_UCC_PROD},
    [DD_REDOP_MIN] = {true, DD_UCC_MIN},   [DD_REDOP_MAX] = {true, DD_UCC_MAX},
    [DD_REDOP_BAND] = {true, DD_UCC_BAND}, [DD_REDOP_BOR] = {true, DD_UCC_BOR},
    [DD_REDOP_BXOR] = {true, DD_UCC_BXOR},
};

/* Return UCC's collective for a call. Gather, scatter and all_to_all use the variant for blocks of
 * different sizes, since each rank knows only the sizes of its own blocks. */
static dd_ucc_coll_type
type_of(const dd_carried_call *call)
{
    switch (call->coll) {
    case DD_COLL_BROADCAST:
        return DD_UCC_BCAST;
    case DD_COLL_REDUCE:
        return DD_UCC_REDUCE;
    case DD_COLL_ALL_REDUCE:
        return DD_UCC_ALLREDUCE;
    case DD_COLL_GATHER:
        return DD_UCC_GATHERV;
    case DD_COLL_SCATTER:
        return DD_UCC_SCATTERV;
    case DD_COLL_ALL_GATHER:
        return call->is_even ? DD_UCC_ALLGATHER : DD_UCC_ALLGATHERV;
    case DD_COLL_REDUCE_SCATTER:
        return call->is_even ? DD_UCC_REDUCE_SCATTER : DD_UCC_REDUCE_SCATTERV;
    case DD_COLL_ALL_TO_ALL:
        return DD_UCC_ALLTOALLV;
    case DD_COLL_BARRIER:
        DD_COLL_CASES_OWN
        break;
    }
    return DD_UCC_BARRIER;
}

/* Return true if UCC can carry out the call. Reductions must be checked here: UCC supports what
 * dd_reduce_is_supported accepts, but would reject anything else only while it reduces. */
static bool
has(const dd_carrier *carrier, const dd_carried_call *call)
{
    const dd_ucc_carrier *self = (const dd_ucc_carrier *)carrier;
    bool can_fold = !dd_coll_is_folding(call->coll) ||
                    (OPERATIONS[call->op].is_known && dd_reduce_is_supported(call->dtype, call->op) &&
                     !dd_carried_needs_nan(call));
    return can_fold && TYPES[call->dtype].is_known && (self->lib->coll_types & (uint64_t)type_of(call)) != 0;
}

static dd_ucc_buffer_of
plain(const dd_carried_call *call, const void *data, size_t count)
{
    return (dd_ucc_buffer_of){.info = {(void *)(uintptr_t)data, count,
                                       DD_UCC_DATATYPE(TYPES[call->dtype].number), DD_UCC_MEMORY_HOST}};
}

static dd_ucc_buffer_of
blocks(const dd_carried_call *call, const void *data, const size_t *counts, const size_t *offsets)
{
    return (dd_ucc_buffer_of){.info_v = {(void *)(uintptr_t)data, counts, offsets,
                                         DD_UCC_DATATYPE(TYPES[call->dtype].number), DD_UCC_MEMORY_HOST}};
}

/* Set the call's source. For reduce_scatter, UCC takes only the total size of the input blocks. */
static void
describe_inputs(const dd_ucc_carrier *self, const dd_carried_call *call, dd_ucc_coll_args *args)
{
    bool is_total = call->coll == DD_COLL_REDUCE_SCATTER;
    if (call->in_counts != NULL && !is_total) {
        args->src = blocks(call, call->input, call->in_counts, call->in_offsets);
    } else {
        size_t count = is_total ? call->in_offsets[self->nranks] : call->count;
        args->src = plain(call, call->input, count);
    }
}

static void
describe_outputs(const dd_ucc_carrier *self, const dd_carried_call *call, dd_ucc_coll_args *args)
{
    if (args->coll_type == DD_UCC_REDUCE_SCATTERV) {
        args->dst = blocks(call, call->output, call->in_counts, call->in_offsets);
    } else if (args->coll_type == DD_UCC_ALLGATHER) {
        args->dst = plain(call, call->output, call->count * (size_t)self->nranks);
    } else if (call->out_counts != NULL) {
        args->dst = blocks(call, call->output, call->out_counts, call->out_offsets);
    } else {
        args->dst = plain(call, call->output, call->count);
    }
}

static dd_ucc_coll_args
ucc_args_of(const dd_ucc_carrier *self, const dd_carried_call *call)
{
    dd_ucc_coll_args args = {
        .mask = DD_UCC_ARGS_FLAGS,
        .coll_type = type_of(call),
        .flags = DD_UCC_FLAG_COUNT_64BIT | DD_UCC_FLAG_DISPLACEMENTS_64BIT,
        .root = (uint64_t)call->root,
    };
    if (call->coll == DD_COLL_BROADCAST) { /* UCC's broadcast has only one array, the source */
        args.src = plain(call, call->output, call->count);
        return args;
    }
    if (call->coll == DD_COLL_BARRIER) {
        return args;
    }
    if (dd_coll_is_folding(call->coll)) {
        args.op = OPERATIONS[call->op].ucc_op;
    }
    if (call->is_in_place) {
        args.flags |= DD_UCC_FLAG_IN_PLACE;
    }
    describe_inputs(self, call, &args);
    describe_outputs(self, call, &args);
    return args;
}

static dd_status
ucc_post(dd_ucc_carrier *self, const dd_carried_call *call, ucc_call *under_way, dd_error *err)
{
    const dd_ucc_api *api = &self->lib->api;
    const char *name = dd_coll_name(call->coll);
    dd_ucc_coll_args args = ucc_args_of(self, call);
    dd_ucc_status ucc_status = api->ucc_collective_init(&args, &under_way->request, self->team);
    dd_status status = dd_ucc_check(self->lib, ucc_status, err, "ucc_collective_init for %s of %s", name,
                                    dd_dtype_name(call->dtype));
    if (status != DD_OK) {
        return status;
    }
    ucc_status = api->ucc_collective_post(under_way->request);
    status = dd_ucc_check(self->lib, ucc_status, err, "ucc_collective_post for %s of %s", name,
                          dd_dtype_name(call->dtype));
    if (status != DD_OK) {
        (void)api->ucc_collective_finalize(under_way->request);
    }
    return status;
}

static dd_status
ucc_start(dd_carrier *carrier, const dd_carried_call *call, dd_carried *carried, dd_error *err)
{
    ucc_call *under_way = call_of(carried);
    under_way->coll = call->coll;
    return ucc_post((dd_ucc_carrier *)carrier, call, under_way, err);
}

static dd_status
ucc_poll(dd_carrier *carrier, dd_carried *carried, bool *is_done, dd_error *err)
{
    const dd_ucc_carrier *self = (const dd_ucc_carrier *)carrier;
    const dd_ucc_api *api = &self->lib->api;
    ucc_call *call = call_of(carried);
    dd_ucc_status progress = api->ucc_context_progress(self->context);
    dd_ucc_status ucc_status = call->request->status;
    *is_done = ucc_status == DD_UCC_OK;
    if ((int)ucc_status > 0) {
        return dd_ucc_check(self->lib, progress, err, "ucc_context_progress in %s", dd_coll_name(call->coll));
    }
    (void)api->ucc_collective_finalize(call->request);
    return dd_ucc_check(self->lib, ucc_status, err, "UCC's %s", dd_coll_name(call->coll));
}

/* Return true if the collective has ended. Otherwise return false: UCC cannot cancel it. */
static bool
ucc_abandon(dd_carrier *carrier, dd_carried *carried)
{
    dd_ucc_carrier *self = (dd_ucc_carrier *)carrier;
    ucc_call *call = call_of(carried);
    if ((int)call->request->status > 0) {
        self->has_leftover = true;
        return false;
    }
    (void)self->lib->api.ucc_collective_finalize(call->request);
    return true;
}

/* UCC has no messages. torch.distributed emulates messages by broadcasts between two ranks, which
 * cannot receive from any rank or start the receiver first; dldist does not emulate messages. */
const dd_carrier_ops dd_ucc_ops = {
    .has = has,
    .start = ucc_start,
    .poll = ucc_poll,
    .abandon = ucc_abandon,
    .close = dd_ucc_close,
};
