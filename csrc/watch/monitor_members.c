/* The list of the groups that the monitor watches. */
#include "watch/watch_internal.h"

#include "core/lock.h"
#include "core/mem.h"

/* Timeout of one request to a store. */
#define STORE_TIMEOUT_NS (5 * DD_NS_PER_S)

/* ---- passes: only one thread at a time may use members and stores, during its pass */

bool
watch_begin_pass(dd_monitor *monitor, const dd_wait *wait)
{
    dd_lock_take(&monitor->mu);
    while (monitor->is_busy && !dd_wait_has_expired(wait)) {
        dd_cond_wait_slice(&monitor->cond, &monitor->mu, wait);
    }
    bool is_acquired = !monitor->is_busy;
    monitor->is_busy = true;
    dd_lock_release(&monitor->mu);
    return is_acquired;
}

void
watch_mark_removed(dd_monitor *monitor, uint64_t id)
{
    dd_lock_take(&monitor->mu);
    for (dd_list *node = monitor->members.next; node != &monitor->members; node = node->next) {
        watch_member *member = DD_CONTAINER_OF(node, watch_member, link);
        member->is_removed = member->is_removed || id == 0 || member->id == id;
    }
    dd_lock_release(&monitor->mu);
}

/* Unlink a removed member and return it. If there is none, end the pass and return NULL. */
static watch_member *
take_removed(dd_monitor *monitor)
{
    watch_member *found = NULL;
    dd_lock_take(&monitor->mu);
    for (dd_list *node = monitor->members.next; node != &monitor->members && found == NULL;
         node = node->next) {
        watch_member *member = DD_CONTAINER_OF(node, watch_member, link);
        found = member->is_removed ? member : NULL;
    }
    if (found != NULL) {
        dd_list_remove(&found->link);
    } else {
        monitor->is_busy = false;
        dd_cond_broadcast(&monitor->cond);
    }
    dd_lock_release(&monitor->mu);
    return found;
}

void
watch_end_pass(dd_monitor *monitor)
{
    watch_member *member;
    while ((member = take_removed(monitor)) != NULL) {
        dd_store_release(member->info.store);
        dd_recorder_group_release(member->info.record);
        if (member->info.release != NULL) {
            member->info.release(member->info.ctx);
        }
        dd_mem_free(member);
    }
}

watch_member *
watch_next(dd_monitor *monitor, watch_member *after)
{
    dd_lock_take(&monitor->mu);
    dd_list *node = after != NULL ? after->link.next : monitor->members.next;
    dd_lock_release(&monitor->mu);
    return node != &monitor->members ? DD_CONTAINER_OF(node, watch_member, link) : NULL;
}

static bool
is_time_up(void *ctx)
{
    dd_monitor *monitor = ctx;
    return atomic_load(&monitor->is_stopping) && dd_clock_now_ns() >= atomic_load(&monitor->stop_deadline_ns);
}

dd_wait
watch_wait(dd_monitor *monitor)
{
    dd_wait wait = dd_wait_after(STORE_TIMEOUT_NS);
    wait.is_interrupted = is_time_up;
    wait.ctx = monitor;
    return wait;
}
