#include "watch/watch_internal.h"

#include "core/fork.h"
#include "core/lock.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/system.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Time between two checks of the watchdog and of an unanswered query of the interpreter. QUIET:
 * time between two steps if there is neither. */
#define TICK_NS (100 * DD_NS_PER_MS)
#define QUIET_TICK_NS DD_NS_PER_S
/* Time between two reads of the stores while NCCL's works run. The time grows with the number of
 * ranks of the groups that receive failures there, because all ranks query one server. */
#define BUSY_INTERVAL_NS (100 * DD_NS_PER_MS)
#define BUSY_INTERVAL_OF_RANK_NS DD_NS_PER_MS
#define REMOVE_NS (1 * DD_NS_PER_S)
/* Time, on top of a check interval, that other ranks need to read a signal. */
#define READERS_SLACK_NS (100 * DD_NS_PER_MS)

/* ---- failures */

/* Wait until the other ranks have had time to read the last signal: the store may be in this
 * process, which must not end before they have. */
static void
wait_for_readers(dd_monitor *monitor)
{
    int64_t until_ns = monitor->last_signal_ns + monitor->options.check_interval_ns + READERS_SLACK_NS;
    dd_wait wait = watch_wait(monitor);
    int64_t left_ns = monitor->last_signal_ns > 0 ? until_ns - dd_clock_now_ns() : 0;
    while (left_ns > 0 && dd_wait_sleep(&wait, left_ns, NULL) == DD_OK && !dd_wait_has_expired(&wait)) {
        left_ns = until_ns - dd_clock_now_ns();
    }
}

/* Return true if a caller ended the group on purpose, which is not a failure. */
static bool
is_deliberate_end(dd_status code)
{
    return code == DD_CLOSED || code == DD_ABORTED;
}

static bool
needs_dump(dd_monitor *monitor, const watch_member *member, dd_status code)
{
    if (code == DD_CLOSED || (code == DD_ABORTED && !monitor->options.is_dumping_aborted)) {
        return false;
    }
    bool is_device = member != NULL && member->info.is_device;
    return monitor->options.dumping == DD_DUMPING_ON ||
           (monitor->options.dumping == DD_DUMPING_DEVICES && is_device);
}

typedef enum dump_reason {
    DUMP_NONE,
    DUMP_OF_FAILURE, /* all ranks write dumps, at most once within WATCH_BURST_NS */
    DUMP_REQUESTED,
} dump_reason;

/* Return the dump reason for a failure that does not belong to one group of this process. */
static dump_reason
dump_reason_of_all(const dd_monitor *monitor)
{
    return monitor->options.dumping != DD_DUMPING_OFF ? DUMP_OF_FAILURE : DUMP_NONE;
}

/* Write a dump and report it. Return true if the other ranks must also write dumps. */
static bool
dump(dd_monitor *monitor, dump_reason reason, dd_blob *report)
{
    int64_t now_ns = dd_clock_now_ns();
    dd_error err;
    if (reason == DUMP_NONE) {
        watch_report_add(report, "no dump written; set DLDIST_FR_DUMP_FILE=<prefix> to get one");
        return false;
    }
    if (reason == DUMP_OF_FAILURE && monitor->last_dump_ns != 0 &&
        now_ns - monitor->last_dump_ns < WATCH_BURST_NS) {
        watch_report_add(report, "a dump has just been written");
        return false;
    }
    monitor->last_dump_ns = reason == DUMP_OF_FAILURE ? now_ns : monitor->last_dump_ns;
    if (watch_write_dump(monitor, &err) == DD_OK) {
        atomic_fetch_add(&monitor->ndumps, 1);
        watch_report_add(report, "the flight recorder is in %s", monitor->options.dump_path);
    } else {
        watch_report_add(report, "cannot write a dump: %s", err.message);
    }
    return reason == DUMP_OF_FAILURE;
}

/* Report an event: its dump, all groups and, if desync is on, the ranks' progress in `member`. */
static void
report_event(dd_monitor *monitor, const char *text, dump_reason reason, watch_member *member)
{
    dd_blob report = {0};
    watch_start_query(monitor);
    watch_report_add(&report, "%s", text);
    if (dump(monitor, reason, &report)) {
        watch_publish_dump(monitor);
    }
    watch_report_groups(monitor, monitor->options.is_desync ? member : NULL, &report);
    watch_report_answer(monitor, &report);
    watch_report_finish(monitor, &report);
}

/* Find the member that belongs to a recorder's group. NULL if the member was removed. */
static watch_member *
find_member_of_group(dd_monitor *monitor, uint32_t uid)
{
    watch_member *member = watch_next(monitor, NULL);
    while (member != NULL &&
           (member->info.record == NULL || dd_recorder_group_uid(member->info.record) != uid)) {
        member = watch_next(monitor, member);
    }
    return member;
}

