#include "store/tcp_client_internal.h"

#include "core/lock.h"
#include "core/mem.h"
#include "core/thread.h"

#include <stdio.h>
#include <string.h>

static dd_status
tcp_clone(dd_store *head, dd_store **clone, const dd_wait *wait, dd_error *err)
{
    tcp_store *store = tcp_store_of(head);
    dd_tcp_store_options options = {
        .host = store->host,
        .port = store->target.port,
        .timeout_ns = dd_store_head_get_timeout_ns(head),
        .world_size = -1,
        .secret = dd_blob_view(&store->secret),
        .is_encryption_off = store->target.is_encryption_off,
        .server = store->server,
    };
    return dd_tcp_store_open(clone, &options, wait, err);
}

static void
tcp_store_destroy(dd_store *head)
{
    tcp_store *store = tcp_store_of(head);
    bool is_forked = dd_store_is_forked(head);
    if (!is_forked) {
        /* In a forked child this data may be half changed, so it is leaked. */
        while (store->nidle > 0) {
            tcp_link_destroy(store->idle[--store->nidle], false);
        }
        while (!dd_list_is_empty(&store->unanswered)) {
            tcp_tagged_free(DD_CONTAINER_OF(store->unanswered.next, tcp_exchange, unanswered));
        }
        dd_lock_fini(&store->mu);
        dd_cond_fini(&store->cond);
    }
    tcp_link_destroy(store->link, is_forked);
    dd_blob_fini(&store->backlog);
    dd_tcp_server_release(store->server);
    dd_blob_fini(&store->secret);
    dd_mem_free(store);
}

static const dd_store_ops tcp_store_ops = {
    .kind = "TCPStore",
    .run = tcp_run,
    .clone = tcp_clone,
    .has_extended_api = dd_store_extended_api_yes,
    .get_timeout_ns = dd_store_head_get_timeout_ns,
    .set_timeout_ns = dd_store_head_set_timeout_ns,
    .destroy = tcp_store_destroy,
};

static dd_status
create_store(tcp_store **out, const dd_tcp_store_options *options, dd_error *err)
{
    size_t host_size = strlen(options->host) + 1;
    tcp_store *store = dd_mem_zalloc(sizeof *store + host_size);
    if (store == NULL) {
        return dd_error_no_memory(err, sizeof *store + host_size);
    }
    memcpy(store->host, options->host, host_size);
    dd_store_init(&store->head, &tcp_store_ops, options->timeout_ns);
    store->target.host = store->host;
    store->target.port = options->server != NULL ? dd_tcp_server_port(options->server) : options->port;
    snprintf(store->where, sizeof store->where, "TCPStore at %.64s:%u", store->host, store->target.port);
    dd_lock_init(&store->mu, DD_LOCK_STORE_CLIENT);
    dd_cond_init(&store->cond);
    dd_list_init(&store->unanswered);
    if (options->server != NULL) {
        store->server = dd_tcp_server_acquire(options->server);
    }
    dd_status status = dd_blob_assign(&store->secret, options->secret, err);
    if (status != DD_OK) {
        tcp_store_destroy(&store->head);
        return status;
    }
    store->target.secret = dd_blob_view(&store->secret);
    store->target.is_encryption_off = options->is_encryption_off;
    *out = store;
    return DD_OK;
}

static dd_status
open_first_link(tcp_store *store, const dd_wait *wait, dd_error *err)
{
    tcp_link *link;
    dd_status status = tcp_untagged_create_link(store, &link, wait, err);
    if (status == DD_OK && store->target.is_extended) {
        store->link = link;
    } else if (status == DD_OK) {
        tcp_untagged_release(store, link);
    }
    return status;
}

/* Join the store: increment DD_TCP_JOIN_KEY, an internal key. */
static dd_status
join(tcp_store *store, const dd_wait *wait, dd_error *err)
{
    dd_bytes key = dd_bytes_of_string(DD_TCP_JOIN_KEY);
    dd_store_request request = {.op = DD_STORE_ADD, .keys = &key, .nkeys = 1, .number = 1};
    dd_store_result result = {0};
    return tcp_run_internal(store, &request, &result, "joining", wait, err);
}

dd_status
dd_tcp_store_open(dd_store **out, const dd_tcp_store_options *options, const dd_wait *wait, dd_error *err)
{
    tcp_store *store = NULL;
    dd_status status = create_store(&store, options, err);
    if (status != DD_OK) {
        return status;
    }
    status = open_first_link(store, wait, err);
    bool is_counted = options->world_size >= 0 && options->is_wait_for_workers;
    if (status == DD_OK && is_counted) {
        status = join(store, wait, err);
    }
    if (status == DD_OK && is_counted && store->server != NULL) {
        status = dd_tcp_server_wait_joined(store->server, options->world_size, wait, err);
    }
    if (status != DD_OK) {
        tcp_store_destroy(&store->head);
        return status;
    }
    *out = &store->head;
    return DD_OK;
}

const char *
dd_tcp_store_host(dd_store *store)
{
    return tcp_store_of(store)->host;
}

uint16_t
dd_tcp_store_port(dd_store *store)
{
    return tcp_store_of(store)->target.port;
}

bool
dd_tcp_store_is_server(dd_store *store)
{
    return tcp_store_of(store)->server != NULL;
}

/* Find the TCPStore below all prefixes. Return NULL if the store is of another kind. */
static tcp_store *
find_tcp_store(dd_store *store)
{
    dd_store *root = dd_prefix_store_root(store);
    return root->ops == &tcp_store_ops ? tcp_store_of(root) : NULL;
}

dd_bytes
dd_tcp_store_secret(dd_store *store)
{
    const tcp_store *self = find_tcp_store(store);
    return self != NULL ? dd_blob_view(&self->secret) : (dd_bytes){0};
}

dd_addr
dd_tcp_store_own_addr(dd_store *store)
{
    const tcp_store *self = find_tcp_store(store);
    if (self == NULL) {
        return (dd_addr){.len = 0};
    }
    const tcp_target *target = &self->target;
    bool is_loopback_client = dd_addr_is_loopback(&target->own_addr) && !dd_addr_names_loopback(target->host);
    return is_loopback_client ? (dd_addr){.len = 0} : target->own_addr;
}

/* Read an internal key of a dldist server. For any other store, the value is empty. */
static dd_status
read_server_key(dd_store *store, const char *name, const char *label, dd_blob *value, const dd_wait *wait,
                dd_error *err)
{
    tcp_store *self = find_tcp_store(store);
    dd_blob_clear(value, 0);
    if (self == NULL || !self->target.is_extended) {
        return DD_OK;
    }
    dd_bytes key = dd_bytes_of_string(name);
    dd_store_request request = {.op = DD_STORE_TRY_GET, .keys = &key, .nkeys = 1};
    dd_store_result result = {0};
    dd_status status = tcp_run_internal(self, &request, &result, label, wait, err);
    if (status == DD_OK) {
        dd_blob_fini(value);
        *value = result.value;
        return DD_OK;
    }
    dd_store_result_fini(&result);
    return status;
}

dd_status
dd_tcp_store_refused(dd_store *store, dd_blob *names, const dd_wait *wait, dd_error *err)
{
    return read_server_key(store, DD_TCP_REFUSED_KEY, "reading the refused clients", names, wait, err);
}

dd_status
dd_tcp_store_accept_error(dd_store *store, dd_blob *why, const dd_wait *wait, dd_error *err)
{
    return read_server_key(store, DD_TCP_ACCEPT_ERROR_KEY, "reading the server's accept errors", why, wait,
                           err);
}
