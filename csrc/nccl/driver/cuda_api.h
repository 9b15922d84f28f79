/* The part of the CUDA driver's interface that dldist uses; lib_api.h explains the lists. The
 * symbols are those that drivers have exported with these arguments since CUDA 11; cuda.h may map a
 * function's name to a newer symbol. */
#ifndef DD_NCCL_DRIVER_CUDA_API_H
#define DD_NCCL_DRIVER_CUDA_API_H

#include <stddef.h>
#include <stdint.h>

typedef int dd_cuda_device;
typedef unsigned long long dd_cuda_ptr;
typedef struct dd_cuda_opaque_context *dd_cuda_context;
typedef struct dd_cuda_opaque_stream *dd_cuda_stream;
typedef struct dd_cuda_opaque_event *dd_cuda_event;
typedef struct dd_cuda_opaque_pool *dd_cuda_pool;
typedef unsigned long long dd_cuda_memory_handle; /* CUmemGenericAllocationHandle */
typedef struct dd_cuda_opaque_module *dd_cuda_module;
typedef struct dd_cuda_opaque_function *dd_cuda_function;

/* X(name, value, CUDA's name): constants of CUDA, in this list and the following ones. */
#define DD_CUDA_RESULT_LIST(X)                                                \
    X(SUCCESS, 0, CUDA_SUCCESS)                                               \
    X(INVALID_VALUE, 1, CUDA_ERROR_INVALID_VALUE)                             \
    X(ERROR_OUT_OF_MEMORY, 2, CUDA_ERROR_OUT_OF_MEMORY)                       \
    X(NOT_INITIALIZED, 3, CUDA_ERROR_NOT_INITIALIZED)                         \
    X(DEINITIALIZED, 4, CUDA_ERROR_DEINITIALIZED)                             \
    X(NO_DEVICE, 100, CUDA_ERROR_NO_DEVICE)                                   \
    X(INVALID_DEVICE, 101, CUDA_ERROR_INVALID_DEVICE)                         \
    X(INVALID_CONTEXT, 201, CUDA_ERROR_INVALID_CONTEXT)                       \
    X(INVALID_HANDLE, 400, CUDA_ERROR_INVALID_HANDLE)                         \
    X(NOT_READY, 600, CUDA_ERROR_NOT_READY)                                   \
    X(ILLEGAL_ADDRESS, 700, CUDA_ERROR_ILLEGAL_ADDRESS)                       \
    X(CONTEXT_IS_DESTROYED, 709, CUDA_ERROR_CONTEXT_IS_DESTROYED)             \
    X(LAUNCH_FAILED, 719, CUDA_ERROR_LAUNCH_FAILED)                           \
    X(ERROR_NOT_SUPPORTED, 801, CUDA_ERROR_NOT_SUPPORTED)                     \
    X(STREAM_CAPTURE_UNSUPPORTED, 900, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) \
    X(STREAM_CAPTURE_IMPLICIT, 906, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)       \
    X(CAPTURED_EVENT, 907, CUDA_ERROR_CAPTURED_EVENT)                         \
    X(UNKNOWN, 999, CUDA_ERROR_UNKNOWN)

#define DD_CUDA_CAPTURE_STATUS_LIST(X)            \
    X(NONE, 0, CU_STREAM_CAPTURE_STATUS_NONE)     \
    X(ACTIVE, 1, CU_STREAM_CAPTURE_STATUS_ACTIVE) \
    X(INVALIDATED, 2, CU_STREAM_CAPTURE_STATUS_INVALIDATED)

#define DD_CUDA_CAPTURE_MODE_LIST(X)                        \
    X(GLOBAL, 0, CU_STREAM_CAPTURE_MODE_GLOBAL)             \
    X(THREAD_LOCAL, 1, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) \
    X(RELAXED, 2, CU_STREAM_CAPTURE_MODE_RELAXED)

