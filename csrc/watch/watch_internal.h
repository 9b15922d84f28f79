/* Shared by the files of the monitor. */
#ifndef DD_WATCH_WATCH_INTERNAL_H
#define DD_WATCH_WATCH_INTERNAL_H

#include "core/list.h"
#include "core/lock.h"
#include "core/thread.h"
#include "watch/monitor.h"
#include "watch/signal.h"

#include <stdatomic.h>

#define WATCH_LINE_MAX 1600 /* longest line of a report */
#define WATCH_NAME_MAX 200
#define WATCH_COUNT_MAX 24
/* Failures within this time have one cause: one dump, and their reports are kept together. */
#define WATCH_BURST_NS (10 * DD_NS_PER_S)

typedef struct watch_member {
    dd_list link;
    uint64_t id;               /* const */
    dd_monitor_member info;    /* const; the name is `name` */
    char name[WATCH_NAME_MAX]; /* const; truncated to fit into keys */
    dd_store *root;            /* const: the store below all prefixes; NULL without a store */
    /* guarded by the monitor's mu; a removed member is freed by the current pass */
    bool is_removed;
    /* used only in a pass */
    int64_t epoch; /* number of this rank's memberships in groups of this name; 0 if not counted */
    char count[WATCH_COUNT_MAX];         /* last count of signals in the root */
    bool is_checked;                     /* the root was read in this round */
    bool is_changed;                     /* the count has changed since the last read */
    bool is_store_lost;                  /* the root did not answer, and is not read again */
    bool is_dump_seen;                   /* the signal was received or sent */
    bool is_error_seen;                  /* the signal was received or sent */
    char published[DD_SIGNAL_STATE_MAX]; /* last published progress */
} watch_member;

struct dd_monitor {
    dd_monitor_options options; /* const; the texts follow the monitor in memory */
    dd_monitor_host host;       /* const */
    int pipe_fd;                /* used only in a pass; -1 if there is none */
    int wake_fd;                /* const */
    uint64_t generation;        /* const; see core/fork.h */
    atomic_bool is_dump_requested;
    atomic_bool is_stopping;
    atomic_int_fast64_t stop_deadline_ns;
    atomic_uint_fast64_t ndumps;

    dd_lock mu;
    pthread_cond_t cond; /* broadcast at the end of a pass and of the thread */
    /* guarded by mu */
    bool is_running;
    bool is_busy; /* a thread is in a pass: the monitor's, or one that removes a member */
    /* of watch_member, oldest first: the first has the dump signal. Unlinked only in a pass */
    dd_list members;
    uint64_t last_id;
    dd_blob report;
    int64_t report_ns;              /* time of its last addition */
    dd_monitor_heartbeat heartbeat; /* count is NULL if there is none */

    /* used only in a pass */
    int64_t last_check_ns;
    int64_t last_dump_ns;   /* of a failure; 0 if there was none */
    int64_t last_signal_ns; /* of the last signal, which others read within an interval; or 0 */
    uint64_t beat;          /* last count of the heartbeat */
    int64_t beat_since_ns;
    bool is_beat_reported;
    struct watch_query *query; /* the last query to the interpreter, or NULL */
    bool is_query_open;        /* it was unanswered when the report was written */
};

/* ---- monitor_members.c */

/* Begin a pass: only one at a time uses members and stores. Return false on timeout. */
bool watch_begin_pass(dd_monitor *monitor, const dd_wait *wait);
/* End a pass, and free the removed members. */
void watch_end_pass(dd_monitor *monitor);
void watch_mark_removed(dd_monitor *monitor, uint64_t id); /* 0 for all */
/* Return a wait for one request to a store. It ends early when the monitor is stopped. */
dd_wait watch_wait(dd_monitor *monitor);
/* Return the next member in order, NULL at the end. Members stay valid during the pass. */
watch_member *watch_next(dd_monitor *monitor, watch_member *after);

/* ---- monitor_signals.c: the store */

/* Count this membership in the store. */
dd_status watch_enter(watch_member *member, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
void watch_publish_dump(dd_monitor *monitor);
void watch_publish_error(dd_monitor *monitor, watch_member *member, const dd_error *cause);
/* Read the signals, once per interval. Return true, and its text, if a rank requests dumps. */
bool watch_read_dump(dd_monitor *monitor, char what[WATCH_LINE_MAX]);
/* Fail the groups that have failed on other ranks, and publish this rank's progress. Call it after
 * watch_read_dump. */
void watch_read_errors(dd_monitor *monitor);
void watch_publish(dd_monitor *monitor, watch_member *member);
/* Read the published states of all ranks of the group, by rank; empty if there is none. All states
 * take one request to a dldist server: when all ranks report a failure at the same time, the server
 * gets one request from each. The caller zeroes `states`, and must always free it. */
dd_status watch_read_states(dd_monitor *monitor, watch_member *member, dd_blob_list *states,
                            dd_error *err) DD_MUST_CHECK;

/* ---- monitor_dump.c */

dd_status watch_open_pipe(dd_monitor *monitor, dd_error *err) DD_MUST_CHECK;
void watch_close_pipe(dd_monitor *monitor);
/* Read all bytes of the pipe. Return true if there were any. */
bool watch_drain_pipe(dd_monitor *monitor);
dd_status watch_write_dump(dd_monitor *monitor, dd_error *err) DD_MUST_CHECK;

/* ---- monitor_report.c */

/* Append a line to a report. Has no effect without memory. */
void watch_report_add(dd_blob *report, const char *format, ...) DD_PRINTF(2, 3);
/* Report this rank's groups, and the progress of the ranks of `desync` unless it is NULL. */
void watch_report_groups(dd_monitor *monitor, watch_member *desync, dd_blob *report);
/* Query the interpreter, unless a query is still unanswered. */
void watch_start_query(dd_monitor *monitor);
void watch_release_query(dd_monitor *monitor);
/* Wait up to 0.3 s for the answer, and report if there is none. */
void watch_report_answer(dd_monitor *monitor, dd_blob *report);
/* Report the answer to a query that was unanswered in a report, once it arrives. */
void watch_follow_up(dd_monitor *monitor);
/* Log the report, store it as the last report, together with those shortly before, and empty it. */
void watch_report_finish(dd_monitor *monitor, dd_blob *report);

#endif
