/* Windows: memory of an NCCL group's ranks that other ranks write to, and signals (NCCL 2.29.2).
 *
 * Puts, signals and waits for signals are operations of the group (dd_nccl_op), in the order of its
 * stream. NCCL has no put without a signal. Signals are counted for each sending rank and channel,
 * by the communicator, so all windows on one device share the counts. The source of a put must lie
 * in a window of its own rank: the same window or another. */
#ifndef DD_NCCL_WINDOW_H
#define DD_NCCL_WINDOW_H

#include "nccl/group.h"

typedef struct dd_nccl_window_spec {
    int device;
    void *data; /* memory from ncclMemAlloc; the caller must keep it until the window is closed */
    size_t nbytes;
    dd_dtype dtype;
    /* DD_OK, or why this rank cannot open: it must still call open, so that all ranks fail. */
    dd_status obstacle;
} dd_nccl_window_spec;

/* Open a window, with one reference. All ranks must call it, in the same order as their other
 * windows, with the same size and dtype (else DD_MISMATCH on all ranks, naming two ranks). If one
 * rank cannot open it, all ranks fail, and the group stays usable. DD_NOT_SUPPORTED if NCCL is too
 * old, DD_INVALID_ARGUMENT if it rejects the memory. Waits until `wait` or the group's timeout. */
dd_status dd_nccl_group_window_open(dd_nccl_group *group, const dd_nccl_window_spec *spec,
                                    dd_nccl_group_window **window, const dd_wait *wait,
                                    dd_error *err) DD_MUST_CHECK;
/* Close a window; all ranks must call it. Waits on the host for all ranks, then ends the window
 * even if the wait fails. Before, wait for the signal of each put: only then is the put complete.
 * Idempotent; no-op if the group has ended. */
dd_status dd_nccl_group_window_close(dd_nccl_group_window *window, const dd_wait *wait,
                                     dd_error *err) DD_MUST_CHECK;
dd_nccl_group_window *dd_nccl_group_window_acquire(dd_nccl_group_window *window);
/* Release a window; may be NULL. A window still open stays registered with its communicator. */
void dd_nccl_group_window_release(dd_nccl_group_window *window);

/* Return true if the window and its group are open. */
bool dd_nccl_group_window_is_open(const dd_nccl_group_window *window);
/* Return the number of signal channels (num_rma_sig of the configuration); 1 if it is not set. */
int dd_nccl_group_window_nchannels(const dd_nccl_group_window *window);

#endif
