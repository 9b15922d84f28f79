/* The contents of a dump. */
#include "observe/dump_internal.h"
#include "observe/recorder_internal.h"

#include "core/clock.h"
#include "core/lock.h"
#include "core/mem.h"

#include <stdio.h>
#include <string.h>

#define FORMAT_VERSION "2.10"
#define DUMP_NBYTES 4096
#define ENTRY_NBYTES 512
/* Maximum attempts to read a record that is being written, perhaps by a descheduled thread. */
#define MAX_ATTEMPTS 1000

/* The names that torch's dumps use for element types. */
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

/* ---- a snapshot of the recorder: a copy, so that the threads that write records need not wait */

typedef struct snapshot_group {
    dd_recorder_group *group; /* the snapshot holds a reference to the group */
    const dd_recorder_group_info *info;
    dd_recorder_status status;
    bool is_shown; /* dumps show the group: it is open or has entries */
    /* The following fields describe the newest entry of the group. */
    uint64_t ncollectives;
    uint64_t number; /* the entry's number among the group's collectives or messages */
    bool is_p2p;
    /* True if a message and an adjacent collective of the group have the same number. torch's
     * analyser would take the two for one call, so the dump numbers the group's messages after its
     * collectives. */
    bool is_ambiguous;
} snapshot_group;

typedef struct snapshot_entry {
    uint64_t record;
    uint64_t number; /* the record's number since the last reset, from 0 */
    const snapshot_group *of;
    /* NULL if there is no error, or if its text was overwritten: then only `code` is known */
    const dd_error *error;
    dd_status code;
    int64_t started_ns;
    int64_t ended_ns;
    int peer;
    record_body body;
} snapshot_entry;

typedef struct snapshot {
    dd_recorder *recorder;
    snapshot_group *groups; /* sorted by the groups' uids */
    size_t ngroups;
    snapshot_entry *entries; /* [nentries]: oldest first */
    size_t nentries;
    saved_error errors[ERRORS_MAX];
    char comm_version[COMM_VERSION_MAX];
    int64_t calendar_ns; /* calendar time minus monotonic time, in ns */
} snapshot;

static dd_status
list_groups_locked(snapshot *all, dd_error *err)
{
    dd_list *groups = &all->recorder->groups;
    size_t count = 0;
    for (dd_list *node = groups->next; node != groups; node = node->next) {
        count++;
    }
    all->groups = dd_mem_alloc_array(count, sizeof *all->groups);
    if (all->groups == NULL) {
        return dd_error_no_memory(err, count * sizeof *all->groups);
    }
    for (dd_list *node = groups->next; node != groups; node = node->next) {
        dd_recorder_group *group = DD_CONTAINER_OF(node, dd_recorder_group, link);
        snapshot_group *listed = &all->groups[all->ngroups++];
        *listed = (snapshot_group){.info = recorder_info_of(group)};
        listed->is_shown = atomic_load_explicit(&group->refs, memory_order_relaxed) > 0;
        listed->group = dd_recorder_group_acquire(group);
        dd_recorder_group_status(group, &listed->status);
    }
    memcpy(all->comm_version, all->recorder->comm_version, sizeof all->comm_version);
    return DD_OK;
}

static snapshot_group *
find_group(snapshot *all, uint32_t uid)
{
    size_t low = 0;
    size_t high = all->ngroups;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (all->groups[middle].group->uid < uid) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < all->ngroups && all->groups[low].group->uid == uid ? &all->groups[low] : NULL;
}

/* Read a record, if the slot still has it. Words are loaded with acquire, so that the second load
 * of `owner` comes after these loads. */
static bool
try_read(record_slot *slot, uint64_t record, snapshot_entry *entry)
{
    if (atomic_load_explicit(&slot->owner, memory_order_acquire) != 2 * record) {
        return false;
    }
    uint64_t words[RECORD_WORDS];
    entry->ended_ns = atomic_load_explicit(&slot->ended_ns, memory_order_acquire);
    entry->started_ns = atomic_load_explicit(&slot->started_ns, memory_order_acquire);
    entry->code = (dd_status)atomic_load_explicit(&slot->code, memory_order_acquire);
    entry->peer = atomic_load_explicit(&slot->peer, memory_order_acquire);
    for (size_t i = 0; i < RECORD_WORDS; i++) {
        words[i] = atomic_load_explicit(&slot->words[i], memory_order_acquire);
    }
    memcpy(&entry->body, words, sizeof entry->body);
    return atomic_load_explicit(&slot->owner, memory_order_relaxed) == 2 * record;
}

