/* The monitor: two or three monitors, each a rank with its own recorder, over one store; the test
 * runs their steps. */
#include "check.h"

#include "insight.h"

#include "core/mem.h"
#include "core/system.h"
#include "core/thread.h"
#include "faults/faults.h"
#include "store/tcp_store.h"
#include "tcp_raw.h"
#include "watch/watch_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_RANKS 16
#define CALL_TIMEOUT_NS (5 * DD_NS_PER_S)

typedef struct rank_rig {
    dd_recorder *recorder;
    dd_recorder_group *group;
    dd_monitor *monitor;
    dd_store *store;
    uint64_t id;
    char dump_path[160];
    /* requests to the host */
    int ndied;
    char death[1200];
    /* requests to the group */
    int nfailed;
    int nreleased;
    dd_error cause;
    /* the watchdog's heartbeat */
    uint64_t beat;
} rank_rig;

typedef struct rig {
    char folder[64];
    dd_store *store;
    int size;
    rank_rig ranks[MAX_RANKS];
    /* for all monitors */
    dd_monitor_options options;
    bool is_device;
    bool is_fatal;
} rig;

/* Global, because the thread that queries the interpreter may outlive a rank. */
static atomic_int nasked;
static atomic_bool is_silent; /* the interpreter does not answer */

static void
await_interpreter(void)
{
    atomic_fetch_add(&nasked, 1);
    dd_wait wait = dd_wait_after(DD_NEVER_NS); /* limited by the alarm of the test */
    while (atomic_load(&is_silent)) {
        (void)!dd_wait_sleep(&wait, DD_NS_PER_MS, NULL);
    }
}

static void
die(void *ctx, const char *reason)
{
    rank_rig *rank = ctx;
    rank->ndied++;
    snprintf(rank->death, sizeof rank->death, "%s", reason);
}

static void
fail(void *ctx, const dd_error *cause)
{
    rank_rig *rank = ctx;
    rank->nfailed++;
    rank->cause = *cause;
}

static void
count_release(void *ctx)
{
    ((rank_rig *)ctx)->nreleased++;
}

static void
init_rig(rig *r, int size)
{
    memset(r, 0, sizeof *r);
    r->size = size;
    snprintf(r->folder, sizeof r->folder, "/tmp/dldist_watch_XXXXXX");
    CHECK(mkdtemp(r->folder) != NULL);
    CHECK_OK(dd_hash_store_open(&r->store, CALL_TIMEOUT_NS, check_err()));
    r->options = (dd_monitor_options){
        .check_interval_ns = 1,
        .is_propagating = true,
        .dumping = DD_DUMPING_ON,
        .dump = {.format = DD_DUMP_JSON, .has_entries = true, .has_stacks = true},
        .dump_timeout_ns = CALL_TIMEOUT_NS,
        .pipe_path = "",
    };
}

static void
open_rank(rig *r, int number)
{
    rank_rig *rank = &r->ranks[number];
    memset(rank, 0, sizeof *rank);
    char folder[sizeof r->folder];
    memcpy(folder, r->folder, sizeof folder);
    snprintf(rank->dump_path, sizeof rank->dump_path, "%s/dump_%d", folder, number);
    CHECK_OK(dd_recorder_create(100, &rank->recorder, check_err()));
    dd_recorder_group_info info = {
        .name = BYTES("g"), .desc = BYTES("test"), .kind = "nccl", .rank = number, .size = r->size};
    CHECK_OK(dd_recorder_add_group(rank->recorder, &info, &rank->group, check_err()));
    dd_monitor_host host = {.await_interpreter = await_interpreter, .end_process = die, .ctx = rank};
    dd_monitor_options options = r->options;
    options.recorder = rank->recorder;
    options.dump_path = rank->dump_path;
    options.host = &host;
    CHECK_OK(dd_monitor_create(&options, &rank->monitor, check_err()));
}

/* Add a rank to the group. Its store is a separate view, as in another process. */
static void
join_rank(rig *r, int number)
{
    rank_rig *rank = &r->ranks[number];
    dd_wait wait = dd_wait_after(CALL_TIMEOUT_NS);
    CHECK_OK(dd_prefix_store_open(&rank->store, BYTES("0/cuda"), r->store, check_err()));
    dd_monitor_member member = {
        .name = BYTES("g"),
        .rank = number,
        .size = r->size,
        .store = rank->store,
        .is_device = r->is_device,
        .is_fatal = r->is_fatal,
        .fail = fail,
        .record = rank->group,
        .release = count_release,
        .ctx = rank,
    };
    CHECK_OK(dd_monitor_add(rank->monitor, &member, &rank->id, &wait, check_err()));
}

