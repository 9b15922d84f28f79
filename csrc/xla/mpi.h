/* MPI as XLA's collectives for CPUs call it, carried out by groups.
 *
 * XLA has a communicator for each set of devices that work together: a part of MPI_COMM_WORLD. It looks at what calls return, but for
 * Comm_split, and puts the text of Error_string into its own error. So a communicator that cannot be made is one whose calls fail, with
 * the reason. Any thread may call; the calls of one communicator are in the same order in all of its processes, as XLA sees to. */
#ifndef DD_XLA_MPI_H
#define DD_XLA_MPI_H

#include "group/group.h"

/* A communicator, datatype, operation or request. Those of the list below are numbers; others are addresses. */
typedef intptr_t dd_mpi_handle;

#define DD_MPI_SUCCESS 0
#define DD_MPI_ERR_OTHER 16
#define DD_MPI_MAX_ERROR_STRING 1024

enum {
    DD_MPI_NULL = 0, /* MPI_COMM_NULL, MPI_REQUEST_NULL and so on */
    DD_MPI_COMM_WORLD = 1,
    DD_MPI_IN_PLACE = 2,     /* the same number for the address */
    DD_MPI_TYPE = 0x100,     /* + dd_dtype */
    DD_MPI_OPERATION = 0x200 /* + dd_redop */
};

/* X(name, parameters, arguments): what XLA calls, but for what begins and ends the library. */
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

/* All of them but Comm_split, which is for who makes groups. */
extern const dd_mpi_calls dd_mpi_group_calls;

/* What MPI_COMM_WORLD stands for from now on. At most once, before any call. */
void dd_mpi_set_world(dd_mpi_handle comm);

/* A communicator of this group, which it takes a reference of; 0 without memory. */
dd_mpi_handle dd_mpi_comm_create(dd_group *group);
/* A communicator that could not be made: it has these numbers, and every call on it fails with this text. 0 without memory. */
dd_mpi_handle dd_mpi_comm_create_broken(int rank, int size, const char *reason);

#endif
