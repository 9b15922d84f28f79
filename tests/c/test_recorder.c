/* The flight recorder: its ring, groups, alarms, call sites, and dumps as text.
 * tests/py/diagnostics/test_flight_recorder.py reads dumps back. */
#include "check.h"
#include "core/clock.h"
#include "core/mem.h"
#include "core/thread.h"
#include "faults/faults.h"
#include "observe/recorder_internal.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct rig {
    dd_recorder *recorder;
    dd_recorder_group *group;
} rig;

static const dd_recorder_group_info plain_info = {.name = {(const uint8_t *)"0", 1},
                                                  .desc = {(const uint8_t *)"default_pg", 10},
                                                  .kind = "gloo",
                                                  .size = 2};

static bool
rig_open(rig *self, size_t capacity)
{
    return CHECK_OK(dd_recorder_create(capacity, &self->recorder, check_err())) &&
           CHECK_OK(dd_recorder_add_group(self->recorder, &plain_info, &self->group, check_err()));
}

static void
rig_close(rig *self)
{
    dd_recorder_group_release(self->group);
    dd_recorder_destroy(self->recorder);
}

static uint64_t
begin(dd_recorder_group *group, const char *name, int64_t created_ns)
{
    const int64_t shape[] = {3, 4};
    dd_record_tensor tensor = {.dtype = DD_DTYPE_FLOAT32, .ndim = 2, .shape = shape};
    dd_record_call call = {.name = name,
                           .peer = -1,
                           .created_ns = created_ns,
                           .timeout_ns = 5 * DD_NS_PER_S,
                           .inputs = &tensor,
                           .outputs = &tensor,
                           .ninputs = 1,
                           .noutputs = 1};
    return dd_recorder_begin(group, &call);
}

/* Return a dump as a zero-terminated text; the caller frees it. */
static char *
dump_text(dd_recorder *recorder, bool is_active_only)
{
    dd_dump_options options = {
        .format = DD_DUMP_JSON, .has_entries = true, .has_stacks = true, .is_active_only = is_active_only};
    dd_blob blob = {0};
    CHECK_OK(dd_recorder_dump(recorder, &options, &blob, check_err()));
    CHECK_OK(dd_blob_append(&blob, "", 1, check_err()));
    return (char *)blob.data;
}

static size_t
count_of(const char *text, const char *part)
{
    size_t count = 0;
    for (const char *at = strstr(text, part); at != NULL; at = strstr(at + 1, part)) {
        count++;
    }
    return count;
}

/* ---- the ring */

TEST(a_record_shows_that_its_call_is_scheduled_started_and_completed)
{
    rig self;
    REQUIRE(rig_open(&self, 8));
    uint64_t record = begin(self.group, "all_reduce", dd_clock_now_ns());
    char *text = dump_text(self.recorder, false);
    CHECK_CONTAINS(text, "\"profiling_name\":\"gloo:all_reduce\"");
    CHECK_CONTAINS(text, "\"state\":\"scheduled\"");
    CHECK_CONTAINS(text, "\"retired\":false");
    CHECK_CONTAINS(text, "\"input_sizes\":[[3,4]],\"input_dtypes\":[\"Float\"],\"output_sizes\":[[3,4]]");
    CHECK_CONTAINS(text, "\"timeout_ms\":5000");
    CHECK_CONTAINS(text, "\"process_group\":[\"0\",\"default_pg\"]");
    dd_mem_free(text);
    int64_t now_ns = dd_clock_now_ns();
    dd_recorder_start(self.recorder, record, now_ns);
    text = dump_text(self.recorder, false);
    CHECK_CONTAINS(text, "\"state\":\"started\"");
    CHECK_CONTAINS(text, "\"last_started_collective\":\"1\",\"last_completed_collective\":\"-1\"");
    dd_mem_free(text);
    dd_recorder_end(self.recorder, record, now_ns + 1500000, NULL);
    text = dump_text(self.recorder, false);
    CHECK_CONTAINS(text, "\"duration_ms\":1.500000,\"state\":\"completed\"");
    CHECK_CONTAINS(text, "\"retired\":true");
    CHECK_CONTAINS(text, "\"last_completed_collective\":\"1\"");
    dd_mem_free(text);
    text = dump_text(self.recorder, true);
    CHECK_CONTAINS(text, "\"entries\":[]");
    dd_mem_free(text);
    rig_close(&self);
}