static void
close_rank(rig *r, int number)
{
    rank_rig *rank = &r->ranks[number];
    dd_monitor_destroy(rank->monitor);
    dd_recorder_group_release(rank->group);
    dd_recorder_destroy(rank->recorder);
    dd_store_release(rank->store);
    (void)unlink(rank->dump_path);
    rank->monitor = NULL;
}

static void
open_rig(rig *r, int size)
{
    init_rig(r, size);
    for (int i = 0; i < size; i++) {
        open_rank(r, i);
        join_rank(r, i);
    }
}

static void
close_rig(rig *r)
{
    for (int i = 0; i < r->size; i++) {
        if (r->ranks[i].monitor != NULL) {
            close_rank(r, i);
        }
    }
    dd_store_release(r->store);
    CHECK(rmdir(r->folder) == 0);
}

static void
raise_on(rig *r, int number, dd_status code)
{
    dd_error error;
    CHECK_STATUS(dd_error_set(&error, code, "all_reduce 7 timed out after 1 s"), code);
    dd_recorder_raise_alarm(r->ranks[number].group, DD_NO_RECORD, &error);
}

/* Return the report of a rank, valid until the next call. */
static const char *
report_of(rig *r, int number)
{
    static char text[8192];
    dd_blob report = {0};
    CHECK_OK(dd_monitor_get_report(r->ranks[number].monitor, &report, check_err()));
    snprintf(text, sizeof text, "%.*s", (int)report.len, report.len > 0 ? (const char *)report.data : "");
    dd_blob_fini(&report);
    return text;
}

static void
put(rig *r, const char *key, dd_bytes value)
{
    dd_wait wait = dd_wait_after(CALL_TIMEOUT_NS);
    int64_t count;
    char whole[128];
    snprintf(whole, sizeof whole, "0/cuda/%s", key);
    CHECK_OK(dd_store_set(r->store, dd_bytes_of_string(whole), value, &wait, check_err()));
    CHECK_OK(dd_store_add(r->store, BYTES("dldist/signals"), 1, &count, &wait, check_err()));
}

static void
call(rig *r, int number, const char *name)
{
    dd_record_call record = {.name = name, .created_ns = dd_clock_now_ns()};
    CHECK(dd_recorder_begin(r->ranks[number].group, &record) != DD_NO_RECORD);
}

/* ---- failures */

TEST(a_failure_writes_a_dump_and_notifies_the_other_ranks)
{
    rig r;
    open_rig(&r, 2);
    dd_monitor_step(r.ranks[1].monitor);
    CHECK_INT(atomic_load(&r.ranks[1].monitor->ndumps), 0);
    raise_on(&r, 0, DD_OP_TIMED_OUT);
    dd_monitor_step(r.ranks[0].monitor);
    CHECK_INT(atomic_load(&r.ranks[0].monitor->ndumps), 1);
    CHECK(access(r.ranks[0].dump_path, R_OK) == 0);
    CHECK_CONTAINS(report_of(&r, 0),
                   "group \"g\" (nccl) has failed on rank 0: all_reduce 7 timed out after 1 s");
    CHECK_CONTAINS(report_of(&r, 0), r.ranks[0].dump_path);
    CHECK_INT(r.ranks[0].nfailed, 0); /* it already knows of the failure */

    dd_monitor_step(r.ranks[1].monitor);
    CHECK_INT(atomic_load(&r.ranks[1].monitor->ndumps), 1);
    CHECK(access(r.ranks[1].dump_path, R_OK) == 0);
    CHECK_CONTAINS(report_of(&r, 1), "rank 0 of group \"g\" has failed and requests a dump from all ranks");
    CHECK_INT(r.ranks[1].nfailed, 1);
    CHECK_INT(r.ranks[1].cause.code, DD_OP_TIMED_OUT);
    CHECK_INT(r.ranks[1].cause.blamed.rank, 0);
    CHECK_CONTAINS(r.ranks[1].cause.message, "rank 0 failed: all_reduce 7 timed out after 1 s");

    /* the dump happens once, and not for its own signal */
    raise_on(&r, 1, DD_OP_TIMED_OUT);
    for (int i = 0; i < 3; i++) {
        dd_monitor_step(r.ranks[0].monitor);
        dd_monitor_step(r.ranks[1].monitor);
    }
    CHECK_INT(r.ranks[1].nfailed, 1);
    CHECK_INT(r.ranks[0].nfailed, 0);
    /* only the first of several signals causes a dump */
    CHECK_INT(atomic_load(&r.ranks[1].monitor->ndumps), 1);
    CHECK_INT(atomic_load(&r.ranks[0].monitor->ndumps), 1);
    close_rig(&r);
}

