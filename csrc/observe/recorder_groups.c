/* The groups of the recorder, and their alarms. */
#include "observe/recorder_internal.h"

#include "core/lock.h"
#include "core/mem.h"

#include <stdio.h>
#include <string.h>

static void
free_group(dd_recorder_group *group)
{
    group_info *info = atomic_load_explicit(&group->info, memory_order_relaxed);
    while (info != NULL) {
        group_info *older = info->older;
        dd_mem_free(info);
        info = older;
    }
    dd_list_remove(&group->link);
    dd_mem_free(group);
}

/* Copy the bytes to `*at`, move `*at` behind the copy, and return the copy. */
static void *
append_copy(uint8_t **at, const void *data, size_t nbytes)
{
    uint8_t *copy = *at;
    if (nbytes > 0) {
        memcpy(copy, data, nbytes);
    }
    *at += nbytes;
    return copy;
}

dd_status
dd_recorder_group_rename(dd_recorder_group *group, const dd_recorder_group_info *info, dd_error *err)
{
    size_t ranks_nbytes = info->global_ranks != NULL ? (size_t)info->size * sizeof(int) : 0;
    size_t nbytes = sizeof(group_info) + ranks_nbytes + info->name.len + info->desc.len;
    group_info *copy = dd_mem_alloc(nbytes);
    if (copy == NULL) {
        return dd_error_no_memory(err, nbytes);
    }
    uint8_t *at = (uint8_t *)(copy + 1);
    copy->is = *info;
    copy->is.global_ranks = ranks_nbytes > 0 ? append_copy(&at, info->global_ranks, ranks_nbytes) : NULL;
    copy->is.name.data = append_copy(&at, info->name.data, info->name.len);
    copy->is.desc.data = append_copy(&at, info->desc.data, info->desc.len);
    dd_lock_take(&group->recorder->mu);
    copy->older = atomic_load_explicit(&group->info, memory_order_relaxed);
    atomic_store_explicit(&group->info, copy, memory_order_release);
    dd_lock_release(&group->recorder->mu);
    return DD_OK;
}

dd_status
dd_recorder_group_set_kind(dd_recorder_group *group, const char *kind, dd_error *err)
{
    dd_recorder_group_info info = atomic_load_explicit(&group->info, memory_order_acquire)->is;
    info.kind = kind;
    return dd_recorder_group_rename(group, &info, err);
}

/* Return true if the ring may still have a record of the group, shown or not. Check two rounds of
 * the ring, because a thread may have an id whose record is not written yet. */
static bool
may_have_records(const dd_recorder *recorder, const dd_recorder_group *group)
{
    uint64_t last_record = atomic_load_explicit(&group->last_record, memory_order_relaxed);
    uint64_t last = atomic_load_explicit(&recorder->last, memory_order_relaxed);
    return last_record != 0 && last - last_record <= 2 * (recorder->mask + 1);
}

/* Free the groups that have no references and no records in the ring. */
static void
sweep_locked(dd_recorder *recorder)
{
    for (dd_list *node = recorder->groups.next, *next; node != &recorder->groups; node = next) {
        next = node->next;
        dd_recorder_group *group = DD_CONTAINER_OF(node, dd_recorder_group, link);
        if (atomic_load_explicit(&group->refs, memory_order_acquire) == 0 &&
            !may_have_records(recorder, group)) {
            free_group(group);
        }
    }
}

dd_status
dd_recorder_add_group(dd_recorder *recorder, const dd_recorder_group_info *info, dd_recorder_group **group,
                      dd_error *err)
{
    dd_recorder_group *self = dd_mem_zalloc(sizeof *self);
    if (self == NULL) {
        return dd_error_no_memory(err, sizeof *self);
    }
    self->recorder = recorder;
    atomic_init(&self->refs, 1);
    atomic_init(&self->called.name, "");
    atomic_init(&self->started.name, "");
    atomic_init(&self->completed.name, "");
    dd_list_init(&self->link);
    dd_status status = dd_recorder_group_rename(self, info, err);
    if (status != DD_OK) {
        free_group(self);
        return status;
    }
    dd_lock_take(&recorder->mu);
    sweep_locked(recorder);
    self->uid = recorder->next_uid++;
    dd_list_push_back(&recorder->groups, &self->link);
    dd_lock_release(&recorder->mu);
    *group = self;
    return DD_OK;
}

