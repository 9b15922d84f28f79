/* Declarations that the files of the monitor share. */
#ifndef DD_WATCH_WATCH_INTERNAL_H
#define DD_WATCH_WATCH_INTERNAL_H

#include "core/list.h"
#include "core/lock.h"
#include "core/thread.h"
#include "watch/monitor.h"
#include "watch/signal.h"

#include <stdatomic.h>

#define WATCH_LINE_MAX 1600 /* maximum bytes of a line in a report */
#define WATCH_NAME_MAX 200
#define WATCH_COUNT_MAX 24
/* Failures within this time are one event: they write one dump, and their reports are joined. */
#define WATCH_BURST_NS (10 * DD_NS_PER_S)

typedef struct watch_member {
    dd_list link;
    uint64_t id;               /* const */
    dd_monitor_member info;    /* const; its `name` refers to the field `name` */
    char name[WATCH_NAME_MAX]; /* const; truncated, because it becomes part of keys */
    /* const: the group's store without prefixes; NULL if the group has no store */
    dd_store *root;
    /* guarded by the monitor's mu; the current pass frees the member when it ends */
    bool is_removed;
    /* The following fields may be used only during a pass. */
    /* Number of this rank's memberships in groups of this name; 0 if it was not counted. */
    int64_t epoch;
    char count[WATCH_COUNT_MAX];         /* number of signals in `root` at the last read, as text */
    bool is_checked;                     /* `root` has been read in this round */
    bool is_changed;                     /* the number of signals has changed since the last read */
    bool is_store_lost;                  /* `root` has not answered, and is no longer read */
    bool is_dump_seen;                   /* the signal for dumps has been received or sent */
    bool is_error_seen;                  /* the signal of a failure has been received or sent */
    char published[DD_SIGNAL_STATE_MAX]; /* the progress text that this rank published last */
} watch_member;

struct dd_monitor {
    dd_monitor_options options; /* const; its paths are stored after the monitor */
    dd_monitor_host host;       /* const */
    int pipe_fd;                /* the named pipe; used only during a pass; -1 if there is none */
    int wake_fd;                /* const: an eventfd that wakes the monitor's thread */
    uint64_t generation;        /* const: fork generation in which it was created (core/fork.h) */
    atomic_bool is_dump_requested;
    atomic_bool is_stopping;
    atomic_int_fast64_t stop_deadline_ns;
    atomic_uint_fast64_t ndumps;

    dd_lock mu;
    pthread_cond_t cond; /* broadcast when a pass or the monitor's thread ends */
    /* The following fields are guarded by mu. */
    bool is_running;
    bool is_busy; /* a thread is in a pass: the monitor's, or one that removes a member */
    /* list of watch_member, oldest first; the dump signal is in the first one's store. Members are
     * unlinked only during a pass. */
    dd_list members;
    uint64_t last_id;
    dd_blob report;
    int64_t report_ns;              /* time at which `report` last grew */
    dd_monitor_heartbeat heartbeat; /* its `count` is NULL if there is no heartbeat */

    /* The following fields may be used only during a pass. */
    int64_t last_check_ns;
    int64_t last_dump_ns; /* time of the last dump after a failure; 0 if there was none */
    /* Time of the last signal that this rank sent; 0 if none. Other ranks read it within an
     * interval. */
    int64_t last_signal_ns;
    uint64_t beat; /* number that the heartbeat had at the last check */
    int64_t beat_since_ns;
    bool is_beat_reported;
    struct watch_query *query; /* the latest query of the interpreter, or NULL */
    bool is_query_open;        /* the query had no answer when the last report was written */
};

/* ---- monitor_members.c */

/* Begin a pass: only one thread at a time may use members and stores. Return false on timeout. */
bool watch_begin_pass(dd_monitor *monitor, const dd_wait *wait);
/* End a pass, and free the members that were marked as removed. */
void watch_end_pass(dd_monitor *monitor);
void watch_mark_removed(dd_monitor *monitor, uint64_t id); /* `id` 0: all members */
/* Return a wait for one request to a store; it ends early when the monitor is stopped. */
dd_wait watch_wait(dd_monitor *monitor);
/* Return the member after `after` (the first for NULL), or NULL. Members stay valid during a
 * pass. */
watch_member *watch_next(dd_monitor *monitor, watch_member *after);

/* ---- monitor_signals.c: the store */

/* Count this rank's membership in the store, and set the member's epoch. */
dd_status watch_enter(watch_member *member, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
void watch_publish_dump(dd_monitor *monitor);
void watch_publish_error(dd_monitor *monitor, watch_member *member, const dd_error *cause);
/* Read the signals, once per interval. If a rank requests dumps, return true and a report text. */
bool watch_read_dump(dd_monitor *monitor, char text[WATCH_LINE_MAX]);
/* Fail the groups that have failed on other ranks, and publish this rank's progress. Call after
 * watch_read_dump. */
void watch_read_errors(dd_monitor *monitor);
void watch_publish(dd_monitor *monitor, watch_member *member);
/* Read the progress that each rank of the group has published, by rank; empty if it has published
 * none. A dldist server gets one request for all ranks, because all ranks may report a failure at
 * the same time. The caller must zero `states` before, and must always free them. */
dd_status watch_read_states(dd_monitor *monitor, watch_member *member, dd_blob_list *states,
                            dd_error *err) DD_MUST_CHECK;

/* ---- monitor_dump.c */

dd_status watch_open_pipe(dd_monitor *monitor, dd_error *err) DD_MUST_CHECK;
void watch_close_pipe(dd_monitor *monitor);
/* Read and drop all bytes in the named pipe. Return true if there were any. */
bool watch_drain_pipe(dd_monitor *monitor);
dd_status watch_write_dump(dd_monitor *monitor, dd_error *err) DD_MUST_CHECK;

/* ---- monitor_report.c */

/* Append a line to a report. If memory is short, leave the line out. */
void watch_report_add(dd_blob *report, const char *format, ...) DD_PRINTF(2, 3);
/* Report this rank's groups, and if `desync` is not NULL, the progress of that group's ranks. */
void watch_report_groups(dd_monitor *monitor, watch_member *desync, dd_blob *report);
/* Send a query to the interpreter, unless an earlier query is still unanswered. */
void watch_start_query(dd_monitor *monitor);
void watch_release_query(dd_monitor *monitor);
/* Wait up to 0.3 s for the interpreter's answer. If none arrives, add a line to the report. */
void watch_report_answer(dd_monitor *monitor, dd_blob *report);
/* If the last report had an unanswered query, report its answer once the answer arrives. */
void watch_follow_up(dd_monitor *monitor);
/* Log the report, append it to recent reports of the same event, and empty it. */
void watch_report_finish(dd_monitor *monitor, dd_blob *report);

#endif