TEST(a_group_created_again_ignores_notices_of_its_earlier_failure)
{
    rig r;
    open_rig(&r, 2);
    raise_on(&r, 0, DD_PEER_LOST);
    dd_monitor_step(r.ranks[0].monitor);
    for (int i = 0; i < 2; i++) {
        dd_monitor_remove(r.ranks[i].monitor, r.ranks[i].id);
        CHECK_INT(r.ranks[i].nreleased, 1);
        close_rank(&r, i);
    }
    for (int i = 0; i < 2; i++) {
        open_rank(&r, i);
        join_rank(&r, i);
    }
    dd_monitor_step(r.ranks[1].monitor);
    CHECK_INT(atomic_load(&r.ranks[1].monitor->ndumps), 0);
    CHECK_INT(r.ranks[1].nfailed, 0);
    raise_on(&r, 0, DD_PEER_LOST);
    dd_monitor_step(r.ranks[0].monitor);
    dd_monitor_step(r.ranks[1].monitor);
    CHECK_INT(atomic_load(&r.ranks[1].monitor->ndumps), 1);
    CHECK_INT(r.ranks[1].nfailed, 1);
    close_rig(&r);
}

TEST(a_failure_is_processed_before_its_group_is_removed)
{
    rig r;
    open_rig(&r, 2);
    raise_on(&r, 0, DD_MISMATCH);
    dd_monitor_remove(r.ranks[0].monitor, r.ranks[0].id);
    CHECK_INT(r.ranks[0].nreleased, 1);
    CHECK_INT(atomic_load(&r.ranks[0].monitor->ndumps), 1);
    dd_monitor_step(r.ranks[1].monitor);
    CHECK_INT(r.ranks[1].nfailed, 1);
    CHECK_INT(r.ranks[1].cause.code, DD_MISMATCH);
    close_rig(&r);
}

TEST(a_failure_causes_no_dump_and_no_notice_if_both_are_disabled)
{
    rig r;
    init_rig(&r, 2);
    r.options.is_propagating = false;
    r.options.dumping = DD_DUMPING_DEVICES;
    for (int i = 0; i < 2; i++) {
        open_rank(&r, i);
        join_rank(&r, i);
    }
    raise_on(&r, 0, DD_OP_TIMED_OUT);
    dd_monitor_step(r.ranks[0].monitor);
    dd_monitor_step(r.ranks[1].monitor);
    CHECK_INT(r.ranks[1].nfailed, 0);
    CHECK_INT(atomic_load(&r.ranks[0].monitor->ndumps), 0);
    CHECK_INT(atomic_load(&r.ranks[1].monitor->ndumps), 0);
    CHECK_CONTAINS(report_of(&r, 0), "DLDIST_FR_DUMP_FILE");
    close_rig(&r);
}

TEST(failures_of_gpu_groups_can_be_dumped_without_dumps_of_other_failures)
{
    rig r;
    init_rig(&r, 2);
    r.options.dumping = DD_DUMPING_DEVICES;
    r.is_device = true;
    for (int i = 0; i < 2; i++) {
        open_rank(&r, i);
        join_rank(&r, i);
    }
    raise_on(&r, 1, DD_ABORTED); /* an abort on request is not dumped */
    dd_monitor_step(r.ranks[1].monitor);
    CHECK_INT(atomic_load(&r.ranks[1].monitor->ndumps), 0);
    raise_on(&r, 0, DD_BACKEND);
    dd_monitor_step(r.ranks[0].monitor);
    dd_monitor_step(r.ranks[1].monitor);
    CHECK_INT(atomic_load(&r.ranks[0].monitor->ndumps), 1);
    CHECK_INT(atomic_load(&r.ranks[1].monitor->ndumps), 1);
    close_rig(&r);
}

