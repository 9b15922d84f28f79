/* Opening a group. */
#include "nccl/group.h"

#include "core/fork.h"
#include "core/lock.h"
#include "nccl/lifecycle/internal.h"

#include <string.h>

static dd_status
check_open_arguments(const dd_cuda *cuda, dd_store *store, int rank, int size, dd_error *err)
{
    if (cuda == NULL) {
        return dd_error_set(err, DD_NOT_SUPPORTED, "an NCCL group needs a CUDA device: got none");
    }
    if (size < 1 || rank < 0 || rank >= size) {
        return dd_error_set(err, DD_INVALID_ARGUMENT,
                            "invalid rank or size: got rank %d of %d, expected a rank in 0 to size - 1", rank,
                            size);
    }
    if (store == NULL && size > 1) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "a group of %d ranks needs a store: got none", size);
    }
    return DD_OK;
}

static dd_status
copy_group_options(dd_nccl_group *group, const dd_nccl_group_options *options, dd_error *err)
{
    uint8_t *name = dd_mem_alloc(options->name.len);
    if (name == NULL) {
        return dd_error_no_memory(err, options->name.len);
    }
    if (options->name.len > 0) {
        memcpy(name, options->name.data, options->name.len);
    }
    group->options = *options;
    group->options.name = dd_bytes_of(name, options->name.len);
    atomic_init(&group->timeout_ns, options->timeout_ns);
    atomic_init(&group->is_nan_check, options->is_nan_check);
    atomic_init(&group->has_nan_graphs, false);
    atomic_init(&group->nan_missed, NCCL_NAN_MISSED_NONE);
    atomic_init(&group->has_timing, options->has_timing);
    return DD_OK;
}

/* Allocate a group, still without store, options and recorder. NULL if there is no memory. */
static dd_nccl_group *
new_group(const dd_nccl_base *base, int rank, int size)
{
    dd_nccl_group *group =
        dd_mem_zalloc(sizeof *group + (size_t)base->cuda->ndevices * sizeof(nccl_device *));
    if (group == NULL) {
        return NULL;
    }
    atomic_init(&group->users, 1);
    atomic_init(&group->refs, 1);
    atomic_init(&group->stop, false);
    atomic_init(&group->needs_poll, false);
    group->lib = base->lib;
    group->cuda = base->cuda;
    group->watchdog = base->watchdog;
    group->rank = rank;
    group->size = size;
    group->generation = dd_fork_generation();
    dd_timer_set_init(&group->deadlines);
    dd_list_init(&group->link);
    dd_list_init(&group->pool);
    dd_list_init(&group->windows);
    dd_timed_lock_init(&group->launch, DD_LOCK_NCCL_LAUNCH);
    dd_lock_init(&group->lock, DD_LOCK_NCCL_GROUP);
    dd_cond_init(&group->ended);
    return group;
}

dd_status
dd_nccl_group_open(const dd_nccl_base *base, dd_store *store, int rank, int size,
                   const dd_nccl_group_options *options, dd_recorder_group *recorder_group,
                   dd_nccl_group **out, dd_error *err)
{
    dd_status status = check_open_arguments(base->cuda, store, rank, size, err);
    dd_nccl_group *group = status == DD_OK ? new_group(base, rank, size) : NULL;
    if (status == DD_OK && group == NULL) {
        status = dd_error_no_memory(err, sizeof *group);
    }
    if (status == DD_OK) {
        status = copy_group_options(group, options, err);
    }
    if (status == DD_OK) {
        group->recorder_group = recorder_group;
        if (recorder_group != NULL) {
            group->recorder = dd_recorder_of_group(recorder_group);
            dd_recorder_set_comm_version(group->recorder, base->lib->version_text);
        }
        status = nccl_watchdog_add(base->watchdog, group, err);
    }
    if (status != DD_OK) {
        dd_recorder_group_release(recorder_group);
        nccl_group_free(group);
        return status;
    }
    group->store = store != NULL ? dd_store_acquire(store) : NULL;
    *out = group;
    return DD_OK;
}
