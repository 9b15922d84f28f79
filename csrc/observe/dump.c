/* What a dump says. */
#include "observe/dump_internal.h"
#include "observe/recorder_internal.h"

#include <stdio.h>
#include <string.h>

#define FORMAT_VERSION "2.10"
#define DUMP_NBYTES 4096
#define ENTRY_NBYTES 512

/* As torch calls them. */
static const char *const dtype_texts[DD_DTYPE_COUNT] = {
    [DD_DTYPE_BOOL] = "Bool",
    [DD_DTYPE_INT8] = "Char",
    [DD_DTYPE_UINT8] = "Byte",
    [DD_DTYPE_INT16] = "Short",
    [DD_DTYPE_UINT16] = "UInt16",
    [DD_DTYPE_INT32] = "Int",
    [DD_DTYPE_UINT32] = "UInt32",
    [DD_DTYPE_INT64] = "Long",
    [DD_DTYPE_UINT64] = "UInt64",
    [DD_DTYPE_FLOAT16] = "Half",
    [DD_DTYPE_BFLOAT16] = "BFloat16",
    [DD_DTYPE_FLOAT8_E4M3FN] = "Float8_e4m3fn",
    [DD_DTYPE_FLOAT8_E5M2] = "Float8_e5m2",
    [DD_DTYPE_FLOAT32] = "Float",
    [DD_DTYPE_FLOAT64] = "Double",
    [DD_DTYPE_COMPLEX64] = "ComplexFloat",
    [DD_DTYPE_COMPLEX128] = "ComplexDouble",
};

/* ---- words */

static void
open_at(dump_writer *writer, const char *key, dump_container container)
{
    dump_key(writer, key);
    dump_open(writer, container);
}

static void
put_text(dump_writer *writer, const char *key, dd_bytes text)
{
    dump_key(writer, key);
    dump_text(writer, text);
}

static void
put_string(dump_writer *writer, const char *key, const char *text)
{
    put_text(writer, key, dd_bytes_of_string(text));
}

static void
put_int(dump_writer *writer, const char *key, int64_t value)
{
    dump_key(writer, key);
    dump_int(writer, value);
}

static void
put_bool(dump_writer *writer, const char *key, bool value)
{
    dump_key(writer, key);
    dump_bool(writer, value);
}

/* ---- entries */

static void
put_shape(dump_writer *writer, const snapshot_tensor *tensor)
{
    dump_open(writer, DUMP_LIST);
    if (tensor->is_stacked) {
        dump_int(writer, tensor->count);
    }
    for (int i = 0; i < tensor->ndim; i++) {
        dump_int(writer, (int64_t)tensor->shape[i]);
    }
    dump_close(writer, DUMP_LIST);
}

/* What is to be said of a tensor, as often as there are such. */
static void
put_each(dump_writer *writer, const record_body *body, bool is_output,
         void (*put)(dump_writer *writer, const snapshot_tensor *tensor))
{
    size_t cursor = 0;
    snapshot_tensor tensor;
    dump_open(writer, DUMP_LIST);
    while (snapshot_next_tensor(body, is_output, &cursor, &tensor)) {
        uint32_t times = tensor.is_stacked ? 1 : tensor.count;
        for (uint32_t i = 0; i < times && writer->status == DD_OK; i++) {
            put(writer, &tensor);
        }
    }
    dump_close(writer, DUMP_LIST);
}

static void
put_dtype(dump_writer *writer, const snapshot_tensor *tensor)
{
    dump_text(writer, dd_bytes_of_string(dtype_texts[tensor->dtype]));
}

static void
put_tensors(dump_writer *writer, const record_body *body)
{
    dump_key(writer, "input_sizes");
    put_each(writer, body, false, put_shape);
    dump_key(writer, "input_dtypes");
    put_each(writer, body, false, put_dtype);
    dump_key(writer, "output_sizes");
    put_each(writer, body, true, put_shape);
    dump_key(writer, "output_dtypes");
    put_each(writer, body, true, put_dtype);
    if (body->ninputs_left_out > 0) {
        put_int(writer, "inputs_left_out", body->ninputs_left_out);
    }
    if (body->noutputs_left_out > 0) {
        put_int(writer, "outputs_left_out", body->noutputs_left_out);
    }
}

/* "gloo:all_reduce", "nccl:send 0->1", "nccl:recv 1<-0" */
static void
put_name(dump_writer *writer, const snapshot_entry *entry)
{
    char name[128];
    const dd_recorder_group *group = entry->of->group;
    if (!entry->body.is_p2p) {
        snprintf(name, sizeof name, "%s:%s", group->kind, entry->body.name);
    } else {
        bool is_send = strcmp(entry->body.name, "send") == 0;
        snprintf(name, sizeof name, "%s:%s %d%s%d", group->kind, entry->body.name, group->rank,
                 is_send ? "->" : "<-", entry->peer);
    }
    put_string(writer, "profiling_name", name);
}

