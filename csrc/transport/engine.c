#include "transport/engine_internal.h"

#include "core/assert.h"
#include "core/fork.h"
#include "core/lock.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/system.h"

#include <errno.h>
#include <string.h>

#define CLOSE_NS (2 * DD_NS_PER_S)

/* Copy the options and the data that they point to, which the engine then owns. */
static dd_status
copy_options(dd_engine *engine, const dd_connect_options *options, dd_error *err)
{
    const char *ifnames = options->ifnames != NULL ? options->ifnames : "";
    const char *congestion = options->congestion != NULL ? options->congestion : "";
    size_t ifnames_nbytes = strlen(ifnames) + 1;
    dd_status status = dd_blob_append(&engine->option_text, ifnames, ifnames_nbytes, err);
    if (status == DD_OK) {
        status = dd_blob_append(&engine->option_text, congestion, strlen(congestion) + 1, err);
    }
    if (status == DD_OK) {
        status = dd_blob_assign(&engine->secret, options->secret, err);
    }
    if (status != DD_OK) {
        return status;
    }
    engine->options = *options;
    dd_spin_set_policy(&engine->spin, options->waiting);
    engine->options.ifnames = (const char *)engine->option_text.data;
    engine->options.congestion = (const char *)engine->option_text.data + ifnames_nbytes;
    engine->options.secret = dd_blob_view(&engine->secret);
    if (engine->options.nlanes > DD_LANES_MAX) {
        engine->options.nlanes = DD_LANES_MAX;
    }
    return DD_OK;
}

static void
init_fields(dd_engine *engine)
{
    atomic_init(&engine->refs, 1);
    engine->generation = dd_fork_generation();
    engine->epoll_fd = -1;
    engine->wake_fd = -1;
    engine->bell_fd = -1;
    dd_lock_init(&engine->mu, DD_LOCK_ENGINE);
    dd_lock_init(&engine->opening_mu, DD_LOCK_ENGINE_OPENING);
    dd_map_init(&engine->peers);
    dd_map_init(&engine->contexts);
    dd_list_init(&engine->context_list);
    dd_list_init(&engine->shm_lanes);
    dd_list_init(&engine->tcp_lanes);
    dd_list_init(&engine->breaking);
    dd_list_init(&engine->done);
    dd_list_init(&engine->tasks);
    dd_timer_set_init(&engine->timers);
    engine_drive_init(engine);
}

