/* Basic functions of the engine that do not depend on the driver: lock, waking, lookups, pools. */
#include "transport/engine_internal.h"

#include "core/assert.h"
#include "core/lock.h"
#include "core/mem.h"
#include "core/system.h"

#define FREE_HELD_MAX 256

dd_bytes
dd_engine_secret(const dd_engine *engine)
{
    return dd_blob_view(&engine->secret);
}

dd_engine *
dd_engine_acquire(dd_engine *engine)
{
    atomic_fetch_add_explicit(&engine->refs, 1, memory_order_relaxed);
    return engine;
}

dd_status
dd_engine_check_fork(const dd_engine *engine, dd_error *err)
{
    if (engine_is_forked(engine)) {
        return dd_error_set(err, DD_FORKED, "the groups of a process cannot be used in its forked child");
    }
    return DD_OK;
}

bool
dd_engine_is_torn(dd_engine *engine)
{
    return engine_is_forked(engine) && !dd_lock_was_free_at_fork(&engine->mu);
}

/* ---- the engine's lock */

void
dd_engine_lock(dd_engine *engine)
{
    if (dd_lock_try(&engine->mu)) {
        return;
    }
    atomic_fetch_add_explicit(&engine->nlockers, 1, memory_order_relaxed);
    for (int npolled = 0; npolled < DD_POLLS_OF_LOCK; npolled++) {
        dd_spin_pause();
        if (dd_lock_try(&engine->mu)) {
            atomic_fetch_sub_explicit(&engine->nlockers, 1, memory_order_relaxed);
            return;
        }
    }
    dd_lock_take(&engine->mu);
    atomic_fetch_sub_explicit(&engine->nlockers, 1, memory_order_relaxed);
}

bool
dd_engine_try_lock(dd_engine *engine)
{
    return dd_lock_try(&engine->mu);
}

void
engine_wake_driver(dd_engine *engine)
{
    const uint64_t one = 1;
    if (engine->driver != NULL && engine->driver->is_asleep) {
        /* The write fails only if the counter is full, and then wake_fd is readable already. */
        (void)!dd_sys_write(engine->wake_fd, &one, sizeof one);
    }
}

void
engine_wake_done_waiters(dd_engine *engine)
{
    for (dd_list *node = engine->waiters.next; node != &engine->waiters; node = node->next) {
        dd_waiter *other = DD_CONTAINER_OF(node, dd_waiter, link);
        if (waiter_is_done(other)) {
            dd_cond_signal(&other->turn);
        }
    }
    if (engine->driver != NULL && waiter_is_done(engine->driver)) {
        engine_wake_driver(engine);
    }
}

void
dd_engine_unlock(dd_engine *engine)
{
    if (engine->is_wake_due) {
        engine->is_wake_due = false;
        engine_wake_done_waiters(engine);
    }
    dd_lock_release(&engine->mu);
}

void
dd_engine_note_ended_locked(dd_engine *engine)
{
    dd_assert_holds(ENGINE);
    engine->is_wake_due = true;
}

void
engine_yield_lock(dd_engine *engine)
{
    dd_engine_unlock(engine);
    for (int npolled = 0;
         npolled < DD_POLLS_OF_LOCK && atomic_load_explicit(&engine->nlockers, memory_order_relaxed) > 0;
         npolled++) {
        if (npolled < DD_POLLS_OF_LOCK / 2) {
            dd_spin_pause();
        } else {
            dd_sys_sched_yield();
        }
    }
    /* This thread must not be in nlockers: two drivers would yield to each other forever. */
    dd_lock_take(&engine->mu);
}

/* ---- waking threads */

static void
kick_background(dd_engine *engine)
{
    dd_lock_take(&engine->nap_mu);
    engine->is_kicked = true;
    dd_cond_signal(&engine->nap);
    dd_lock_release(&engine->nap_mu);
}

void
engine_wake(dd_engine *engine)
{
    if (engine->driver == NULL) {
        kick_background(engine);
    } else {
        engine_wake_driver(engine);
    }
}

/* ---- finding peers and contexts by key */

