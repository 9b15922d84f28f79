/* A group: its life, its settings, and the way of a call. */
#include "nccl/nccl_group.h"

#include "core/fork.h"
#include "core/lock.h"
#include "nccl/nccl_internal.h"

#include <string.h>
#include <time.h>

/* ---- life */

static dd_status
check_open(const dd_cuda *cuda, dd_store *store, int rank, int size, dd_error *err)
{
    if (cuda == NULL) {
        return dd_error_set(err, DD_NOT_SUPPORTED,
                            "a group of NCCL's needs a CUDA device, and there is none");
    }
    if (size < 1 || rank < 0 || rank >= size) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "rank %d of %d is impossible", rank, size);
    }
    if (store == NULL && size > 1) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "a group of %d ranks needs a store to meet in", size);
    }
    return DD_OK;
}

static dd_status
copy_options(dd_nccl_group *group, const dd_nccl_group_options *options, dd_error *err)
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

static void
free_group(dd_nccl_group *group)
{
    if (group == NULL) {
        return;
    }
    dd_mem_free((void *)(uintptr_t)group->options.name.data);
    dd_mem_free(group->nan_captures.items);
    dd_cond_fini(&group->ended);
    dd_lock_fini(&group->lock);
    dd_timed_lock_fini(&group->launch);
    dd_mem_free(group);
}

/* Without what is counted elsewhere. NULL without memory. */
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
    group->lib = base->lib;
    group->cuda = base->cuda;
    group->watchdog = base->watchdog;
    group->rank = rank;
    group->size = size;
    group->generation = dd_fork_generation();
    group->next_deadline_ns = DD_NEVER_NS;
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
    dd_status status = check_open(base->cuda, store, rank, size, err);
    dd_nccl_group *group = status == DD_OK ? new_group(base, rank, size) : NULL;
    if (status == DD_OK && group == NULL) {
        status = dd_error_no_memory(err, sizeof *group);
    }
    if (status == DD_OK) {
        status = copy_options(group, options, err);
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
        free_group(group);
        return status;
    }
    group->store = store != NULL ? dd_store_acquire(store) : NULL;
    *out = group;
    return DD_OK;
}

dd_nccl_group *
dd_nccl_group_acquire(dd_nccl_group *group)
{
    atomic_fetch_add_explicit(&group->users, 1, memory_order_relaxed);
    return group;
}

dd_nccl_group *
nccl_group_acquire_internal(dd_nccl_group *group)
{
    atomic_fetch_add_explicit(&group->refs, 1, memory_order_relaxed);
    return group;
}

bool
nccl_group_try_acquire(void *ctx)
{
    dd_nccl_group *group = ctx;
    unsigned refs = atomic_load(&group->refs);
    while (refs > 0 && !atomic_compare_exchange_weak(&group->refs, &refs, refs + 1)) {
    }
    return refs > 0;
}

void
nccl_group_release_internal(dd_nccl_group *group)
{
    if (atomic_fetch_sub_explicit(&group->refs, 1, memory_order_acq_rel) == 1) {
        nccl_group_destroy(group);
    }
}

void
nccl_group_destroy(dd_nccl_group *group)
{
    if (nccl_group_check_fork(group, NULL) != DD_OK) {
        return;
    }
    dd_lock_take(&group->lock); /* a thread that has aborted gives its reference away while it holds it */
    dd_lock_release(&group->lock);
    for (int number = 0; number < group->cuda->ndevices; number++) {
        nccl_device_destroy(group, atomic_load(&group->devices[number]));
    }
    while (!dd_list_is_empty(&group->pool)) {
        nccl_work *work = DD_CONTAINER_OF(group->pool.next, nccl_work, link);
        dd_list_remove(&work->link);
        dd_mem_free(work);
    }
    free_group(group);
}

static bool
has_works_locked(const dd_nccl_group *group)
{
    for (const nccl_channel *channel = group->channels; channel != NULL; channel = channel->next) {
        if (!dd_list_is_empty(&channel->works)) {
            return true;
        }
    }
    return false;
}

/* The watchdog finds out what has ended: asking the device here might hang. */
bool
dd_nccl_group_is_idle(dd_nccl_group *group, const dd_wait *wait)
{
    if (nccl_group_check_fork(group, NULL) != DD_OK) {
        return true;
    }
    dd_lock_take(&group->lock);
    while (has_works_locked(group) && !dd_wait_is_over(wait)) {
        group->nwaiters++;
        dd_cond_wait_slice(&group->ended, &group->lock, wait);
        group->nwaiters--;
    }
    bool is_idle = !has_works_locked(group) && !group->is_unheard;
    dd_lock_release(&group->lock);
    return is_idle;
}

