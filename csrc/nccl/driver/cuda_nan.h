/* Search for NaN on devices, in stream order, by a kernel (nan_kernel.cu) that the driver compiles
 * for each device at first use. The kernel writes its report to pinned host memory. */
#ifndef DD_NCCL_DRIVER_CUDA_NAN_H
#define DD_NCCL_DRIVER_CUDA_NAN_H

#include "nccl/driver/cuda_api.h"

#include <stdatomic.h>
#include <stdbool.h>

/* Result of searches: the smallest key + index of any NaN; DD_CUDA_NAN_NONE if there is no NaN. */
typedef atomic_ullong dd_cuda_nan_report;
#define DD_CUDA_NAN_NONE UINT64_MAX

/* One search: floats of one type, and where to report a NaN. */
typedef struct dd_cuda_nan_search {
    const void *data;
    uint64_t nfloats; /* number of floats; at least 1 */
    unsigned width;   /* size of a float in bytes: 1, 2, 4 or 8 */
    uint64_t limit;   /* a float is NaN if its bits without the sign are at least this */
    /* Added to a NaN's index in the report. Keys of two searches must be nfloats or more apart. */
    uint64_t key;
    dd_cuda_nan_report *report;
} dd_cuda_nan_search;

/* The kernels of all devices, and the reports that CUDA graphs may still write. For any thread. */
typedef struct dd_cuda_nan dd_cuda_nan;

/* Return NULL if there is no memory. */
dd_cuda_nan *dd_cuda_nan_create(const dd_cuda_api *api, int ndevices);
/* Free everything. Must be called after all users have ended, including CUDA graphs. */
void dd_cuda_nan_destroy(dd_cuda_nan *nan);

/* Before the next three functions, make the device's context current, and relax captures. */

/* Return true if the driver accepts the kernels. Only a device's first call tries to load them. */
bool dd_cuda_nan_is_ready(dd_cuda_nan *nan, int device);
/* Enqueue a search. dd_cuda_nan_is_ready must have returned true for the device before. */
dd_cuda_result dd_cuda_nan_enqueue(const dd_cuda_nan *nan, int device, const dd_cuda_nan_search *search,
                                   dd_cuda_stream stream);
/* Create a report that holds DD_CUDA_NAN_NONE. Free it with cuMemFreeHost; but if CUDA graphs may
 * write to it, pass it to dd_cuda_nan_report_retire (may be NULL): a graph's end is unknown. */
dd_cuda_result dd_cuda_nan_report_create(const dd_cuda_nan *nan, dd_cuda_nan_report **report);
void dd_cuda_nan_report_retire(dd_cuda_nan *nan, dd_cuda_nan_report *report);

/* the kernels' PTX code, from nan_ptx.inc */
extern const char dd_nan_ptx[];

#endif