dd_peer *
engine_find_peer(dd_engine *engine, const dd_uid *uid)
{
    dd_map_node *node = dd_map_find(&engine->peers, dd_bytes_of(uid, sizeof *uid));
    return node != NULL ? DD_CONTAINER_OF(node, dd_peer, node) : NULL;
}

dd_context *
engine_find_context(dd_engine *engine, uint64_t id, uint32_t rank)
{
    context_key key = {.id = id, .rank = rank};
    dd_map_node *node = dd_map_find(&engine->contexts, dd_bytes_of(&key, sizeof key));
    return node != NULL ? DD_CONTAINER_OF(node, dd_context, node) : NULL;
}

static size_t
nkept(const dd_engine *engine)
{
    return engine->nclosed < CLOSED_CONTEXTS_MAX ? engine->nclosed : CLOSED_CONTEXTS_MAX;
}

bool
engine_has_closed(const dd_engine *engine, uint64_t id, uint32_t rank)
{
    for (size_t i = 0; i < nkept(engine); i++) {
        if (engine->closed[i].id == id && engine->closed[i].rank == rank) {
            return true;
        }
    }
    return false;
}

void
engine_note_closed(dd_engine *engine, const context_key *key)
{
    engine->closed[engine->nclosed++ % CLOSED_CONTEXTS_MAX] = *key;
}

void
engine_clear_closed(dd_engine *engine, const context_key *key)
{
    for (size_t i = 0; i < nkept(engine); i++) {
        if (engine->closed[i].id == key->id && engine->closed[i].rank == key->rank) {
            engine->closed[i] = (context_key){.rank = UINT64_MAX};
        }
    }
}

/* ---- pools */

out_frame *
engine_create_out(dd_engine *engine, const out_frame *out)
{
    out_frame *copy = engine->free_out;
    if (copy != NULL) {
        engine->free_out = (out_frame *)copy->link.next;
    } else {
        copy = dd_mem_alloc(sizeof *copy);
        if (copy == NULL) {
            return NULL;
        }
    }
    *copy = *out;
    dd_list_init(&copy->link);
    return copy;
}

void
engine_destroy_out(dd_engine *engine, out_frame *out)
{
    out->link.next = (dd_list *)engine->free_out;
    engine->free_out = out;
}

bool
held_alloc_payload(held *entry, size_t nbytes)
{
    entry->data = nbytes > HELD_INLINE_NBYTES ? dd_mem_alloc(nbytes) : entry->small;
    return entry->data != NULL;
}

held *
engine_create_held(dd_peer *peer, const dd_frame *frame)
{
    dd_engine *engine = peer->engine;
    held *entry = engine->free_held;
    if (entry != NULL) {
        engine->free_held = (held *)entry->link.next;
        engine->nfree_held--;
    } else {
        entry = dd_mem_alloc(sizeof *entry);
    }
    if (entry == NULL || !held_alloc_payload(entry, frame->payload)) {
        dd_mem_free(entry);
        return NULL;
    }
    dd_list_init(&entry->link);
    entry->frame = *frame;
    entry->peer = peer;
    entry->is_notified = false;
    entry->sender = NULL;
    entry->order = engine->next_order++;
    peer->nheld++;
    engine->stats.held_nbytes += frame->payload;
    return entry;
}

void
engine_destroy_held(dd_engine *engine, held *entry)
{
    dd_list_remove(&entry->link);
    entry->peer->nheld--;
    engine->stats.held_nbytes -= entry->frame.payload;
    if (entry->data != entry->small) {
        dd_mem_free(entry->data);
    }
    if (engine->nfree_held >= FREE_HELD_MAX) {
        dd_mem_free(entry);
        return;
    }
    entry->link.next = (dd_list *)engine->free_held;
    engine->free_held = entry;
    engine->nfree_held++;
}

/* ---- timers */

void
dd_engine_start_timer_locked(dd_engine *engine, dd_timer *timer, int64_t at_ns)
{
    dd_assert_holds(ENGINE);
    dd_timer_start(&engine->timers, timer, at_ns);
}
