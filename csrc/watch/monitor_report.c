/* Reports: the monitor's findings, as lines of text. */
#include "watch/watch_internal.h"

#include "core/background_task.h"
#include "core/lock.h"
#include "core/log.h"
#include "core/mem.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Time within which an interpreter that is not blocked answers a query. */
#define ANSWER_NS (300 * DD_NS_PER_MS)
/* Maximum number of ranks for which a report has a line. */
#define MAX_RANKS_SHOWN 64
#define REPORT_MAX_NBYTES ((size_t)64 << 10)

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

/* ---- the progress of ranks */

/* A list of ranks as text, "1, 2, 5", truncated to fit. */
typedef struct rank_list {
    char text[400];
    size_t len;
} rank_list;

enum { BEHIND, SILENT, OTHER, AHEAD, NSORTS };

/* Texts for classes of ranks. Each text, except SILENT's, is followed by this rank's last call. */
static const char *const sorts[NSORTS] = {
    [BEHIND] = "never called ",
    [SILENT] = "never called anything, or have exited",
    [OTHER] = "called something else instead of ",
    [AHEAD] = "are ahead of ",
};

static void
add_rank(rank_list *list, int rank)
{
    size_t room = sizeof list->text - list->len;
    int len = snprintf(list->text + list->len, room, "%s%d", list->len > 0 ? ", " : "", rank);
    if (len > 0 && (size_t)len < room) {
        list->len += (size_t)len;
    } else {
        list->text[list->len] = '\0';
    }
}

static void
compare_ranks(dd_monitor *monitor, watch_member *member, const dd_signal_state *own_signals, dd_blob *report)
{
    rank_list found[NSORTS] = {0};
    dd_blob_list states = {0};
    dd_error err;
    watch_report_add(report, "the ranks of group \"%s\":", member->name);
    watch_publish(monitor, member);
    dd_status status = watch_read_states(monitor, member, &states, &err);
    for (int rank = 0; status == DD_OK && rank < member->info.size; rank++) {
        dd_signal_state state;
        dd_bytes published = dd_blob_view(&states.items[rank]);
        if (published.len == 0) {
            add_rank(&found[SILENT], rank);
            continue;
        }
        status = dd_signal_decode_state(published, &state, &err);
        if (status != DD_OK) {
            break;
        }
        if (state.called != own_signals->called) {
            add_rank(&found[state.called < own_signals->called ? BEHIND : AHEAD], rank);
        } else if (strcmp(state.name, own_signals->name) != 0) {
            add_rank(&found[OTHER], rank);
        }
        if (rank < MAX_RANKS_SHOWN) {
            watch_report_add(report, "  rank %d: %s", rank, state.text);
        }
    }
    if (status != DD_OK) {
        watch_report_add(report, "  %s", err.message);
    }
    dd_blob_list_fini(&states);
    char text[DD_SIGNAL_NAME_MAX + 24] = "none";
    if (own_signals->called >= 0) {
        snprintf(text, sizeof text, "%" PRId64 " %s", own_signals->called, own_signals->name);
    }
    for (int i = 0; i < NSORTS; i++) {
        if (found[i].len > 0) {
            watch_report_add(report, "  %s%s: rank %s", sorts[i], i == SILENT ? "" : text, found[i].text);
        }
    }
}

static bool
own_state(const watch_member *member, dd_signal_state *state)
{
    dd_recorder_status status;
    if (member->info.record != NULL) {
        dd_recorder_group_status(member->info.record, &status);
        dd_signal_state_of(&status, state);
    }
    return member->info.record != NULL;
}

void
watch_report_groups(dd_monitor *monitor, watch_member *desync, dd_blob *report)
{
    watch_member *member = NULL;
    dd_signal_state state;
    while ((member = watch_next(monitor, member)) != NULL) {
        if (own_state(member, &state)) {
            watch_report_add(report, "group \"%s\", %d ranks; this one:", member->name, member->info.size);
            watch_report_add(report, "  rank %d: %s", member->info.rank, state.text);
        }
    }
    if (desync != NULL && desync->info.store != NULL && own_state(desync, &state)) {
        compare_ranks(monitor, desync, &state, report);
    }
}

