/* The monitor: turns a failure on one rank into dumps and reports on all ranks.
 *
 * It runs on one thread, which may block, and supervises other threads: NCCL's watchdog by its
 * heartbeat, the interpreter by a query. It takes the recorder's alarms, writes dumps, signals to
 * the other ranks through the store, and reads their signals in every check interval. A failing
 * group never waits for the monitor. Keys in a group's store (under its prefix):
 *
 *     "exception_dump"         all ranks dump; only in the process's first group. The rank, 4 bytes
 *     "remote_error:<group>"   the group has failed: see signal.h
 *     "dldist/watch/..."       memberships, and the progress of ranks
 *
 * In the store below all prefixes, "dldist/signals" counts the signals; only this count is read in
 * every interval. If a group is created again under the same name, its keys are "<key>:<n>": every
 * rank counts its memberships in the store. */
#ifndef DD_WATCH_MONITOR_H
#define DD_WATCH_MONITOR_H

#include "core/bytes.h"
#include "core/status.h"
#include "core/wait.h"
#include "observe/recorder.h"
#include "store/store.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct dd_monitor dd_monitor;

/* Failures after which a dump is written. A requested dump is always written. */
typedef enum dd_dumping {
    DD_DUMPING_OFF,
    DD_DUMPING_DEVICES, /* failures of groups with device memory, and other ranks' signals */
    DD_DUMPING_ON,
} dd_dumping;

/* Functions of the program that the monitor needs. */
typedef struct dd_monitor_host {
    /* Return once the interpreter has run a call. The monitor calls this on a separate thread. */
    void (*await_interpreter)(void);
    /* End the process. */
    void (*end_process)(void *ctx, const char *reason);
    void *ctx;
} dd_monitor_host;

typedef struct dd_monitor_options {
    dd_recorder *recorder; /* must outlive the monitor; only the monitor takes its alarms */
    int64_t check_interval_ns;
    bool is_propagating;     /* if a group fails here, it fails on the other ranks */
    bool is_desync;          /* ranks publish their progress */
    bool is_dumping_aborted; /* an aborted group counts as a failure that causes a dump */
    dd_dumping dumping;
    dd_dump_options dump;
    int64_t dump_timeout_ns;     /* longest time to wait until a dump is written */
    const char *dump_path;       /* the dump's file; missing directories are created */
    const char *pipe_path;       /* a named pipe: bytes written to it request a dump; "" for none */
    const dd_monitor_host *host; /* copied by dd_monitor_create */
} dd_monitor_options;

/* Create a monitor and its pipe. Copies the options. DD_SYSTEM if the pipe cannot be created. */
dd_status dd_monitor_create(const dd_monitor_options *options, dd_monitor **monitor,
                            dd_error *err) DD_MUST_CHECK;
/* Destroy the monitor. Call this after dd_monitor_run has returned. NULL is allowed. */
void dd_monitor_destroy(dd_monitor *monitor);

/* Run the monitor until dd_monitor_stop is called; return immediately if it was called before. */
void dd_monitor_run(dd_monitor *monitor);
/* Do one step of dd_monitor_run, for tests. */
void dd_monitor_step(dd_monitor *monitor);
/* Stop the monitor, and wait for dd_monitor_run to return, at most grace_ns. Earlier alarms are
 * still handled, and other ranks get time to read signals. Not for the monitor's own thread. */
void dd_monitor_stop(dd_monitor *monitor, int64_t grace_ns);

/* Request a dump. May be called on any thread, and in signal handlers. */
void dd_monitor_request_dump(dd_monitor *monitor);

/* ---- groups */

typedef struct dd_monitor_member {
    dd_bytes name; /* name of the group, as in the recorder */
    int rank;      /* rank of this process in the group */
    int size;
    dd_store *store; /* the group's store, acquired; NULL if the group is only in reports */
    bool is_device;  /* true if the group has device memory: see dd_dumping */
    bool is_fatal;   /* true if the group's failure finally ends the process */
    /* Fail the group because of another rank's failure, without blocking. NULL if the group's ranks
     * notify each other themselves. */
    void (*fail)(void *ctx, const dd_error *cause);
    /* the group in the recorder, acquired; NULL if it is not recorded */
    dd_recorder_group *record;
    /* Called, on any thread, when the monitor no longer uses `ctx`; may be NULL. */
    void (*release)(void *ctx);
    void *ctx;
} dd_monitor_member;

/* Add a group. If the group uses signals, this sends a request to the store; if the request fails,
 * the group works without signals. On failure `release` is not called. */
dd_status dd_monitor_add(dd_monitor *monitor, const dd_monitor_member *member, uint64_t *id,
                         const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
/* Remove a group, after its alarms are handled. Waits at most a second for a pass of the monitor.
 * At the latest at the end of that pass, the store is released. */
void dd_monitor_remove(dd_monitor *monitor, uint64_t id);

/* ---- the watchdog */

typedef struct dd_monitor_heartbeat {
    /* Return a number that grows while the watchdog runs; 0 if there is nothing to watch. */
    uint64_t (*count)(void *ctx);
    const char *(*activity)(void *ctx); /* the watchdog's current activity, as static text */
    void *ctx;                          /* must live until the heartbeat is removed */
    int64_t timeout_ns;
    /* If the heartbeat stops: true to end the process, false to fail the groups that
     * have `fail`. */
    bool is_fatal;
} dd_monitor_heartbeat;

/* Set the heartbeat that the monitor watches, or remove it if `heartbeat` is NULL. */
void dd_monitor_set_heartbeat(dd_monitor *monitor, const dd_monitor_heartbeat *heartbeat);

/* ---- reports */

/* Copy the last report, as lines of text, to `report`; empty if there was none. */
dd_status dd_monitor_get_report(dd_monitor *monitor, dd_blob *report, dd_error *err) DD_MUST_CHECK;

#endif
