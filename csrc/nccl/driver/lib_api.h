/* NCCL's interface, declared by dldist: types, values, and one list of its functions.
 *
 * The build needs no file of NVIDIA's. The list generates the function table (dd_nccl_api), the
 * loader's symbols, the capabilities, and the exports of the test stubs. tools/check_nccl.py
 * compares it with nccl.h if that file is installed. Versions are NCCL's codes: 2.27.3 is 22703.
 * Fields and functions keep NCCL's names, so that a text search finds them. */
#ifndef DD_NCCL_DRIVER_LIB_API_H
#define DD_NCCL_DRIVER_LIB_API_H

#include "nccl/driver/cuda_api.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DD_NCCL_VERSION_MIN 21800   /* oldest NCCL that dldist supports */
#define DD_NCCL_VERSION_KNOWN 23203 /* newest version declared here; newer ones are treated alike */

/* ---- handles and values */

typedef struct dd_nccl_opaque_comm *dd_nccl_comm_handle;
typedef struct dd_nccl_opaque_window *dd_nccl_window;

/* ncclUniqueId; NCCL's functions take it by value. */
typedef struct dd_nccl_unique_id {
    char bytes[128];
} dd_nccl_unique_id;

/* X(name, value, NCCL's name, first NCCL version that has it). */
#define DD_NCCL_RESULT_LIST(X)                            \
    X(SUCCESS, 0, ncclSuccess, 0)                         \
    X(UNHANDLED_CUDA_ERROR, 1, ncclUnhandledCudaError, 0) \
    X(SYSTEM_ERROR, 2, ncclSystemError, 0)                \
    X(INTERNAL_ERROR, 3, ncclInternalError, 0)            \
    X(INVALID_ARGUMENT, 4, ncclInvalidArgument, 0)        \
    X(INVALID_USAGE, 5, ncclInvalidUsage, 0)              \
    X(REMOTE_ERROR, 6, ncclRemoteError, 0)                \
    X(IN_PROGRESS, 7, ncclInProgress, 0)                  \
    X(TIMEOUT, 8, ncclTimeout, 23003)

#define DD_NCCL_DTYPE_LIST(X)                 \
    X(INT8, 0, ncclInt8, 0)                   \
    X(UINT8, 1, ncclUint8, 0)                 \
    X(INT32, 2, ncclInt32, 0)                 \
    X(UINT32, 3, ncclUint32, 0)               \
    X(INT64, 4, ncclInt64, 0)                 \
    X(UINT64, 5, ncclUint64, 0)               \
    X(FLOAT16, 6, ncclFloat16, 0)             \
    X(FLOAT32, 7, ncclFloat32, 0)             \
    X(FLOAT64, 8, ncclFloat64, 0)             \
    X(BFLOAT16, 9, ncclBfloat16, 0)           \
    X(FLOAT8_E4M3, 10, ncclFloat8e4m3, 22403) \
    X(FLOAT8_E5M2, 11, ncclFloat8e5m2, 22403)

#define DD_NCCL_REDOP_LIST(X) \
    X(SUM, 0, ncclSum, 0)     \
    X(PROD, 1, ncclProd, 0)   \
    X(MAX, 2, ncclMax, 0)     \
    X(MIN, 3, ncclMin, 0)     \
    X(AVG, 4, ncclAvg, 0)

#define DD_NCCL_SCALAR_LIST(X)        \
    X(DEVICE, 0, ncclScalarDevice, 0) \
    X(HOST, 1, ncclScalarHostImmediate, 0)

/* X(name, value, NCCL's name, first version): the statistics of ncclCommMemStats. */
#define DD_NCCL_MEM_STAT_LIST(X)                    \
    X(SUSPEND, 0, ncclStatGpuMemSuspend, 22907)     \
    X(SUSPENDED, 1, ncclStatGpuMemSuspended, 22907) \
    X(PERSIST, 2, ncclStatGpuMemPersist, 22907)     \
    X(TOTAL, 3, ncclStatGpuMemTotal, 22907)

