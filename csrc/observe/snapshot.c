#include "observe/recorder_internal.h"

#include "core/lock.h"
#include "core/mem.h"

#include <string.h>
#include <time.h>

/* How often a record that is being written is looked at again: its writer may have lost its core. */
#define MAX_LOOKS 1000

static dd_status
list_groups_locked(dd_recorder *recorder, dd_snapshot *snapshot, dd_error *err)
{
    size_t count = 0;
    for (dd_list *node = recorder->groups.next; node != &recorder->groups; node = node->next) {
        count++;
    }
    snapshot->groups = dd_mem_alloc_array(count, sizeof *snapshot->groups);
    if (snapshot->groups == NULL) {
        return dd_error_no_memory(err, count * sizeof *snapshot->groups);
    }
    for (dd_list *node = recorder->groups.next; node != &recorder->groups; node = node->next) {
        dd_recorder_group *group = DD_CONTAINER_OF(node, dd_recorder_group, link);
        snapshot_group *listed = &snapshot->groups[snapshot->ngroups++];
        *listed = (snapshot_group){.group = group};
        listed->is_shown = atomic_load_explicit(&group->refs, memory_order_relaxed) > 0;
        dd_recorder_group_status(group, &listed->status);
    }
    return DD_OK;
}

static snapshot_group *
find_group(dd_snapshot *snapshot, uint32_t uid)
{
    size_t low = 0;
    size_t high = snapshot->ngroups; /* their uids rise */
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (snapshot->groups[middle].group->uid < uid) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < snapshot->ngroups && snapshot->groups[low].group->uid == uid ? &snapshot->groups[low] : NULL;
}

/* Acquire, word by word: the second look at the owner comes after them. */
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

static bool
read_record(dd_recorder *recorder, uint64_t record, snapshot_entry *entry)
{
    record_slot *slot = &recorder->ring[record & recorder->mask];
    for (int look = 0; look < MAX_LOOKS; look++) {
        if (try_read(slot, record, entry)) {
            return true;
        }
        if (atomic_load_explicit(&slot->owner, memory_order_relaxed) > 2 * record + 1) {
            return false; /* overwritten */
        }
    }
    return false;
}

static bool
is_wanted(const snapshot_entry *entry, bool is_active_only)
{
    bool is_completed = entry->ended_ns != 0 && entry->code == DD_OK;
    return (int32_t)entry->code != WITHDRAWN && !(is_active_only && is_completed);
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
read_records_locked(dd_recorder *recorder, bool is_active_only, dd_snapshot *snapshot, dd_error *err)
{
    uint64_t base = atomic_load_explicit(&recorder->base, memory_order_relaxed);
    uint64_t last = atomic_load_explicit(&recorder->last, memory_order_relaxed);
    uint64_t before = last - base > recorder->capacity ? last - recorder->capacity : base;
    snapshot->entries = dd_mem_alloc_array((size_t)(last - before), sizeof *snapshot->entries);
    if (snapshot->entries == NULL) {
        return dd_error_no_memory(err, (last - before) * sizeof *snapshot->entries);
    }
    for (uint64_t record = before + 1; record <= last; record++) {
        snapshot_entry *entry = &snapshot->entries[snapshot->nentries];
        if (!read_record(recorder, record, entry) || !is_wanted(entry, is_active_only)) {
            continue;
        }
        snapshot_group *group = find_group(snapshot, entry->body.group_uid);
        if (group == NULL) {
            continue;
        }
        group->is_shown = true;
        note_number(group, &entry->body);
        entry->of = group;
        entry->number = record - base - 1;
        entry->record = record;
        snapshot->nentries++;
    }
    return DD_OK;
}

/* After the records: what those that have failed tell has been kept before they told. */
static void
find_errors(dd_recorder *recorder, dd_snapshot *snapshot)
{
    dd_lock_take(&recorder->errors_mu);
    memcpy(snapshot->errors, recorder->errors, sizeof snapshot->errors);
    dd_lock_release(&recorder->errors_mu);
    for (size_t i = 0; i < snapshot->nentries; i++) {
        snapshot_entry *entry = &snapshot->entries[i];
        entry->error = NULL;
        for (size_t j = 0; entry->code != DD_OK && j < ERRORS_KEPT; j++) {
            if (snapshot->errors[j].record == entry->record) {
                entry->error = &snapshot->errors[j].error;
            }
        }
    }
}

static int64_t
calendar_offset_ns(void)
{
    return dd_clock_calendar_ns() - dd_clock_now_ns();
}

dd_status
snapshot_take(dd_recorder *recorder, bool has_entries, bool is_active_only, dd_snapshot *snapshot,
              dd_error *err)
{
    *snapshot = (dd_snapshot){.recorder = recorder, .calendar_ns = calendar_offset_ns()};
    dd_lock_take(&recorder->groups_mu);
    dd_status status = list_groups_locked(recorder, snapshot, err);
    if (status == DD_OK && has_entries) {
        status = read_records_locked(recorder, is_active_only, snapshot, err);
    }
    if (status != DD_OK) {
        snapshot_fini(snapshot);
        return status;
    }
    find_errors(recorder, snapshot);
    return DD_OK;
}

void
snapshot_fini(dd_snapshot *snapshot)
{
    dd_lock_release(&snapshot->recorder->groups_mu);
    dd_mem_free(snapshot->groups);
    dd_mem_free(snapshot->entries);
}

bool
snapshot_next_tensor(const record_body *body, bool is_output, size_t *cursor, snapshot_tensor *tensor)
{
    bool is_second = is_output && !body->is_in_place;
    size_t first = is_second ? body->ninput_words : 0;
    size_t nwords = is_second ? body->noutput_words : body->ninput_words;
    if (*cursor >= nwords) {
        return false;
    }
    tensor_head head;
    memcpy(&head, &body->tensors[first + *cursor], sizeof head);
    *tensor = (snapshot_tensor){.dtype = (dd_dtype)head.dtype,
                                .is_stacked = head.is_stacked != 0,
                                .count = head.count,
                                .ndim = head.ndim,
                                .shape = &body->tensors[first + *cursor + 1]};
    *cursor += 1 + (size_t)head.ndim;
    return true;
}