TEST(a_failure_ends_the_process_only_if_this_is_enabled)
{
    rig r;
    init_rig(&r, 2);
    open_rank(&r, 0);
    join_rank(&r, 0);
    r.is_fatal = true;
    open_rank(&r, 1);
    join_rank(&r, 1);
    for (int i = 0; i < 2; i++) {
        raise_on(&r, i, DD_OP_TIMED_OUT);
        dd_monitor_step(r.ranks[i].monitor);
    }
    CHECK_INT(r.ranks[0].ndied, 0);
    CHECK_INT(r.ranks[1].ndied, 1);
    CHECK_CONTAINS(r.ranks[1].death, "all_reduce 7");
    close_rig(&r);
}

/* ---- signals of other ranks are untrusted input */

TEST(malformed_notices_in_the_store_are_reported)
{
    rig r;
    open_rig(&r, 2);
    put(&r, "exception_dump", BYTES("\1\0\0"));
    put(&r, "remote_error:g", BYTES("\0\0\0\0\1\0\0\0\377\377\377\377x"));
    dd_monitor_step(r.ranks[1].monitor);
    CHECK_INT(r.ranks[1].nfailed, 0);
    CHECK_CONTAINS(report_of(&r, 1), "malformed dump request: got 3 bytes");
    close_rig(&r);
}

TEST(a_failure_notice_of_only_four_bytes_has_no_reason)
{
    rig r;
    open_rig(&r, 2);
    put(&r, "remote_error:g", BYTES("\0\0\0\0"));
    dd_monitor_step(r.ranks[1].monitor);
    CHECK_INT(r.ranks[1].nfailed, 1);
    CHECK_INT(r.ranks[1].cause.code, DD_BACKEND);
    CHECK_CONTAINS(r.ranks[1].cause.message, "rank 0 failed: no reason given");
    close_rig(&r);
}

/* ---- dumps on request */

TEST(the_process_itself_can_request_a_dump)
{
    rig r;
    init_rig(&r, 1);
    r.options.dumping = DD_DUMPING_OFF;
    open_rank(&r, 0);
    rank_rig *rank = &r.ranks[0];
    for (int i = 1; i <= 2; i++) {
        dd_monitor_request_dump(rank->monitor);
        dd_monitor_step(rank->monitor);
        CHECK_INT(atomic_load(&(rank->monitor)->ndumps), i);
    }
    dd_monitor_step(rank->monitor);
    CHECK_INT(atomic_load(&(rank->monitor)->ndumps), 2);
    close_rig(&r);
}

TEST(a_dump_can_be_requested_through_a_named_pipe)
{
    rig r;
    char path[128];
    init_rig(&r, 1);
    snprintf(path, sizeof path, "%s/0.pipe", r.folder);
    r.options.pipe_path = path;
    open_rank(&r, 0);
    struct stat entry;
    REQUIRE(lstat(path, &entry) == 0);
    CHECK(S_ISFIFO(entry.st_mode) && (entry.st_mode & 077) == 0);
    for (int i = 1; i <= 2; i++) {
        int fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
        REQUIRE(fd >= 0);
        CHECK(write(fd, "12", 2) == 2);
        close(fd);
        dd_monitor_step(r.ranks[0].monitor);
        dd_monitor_step(r.ranks[0].monitor);
        CHECK_INT(atomic_load(&r.ranks[0].monitor->ndumps), i);
    }
    close_rank(&r, 0);
    CHECK(access(path, F_OK) != 0);
    close_rig(&r);
}

TEST(a_file_at_the_path_of_the_named_pipe_is_not_replaced)
{
    rig r;
    char path[128];
    init_rig(&r, 1);
    snprintf(path, sizeof path, "%s/0.pipe", r.folder);
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    REQUIRE(fd >= 0);
    close(fd);
    dd_monitor_host host = {.await_interpreter = await_interpreter, .end_process = die};
    r.options.pipe_path = path;
    r.options.dump_path = "unused";
    r.options.host = &host;
    REQUIRE_OK(dd_recorder_create(10, &r.options.recorder, check_err()));
    dd_monitor *monitor;
    CHECK_STATUS(dd_monitor_create(&r.options, &monitor, check_err()), DD_SYSTEM);
    CHECK_CONTAINS(check_message(), path);
    CHECK(unlink(path) == 0);
    dd_recorder_destroy(r.options.recorder);
    close_rig(&r);
}

static void
count_alarm(void *ctx)
{
    ++*(int *)ctx;
}