/* X(name, value, NCCL's name, first version): constants that are macros in nccl.h. */
#define DD_NCCL_CONSTANT_LIST(X)                                   \
    X(UNDEFINED_INT, INT_MIN, NCCL_CONFIG_UNDEF_INT, 0)            \
    X(NO_COLOR, -1, NCCL_SPLIT_NOCOLOR, 21801)                     \
    X(SHRINK_DEFAULT, 0, NCCL_SHRINK_DEFAULT, 22703)               \
    X(SHRINK_ABORT, 1, NCCL_SHRINK_ABORT, 22703)                   \
    X(REVOKE_DEFAULT, 0, NCCL_REVOKE_DEFAULT, 22807)               \
    X(SUSPEND_MEM, 1, NCCL_SUSPEND_MEM, 22907)                     \
    X(WIN_DEFAULT, 0, NCCL_WIN_DEFAULT, 22703)                     \
    X(WIN_COLL_SYMMETRIC, 1, NCCL_WIN_COLL_SYMMETRIC, 22703)       \
    X(WIN_STRICT_ORDERING, 2, NCCL_WIN_STRICT_ORDERING, 22907)     \
    X(WIN_GIN_ONLY, 4, NCCL_WIN_GIN_ONLY, 23203)                   \
    X(WIN_CFT_COUNTED, 8, NCCL_WIN_CFT_COUNTED, 23203)             \
    X(WIN_ALIGNMENT, 4096, NCCL_WIN_REQUIRED_ALIGNMENT, 22803)     \
    X(CTA_POLICY_DEFAULT, 0, NCCL_CTA_POLICY_DEFAULT, 22703)       \
    X(CTA_POLICY_EFFICIENCY, 1, NCCL_CTA_POLICY_EFFICIENCY, 22703) \
    X(CTA_POLICY_ZERO, 2, NCCL_CTA_POLICY_ZERO, 22803)

#define DD_NCCL_ENUM(name, value, theirs, since) DD_NCCL_##name = (value),
#define DD_NCCL_DTYPE_ENUM(name, value, theirs, since) DD_NCCL_DTYPE_##name = (value),
#define DD_NCCL_SCALAR_ENUM(name, value, theirs, since) DD_NCCL_SCALAR_##name = (value),
#define DD_NCCL_MEM_STAT_ENUM(name, value, theirs, since) DD_NCCL_MEM_STAT_##name = (value),

typedef enum dd_nccl_result { DD_NCCL_RESULT_LIST(DD_NCCL_ENUM) } dd_nccl_result;
typedef enum dd_nccl_dtype { DD_NCCL_DTYPE_LIST(DD_NCCL_DTYPE_ENUM) } dd_nccl_dtype;
/* NCCL's reductions; ncclRedOpCreatePreMulSum returns values that are not in the list. */
typedef enum dd_nccl_redop { DD_NCCL_REDOP_LIST(DD_NCCL_ENUM) DD_NCCL_REDOP_MAX = INT_MAX } dd_nccl_redop;
typedef enum dd_nccl_scalar_residence { DD_NCCL_SCALAR_LIST(DD_NCCL_SCALAR_ENUM) } dd_nccl_scalar_residence;
typedef enum dd_nccl_mem_stat { DD_NCCL_MEM_STAT_LIST(DD_NCCL_MEM_STAT_ENUM) } dd_nccl_mem_stat;
enum { DD_NCCL_CONSTANT_LIST(DD_NCCL_ENUM) };

/* ---- structs that begin with a size, a magic number and a version */

#define DD_NCCL_MAGIC 0xcafebeefU
#define DD_NCCL_SIM_MAGIC 0x74685283U

