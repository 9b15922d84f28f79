/* The MPI functions that dldist calls, declared once for all libraries.
 *
 * Handles are machine words here: in MPI's standard ABI and Open MPI they are pointers, in MPICH
 * ints. On the processors that dldist supports, a function that takes an int reads the lower half
 * of the word, and one that writes an int writes only the lower half, so zero the word before. One
 * list of functions therefore serves all libraries; only constants differ (mpi_constants.c). */
#ifndef DD_MPI_MPI_API_H
#define DD_MPI_MPI_API_H

#include <stddef.h>
#include <stdint.h>

typedef uintptr_t mpi_word;

_Static_assert(sizeof(size_t) == sizeof(int64_t),
               "MPI's large counts and displacements are our counts and offsets");

/* MPI_Status, large enough for any library: the largest known has 32 bytes. */
typedef struct mpi_status {
    _Alignas(16) int words[16];
} mpi_status;

#define DD_MPI_TEXT_MAX 8192 /* largest size in bytes of a text that a library writes */

/* User-defined reduction of `in` into `inout`; `type` is the operation's own data type. */
typedef void mpi_fold(void *in, void *inout, const int *count, const mpi_word *type);
typedef void mpi_fold_large(void *in, void *inout, const int64_t *count, const mpi_word *type);

/* X(name, parameters): functions that every library must have. */
#define DD_MPI_REQUIRED(X)                                                                                   \
    X(MPI_Initialized, (int *flag))                                                                          \
    X(MPI_Finalized, (int *flag))                                                                            \
    X(MPI_Init_thread, (int *argc, char ***argv, int required, int *provided))                               \
    X(MPI_Query_thread, (int *provided))                                                                     \
    X(MPI_Finalize, (void))                                                                                  \
    X(MPI_Get_library_version, (char *text, int *len))                                                       \
    X(MPI_Error_class, (int code, int *class))                                                               \
    X(MPI_Error_string, (int code, char *text, int *len))                                                    \
    X(MPI_Comm_rank, (mpi_word comm, int *rank))                                                             \
    X(MPI_Comm_size, (mpi_word comm, int *size))                                                             \
    X(MPI_Comm_group, (mpi_word comm, mpi_word * group))                                                     \
    X(MPI_Comm_create_group, (mpi_word comm, mpi_word group, int tag, mpi_word *made))                       \
    X(MPI_Comm_free, (mpi_word * comm))                                                                      \
    X(MPI_Comm_set_errhandler, (mpi_word comm, mpi_word handler))                                            \
    X(MPI_Comm_get_attr, (mpi_word comm, int key, void *value, int *flag))                                   \
    X(MPI_Group_incl, (mpi_word group, int n, const int *ranks, mpi_word *made))                             \
    X(MPI_Group_free, (mpi_word * group))                                                                    \
    X(MPI_Op_create, (mpi_fold * fold, int commutes, mpi_word *op))                                          \
    X(MPI_Test, (mpi_word * request, int *flag, mpi_status *status))                                         \
    X(MPI_Cancel, (mpi_word * request))                                                                      \
    X(MPI_Get_count, (const mpi_status *status, mpi_word type, int *count))                                  \
    X(MPI_Isend,                                                                                             \
      (const void *data, int n, mpi_word type, int to, int tag, mpi_word comm, mpi_word *request))           \
    X(MPI_Irecv, (void *data, int n, mpi_word type, int from, int tag, mpi_word comm, mpi_word *request))    \
    X(MPI_Ibarrier, (mpi_word comm, mpi_word * request))                                                     \
    X(MPI_Ibcast, (void *data, int n, mpi_word type, int root, mpi_word comm, mpi_word *request))            \
    X(MPI_Ireduce, (const void *in, void *out, int n, mpi_word type, mpi_word op, int root, mpi_word comm,   \
                    mpi_word *request))                                                                      \
    X(MPI_Iallreduce,                                                                                        \
      (const void *in, void *out, int n, mpi_word type, mpi_word op, mpi_word comm, mpi_word *request))      \
    X(MPI_Igatherv, (const void *in, int n, mpi_word type, void *out, const int *counts, const int *offsets, \
                     mpi_word to_type, int root, mpi_word comm, mpi_word *request))                          \
    X(MPI_Iscatterv, (const void *in, const int *counts, const int *offsets, mpi_word type, void *out,       \
                      int n, mpi_word to_type, int root, mpi_word comm, mpi_word *request))                  \
    X(MPI_Iallgather, (const void *in, int n, mpi_word type, void *out, int count, mpi_word to_type,         \
                       mpi_word comm, mpi_word *request))                                                    \
    X(MPI_Iallgatherv, (const void *in, int n, mpi_word type, void *out, const int *counts,                  \
                        const int *offsets, mpi_word to_type, mpi_word comm, mpi_word *request))             \
    X(MPI_Ireduce_scatter_block,                                                                             \
      (const void *in, void *out, int n, mpi_word type, mpi_word op, mpi_word comm, mpi_word *request))      \
    X(MPI_Ireduce_scatter, (const void *in, void *out, const int *counts, mpi_word type, mpi_word op,        \
                            mpi_word comm, mpi_word *request))                                               \
    X(MPI_Ialltoallv,                                                                                        \
      (const void *in, const int *counts, const int *offsets, mpi_word type, void *out,                      \
       const int *out_counts, const int *out_offsets, mpi_word to_type, mpi_word comm, mpi_word *request))

