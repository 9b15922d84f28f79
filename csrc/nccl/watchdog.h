/* The watchdog of NCCL's groups: a thread that sees how works end.
 *
 * Every interval it asks the device about the works of all groups in the order of their calls, and NCCL about its communicators. Ended
 * works are completed (which may call back, see work.h); a work past its deadline, or an error of NCCL, fails its group:
 * first the recorder's alarm is raised, then works end with the cause, then communicators are aborted, on a thread of their own,
 * since that may hang. It runs no Python, touches no store and is never in anybody's way for long. Whether it lives is for others to
 * judge, by its heartbeat. */
#ifndef DD_NCCL_WATCHDOG_H
#define DD_NCCL_WATCHDOG_H

#include "core/list.h"
#include "core/status.h"
#include "nccl/driver/cuda.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct dd_nccl_watchdog dd_nccl_watchdog;

typedef struct dd_nccl_watchdog_options {
    int64_t interval_ns; /* between two looks while nobody waits; 0: 20 ms */
    /* How long a thread that lets go of a failed group waits for the abort of its communicators, which may hang; then it is left
     * behind with its thread. 0: 1 s. Works do not wait for it. */
    int64_t abort_timeout_ns;
    bool is_abort_off; /* error handling mode 0: nothing is aborted, errors are only told */
} dd_nccl_watchdog_options;

/* Starts no thread: the first group does. */
dd_status dd_nccl_watchdog_create(const dd_cuda *cuda, const dd_nccl_watchdog_options *options,
                                  dd_nccl_watchdog **watchdog, dd_error *err) DD_MUST_CHECK;
/* After the last group. Waits, for a while, for communicators that are being aborted; then lib and cuda may be closed. NULL is fine. */
void dd_nccl_watchdog_destroy(dd_nccl_watchdog *watchdog);

/* Counts up as long as it is alive; 0 while it has nothing to watch and sleeps. */
uint64_t dd_nccl_watchdog_heartbeat(const dd_nccl_watchdog *watchdog);
/* What it is doing, for reports: "cuEventQuery", "ncclCommAbort", "" ; static text. */
const char *dd_nccl_watchdog_activity(const dd_nccl_watchdog *watchdog);

/* Somebody waits for the end of a work without asking himself: looks come every millisecond at most while there is such a work. */
void dd_nccl_watchdog_hurry(dd_nccl_watchdog *watchdog);

#endif
