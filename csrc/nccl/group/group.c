/* The state of a group: references, settings, and the lock that admits one call at a time. */
#include "nccl/group.h"

#include "core/fork.h"
#include "core/lock.h"
#include "nccl/group/internal.h"

#include <string.h>
#include <time.h>

/* ---- references */

void
nccl_group_free(dd_nccl_group *group)
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
    /* wait for abort_channel, which releases its reference under the lock */
    dd_lock_take(&group->lock);
    dd_lock_release(&group->lock);
    for (int number = 0; number < group->cuda->ndevices; number++) {
        nccl_device_destroy(group, atomic_load(&group->devices[number]));
    }
    while (!dd_list_is_empty(&group->pool)) {
        nccl_work *work = DD_CONTAINER_OF(group->pool.next, nccl_work, link);
        dd_list_remove(&work->link);
        dd_mem_free(work);
    }
    nccl_group_free(group);
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

/* Only wait while the watchdog completes works: querying the device on this thread might hang. */
bool
dd_nccl_group_is_idle(dd_nccl_group *group, const dd_wait *wait)
{
    if (nccl_group_check_fork(group, NULL) != DD_OK) {
        return true;
    }
    dd_lock_take(&group->lock);
    while (has_works_locked(group) && !dd_wait_has_expired(wait)) {
        group->nwaiters++;
        dd_cond_wait_slice(&group->ended, &group->lock, wait);
        group->nwaiters--;
    }
    bool is_idle = !has_works_locked(group) && !group->is_unreported;
    dd_lock_release(&group->lock);
    return is_idle;
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
    nccl_nan_missed unreported = NCCL_NAN_MISSED_UNREPORTED;
    return atomic_load_explicit(&group->nan_missed, memory_order_relaxed) == unreported &&
           atomic_compare_exchange_strong(&group->nan_missed, &unreported, NCCL_NAN_MISSED_REPORTED);
}

void
dd_nccl_group_set_timing(dd_nccl_group *group, bool is_on)
{
    atomic_store_explicit(&group->has_timing, is_on, memory_order_relaxed);
}

/* ---- checks before calls */

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
        group->is_unreported = false;
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

/* ---- the launch lock: one call at a time */

dd_status
nccl_group_enter_launch(dd_nccl_group *group, const dd_wait *wait, dd_error *err)
{
    if (dd_timed_lock_take_within(&group->launch, 0)) {
        return DD_OK; /* fast path: does not read the clock */
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
        if (dd_wait_has_expired(wait)) {
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
