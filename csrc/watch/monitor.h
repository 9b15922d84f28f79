/* The monitor: makes of a failure on one rank dumps and reports on all of them.
 *
 * It belongs to one thread that may block, and that judges the others: NCCL's watchdog by its heartbeat, the interpreter by asking
 * it. It takes the recorder's alarms, writes dumps, tells the other ranks in the store, and looks there every interval for what others
 * tell. A group that fails waits for none of this.
 *
 * In the store of a group (its prefix):
 *     "exception_dump"         everybody dumps: in the first group of the process only. The rank, 4 bytes little endian
 *     "remote_error:<group>"   the group has failed: see signal.h
 *     "dldist/watch/..."       memberships, and how far ranks are
 * and in the store below all prefixes "dldist/signals", a count of signals: what is looked at every interval. A group that is
 * made again under the same name has other keys, "<key>:<n>": every rank counts its memberships in the store. */
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

/* Which failures are dumped; a dump that is asked for always is. */
typedef enum dd_dumping {
    DD_DUMPING_OFF,
    DD_DUMPING_DEVICES, /* those of groups whose memory is a device's, and those that other ranks tell */
    DD_DUMPING_ON,
} dd_dumping;

/* What the monitor asks of the program around it. */
typedef struct dd_monitor_host {
    /* Returns when the interpreter has given a sign of life. Runs on a thread of its own; nobody waits long for it. */
    void (*await_interpreter)(void);
    /* Ends the process. */
    void (*die)(void *ctx, const char *reason);
    void *ctx;
} dd_monitor_host;

typedef struct dd_monitor_options {
    dd_recorder *recorder; /* outlives the monitor; the alarms are the monitor's alone */
    int64_t check_interval_ns;
    bool is_propagating;     /* groups that have failed here fail on the other ranks */
    bool is_desync;          /* ranks publish how far they are */
    bool is_dumping_aborted; /* groups that somebody has aborted count as failures to dump */
    dd_dumping dumping;
    dd_dump_options dump;
    int64_t dump_timeout_ns;     /* the monitor waits no longer for a dump */
    const char *dump_path;       /* the file; folders are made */
    const char *pipe_path;       /* "": none. Bytes written to this named pipe ask for a dump */
    const dd_monitor_host *host; /* copied */
} dd_monitor_options;

/* Takes copies. The pipe is made here: DD_SYSTEM when it cannot be. */
dd_status dd_monitor_create(const dd_monitor_options *options, dd_monitor **monitor,
                            dd_error *err) DD_MUST_CHECK;
/* After run() has returned. NULL is fine. */
void dd_monitor_destroy(dd_monitor *monitor);

/* The life of the monitor's thread: returns after dd_monitor_stop, at once if that came first. */
void dd_monitor_run(dd_monitor *monitor);
/* One look at everything that is due, for tests. */
void dd_monitor_step(dd_monitor *monitor);
/* Waits for the end of run(), for grace_ns at most. Alarms raised before this are still seen to, and other ranks are left the time
 * to read what was told them. From any other thread. */
void dd_monitor_stop(dd_monitor *monitor, int64_t grace_ns);

/* Asks for a dump. From any thread, and from a handler of a signal. */
void dd_monitor_request_dump(dd_monitor *monitor);

/* ---- groups */

typedef struct dd_monitor_member {
    dd_bytes name; /* as the recorder has it */
    int rank;      /* in the group */
    int size;
    dd_store *store; /* the group's own, acquired; NULL: it is in reports only */
    bool is_device;  /* see dd_dumping */
    bool is_fatal;   /* its failure ends the process, after all else */
    /* Fails the group as another rank's failure wants it, and takes no time; NULL: its ranks tell each other. */
    void (*fail)(void *ctx, const dd_error *cause);
    dd_recorder_group
        *record; /* whose alarms are its own, and how far it is; acquired. NULL: nothing is known */
    /* Nobody asks any more; NULL is fine. From any thread. */
    void (*release)(void *ctx);
    void *ctx;
} dd_monitor_member;

/* Costs the caller a request to the store where the group's signals are looked at; one that fails leaves the group without signals. On
 * failure release is not called. */
dd_status dd_monitor_add(dd_monitor *monitor, const dd_monitor_member *member, uint64_t *id,
                         const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
/* Its alarms are seen to first. Waits a second at most for what is under way; the store is let go then at the latest. */
void dd_monitor_remove(dd_monitor *monitor, uint64_t id);

/* ---- the watchdog */

typedef struct dd_monitor_heartbeat {
    uint64_t (*count)(void *ctx);       /* 0: nothing to watch */
    const char *(*activity)(void *ctx); /* static text */
    void *ctx;                          /* outlives the monitor, or the next call with NULL */
    int64_t timeout_ns;
    bool is_fatal; /* one that stands still ends the process; else groups that can be are failed */
} dd_monitor_heartbeat;

/* NULL: there is none any more. */
void dd_monitor_set_heartbeat(dd_monitor *monitor, const dd_monitor_heartbeat *heartbeat);

/* ---- what it has found out */

/* The last report, empty when there is none: lines of text. Replaces what the blob holds. */
dd_status dd_monitor_get_report(dd_monitor *monitor, dd_blob *report, dd_error *err) DD_MUST_CHECK;

#endif