dd_recorder_group *
dd_recorder_group_acquire(dd_recorder_group *group)
{
    if (group != NULL) {
        atomic_fetch_add_explicit(&group->refs, 1, memory_order_relaxed);
    }
    return group;
}

void
dd_recorder_group_release(dd_recorder_group *group)
{
    if (group != NULL) {
        /* a later sweep frees the group */
        atomic_fetch_sub_explicit(&group->refs, 1, memory_order_release);
    }
}

dd_recorder *
dd_recorder_of_group(dd_recorder_group *group)
{
    return group->recorder;
}

uint32_t
dd_recorder_group_uid(const dd_recorder_group *group)
{
    return group->uid;
}

void
dd_recorder_reset(dd_recorder *recorder)
{
    atomic_store_explicit(&recorder->base, atomic_load_explicit(&recorder->last, memory_order_relaxed),
                          memory_order_relaxed);
    dd_lock_take(&recorder->mu);
    sweep_locked(recorder);
    dd_lock_release(&recorder->mu);
}

void
recorder_destroy_groups(dd_recorder *recorder)
{
    while (!dd_list_is_empty(&recorder->groups)) {
        free_group(DD_CONTAINER_OF(recorder->groups.next, dd_recorder_group, link));
    }
}

static dd_progress
progress_of(const group_mark *mark)
{
    uint64_t number = atomic_load_explicit(&mark->number, memory_order_relaxed);
    return (dd_progress){.number = number > 0 ? (int64_t)number : -1,
                         .name = atomic_load_explicit(&mark->name, memory_order_relaxed)};
}

void
dd_recorder_group_status(dd_recorder_group *group, dd_recorder_status *status)
{
    *status = (dd_recorder_status){.called = progress_of(&group->called),
                                   .started = progress_of(&group->started),
                                   .completed = progress_of(&group->completed)};
}

/* ---- alarms */

void
dd_recorder_raise_alarm(dd_recorder_group *group, uint64_t record, const dd_error *error)
{
    if (atomic_exchange_explicit(&group->is_alarmed, true, memory_order_relaxed)) {
        return;
    }
    dd_recorder *recorder = group->recorder;
    const dd_recorder_group_info *info = recorder_info_of(group);
    dd_lock_take(&recorder->mu);
    if (recorder->nalarms_raised - recorder->nalarms_taken == ALARMS_MAX) {
        recorder->nalarms_taken++; /* drop the oldest alarm */
    }
    dd_alarm *alarm = &recorder->alarms[recorder->nalarms_raised++ % ALARMS_MAX];
    *alarm = (dd_alarm){
        .uid = group->uid, .kind = info->kind, .rank = info->rank, .record = record, .error = *error};
    snprintf(alarm->group, sizeof alarm->group, "%.*s", (int)info->name.len, (const char *)info->name.data);
    if (recorder->notify != NULL) {
        recorder->notify(recorder->notify_ctx);
    }
    dd_lock_release(&recorder->mu);
}

bool
dd_recorder_take_alarm(dd_recorder *recorder, dd_alarm *alarm)
{
    dd_lock_take(&recorder->mu);
    bool is_any = recorder->nalarms_raised != recorder->nalarms_taken;
    if (is_any) {
        *alarm = recorder->alarms[recorder->nalarms_taken++ % ALARMS_MAX];
    }
    dd_lock_release(&recorder->mu);
    return is_any;
}

void
dd_recorder_notify_of_alarms(dd_recorder *recorder, void (*notify)(void *ctx), void *ctx)
{
    dd_lock_take(&recorder->mu);
    if (notify != NULL || recorder->notify_ctx == ctx) {
        recorder->notify = notify;
        recorder->notify_ctx = ctx;
    }
    dd_lock_release(&recorder->mu);
}