/* Read a record. Return false if it was overwritten, or if writing it takes too long. */
static bool
read_record(dd_recorder *recorder, uint64_t record, snapshot_entry *entry)
{
    record_slot *slot = &recorder->ring[record & recorder->mask];
    for (int attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
        if (try_read(slot, record, entry)) {
            return true;
        }
        if (atomic_load_explicit(&slot->owner, memory_order_relaxed) > 2 * record + 1) {
            break;
        }
    }
    return false;
}

void
dd_recorder_print_place(dd_recorder *recorder, uint64_t record, char out[128])
{
    snapshot_entry entry;
    const dd_call_site *frame;
    out[0] = '\0';
    if (recorder->ring != NULL && read_record(recorder, record, &entry) &&
        dd_call_sites_get(recorder->sites, entry.body.stack, &frame) > 0) {
        const char *folder_end = strrchr(frame->file, '/');
        snprintf(out, 128, " (%s:%d)", folder_end != NULL ? folder_end + 1 : frame->file, frame->line);
    }
}

static bool
is_completed(const snapshot_entry *entry)
{
    return entry->ended_ns != 0 && entry->code == DD_OK;
}

static void
note_number(snapshot_group *group, const record_body *body)
{
    uint64_t number = body->is_p2p ? body->nmessages : body->ncollectives;
    if (number == group->number && body->is_p2p != group->is_p2p) {
        group->is_ambiguous = true;
    }
    group->ncollectives = body->ncollectives;
    group->number = number;
    group->is_p2p = body->is_p2p;
}

static dd_status
read_records(snapshot *all, bool is_active_only, dd_error *err)
{
    dd_recorder *recorder = all->recorder;
    uint64_t base = atomic_load_explicit(&recorder->base, memory_order_relaxed);
    uint64_t last = atomic_load_explicit(&recorder->last, memory_order_relaxed);
    uint64_t before = last - base > recorder->capacity ? last - recorder->capacity : base;
    all->entries = dd_mem_alloc_array((size_t)(last - before), sizeof *all->entries);
    if (all->entries == NULL) {
        return dd_error_no_memory(err, (last - before) * sizeof *all->entries);
    }
    for (uint64_t record = before + 1; record <= last; record++) {
        snapshot_entry *entry = &all->entries[all->nentries];
        if (!read_record(recorder, record, entry) || (int32_t)entry->code == WITHDRAWN ||
            (is_active_only && is_completed(entry))) {
            continue;
        }
        snapshot_group *group = find_group(all, entry->body.group_uid);
        if (group != NULL) {
            group->is_shown = true;
            note_number(group, &entry->body);
            entry->of = group;
            entry->number = record - base - 1;
            entry->record = record;
            all->nentries++;
        }
    }
    return DD_OK;
}

/* Find the errors of failed records. Must be called after reading the records, because an error is
 * stored before its record is marked as failed. */
static void
find_errors(snapshot *all)
{
    dd_lock_take(&all->recorder->mu);
    memcpy(all->errors, all->recorder->errors, sizeof all->errors);
    dd_lock_release(&all->recorder->mu);
    for (size_t i = 0; i < all->nentries; i++) {
        snapshot_entry *entry = &all->entries[i];
        entry->error = NULL;
        for (size_t j = 0; entry->code != DD_OK && j < ERRORS_MAX; j++) {
            if (all->errors[j].record == entry->record) {
                entry->error = &all->errors[j].error;
            }
        }
    }
}

