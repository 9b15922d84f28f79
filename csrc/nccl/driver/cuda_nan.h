/* Looking for NaN on devices, in the order of a stream, by a kernel of ours (nan_kernel.cu), which the driver compiles for each
 * device at its first use. The kernel writes what it finds into a report: pinned memory of the host, so that nothing is copied. */
#ifndef DD_NCCL_DRIVER_CUDA_NAN_H
#define DD_NCCL_DRIVER_CUDA_NAN_H

#include "nccl/driver/cuda_api.h"

#include <stdatomic.h>
#include <stdbool.h>

/* The least key of those with a NaN, plus the index of the first there. */
typedef atomic_ullong dd_cuda_nan_report;
#define DD_CUDA_NAN_NONE UINT64_MAX

/* Some floats of one kind, and what is reported of them. */
typedef struct dd_cuda_nan_search {
    const void *data;
    uint64_t nfloats; /* at least 1 */
    unsigned width;   /* bytes of a float: 1, 2, 4 or 8 */
    uint64_t limit;   /* from which value on, without the sign, its bits are NaN */
    uint64_t key;     /* at least nfloats apart from others in the same report */
    dd_cuda_nan_report *report;
} dd_cuda_nan_search;

/* The kernels of all devices, and the reports that are kept. Any thread. */
typedef struct dd_cuda_nan dd_cuda_nan;

/* NULL without memory. */
dd_cuda_nan *dd_cuda_nan_create(const dd_cuda_api *api, int ndevices);
/* After everything that uses it, graphs included. */
void dd_cuda_nan_destroy(dd_cuda_nan *nan);

/* The three below want the device's context to be current, and a thread that may allocate memory, should one capture. */

/* Whether the driver takes the kernels: it is asked once. */
bool dd_cuda_nan_is_ready(dd_cuda_nan *nan, int device);
/* Of a device that is ready. */
dd_cuda_result dd_cuda_nan_enqueue(const dd_cuda_nan *nan, int device, const dd_cuda_nan_search *search,
                                   dd_cuda_stream stream);
/* A report that says DD_CUDA_NAN_NONE; freed by cuMemFreeHost, or handed back here: CUDA graphs may write it for as long as they live, and
 * nobody is told of their end. NULL is fine. */
dd_cuda_result dd_cuda_nan_report_create(const dd_cuda_nan *nan, dd_cuda_nan_report **report);
void dd_cuda_nan_report_keep(dd_cuda_nan *nan, dd_cuda_nan_report *report);

/* The kernels as PTX: nan_ptx.c. */
extern const char dd_nan_ptx[];

#endif
