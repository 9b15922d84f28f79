/* The monitor: turns a failure on one rank into dumps and reports on all ranks.
 *
 * It belongs to one thread that may block, and that supervises others: NCCL's watchdog by its
 * heartbeat, the interpreter by a query. It takes the recorder's alarms, writes dumps, signals to
 * the other ranks through the store, and reads their signals there every interval. A failing group
 * never waits for it. Keys in the store of a group (its prefix):
 *
 *     "exception_dump"         all ranks dump; only in the process's first group. The rank, 4 bytes
 *     "remote_error:<group>"   the group has failed: see signal.h
 *     "dldist/watch/..."       memberships, and the progress of ranks
 *
 * In the store below all prefixes, "dldist/signals" counts the signals: only this count is read
 * every interval. A group that is created again under the same name has other keys, "<key>:<n>":
 * every rank counts its memberships in the store. */
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

/* Failures for which a dump is written. A requested dump is always written. */
typedef enum dd_dumping {
    DD_DUMPING_OFF,
    DD_DUMPING_DEVICES, /* of groups with device memory, and those signalled by other ranks */
    DD_DUMPING_ON,
} dd_dumping;

/* Functions of the program that the monitor needs. */
typedef struct dd_monitor_host {
    /* Return once the interpreter has run a call. Called on its own thread. */
    void (*await_interpreter)(void);
    /* End the process. */
    void (*end_process)(void *ctx, const char *reason);
    void *ctx;
} dd_monitor_host;

typedef struct dd_monitor_options {
    dd_recorder *recorder; /* must outlive the monitor; only the monitor may take its alarms */
    int64_t check_interval_ns;
    bool is_propagating;     /* groups that fail here fail on the other ranks */
    bool is_desync;          /* ranks publish their progress */
    bool is_dumping_aborted; /* aborted groups count as failures to dump */
    dd_dumping dumping;
    dd_dump_options dump;
    int64_t dump_timeout_ns;     /* longest time to wait for a dump */
    const char *dump_path;       /* the file; missing directories are created */
    const char *pipe_path;       /* "" for none. Bytes in this named pipe request a dump */
    const dd_monitor_host *host; /* copied */
} dd_monitor_options;

/* Create a monitor and its pipe; copies the options. DD_SYSTEM if the pipe cannot be created. */
dd_status dd_monitor_create(const dd_monitor_options *options, dd_monitor **monitor,
                            dd_error *err) DD_MUST_CHECK;
/* Call it after dd_monitor_run has returned. NULL is allowed. */
void dd_monitor_destroy(dd_monitor *monitor);

/* Run the monitor's thread. Returns after dd_monitor_stop, immediately if that was called first. */
void dd_monitor_run(dd_monitor *monitor);
/* Do one step of dd_monitor_run; for tests. */
void dd_monitor_step(dd_monitor *monitor);
/* Wait until dd_monitor_run returns, at most grace_ns. Alarms raised before this are still handled,
 * and other ranks get time to read the signals. Must be called on another thread. */
void dd_monitor_stop(dd_monitor *monitor, int64_t grace_ns);

/* Request a dump. Any thread, and signal handlers. */
void dd_monitor_request_dump(dd_monitor *monitor);

/* ---- groups */

typedef struct dd_monitor_member {
    dd_bytes name; /* as in the recorder */
    int rank;      /* in the group */
    int size;
    dd_store *store; /* the group's own, acquired; NULL if the group is only in reports */
    bool is_device;  /* see dd_dumping */
    bool is_fatal;   /* its failure ends the process, after everything else */
    /* Fail the group because of another rank's failure, without blocking. NULL if its ranks notify
     * each other themselves. */
    void (*fail)(void *ctx, const dd_error *cause);
    /* its alarms and progress; acquired. NULL if it is not recorded */
    dd_recorder_group *record;
    /* Called once ctx is no longer used, on any thread; may be NULL. */
    void (*release)(void *ctx);
    void *ctx;
} dd_monitor_member;

/* Add a group. If its signals are read, this sends a request to the store; if that fails, the group
 * has no signals. On failure release is not called. */
dd_status dd_monitor_add(dd_monitor *monitor, const dd_monitor_member *member, uint64_t *id,
                         const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
/* Remove a group, after its alarms are handled. Waits at most a second for a running pass; the
 * store is released at the end of that pass at the latest. */
void dd_monitor_remove(dd_monitor *monitor, uint64_t id);

/* ---- the watchdog */

typedef struct dd_monitor_heartbeat {
    uint64_t (*count)(void *ctx);       /* 0 if there is nothing to watch */
    const char *(*activity)(void *ctx); /* static text */
    void *ctx;                          /* must outlive the monitor, or the next call with NULL */
    int64_t timeout_ns;
    bool is_fatal; /* if it stops, end the process; else fail the groups with `fail` */
} dd_monitor_heartbeat;

/* Set the heartbeat, or remove it if `heartbeat` is NULL. */
void dd_monitor_set_heartbeat(dd_monitor *monitor, const dd_monitor_heartbeat *heartbeat);

/* ---- reports */

/* Copy the last report, lines of text, to the blob; empty if there is none. */
dd_status dd_monitor_get_report(dd_monitor *monitor, dd_blob *report, dd_error *err) DD_MUST_CHECK;

#endif