/* Handle a failure. Notify the other ranks first: they need it soon, and a dump may take time. */
static void
on_alarm(dd_monitor *monitor, const dd_alarm *alarm)
{
    watch_member *member = find_member_of_group(monitor, alarm->uid);
    if (member == NULL && is_deliberate_end(alarm->error.code)) {
        return; /* no member: in a group of one rank, no other rank is concerned */
    }
    char label[WATCH_LINE_MAX];
    bool is_dumped = needs_dump(monitor, member, alarm->error.code);
    if (member != NULL && member->info.fail != NULL && monitor->options.is_propagating) {
        watch_publish_error(monitor, member, &alarm->error);
    }
    snprintf(label, sizeof label, "group \"%s\" (%s) has failed on rank %d: %s", alarm->group, alarm->kind,
             alarm->rank, alarm->error.message);
    report_event(monitor, label, is_dumped ? DUMP_OF_FAILURE : DUMP_NONE, member);
    if (member != NULL && member->info.is_fatal && !is_deliberate_end(alarm->error.code)) {
        wait_for_readers(monitor);
        monitor->host.end_process(monitor->host.ctx, alarm->error.message);
    }
}

static void
take_alarms(dd_monitor *monitor)
{
    dd_alarm alarm;
    while (dd_recorder_take_alarm(monitor->options.recorder, &alarm)) {
        on_alarm(monitor, &alarm);
    }
}

/* ---- the watchdog's heartbeat */

static void
on_lost_beat(dd_monitor *monitor, const char *activity, int64_t stalled_ns, bool is_fatal)
{
    dd_error cause;
    dd_status status = dd_error_set(
        &cause, DD_BACKEND,
        "the watchdog of NCCL groups has made no progress for %.1f s%s%s: a call of NCCL or CUDA hangs",
        (double)stalled_ns / (double)DD_NS_PER_S, activity[0] != '\0' ? ", in " : "", activity);
    (void)status;
    report_event(monitor, cause.message, dump_reason_of_all(monitor), NULL);
    watch_member *member = NULL;
    while (!is_fatal && (member = watch_next(monitor, member)) != NULL) {
        if (member->info.fail != NULL) {
            member->info.fail(member->info.ctx, &cause);
        }
    }
    if (is_fatal) {
        wait_for_readers(monitor);
        monitor->host.end_process(monitor->host.ctx, cause.message);
    }
}

static void
check_heartbeat(dd_monitor *monitor)
{
    const char *activity = "";
    bool is_lost = false;
    int64_t now_ns = dd_clock_now_ns();
    dd_lock_take(&monitor->mu); /* keep the lock: a heartbeat may be freed once it is removed */
    dd_monitor_heartbeat heartbeat = monitor->heartbeat;
    uint64_t beat = heartbeat.count != NULL ? heartbeat.count(heartbeat.ctx) : 0;
    if (beat == 0 || beat != monitor->beat) {
        monitor->beat = beat;
        monitor->beat_since_ns = now_ns;
        monitor->is_beat_reported = false;
    } else if (!monitor->is_beat_reported && now_ns - monitor->beat_since_ns >= heartbeat.timeout_ns) {
        monitor->is_beat_reported = is_lost = true;
        activity = heartbeat.activity(heartbeat.ctx);
    }
    int64_t stalled_ns = now_ns - monitor->beat_since_ns;
    dd_lock_release(&monitor->mu);
    if (is_lost) {
        on_lost_beat(monitor, activity, stalled_ns, heartbeat.is_fatal);
    }
}

/* ---- the thread */

static void
answer_request(dd_monitor *monitor)
{
    bool is_queried = watch_drain_pipe(monitor);
    if (!atomic_exchange(&monitor->is_dump_requested, false) && !is_queried) {
        return;
    }
    report_event(monitor, "a dump was requested", DUMP_REQUESTED, NULL);
}

/* Handle other ranks' signals. Write requested dumps first, before groups of this rank fail. */
static void
handle_signals(dd_monitor *monitor)
{
    char label[WATCH_LINE_MAX];
    if (watch_read_dump(monitor, label)) {
        report_event(monitor, label, dump_reason_of_all(monitor), NULL);
    }
    watch_read_errors(monitor);
}

/* Return when to read the stores next: earlier while NCCL's works run. */
static int64_t
next_check_ns(dd_monitor *monitor)
{
    int64_t interval_ns = monitor->options.check_interval_ns;
    int64_t busy_ns = BUSY_INTERVAL_NS;
    if (monitor->beat == 0) {
        return monitor->last_check_ns + interval_ns;
    }
    for (watch_member *member = watch_next(monitor, NULL); member != NULL;
         member = watch_next(monitor, member)) {
        int64_t of_ranks_ns = member->info.size * BUSY_INTERVAL_OF_RANK_NS;
        busy_ns = member->info.fail != NULL && of_ranks_ns > busy_ns ? of_ranks_ns : busy_ns;
    }
    return monitor->last_check_ns + (busy_ns < interval_ns ? busy_ns : interval_ns);
}