TEST(the_recorder_keeps_the_newest_records_and_never_reuses_an_id)
{
    rig self;
    REQUIRE(rig_open(&self, 6)); /* fewer than the ring has slots */
    uint64_t first = begin(self.group, "broadcast", 1);
    for (int i = 0; i < 20; i++) {
        CHECK_INT(begin(self.group, "reduce", 1), first + 1 + (uint64_t)i);
    }
    dd_recorder_start(self.recorder, first, 5); /* its slot was reused by a newer record */
    dd_error error;
    dd_error_set(&error, DD_ABORTED, "gone");
    dd_recorder_end(self.recorder, first, 6, &error);
    char *text = dump_text(self.recorder, false);
    CHECK_INT(count_of(text, "\"record_id\""), 6);
    CHECK_CONTAINS(text, "\"entries\":[{\"record_id\":15,");
    CHECK_CONTAINS(text, "\"record_id\":20,");
    CHECK_INT(count_of(text, "\"state\":\"scheduled\""), 6);
    CHECK_LACKS(text, "gone");
    dd_mem_free(text);
    rig_close(&self);
}

TEST(a_recorder_of_capacity_0_counts_calls_without_recording_them)
{
    rig self;
    REQUIRE(rig_open(&self, 0));
    CHECK_INT(begin(self.group, "all_reduce", 1), DD_NO_RECORD);
    dd_recorder_start(self.recorder, DD_NO_RECORD, 2);
    dd_recorder_end(self.recorder, DD_NO_RECORD, 3, NULL);
    dd_recorder_withdraw(self.recorder, DD_NO_RECORD);
    char *text = dump_text(self.recorder, false);
    CHECK_CONTAINS(text, "\"entries\":[]");
    CHECK_CONTAINS(text, "\"last_enqueued_collective\":\"1\"");
    dd_mem_free(text);
    rig_close(&self);
}

TEST(a_reset_removes_all_records_and_restarts_their_count)
{
    rig self;
    REQUIRE(rig_open(&self, 8));
    uint64_t old = begin(self.group, "all_reduce", 1);
    begin(self.group, "all_reduce", 1);
    dd_recorder_reset(self.recorder);
    dd_recorder_end(self.recorder, old, 2, NULL);
    begin(self.group, "barrier", 1);
    char *text = dump_text(self.recorder, false);
    CHECK_INT(count_of(text, "\"record_id\""), 1);
    CHECK_CONTAINS(text, "\"record_id\":0,");
    CHECK_CONTAINS(text, "\"collective_seq_id\":3,");
    dd_mem_free(text);
    rig_close(&self);
}

TEST(a_refused_call_is_removed_from_the_records)
{
    rig self;
    REQUIRE(rig_open(&self, 8));
    dd_recorder_withdraw(self.recorder, begin(self.group, "all_reduce", 1));
    uint64_t record = begin(self.group, "barrier", 1);
    dd_recorder_end(self.recorder, record, 3, NULL);
    char *text = dump_text(self.recorder, false);
    CHECK_INT(count_of(text, "\"record_id\""), 1);
    CHECK_CONTAINS(text, "\"collective_seq_id\":1,");
    CHECK_CONTAINS(text, "gloo:barrier");
    CHECK_LACKS(text, "duration_ms"); /* its start was never recorded */
    dd_mem_free(text);
    rig_close(&self);
}

TEST(only_the_first_reported_end_of_a_call_is_recorded)
{
    rig self;
    REQUIRE(rig_open(&self, 8));
    dd_error error;
    dd_error_set(&error, DD_PEER_LOST, "lost \"rank 1\"\n\x01\xff");
    dd_error_blame(&error, 1, "host", 7);
    uint64_t record = begin(self.group, "all_reduce", 1);
    dd_recorder_start(self.recorder, record, 2);
    dd_recorder_end(self.recorder, record, 3, &error);
    dd_recorder_end(self.recorder, record, 4, NULL);
    dd_recorder_start(self.recorder, record, 5);
    char *text = dump_text(self.recorder, true);
    CHECK_CONTAINS(text, "\"state\":\"started\"");
    CHECK_CONTAINS(text, "\"time_discovered_completed_ns\":0,\"retired\":true");
    CHECK_CONTAINS(text,
                   "\"error\":\"lost \\\"rank 1\\\"\\u000a\\u0001\\ufffd\",\"error_code\":\"PEER_LOST\"");
    CHECK_CONTAINS(text, "\"culprit_rank\":1");
    dd_mem_free(text);
    rig_close(&self);
}