/* X(NCCL's name, Python's name, since, INT or TEXT): the fields of ncclConfig_t after its head. */
#define DD_NCCL_CONFIG_FIELDS(X)                                  \
    X(blocking, "blocking", 21400, INT)                           \
    X(cgaClusterSize, "cga_cluster_size", 21701, INT)             \
    X(minCTAs, "min_ctas", 21701, INT)                            \
    X(maxCTAs, "max_ctas", 21701, INT)                            \
    X(netName, "net_name", 21701, TEXT)                           \
    X(splitShare, "split_share", 21801, INT)                      \
    X(trafficClass, "traffic_class", 22602, INT)                  \
    X(commName, "comm_name", 22703, TEXT)                         \
    X(collnetEnable, "collnet_enable", 22703, INT)                \
    X(CTAPolicy, "cta_policy", 22703, INT)                        \
    X(shrinkShare, "shrink_share", 22703, INT)                    \
    X(nvlsCTAs, "nvls_ctas", 22703, INT)                          \
    X(nChannelsPerNetPeer, "n_channels_per_net_peer", 22803, INT) \
    X(nvlinkCentricSched, "nvlink_centric_sched", 22803, INT)     \
    X(graphUsageMode, "graph_usage_mode", 22902, INT)             \
    X(numRmaCtx, "num_rma_ctx", 22902, INT)                       \
    X(maxP2pPeers, "max_p2p_peers", 23003, INT)                   \
    X(graphStreamOrdering, "graph_stream_ordering", 23007, INT)   \
    X(launchOrderImplicit, "launch_order_implicit", 23102, INT)   \
    X(numRmaSig, "num_rma_sig", 23102, INT)                       \
    X(rmaEagerInit, "rma_eager_init", 23102, INT)                 \
    X(hostCftMode, "host_cft_mode", 23102, INT)                   \
    X(nvlsHostMode, "nvls_host_mode", 23203, INT)

/* Fields of ncclCollConfig_t after `ext`, like DD_NCCL_CONFIG_FIELDS. WORD, EVENT have 64 bits. */
#define DD_NCCL_COLL_CONFIG_FIELDS(X)                       \
    X(minCTAs, "min_ctas", 23102, INT)                      \
    X(maxCTAs, "max_ctas", 23102, INT)                      \
    X(nvlsCTAs, "nvls_ctas", 23102, INT)                    \
    X(cgaClusterSize, "cga_cluster_size", 23102, INT)       \
    X(algSelection, "alg_selection", 23102, TEXT)           \
    X(forceAlgSelection, "force_alg_selection", 23102, INT) \
    X(CTAPolicy, "cta_policy", 23102, INT)                  \
    X(userProfilerTag, "user_profiler_tag", 23102, WORD)    \
    X(launchCompletionEvent, "launch_completion_event", 23203, EVENT)

#define DD_NCCL_FIELD_TYPE_INT int
#define DD_NCCL_FIELD_TYPE_TEXT const char *
#define DD_NCCL_FIELD_TYPE_WORD uint64_t
#define DD_NCCL_FIELD_TYPE_EVENT dd_cuda_event
#define DD_NCCL_FIELD(name, alias, since, type) DD_NCCL_FIELD_TYPE_##type name;

/* ncclConfig_t of the newest version, which dd_nccl_config_pack fills in. */
typedef struct dd_nccl_abi_config {
    size_t size;
    unsigned int magic;
    unsigned int version;
    DD_NCCL_CONFIG_FIELDS(DD_NCCL_FIELD)
} dd_nccl_abi_config;

/* ncclCollConfig_t. Its forceAlgSelection is 1 if unset, and its userProfilerTag is 0 if unset. */
typedef struct dd_nccl_abi_coll_config {
    size_t size;
    unsigned int magic;
    unsigned int version;
    void *ext; /* a vendor's list of extensions, always NULL here */
    DD_NCCL_COLL_CONFIG_FIELDS(DD_NCCL_FIELD)
} dd_nccl_abi_coll_config;

typedef struct dd_nccl_sim_info {
    size_t size;
    unsigned int magic;
    unsigned int version;
    float estimatedTime;
} dd_nccl_sim_info;

#define DD_NCCL_ENCRYPTION_MODE_NONE 0
#define DD_NCCL_ENCRYPTION_MODE_PSK 1

typedef struct dd_nccl_abi_encryption {
    size_t size;
    unsigned int magic;
    unsigned int version;
    int mode;
    const char *psk;
} dd_nccl_abi_encryption;

typedef struct dd_nccl_signal_wait {
    int opCnt;
    int peer;
    int sigIdx;
    int ctx;
} dd_nccl_signal_wait;

