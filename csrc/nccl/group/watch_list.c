/* The watchdog's list of groups, and its counts of threads; lifecycle/watchdog.c has its thread. */
#include "nccl/group/internal.h"

#include "core/lock.h"

dd_nccl_group *
nccl_watchdog_next_group_locked(dd_nccl_watchdog *watchdog)
{
    if (dd_list_is_empty(&watchdog->groups)) {
        return NULL;
    }
    dd_nccl_group *group = DD_CONTAINER_OF(watchdog->groups.next, dd_nccl_group, link);
    dd_list_remove(&group->link);
    dd_list_push_back(&watchdog->groups, &group->link);
    return nccl_group_acquire_internal(group);
}

void
nccl_watchdog_remove(dd_nccl_watchdog *watchdog, dd_nccl_group *group)
{
    dd_lock_take(&watchdog->lock);
    if (!dd_list_is_empty(&group->link)) {
        dd_list_remove(&group->link);
        watchdog->ngroups--;
    }
    dd_lock_release(&watchdog->lock);
}

void
nccl_watchdog_begin_abort(dd_nccl_watchdog *watchdog)
{
    dd_lock_take(&watchdog->lock);
    watchdog->naborts++;
    dd_lock_release(&watchdog->lock);
}

void
nccl_watchdog_end_abort(dd_nccl_watchdog *watchdog)
{
    dd_lock_take(&watchdog->lock);
    watchdog->naborts--;
    dd_cond_broadcast(&watchdog->wake);
    dd_lock_release(&watchdog->lock);
}

bool
nccl_watchdog_begin_end(dd_nccl_watchdog *watchdog)
{
    dd_lock_take(&watchdog->lock);
    bool may_begin = watchdog->nenders < DD_NCCL_ENDERS_MAX;
    watchdog->nenders += may_begin;
    watchdog->naborts += may_begin;
    dd_lock_release(&watchdog->lock);
    return may_begin;
}

void
nccl_watchdog_end_end(dd_nccl_watchdog *watchdog)
{
    dd_lock_take(&watchdog->lock);
    watchdog->nenders--;
    dd_lock_release(&watchdog->lock);
    nccl_watchdog_end_abort(watchdog);
}

void
nccl_watchdog_kick(dd_nccl_watchdog *watchdog)
{
    if (!atomic_load(&watchdog->is_asleep)) {
        return;
    }
    dd_lock_take(&watchdog->lock);
    atomic_store(&watchdog->is_asleep, false);
    dd_cond_broadcast(&watchdog->wake);
    dd_lock_release(&watchdog->lock);
}

bool
nccl_watchdog_is_abort_off(const dd_nccl_watchdog *watchdog)
{
    return watchdog->options.is_abort_off;
}

int64_t
nccl_watchdog_abort_timeout_ns(const dd_nccl_watchdog *watchdog)
{
    return watchdog->options.abort_timeout_ns;
}
