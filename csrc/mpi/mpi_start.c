/* Starting collectives as MPI calls. */
#include "mpi/mpi_internal.h"

#include <limits.h>

static size_t
largest_number(const dd_carried_call *call, int nranks)
{
    size_t largest = call->count;
    if (call->in_offsets != NULL && call->in_offsets[nranks] > largest) {
        largest = call->in_offsets[nranks];
    }
    if (call->out_offsets != NULL && call->out_offsets[nranks] > largest) {
        largest = call->out_offsets[nranks];
    }
    return largest;
}

/* Return true if every rank knows the block sizes of all ranks, so that all decide alike. */
static bool
is_known_to_all(const dd_carried_call *call)
{
    return dd_coll_is_array(call->coll) || dd_coll_knows_all_sizes(call->coll);
}

bool
mpi_has(const dd_carrier *base, const dd_carried_call *call)
{
    const mpi_carrier *carrier = (const mpi_carrier *)base;
    return carrier->library->has_large || !is_known_to_all(call) ||
           largest_number(call, carrier->nranks) <= INT_MAX;
}

static dd_status
check_numbers(const mpi_carrier *carrier, const dd_carried_call *call, dd_error *err)
{
    size_t largest = largest_number(call, carrier->nranks);
    if (carrier->library->has_large || largest <= INT_MAX) {
        return DD_OK;
    }
    return dd_error_set(
        err, DD_NOT_SUPPORTED,
        "%s: too many elements for %s: got %zu, expected at most %d; use an MPI 4, such as MPICH 4",
        dd_coll_name(call->coll), carrier->library->version, largest, INT_MAX);
}

static mpi_word
op_of(const mpi_library *library, const dd_carried_call *call)
{
    const mpi_float_ops *float_ops = &library->float_ops;
    bool is_min = call->op == DD_REDOP_MIN;
    if (!dd_carried_needs_nan(call)) {
        return library->constants.ops[call->op];
    }
    if (call->dtype == DD_DTYPE_FLOAT32) {
        return is_min ? float_ops->min32 : float_ops->max32;
    }
    return is_min ? float_ops->min64 : float_ops->max64;
}

static const int *
as_ints(const mpi_carrier *carrier, int row, const size_t *numbers)
{
    int *ints = carrier->numbers + (ptrdiff_t)row * carrier->nranks;
    for (int i = 0; numbers != NULL && i < carrier->nranks; i++) {
        ints[i] = (int)numbers[i];
    }
    return ints;
}

typedef struct mpi_parts {
    mpi_word comm;
    mpi_word type;
    mpi_word op;
    const void *in; /* address of the input, or MPI_IN_PLACE */
    void *out;      /* address of the output, or MPI_IN_PLACE */
} mpi_parts;

static int
start_large(const mpi_carrier *carrier, const dd_carried_call *call, const mpi_parts *p, mpi_word *request)
{
    const mpi_api *api = &carrier->library->api;
    int64_t n = (int64_t)call->count;
    switch (call->coll) {
    case DD_COLL_BARRIER:
        DD_COLL_CASES_OWN
        break;
    case DD_COLL_BROADCAST:
        return api->MPI_Ibcast_c(call->output, n, p->type, call->root, p->comm, request);
    case DD_COLL_REDUCE:
        return api->MPI_Ireduce_c(p->in, p->out, n, p->type, p->op, call->root, p->comm, request);
    case DD_COLL_ALL_REDUCE:
        return api->MPI_Iallreduce_c(p->in, p->out, n, p->type, p->op, p->comm, request);
    case DD_COLL_GATHER:
        return api->MPI_Igatherv_c(p->in, n, p->type, p->out, call->out_counts, call->out_offsets, p->type,
                                   call->root, p->comm, request);
    case DD_COLL_SCATTER:
        return api->MPI_Iscatterv_c(p->in, call->in_counts, call->in_offsets, p->type, p->out, n, p->type,
                                    call->root, p->comm, request);
    case DD_COLL_ALL_GATHER:
        return call->is_even ? api->MPI_Iallgather_c(p->in, n, p->type, p->out, n, p->type, p->comm, request)
                             : api->MPI_Iallgatherv_c(p->in, n, p->type, p->out, call->out_counts,
                                                      call->out_offsets, p->type, p->comm, request);
    case DD_COLL_REDUCE_SCATTER:
        return call->is_even
                   ? api->MPI_Ireduce_scatter_block_c(p->in, p->out, n, p->type, p->op, p->comm, request)
                   : api->MPI_Ireduce_scatter_c(p->in, p->out, call->in_counts, p->type, p->op, p->comm,
                                                request);
    case DD_COLL_ALL_TO_ALL:
        return api->MPI_Ialltoallv_c(p->in, call->in_counts, call->in_offsets, p->type, p->out,
                                     call->out_counts, call->out_offsets, p->type, p->comm, request);
    }
    return api->MPI_Ibarrier(p->comm, request);
}

