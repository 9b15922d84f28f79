/* A group's MPI communicator: creation, collectives, messages, close. */
#include "core/background_task.h"
#include "core/mem.h"
#include "group/group.h"
#include "mpi/mpi_internal.h"

#include <limits.h>
#include <string.h>

/* The state of one operation in progress, stored in dd_carried.state. */
typedef struct mpi_operation {
    mpi_word request;
} mpi_operation;

_Static_assert(sizeof(mpi_operation) <= sizeof(dd_carried), "an operation has room");

static mpi_operation *
operation_of(dd_carried *carried)
{
    return (mpi_operation *)(void *)carried->state;
}

/* ---- collectives */

static dd_status
mpi_start_call(dd_carrier *base, const dd_carried_call *call, dd_carried *carried, dd_error *err)
{
    mpi_operation *operation = operation_of(carried);
    operation->request = 0;
    return mpi_start((mpi_carrier *)base, call, &operation->request, err);
}

static dd_status
mpi_poll(dd_carrier *base, dd_carried *carried, bool *is_done, dd_error *err)
{
    const mpi_library *library = ((mpi_carrier *)base)->library;
    int flag = 0;
    int code =
        library->api.MPI_Test(&operation_of(carried)->request, &flag, library->constants.status_ignore);
    *is_done = flag != 0;
    return code == DD_MPI_OK ? DD_OK : mpi_check(library, code, "MPI_Test", err);
}

/* Return false: MPI cannot cancel a collective. */
static bool
mpi_abandon(dd_carrier *base, dd_carried *carried)
{
    (void)base;
    (void)carried;
    return false;
}

/* ---- messages */

/* Unit in bytes in which both sides count messages of more than INT_MAX bytes if the library has no
 * 64-bit counts. */
#define LARGE_UNIT ((size_t)8)

typedef struct message_shape {
    mpi_word type;
    size_t count;
    size_t unit;
} message_shape;

static message_shape
shape_of(const mpi_library *library, size_t nbytes)
{
    bool is_wide = !library->has_large && nbytes > INT_MAX && nbytes % LARGE_UNIT == 0;
    size_t unit = is_wide ? LARGE_UNIT : 1;
    mpi_word type =
        is_wide ? library->constants.types[DD_DTYPE_UINT64] : library->constants.types[DD_DTYPE_UINT8];
    return (message_shape){.type = type, .count = nbytes / unit, .unit = unit};
}

static bool
has_tag(const dd_carrier *base, uint64_t tag)
{
    return tag <= ((const mpi_carrier *)base)->library->tag_max;
}

static int
mpi_post_message(const mpi_carrier *carrier, const dd_carried_message *message, const message_shape *shape,
                 mpi_word *request)
{
    const mpi_api *api = &carrier->library->api;
    int rank = message->rank == DD_ANY_RANK ? carrier->library->constants.any_source : message->rank;
    int tag = (int)message->tag;
    if (carrier->library->has_large) {
        int64_t n = (int64_t)shape->count;
        return message->is_send
                   ? api->MPI_Isend_c(message->data, n, shape->type, rank, tag, carrier->comm, request)
                   : api->MPI_Irecv_c(message->data, n, shape->type, rank, tag, carrier->comm, request);
    }
    int n = (int)shape->count;
    return message->is_send
               ? api->MPI_Isend(message->data, n, shape->type, rank, tag, carrier->comm, request)
               : api->MPI_Irecv(message->data, n, shape->type, rank, tag, carrier->comm, request);
}

static dd_status
start_message(dd_carrier *base, const dd_carried_message *message, dd_carried *carried, dd_error *err)
{
    const mpi_carrier *carrier = (const mpi_carrier *)base;
    mpi_operation *operation = operation_of(carried);
    message_shape shape = shape_of(carrier->library, message->nbytes);
    operation->request = 0;
    if (!carrier->library->has_large && shape.count > INT_MAX) {
        return dd_error_set(
            err, DD_NOT_SUPPORTED,
            "a message of %zu bytes needs large counts, which %s lacks; use an MPI 4, such as MPICH 4",
            message->nbytes, carrier->library->version);
    }
    int code = mpi_post_message(carrier, message, &shape, &operation->request);
    return mpi_check(carrier->library, code, message->is_send ? "MPI_Isend" : "MPI_Irecv", err);
}

static dd_status
count_received(const mpi_library *library, const mpi_status *status, dd_carried_message *message,
               dd_error *err)
{
    message_shape shape = shape_of(library, message->nbytes);
    int64_t count = 0;
    int small = 0;
    int code;
    if (library->has_large) {
        code = library->api.MPI_Get_count_c(status, shape.type, &count);
    } else {
        code = library->api.MPI_Get_count(status, shape.type, &small);
        count = small;
    }
    message->source = status->words[library->constants.source_at];
    message->received = count > 0 ? (size_t)count * shape.unit : 0;
    if (code == DD_MPI_OK && count < 0) {
        return dd_error_set(
            err, DD_NOT_SUPPORTED,
            "received a message too large for the counts of %s; use an MPI 4, such as MPICH 4",
            library->version);
    }
    return mpi_check(library, code, "MPI_Get_count", err);
}