/* Fill a snapshot. The caller must call snapshot_fini afterwards, even after a failure. */
static dd_status
snapshot_fill(snapshot *all, dd_recorder *recorder, const dd_dump_options *options, dd_error *err)
{
    *all = (snapshot){.recorder = recorder, .calendar_ns = dd_clock_calendar_ns() - dd_clock_now_ns()};
    dd_lock_take(&recorder->mu);
    dd_status status = list_groups_locked(all, err);
    dd_lock_release(&recorder->mu);
    if (status == DD_OK && options->has_entries) {
        status = read_records(all, options->is_active_only, err);
    }
    if (status == DD_OK) {
        find_errors(all);
    }
    return status;
}

static void
snapshot_fini(snapshot *all)
{
    for (size_t i = 0; i < all->ngroups; i++) {
        dd_recorder_group_release(all->groups[i].group);
    }
    dd_mem_free(all->groups);
    dd_mem_free(all->entries);
}

/* ---- entries */

/* Write the sizes, or the dtypes, of an entry's inputs or outputs. */
static void
put_tensors(dump_writer *writer, const char *key, const record_body *body, bool is_output, bool is_of_types)
{
    bool is_second = is_output && !body->is_in_place;
    const uint64_t *words = body->tensors + (is_second ? body->ninput_words : 0);
    const uint64_t *end = words + (is_second ? body->noutput_words : body->ninput_words);
    dump_open(writer, key, DUMP_LIST);
    while (words < end) {
        tensor_head head;
        memcpy(&head, words++, sizeof head);
        uint32_t times = head.is_stacked ? 1 : head.count;
        for (uint32_t i = 0; i < times && writer->status == DD_OK; i++) {
            if (is_of_types) {
                dump_string(writer, NULL, dtype_texts[head.dtype]);
                continue;
            }
            dump_open(writer, NULL, DUMP_LIST);
            if (head.is_stacked) {
                dump_int(writer, NULL, head.count);
            }
            for (int d = 0; d < head.ndim; d++) {
                dump_int(writer, NULL, (int64_t)words[d]);
            }
            dump_close(writer, DUMP_LIST);
        }
        words += head.ndim;
    }
    dump_close(writer, DUMP_LIST);
}

static void
put_operands(dump_writer *writer, const record_body *body)
{
    put_tensors(writer, "input_sizes", body, false, false);
    put_tensors(writer, "input_dtypes", body, false, true);
    put_tensors(writer, "output_sizes", body, true, false);
    put_tensors(writer, "output_dtypes", body, true, true);
    if (body->ninputs_left_out > 0) {
        dump_int(writer, "inputs_left_out", body->ninputs_left_out);
    }
    if (body->noutputs_left_out > 0) {
        dump_int(writer, "outputs_left_out", body->noutputs_left_out);
    }
}

static bool
is_receive(const char *name)
{
    return strcmp(name, "recv") == 0 || strcmp(name, "wait_signal") == 0;
}

/* Write the name of an entry, such as "gloo:all_reduce", "nccl:send 0->1" or "nccl:recv 1<-0". */
static void
put_name(dump_writer *writer, const snapshot_entry *entry)
{
    char name[128];
    const dd_recorder_group_info *info = entry->of->info;
    if (!entry->body.is_p2p) {
        snprintf(name, sizeof name, "%s:%s", info->kind, entry->body.name);
    } else {
        snprintf(name, sizeof name, "%s:%s %d%s%d", info->kind, entry->body.name, info->rank,
                 is_receive(entry->body.name) ? "<-" : "->", entry->peer);
    }
    dump_string(writer, "profiling_name", name);
}

static void
put_time(dump_writer *writer, const char *key, const snapshot *all, int64_t monotonic_ns)
{
    dump_time(writer, key, monotonic_ns != 0 ? monotonic_ns + all->calendar_ns : 0);
}

static void
put_state(dump_writer *writer, const snapshot *all, const snapshot_entry *entry)
{
    bool is_done = is_completed(entry);
    if (is_done && entry->started_ns != 0) {
        dump_real(writer, "duration_ms", (double)(entry->ended_ns - entry->started_ns) * 1e-6);
    }
    const char *state = entry->started_ns != 0 ? "started" : "scheduled";
    dump_string(writer, "state", is_done ? "completed" : state);
    put_time(writer, "time_discovered_started_ns", all, entry->started_ns);
    put_time(writer, "time_discovered_completed_ns", all, is_done ? entry->ended_ns : 0);
    dump_bool(writer, "retired", entry->ended_ns != 0);
}