TEST(a_failed_creation_of_a_monitor_does_not_disable_another_monitor)
{
    rig r;
    int nalarms = 0;
    init_rig(&r, 1);
    dd_monitor_host host = {.await_interpreter = await_interpreter, .end_process = die};
    r.options.dump_path = "unused";
    r.options.host = &host;
    REQUIRE_OK(dd_recorder_create(10, &r.options.recorder, check_err()));
    dd_recorder_notify_of_alarms(r.options.recorder, count_alarm, &nalarms);
    dd_sys_fault fault = {.call = DD_SYS_eventfd, .error_number = EMFILE};
    dd_monitor *monitor;
    dd_sys_fail_call(&fault);
    CHECK_STATUS(dd_monitor_create(&r.options, &monitor, check_err()), DD_SYSTEM);
    dd_sys_fail_call(NULL);
    dd_recorder_group_info info = {.name = BYTES("group"), .desc = BYTES(""), .kind = "gloo", .size = 1};
    dd_recorder_group *group;
    REQUIRE_OK(dd_recorder_add_group(r.options.recorder, &info, &group, check_err()));
    dd_recorder_raise_alarm(group, DD_NO_RECORD, &(dd_error){.code = DD_ABORTED});
    CHECK_INT(nalarms, 1);
    dd_recorder_group_release(group);
    dd_recorder_destroy(r.options.recorder);
    close_rig(&r);
}

TEST(a_named_pipe_that_cannot_be_created_is_an_error)
{
    static const dd_sys_call calls[] = {DD_SYS_mkfifo, DD_SYS_open};
    rig r;
    char path[128];
    init_rig(&r, 1);
    snprintf(path, sizeof path, "%s/0.pipe", r.folder);
    dd_monitor_host host = {.await_interpreter = await_interpreter, .end_process = die};
    r.options.pipe_path = path;
    r.options.dump_path = "unused";
    r.options.host = &host;
    REQUIRE_OK(dd_recorder_create(10, &r.options.recorder, check_err()));
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        dd_sys_fault fault = {.call = calls[i], .error_number = EACCES};
        dd_monitor *monitor;
        CHECK(mkfifo(path, 0600) == 0); /* a leftover of an earlier process is always removed */
        dd_sys_fail_call(&fault);
        CHECK_STATUS(dd_monitor_create(&r.options, &monitor, check_err()), DD_SYSTEM);
        dd_sys_fail_call(NULL);
        CHECK_CONTAINS(check_message(), path);
        CHECK_CONTAINS(check_message(), calls[i] == DD_SYS_open ? "cannot open" : "cannot create");
        CHECK(access(path, F_OK) != 0);
    }
    dd_recorder_destroy(r.options.recorder);
    close_rig(&r);
}

static atomic_bool has_woken;

static void
take_a_while(void)
{
    usleep(100000);
    atomic_store(&has_woken, true);
}

/* A file system that hangs, and finally fails. */
TEST(a_dump_that_takes_too_long_is_reported)
{
    rig r;
    static const dd_sys_fault fault = {
        .call = DD_SYS_mkostemp, .error_number = EIO, .on_failure = take_a_while};
    init_rig(&r, 1);
    r.options.dump_timeout_ns = 20 * DD_NS_PER_MS;
    open_rank(&r, 0);
    join_rank(&r, 0);
    raise_on(&r, 0, DD_OP_TIMED_OUT);
    dd_sys_fail_call(&fault);
    dd_monitor_step(r.ranks[0].monitor);
    CHECK_CONTAINS(report_of(&r, 0), "cannot write a dump: writing ");
    CHECK_CONTAINS(report_of(&r, 0), "did not finish within 0.0 s");
    CHECK_INT(atomic_load(&r.ranks[0].monitor->ndumps), 0);
    dd_wait wait = dd_wait_after(5 * DD_NS_PER_S * check_slow());
    while (!atomic_load(&has_woken) && !dd_wait_has_expired(&wait)) {
        CHECK_OK(dd_wait_sleep(&wait, DD_NS_PER_MS, check_err()));
    }
    CHECK(atomic_load(&has_woken));
    close_rig(&r);
}

TEST(a_dump_that_cannot_be_written_is_reported)
{
    rig r;
    open_rig(&r, 1);
    CHECK(mkdir(r.ranks[0].dump_path, 0700) == 0); /* occupies the file's path */
    raise_on(&r, 0, DD_OP_TIMED_OUT);
    dd_monitor_step(r.ranks[0].monitor);
    CHECK_CONTAINS(report_of(&r, 0), "cannot write a dump: ");
    CHECK_INT(atomic_load(&r.ranks[0].monitor->ndumps), 0);
    CHECK(rmdir(r.ranks[0].dump_path) == 0);
    close_rig(&r);
}

