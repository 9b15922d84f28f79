/* csrc/observe/recorder.c, and dump.c, which is included for its reader: records are read while
 * they are written and while newer ones replace them. */
#include "models/checker.h"

#include "core/thread.h"
#include "observe/dump.c"

#define NAME_OF(i) (names[(i)-1])

static dd_recorder *recorder;
static dd_recorder_group *groups[2];
static const char *const names[] = {"first", "second", "third"};

pthread_t
dd_thread_self(void)
{
    return (pthread_t)(checker_self() + 1);
}

void
dd_thread_own_name(char *name, size_t nbytes)
{
    memcpy(name, "name", nbytes < 5 ? nbytes : 5);
}

/* Open a recorder with two slots. */
static void
open_recorder(void)
{
    dd_error err;
    dd_recorder_group_info info = {0};
    REQUIRE(dd_recorder_create(2, &recorder, &err) == DD_OK);
    for (int i = 0; i < 2; i++) {
        REQUIRE(dd_recorder_add_group(recorder, &info, &groups[i], &err) == DD_OK);
    }
}

/* The third record is a message; the others are collectives. */
static bool
is_message(uint64_t i)
{
    return i == 3;
}

/* Write a record whose fields are all derived from its number. */
static uint64_t
begin(dd_recorder_group *group, uint64_t i)
{
    dd_record_call call = {.name = NAME_OF(i),
                           .created_ns = (int64_t)i * 10,
                           .timeout_ns = (int64_t)i * 100,
                           .stack = (uint32_t)i,
                           .is_started = true,
                           .is_p2p = is_message(i),
                           .peer = (int)i};
    return dd_recorder_begin(group, &call);
}

static void
check_record(const snapshot_entry *entry)
{
    uint64_t i = entry->body.stack;
    REQUIRE(i >= 1 && i <= 3);
    REQUIRE(entry->body.created_ns == (int64_t)i * 10 && entry->body.timeout_ns == (int64_t)i * 100);
    REQUIRE(entry->body.name == NAME_OF(i));
    REQUIRE(entry->started_ns == (int64_t)i * 10 && entry->peer == (is_message(i) ? (int)i : NO_PEER));
    REQUIRE(entry->ended_ns == 0 || entry->ended_ns == (int64_t)i * 1000);
    REQUIRE(entry->code == DD_OK || entry->code == DD_ABORTED);
}

static void
end_and_read(int self)
{
    snapshot_entry entry;
    if (self == 0) {
        dd_recorder_end(recorder, 1, 1000, NULL);
        return;
    }
    if (try_read(&recorder->ring[1 & recorder->mask], 1, &entry)) {
        check_record(&entry);
    }
}

static void
open_with_one(void)
{
    open_recorder();
    REQUIRE(begin(groups[0], 1) == 1);
}

SCENARIO(recorder_ends, .label = "a record that is read when its call ends", .nthreads = 2,
         .setup = open_with_one, .thread = end_and_read, .needs_no_order = true)

/* A reader that sees the end of a record must also see its result. */
static void
fail_and_read(int self)
{
    snapshot_entry entry;
    if (self == 0) {
        dd_error error;
        (void)dd_error_set(&error, DD_ABORTED, "why");
        dd_recorder_end(recorder, 1, 1000, &error);
        return;
    }
    if (try_read(&recorder->ring[1 & recorder->mask], 1, &entry)) {
        check_record(&entry);
        REQUIRE(entry.ended_ns == 0 || entry.code == DD_ABORTED);
    }
}

SCENARIO(recorder_fails, .label = "a record that is read when its call fails", .nthreads = 2,
         .setup = open_with_one, .thread = fail_and_read)

static void
begin_and_read(int self)
{
    snapshot_entry entry;
    if (self == 0) {
        (void)begin(groups[0], 1);
        return;
    }
    if (try_read(&recorder->ring[1 & recorder->mask], 1, &entry)) {
        check_record(&entry);
    }
}

SCENARIO(recorder_begins, .label = "a record that is read while it is made", .nthreads = 2,
         .setup = open_recorder, .thread = begin_and_read)

static void
open_with_two(void)
{
    open_with_one();
    REQUIRE(begin(groups[0], 2) == 2);
}

/* Begin two records; the first has failed. */
static void
open_with_two_and_end(void)
{
    dd_error error;
    open_with_two();
    (void)dd_error_set(&error, DD_ABORTED, "why");
    dd_recorder_end(recorder, 1, 1000, &error);
}

/* The third record replaces the first. */
static void
overwrite_and_read(int self)
{
    snapshot_entry entry;
    if (self == 0) {
        REQUIRE(begin(groups[0], 3) == 3);
        return;
    }
    for (uint64_t record = 1; record <= 3; record += 2) {
        if (try_read(&recorder->ring[1 & recorder->mask], record, &entry)) {
            check_record(&entry);
            REQUIRE(entry.body.stack == record);
            REQUIRE(entry.ended_ns == (record == 1 ? 1000 : 0));
            REQUIRE(entry.code == (record == 1 ? DD_ABORTED : DD_OK));
        }
    }
}

SCENARIO(recorder_overwrites, .label = "a record that is read while a newer one takes its place",
         .nthreads = 2, .setup = open_with_two_and_end, .thread = overwrite_and_read)

/* Two threads use one slot: one ends its record, the other replaces it with a newer one. */
static void
end_and_overwrite(int self)
{
    if (self == 0) {
        dd_recorder_end(recorder, 1, 1000, NULL);
    } else {
        REQUIRE(begin(groups[1], 3) == 3);
    }
}

static void
check_last(void)
{
    snapshot_entry entry;
    REQUIRE(try_read(&recorder->ring[1 & recorder->mask], 3, &entry));
    check_record(&entry);
    REQUIRE(entry.body.stack == 3 && entry.ended_ns == 0);
}

SCENARIO(recorder_fights, .label = "two threads that write to one slot", .nthreads = 2,
         .setup = open_with_two, .thread = end_and_overwrite, .finish = check_last, .max_same = 3)

/* The name of a group is read without the lock. */
static void
rename_and_read(int self)
{
    dd_error err;
    if (self == 0) {
        dd_recorder_group_info info = {.kind = "first", .name = dd_bytes_of("name", 4)};
        REQUIRE(dd_recorder_group_rename(groups[0], &info, &err) == DD_OK);
    } else {
        REQUIRE(dd_recorder_group_set_kind(groups[0], "second", &err) == DD_OK);
    }
}

SCENARIO(recorder_renames, .label = "a group that two threads rename", .nthreads = 2, .setup = open_recorder,
         .thread = rename_and_read)
