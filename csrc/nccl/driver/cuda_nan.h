/* Search for NaN on devices, in stream order, by a kernel (nan_kernel.cu) that the driver compiles
 * for each device at first use. It writes a report in pinned host memory, so nothing is copied. */
#ifndef DD_NCCL_DRIVER_CUDA_NAN_H
#define DD_NCCL_DRIVER_CUDA_NAN_H

#include "nccl/driver/cuda_api.h"

#include <stdatomic.h>
#include <stdbool.h>

/* The smallest of key + index of the first NaN, over all searches that found one. */
typedef atomic_ullong dd_cuda_nan_report;
#define DD_CUDA_NAN_NONE UINT64_MAX

/* Floats of one type to search, and how to report a NaN. */
typedef struct dd_cuda_nan_search {
    const void *data;
    uint64_t nfloats; /* at least 1 */
    unsigned width;   /* bytes of a float: 1, 2, 4 or 8 */
    uint64_t limit;   /* without its sign, a float is NaN if its bits are at least this */
    uint64_t key;     /* at least nfloats away from other keys of the same report */
    dd_cuda_nan_report *report;
} dd_cuda_nan_search;

/* The kernels of all devices, and the reports that graphs may still write. Any thread. */
typedef struct dd_cuda_nan dd_cuda_nan;

/* Return NULL if there is no memory. */
dd_cuda_nan *dd_cuda_nan_create(const dd_cuda_api *api, int ndevices);
/* Free everything. Call it after all users have ended, graphs included. */
void dd_cuda_nan_destroy(dd_cuda_nan *nan);

/* The next three need the device's context current, and captures relaxed: they may allocate. */

/* True if the driver accepts the kernels. Only the first call queries it. */
bool dd_cuda_nan_is_ready(dd_cuda_nan *nan, int device);
/* Enqueue a search. dd_cuda_nan_is_ready must have returned true for the device. */
dd_cuda_result dd_cuda_nan_enqueue(const dd_cuda_nan *nan, int device, const dd_cuda_nan_search *search,
                                   dd_cuda_stream stream);
/* Create a report that holds DD_CUDA_NAN_NONE. Free it with cuMemFreeHost, or hand it to
 * report_keep (may be NULL) if CUDA graphs may write it: their end is not reported. */
dd_cuda_result dd_cuda_nan_report_create(const dd_cuda_nan *nan, dd_cuda_nan_report **report);
void dd_cuda_nan_report_keep(dd_cuda_nan *nan, dd_cuda_nan_report *report);

/* The kernels as PTX, from nan_ptx.inc. */
extern const char dd_nan_ptx[];

#endif