/* ---- the watchdog and the interpreter */

static uint64_t
count_beats(void *ctx)
{
    return ((rank_rig *)ctx)->beat;
}

static const char *
activity(void *ctx)
{
    (void)ctx;
    return "ncclCommAbort";
}

static void
watch_beats(rig *r, bool is_fatal)
{
    dd_monitor_heartbeat heartbeat = {.count = count_beats,
                                      .activity = activity,
                                      .ctx = &r->ranks[0],
                                      .timeout_ns = 1,
                                      .is_fatal = is_fatal};
    dd_monitor_set_heartbeat(r->ranks[0].monitor, &heartbeat);
}

TEST(a_heartbeat_that_stops_fails_the_group)
{
    rig r;
    open_rig(&r, 1);
    rank_rig *rank = &r.ranks[0];
    watch_beats(&r, false);
    for (int i = 0; i < 3; i++) {
        dd_monitor_step(rank->monitor); /* nothing to watch */
    }
    for (rank->beat = 1; rank->beat < 4; rank->beat++) {
        dd_monitor_step(rank->monitor); /* the heartbeat changes */
    }
    CHECK_INT(rank->nfailed, 0);
    for (int i = 0; i < 3; i++) {
        dd_monitor_step(rank->monitor);
    }
    CHECK_INT(rank->nfailed, 1);
    CHECK_INT(rank->ndied, 0);
    CHECK_INT(atomic_load(&(rank->monitor)->ndumps), 1);
    CHECK_CONTAINS(rank->cause.message, "in ncclCommAbort");
    CHECK_CONTAINS(report_of(&r, 0), "the watchdog of NCCL groups has made no progress");
    dd_monitor_set_heartbeat(rank->monitor, NULL);
    rank->beat = 0;
    dd_monitor_step(rank->monitor);
    close_rig(&r);
}

TEST(a_heartbeat_that_stops_ends_the_process_if_this_is_enabled)
{
    rig r;
    open_rig(&r, 1);
    watch_beats(&r, true);
    r.ranks[0].beat = 5;
    dd_monitor_step(r.ranks[0].monitor);
    dd_monitor_step(r.ranks[0].monitor);
    dd_monitor_step(r.ranks[0].monitor);
    CHECK_INT(r.ranks[0].ndied, 1);
    CHECK_INT(r.ranks[0].nfailed, 0);
    close_rig(&r);
}

TEST(a_blocked_python_interpreter_is_reported)
{
    rig r;
    open_rig(&r, 1);
    rank_rig *rank = &r.ranks[0];
    atomic_store(&is_silent, true);
    raise_on(&r, 0, DD_OP_TIMED_OUT);
    dd_monitor_step(rank->monitor);
    CHECK_INT(atomic_load(&(rank->monitor)->ndumps), 1);
    CHECK_CONTAINS(report_of(&r, 0), " s and still holds it: Python is blocked");
    CHECK_LACKS(report_of(&r, 0), "free again");
    /* another report does not query the interpreter again */
    dd_monitor_request_dump(rank->monitor);
    dd_monitor_step(rank->monitor);
    CHECK_LACKS(report_of(&r, 0), "free again");
    atomic_store(&is_silent, false);
    dd_wait wait = dd_wait_after(check_slow() * 5 * DD_NS_PER_S);
    while (strstr(report_of(&r, 0), "the GIL is free again after ") == NULL && !dd_wait_has_expired(&wait)) {
        dd_monitor_step(rank->monitor);
    }
    CHECK_CONTAINS(report_of(&r, 0), "the GIL is free again after ");
    CHECK_INT(atomic_load(&nasked), 1);
    close_rig(&r);
}

/* ---- positions of the ranks */