#define DD_CUDA_DEVICE_ATTRIBUTE_LIST(X)                                          \
    X(PCI_BUS_ID, 33, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)                             \
    X(PCI_DEVICE_ID, 34, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)                       \
    X(UNIFIED_ADDRESSING, 41, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING)             \
    X(PCI_DOMAIN_ID, 50, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)                       \
    X(COMPUTE_CAPABILITY_MAJOR, 75, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) \
    X(COMPUTE_CAPABILITY_MINOR, 76, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR) \
    X(MEMORY_POOLS_SUPPORTED, 115, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)

#define DD_CUDA_MEMORY_TYPE_LIST(X)    \
    X(HOST, 1, CU_MEMORYTYPE_HOST)     \
    X(DEVICE, 2, CU_MEMORYTYPE_DEVICE) \
    X(ARRAY, 3, CU_MEMORYTYPE_ARRAY)   \
    X(UNIFIED, 4, CU_MEMORYTYPE_UNIFIED)

/* X(name, value, CUDA's name): flags, and single values of other enums. */
#define DD_CUDA_FLAG_LIST(X)                                   \
    X(ALLOCATION_PINNED, 1, CU_MEM_ALLOCATION_TYPE_PINNED)     \
    X(LOCATION_DEVICE, 1, CU_MEM_LOCATION_TYPE_DEVICE)         \
    X(ACCESS_READWRITE, 3, CU_MEM_ACCESS_FLAGS_PROT_READWRITE) \
    X(STREAM_NON_BLOCKING, 1, CU_STREAM_NON_BLOCKING)          \
    X(EVENT_DISABLE_TIMING, 2, CU_EVENT_DISABLE_TIMING)        \
    X(MEMHOSTALLOC_PORTABLE, 1, CU_MEMHOSTALLOC_PORTABLE)

#define DD_CUDA_ENUM(name, value, theirs) DD_CUDA_##name = (value),
#define DD_CUDA_CAPTURE_STATUS_ENUM(name, value, theirs) DD_CUDA_CAPTURE_##name = (value),
#define DD_CUDA_CAPTURE_MODE_ENUM(name, value, theirs) DD_CUDA_CAPTURE_MODE_##name = (value),
#define DD_CUDA_DEVICE_ATTRIBUTE_ENUM(name, value, theirs) DD_CUDA_DEVICE_##name = (value),
#define DD_CUDA_MEMORY_TYPE_ENUM(name, value, theirs) DD_CUDA_MEMORY_##name = (value),

/* CUDA's results; the driver also returns values that are not in the list. */
typedef enum dd_cuda_result { DD_CUDA_RESULT_LIST(DD_CUDA_ENUM) } dd_cuda_result;
typedef enum dd_cuda_capture_status {
    DD_CUDA_CAPTURE_STATUS_LIST(DD_CUDA_CAPTURE_STATUS_ENUM)
} dd_cuda_capture_status;
typedef enum dd_cuda_capture_mode {
    DD_CUDA_CAPTURE_MODE_LIST(DD_CUDA_CAPTURE_MODE_ENUM)
} dd_cuda_capture_mode;
typedef enum dd_cuda_device_attribute {
    DD_CUDA_DEVICE_ATTRIBUTE_LIST(DD_CUDA_DEVICE_ATTRIBUTE_ENUM)
} dd_cuda_device_attribute;
typedef enum dd_cuda_memory_type { DD_CUDA_MEMORY_TYPE_LIST(DD_CUDA_MEMORY_TYPE_ENUM) } dd_cuda_memory_type;
enum { DD_CUDA_FLAG_LIST(DD_CUDA_ENUM) };

/* Streams of every context. NULL is the legacy stream too, as no per-thread functions are used. */
#define DD_CUDA_STREAM_LEGACY ((dd_cuda_stream)(uintptr_t)1)
#define DD_CUDA_STREAM_PER_THREAD ((dd_cuda_stream)(uintptr_t)2)

