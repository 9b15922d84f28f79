/* Reports: what was found out, in lines of text. */
#include "watch/watch_internal.h"

#include "core/lock.h"
#include "core/log.h"
#include "core/mem.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* So long an interpreter that is well may take. */
#define ANSWER_NS (300 * DD_NS_PER_MS)
#define ANSWER_POLL_NS (5 * DD_NS_PER_MS)
/* Of so many ranks a report has a line each. */
#define MAX_RANKS_SHOWN 64

void
watch_report_add(dd_blob *report, const char *format, ...)
{
    char line[WATCH_LINE_MAX];
    va_list args;
    va_start(args, format);
    int len = vsnprintf(line, sizeof line - 1, format, args);
    va_end(args);
    size_t used = len < 0 ? 0 : (size_t)len < sizeof line - 2 ? (size_t)len : sizeof line - 2;
    line[used] = '\n';
    dd_status ignored = dd_blob_append(report, line, used + 1, NULL);
    (void)ignored;
}

/* ---- groups */

static const char *
print_progress(const dd_signal_progress *progress, char out[96])
{
    if (progress->number < 0) {
        return "none";
    }
    snprintf(out, 96, "%" PRId64 " %s", progress->number, progress->name);
    return out;
}

static void
add_state(dd_blob *report, int rank, const dd_signal_state *state)
{
    char called[96];
    char started[96];
    char completed[96];
    watch_report_add(report, "  rank %d: last called %s, started %s, completed %s", rank,
                     print_progress(&state->called, called), print_progress(&state->started, started),
                     print_progress(&state->completed, completed));
}

static bool
own_state(const watch_member *member, dd_signal_state *state)
{
    if (member->info.record == NULL) {
        return false;
    }
    dd_recorder_status status;
    dd_recorder_group_status(member->info.record, &status);
    dd_signal_state_of(&status, state);
    return true;
}

void
watch_report_groups(dd_monitor *monitor, dd_blob *report)
{
    watch_member *member = NULL;
    dd_signal_state state;
    while ((member = watch_next(monitor, member)) != NULL) {
        if (own_state(member, &state)) {
            watch_report_add(report, "group \"%s\", %d ranks; this one:", member->name, member->info.size);
            add_state(report, member->info.rank, &state);
        }
    }
}

/* ---- who is where */

/* A list of ranks as it grows, "1, 2, 5", cut where it is full. */
typedef struct rank_list {
    char text[400];
    size_t len;
    int count;
} rank_list;

static void
add_rank(rank_list *list, int rank)
{
    list->count++;
    size_t room = sizeof list->text - list->len;
    int len = snprintf(list->text + list->len, room, "%s%d", list->count > 1 ? ", " : "", rank);
    if (len > 0 && (size_t)len < room) {
        list->len += (size_t)len;
    } else {
        list->text[list->len] = '\0';
    }
}

typedef struct comparison {
    rank_list behind; /* have not called it */
    rank_list other;  /* have called something else in its place */
    rank_list silent; /* have published nothing */
    rank_list ahead;
} comparison;

static void
compare_rank(comparison *found, int rank, const dd_signal_state *own, const dd_signal_state *state)
{
    if (state->called.number < own->called.number) {
        add_rank(&found->behind, rank);
    } else if (state->called.number > own->called.number) {
        add_rank(&found->ahead, rank);
    } else if (strcmp(state->called.name, own->called.name) != 0) {
        add_rank(&found->other, rank);
    }
}

static void
add_comparison(dd_blob *report, const dd_signal_state *own, const comparison *found)
{
    char called[96];
    const char *what = print_progress(&own->called, called);
    if (found->behind.count > 0) {
        watch_report_add(report, "  never called %s: rank %s", what, found->behind.text);
    }
    if (found->silent.count > 0) {
        watch_report_add(report, "  never called anything, or are gone: rank %s", found->silent.text);
    }
    if (found->other.count > 0) {
        watch_report_add(report, "  called something else instead of %s: rank %s", what, found->other.text);
    }
    if (found->ahead.count > 0) {
        watch_report_add(report, "  are further than %s: rank %s", what, found->ahead.text);
    }
}