static void
put_error(dump_writer *writer, const snapshot *all, const snapshot_entry *entry)
{
    if (entry->code == DD_OK) {
        return;
    }
    put_time(writer, "time_ended_ns", all, entry->ended_ns);
    dump_string(writer, "error", entry->error != NULL ? entry->error->message : dd_status_text(entry->code));
    dump_string(writer, "error_code", dd_status_name(entry->code));
    if (entry->error != NULL && entry->error->blamed.rank >= 0) {
        dump_int(writer, "culprit_rank", entry->error->blamed.rank);
    }
}

static void
put_frames(dump_writer *writer, dd_recorder *recorder, uint32_t stack)
{
    const dd_call_site *frames;
    size_t count = dd_call_sites_get(recorder->sites, stack, &frames);
    dump_open(writer, "frames", DUMP_LIST);
    for (size_t i = 0; i < count; i++) {
        dump_open(writer, NULL, DUMP_DICT);
        dump_string(writer, "name", frames[i].function);
        dump_string(writer, "filename", frames[i].file);
        dump_int(writer, "line", frames[i].line);
        dump_close(writer, DUMP_DICT);
    }
    dump_close(writer, DUMP_LIST);
}

static void
put_entry(dump_writer *writer, const snapshot *all, const snapshot_entry *entry, bool has_stack)
{
    const record_body *body = &entry->body;
    char thread_name[THREAD_NAME_WORDS * sizeof(uint64_t)];
    char thread_id[24];
    recorder_print_thread(all->recorder, body->thread, thread_name);
    snprintf(thread_id, sizeof thread_id, "%llu", (unsigned long long)body->thread);
    bool goes_on = body->nmessages > 0 && entry->of->is_ambiguous;
    dump_open(writer, NULL, DUMP_DICT);
    dump_int(writer, "record_id", (int64_t)entry->number);
    dump_int(writer, "pg_id", body->group_uid);
    dump_open(writer, "process_group", DUMP_TUPLE);
    dump_text(writer, NULL, entry->of->info->name);
    dump_text(writer, NULL, entry->of->info->desc);
    dump_close(writer, DUMP_TUPLE);
    dump_string(writer, "thread_name", thread_name);
    dump_string(writer, "thread_id", thread_id);
    dump_int(writer, "collective_seq_id", (int64_t)body->ncollectives);
    dump_int(writer, "p2p_seq_id", (int64_t)(body->nmessages + (goes_on ? entry->of->ncollectives : 0)));
    dump_int(writer, "op_id", (int64_t)(body->ncollectives + body->nmessages));
    put_name(writer, entry);
    put_time(writer, "time_created_ns", all, body->created_ns);
    put_operands(writer, body);
    put_state(writer, all, entry);
    dump_int(writer, "timeout_ms", body->timeout_ns / DD_NS_PER_MS);
    dump_bool(writer, "is_p2p", body->is_p2p);
    put_error(writer, all, entry);
    if (has_stack) {
        put_frames(writer, all->recorder, body->stack);
    }
    dump_close(writer, DUMP_DICT);
}

/* ---- groups */

static void
put_ranks(dump_writer *writer, const dd_recorder_group_info *info)
{
    dd_blob text = {0};
    char number[16];
    for (int i = 0; i < info->size && writer->status == DD_OK; i++) {
        int rank = info->global_ranks != NULL ? info->global_ranks[i] : i;
        int len = snprintf(number, sizeof number, i == 0 ? "[%d" : ", %d", rank);
        writer->status = dd_blob_append(&text, number, (size_t)len, writer->err);
    }
    if (writer->status == DD_OK) {
        writer->status =
            dd_blob_append(&text, info->size > 0 ? "]" : "[]", info->size > 0 ? 1 : 2, writer->err);
    }
    dump_text(writer, "ranks", dd_blob_view(&text));
    dd_blob_fini(&text);
}