/* Torch's JSON differs from its pickles in more than the language: here, in the numbers of pg_status, and by an empty nccl_comm_state. */
static void
put_time(dump_writer *writer, const char *key, const dd_snapshot *snapshot, int64_t monotonic_ns)
{
    dump_key(writer, key);
    if (monotonic_ns != 0) {
        dump_int(writer, monotonic_ns + snapshot->calendar_ns);
    } else if (writer->is_json) {
        dump_int(writer, 0);
    } else {
        dump_none(writer);
    }
}

static void
put_state(dump_writer *writer, const dd_snapshot *snapshot, const snapshot_entry *entry)
{
    bool is_completed = entry->ended_ns != 0 && entry->code == DD_OK;
    if (is_completed && entry->started_ns != 0) {
        dump_key(writer, "duration_ms");
        dump_real(writer, (double)(entry->ended_ns - entry->started_ns) * 1e-6);
    }
    put_string(writer, "state",
               is_completed             ? "completed"
               : entry->started_ns != 0 ? "started"
                                        : "scheduled");
    put_time(writer, "time_discovered_started_ns", snapshot, entry->started_ns);
    put_time(writer, "time_discovered_completed_ns", snapshot, is_completed ? entry->ended_ns : 0);
    put_bool(writer, "retired", entry->ended_ns != 0);
}

static void
put_error(dump_writer *writer, const dd_snapshot *snapshot, const snapshot_entry *entry)
{
    if (entry->code == DD_OK) {
        return;
    }
    put_time(writer, "time_ended_ns", snapshot, entry->ended_ns);
    const char *message = entry->error != NULL ? entry->error->message : dd_status_text(entry->code);
    put_string(writer, "error", message);
    put_string(writer, "error_code", dd_status_name(entry->code));
    if (entry->error != NULL && entry->error->culprit.rank >= 0) {
        put_int(writer, "culprit_rank", entry->error->culprit.rank);
    }
}

static void
put_frames(dump_writer *writer, const dd_snapshot *snapshot, uint32_t stack)
{
    dd_frame frames[DD_STACK_MAX_FRAMES];
    size_t count = dd_call_sites_get(snapshot->recorder->sites, stack, frames);
    open_at(writer, "frames", DUMP_LIST);
    for (size_t i = 0; i < count; i++) {
        dump_open(writer, DUMP_DICT);
        put_string(writer, "name", frames[i].function);
        put_string(writer, "filename", frames[i].file);
        put_int(writer, "line", frames[i].line);
        dump_close(writer, DUMP_DICT);
    }
    dump_close(writer, DUMP_LIST);
}

static void
put_caller(dump_writer *writer, const dd_snapshot *snapshot, const record_body *body)
{
    char name[16];
    char id[24];
    recorder_print_thread(snapshot->recorder, body->thread, name);
    snprintf(id, sizeof id, "%llu", (unsigned long long)body->thread);
    put_string(writer, "thread_name", name);
    put_string(writer, "thread_id", id);
}

static int64_t
number_of_message(const snapshot_entry *entry)
{
    uint64_t number = entry->body.nmessages;
    return (int64_t)(number > 0 && entry->of->is_ambiguous ? number + entry->of->ncollectives : number);
}

static void
put_entry(dump_writer *writer, const dd_snapshot *snapshot, const snapshot_entry *entry, bool has_stack)
{
    const record_body *body = &entry->body;
    dump_open(writer, DUMP_DICT);
    put_int(writer, "record_id", (int64_t)entry->number);
    put_int(writer, "pg_id", body->group_uid);
    open_at(writer, "process_group", DUMP_TUPLE);
    dump_text(writer, dd_blob_view(&entry->of->group->name));
    dump_text(writer, dd_blob_view(&entry->of->group->desc));
    dump_close(writer, DUMP_TUPLE);
    put_caller(writer, snapshot, body);
    put_int(writer, "collective_seq_id", (int64_t)body->ncollectives);
    put_int(writer, "p2p_seq_id", number_of_message(entry));
    put_int(writer, "op_id", (int64_t)(body->ncollectives + body->nmessages));
    put_name(writer, entry);
    put_time(writer, "time_created_ns", snapshot, body->created_ns);
    put_tensors(writer, body);
    put_state(writer, snapshot, entry);
    put_int(writer, "timeout_ms", body->timeout_ns / DD_NS_PER_MS);
    put_bool(writer, "is_p2p", body->is_p2p);
    put_error(writer, snapshot, entry);
    if (has_stack) {
        put_frames(writer, snapshot, body->stack);
    }
    dump_close(writer, DUMP_DICT);
}

/* ---- groups */