void
watch_report_progress(dd_monitor *monitor, watch_member *member, dd_blob *report)
{
    dd_signal_state own;
    dd_error err = {.code = DD_OK};
    if (member->info.store == NULL || !own_state(member, &own)) {
        return;
    }
    comparison *found = dd_mem_zalloc(sizeof *found);
    if (found == NULL) {
        return;
    }
    watch_report_add(report, "the ranks of group \"%s\":", member->name);
    watch_publish(monitor, member);
    for (int rank = 0; rank < member->info.size; rank++) {
        dd_signal_state state;
        dd_status status = watch_read_state(monitor, member, rank, &state, &err);
        if (status == DD_OK) {
            compare_rank(found, rank, &own, &state);
        } else if (status == DD_QUEUE_EMPTY) {
            add_rank(&found->silent, rank);
        } else {
            watch_report_add(report, "  %s", err.message);
            break;
        }
        if (status == DD_OK && rank < MAX_RANKS_SHOWN) {
            add_state(report, rank, &state);
        }
    }
    add_comparison(report, &own, found);
    dd_mem_free(found);
}

/* ---- the interpreter */

void
watch_ask(dd_monitor *monitor)
{
    monitor->question_ns = dd_clock_now_ns();
    monitor->host.ask(monitor->host.ctx);
}

void
watch_report_answer(dd_monitor *monitor, dd_blob *report)
{
    dd_wait wait = dd_wait_after(ANSWER_NS);
    wait.deadline_ns = monitor->question_ns + ANSWER_NS;
    int64_t waited_ns = 0;
    bool is_answered = monitor->host.is_answered(monitor->host.ctx, &waited_ns);
    while (!is_answered && !dd_wait_is_over(&wait) && dd_wait_sleep(&wait, ANSWER_POLL_NS, NULL) == DD_OK) {
        is_answered = monitor->host.is_answered(monitor->host.ctx, &waited_ns);
    }
    monitor->is_question_open = !is_answered;
    if (!is_answered) {
        watch_report_add(
            report, "the GIL has been held for %.1f s by another thread, and still is: Python stands still",
            (double)waited_ns / (double)DD_NS_PER_S);
    }
}

void
watch_follow_up(dd_monitor *monitor)
{
    int64_t waited_ns;
    if (!monitor->is_question_open || !monitor->host.is_answered(monitor->host.ctx, &waited_ns)) {
        return;
    }
    monitor->is_question_open = false;
    double seconds = (double)waited_ns / (double)DD_NS_PER_S;
    DD_LOG(DD_LOG_INFO, "the GIL is free again: it has been held for %.1f s", seconds);
    dd_lock_take(&monitor->mu);
    watch_report_add(&monitor->report, "the GIL is free again: it has been held for %.1f s", seconds);
    dd_lock_release(&monitor->mu);
}

/* ---- the end */

static void
keep(dd_monitor *monitor, const dd_blob *report)
{
    int64_t now_ns = dd_clock_now_ns();
    dd_lock_take(&monitor->mu);
    if (now_ns - monitor->report_ns >= WATCH_BURST_NS || monitor->report.len >= WATCH_REPORT_MAX_NBYTES) {
        dd_blob_clear(&monitor->report, 0);
    }
    monitor->report_ns = now_ns;
    dd_status ignored = dd_blob_append(&monitor->report, report->data, report->len, NULL);
    (void)ignored;
    dd_lock_release(&monitor->mu);
}

void
watch_report_finish(dd_monitor *monitor, dd_blob *report)
{
    const char *text = (const char *)report->data;
    for (size_t at = 0; at < report->len;) {
        const char *end = memchr(text + at, '\n', report->len - at);
        size_t len = end != NULL ? (size_t)(end - text) - at : report->len - at;
        DD_LOG(DD_LOG_INFO, "%.*s", (int)len, text + at);
        at += len + 1;
    }
    keep(monitor, report);
    dd_blob_fini(report);
}
