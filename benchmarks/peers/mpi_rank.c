/* One rank of an MPI library, controlled by benchmarks/collectives.py: mpi_rank SOCKET LIBRARY
 *
 * The library's version string must begin with LIBRARY: wheels in one environment overwrite each
 * other's files. */
#include "rank.h"

#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>

typedef struct mpi_context {
    MPI_Datatype type;
    int count; /* elements of the input, or of one of its parts */
} mpi_context;

static const char *
outcome(int code)
{
    return code == MPI_SUCCESS ? NULL : "MPI reports an error";
}

static const char *
call_all_reduce(rank_task *task)
{
    const mpi_context *mpi = task->context;
    return outcome(MPI_Allreduce(MPI_IN_PLACE, task->input, mpi->count, mpi->type, MPI_SUM, MPI_COMM_WORLD));
}

static const char *
call_broadcast(rank_task *task)
{
    const mpi_context *mpi = task->context;
    return outcome(MPI_Bcast(task->input, mpi->count, mpi->type, 0, MPI_COMM_WORLD));
}

static const char *
call_all_gather(rank_task *task)
{
    const mpi_context *mpi = task->context;
    return outcome(MPI_Allgather(task->input, mpi->count, mpi->type, task->output, mpi->count, mpi->type,
                                 MPI_COMM_WORLD));
}

static const char *
call_reduce_scatter(rank_task *task)
{
    const mpi_context *mpi = task->context;
    return outcome(
        MPI_Reduce_scatter_block(task->input, task->output, mpi->count, mpi->type, MPI_SUM, MPI_COMM_WORLD));
}

static const char *
call_all_to_all(rank_task *task)
{
    const mpi_context *mpi = task->context;
    return outcome(MPI_Alltoall(task->input, mpi->count, mpi->type, task->output, mpi->count, mpi->type,
                                MPI_COMM_WORLD));
}

static const char *
call_barrier(rank_task *task)
{
    (void)task;
    return outcome(MPI_Barrier(MPI_COMM_WORLD));
}

static const char *
call_send(rank_task *task)
{
    const mpi_context *mpi = task->context;
    return outcome(MPI_Send(task->input, mpi->count, mpi->type, 1 - task->rank, 0, MPI_COMM_WORLD));
}

static const char *
call_recv(rank_task *task)
{
    const mpi_context *mpi = task->context;
    return outcome(
        MPI_Recv(task->output, mpi->count, mpi->type, 1 - task->rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
}

static const char *
call_sendrecv(rank_task *task)
{
    const char *problem = task->rank == 0 ? call_send(task) : call_recv(task);

    if (problem != NULL) {
        return problem;
    }
    return task->rank == 0 ? call_recv(task) : call_send(task);
}

static const char *
call_stream(rank_task *task)
{
    return task->rank == 0 ? call_send(task) : call_recv(task);
}

static const char *
call_nothing(rank_task *task)
{
    (void)task;
    return NULL;
}

static const struct {
    const char *op;
    const char *(*call)(rank_task *task);
    bool adds, has_parts, is_pair;
} operations[] = {
    {"all_reduce", call_all_reduce, true, false, false},
    {"broadcast", call_broadcast, false, false, false},
    {"all_gather", call_all_gather, false, false, false},
    {"reduce_scatter", call_reduce_scatter, true, true, false},
    {"all_to_all", call_all_to_all, false, true, false},
    {"barrier", call_barrier, false, false, false},
    {"sendrecv", call_sendrecv, false, false, true},
    {"stream", call_stream, false, false, true},
};

static MPI_Datatype
type_of(rank_kind kind)
{
    switch (kind) {
    case RANK_FLOAT32:
        return MPI_FLOAT;
    case RANK_FLOAT64:
        return MPI_DOUBLE;
    case RANK_INT32:
        return MPI_INT32_T;
    case RANK_INT64:
        return MPI_INT64_T;
    case RANK_UINT8:
        return MPI_UINT8_T;
    case RANK_WORD16:
        return MPI_UINT16_T;
    }
    return MPI_DATATYPE_NULL;
}

static bool
find(rank_task *task)
{
    mpi_context *mpi = task->context;

    for (size_t i = 0; i < sizeof operations / sizeof operations[0]; i++) {
        size_t count = operations[i].has_parts ? task->nin / (size_t)task->size : task->nin;
        if (strcmp(task->op, operations[i].op) != 0) {
            continue;
        }
        if ((operations[i].adds && task->kind == RANK_WORD16) || count > INT_MAX) {
            return false;
        }
        mpi->type = type_of(task->kind);
        mpi->count = (int)count;
        task->call = operations[i].is_pair && task->rank > 1 ? call_nothing : operations[i].call;
        return true;
    }
    return false;
}

static void
barrier(void *context)
{
    (void)context;
    MPI_Barrier(MPI_COMM_WORLD);
}

int
main(int argc, char **argv)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    mpi_context mpi = {0};
    rank_peer peer = {.version = version, .context = &mpi, .find = find, .barrier = barrier};
    int length, status;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &peer.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &peer.size);
    MPI_Get_library_version(version, &length);
    version[strcspn(version, "\n,")] = '\0';
    if (argc != 3) {
        fprintf(stderr, "usage: mpi_rank SOCKET LIBRARY\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    if (strncmp(version, argv[2], strlen(argv[2])) != 0) {
        fprintf(stderr, "this library is not %s but %s\n", argv[2], version);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    status = rank_serve(argv[1], &peer);
    MPI_Finalize();
    return status;
}