TEST(the_error_texts_of_the_oldest_of_many_failures_are_dropped)
{
    rig self;
    REQUIRE(rig_open(&self, 64));
    for (int i = 0; i < 20; i++) {
        dd_error error;
        dd_error_set(&error, DD_ABORTED, "reason %d", i);
        dd_recorder_end(self.recorder, begin(self.group, "barrier", 1), 2, &error);
    }
    char *text = dump_text(self.recorder, false);
    CHECK_INT(count_of(text, "\"error_code\":\"ABORTED\""), 20);
    CHECK_INT(count_of(text, "\"error\":\"operation was aborted\""), 4);
    CHECK_CONTAINS(text, "\"error\":\"reason 19\"");
    dd_mem_free(text);
    rig_close(&self);
}

/* ---- tensors */

TEST(a_stacked_output_is_recorded_as_one_tensor_with_one_more_dimension)
{
    rig self;
    REQUIRE(rig_open(&self, 8));
    const int64_t shape[] = {2, 5};
    dd_record_tensor inputs[] = {{.dtype = DD_DTYPE_BFLOAT16, .ndim = 2, .shape = shape, .count = 2},
                                 {.dtype = DD_DTYPE_INT64, .ndim = 0}};
    dd_record_tensor output = {
        .dtype = DD_DTYPE_FLOAT16, .ndim = 1, .shape = shape, .count = 4, .is_stacked = true};
    dd_record_call call = {
        .name = "all_gather", .inputs = inputs, .outputs = &output, .ninputs = 2, .noutputs = 1};
    dd_recorder_begin(self.group, &call);
    char *text = dump_text(self.recorder, false);
    CHECK_CONTAINS(text,
                   "\"input_sizes\":[[2,5],[2,5],[]],\"input_dtypes\":[\"BFloat16\",\"BFloat16\",\"Long\"]");
    CHECK_CONTAINS(text, "\"output_sizes\":[[4,2]],\"output_dtypes\":[\"Half\"]");
    CHECK_LACKS(text, "left_out");
    dd_mem_free(text);
    rig_close(&self);
}

TEST(tensors_that_do_not_fit_into_a_record_are_counted)
{
    rig self;
    REQUIRE(rig_open(&self, 8));
    int64_t shape[32];
    dd_record_tensor inputs[3];
    for (int i = 0; i < 32; i++) {
        shape[i] = i;
    }
    inputs[0] = (dd_record_tensor){.dtype = DD_DTYPE_BOOL, .ndim = 7, .shape = shape};
    inputs[1] = (dd_record_tensor){.dtype = DD_DTYPE_BOOL, .ndim = 32, .shape = shape, .count = 3};
    /* would fit */
    inputs[2] = (dd_record_tensor){.dtype = DD_DTYPE_BOOL, .ndim = 1, .shape = shape};
    dd_record_tensor output = {.dtype = DD_DTYPE_BOOL, .ndim = 32, .shape = shape};
    dd_record_call call = {.name = "all_to_all",
                           .inputs = inputs,
                           .outputs = &output,
                           .ninputs = 3,
                           .noutputs = 1,
                           .ninputs_more = 5};
    dd_recorder_begin(self.group, &call);
    char *text = dump_text(self.recorder, false);
    CHECK_CONTAINS(text, "\"input_sizes\":[[0,1,2,3,4,5,6]],");
    CHECK_CONTAINS(text, "\"inputs_left_out\":9,\"outputs_left_out\":1");
    dd_mem_free(text);
    rig_close(&self);
}

TEST(records_of_messages_name_both_ranks)
{
    rig self;
    REQUIRE(rig_open(&self, 8));
    dd_record_call call = {.name = "send", .is_p2p = true, .peer = 1};
    dd_recorder_begin(self.group, &call);
    begin(self.group, "all_reduce", 1);
    call = (dd_record_call){.name = "recv", .is_p2p = true, .peer = -1};
    uint64_t record = dd_recorder_begin(self.group, &call);
    dd_recorder_set_peer(self.recorder, record, 1);
    char *text = dump_text(self.recorder, false);
    CHECK_CONTAINS(text, "\"gloo:send 0->1\"");
    CHECK_CONTAINS(text, "\"gloo:recv 0<-1\"");
    CHECK_CONTAINS(text, "\"collective_seq_id\":0,\"p2p_seq_id\":2,\"op_id\":1,");
    CHECK_CONTAINS(text, "\"collective_seq_id\":1,\"p2p_seq_id\":2,\"op_id\":2,");
    CHECK_CONTAINS(text, "\"collective_seq_id\":1,\"p2p_seq_id\":3,\"op_id\":3,");
    dd_mem_free(text);
    rig_close(&self);
}