TEST(the_report_of_a_failure_names_ranks_that_did_not_call)
{
    rig r;
    init_rig(&r, 3);
    r.options.is_desync = true;
    for (int i = 0; i < 3; i++) {
        open_rank(&r, i);
        join_rank(&r, i);
    }
    for (int i = 0; i < 2; i++) {
        call(&r, i, "broadcast");
    }
    call(&r, 0, "all_reduce");
    dd_monitor_step(r.ranks[1].monitor);
    raise_on(&r, 0, DD_OP_TIMED_OUT);
    dd_monitor_step(r.ranks[0].monitor);
    CHECK_CONTAINS(report_of(&r, 0), "all_reduce: rank 1\n");
    CHECK_CONTAINS(report_of(&r, 0), "never called anything, or have exited: rank 2\n");
    CHECK_CONTAINS(report_of(&r, 0), "rank 1: last called");
    put(&r, "dldist/watch/g/state/2", BYTES("garbage!"));
    raise_on(&r, 1, DD_OP_TIMED_OUT);
    dd_monitor_step(r.ranks[1].monitor);
    CHECK_CONTAINS(report_of(&r, 1), "are ahead of");
    CHECK_CONTAINS(report_of(&r, 1), "malformed progress of a rank (8 bytes)");
    close_rig(&r);
}

/* Return how often the server receives bytes while rank 0 reports the failure of a group of this
 * size, in which the last rank has published no state. */
static uint64_t
count_requests_of_report(int size)
{
    rig r;
    dd_tcp_server_options server_options = raw_options();
    dd_tcp_server *server = raw_server(&server_options);
    dd_tcp_store_options options = {.host = "127.0.0.1",
                                    .port = dd_tcp_server_port(server),
                                    .timeout_ns = CALL_TIMEOUT_NS,
                                    .world_size = -1};
    dd_wait wait = dd_wait_after(CALL_TIMEOUT_NS);
    init_rig(&r, size);
    dd_store_release(r.store);
    CHECK_OK(dd_tcp_store_open(&r.store, &options, &wait, check_err()));
    r.options.is_desync = true;
    for (int i = 0; i < size; i++) {
        open_rank(&r, i);
        join_rank(&r, i);
    }
    for (int i = 0; i < size - 1; i++) {
        call(&r, i, i > 0 ? "broadcast" : "all_reduce");
        dd_monitor_step(r.ranks[i].monitor);
    }
    raise_on(&r, 0, DD_OP_TIMED_OUT);
    server_stats before;
    server_stats after;
    before = read_server_stats(server);
    dd_monitor_step(r.ranks[0].monitor);
    after = read_server_stats(server);
    char silent[64];
    snprintf(silent, sizeof silent, "never called anything, or have exited: rank %d\n", size - 1);
    CHECK_CONTAINS(report_of(&r, 0), "called something else instead of 1 all_reduce: rank 1, 2");
    CHECK_CONTAINS(report_of(&r, 0), silent);
    close_rig(&r);
    dd_tcp_server_release(server);
    return after.reads - before.reads;
}

TEST(reporting_on_more_ranks_sends_no_more_requests_to_the_store)
{
    CHECK_INT(count_requests_of_report(MAX_RANKS), count_requests_of_report(4));
}

static const dd_store_ops *whole_ops;

static dd_status
refuse_multi_get(dd_store *store, const dd_store_request *request, dd_store_result *result,
                 const dd_wait *wait, dd_error *err)
{
    if (request->op != DD_STORE_MULTI_GET) {
        return whole_ops->run(store, request, result, wait, err);
    }
    return dd_error_set(err, DD_NETWORK, "the server exited");
}

TEST(the_report_of_a_failure_says_if_the_store_cannot_be_queried)
{
    rig r;
    init_rig(&r, 2);
    r.options.is_desync = true;
    for (int i = 0; i < 2; i++) {
        open_rank(&r, i);
        join_rank(&r, i);
    }
    dd_store_ops ops = *r.store->ops;
    whole_ops = r.store->ops;
    ops.run = refuse_multi_get;
    r.store->ops = &ops;
    raise_on(&r, 0, DD_OP_TIMED_OUT);
    dd_monitor_step(r.ranks[0].monitor);
    CHECK_CONTAINS(report_of(&r, 0), "  the store of group \"g\" does not answer: the server exited\n");
    CHECK_LACKS(report_of(&r, 0), "have exited");
    r.store->ops = whole_ops;
    close_rig(&r);
}

/* ---- stores */

static int ncalls_after_end;

static dd_status
refuse_try_get(dd_store *store, const dd_store_request *request, dd_store_result *result, const dd_wait *wait,
               dd_error *err)
{
    if (request->op != DD_STORE_TRY_GET) {
        return whole_ops->run(store, request, result, wait, err);
    }
    ncalls_after_end++;
    return dd_error_set(err, DD_NETWORK, "the server is gone");
}