static dd_status
fail_message(const mpi_library *library, int code, const dd_carried_message *message, dd_error *err)
{
    int class = 0;
    if (library->api.MPI_Error_class(code, &class) == DD_MPI_OK && class == library->constants.err_truncate) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "message too large: expected at most %zu bytes",
                            message->nbytes);
    }
    return mpi_check(library, code, message->is_send ? "MPI_Isend" : "MPI_Irecv", err);
}

static dd_status
poll_message(dd_carrier *base, dd_carried *carried, dd_carried_message *message, bool *is_done, dd_error *err)
{
    const mpi_library *library = ((mpi_carrier *)base)->library;
    mpi_status status = {{0}};
    int flag = 0;
    int code = library->api.MPI_Test(&operation_of(carried)->request, &flag, &status);
    *is_done = flag != 0;
    if (code != DD_MPI_OK) {
        return fail_message(library, code, message, err);
    }
    if (!flag || message->is_send) {
        return DD_OK;
    }
    return count_received(library, &status, message, err);
}

/* Cancel a message. MPI can always cancel a receive, but may not be able to cancel a send. */
static bool
cancel_message(dd_carrier *base, dd_carried *carried)
{
    const mpi_library *library = ((mpi_carrier *)base)->library;
    int is_ended = 0;
    if (library->api.MPI_Cancel(&operation_of(carried)->request) != DD_MPI_OK) {
        return false;
    }
    int code =
        library->api.MPI_Test(&operation_of(carried)->request, &is_ended, library->constants.status_ignore);
    return code == DD_MPI_OK && is_ended != 0;
}

/* ---- creation and close */

static void
mpi_close(dd_carrier *base, bool is_well)
{
    mpi_carrier *carrier = (mpi_carrier *)base;
    if (is_well && !mpi_is_finalized(carrier->library)) {
        (void)carrier->library->api.MPI_Comm_free(&carrier->comm);
    }
    dd_mem_free(carrier->numbers);
    dd_mem_free(carrier);
}

static const dd_carrier_ops OPS = {
    .has = mpi_has,
    .start = mpi_start_call,
    .poll = mpi_poll,
    .abandon = mpi_abandon,
    .has_tag = has_tag,
    .start_message = start_message,
    .poll_message = poll_message,
    .cancel_message = cancel_message,
    .close = mpi_close,
};

/* A rank's place in MPI_COMM_WORLD, which the group's ranks exchange. */
typedef struct mpi_identity {
    int32_t rank;
    int32_t size;
} mpi_identity;

/* Check that the ranks are different processes of one MPI_COMM_WORLD. All report the same error. */
static dd_status
check_identities(const mpi_library *library, const mpi_identity *all, int nranks, dd_error *err)
{
    for (int rank = 0; rank < nranks; rank++) {
        if (all[rank].size != all[0].size) {
            return dd_error_set(
                err, DD_MISMATCH,
                "rank %d is in a world of %d processes, and rank 0 in one of %d (%s); start all ranks with "
                "one mpirun",
                rank, all[rank].size, all[0].size, library->version);
        }
        for (int other = 0; other < rank; other++) {
            if (all[rank].rank == all[other].rank) {
                return dd_error_set(
                    err, DD_INVALID_ARGUMENT,
                    "ranks %d and %d are both process %d of MPI's world (%s); each rank must be a process "
                    "of its own that mpirun has started",
                    other, rank, all[rank].rank, library->version);
            }
        }
    }
    return DD_OK;
}

/* A call of MPI_Comm_create_group, which blocks until all members have called it, so for ever if a
 * member dies. The call therefore runs on a separate thread. */
typedef struct comm_creation {
    dd_background_task task; /* must be first, for casts */
    const mpi_library *library;
    int *ranks; /* the members' ranks in MPI_COMM_WORLD */
    int nranks;
    int tag;
    mpi_word comm; /* the new communicator; valid if status is DD_OK */
    dd_status status;
    dd_error error;
} comm_creation;

static dd_status
create_comm(comm_creation *creation)
{
    dd_error *err = &creation->error;
    const mpi_library *library = creation->library;
    const mpi_api *api = &library->api;
    mpi_word world = library->constants.comm_world;
    mpi_word all = 0;
    mpi_word members = 0;
    dd_status status = mpi_check(library, api->MPI_Comm_group(world, &all), "MPI_Comm_group", err);
    if (status != DD_OK) {
        return status;
    }
    status = mpi_check(library, api->MPI_Group_incl(all, creation->nranks, creation->ranks, &members),
                       "MPI_Group_incl", err);
    if (status == DD_OK) {
        status =
            mpi_check(library, api->MPI_Comm_create_group(world, members, creation->tag, &creation->comm),
                      "MPI_Comm_create_group", err);
        (void)api->MPI_Group_free(&members);
    }
    (void)api->MPI_Group_free(&all);
    if (status != DD_OK) {
        return status;
    }
    return mpi_check(library, api->MPI_Comm_set_errhandler(creation->comm, library->constants.errors_return),
                     "MPI_Comm_set_errhandler", err);
}

