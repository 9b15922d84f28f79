/* The MPI functions that XLA's CPU collectives call, implemented with groups.
 *
 * XLA creates a communicator, a part of MPI_COMM_WORLD, for each set of devices that work together.
 * XLA checks the results of all calls except Comm_split, and puts the text of Error_string into its
 * own error. So if a communicator cannot be created, Comm_split returns one whose calls all fail
 * with the reason. Any thread may call; XLA makes a communicator's calls in one order on all
 * ranks. */
#ifndef DD_XLA_MPI_H
#define DD_XLA_MPI_H

#include "group/group.h"

/* A communicator, data type, operation or request: a number listed below, or an address. */
typedef intptr_t dd_mpi_handle;

#define DD_MPI_SUCCESS 0
#define DD_MPI_ERR_OTHER 16
#define DD_MPI_MAX_ERROR_STRING 1024

enum {
    DD_MPI_NULL = 0, /* also used for MPI_COMM_NULL, MPI_REQUEST_NULL and so on */
    DD_MPI_COMM_WORLD = 1,
    DD_MPI_IN_PLACE = 2,     /* passed as a handle or as an address */
    DD_MPI_TYPE = 0x100,     /* base of the data types' handles: a dd_dtype is added */
    DD_MPI_OPERATION = 0x200 /* base of the operations' handles: a dd_redop is added */
};

/* X(name, parameters, arguments): the functions that XLA calls, except to start and end MPI. */
#define DD_MPI_CALLS(X)                                                                                      \
    X(Comm_rank, (dd_mpi_handle comm, int *rank), (comm, rank))                                              \
    X(Comm_size, (dd_mpi_handle comm, int *size), (comm, size))                                              \
    X(Comm_split, (dd_mpi_handle comm, int color, int key, dd_mpi_handle *part), (comm, color, key, part))   \
    X(Comm_free, (dd_mpi_handle * comm), (comm))                                                             \
    X(Allreduce,                                                                                             \
      (const void *in, void *out, int count, dd_mpi_handle type, dd_mpi_handle operation,                    \
       dd_mpi_handle comm),                                                                                  \
      (in, out, count, type, operation, comm))                                                               \
    X(Allgather,                                                                                             \
      (const void *in, int in_count, dd_mpi_handle in_type, void *out, int out_count,                        \
       dd_mpi_handle out_type, dd_mpi_handle comm),                                                          \
      (in, in_count, in_type, out, out_count, out_type, comm))                                               \
    X(Reduce_scatter,                                                                                        \
      (const void *in, void *out, const int *counts, dd_mpi_handle type, dd_mpi_handle operation,            \
       dd_mpi_handle comm),                                                                                  \
      (in, out, counts, type, operation, comm))                                                              \
    X(Isend,                                                                                                 \
      (const void *data, int count, dd_mpi_handle type, int dst, int tag, dd_mpi_handle comm,                \
       dd_mpi_handle *request),                                                                              \
      (data, count, type, dst, tag, comm, request))                                                          \
    X(Irecv,                                                                                                 \
      (void *data, int count, dd_mpi_handle type, int src, int tag, dd_mpi_handle comm,                      \
       dd_mpi_handle *request),                                                                              \
      (data, count, type, src, tag, comm, request))                                                          \
    X(Wait, (dd_mpi_handle * request, void *status), (request, status))                                      \
    X(Sendrecv,                                                                                              \
      (const void *out, int out_count, dd_mpi_handle out_type, int dst, int out_tag, void *in, int in_count, \
       dd_mpi_handle in_type, int src, int in_tag, dd_mpi_handle comm, void *status),                        \
      (out, out_count, out_type, dst, out_tag, in, in_count, in_type, src, in_tag, comm, status))            \
    X(Error_string, (int code, char *text, int *nbytes), (code, text, nbytes))

typedef struct dd_mpi_calls {
#define DD_MPI_MEMBER(name, parameters, arguments) int(*name) parameters;
    DD_MPI_CALLS(DD_MPI_MEMBER)
#undef DD_MPI_MEMBER
} dd_mpi_calls;

/* All functions except Comm_split, which python/xla adds because it creates groups. */
extern const dd_mpi_calls dd_mpi_group_calls;

/* Set the communicator for MPI_COMM_WORLD. Must be called at most once, before any other call. */
void dd_mpi_set_world(dd_mpi_handle comm);

/* Create a communicator with its own reference to the group. DD_MPI_NULL if there is no memory. */
dd_mpi_handle dd_mpi_comm_create(dd_group *group);
/* Create a communicator with this rank and size, on which all other calls fail with `reason`.
 * DD_MPI_NULL if there is no memory. */
dd_mpi_handle dd_mpi_comm_create_broken(int rank, int size, const char *reason);

#endif
