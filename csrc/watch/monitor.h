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
 * every interval. If a group is created again under the same name, its keys become "<key>:<n>",
 * where n is the rank's number of memberships, which the store counts. */
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

/* The failures after which a dump is written. A dump that was requested is always written. */
typedef enum dd_dumping {
    DD_DUMPING_OFF,
    DD_DUMPING_DEVICES, /* failures of groups with device memory, and signals of other ranks */
    DD_DUMPING_ON,
} dd_dumping;

/* Functions that the program provides to the monitor. */
typedef struct dd_monitor_host {
    /* Return once the interpreter has run a call. Called by the monitor on a separate thread. */
    void (*await_interpreter)(void);
    /* End the process, for a reason that is given as text. */
    void (*end_process)(void *ctx, const char *reason);
    void *ctx;
} dd_monitor_host;

typedef struct dd_monitor_options {
    dd_recorder *recorder; /* must outlive the monitor, which alone may take its alarms */
    int64_t check_interval_ns;
    bool is_propagating;     /* a group that fails here must also fail on the other ranks */
    bool is_desync;          /* ranks publish their progress, which reports compare */
    bool is_dumping_aborted; /* an aborted group counts as a failure and causes a dump */
    dd_dumping dumping;
    dd_dump_options dump;
    int64_t dump_timeout_ns;     /* longest time to wait for a dump to be written */
    const char *dump_path;       /* path of the dump file; missing directories are created */
    const char *pipe_path;       /* path of a pipe in which any byte requests a dump; or "" */
    const dd_monitor_host *host; /* copied by dd_monitor_create */
} dd_monitor_options;

/* Create a monitor and its pipe. Copies the options. DD_SYSTEM if the pipe cannot be created. */
dd_status dd_monitor_create(const dd_monitor_options *options, dd_monitor **monitor,
                            dd_error *err) DD_MUST_CHECK;
/* Destroy the monitor. Call this after dd_monitor_run has returned. NULL is allowed. */
void dd_monitor_destroy(dd_monitor *monitor);

/* Run the monitor until dd_monitor_stop; return immediately if that was called before. */
void dd_monitor_run(dd_monitor *monitor);
/* Do one step of dd_monitor_run; for tests. */
void dd_monitor_step(dd_monitor *monitor);
/* Stop the monitor, and wait at most grace_ns for dd_monitor_run to return. Earlier alarms are
 * still handled, and other ranks get time to read signals. Not for the monitor's own thread. */
void dd_monitor_stop(dd_monitor *monitor, int64_t grace_ns);

/* Request a dump. May be called on any thread, and in a signal handler. */
void dd_monitor_request_dump(dd_monitor *monitor);

/* ---- groups */

typedef struct dd_monitor_member {
    dd_bytes name; /* the group's name in the recorder */
    int rank;      /* this process's rank in the group */
    int size;
    dd_store *store; /* the group's store, acquired; NULL if only reports show the group */
    bool is_device;  /* the group has device memory: see dd_dumping */
    bool is_fatal;   /* a failure of the group finally ends the process */
    /* Fail the group because of another rank's failure, without blocking. NULL for a group whose
     * ranks notify each other by themselves. */
    void (*fail)(void *ctx, const dd_error *cause);
    /* the group's entry in the recorder, acquired; NULL if the group is not recorded */
    dd_recorder_group *record;
    /* Called, on any thread, once the monitor no longer uses `ctx`; may be NULL. */
    void (*release)(void *ctx);
    void *ctx;
} dd_monitor_member;

/* Add a group. If it uses signals, send a request to its store; if the request fails, the group
 * works without signals. If this function fails, `release` is not called. */
dd_status dd_monitor_add(dd_monitor *monitor, const dd_monitor_member *member, uint64_t *id,
                         const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
/* Remove a group, after its alarms are handled. Waits at most a second for the monitor's current
 * pass, at whose end the store is released at the latest. */
void dd_monitor_remove(dd_monitor *monitor, uint64_t id);

/* ---- the watchdog */

typedef struct dd_monitor_heartbeat {
    /* Return a number that grows while the watchdog runs; 0 if there is no watchdog to check. */
    uint64_t (*count)(void *ctx);
    const char *(*activity)(void *ctx); /* what the watchdog is doing, as static text */
    void *ctx;                          /* must stay valid until the heartbeat is removed */
    int64_t timeout_ns;
    /* Effect of a stopped heartbeat: true to end the process, false to fail groups with a
     * `fail`. */
    bool is_fatal;
} dd_monitor_heartbeat;

/* Set the heartbeat that the monitor checks; NULL removes it. */
void dd_monitor_set_heartbeat(dd_monitor *monitor, const dd_monitor_heartbeat *heartbeat);

/* ---- reports */

/* Copy the last report, as lines of text, to `report`; empty if there has been no report. */
dd_status dd_monitor_get_report(dd_monitor *monitor, dd_blob *report, dd_error *err) DD_MUST_CHECK;

#endif