TEST(a_store_that_has_ended_is_not_queried_again)
{
    rig r;
    init_rig(&r, 1);
    open_rank(&r, 0);
    dd_store_ops ops = *r.store->ops;
    whole_ops = r.store->ops;
    ops.run = refuse_try_get;
    join_rank(&r, 0);
    r.store->ops = &ops;
    for (int i = 0; i < 5; i++) {
        dd_monitor_step(r.ranks[0].monitor);
    }
    CHECK_INT(ncalls_after_end, 1);
    raise_on(&r, 0, DD_PEER_LOST);
    dd_monitor_step(r.ranks[0].monitor);
    CHECK_INT(atomic_load(&r.ranks[0].monitor->ndumps), 1);
    r.store->ops = whole_ops;
    close_rig(&r);
}

static void *
run_monitor(void *arg)
{
    dd_monitor_run(arg);
    return NULL;
}

TEST(the_monitor_thread_processes_alarms_and_stops)
{
    rig r;
    init_rig(&r, 2);
    r.options.check_interval_ns = 20 * DD_NS_PER_MS;
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        open_rank(&r, i);
        join_rank(&r, i);
        REQUIRE_OK(dd_thread_start(&threads[i], "monitor", run_monitor, r.ranks[i].monitor, check_err()));
    }
    raise_on(&r, 0, DD_OP_TIMED_OUT);
    dd_wait wait = dd_wait_after(check_slow() * 5 * DD_NS_PER_S);
    while (atomic_load(&r.ranks[1].monitor->ndumps) == 0 && !dd_wait_has_expired(&wait)) {
        CHECK_OK(dd_wait_sleep(&wait, DD_NS_PER_MS, check_err()));
    }
    CHECK_INT(atomic_load(&r.ranks[0].monitor->ndumps), 1);
    CHECK_INT(atomic_load(&r.ranks[1].monitor->ndumps), 1);
    int64_t start_ns = dd_clock_now_ns();
    for (int i = 0; i < 2; i++) {
        dd_monitor_stop(r.ranks[i].monitor, DD_NS_PER_S);
        pthread_join(threads[i], NULL);
        CHECK_INT(r.ranks[i].nreleased, 1);
    }
    CHECK(dd_clock_now_ns() - start_ns < check_slow() * DD_NS_PER_S);
    close_rig(&r);
}

TEST(running_a_stopped_monitor_returns_without_effect)
{
    rig r;
    init_rig(&r, 1);
    open_rank(&r, 0);
    join_rank(&r, 0);
    raise_on(&r, 0, DD_OP_TIMED_OUT);
    int64_t start_ns = dd_clock_now_ns();
    dd_monitor_stop(r.ranks[0].monitor, 3600 * DD_NS_PER_S); /* returns without waiting */
    dd_monitor_run(r.ranks[0].monitor);
    CHECK(dd_clock_now_ns() - start_ns < check_slow() * 5 * DD_NS_PER_S);
    CHECK_INT(atomic_load(&r.ranks[0].monitor->ndumps), 0);
    CHECK_INT(r.ranks[0].nreleased, 0);
    close_rig(&r);
}

TEST(a_monitor_stays_usable_after_failed_allocations)
{
    rig r;
    init_rig(&r, 1);
    open_rank(&r, 0);
    rank_rig *rank = &r.ranks[0];
    CHECK_OK(dd_prefix_store_open(&rank->store, BYTES("0"), r.store, check_err()));
    dd_monitor_member member = {.name = BYTES("g"), .size = 1, .store = rank->store, .ctx = rank};
    dd_wait wait = dd_wait_after(CALL_TIMEOUT_NS);
    dd_status status = DD_OUT_OF_MEMORY;
    for (long n = 0; n < 20 && status != DD_OK; n++) {
        dd_mem_fail_after(n);
        status = dd_monitor_add(rank->monitor, &member, &rank->id, &wait, check_err());
        dd_mem_fail_after(-1);
        CHECK(status == DD_OK || status == DD_OUT_OF_MEMORY);
    }
    CHECK_STATUS(status, DD_OK);
    for (long n = 0; n < 20; n++) {
        dd_mem_fail_after(n);
        dd_monitor_request_dump(rank->monitor);
        dd_monitor_step(rank->monitor);
        dd_mem_fail_after(-1);
    }
    close_rig(&r);
}