/* X(name, parameters): MPI 4's functions with 64-bit counts; used only if a library has all. */
#define DD_MPI_LARGE(X)                                                                                      \
    X(MPI_Op_create_c, (mpi_fold_large * fold, int commutes, mpi_word *op))                                  \
    X(MPI_Get_count_c, (const mpi_status *status, mpi_word type, int64_t *count))                            \
    X(MPI_Isend_c,                                                                                           \
      (const void *data, int64_t n, mpi_word type, int to, int tag, mpi_word comm, mpi_word *request))       \
    X(MPI_Irecv_c,                                                                                           \
      (void *data, int64_t n, mpi_word type, int from, int tag, mpi_word comm, mpi_word *request))           \
    X(MPI_Ibcast_c, (void *data, int64_t n, mpi_word type, int root, mpi_word comm, mpi_word *request))      \
    X(MPI_Ireduce_c, (const void *in, void *out, int64_t n, mpi_word type, mpi_word op, int root,            \
                      mpi_word comm, mpi_word *request))                                                     \
    X(MPI_Iallreduce_c,                                                                                      \
      (const void *in, void *out, int64_t n, mpi_word type, mpi_word op, mpi_word comm, mpi_word *request))  \
    X(MPI_Igatherv_c, (const void *in, int64_t n, mpi_word type, void *out, const size_t *counts,            \
                       const size_t *offsets, mpi_word to_type, int root, mpi_word comm, mpi_word *request)) \
    X(MPI_Iscatterv_c, (const void *in, const size_t *counts, const size_t *offsets, mpi_word type,          \
                        void *out, int64_t n, mpi_word to_type, int root, mpi_word comm, mpi_word *request)) \
    X(MPI_Iallgather_c, (const void *in, int64_t n, mpi_word type, void *out, int64_t count,                 \
                         mpi_word to_type, mpi_word comm, mpi_word *request))                                \
    X(MPI_Iallgatherv_c, (const void *in, int64_t n, mpi_word type, void *out, const size_t *counts,         \
                          const size_t *offsets, mpi_word to_type, mpi_word comm, mpi_word *request))        \
    X(MPI_Ireduce_scatter_block_c,                                                                           \
      (const void *in, void *out, int64_t n, mpi_word type, mpi_word op, mpi_word comm, mpi_word *request))  \
    X(MPI_Ireduce_scatter_c, (const void *in, void *out, const size_t *counts, mpi_word type, mpi_word op,   \
                              mpi_word comm, mpi_word *request))                                             \
    X(MPI_Ialltoallv_c, (const void *in, const size_t *counts, const size_t *offsets, mpi_word type,         \
                         void *out, const size_t *out_counts, const size_t *out_offsets, mpi_word to_type,   \
                         mpi_word comm, mpi_word *request))

typedef struct mpi_api {
#define DD_MPI_FUNCTION(name, parameters) int(*name) parameters;
    DD_MPI_REQUIRED(DD_MPI_FUNCTION)
    DD_MPI_LARGE(DD_MPI_FUNCTION)
#undef DD_MPI_FUNCTION
} mpi_api;

#define DD_MPI_OK 0

#endif