void
dd_nccl_group_release(dd_nccl_group *group)
{
    if (group == NULL || atomic_fetch_sub_explicit(&group->users, 1, memory_order_acq_rel) != 1 ||
        nccl_group_check_fork(group, NULL) != DD_OK) {
        return;
    }
    dd_error cause;
    dd_error_set(&cause, DD_ABORTED, "the group was let go without being closed");
    nccl_watchdog_remove(group->watchdog, group);
    nccl_group_end(group, &cause, NULL, NCCL_END_LET_GO);
    nccl_group_start_abort(group);
    dd_store_release(
        group->store); /* nobody meets any more, and what a store ends with is nothing for other threads */
    group->store = NULL;
    /* Nothing is under way any more that could be told of, and the recorder may end before works and aborts do. */
    dd_lock_take(&group->lock);
    dd_recorder_group *recorder_group = group->recorder_group;
    group->recorder_group = NULL;
    group->recorder = NULL;
    dd_lock_release(&group->lock);
    dd_recorder_group_release(recorder_group);
    nccl_group_release_internal(group);
}

/* ---- settings */

int
dd_nccl_group_rank(const dd_nccl_group *group)
{
    return group->rank;
}

int
dd_nccl_group_size(const dd_nccl_group *group)
{
    return group->size;
}

dd_bytes
dd_nccl_group_name(const dd_nccl_group *group)
{
    return group->options.name;
}

int64_t
dd_nccl_group_get_timeout_ns(dd_nccl_group *group)
{
    return atomic_load_explicit(&group->timeout_ns, memory_order_relaxed);
}

void
dd_nccl_group_set_timeout_ns(dd_nccl_group *group, int64_t timeout_ns)
{
    atomic_store_explicit(&group->timeout_ns, timeout_ns, memory_order_relaxed);
}

void
dd_nccl_group_add_ephemeral_timeout_ns(dd_nccl_group *group, int64_t extra_ns)
{
    dd_lock_take(&group->lock);
    group->ephemeral_ns += extra_ns;
    group->ephemeral_free_ns += extra_ns;
    dd_lock_release(&group->lock);
}

uint64_t
dd_nccl_group_sequence(dd_nccl_group *group)
{
    dd_lock_take(&group->lock);
    uint64_t sequence = group->ncollectives;
    dd_lock_release(&group->lock);
    return sequence;
}

void
dd_nccl_group_set_nan_check(dd_nccl_group *group, bool is_on)
{
    atomic_store_explicit(&group->is_nan_check, is_on, memory_order_relaxed);
}

bool
dd_nccl_group_take_nan_missed(dd_nccl_group *group)
{
    nccl_nan_missed untold = NCCL_NAN_MISSED_UNTOLD;
    return atomic_load_explicit(&group->nan_missed, memory_order_relaxed) == untold &&
           atomic_compare_exchange_strong(&group->nan_missed, &untold, NCCL_NAN_MISSED_TOLD);
}

void
dd_nccl_group_set_timing(dd_nccl_group *group, bool is_on)
{
    atomic_store_explicit(&group->has_timing, is_on, memory_order_relaxed);
}

/* ---- may it be called */

dd_status
nccl_group_check_fork(const dd_nccl_group *group, dd_error *err)
{
    if (group->generation == dd_fork_generation()) {
        return DD_OK;
    }
    return dd_error_set(err, DD_FORKED, "group \"%.*s\" belongs to the process before the fork",
                        (int)group->options.name.len, (const char *)group->options.name.data);
}

void
nccl_group_describe_cause_locked(const dd_nccl_group *group, dd_error *err)
{
    dd_error_copy(err, &group->cause);
    dd_error_prepend(err, "group \"%.*s\" (rank %d of %d) has failed", (int)group->options.name.len,
                     (const char *)group->options.name.data, group->rank, group->size);
}

dd_status
nccl_group_check_locked(dd_nccl_group *group, dd_error *err)
{
    if (group->cause.code != DD_OK) {
        group->is_unheard = false;
        nccl_group_describe_cause_locked(group, err);
        return group->cause.code;
    }
    if (group->is_closed) {
        return dd_error_set(err, DD_CLOSED, "group \"%.*s\" (rank %d of %d) is closed",
                            (int)group->options.name.len, (const char *)group->options.name.data, group->rank,
                            group->size);
    }
    return DD_OK;
}

