/* Whom the monitor watches: the members, and the stores they are told by. */
#include "watch/watch_internal.h"

#include "core/lock.h"
#include "core/log.h"
#include "core/mem.h"

#include <stdio.h>

/* ---- passes: one at a time touches members and stores */

bool
watch_begin_pass(dd_monitor *monitor, const dd_wait *wait)
{
    dd_lock_take(&monitor->mu);
    while (monitor->is_busy && !dd_wait_is_over(wait)) {
        dd_cond_wait_slice(&monitor->cond, &monitor->mu, wait);
    }
    bool is_ours = !monitor->is_busy;
    monitor->is_busy = true;
    dd_lock_release(&monitor->mu);
    return is_ours;
}

static void
free_place(watch_place *place)
{
    dd_store_release(place->store);
    dd_blob_fini(&place->count);
    dd_mem_free(place);
}

static void
free_member(watch_member *member)
{
    dd_store_release(member->info.store);
    dd_recorder_group_release(member->info.record);
    dd_blob_fini(&member->published);
    if (member->info.release != NULL) {
        member->info.release(member->info.ctx);
    }
    dd_mem_free(member);
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

/* Takes one that is to go out of the list, and its place (else NULL) if it was the last there; NULL: none is, and the pass has ended. */
static watch_member *
take_removed(dd_monitor *monitor, watch_place **place)
{
    watch_member *found = NULL;
    *place = NULL;
    dd_lock_take(&monitor->mu);
    for (dd_list *node = monitor->members.next; node != &monitor->members && found == NULL;
         node = node->next) {
        watch_member *member = DD_CONTAINER_OF(node, watch_member, link);
        found = member->is_removed ? member : NULL;
    }
    if (found == NULL) {
        monitor->is_busy = false;
        dd_cond_broadcast(&monitor->cond);
    } else {
        dd_list_remove(&found->link);
        if (found->place != NULL && --found->place->nusers == 0) {
            *place = found->place;
            dd_list_remove(&found->place->link);
        }
    }
    dd_lock_release(&monitor->mu);
    return found;
}

void
watch_end_pass(dd_monitor *monitor)
{
    watch_place *place = NULL;
    watch_member *member;
    while ((member = take_removed(monitor, &place)) != NULL) {
        free_member(member);
        if (place != NULL) {
            free_place(place);
        }
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

watch_member *
watch_find(dd_monitor *monitor, const dd_alarm *alarm)
{
    watch_member *member = watch_next(monitor, NULL);
    while (member != NULL &&
           (member->info.record == NULL || dd_recorder_group_uid(member->info.record) != alarm->uid)) {
        member = watch_next(monitor, member);
    }
    return member;
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
    dd_wait wait = dd_wait_after(WATCH_STORE_TIMEOUT_NS);
    wait.is_interrupted = is_time_up;
    wait.ctx = monitor;
    return wait;
}

/* ---- groups */

static dd_store *
root_of(dd_store *store)
{
    while (dd_prefix_store_is(store)) {
        store = dd_prefix_store_underlying(store);
    }
    return store;
}

static watch_place *
use_place_locked(dd_monitor *monitor, dd_store *root, dd_error *err)
{
    for (dd_list *node = monitor->places.next; node != &monitor->places; node = node->next) {
        watch_place *place = DD_CONTAINER_OF(node, watch_place, link);
        if (place->store == root) {
            place->nusers++;
            return place;
        }
    }
    watch_place *place = dd_mem_zalloc(sizeof *place);
    if (place == NULL) {
        dd_status status = dd_error_no_memory(err, sizeof *place);
        (void)status;
        return NULL;
    }
    place->store = dd_store_acquire(root);
    place->nusers = 1;
    dd_list_push_back(&monitor->places, &place->link);
    return place;
}

/* Puts it among the others. */
static dd_status
link_member(dd_monitor *monitor, watch_member *member, uint64_t *id, dd_error *err)
{
    dd_status status = DD_OK;
    dd_lock_take(&monitor->mu);
    if (member->info.store != NULL) {
        member->place = use_place_locked(monitor, root_of(member->info.store), err);
        status = member->place != NULL ? DD_OK : DD_OUT_OF_MEMORY;
    }
    if (member->place != NULL) {
        member->info.store = dd_store_acquire(member->info.store);
    }
    if (status == DD_OK) {
        member->info.record = dd_recorder_group_acquire(member->info.record);
        *id = member->id = ++monitor->last_id;
        dd_list_push_back(&monitor->members, &member->link);
    }
    dd_lock_release(&monitor->mu);
    return status;
}

static bool
needs_signals(dd_monitor *monitor, const dd_monitor_member *info)
{
    dd_lock_take(&monitor->mu);
    bool is_first = dd_list_is_empty(&monitor->members);
    dd_lock_release(&monitor->mu);
    return info->store != NULL && (is_first || info->fail != NULL || monitor->options.is_desync);
}

/* A group whose store does not do what is needed here works all the same: without signals. */
static dd_status
enter(watch_member *member, const dd_wait *wait, dd_error *err)
{
    dd_status status = watch_enter(member, wait, err);
    if (status != DD_OK && status != DD_INTERRUPTED) {
        DD_LOG(DD_LOG_DEBUG, "the ranks of group \"%s\" cannot tell each other of failures: %s", member->name,
               err != NULL ? err->message : "");
        member->info.store = NULL;
        status = DD_OK;
    }
    return status;
}

dd_status
dd_monitor_add(dd_monitor *monitor, const dd_monitor_member *info, uint64_t *id, const dd_wait *wait,
               dd_error *err)
{
    watch_member *member = dd_mem_zalloc(sizeof *member);
    if (member == NULL) {
        return dd_error_no_memory(err, sizeof *member);
    }
    member->info = *info;
    snprintf(member->name, sizeof member->name, "%.*s", (int)info->name.len, (const char *)info->name.data);
    member->info.name = dd_bytes_of_string(member->name);
    dd_list_init(&member->link);
    dd_status status = needs_signals(monitor, info) ? enter(member, wait, err) : DD_OK;
    if (status == DD_OK) {
        status = link_member(monitor, member, id, err);
    }
    if (status != DD_OK) {
        dd_mem_free(member);
        return status;
    }
    return DD_OK;
}
