/* Opening and closing contexts (the messages of groups). */
#include "transport/engine_internal.h"

#include "core/mem.h"

/* ---- opening */

static dd_context *
context_create(dd_engine *engine, uint64_t id, int rank, int nranks, dd_peer *const *peers)
{
    size_t nbytes = sizeof(dd_context) + (size_t)nranks * sizeof(context_rank);
    dd_context *self = dd_mem_zalloc(nbytes);
    if (self == NULL) {
        return NULL;
    }
    self->engine = engine;
    self->key = (context_key){.id = id, .rank = (uint64_t)rank};
    self->node.key = dd_bytes_of(&self->key, sizeof self->key);
    self->rank = rank;
    self->nranks = nranks;
    dd_list_init(&self->link);
    dd_list_init(&self->posted_any);
    for (int i = 0; i < nranks; i++) {
        self->ranks[i].peer = peers[i];
        dd_list_init(&self->ranks[i].posted);
        dd_list_init(&self->ranks[i].held);
    }
    return self;
}

static dd_status
open_locked(dd_context *context, dd_error *err)
{
    dd_engine *engine = context->engine;
    if (engine_find_context(engine, context->key.id, (uint32_t)context->rank) != NULL) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "group %llx is already open as rank %d",
                            (unsigned long long)context->key.id, context->rank);
    }
    dd_status status = dd_map_insert(&engine->contexts, &context->node, err);
    if (status != DD_OK) {
        return status;
    }
    engine_clear_closed(engine, &context->key);
    dd_list_push_back(&engine->context_list, &context->link);
    for (int i = 0; i < context->nranks; i++) {
        context->ranks[i].peer->refs++;
    }
    return DD_OK;
}

dd_status
dd_context_open(dd_engine *engine, uint64_t id, int rank, int nranks, dd_peer *const *peers,
                const dd_context_handler *handler, dd_context **context, dd_error *err)
{
    dd_status status = dd_engine_check_fork(engine, err);
    if (status != DD_OK) {
        return status;
    }
    dd_context *self = context_create(engine, id, rank, nranks, peers);
    if (self == NULL) {
        return dd_error_no_memory(err, sizeof *self + (size_t)nranks * sizeof self->ranks[0]);
    }
    self->handler = *handler;
    dd_engine_lock(engine);
    status = open_locked(self, err);
    if (status == DD_OK) {
        dd_engine_acquire(engine);
        *context = self;
        for (int i = 0; i < nranks; i++) {
            held *entry;
            while ((entry = peer_pop_early(peers[i], &self->key)) != NULL) {
                engine_deliver(entry);
            }
        }
        for (int i = 0; i < nranks; i++) {
            if (peers[i]->state == PEER_LOST) {
                context_on_peer_lost(self, peers[i]);
            }
        }
    }
    dd_engine_unlock(engine);
    if (status != DD_OK) {
        dd_mem_free(self);
    }
    return status;
}

/* ---- closing */

static void
close_locked(dd_context *context)
{
    dd_engine *engine = context->engine;
    /* Notify the owners of ended messages now, while the context still exists. */
    engine_notify_done(engine);
    dd_map_remove(&engine->contexts, &context->node);
    dd_list_remove(&context->link);
    engine_note_closed(engine, &context->key);
    context_release_all_held(context);
    for (int rank = 0; rank < context->nranks; rank++) {
        context_send_control(context, rank, DD_FRAME_GOODBYE, (dd_bytes){0});
        dd_peer *peer = context->ranks[rank].peer;
        for (int i = 0; i < peer->nlanes; i++) {
            if (peer->lanes[i]->cached == context) {
                peer->lanes[i]->cached = NULL;
            }
        }
    }
}

static bool
is_flushed(void *ctx)
{
    const dd_context *context = ctx;
    bool is_all = true;
    for (int rank = 0; rank < context->nranks; rank++) {
        is_all = is_all && !peer_has_queued(context->ranks[rank].peer);
    }
    return is_all;
}

void
dd_context_close(dd_context *context, const dd_wait *wait)
{
    if (context == NULL) {
        return;
    }
    dd_engine *engine = context->engine;
    if (dd_engine_check_fork(engine, NULL) == DD_OK) {
        dd_engine_lock(engine);
        close_locked(context);
        dd_engine_unlock(engine);
        engine_flush(engine, is_flushed, context, wait);
    }
    for (int i = 0; i < context->nranks; i++) {
        dd_peer_release(context->ranks[i].peer);
    }
    dd_blob_fini(&context->abort);
    dd_mem_free(context);
    dd_engine_release(engine);
}