/* ---- groups */

static dd_recorder_group *
add_group(dd_recorder *recorder, const char *name)
{
    dd_recorder_group_info info = {.name = dd_bytes_of_string(name), .kind = "nccl", .size = 1};
    dd_recorder_group *group = NULL;
    CHECK_OK(dd_recorder_add_group(recorder, &info, &group, check_err()));
    return group;
}

TEST(a_released_group_stays_in_dumps_while_it_has_records)
{
    rig self;
    REQUIRE(rig_open(&self, 4));
    dd_recorder_group *brief = add_group(self.recorder, "brief");
    begin(brief, "barrier", 1);
    dd_recorder_group_release(brief);
    dd_recorder_group_release(add_group(self.recorder, "unused"));
    char *text = dump_text(self.recorder, false);
    CHECK_CONTAINS(text, "\"brief\":{\"name\":\"brief\",\"desc\":\"\",\"ranks\":\"[0]\"}");
    CHECK_CONTAINS(text, "nccl:barrier");
    CHECK_LACKS(text, "unused");
    dd_mem_free(text);
    for (int i = 0; i < 4; i++) {
        begin(self.group, "barrier", 1);
    }
    text = dump_text(self.recorder, false);
    CHECK_LACKS(text, "brief");
    dd_mem_free(text);
    for (int i = 0; i < 200; i++) { /* and is freed later, when another group adds records */
        begin(self.group, "barrier", 1);
        dd_recorder_group_release(add_group(self.recorder, "more"));
    }
    rig_close(&self);
}

TEST(groups_can_be_renamed_and_names_may_have_any_bytes)
{
    rig self;
    REQUIRE(rig_open(&self, 4));
    begin(self.group, "barrier", 1);
    const int ranks[] = {7, 3};
    dd_recorder_group_info info = {.name = BYTES("a\"b\\\xc3\xa9\xf0\x9f\x8e\xb2\xed\xa0\x80\xff\xc3"),
                                   .desc = BYTES("\0\n\x7f"),
                                   .kind = "nccl",
                                   .rank = 1,
                                   .size = 2,
                                   .global_ranks = ranks};
    CHECK_OK(dd_recorder_group_rename(self.group, &info, check_err()));
    char *text = dump_text(self.recorder, false);
    CHECK_CONTAINS(
        text, "\"process_group\":[\"a\\\"b\\\\\\u00e9\\ud83c\\udfb2\\ufffd\\ufffd\\ufffd\\ufffd\\ufffd\","
              "\"\\u0000\\u000a\\u007f\"]");
    CHECK_CONTAINS(text, "\"ranks\":\"[7, 3]\"");
    for (const char *at = text; *at != '\0'; at++) {
        REQUIRE(*at >= 0x20 && *at < 0x7f);
    }
    dd_mem_free(text);
    rig_close(&self);
}

TEST(a_dump_describes_the_newest_of_two_groups_with_the_same_name)
{
    rig self;
    REQUIRE(rig_open(&self, 4));
    dd_recorder_group *twin = add_group(self.recorder, "0");
    char *text = dump_text(self.recorder, false);
    CHECK_INT(count_of(text, "\"0\":{\"name\""), 1);
    CHECK_CONTAINS(text, "\"ranks\":\"[0]\"");
    dd_mem_free(text);
    dd_recorder_group_release(twin);
    rig_close(&self);
}

TEST(the_status_of_a_group_has_its_last_called_and_completed_operation)
{
    rig self;
    REQUIRE(rig_open(&self, 4));
    dd_recorder_status status;
    dd_recorder_group_status(self.group, &status);
    CHECK_INT(status.called.number, -1);
    CHECK(strcmp(status.completed.name, "") == 0);
    uint64_t record = begin(self.group, "all_reduce", 1);
    dd_recorder_start(self.recorder, record, 2);
    dd_recorder_end(self.recorder, record, 3, NULL);
    dd_recorder_start(self.recorder, begin(self.group, "barrier", 1), 4);
    begin(self.group, "reduce", 1);
    dd_recorder_group_status(self.group, &status);
    CHECK_INT(status.called.number, 3);
    CHECK_INT(status.started.number, 2);
    CHECK_INT(status.completed.number, 1);
    CHECK(strcmp(status.called.name, "reduce") == 0);
    CHECK(strcmp(status.started.name, "barrier") == 0);
    CHECK(strcmp(status.completed.name, "all_reduce") == 0);
    rig_close(&self);
}