static void
run_creation(dd_background_task *task)
{
    comm_creation *creation = (comm_creation *)task;
    creation->status = create_comm(creation);
}

static void
free_creation(dd_background_task *task)
{
    dd_mem_free(((comm_creation *)task)->ranks);
    dd_mem_free(task);
}

static dd_status
await_creation(comm_creation *creation, mpi_word *comm, const dd_wait *wait, dd_error *err)
{
    dd_status status = dd_background_task_start(&creation->task, "dldist-mpi", err);
    if (status != DD_OK) {
        return status;
    }
    status = dd_background_task_wait(&creation->task, wait, err);
    if (status == DD_OK) {
        *comm = creation->comm;
        status = creation->status == DD_OK ? DD_OK : dd_error_copy(err, &creation->error);
    } else if (status == DD_TIMED_OUT) {
        status = dd_error_set(err, DD_OP_TIMED_OUT,
                              "MPI_Comm_create_group of %d ranks did not return within %.3g s",
                              creation->nranks, dd_wait_elapsed_s(wait));
    }
    dd_background_task_release(&creation->task);
    return status;
}

/* Hash the group's name to a tag: threads may create communicators of the same ranks at once. */
static int
tag_of(dd_group *group)
{
    dd_bytes name = dd_group_name(group);
    unsigned hash = 0;
    for (size_t i = 0; i < name.len; i++) {
        hash = hash * 31 + ((const uint8_t *)name.data)[i];
    }
    return (int)(hash % 32749);
}

static dd_status
make_communicator(mpi_carrier *carrier, dd_group *group, const mpi_identity *all, const dd_wait *wait,
                  dd_error *err)
{
    comm_creation *creation = dd_mem_zalloc(sizeof *creation);
    int *ranks = dd_mem_alloc_array((size_t)carrier->nranks, sizeof *ranks);
    if (creation == NULL || ranks == NULL) {
        dd_mem_free(creation);
        dd_mem_free(ranks);
        return dd_error_no_memory(err, sizeof *creation + (size_t)carrier->nranks * sizeof *ranks);
    }
    for (int rank = 0; rank < carrier->nranks; rank++) {
        ranks[rank] = all[rank].rank;
    }
    creation->task.run = run_creation;
    creation->task.free = free_creation;
    creation->library = carrier->library;
    creation->ranks = ranks;
    creation->nranks = carrier->nranks;
    creation->tag = tag_of(group);
    return await_creation(creation, &carrier->comm, wait, err);
}

static dd_status
join_communicator(mpi_carrier *carrier, dd_group *group, const dd_wait *wait, dd_error *err)
{
    size_t nbytes = (size_t)carrier->nranks * sizeof(mpi_identity);
    mpi_identity *all = dd_mem_zalloc(nbytes);
    if (all == NULL) {
        return dd_error_no_memory(err, nbytes);
    }
    mpi_identity own_identity = {.rank = carrier->library->rank, .size = carrier->library->size};
    dd_status status = dd_group_exchange(group, &own_identity, sizeof own_identity, all, wait, err);
    if (status == DD_OK) {
        status = check_identities(carrier->library, all, carrier->nranks, err);
    }
    if (status == DD_OK) {
        status = make_communicator(carrier, group, all, wait, err);
    }
    dd_mem_free(all);
    return status;
}

dd_status
mpi_make_carrier(dd_carrier_library *base, dd_group *group, dd_carrier **out, const dd_wait *wait,
                 dd_error *err)
{
    mpi_library *library = (mpi_library *)base;
    int nranks = dd_group_size(group);
    mpi_carrier *carrier = dd_mem_zalloc(sizeof *carrier);
    int *numbers = dd_mem_zalloc(4 * (size_t)nranks * sizeof *numbers);
    if (carrier == NULL || numbers == NULL) {
        dd_mem_free(carrier);
        dd_mem_free(numbers);
        return dd_error_no_memory(err, sizeof *carrier + 4 * (size_t)nranks * sizeof *numbers);
    }
    *carrier = (mpi_carrier){
        .base = {.ops = &OPS, .library = base}, .library = library, .nranks = nranks, .numbers = numbers};
    dd_status status = join_communicator(carrier, group, wait, err);
    if (status != DD_OK) {
        mpi_close(&carrier->base, false);
        return status;
    }
    *out = &carrier->base;
    return DD_OK;
}