static int
start_small(const mpi_carrier *carrier, const dd_carried_call *call, const mpi_parts *p, mpi_word *request)
{
    const mpi_api *api = &carrier->library->api;
    int n = (int)call->count;
    const int *in_counts = as_ints(carrier, 0, call->in_counts);
    const int *in_offsets = as_ints(carrier, 1, call->in_offsets);
    const int *out_counts = as_ints(carrier, 2, call->out_counts);
    const int *out_offsets = as_ints(carrier, 3, call->out_offsets);
    switch (call->coll) {
    case DD_COLL_BARRIER:
        DD_COLL_CASES_OWN
        break;
    case DD_COLL_BROADCAST:
        return api->MPI_Ibcast(call->output, n, p->type, call->root, p->comm, request);
    case DD_COLL_REDUCE:
        return api->MPI_Ireduce(p->in, p->out, n, p->type, p->op, call->root, p->comm, request);
    case DD_COLL_ALL_REDUCE:
        return api->MPI_Iallreduce(p->in, p->out, n, p->type, p->op, p->comm, request);
    case DD_COLL_GATHER:
        return api->MPI_Igatherv(p->in, n, p->type, p->out, out_counts, out_offsets, p->type, call->root,
                                 p->comm, request);
    case DD_COLL_SCATTER:
        return api->MPI_Iscatterv(p->in, in_counts, in_offsets, p->type, p->out, n, p->type, call->root,
                                  p->comm, request);
    case DD_COLL_ALL_GATHER:
        return call->is_even ? api->MPI_Iallgather(p->in, n, p->type, p->out, n, p->type, p->comm, request)
                             : api->MPI_Iallgatherv(p->in, n, p->type, p->out, out_counts, out_offsets,
                                                    p->type, p->comm, request);
    case DD_COLL_REDUCE_SCATTER:
        return call->is_even
                   ? api->MPI_Ireduce_scatter_block(p->in, p->out, n, p->type, p->op, p->comm, request)
                   : api->MPI_Ireduce_scatter(p->in, p->out, in_counts, p->type, p->op, p->comm, request);
    case DD_COLL_ALL_TO_ALL:
        return api->MPI_Ialltoallv(p->in, in_counts, in_offsets, p->type, p->out, out_counts, out_offsets,
                                   p->type, p->comm, request);
    }
    return api->MPI_Ibarrier(p->comm, request);
}

/* Convert a call into MPI's arguments. If this rank's block is already where its result belongs,
 * MPI expects MPI_IN_PLACE: as the output on the root of a scatter, otherwise as the input. */
static mpi_parts
take_apart(const mpi_carrier *carrier, const dd_carried_call *call)
{
    const mpi_constants *constants = &carrier->library->constants;
    mpi_parts parts = {
        .comm = carrier->comm,
        .type = constants->types[call->dtype],
        .op = dd_coll_is_folding(call->coll) ? op_of(carrier->library, call) : 0,
        .in = call->input,
        .out = call->output,
    };
    if (call->is_in_place && call->coll == DD_COLL_SCATTER) {
        parts.out = constants->in_place;
    } else if (call->is_in_place) {
        parts.in = constants->in_place;
    }
    return parts;
}

dd_status
mpi_start(mpi_carrier *carrier, const dd_carried_call *call, mpi_word *request, dd_error *err)
{
    dd_status status = check_numbers(carrier, call, err);
    if (status != DD_OK) {
        return status;
    }
    mpi_parts parts = take_apart(carrier, call);
    int code = carrier->library->has_large ? start_large(carrier, call, &parts, request)
                                           : start_small(carrier, call, &parts, request);
    return mpi_check(carrier->library, code, dd_coll_name(call->coll), err);
}