static dd_status
open_epoll(dd_engine *engine, dd_error *err)
{
    engine->epoll_fd = dd_fork_register(dd_sys_epoll_create1(EPOLL_CLOEXEC));
    engine->wake_fd = dd_fork_register(dd_sys_eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    if (engine->epoll_fd < 0 || engine->wake_fd < 0 ||
        dd_sys_epoll_ctl(engine->epoll_fd, EPOLL_CTL_ADD, engine->wake_fd, &event) != 0) {
        return dd_error_set_errno(err, DD_SYSTEM, errno, "cannot create the engine's descriptors");
    }
    return DD_OK;
}

static void
free_pools(dd_engine *engine)
{
    while (engine->free_out != NULL) {
        out_frame *out = engine->free_out;
        engine->free_out = (out_frame *)out->link.next;
        dd_mem_free(out);
    }
    while (engine->free_held != NULL) {
        held *entry = engine->free_held;
        engine->free_held = (held *)entry->link.next;
        dd_mem_free(entry);
    }
}

/* Free an engine that may be partly created. In a forked child, descriptors are already closed. */
static void
engine_destroy(dd_engine *engine)
{
    dd_map_node *node = dd_map_next(&engine->peers, NULL);
    while (node != NULL) {
        dd_map_node *next = dd_map_next(&engine->peers, node);
        peer_destroy(DD_CONTAINER_OF(node, dd_peer, node));
        node = next;
    }
    dd_map_fini(&engine->peers);
    dd_map_fini(&engine->contexts);
    free_pools(engine);
    if (!engine_is_forked(engine)) {
        dd_fork_close(engine->wake_fd);
        dd_fork_close(engine->bell_fd);
        dd_fork_close(engine->epoll_fd);
    }
    dd_blob_fini(&engine->option_text);
    dd_blob_fini(&engine->secret);
    dd_mem_free(engine);
}

dd_status
dd_engine_open(const dd_connect_options *options, dd_engine **engine, dd_error *err)
{
    dd_engine *self = dd_mem_zalloc(sizeof *self);
    if (self == NULL) {
        return dd_error_no_memory(err, sizeof *self);
    }
    init_fields(self);
    dd_status status = copy_options(self, options, err);
    if (status == DD_OK) {
        status = open_epoll(self, err);
    }
    if (status == DD_OK) {
        status = dd_endpoint_init(&self->endpoint, err);
    }
    if (status == DD_OK) {
        status = peer_create(self, &self->endpoint.uid, &self->self, err);
    }
    if (status != DD_OK) {
        engine_destroy(self);
        return status;
    }
    self->self->is_self = true;
    self->self->state = PEER_CONNECTED;
    self->self->endpoint = self->endpoint;
    self->self->is_endpoint_known = true;
    *engine = self;
    return DD_OK;
}

dd_status
dd_engine_open_like(const dd_engine *engine, dd_engine **other, dd_error *err)
{
    return dd_engine_open(&engine->options, other, err);
}

dd_status
dd_engine_self(dd_engine *engine, dd_peer **peer, dd_error *err)
{
    dd_status status = dd_engine_check_fork(engine, err);
    if (status == DD_OK) {
        *peer = dd_peer_acquire(engine->self);
    }
    return status;
}

static void
send_bye(dd_engine *engine)
{
    for (dd_map_node *node = dd_map_next(&engine->peers, NULL); node != NULL;
         node = dd_map_next(&engine->peers, node)) {
        dd_peer *peer = DD_CONTAINER_OF(node, dd_peer, node);
        if (peer->state == PEER_CONNECTED && !peer->is_self) {
            dd_frame frame = {.type = DD_FRAME_BYE};
            peer_post_frame(peer, &frame, (dd_bytes){0});
        }
    }
}

/* Return true if all data that was posted has arrived at the hosts of the peers. */
static bool
has_arrived(void *ctx)
{
    const dd_engine *engine = ctx;
    const dd_list *lists[] = {&engine->shm_lanes, &engine->tcp_lanes};
    for (int i = 0; i < 2; i++) {
        for (const dd_list *node = lists[i]->next; node != lists[i]; node = node->next) {
            const dd_lane *lane = DD_CONTAINER_OF(node, dd_lane, link);
            dd_link *stream = lane->stream;
            if (!lane->is_output_dead && (lane_has_output(lane) || !stream->ops->has_left(stream, true))) {
                return false;
            }
        }
    }
    return true;
}

void
dd_engine_release(dd_engine *engine)
{
    if (engine == NULL || atomic_fetch_sub_explicit(&engine->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    if (!engine_is_forked(engine)) {
        dd_engine_lock(engine);
        engine->is_closing = true;
        send_bye(engine);
        dd_engine_unlock(engine);
        dd_wait patience = dd_wait_after(CLOSE_NS);
        engine_flush(engine, has_arrived, engine, &patience);
        engine_stop_background(engine);
    } else if (dd_engine_is_torn(engine)) {
        return;
    }
    if (engine->connector != NULL) {
        dd_connector_close(engine->connector);
    }
    engine_destroy(engine);
}

/* Open the doorbell and the connector. The caller must hold opening_mu. */
static dd_status
open_connector(dd_engine *engine, const dd_addr *first, dd_error *err)
{
    dd_connect_handler handler = {
        .ctx = engine,
        .may_accept = engine_may_accept,
        .on_accept_failed = engine_on_accept_failed,
        .on_accepted = engine_on_accepted,
        .wants_dial = engine_wants_dial,
        .on_dialled = engine_on_dialled,
        .on_dial_failed = engine_on_dial_failed,
    };
    dd_status status = engine_start_background(engine, err);
    if (status != DD_OK) {
        return status;
    }
    dd_connect_options options = engine->options;
    dd_error why;
    if (!options.is_shm_disabled && engine->bell_fd < 0 && engine_open_bell(engine, &why) != DD_OK) {
        DD_LOG(DD_LOG_INFO, "shared memory is not used: %s", why.message);
        options.is_shm_disabled = true;
    }
    dd_connector *connector = NULL;
    status = dd_connector_open(&options, &engine->endpoint, first, &handler, &engine->addrs, &connector, err);
    if (status != DD_OK) {
        return status;
    }
    dd_engine_lock(engine);
    engine->connector = connector;
    engine->self->endpoint = engine->endpoint;
    dd_engine_unlock(engine);
    return DD_OK;
}

/* Return true if a peer may still need to connect to this process over TCP. Peers with an unknown
 * endpoint do not count: a process with this process's endpoint is or was in a meeting with it. */
static bool
are_ports_needed_locked(const dd_engine *engine)
{
    for (dd_map_node *node = dd_map_next(&engine->peers, NULL); node != NULL;
         node = dd_map_next(&engine->peers, node)) {
        const dd_peer *peer = DD_CONTAINER_OF(node, dd_peer, node);
        bool needs_no_port =
            peer->is_self || peer->is_near || peer->state == PEER_LOST || dd_peer_has_shm_locked(peer);
        if (peer->is_endpoint_known && !needs_no_port) {
            return true;
        }
    }
    return false;
}

void
dd_engine_begin_meeting(dd_engine *engine)
{
    dd_lock_take(&engine->opening_mu);
    dd_engine_lock(engine);
    engine->nmeetings++;
    engine->has_begun_meeting = true;
    dd_engine_unlock(engine);
    dd_lock_release(&engine->opening_mu);
}

void
dd_engine_end_meeting(dd_engine *engine)
{
    dd_lock_take(&engine->opening_mu);
    dd_engine_lock(engine);
    dd_assert(engine->nmeetings > 0);
    bool is_last = --engine->nmeetings == 0;
    bool are_needed = are_ports_needed_locked(engine);
    dd_engine_unlock(engine);
    if (is_last && !are_needed && engine->connector != NULL) {
        dd_connector_close_ports(engine->connector);
    }
    dd_lock_release(&engine->opening_mu);
}

dd_status
dd_engine_endpoint(dd_engine *engine, const dd_addr *first, dd_blob *endpoint, dd_error *err)
{
    dd_status status = dd_engine_check_fork(engine, err);
    if (status != DD_OK) {
        return status;
    }
    dd_lock_take(&engine->opening_mu);
    status = engine->connector == NULL
                 ? open_connector(engine, first, err)
                 : dd_connector_open_ports(engine->connector, first, &engine->addrs, err);
    if (status == DD_OK) {
        status = dd_endpoint_encode(&engine->endpoint, &engine->addrs, endpoint, err);
    }
    dd_lock_release(&engine->opening_mu);
    return status;
}

static dd_status
find_or_create_peer_locked(dd_engine *engine, const dd_endpoint *endpoint, dd_bytes published, dd_peer **peer,
                           dd_error *err)
{
    dd_peer *found = engine_find_peer(engine, &endpoint->uid);
    if (found == NULL) {
        dd_status status = peer_create(engine, &endpoint->uid, &found, err);
        if (status != DD_OK) {
            return status;
        }
    }
    dd_status status = peer_replace(&found, err);
    if (status == DD_OK) {
        status = peer_set_endpoint(found, endpoint, published, err);
    }
    if (status != DD_OK) {
        peer_reap(found);
        return status;
    }
    if (found->refs++ == 0) {
        dd_engine_acquire(engine);
    }
    *peer = found;
    return DD_OK;
}

dd_status
dd_engine_peer(dd_engine *engine, dd_bytes endpoint, dd_peer **peer, dd_error *err)
{
    dd_status status = dd_engine_check_fork(engine, err);
    if (status != DD_OK) {
        return status;
    }
    dd_endpoint decoded;
    status = dd_endpoint_decode(endpoint, &decoded, NULL, err);
    if (status != DD_OK) {
        return status;
    }
    dd_engine_lock(engine);
    status = find_or_create_peer_locked(engine, &decoded, endpoint, peer, err);
    dd_engine_unlock(engine);
    return status;
}

dd_peer *
dd_peer_acquire(dd_peer *peer)
{
    dd_engine *engine = peer->engine;
    dd_engine_lock(engine);
    if (peer->refs++ == 0) {
        dd_engine_acquire(engine);
    }
    dd_engine_unlock(engine);
    return peer;
}

void
dd_peer_release(dd_peer *peer)
{
    if (peer == NULL) {
        return;
    }
    dd_engine *engine = peer->engine;
    if (engine_is_forked(engine)) {
        /* The state of the lock is unknown, but a forked child has one thread and needs no lock. */
        if (--peer->refs == 0) {
            dd_engine_release(engine);
        }
        return;
    }
    dd_engine_lock(engine);
    dd_assert(peer->refs > 0);
    bool is_last = --peer->refs == 0;
    if (is_last) {
        peer_reap(peer);
    }
    dd_engine_unlock(engine);
    if (is_last) {
        dd_engine_release(engine);
    }
}