/* CUDA's CUDA_MEMCPY2D. */
typedef struct dd_cuda_copy_2d {
    size_t srcXInBytes;
    size_t srcY;
    dd_cuda_memory_type srcMemoryType;
    const void *srcHost;
    dd_cuda_ptr srcDevice;
    void *srcArray;
    size_t srcPitch;
    size_t dstXInBytes;
    size_t dstY;
    dd_cuda_memory_type dstMemoryType;
    void *dstHost;
    dd_cuda_ptr dstDevice;
    void *dstArray;
    size_t dstPitch;
    size_t WidthInBytes;
    size_t Height;
} dd_cuda_copy_2d;

/* CUDA's CUmemLocation, CUmemPoolProps and CUmemAccessDesc. */
typedef struct dd_cuda_location {
    int type;
    int id;
} dd_cuda_location;

typedef struct dd_cuda_pool_props {
    int allocType;
    int handleTypes;
    dd_cuda_location location;
    void *win32SecurityAttributes;
    size_t maxSize;
    unsigned short usage;
    unsigned char reserved[54];
} dd_cuda_pool_props;

typedef struct dd_cuda_access {
    dd_cuda_location location;
    int flags;
} dd_cuda_access;

/* X(name, symbol, params): functions that every driver has; all return dd_cuda_result. */
#define DD_CUDA_REQUIRED(X)                                                                                \
    X(cuInit, cuInit, (unsigned int flags))                                                                \
    X(cuDriverGetVersion, cuDriverGetVersion, (int *version))                                              \
    X(cuGetErrorName, cuGetErrorName, (dd_cuda_result result, const char **name))                          \
    X(cuGetErrorString, cuGetErrorString, (dd_cuda_result result, const char **text))                      \
    X(cuDeviceGetCount, cuDeviceGetCount, (int *count))                                                    \
    X(cuDeviceGet, cuDeviceGet, (dd_cuda_device * device, int ordinal))                                    \
    X(cuDeviceGetAttribute, cuDeviceGetAttribute,                                                          \
      (int *value, dd_cuda_device_attribute attribute, dd_cuda_device device))                             \
    X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain,                                                  \
      (dd_cuda_context * context, dd_cuda_device device))                                                  \
    X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (dd_cuda_device device))                    \
    X(cuCtxGetCurrent, cuCtxGetCurrent, (dd_cuda_context * context))                                       \
    X(cuCtxSetCurrent, cuCtxSetCurrent, (dd_cuda_context context))                                         \
    X(cuCtxGetDevice, cuCtxGetDevice, (dd_cuda_device * device))                                           \
    X(cuCtxPushCurrent, cuCtxPushCurrent_v2, (dd_cuda_context context))                                    \
    X(cuCtxPopCurrent, cuCtxPopCurrent_v2, (dd_cuda_context * context))                                    \
    X(cuCtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange, (int *least, int *greatest))               \
    X(cuStreamCreateWithPriority, cuStreamCreateWithPriority,                                              \
      (dd_cuda_stream * stream, unsigned int flags, int priority))                                         \
    X(cuStreamDestroy, cuStreamDestroy_v2, (dd_cuda_stream stream))                                        \
    X(cuStreamQuery, cuStreamQuery, (dd_cuda_stream stream))                                               \
    X(cuStreamWaitEvent, cuStreamWaitEvent,                                                                \
      (dd_cuda_stream stream, dd_cuda_event event, unsigned int flags))                                    \
    X(cuStreamIsCapturing, cuStreamIsCapturing, (dd_cuda_stream stream, dd_cuda_capture_status * status))  \
    X(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, (dd_cuda_capture_mode * mode)) \
    X(cuEventCreate, cuEventCreate, (dd_cuda_event * event, unsigned int flags))                           \
    X(cuEventRecord, cuEventRecord, (dd_cuda_event event, dd_cuda_stream stream))                          \
    X(cuEventQuery, cuEventQuery, (dd_cuda_event event))                                                   \
    X(cuEventElapsedTime, cuEventElapsedTime, (float *ms, dd_cuda_event start, dd_cuda_event end))         \
    X(cuEventDestroy, cuEventDestroy_v2, (dd_cuda_event event))                                            \
    X(cuMemAlloc, cuMemAlloc_v2, (dd_cuda_ptr * data, size_t nbytes))                                      \
    X(cuMemFree, cuMemFree_v2, (dd_cuda_ptr data))                                                         \
    X(cuMemHostAlloc, cuMemHostAlloc, (void **data, size_t nbytes, unsigned int flags))                    \
    X(cuMemFreeHost, cuMemFreeHost, (void *data))                                                          \
    X(cuMemcpyAsync, cuMemcpyAsync,                                                                        \
      (dd_cuda_ptr dst, dd_cuda_ptr src, size_t nbytes, dd_cuda_stream stream))                            \
    X(cuMemcpy2DAsync, cuMemcpy2DAsync_v2, (const dd_cuda_copy_2d *copy, dd_cuda_stream stream))           \
    X(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2,                                                             \
      (void *dst, dd_cuda_ptr src, size_t nbytes, dd_cuda_stream stream))                                  \
    X(cuMemsetD8Async, cuMemsetD8Async,                                                                    \
      (dd_cuda_ptr dst, unsigned char value, size_t nbytes, dd_cuda_stream stream))

