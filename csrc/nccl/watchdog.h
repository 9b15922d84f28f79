/* The watchdog of NCCL groups: a thread that notices the end of works.
 *
 * At every interval it queries the device about the works of all groups, in the order of their
 * calls, and NCCL about its communicators. It completes ended works (which may call back, see
 * work.h). A work past its deadline or an error of NCCL fails the group: first the recorder's alarm
 * is raised, then works end with the cause, then communicators are aborted, each on its own thread
 * since that may hang. The watchdog runs no Python, uses no store and never holds up other threads
 * for long. Its heartbeat shows whether it is alive. */
#ifndef DD_NCCL_WATCHDOG_H
#define DD_NCCL_WATCHDOG_H

#include "core/list.h"
#include "core/status.h"
#include "nccl/driver/cuda.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct dd_nccl_watchdog dd_nccl_watchdog;

typedef struct dd_nccl_watchdog_options {
    int64_t interval_ns; /* between two checks if not hurried; 0 for 20 ms */
    /* Time that closing a failed group waits for the abort of its communicators, which may hang;
     * then their threads are left behind. 0 for 1 s. Works do not wait for it. */
    int64_t abort_timeout_ns;
    bool is_abort_off; /* error handling mode 0: errors are reported, nothing is aborted */
} dd_nccl_watchdog_options;

/* Create a watchdog. Its thread starts with the first group. */
dd_status dd_nccl_watchdog_create(const dd_cuda *cuda, const dd_nccl_watchdog_options *options,
                                  dd_nccl_watchdog **watchdog, dd_error *err) DD_MUST_CHECK;
/* End the watchdog, after the last group. Waits up to 2 s for communicators that are being aborted;
 * then lib and cuda may be closed. May be NULL. */
void dd_nccl_watchdog_destroy(dd_nccl_watchdog *watchdog);

/* Return a counter that grows while the thread is alive; 0 if it sleeps, with nothing to watch. */
uint64_t dd_nccl_watchdog_heartbeat(const dd_nccl_watchdog *watchdog);
/* Return its activity, for reports: "cuEventQuery", "ncclCommGetAsyncError" or ""; static text. */
const char *dd_nccl_watchdog_activity(const dd_nccl_watchdog *watchdog);

/* Check at least every millisecond until all works have ended, for threads that wait passively. */
void dd_nccl_watchdog_hurry(dd_nccl_watchdog *watchdog);

#endif