/* ---- alarms */

TEST(only_the_first_alarm_of_a_group_is_reported)
{
    rig self;
    REQUIRE(rig_open(&self, 4));
    dd_alarm alarm;
    dd_error error;
    CHECK(!dd_recorder_take_alarm(self.recorder, &alarm));
    dd_error_set(&error, DD_PEER_LOST, "lost rank 1");
    dd_recorder_raise_alarm(self.group, 9, &error);
    dd_error_set(&error, DD_ABORTED, "and then");
    dd_recorder_raise_alarm(self.group, 10, &error);
    REQUIRE(dd_recorder_take_alarm(self.recorder, &alarm));
    CHECK(strcmp(alarm.group, "0") == 0);
    CHECK_INT(alarm.record, 9);
    CHECK_CONTAINS(alarm.error.message, "lost rank 1");
    CHECK(!dd_recorder_take_alarm(self.recorder, &alarm));
    rig_close(&self);
}

TEST(the_oldest_of_too_many_alarms_are_dropped)
{
    rig self;
    REQUIRE(rig_open(&self, 4));
    dd_recorder_group *groups[12];
    dd_error error;
    dd_error_set(&error, DD_ABORTED, "no");
    for (uint64_t i = 0; i < 12; i++) {
        groups[i] = add_group(self.recorder, "many");
        dd_recorder_raise_alarm(groups[i], i, &error);
    }
    for (uint64_t i = 4; i < 12; i++) {
        dd_alarm alarm;
        REQUIRE(dd_recorder_take_alarm(self.recorder, &alarm));
        CHECK_INT(alarm.record, i);
    }
    for (int i = 0; i < 12; i++) {
        dd_recorder_group_release(groups[i]);
    }
    rig_close(&self);
}

static uint64_t
begin_message(dd_recorder_group *group)
{
    dd_record_call call = {.name = "send", .is_p2p = true, .peer = 1, .created_ns = 1};
    return dd_recorder_begin(group, &call);
}

TEST(messages_and_collectives_are_numbered_separately)
{
    rig self;
    REQUIRE(rig_open(&self, 8));
    begin_message(self.group);
    begin_message(self.group);
    char *text = dump_text(self.recorder, false);
    CHECK_CONTAINS(text, "\"p2p_seq_id\":1");
    CHECK_CONTAINS(text, "\"p2p_seq_id\":2");
    dd_mem_free(text);
    begin(self.group, "all_reduce", 1); /* the first collective: next to message 2 */
    begin(self.group, "all_reduce", 1);
    text = dump_text(self.recorder, false);
    CHECK_CONTAINS(text, "\"p2p_seq_id\":1");
    dd_mem_free(text);
    begin_message(self.group); /* the third, after the second: still separate */
    begin(self.group, "all_reduce", 1);
    text = dump_text(self.recorder, false);
    CHECK(strstr(text, "\"p2p_seq_id\":1,") == NULL);
    CHECK_CONTAINS(text, "\"collective_seq_id\":2,\"p2p_seq_id\":6,\"op_id\":5");
    dd_mem_free(text);
    rig_close(&self);
}

/* ---- many threads */

#define WRITERS 4

typedef struct storm {
    rig rig;
    dd_recorder_group *groups[WRITERS]; /* one for each writer: calls on a group are sequential */
    atomic_int nstarted;
    atomic_int nleft;
    int rounds;
} storm;

/* Write records in which every field holds the same number. */
static void *
write_records(void *ptr)
{
    storm *self = ptr;
    dd_recorder_group *group = self->groups[atomic_fetch_add(&self->nstarted, 1)];
    for (int64_t i = 1; i <= self->rounds; i++) {
        int64_t shape[4] = {i, i, i, i};
        dd_record_tensor tensors[2] = {{.dtype = DD_DTYPE_INT32, .ndim = 1 + (int)(i % 4), .shape = shape},
                                       {.dtype = DD_DTYPE_INT32, .ndim = 1, .shape = shape}};
        dd_record_call call = {.name = "all_reduce",
                               .created_ns = i,
                               .timeout_ns = i * DD_NS_PER_MS,
                               .inputs = &tensors[0],
                               .outputs = &tensors[1],
                               .ninputs = 1,
                               .noutputs = 1};
        uint64_t record = dd_recorder_begin(group, &call);
        dd_recorder_start(self->rig.recorder, record, i + 1);
        dd_error error;
        if (i % 16 == 0) {
            dd_error_set(&error, DD_ABORTED, "round %lld", (long long)i);
        }
        dd_recorder_end(self->rig.recorder, record, i + 2, i % 16 == 0 ? &error : NULL);
    }
    atomic_fetch_sub(&self->nleft, 1);
    return NULL;
}