void
dd_monitor_step(dd_monitor *monitor)
{
    dd_wait endless = {.deadline_ns = DD_NEVER_NS};
    (void)watch_begin_pass(monitor, &endless);
    answer_request(monitor);
    take_alarms(monitor);
    check_heartbeat(monitor);
    watch_follow_up(monitor);
    if (dd_clock_now_ns() >= next_check_ns(monitor)) {
        handle_signals(monitor);
        monitor->last_check_ns = dd_clock_now_ns();
    }
    watch_end_pass(monitor);
}

static void
sleep_until_woken(dd_monitor *monitor)
{
    int64_t left_ns = monitor->last_check_ns + monitor->options.check_interval_ns - dd_clock_now_ns();
    int64_t tick_ns = monitor->beat != 0 || monitor->is_query_open ? TICK_NS : QUIET_TICK_NS;
    int64_t sleep_ns = left_ns < tick_ns ? left_ns : tick_ns;
    struct pollfd fds[2] = {{.fd = monitor->wake_fd, .events = POLLIN},
                            {.fd = monitor->pipe_fd, .events = POLLIN}};
    uint64_t drained;
    if (dd_sys_poll(fds, 2, sleep_ns > 0 ? (int)(sleep_ns / DD_NS_PER_MS) + 1 : 0) > 0 &&
        fds[0].revents != 0) {
        (void)!dd_sys_read(monitor->wake_fd, &drained, sizeof drained);
    }
}

/* Release all groups and their stores, and remove the named pipe. */
static void
end_watching(dd_monitor *monitor)
{
    dd_wait endless = {.deadline_ns = DD_NEVER_NS};
    (void)watch_begin_pass(monitor, &endless);
    watch_close_pipe(monitor);
    watch_mark_removed(monitor, 0);
    watch_end_pass(monitor);
}

/* Mark the monitor as running. Return false if it has been stopped already: dd_monitor_stop then
 * did not wait for this thread, so the interpreter may be ending. */
static bool
begin_running(dd_monitor *monitor)
{
    dd_lock_take(&monitor->mu);
    monitor->is_running = !atomic_load(&monitor->is_stopping);
    bool is_running = monitor->is_running;
    dd_lock_release(&monitor->mu);
    return is_running;
}

static void
end_running(dd_monitor *monitor)
{
    dd_lock_take(&monitor->mu);
    monitor->is_running = false;
    dd_cond_broadcast(&monitor->cond);
    dd_lock_release(&monitor->mu);
}

void
dd_monitor_run(dd_monitor *monitor)
{
    if (!begin_running(monitor)) {
        return;
    }
    while (!atomic_load(&monitor->is_stopping)) {
        dd_monitor_step(monitor);
        sleep_until_woken(monitor);
    }
    dd_monitor_step(monitor); /* handles alarms raised since the last step */
    wait_for_readers(monitor);
    end_watching(monitor);
    end_running(monitor);
}

static void
wake(void *ctx)
{
    dd_monitor *monitor = ctx;
    uint64_t one = 1;
    int saved = errno; /* a signal handler may call this function, and must keep errno */
    if (monitor->generation == dd_fork_generation()) {
        (void)!dd_sys_write(monitor->wake_fd, &one, sizeof one);
    }
    errno = saved;
}

void
dd_monitor_stop(dd_monitor *monitor, int64_t grace_ns)
{
    atomic_store(&monitor->stop_deadline_ns, dd_clock_now_ns() + grace_ns);
    atomic_store(&monitor->is_stopping, true);
    wake(monitor);
    dd_wait wait = dd_wait_after(grace_ns);
    dd_lock_take(&monitor->mu);
    while (monitor->is_running && !dd_wait_has_expired(&wait)) {
        dd_cond_wait_slice(&monitor->cond, &monitor->mu, &wait);
    }
    dd_lock_release(&monitor->mu);
}

void
dd_monitor_request_dump(dd_monitor *monitor)
{
    atomic_store(&monitor->is_dump_requested, true);
    wake(monitor);
}

/* ---- groups */

static bool
needs_signals(dd_monitor *monitor, const dd_monitor_member *info)
{
    dd_lock_take(&monitor->mu);
    bool is_first = dd_list_is_empty(&monitor->members);
    dd_lock_release(&monitor->mu);
    return info->store != NULL && (is_first || info->fail != NULL || monitor->options.is_desync);
}