/* ncclCommProperties_t of nccl_device.h, newest version. NCCL sets only the fields of `version`. */
typedef struct dd_nccl_abi_properties {
    size_t size;
    unsigned int magic;
    unsigned int version;
    int rank;
    int nRanks;
    int cudaDev;
    int nvmlDev;
    bool deviceApiSupport;
    bool multimemSupport;
    int ginType;
    int nLsaTeams;
    bool hostRmaSupport;
    int railedGinType;
    uint64_t commHash;
    int ginMinStride;
    int ginConnectionType;
    bool ginSupport[64];
    size_t devCommRuntimeVersionSize;
    bool cftSupport;
    bool cftMulticastSupport;
    bool cftCountedSupport;
} dd_nccl_abi_properties;

/* X(NCCL's name, Python's name, since, INT, FLAG or WORD): properties useful on the host. */
#define DD_NCCL_PROPERTY_LIST(X)                                 \
    X(rank, "rank", 22902, INT)                                  \
    X(nRanks, "n_ranks", 22902, INT)                             \
    X(cudaDev, "cuda_dev", 22902, INT)                           \
    X(nvmlDev, "nvml_dev", 22902, INT)                           \
    X(deviceApiSupport, "device_api_support", 22902, FLAG)       \
    X(multimemSupport, "multimem_support", 22902, FLAG)          \
    X(ginType, "gin_type", 22907, INT)                           \
    X(nLsaTeams, "n_lsa_teams", 22907, INT)                      \
    X(hostRmaSupport, "host_rma_support", 22907, FLAG)           \
    X(railedGinType, "railed_gin_type", 22907, INT)              \
    X(commHash, "comm_hash", 23102, WORD)                        \
    X(ginMinStride, "gin_min_stride", 23102, INT)                \
    X(ginConnectionType, "gin_connection_type", 23102, INT)      \
    X(cftSupport, "cft_support", 23203, FLAG)                    \
    X(cftMulticastSupport, "cft_multicast_support", 23203, FLAG) \
    X(cftCountedSupport, "cft_counted_support", 23203, FLAG)

/* ---- functions */