static void
check_entries(const char *text)
{
    for (const char *entry = strstr(text, "\"input_sizes\""); entry != NULL;
         entry = strstr(entry + 1, "\"input_sizes\"")) {
        long long input = -1;
        long long output = -1;
        long long timeout = -1;
        sscanf(entry, "\"input_sizes\":[[%lld", &input);
        sscanf(strstr(entry, "\"output_sizes\""), "\"output_sizes\":[[%lld", &output);
        sscanf(strstr(entry, "\"timeout_ms\""), "\"timeout_ms\":%lld", &timeout);
        REQUIRE(input > 0 && input == output && input == timeout);
    }
}

TEST(a_dump_is_valid_while_other_threads_record_calls)
{
    storm self = {.nleft = WRITERS, .rounds = 4000};
    REQUIRE(rig_open(&self.rig, 16));
    pthread_t threads[WRITERS];
    for (int i = 0; i < WRITERS; i++) {
        self.groups[i] = add_group(self.rig.recorder, "one of them");
    }
    for (int i = 0; i < WRITERS; i++) {
        REQUIRE_OK(dd_thread_start(&threads[i], "writer", write_records, &self, check_err()));
    }
    int ndumps = 0;
    do {
        char *text = dump_text(self.rig.recorder, false);
        check_entries(text);
        dd_mem_free(text);
        ndumps++;
        dd_recorder_group_release(add_group(self.rig.recorder, "beside"));
        CHECK_OK(dd_recorder_group_rename(self.rig.group, &plain_info, check_err()));
        if (ndumps % 8 == 0) {
            dd_recorder_reset(self.rig.recorder);
        }
    } while (atomic_load(&self.nleft) > 0);
    for (int i = 0; i < WRITERS; i++) {
        pthread_join(threads[i], NULL);
    }
    char *text = dump_text(self.rig.recorder, false);
    CHECK_CONTAINS(text, "\"last_enqueued_collective\":\"4000\"");
    dd_mem_free(text);
    for (int i = 0; i < WRITERS; i++) {
        dd_recorder_group_release(self.groups[i]);
    }
    rig_close(&self.rig);
}

TEST(records_have_the_name_of_the_calling_thread)
{
    storm self = {.nleft = 1, .rounds = 1};
    REQUIRE(rig_open(&self.rig, 16));
    self.groups[0] = self.rig.group;
    pthread_t thread;
    REQUIRE_OK(dd_thread_start(&thread, "writer", write_records, &self, check_err()));
    pthread_join(thread, NULL);
    char *text = dump_text(self.rig.recorder, false);
    CHECK_CONTAINS(text, "\"thread_name\":\"writer\"");
    dd_mem_free(text);
    rig_close(&self.rig);
}

/* The ring has one slot, and the thread that writes it never runs again. */
TEST(a_record_that_a_stopped_thread_is_writing_is_not_overwritten)
{
    rig self;
    REQUIRE(rig_open(&self, 1));
    uint64_t record = dd_recorder_begin(self.group, &(dd_record_call){.name = "barrier"});
    record_slot *slot = &self.recorder->ring[record & self.recorder->mask];
    atomic_store(&slot->owner, 2 * record + 1);
    dd_recorder_end(self.recorder, record, 5, NULL);
    CHECK_INT(atomic_load(&slot->ended_ns), 0);
    CHECK_INT(dd_recorder_begin(self.group, &(dd_record_call){.name = "barrier"}), record + 1);
    CHECK_INT(atomic_load(&slot->owner), 2 * record + 1);
    atomic_store(&slot->owner, 2 * record);
    CHECK_INT(dd_recorder_begin(self.group, &(dd_record_call){.name = "barrier"}), record + 2);
    CHECK_INT(atomic_load(&slot->owner), 2 * (record + 2));
    rig_close(&self);
}

/* ---- call sites */

static const dd_call_site_key keys[] = {{0x1000, 2}, {0x2000, 4}, {0x3000, 6}};
static const dd_call_site frames_of_stack[] = {
    {.function = "inner", .file = "train.py", .line = 2, .is_hidden = true},
    {.function = "step", .file = "train.py", .line = 4},
    {.function = "main", .file = "start.py", .line = 6}};