dd_status
dd_nccl_group_check(dd_nccl_group *group, dd_error *err)
{
    dd_status status = nccl_group_check_fork(group, err);
    if (status != DD_OK) {
        return status;
    }
    dd_lock_take(&group->lock);
    status = nccl_group_check_locked(group, err);
    dd_lock_release(&group->lock);
    return status;
}

/* ---- one call at a time */

dd_status
nccl_group_enter_launch(dd_nccl_group *group, const dd_wait *wait, dd_error *err)
{
    if (dd_timed_lock_take_within(&group->launch, 0)) {
        return DD_OK; /* without a look at the clock */
    }
    while (!dd_timed_lock_take_within(&group->launch, dd_wait_slice_ns(wait))) {
        dd_status status = DD_OK;
        if (atomic_load(&group->stop)) {
            status = dd_nccl_group_check(group, err);
        }
        if (status == DD_OK) {
            status = dd_wait_check(wait, err);
        }
        if (status != DD_OK) {
            return status;
        }
        if (dd_wait_is_over(wait)) {
            return dd_error_set(err, DD_OP_TIMED_OUT,
                                "another call of group \"%.*s\" has not been enqueued within %.3f s",
                                (int)group->options.name.len, (const char *)group->options.name.data,
                                dd_wait_elapsed_s(wait));
        }
    }
    return DD_OK;
}

void
nccl_group_leave_launch(dd_nccl_group *group)
{
    dd_timed_lock_release(&group->launch);
}

/* ---- streams and scratch */

/* `launch` is held and the device's context current, until leave_device. */
static dd_status
enter_device(dd_nccl_group *group, int number, nccl_device **device, dd_cuda_guard *guard, dd_error *err)
{
    dd_wait wait = dd_wait_after(dd_nccl_group_get_timeout_ns(group));
    dd_status status = nccl_group_check_fork(group, err);
    if (status == DD_OK) {
        status = nccl_device_of(group, number, &wait, device, err);
    }
    if (status == DD_OK) {
        status = nccl_group_enter_launch(group, &wait, err);
    }
    if (status != DD_OK) {
        return status;
    }
    status = (*device)->is_closed ? dd_error_set(err, DD_CLOSED, "the group is closed")
                                  : nccl_enter(group, *device, guard, err);
    if (status != DD_OK) {
        nccl_group_leave_launch(group);
    }
    return status;
}

static void
leave_device(dd_nccl_group *group, dd_cuda_guard *guard)
{
    dd_cuda_leave(guard);
    nccl_group_leave_launch(group);
}

dd_status
dd_nccl_group_stream(dd_nccl_group *group, int number, dd_cuda_stream *stream, dd_error *err)
{
    nccl_device *device;
    dd_cuda_guard guard;
    dd_status status = enter_device(group, number, &device, &guard, err);
    if (status == DD_OK) {
        *stream = device->all.stream;
        leave_device(group, &guard);
    }
    return status;
}

dd_status
dd_nccl_group_order(dd_nccl_group *group, int number, const dd_cuda_stream *streams, size_t nstreams,
                    dd_error *err)
{
    dd_error error;
    nccl_device *device;
    dd_cuda_guard guard;
    dd_status status = enter_device(group, number, &device, &guard, err);
    if (status != DD_OK) {
        return status;
    }
    dd_nccl_call call = {.streams = streams, .nstreams = nstreams};
    nccl_launch launch = {.group = group, .call = &call, .channel = &device->all, .err = &error};
    status = nccl_launch_find_capture(&launch);
    for (size_t i = 0; i < nstreams && status == DD_OK; i++) {
        status = nccl_stream_order(&launch, streams[i], device->all.stream);
    }
    leave_device(group, &guard);
    return status == DD_OK ? DD_OK : dd_error_copy(err, &error);
}

dd_status
dd_nccl_group_alloc_scratch(dd_nccl_group *group, int number, size_t nbytes, void **data, dd_error *err)
{
    nccl_device *device;
    dd_cuda_guard guard;
    dd_status status = enter_device(group, number, &device, &guard, err);
    if (status != DD_OK) {
        return status;
    }
    status = nccl_scratch_alloc(group, &device->all, nbytes > 0 ? nbytes : 1, data, err);
    leave_device(group, &guard);
    return status;
}

void
dd_nccl_group_free_scratch(dd_nccl_group *group, int number, void *data)
{
    nccl_device *device;
    dd_cuda_guard guard;
    if (data == NULL || enter_device(group, number, &device, &guard, NULL) != DD_OK) {
        return;
    }
    nccl_scratch_free(group, &device->all, data);
    leave_device(group, &guard);
}
