/* Windows: memory of all ranks of an NCCL group that the others write into, and signals (NCCL 2.29.2).
 *
 * Puts, signals and waits for signals are operations of the group (dd_nccl_op), in the order of its stream. NCCL has no put without a
 * signal. Signals are counted for each rank and channel, and belong to the communicator: windows on one device share them. A put sends
 * what lies in a window of its own rank, this one or another. */
#ifndef DD_NCCL_WINDOW_H
#define DD_NCCL_WINDOW_H

#include "nccl/group.h"

typedef struct dd_nccl_window_spec {
    int device;
    void *data; /* of ncclMemAlloc; the caller's to keep until close */
    size_t nbytes;
    dd_dtype dtype;
    /* Not DD_OK: why this rank cannot have one. It takes part only for the others to hear of it. */
    dd_status obstacle;
} dd_nccl_window_spec;

/* All ranks call, in the same order as their other windows, with as many bytes of the same dtype: else DD_MISMATCH on all ranks, which names
 * two. What one rank cannot do, all fail with, and the group goes on. DD_NOT_SUPPORTED: NCCL is too old. DD_INVALID_ARGUMENT: NCCL makes no
 * window of this memory. Waits for the others until `wait` or the group's time-out. One reference. */
dd_status dd_nccl_group_window_open(dd_nccl_group *group, const dd_nccl_window_spec *spec,
                                    dd_nccl_group_window **window, const dd_wait *wait,
                                    dd_error *err) DD_MUST_CHECK;
/* All ranks call: it makes the host wait for all, then ends the window, also when waiting fails. What has been put is in place where its
 * signal has been waited for. Idempotent; does nothing in a group that has ended. */
dd_status dd_nccl_group_window_close(dd_nccl_group_window *window, const dd_wait *wait,
                                     dd_error *err) DD_MUST_CHECK;
dd_nccl_group_window *dd_nccl_group_window_acquire(dd_nccl_group_window *window);
/* The last one leaves an open window to its communicator. NULL is fine. */
void dd_nccl_group_window_release(dd_nccl_group_window *window);

/* False also when its group has ended. */
bool dd_nccl_group_window_is_open(const dd_nccl_group_window *window);
/* One, unless num_rma_sig of the group's configuration (NCCL 2.31) says more. */
int dd_nccl_group_window_nchannels(const dd_nccl_group_window *window);

#endif