TEST(the_same_call_stack_is_stored_only_once)
{
    dd_call_sites *sites;
    REQUIRE_OK(dd_call_sites_create(8, &sites, check_err()));
    bool can_add = false;
    CHECK_INT(dd_call_sites_find(sites, keys, 3, &can_add), 0);
    CHECK(can_add);
    uint32_t stack = dd_call_sites_add(sites, keys, frames_of_stack, 3);
    CHECK(stack != 0);
    CHECK_INT(dd_call_sites_find(sites, keys, 3, &can_add), stack);
    CHECK_INT(dd_call_sites_add(sites, keys, frames_of_stack, 3), stack);
    CHECK_INT(dd_call_sites_find(sites, keys + 1, 2, &can_add), 0);
    uint32_t outer = dd_call_sites_add(sites, keys + 1, frames_of_stack + 1, 2);
    CHECK(outer != 0 && outer != stack);
    const dd_call_site *frames;
    REQUIRE(dd_call_sites_get(sites, stack, &frames) == 2);
    CHECK(strcmp(frames[0].function, "step") == 0);
    CHECK(strcmp(frames[1].function, "main") == 0);
    CHECK(strcmp(frames[1].file, "start.py") == 0);
    CHECK_INT(frames[1].line, 6);
    CHECK_INT(dd_call_sites_get(sites, 0, &frames), 0);
    CHECK_INT(dd_call_sites_get(sites, 1000, &frames), 0);
    CHECK_INT(dd_call_sites_find(sites, keys, 0, &can_add), 0);
    CHECK(!can_add);
    dd_call_sites_destroy(sites);
}

TEST(a_table_of_call_stacks_can_be_extended_after_a_failed_allocation)
{
    dd_call_sites *sites;
    REQUIRE_OK(dd_call_sites_create(8, &sites, check_err()));
    bool can_add = false;
    dd_mem_fail_after(0);
    CHECK_INT(dd_call_sites_add(sites, keys, frames_of_stack, 3), 0);
    dd_mem_fail_after(-1);
    CHECK_INT(dd_call_sites_find(sites, keys, 3, &can_add), 0);
    CHECK(can_add);
    CHECK(dd_call_sites_add(sites, keys, frames_of_stack, 3) != 0);
    dd_call_sites_destroy(sites);
}

TEST(a_full_table_of_call_stacks_reports_that_it_is_full)
{
    dd_call_sites *sites;
    REQUIRE_OK(dd_call_sites_create(1, &sites, check_err()));
    bool can_add;
    uint32_t stack = dd_call_sites_add(sites, keys, frames_of_stack, 2);
    CHECK(stack != 0);
    CHECK_INT(dd_call_sites_add(sites, keys, frames_of_stack, 1), 0);
    CHECK_INT(dd_call_sites_find(sites, keys, 1, &can_add), 0);
    CHECK(!can_add);
    CHECK_INT(dd_call_sites_find(sites, keys, 2, &can_add), stack);
    dd_call_sites_destroy(sites);
}

/* ---- files and allocation failures */

TEST(writing_a_dump_replaces_the_file_and_creates_its_folders)
{
    rig self;
    REQUIRE(rig_open(&self, 4));
    char folder[] = "/tmp/dldist-recorder-XXXXXX";
    REQUIRE(mkdtemp(folder) != NULL);
    char path[160];
    char deep[128];
    snprintf(deep, sizeof deep, "%s/a", folder);
    snprintf(path, sizeof path, "%s/b/trace_3", deep);
    dd_dump_options options = {.format = DD_DUMP_PICKLE, .has_entries = true};
    CHECK_OK(dd_recorder_dump_to_file(self.recorder, &options, path, check_err()));
    begin(self.group, "all_reduce", 1);
    CHECK_OK(dd_recorder_dump_to_file(self.recorder, &options, path, check_err()));
    dd_blob dump = {0};
    struct stat info;
    CHECK_OK(dd_recorder_dump(self.recorder, &options, &dump, check_err()));
    REQUIRE(stat(path, &info) == 0);
    CHECK_INT(info.st_size, dump.len);
    dd_blob_fini(&dump);
    CHECK_STATUS(dd_recorder_dump_to_file(self.recorder, &options, deep, check_err()), DD_SYSTEM);
    CHECK_CONTAINS(check_message(), deep);
    CHECK_STATUS(dd_recorder_dump_to_file(self.recorder, &options, "", check_err()), DD_INVALID_ARGUMENT);
    char below[200];
    snprintf(below, sizeof below, "%s/c", path); /* a file is not a folder */
    CHECK_STATUS(dd_recorder_dump_to_file(self.recorder, &options, below, check_err()), DD_SYSTEM);
    CHECK_INT(unlink(path), 0);
    *strrchr(path, '/') = '\0';
    CHECK_INT(rmdir(path), 0); /* no other file is left in it */
    CHECK_INT(rmdir(deep), 0);
    CHECK_INT(rmdir(folder), 0);
    rig_close(&self);
}