/* X(name, first version, returns, params): functions that every supported NCCL has. */
#define DD_NCCL_REQUIRED(X)                                                                                 \
    X(ncclGetVersion, 20300, dd_nccl_result, (int *version))                                                \
    X(ncclGetUniqueId, 20300, dd_nccl_result, (dd_nccl_unique_id * id))                                     \
    X(ncclGetErrorString, 20300, const char *, (dd_nccl_result result))                                     \
    X(ncclGetLastError, 21300, const char *, (dd_nccl_comm_handle comm))                                    \
    X(ncclCommInitAll, 20300, dd_nccl_result, (dd_nccl_comm_handle * comms, int ndev, const int *devices))  \
    X(ncclCommInitRank, 20300, dd_nccl_result,                                                              \
      (dd_nccl_comm_handle * comm, int nranks, dd_nccl_unique_id id, int rank))                             \
    X(ncclCommInitRankConfig, 21400, dd_nccl_result,                                                        \
      (dd_nccl_comm_handle * comm, int nranks, dd_nccl_unique_id id, int rank, dd_nccl_abi_config *config)) \
    X(ncclCommSplit, 21801, dd_nccl_result,                                                                 \
      (dd_nccl_comm_handle comm, int color, int key, dd_nccl_comm_handle *newcomm,                          \
       dd_nccl_abi_config *config))                                                                         \
    X(ncclCommFinalize, 21400, dd_nccl_result, (dd_nccl_comm_handle comm))                                  \
    X(ncclCommDestroy, 20300, dd_nccl_result, (dd_nccl_comm_handle comm))                                   \
    X(ncclCommAbort, 20400, dd_nccl_result, (dd_nccl_comm_handle comm))                                     \
    X(ncclCommGetAsyncError, 20400, dd_nccl_result, (dd_nccl_comm_handle comm, dd_nccl_result * result))    \
    X(ncclCommCount, 20300, dd_nccl_result, (const dd_nccl_comm_handle comm, int *count))                   \
    X(ncclCommCuDevice, 20300, dd_nccl_result, (const dd_nccl_comm_handle comm, int *device))               \
    X(ncclCommUserRank, 20300, dd_nccl_result, (const dd_nccl_comm_handle comm, int *rank))                 \
    X(ncclRedOpCreatePreMulSum, 21100, dd_nccl_result,                                                      \
      (dd_nccl_redop * op, void *scalar, dd_nccl_dtype dtype, dd_nccl_scalar_residence residence,           \
       dd_nccl_comm_handle comm))                                                                           \
    X(ncclRedOpDestroy, 21100, dd_nccl_result, (dd_nccl_redop op, dd_nccl_comm_handle comm))                \
    X(ncclReduce, 20300, dd_nccl_result,                                                                    \
      (const void *send, void *recv, size_t count, dd_nccl_dtype dtype, dd_nccl_redop op, int root,         \
       dd_nccl_comm_handle comm, dd_cuda_stream stream))                                                    \
    X(ncclBroadcast, 20300, dd_nccl_result,                                                                 \
      (const void *send, void *recv, size_t count, dd_nccl_dtype dtype, int root, dd_nccl_comm_handle comm, \
       dd_cuda_stream stream))                                                                              \
    X(ncclAllReduce, 20300, dd_nccl_result,                                                                 \
      (const void *send, void *recv, size_t count, dd_nccl_dtype dtype, dd_nccl_redop op,                   \
       dd_nccl_comm_handle comm, dd_cuda_stream stream))                                                    \
    X(ncclReduceScatter, 20300, dd_nccl_result,                                                             \
      (const void *send, void *recv, size_t recvcount, dd_nccl_dtype dtype, dd_nccl_redop op,               \
       dd_nccl_comm_handle comm, dd_cuda_stream stream))                                                    \
    X(ncclAllGather, 20300, dd_nccl_result,                                                                 \
      (const void *send, void *recv, size_t sendcount, dd_nccl_dtype dtype, dd_nccl_comm_handle comm,       \
       dd_cuda_stream stream))                                                                              \
    X(ncclSend, 20700, dd_nccl_result,                                                                      \
      (const void *send, size_t count, dd_nccl_dtype dtype, int peer, dd_nccl_comm_handle comm,             \
       dd_cuda_stream stream))                                                                              \
    X(ncclRecv, 20700, dd_nccl_result,                                                                      \
      (void *recv, size_t count, dd_nccl_dtype dtype, int peer, dd_nccl_comm_handle comm,                   \
       dd_cuda_stream stream))                                                                              \
    X(ncclGroupStart, 20300, dd_nccl_result, (void))                                                        \
    X(ncclGroupEnd, 20300, dd_nccl_result, (void))