/* ---- the interpreter */

typedef struct watch_query {
    dd_background_task task; /* must be first */
    void (*await_interpreter)(void);
    int64_t sent_ns;
    int64_t answered_ns; /* time of the answer, which is set before the task is done */
} watch_query;

static void
run_query(dd_background_task *task)
{
    watch_query *query = (watch_query *)task;
    query->await_interpreter();
    query->answered_ns = dd_clock_now_ns();
}

void
watch_release_query(dd_monitor *monitor)
{
    if (monitor->query != NULL) {
        dd_background_task_release(&monitor->query->task);
        monitor->query = NULL;
    }
}

/* Return true if the query is answered within timeout_ns. Sets *held_s to the time from the query
 * to the answer, or to now: so long another thread has held the GIL. */
static bool
is_query_answered(dd_monitor *monitor, int64_t timeout_ns, double *held_s)
{
    watch_query *query = monitor->query;
    dd_wait wait = dd_wait_after(timeout_ns);
    bool is_answered = query == NULL || dd_background_task_wait(&query->task, &wait, NULL) == DD_OK;
    if (query != NULL) {
        int64_t until_ns = is_answered ? query->answered_ns : dd_clock_now_ns();
        *held_s = (double)(until_ns - query->sent_ns) / (double)DD_NS_PER_S;
    }
    return is_answered;
}

void
watch_start_query(dd_monitor *monitor)
{
    double held_s = 0;
    if (!is_query_answered(monitor, 0, &held_s)) {
        return;
    }
    watch_release_query(monitor);
    watch_query *query = dd_mem_zalloc(sizeof *query);
    if (query != NULL) {
        query->task = (dd_background_task){.run = run_query};
        query->await_interpreter = monitor->host.await_interpreter;
        query->sent_ns = dd_clock_now_ns();
        bool is_queried = dd_background_task_start(&query->task, "dldist-gil", NULL) == DD_OK;
        monitor->query = is_queried ? query : NULL;
    }
}

void
watch_report_answer(dd_monitor *monitor, dd_blob *report)
{
    double held_s = 0;
    int64_t sent_ns = monitor->query != NULL ? monitor->query->sent_ns : 0;
    int64_t left_ns = sent_ns + ANSWER_NS - dd_clock_now_ns();
    monitor->is_query_open = !is_query_answered(monitor, left_ns, &held_s);
    if (monitor->is_query_open) {
        watch_report_add(report,
                         "another thread has held the GIL for %.1f s and still holds it: Python is blocked",
                         held_s);
    }
}

void
watch_follow_up(dd_monitor *monitor)
{
    double held_s = 0;
    if (!monitor->is_query_open || !is_query_answered(monitor, 0, &held_s)) {
        return;
    }
    monitor->is_query_open = false;
    DD_LOG(DD_LOG_INFO, "the GIL is free again after %.1f s", held_s);
    dd_lock_take(&monitor->mu);
    watch_report_add(&monitor->report, "the GIL is free again after %.1f s", held_s);
    dd_lock_release(&monitor->mu);
}

/* ---- the end */

void
watch_report_finish(dd_monitor *monitor, dd_blob *report)
{
    const char *text = (const char *)report->data;
    for (size_t at = 0; at < report->len;) { /* each line ends with a newline */
        const char *end = memchr(text + at, '\n', report->len - at);
        DD_LOG(DD_LOG_INFO, "%.*s", (int)(end - text - (ptrdiff_t)at), text + at);
        at = (size_t)(end - text) + 1;
    }
    int64_t now_ns = dd_clock_now_ns();
    dd_lock_take(&monitor->mu);
    if (now_ns - monitor->report_ns >= WATCH_BURST_NS || monitor->report.len >= REPORT_MAX_NBYTES) {
        dd_blob_clear(&monitor->report, 0);
    }
    monitor->report_ns = now_ns;
    dd_status ignored = dd_blob_append(&monitor->report, report->data, report->len, NULL);
    (void)ignored;
    dd_lock_release(&monitor->mu);
    dd_blob_fini(report);
}