/* In a folder that other users can write to: files that they have created are replaced, and never
 * written through. */
TEST(a_dump_file_is_private_and_not_written_through_a_link)
{
    rig self;
    REQUIRE(rig_open(&self, 4));
    char folder[] = "/tmp/dldist-recorder-XXXXXX";
    REQUIRE(mkdtemp(folder) != NULL);
    char victim[64];
    char path[64];
    char planted[128];
    snprintf(victim, sizeof victim, "%s/victim", folder);
    snprintf(path, sizeof path, "%s/trace_3", folder);
    /* The name that incomplete dumps had in earlier versions. */
    snprintf(planted, sizeof planted, "%s/.trace_3.%ld.%ld", folder, (long)getpid(), (long)gettid());
    int fd = open(victim, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    REQUIRE(fd >= 0 && write(fd, "mine", 4) == 4);
    close(fd);
    REQUIRE(symlink(victim, planted) == 0 && symlink(victim, path) == 0);
    dd_dump_options options = {.format = DD_DUMP_PICKLE, .has_entries = true};
    mode_t mask = umask(0);
    CHECK_OK(dd_recorder_dump_to_file(self.recorder, &options, path, check_err()));
    (void)umask(mask);
    struct stat info;
    REQUIRE(stat(victim, &info) == 0);
    CHECK_INT(info.st_size, 4);
    REQUIRE(lstat(path, &info) == 0);
    CHECK(S_ISREG(info.st_mode));
    CHECK_INT(info.st_mode & 0777, 0600);
    CHECK(unlink(path) == 0 && unlink(planted) == 0 && unlink(victim) == 0);
    CHECK_INT(rmdir(folder), 0); /* no other file is left in it */
    rig_close(&self);
}

static dd_status
use_recorder(void)
{
    dd_recorder *recorder = NULL;
    dd_recorder_group *group = NULL;
    dd_blob blob = {0};
    dd_dump_options options = {.format = DD_DUMP_PICKLE, .has_entries = true, .has_stacks = true};
    dd_error err;
    dd_status status = dd_recorder_create(4, &recorder, &err);
    if (status != DD_OK) {
        return status;
    }
    const int ranks[] = {1, 0};
    dd_recorder_group_info info = plain_info;
    info.global_ranks = ranks;
    status = dd_recorder_add_group(recorder, &info, &group, &err);
    if (status == DD_OK) {
        begin(group, "all_reduce", 1);
        status = dd_recorder_group_rename(group, &info, &err);
    }
    if (status == DD_OK) {
        status = dd_recorder_dump(recorder, &options, &blob, &err);
    }
    dd_blob_fini(&blob);
    dd_recorder_group_release(group);
    dd_recorder_destroy(recorder);
    return status;
}

/* Every process that starts pays for the pages that it touches. Memory from the heap must be
 * cleared if it was in use before. Sanitizers touch pages of their own for mappings. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(creating_a_recorder_touches_few_pages_of_memory)
{
    struct rusage before;
    struct rusage after;
    dd_recorder *recorder;
    (void)getrusage(RUSAGE_SELF, &before);
    REQUIRE_OK(dd_recorder_create(2000, &recorder, check_err()));
    (void)getrusage(RUSAGE_SELF, &after);
    CHECK(after.ru_minflt - before.ru_minflt < 32);
    dd_recorder_destroy(recorder);
}
#endif

TEST(the_recorder_returns_an_error_when_allocations_fail)
{
    long count = 0;
    for (; count < 100; count++) {
        dd_mem_fail_after(count);
        dd_status status = use_recorder();
        dd_mem_fail_after(-1);
        if (status == DD_OK) {
            break;
        }
        REQUIRE(status == DD_OUT_OF_MEMORY);
    }
    CHECK(count > 8 && count < 100);
}
