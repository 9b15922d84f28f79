/* Windows: memory of all ranks of an NCCL group that others write to, and signals (NCCL 2.29.2).
 *
 * Puts, signals and waits for signals are operations of the group (dd_nccl_op), in the order of its
 * stream. NCCL has no put without a signal. Signals are counted for each rank and channel; they
 * belong to the communicator, so windows on one device share them. The data of a put must be in a
 * window of its own rank, the same one or another. */
#ifndef DD_NCCL_WINDOW_H
#define DD_NCCL_WINDOW_H

#include "nccl/group.h"

typedef struct dd_nccl_window_spec {
    int device;
    void *data; /* from ncclMemAlloc; the caller must keep it until close */
    size_t nbytes;
    dd_dtype dtype;
    /* DD_OK, or why this rank cannot open a window: it then calls only to notify the others. */
    dd_status obstacle;
} dd_nccl_window_spec;

/* Open a window, with one reference. All ranks must call it, in the same order as their other
 * windows, with the same size and dtype: otherwise DD_MISMATCH on all ranks, which names two. If
 * one rank cannot open it, all fail, and the group stays usable. DD_NOT_SUPPORTED if NCCL is too
 * old, DD_INVALID_ARGUMENT if it rejects the memory. Waits until `wait` or the group's timeout. */
dd_status dd_nccl_group_window_open(dd_nccl_group *group, const dd_nccl_window_spec *spec,
                                    dd_nccl_group_window **window, const dd_wait *wait,
                                    dd_error *err) DD_MUST_CHECK;
/* All ranks must call it. Wait on the host for all ranks, then end the window even if that fails. A
 * put is complete once its signal was waited for. Idempotent; no-op if the group has ended. */
dd_status dd_nccl_group_window_close(dd_nccl_group_window *window, const dd_wait *wait,
                                     dd_error *err) DD_MUST_CHECK;
dd_nccl_group_window *dd_nccl_group_window_acquire(dd_nccl_group_window *window);
/* The last release leaves an open window to its communicator. May be NULL. */
void dd_nccl_group_window_release(dd_nccl_group_window *window);

/* False also if its group has ended. */
bool dd_nccl_group_window_is_open(const dd_nccl_group_window *window);
/* Return num_rma_sig of the group's configuration (NCCL 2.31); 1 if it is not set. */
int dd_nccl_group_window_nchannels(const dd_nccl_group_window *window);

#endif