/* Return true if no later group has the same name. Dumps identify groups by name, so only the
 * newest of several groups with one name is shown. */
static bool
is_last_of_its_name(const snapshot *all, size_t index)
{
    for (size_t i = index + 1; i < all->ngroups; i++) {
        if (all->groups[i].is_shown &&
            dd_bytes_equal(all->groups[i].info->name, all->groups[index].info->name)) {
            return false;
        }
    }
    return true;
}

static void
put_config(dump_writer *writer, const snapshot *all)
{
    dump_open(writer, "pg_config", DUMP_DICT);
    for (size_t i = 0; i < all->ngroups; i++) {
        const dd_recorder_group_info *info = all->groups[i].info;
        if (all->groups[i].is_shown && is_last_of_its_name(all, i)) {
            dump_name(writer, info->name);
            dump_open(writer, NULL, DUMP_DICT);
            dump_text(writer, "name", info->name);
            dump_text(writer, "desc", info->desc);
            put_ranks(writer, info);
            dump_close(writer, DUMP_DICT);
        }
    }
    dump_close(writer, DUMP_DICT);
}

/* Write a progress number, which torch's JSON has as text, with an empty nccl_comm_state. */
static void
put_progress(dump_writer *writer, const char *key, const dd_progress *progress)
{
    if (writer->is_json) {
        char text[24];
        snprintf(text, sizeof text, "%lld", (long long)progress->number);
        dump_string(writer, key, text);
    } else {
        dump_int(writer, key, progress->number);
    }
}

static void
put_status(dump_writer *writer, const snapshot *all)
{
    dump_open(writer, "pg_status", DUMP_DICT);
    for (size_t i = 0; i < all->ngroups; i++) {
        const snapshot_group *group = &all->groups[i];
        if (group->is_shown) {
            char uid[16];
            snprintf(uid, sizeof uid, "%u", (unsigned)group->group->uid);
            dump_name(writer, dd_bytes_of_string(uid));
            dump_open(writer, NULL, DUMP_DICT);
            put_progress(writer, "last_enqueued_collective", &group->status.called);
            put_progress(writer, "last_started_collective", &group->status.started);
            put_progress(writer, "last_completed_collective", &group->status.completed);
            dump_close(writer, DUMP_DICT);
        }
    }
    dump_close(writer, DUMP_DICT);
    if (writer->is_json) {
        dump_open(writer, "nccl_comm_state", DUMP_DICT);
        dump_close(writer, DUMP_DICT);
    }
}

/* ---- the whole dump */

static void
put_all(dump_writer *writer, const snapshot *all, const dd_dump_options *options)
{
    dump_start(writer);
    dump_open(writer, NULL, DUMP_DICT);
    dump_string(writer, "version", FORMAT_VERSION);
    put_config(writer, all);
    dump_string(writer, "comm_lib_version", all->comm_version);
    put_status(writer, all);
    if (options->has_entries) {
        dump_open(writer, "entries", DUMP_LIST);
        for (size_t i = 0; i < all->nentries && writer->status == DD_OK; i++) {
            put_entry(writer, all, &all->entries[i], options->has_stacks);
        }
        dump_close(writer, DUMP_LIST);
    }
    dump_close(writer, DUMP_DICT);
    dump_finish(writer);
}

dd_status
dd_recorder_dump(dd_recorder *recorder, const dd_dump_options *options, dd_blob *out, dd_error *err)
{
    snapshot all;
    dump_writer writer = {.is_json = options->format == DD_DUMP_JSON, .out = out, .err = err};
    writer.status = snapshot_fill(&all, recorder, options, err);
    if (writer.status == DD_OK) {
        /* Reserve the expected size, because every append would otherwise reallocate the blob. */
        dd_blob_clear(out, SIZE_MAX);
        writer.status = dd_blob_reserve(out, DUMP_NBYTES + all.nentries * ENTRY_NBYTES, err);
        put_all(&writer, &all, options);
    }
    snapshot_fini(&all);
    return writer.status;
}