dd_status
dd_monitor_add(dd_monitor *monitor, const dd_monitor_member *info, uint64_t *id, const dd_wait *wait,
               dd_error *err)
{
    watch_member *member = dd_mem_zalloc(sizeof *member);
    if (member == NULL) {
        return dd_error_no_memory(err, sizeof *member);
    }
    member->info = *info;
    snprintf(member->name, sizeof member->name, "%.*s", (int)info->name.len, (const char *)info->name.data);
    member->info.name = dd_bytes_of_string(member->name);
    dd_status status = needs_signals(monitor, info) ? watch_enter(member, wait, err) : DD_OK;
    if (status == DD_INTERRUPTED) {
        dd_mem_free(member);
        return status;
    }
    if (status != DD_OK) { /* the store lacks an operation: work without signals */
        DD_LOG(DD_LOG_DEBUG, "the ranks of group \"%s\" cannot notify each other of failures: %s",
               member->name, err != NULL ? err->message : "");
        member->info.store = NULL;
    }
    if (member->info.store != NULL) {
        member->root = dd_prefix_store_root(member->info.store);
        member->info.store = dd_store_acquire(member->info.store);
    }
    member->info.record = dd_recorder_group_acquire(member->info.record);
    dd_lock_take(&monitor->mu);
    *id = member->id = ++monitor->last_id;
    dd_list_push_back(&monitor->members, &member->link);
    dd_lock_release(&monitor->mu);
    return DD_OK;
}

void
dd_monitor_remove(dd_monitor *monitor, uint64_t id)
{
    dd_wait wait = dd_wait_after(REMOVE_NS);
    bool is_acquired = watch_begin_pass(monitor, &wait);
    if (is_acquired) {
        take_alarms(monitor);
    }
    watch_mark_removed(monitor, id);
    if (is_acquired) {
        watch_end_pass(monitor);
    }
}

void
dd_monitor_set_heartbeat(dd_monitor *monitor, const dd_monitor_heartbeat *heartbeat)
{
    dd_lock_take(&monitor->mu);
    monitor->heartbeat = heartbeat != NULL ? *heartbeat : (dd_monitor_heartbeat){0};
    dd_lock_release(&monitor->mu);
}

/* ---- the object */

static dd_status
open_parts(dd_monitor *monitor, dd_error *err)
{
    monitor->wake_fd = dd_fork_register(dd_sys_eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (monitor->wake_fd < 0) {
        return dd_error_set_errno(err, DD_SYSTEM, errno, "eventfd for the monitor failed");
    }
    dd_status status = monitor->options.pipe_path[0] != '\0' ? watch_open_pipe(monitor, err) : DD_OK;
    if (status == DD_OK) {
        dd_recorder_notify_of_alarms(monitor->options.recorder, wake, monitor);
    }
    return status;
}

dd_status
dd_monitor_create(const dd_monitor_options *options, dd_monitor **out, dd_error *err)
{
    size_t dump_nbytes = strlen(options->dump_path) + 1;
    size_t pipe_nbytes = strlen(options->pipe_path) + 1;
    size_t nbytes = sizeof(dd_monitor) + dump_nbytes + pipe_nbytes;
    dd_monitor *monitor = dd_mem_zalloc(nbytes);
    if (monitor == NULL) {
        return dd_error_no_memory(err, nbytes);
    }
    char *texts = (char *)(monitor + 1);
    monitor->options = *options;
    monitor->options.dump_path = memcpy(texts, options->dump_path, dump_nbytes);
    monitor->options.pipe_path = memcpy(texts + dump_nbytes, options->pipe_path, pipe_nbytes);
    monitor->host = *options->host;
    monitor->pipe_fd = -1;
    monitor->generation = dd_fork_generation();
    dd_lock_init(&monitor->mu, DD_LOCK_MONITOR);
    dd_cond_init(&monitor->cond);
    dd_list_init(&monitor->members);
    dd_status status = open_parts(monitor, err);
    if (status != DD_OK) {
        dd_monitor_destroy(monitor);
        return status;
    }
    *out = monitor;
    return DD_OK;
}

void
dd_monitor_destroy(dd_monitor *monitor)
{
    if (monitor == NULL) {
        return;
    }
    watch_mark_removed(monitor, 0);
    watch_end_pass(monitor);
    watch_close_pipe(monitor);
    watch_release_query(monitor);
    dd_recorder_notify_of_alarms(monitor->options.recorder, NULL, monitor);
    dd_fork_close(monitor->wake_fd);
    dd_cond_fini(&monitor->cond);
    dd_lock_fini(&monitor->mu);
    dd_blob_fini(&monitor->report);
    dd_mem_free(monitor);
}

dd_status
dd_monitor_get_report(dd_monitor *monitor, dd_blob *report, dd_error *err)
{
    dd_lock_take(&monitor->mu);
    dd_status status = dd_blob_assign(report, dd_blob_view(&monitor->report), err);
    dd_lock_release(&monitor->mu);
    return status;
}
