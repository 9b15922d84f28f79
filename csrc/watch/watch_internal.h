/* What the files of the monitor share. */
#ifndef DD_WATCH_WATCH_INTERNAL_H
#define DD_WATCH_WATCH_INTERNAL_H

#include "core/list.h"
#include "core/lock.h"
#include "core/thread.h"
#include "watch/monitor.h"
#include "watch/signal.h"

#include <stdatomic.h>

#define WATCH_LINE_MAX 1600 /* of a report */
#define WATCH_NAME_MAX 200
#define WATCH_COUNT_MAX 24
/* Failures that follow each other faster have one cause: the dump of the first has it all, and reports are kept together. */
#define WATCH_BURST_NS (10 * DD_NS_PER_S)

typedef struct watch_member {
    dd_list link;
    uint64_t id;               /* const */
    dd_monitor_member info;    /* const; the name is `name` */
    char name[WATCH_NAME_MAX]; /* const; as much of it as keys have room for */
    dd_store *root;  /* const: below all prefixes, where signals are counted; NULL without a store */
    bool is_removed; /* guarded by the monitor's mu: the pass under way lets it go */
    /* of the pass */
    int64_t epoch;               /* how often this rank has been in a group of this name; 0: not counted */
    char count[WATCH_COUNT_MAX]; /* of the signals in the root, as last seen */
    bool is_looked_at;           /* the root, in this round */
    bool is_changed;             /* the count, since the look before this one */
    bool is_gone;                /* the root did not answer, and is not asked again */
    bool is_dump_seen;           /* or told by us */
    bool is_error_seen;          /* the same */
    char published[DD_SIGNAL_STATE_MAX]; /* how far we are, as the others know it */
} watch_member;

struct dd_monitor {
    dd_monitor_options options; /* const; the texts lie behind the monitor */
    dd_monitor_host host;       /* const */
    int pipe_fd;                /* of the pass; -1: none */
    int wake_fd;                /* const */
    uint64_t generation;        /* const; of core/fork.h */
    atomic_bool is_dump_requested;
    atomic_bool is_stopping;
    atomic_int_fast64_t stop_deadline_ns;
    atomic_uint_fast64_t ndumps;

    dd_lock mu;
    pthread_cond_t cond; /* the pass has ended, or the thread */
    /* guarded by mu */
    bool is_running;
    bool is_busy; /* a thread is in a pass: the monitor's, or one that removes a member */
    dd_list
        members; /* watch_member, the oldest first: its store has the signal to dump. Unlinked in a pass only */
    uint64_t last_id;
    dd_blob report;
    int64_t report_ns;              /* when it was last added to */
    dd_monitor_heartbeat heartbeat; /* count is NULL: there is none */

    /* of the pass */
    int64_t last_check_ns;
    int64_t last_dump_ns; /* of a failure; 0: never */
    int64_t last_told_ns; /* the other ranks need an interval to read it; 0: never */
    uint64_t beat;        /* the last count, and since when */
    int64_t beat_since_ns;
    bool is_beat_reported;
    struct watch_question *question; /* to the interpreter, the last; NULL: none */
    bool is_question_open;           /* it was too long for a report */
};

/* ---- monitor_members.c */

/* A pass: one at a time touches members and stores. False: the wait is over, and somebody else is in one. */
bool watch_begin_pass(dd_monitor *monitor, const dd_wait *wait);
/* Lets the removed members go. */
void watch_end_pass(dd_monitor *monitor);
void watch_mark_removed(dd_monitor *monitor, uint64_t id); /* 0: all */
/* For one request to a store. Over early when the monitor has to stop. */
dd_wait watch_wait(dd_monitor *monitor);
/* Members in their order, NULL at the end: they stay for as long as the pass. */
watch_member *watch_next(dd_monitor *monitor, watch_member *after);

/* ---- monitor_tell.c: the store */

/* Counts this membership. */
dd_status watch_enter(watch_member *member, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
void watch_tell_dump(dd_monitor *monitor);
void watch_tell_error(dd_monitor *monitor, watch_member *member, const dd_error *cause);
/* The look of every interval. First: whether a rank asks all for a dump; then `what` says which. */
bool watch_hear_dump(dd_monitor *monitor, char what[WATCH_LINE_MAX]);
/* Then: groups that have failed elsewhere fail here, and this rank says how far it is. */
void watch_hear_errors(dd_monitor *monitor);
void watch_publish(dd_monitor *monitor, watch_member *member);
/* Read the published states of all ranks of the group, by rank; empty if the rank has published
 * none. All states take one request to a dldist server: when all ranks report a failure at the same
 * time, the server gets one request from each. The caller zeroes `states`, and frees it in any case. */
dd_status watch_read_states(dd_monitor *monitor, watch_member *member, dd_blob_list *states,
                            dd_error *err) DD_MUST_CHECK;

/* ---- monitor_dump.c */

dd_status watch_open_pipe(dd_monitor *monitor, dd_error *err) DD_MUST_CHECK;
void watch_close_pipe(dd_monitor *monitor);
/* Empties the pipe; whether anything was in it. */
bool watch_drain_pipe(dd_monitor *monitor);
/* Writes the dump. */
dd_status watch_write_dump(dd_monitor *monitor, dd_error *err) DD_MUST_CHECK;

/* ---- monitor_report.c */

/* Adds a line to a report; without memory it stays as it is. */
void watch_report_add(dd_blob *report, const char *format, ...) DD_PRINTF(2, 3);
/* What this rank knows of all its groups, and with `desync` how far the ranks of that one are. */
void watch_report_groups(dd_monitor *monitor, watch_member *desync, dd_blob *report);
/* Asks the interpreter, unless it still owes an answer. */
void watch_ask(dd_monitor *monitor);
void watch_forget_question(dd_monitor *monitor);
/* Waits a little for the answer. */
void watch_report_answer(dd_monitor *monitor, dd_blob *report);
/* The answer to a question that was open too long, when it comes. */
void watch_follow_up(dd_monitor *monitor);
/* Logs the report and keeps it as the last, with those that came shortly before; it is emptied. */
void watch_report_finish(dd_monitor *monitor, dd_blob *report);

#endif