/* X(name, symbol, params): functions that may be missing. Memory pools need CUDA 11.2 and a device
 * that supports them. Only tests use cuStreamSynchronize. */
#define DD_CUDA_OPTIONAL(X)                                                                                 \
    X(cuDeviceCanAccessPeer, cuDeviceCanAccessPeer, (int *can, dd_cuda_device device, dd_cuda_device peer)) \
    X(cuMemPoolCreate, cuMemPoolCreate, (dd_cuda_pool * pool, const dd_cuda_pool_props *props))             \
    X(cuMemPoolDestroy, cuMemPoolDestroy, (dd_cuda_pool pool))                                              \
    X(cuMemPoolSetAccess, cuMemPoolSetAccess,                                                               \
      (dd_cuda_pool pool, const dd_cuda_access *accesses, size_t count))                                    \
    X(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync,                                                     \
      (dd_cuda_ptr * data, size_t nbytes, dd_cuda_pool pool, dd_cuda_stream stream))                        \
    X(cuMemFreeAsync, cuMemFreeAsync, (dd_cuda_ptr data, dd_cuda_stream stream))                            \
    X(cuModuleLoadData, cuModuleLoadData, (dd_cuda_module * module, const void *image))                     \
    X(cuModuleUnload, cuModuleUnload, (dd_cuda_module module))                                              \
    X(cuModuleGetFunction, cuModuleGetFunction,                                                             \
      (dd_cuda_function * function, dd_cuda_module module, const char *name))                               \
    X(cuLaunchKernel, cuLaunchKernel,                                                                       \
      (dd_cuda_function function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,            \
       unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,         \
       dd_cuda_stream stream, void **params, void **extra))                                                 \
    X(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle,                                             \
      (dd_cuda_memory_handle * handle, void *data))                                                         \
    X(cuMemRelease, cuMemRelease, (dd_cuda_memory_handle handle))                                           \
    X(cuStreamSynchronize, cuStreamSynchronize, (dd_cuda_stream stream))

#define DD_CUDA_POINTER(name, symbol, params) dd_cuda_result(*name) params;

/* The driver's functions; optional ones may be NULL. */
typedef struct dd_cuda_api {
    DD_CUDA_REQUIRED(DD_CUDA_POINTER)
    DD_CUDA_OPTIONAL(DD_CUDA_POINTER)
} dd_cuda_api;

#endif
