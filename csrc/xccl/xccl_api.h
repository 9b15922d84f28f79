/* oneCCL's C interface, declared by dldist.
 *
 * It is NCCL's interface under other names, with NCCL's numbers for data types and reductions
 * (lib_api.h). Differences: the results from 6 on, the size of a unique id, and the type of the
 * number of ranks (size_t). Functions have oneCCL's names, so that a text search finds them. */
#ifndef DD_XCCL_XCCL_API_H
#define DD_XCCL_XCCL_API_H

#include "nccl/driver/lib_api.h"

#include <stddef.h>

typedef struct xccl_opaque_comm *xccl_comm;

/* onecclUniqueId; passed by value to onecclCommInitRank. */
typedef struct xccl_unique_id {
    char bytes[4096];
} xccl_unique_id;

/* X(name, value, oneCCL's name). */
#define DD_XCCL_RESULT_LIST(X)                     \
    X(SUCCESS, 0, onecclSuccess)                   \
    X(ERROR, 1, onecclError)                       \
    X(SYSTEM_ERROR, 2, onecclSystemError)          \
    X(INTERNAL_ERROR, 3, onecclInternalError)      \
    X(INVALID_ARGUMENT, 4, onecclInvalidArgument)  \
    X(INVALID_USAGE, 5, onecclInvalidUsage)        \
    X(IN_PROGRESS, 6, onecclInProgress)            \
    X(FAILURE_GPU, 7, onecclFailureGPU)            \
    X(FAILURE_CPU, 8, onecclFailureCPU)            \
    X(NO_MEMORY_CPU, 9, onecclAllocFailureCPU)     \
    X(NO_MEMORY_GPU, 10, onecclAllocFailureGPU)    \
    X(PLUGIN_EXCEPTION, 11, onecclPluginException) \
    X(NOT_IMPLEMENTED, 12, onecclNotImplemented)

typedef enum xccl_result {
#define DD_XCCL_RESULT(name, value, theirs) XCCL_##name = (value),
    DD_XCCL_RESULT_LIST(DD_XCCL_RESULT)
#undef DD_XCCL_RESULT
} xccl_result;

/* X(name, returns, parameters). If `stream` is NULL, a call uses host memory and blocks. */
#define DD_XCCL_FUNCTIONS(X)                                                                               \
    X(onecclGetVersion, xccl_result, (int *version))                                                       \
    X(onecclGetErrorString, const char *, (xccl_result result))                                            \
    X(onecclGetLastError, const char *, (xccl_comm comm))                                                  \
    X(onecclGetUniqueId, xccl_result, (xccl_unique_id * id))                                               \
    X(onecclCommInitRank, xccl_result, (xccl_comm * comm, size_t nranks, xccl_unique_id id, int rank))     \
    X(onecclCommDestroy, xccl_result, (xccl_comm comm))                                                    \
    X(onecclBroadcast, xccl_result,                                                                        \
      (const void *send, void *recv, size_t count, dd_nccl_dtype dtype, int root, xccl_comm comm,          \
       void *stream))                                                                                      \
    X(onecclReduce, xccl_result,                                                                           \
      (const void *send, void *recv, size_t count, dd_nccl_dtype dtype, dd_nccl_redop op, int root,        \
       xccl_comm comm, void *stream))                                                                      \
    X(onecclAllReduce, xccl_result,                                                                        \
      (const void *send, void *recv, size_t count, dd_nccl_dtype dtype, dd_nccl_redop op, xccl_comm comm,  \
       void *stream))                                                                                      \
    X(onecclAllGather, xccl_result,                                                                        \
      (const void *send, void *recv, size_t sendcount, dd_nccl_dtype dtype, xccl_comm comm, void *stream)) \
    X(onecclReduceScatter, xccl_result,                                                                    \
      (const void *send, void *recv, size_t recvcount, dd_nccl_dtype dtype, dd_nccl_redop op,              \
       xccl_comm comm, void *stream))                                                                      \
    X(onecclAllToAllV, xccl_result,                                                                        \
      (const void *send, const size_t *sendcounts, void *recv, const size_t *recvcounts,                   \
       dd_nccl_dtype dtype, xccl_comm comm, void *stream))                                                 \
    X(onecclSend, xccl_result,                                                                             \
      (const void *send, size_t count, dd_nccl_dtype dtype, int peer, xccl_comm comm, void *stream))       \
    X(onecclRecv, xccl_result,                                                                             \
      (void *recv, size_t count, dd_nccl_dtype dtype, int peer, xccl_comm comm, void *stream))

typedef struct xccl_api {
#define DD_XCCL_MEMBER(name, returns, parameters) returns(*name) parameters;
    DD_XCCL_FUNCTIONS(DD_XCCL_MEMBER)
#undef DD_XCCL_MEMBER
} xccl_api;

#endif