/* X(name, first version, returns, params, capability): functions that only newer versions have. */
#define DD_NCCL_OPTIONAL(X)                                                                                  \
    X(ncclMemAlloc, 21901, dd_nccl_result, (void **data, size_t nbytes), MEM_ALLOC)                          \
    X(ncclMemFree, 21901, dd_nccl_result, (void *data), MEM_FREE)                                            \
    X(ncclCommRegister, 21901, dd_nccl_result,                                                               \
      (const dd_nccl_comm_handle comm, void *data, size_t nbytes, void **handle), REGISTER)                  \
    X(ncclCommDeregister, 21901, dd_nccl_result, (const dd_nccl_comm_handle comm, void *handle), DEREGISTER) \
    X(ncclGroupSimulateEnd, 22203, dd_nccl_result, (dd_nccl_sim_info * info), GROUP_SIMULATE)                \
    X(ncclCommInitRankScalable, 22304, dd_nccl_result,                                                       \
      (dd_nccl_comm_handle * comm, int nranks, int rank, int nids, dd_nccl_unique_id *ids,                   \
       dd_nccl_abi_config *config),                                                                          \
      INIT_SCALABLE)                                                                                         \
    X(ncclResetDebugInit, 22403, void, (void), RESET_DEBUG)                                                  \
    X(ncclCommShrink, 22703, dd_nccl_result,                                                                 \
      (dd_nccl_comm_handle comm, int *excluded, int nexcluded, dd_nccl_comm_handle *newcomm,                 \
       dd_nccl_abi_config *config, int flags),                                                               \
      SHRINK)                                                                                                \
    X(ncclCommWindowRegister, 22703, dd_nccl_result,                                                         \
      (dd_nccl_comm_handle comm, void *data, size_t nbytes, dd_nccl_window *window, int flags),              \
      WINDOW_REGISTER)                                                                                       \
    X(ncclCommWindowDeregister, 22703, dd_nccl_result, (dd_nccl_comm_handle comm, dd_nccl_window window),    \
      WINDOW_DEREGISTER)                                                                                     \
    X(ncclAlltoAll, 22803, dd_nccl_result,                                                                   \
      (const void *send, void *recv, size_t count, dd_nccl_dtype dtype, dd_nccl_comm_handle comm,            \
       dd_cuda_stream stream),                                                                               \
      ALL_TO_ALL)                                                                                            \
    X(ncclGather, 22803, dd_nccl_result,                                                                     \
      (const void *send, void *recv, size_t count, dd_nccl_dtype dtype, int root, dd_nccl_comm_handle comm,  \
       dd_cuda_stream stream),                                                                               \
      GATHER)                                                                                                \
    X(ncclScatter, 22803, dd_nccl_result,                                                                    \
      (const void *send, void *recv, size_t count, dd_nccl_dtype dtype, int root, dd_nccl_comm_handle comm,  \
       dd_cuda_stream stream),                                                                               \
      SCATTER)                                                                                               \
    X(ncclCommRevoke, 22807, dd_nccl_result, (dd_nccl_comm_handle comm, int flags), REVOKE)                  \
    X(ncclCommGrow, 22902, dd_nccl_result,                                                                   \
      (dd_nccl_comm_handle comm, int nranks, const dd_nccl_unique_id *id, int rank,                          \
       dd_nccl_comm_handle *newcomm, dd_nccl_abi_config *config),                                            \
      GROW)                                                                                                  \
    X(ncclCommGetUniqueId, 22902, dd_nccl_result, (dd_nccl_comm_handle comm, dd_nccl_unique_id * id),        \
      GROW_ID)                                                                                               \
    X(ncclPutSignal, 22902, dd_nccl_result,                                                                  \
      (const void *data, size_t count, dd_nccl_dtype dtype, int peer, dd_nccl_window window, size_t offset,  \
       int sigIdx, int ctx, unsigned int flags, dd_nccl_comm_handle comm, dd_cuda_stream stream),            \
      PUT_SIGNAL)                                                                                            \
    X(ncclSignal, 22902, dd_nccl_result,                                                                     \
      (int peer, int sigIdx, int ctx, unsigned int flags, dd_nccl_comm_handle comm, dd_cuda_stream stream),  \
      SIGNAL)                                                                                                \
    X(ncclWaitSignal, 22902, dd_nccl_result,                                                                 \
      (int nwaits, dd_nccl_signal_wait *waits, dd_nccl_comm_handle comm, dd_cuda_stream stream),             \
      WAIT_SIGNAL)                                                                                           \
    X(ncclWinGetUserPtr, 22902, dd_nccl_result,                                                              \
      (dd_nccl_comm_handle comm, dd_nccl_window window, void **data), WINDOW_POINTER)                        \
    X(ncclCommQueryProperties, 22902, dd_nccl_result,                                                        \
      (dd_nccl_comm_handle comm, dd_nccl_abi_properties * properties), QUERY_PROPERTIES)                     \
    X(ncclCommSuspend, 22907, dd_nccl_result, (dd_nccl_comm_handle comm, int flags), SUSPEND)                \
    X(ncclCommResume, 22907, dd_nccl_result, (dd_nccl_comm_handle comm), RESUME)                             \
    X(ncclCommMemStats, 22907, dd_nccl_result,                                                               \
      (dd_nccl_comm_handle comm, dd_nccl_mem_stat stat, uint64_t * value), MEM_STATS)                        \
    X(ncclAllReduceConfig, 23102, dd_nccl_result,                                                            \
      (const void *send, void *recv, size_t count, dd_nccl_dtype dtype, dd_nccl_redop op,                    \
       dd_nccl_comm_handle comm, dd_cuda_stream stream, const dd_nccl_abi_coll_config *config),              \
      ALL_REDUCE_CONFIG)                                                                                     \
    X(ncclBroadcastConfig, 23102, dd_nccl_result,                                                            \
      (const void *send, void *recv, size_t count, dd_nccl_dtype dtype, int root, dd_nccl_comm_handle comm,  \
       dd_cuda_stream stream, const dd_nccl_abi_coll_config *config),                                        \
      BROADCAST_CONFIG)                                                                                      \
    X(ncclReduceConfig, 23102, dd_nccl_result,                                                               \
      (const void *send, void *recv, size_t count, dd_nccl_dtype dtype, dd_nccl_redop op, int root,          \
       dd_nccl_comm_handle comm, dd_cuda_stream stream, const dd_nccl_abi_coll_config *config),              \
      REDUCE_CONFIG)                                                                                         \
    X(ncclAllGatherConfig, 23102, dd_nccl_result,                                                            \
      (const void *send, void *recv, size_t sendcount, dd_nccl_dtype dtype, dd_nccl_comm_handle comm,        \
       dd_cuda_stream stream, const dd_nccl_abi_coll_config *config),                                        \
      ALL_GATHER_CONFIG)                                                                                     \
    X(ncclReduceScatterConfig, 23102, dd_nccl_result,                                                        \
      (const void *send, void *recv, size_t recvcount, dd_nccl_dtype dtype, dd_nccl_redop op,                \
       dd_nccl_comm_handle comm, dd_cuda_stream stream, const dd_nccl_abi_coll_config *config),              \
      REDUCE_SCATTER_CONFIG)                                                                                 \
    X(ncclAlltoAllConfig, 23102, dd_nccl_result,                                                             \
      (const void *send, void *recv, size_t count, dd_nccl_dtype dtype, dd_nccl_comm_handle comm,            \
       dd_cuda_stream stream, const dd_nccl_abi_coll_config *config),                                        \
      ALL_TO_ALL_CONFIG)                                                                                     \
    X(ncclGatherConfig, 23102, dd_nccl_result,                                                               \
      (const void *send, void *recv, size_t count, dd_nccl_dtype dtype, int root, dd_nccl_comm_handle comm,  \
       dd_cuda_stream stream, const dd_nccl_abi_coll_config *config),                                        \
      GATHER_CONFIG)                                                                                         \
    X(ncclScatterConfig, 23102, dd_nccl_result,                                                              \
      (const void *send, void *recv, size_t count, dd_nccl_dtype dtype, int root, dd_nccl_comm_handle comm,  \
       dd_cuda_stream stream, const dd_nccl_abi_coll_config *config),                                        \
      SCATTER_CONFIG)                                                                                        \
    X(ncclSetEncryption, 23203, dd_nccl_result, (const dd_nccl_abi_encryption *config), ENCRYPTION)

#define DD_NCCL_POINTER(name, since, returns, params) returns(*name) params;
#define DD_NCCL_OPTIONAL_POINTER(name, since, returns, params, capability) returns(*name) params;
#define DD_NCCL_CAPABILITY(name, since, returns, params, capability) DD_NCCL_CAN_##capability,

/* The functions of the loaded NCCL; the optional functions may be NULL. */
typedef struct dd_nccl_api {
    DD_NCCL_REQUIRED(DD_NCCL_POINTER)
    DD_NCCL_OPTIONAL(DD_NCCL_OPTIONAL_POINTER)
} dd_nccl_api;

/* One value for each optional function: DD_NCCL_CAN_SHRINK means that NCCL has ncclCommShrink. */
typedef enum dd_nccl_capability {
    DD_NCCL_OPTIONAL(DD_NCCL_CAPABILITY) DD_NCCL_CAPABILITY_COUNT,
} dd_nccl_capability;

#endif