static void
put_ranks(dump_writer *writer, const dd_recorder_group *group)
{
    dd_blob text = {0};
    char number[16];
    dump_key(writer, "ranks");
    for (int i = 0; i < group->size && writer->status == DD_OK; i++) {
        int rank = group->global_ranks != NULL ? group->global_ranks[i] : i;
        int len = snprintf(number, sizeof number, i == 0 ? "[%d" : ", %d", rank);
        writer->status = dd_blob_append(&text, number, (size_t)len, writer->err);
    }
    if (writer->status == DD_OK) {
        writer->status =
            dd_blob_append(&text, group->size > 0 ? "]" : "[]", group->size > 0 ? 1 : 2, writer->err);
    }
    dump_text(writer, dd_blob_view(&text));
    dd_blob_fini(&text);
}

/* Groups are found by their names; of those that share one the newest counts. */
static bool
is_last_of_its_name(const dd_snapshot *snapshot, size_t index)
{
    for (size_t i = index + 1; i < snapshot->ngroups; i++) {
        if (snapshot->groups[i].is_shown &&
            dd_bytes_equal(dd_blob_view(&snapshot->groups[i].group->name),
                           dd_blob_view(&snapshot->groups[index].group->name))) {
            return false;
        }
    }
    return true;
}

static void
put_config(dump_writer *writer, const dd_snapshot *snapshot)
{
    open_at(writer, "pg_config", DUMP_DICT);
    for (size_t i = 0; i < snapshot->ngroups; i++) {
        const dd_recorder_group *group = snapshot->groups[i].group;
        if (!snapshot->groups[i].is_shown || !is_last_of_its_name(snapshot, i)) {
            continue;
        }
        dump_name(writer, dd_blob_view(&group->name));
        dump_open(writer, DUMP_DICT);
        put_text(writer, "name", dd_blob_view(&group->name));
        put_text(writer, "desc", dd_blob_view(&group->desc));
        put_ranks(writer, group);
        dump_close(writer, DUMP_DICT);
    }
    dump_close(writer, DUMP_DICT);
}

static void
put_count(dump_writer *writer, const char *key, int64_t value)
{
    if (!writer->is_json) {
        put_int(writer, key, value);
        return;
    }
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)value);
    put_string(writer, key, text);
}

static void
put_status(dump_writer *writer, const dd_snapshot *snapshot)
{
    open_at(writer, "pg_status", DUMP_DICT);
    for (size_t i = 0; i < snapshot->ngroups; i++) {
        const snapshot_group *group = &snapshot->groups[i];
        if (!group->is_shown) {
            continue;
        }
        char uid[16];
        snprintf(uid, sizeof uid, "%u", (unsigned)group->group->uid);
        dump_name(writer, dd_bytes_of_string(uid));
        dump_open(writer, DUMP_DICT);
        put_count(writer, "last_enqueued_collective", group->status.last_enqueued);
        put_count(writer, "last_started_collective", group->status.last_started);
        put_count(writer, "last_completed_collective", group->status.last_completed);
        dump_close(writer, DUMP_DICT);
    }
    dump_close(writer, DUMP_DICT);
}

/* ---- the whole */

static void
put_all(dump_writer *writer, const dd_snapshot *snapshot, const dd_dump_options *options)
{
    dump_start(writer);
    dump_open(writer, DUMP_DICT);
    put_string(writer, "version", FORMAT_VERSION);
    put_config(writer, snapshot);
    put_string(writer, "comm_lib_version", snapshot->recorder->comm_version);
    put_status(writer, snapshot);
    if (writer->is_json) {
        open_at(writer, "nccl_comm_state", DUMP_DICT);
        dump_close(writer, DUMP_DICT);
    }
    if (options->has_entries) {
        open_at(writer, "entries", DUMP_LIST);
        for (size_t i = 0; i < snapshot->nentries && writer->status == DD_OK; i++) {
            put_entry(writer, snapshot, &snapshot->entries[i], options->has_stacks);
        }
        dump_close(writer, DUMP_LIST);
    }
    dump_close(writer, DUMP_DICT);
    dump_finish(writer);
}

dd_status
dd_recorder_dump(dd_recorder *recorder, const dd_dump_options *options, dd_blob *out, dd_error *err)
{
    dd_snapshot snapshot;
    dd_status status = snapshot_take(recorder, options->has_entries, options->is_active_only, &snapshot, err);
    if (status != DD_OK) {
        return status;
    }
    /* About as much as it will be; a blob that is small grows byte by byte. */
    dd_blob_clear(out, SIZE_MAX);
    status = dd_blob_reserve(out, DUMP_NBYTES + snapshot.nentries * ENTRY_NBYTES, err);
    if (status != DD_OK) {
        snapshot_fini(&snapshot);
        return status;
    }
    dump_writer writer = {
        .is_json = options->format == DD_DUMP_JSON, .out = out, .err = err, .status = DD_OK};
    put_all(&writer, &snapshot, options);
    snapshot_fini(&snapshot);
    return writer.status;
}
