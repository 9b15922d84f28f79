/* The watchdog of NCCL groups: a thread that notices when works end.
 *
 * At every interval it queries the device about the works of all groups, in the order of their
 * calls, and NCCL about its communicators. It completes ended works, which may run callbacks
 * (work.h). If a work misses its deadline or NCCL reports an error, the watchdog fails the group:
 * it raises the recorder's alarm, ends all works with the cause, then aborts each communicator on
 * its own thread, since an abort may hang. The watchdog runs no Python, uses no store and never
 * blocks other threads for long. Its heartbeat shows whether it is alive. */
#ifndef DD_NCCL_WATCHDOG_H
#define DD_NCCL_WATCHDOG_H

#include "core/list.h"
#include "core/status.h"
#include "nccl/driver/cuda.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct dd_nccl_watchdog dd_nccl_watchdog;

typedef struct dd_nccl_watchdog_options {
    int64_t interval_ns; /* time between two checks; see dd_nccl_watchdog_hurry. 0 for 20 ms */
    /* Timeout for aborting the communicators when a failed group is closed; 0 for 1 s. An abort
     * that hangs longer is abandoned with its thread. Works end without waiting for aborts. */
    int64_t abort_timeout_ns;
    bool is_abort_off; /* error handling mode 0: report errors, but abort nothing */
} dd_nccl_watchdog_options;

/* Create a watchdog. Its thread starts when the first group is opened. */
dd_status dd_nccl_watchdog_create(const dd_cuda *cuda, const dd_nccl_watchdog_options *options,
                                  dd_nccl_watchdog **watchdog, dd_error *err) DD_MUST_CHECK;
/* Destroy the watchdog (may be NULL) after the last group has ended. Waits up to 2 s for
 * communicators that are being aborted; then lib and cuda may be closed. */
void dd_nccl_watchdog_destroy(dd_nccl_watchdog *watchdog);

/* Return a counter that grows while the thread is alive; 0 while it sleeps for lack of works. */
uint64_t dd_nccl_watchdog_heartbeat(const dd_nccl_watchdog *watchdog);
/* Return the thread's current call: "cuEventQuery", "ncclCommGetAsyncError" or ""; static text. */
const char *dd_nccl_watchdog_activity(const dd_nccl_watchdog *watchdog);

/* Check at least every millisecond until all works have ended; for callers that do not poll. */
void dd_nccl_watchdog_hurry(dd_nccl_watchdog *watchdog);

#endif
