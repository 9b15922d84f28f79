#include "observe/recorder_internal.h"

#include "core/lock.h"
#include "core/mem.h"

#include <stdio.h>
#include <string.h>

static void
free_group(dd_recorder_group *group)
{
    dd_list_remove(&group->link);
    dd_blob_fini(&group->name);
    dd_blob_fini(&group->desc);
    dd_mem_free(group->global_ranks);
    dd_mem_free(group);
}

static void
set_alarm_name(dd_recorder_group *group, const dd_recorder_group_info *info)
{
    dd_lock_take(&group->recorder->alarms_mu);
    snprintf(group->alarm_name, sizeof group->alarm_name, "%.*s", (int)info->name.len,
             (const char *)info->name.data);
    group->alarm_kind = info->kind;
    group->alarm_rank = info->rank;
    dd_lock_release(&group->recorder->alarms_mu);
}

/* Texts and ranks of `info` in memory of the group's own; what was there before goes. On failure nothing has changed. */
static dd_status
set_info(dd_recorder_group *group, const dd_recorder_group_info *info, dd_error *err)
{
    dd_blob name = {0};
    dd_blob desc = {0};
    int *ranks = NULL;
    dd_status status = dd_blob_assign(&name, info->name, err);
    if (status == DD_OK) {
        status = dd_blob_assign(&desc, info->desc, err);
    }
    if (status == DD_OK && info->global_ranks != NULL) {
        size_t nbytes = (size_t)info->size * sizeof *ranks;
        ranks = dd_mem_alloc(nbytes);
        if (ranks != NULL) {
            memcpy(ranks, info->global_ranks, nbytes);
        } else {
            status = dd_error_no_memory(err, nbytes);
        }
    }
    if (status != DD_OK) {
        dd_blob_fini(&name);
        dd_blob_fini(&desc);
        return status;
    }
    dd_lock_take(&group->recorder->groups_mu);
    dd_blob old_name = group->name;
    dd_blob old_desc = group->desc;
    int *old_ranks = group->global_ranks;
    group->name = name;
    group->desc = desc;
    group->global_ranks = ranks;
    group->kind = info->kind;
    group->rank = info->rank;
    group->size = info->size;
    dd_lock_release(&group->recorder->groups_mu);
    set_alarm_name(group, info);
    dd_blob_fini(&old_name);
    dd_blob_fini(&old_desc);
    dd_mem_free(old_ranks);
    return DD_OK;
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
    atomic_init(&self->last_enqueued_name, "");
    atomic_init(&self->last_started_name, "");
    atomic_init(&self->last_completed_name, "");
    dd_list_init(&self->link);
    dd_status status = set_info(self, info, err);
    if (status != DD_OK) {
        free_group(self);
        return status;
    }
    dd_lock_take(&recorder->groups_mu);
    recorder_sweep_groups_locked(recorder);
    self->uid = recorder->next_uid++;
    dd_list_push_back(&recorder->groups, &self->link);
    dd_lock_release(&recorder->groups_mu);
    *group = self;
    return DD_OK;
}

dd_status
dd_recorder_group_rename(dd_recorder_group *group, const dd_recorder_group_info *info, dd_error *err)
{
    return set_info(group, info, err);
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
        atomic_fetch_sub_explicit(&group->refs, 1, memory_order_release); /* it goes with a later sweep */
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

/* Whether the ring may still have one of its records, be it one that nobody will see. Another round of the ring is for threads that
 * have an id and have not written it down. */
static bool
may_have_records(const dd_recorder *recorder, const dd_recorder_group *group)
{
    uint64_t last_record = atomic_load_explicit(&group->last_record, memory_order_relaxed);
    uint64_t last = atomic_load_explicit(&recorder->last, memory_order_relaxed);
    return last_record != 0 && last - last_record <= 2 * (recorder->mask + 1);
}

void
recorder_sweep_groups_locked(dd_recorder *recorder)
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

void
recorder_destroy_groups(dd_recorder *recorder)
{
    while (!dd_list_is_empty(&recorder->groups)) {
        free_group(DD_CONTAINER_OF(recorder->groups.next, dd_recorder_group, link));
    }
}

void
dd_recorder_set_comm_version(dd_recorder *recorder, const char *version)
{
    dd_lock_take(&recorder->groups_mu);
    snprintf(recorder->comm_version, sizeof recorder->comm_version, "%s", version);
    dd_lock_release(&recorder->groups_mu);
}

/* -1: there has been none. */
static int64_t
sequence_or_none(const _Atomic(uint64_t) *counter)
{
    uint64_t sequence = atomic_load_explicit(counter, memory_order_relaxed);
    return sequence > 0 ? (int64_t)sequence : -1;
}

void
dd_recorder_group_status(dd_recorder_group *group, dd_recorder_status *status)
{
    *status = (dd_recorder_status){
        .last_enqueued = sequence_or_none(&group->ncollectives),
        .last_started = sequence_or_none(&group->last_started),
        .last_completed = sequence_or_none(&group->last_completed),
        .last_enqueued_name = atomic_load_explicit(&group->last_enqueued_name, memory_order_relaxed),
        .last_started_name = atomic_load_explicit(&group->last_started_name, memory_order_relaxed),
        .last_completed_name = atomic_load_explicit(&group->last_completed_name, memory_order_relaxed),
    };
}
