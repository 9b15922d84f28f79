#include "store/tcp_client_internal.h"

#include "core/mem.h"
#include "core/thread.h"

#include <stdio.h>
#include <string.h>

/* ---- operations that are one request */

/* A key and a value, without an answer. */
static dd_status
send_pair(const tcp_operation *operation, dd_tcp_op op, dd_bytes key, dd_bytes value)
{
    tcp_call call;
    tcp_call_begin(&call, operation, op);
    tcp_call_write_key(&call, key);
    tcp_call_write_value(&call, value);
    return tcp_call_end(&call, tcp_call_send(&call));
}

static dd_status
tcp_set(dd_store *head, dd_bytes key, dd_bytes value, const dd_wait *wait, dd_error *err)
{
    tcp_operation operation = {tcp_store_of(head), "set", wait, err};
    return send_pair(&operation, DD_TCP_SET, key, value);
}

static dd_status
tcp_append(dd_store *head, dd_bytes key, dd_bytes value, const dd_wait *wait, dd_error *err)
{
    tcp_operation operation = {tcp_store_of(head), "append", wait, err};
    return send_pair(&operation, DD_TCP_APPEND, key, value);
}

static dd_status
tcp_multi_set(dd_store *head, const dd_bytes *keys, const dd_bytes *values, size_t nkeys, const dd_wait *wait,
              dd_error *err)
{
    tcp_operation operation = {tcp_store_of(head), "multi_set", wait, err};
    tcp_call call;
    tcp_call_begin(&call, &operation, DD_TCP_MULTI_SET);
    tcp_call_write_count(&call, nkeys);
    for (size_t i = 0; i < nkeys; i++) {
        tcp_call_write_key(&call, keys[i]);
        tcp_call_write_value(&call, values[i]);
    }
    return tcp_call_end(&call, tcp_call_send(&call));
}

static dd_status
tcp_add(dd_store *head, dd_bytes key, int64_t amount, int64_t *sum, const dd_wait *wait, dd_error *err)
{
    tcp_operation operation = {tcp_store_of(head), "add", wait, err};
    tcp_call call;
    tcp_call_begin(&call, &operation, DD_TCP_ADD);
    tcp_call_write_key(&call, key);
    dd_tcp_write_u64(&call.writer, (uint64_t)amount);
    return tcp_call_end(&call, tcp_call_ask_number(&call, sum));
}

static dd_status
tcp_compare_set(dd_store *head, dd_bytes key, dd_bytes expected, dd_bytes desired, dd_blob *value,
                const dd_wait *wait, dd_error *err)
{
    tcp_operation operation = {tcp_store_of(head), "compare_set", wait, err};
    tcp_call call;
    tcp_call_begin(&call, &operation, DD_TCP_COMPARE_SET);
    tcp_call_write_key(&call, key);
    tcp_call_write_value(&call, expected);
    tcp_call_write_value(&call, desired);
    dd_tcp_reader reader;
    dd_status status = tcp_call_ask(&call, &reader);
    if (status == DD_OK) {
        status = tcp_call_take_value(&call, &reader, value);
    }
    return tcp_call_end(&call, status);
}

static dd_status
tcp_delete_key(dd_store *head, dd_bytes key, bool *is_deleted, const dd_wait *wait, dd_error *err)
{
    tcp_operation operation = {tcp_store_of(head), "delete_key", wait, err};
    tcp_call call;
    int64_t ndeleted = 0;
    tcp_call_begin(&call, &operation, DD_TCP_DELETE_KEY);
    tcp_call_write_key(&call, key);
    dd_status status = tcp_call_end(&call, tcp_call_ask_number(&call, &ndeleted));
    if (status == DD_OK) {
        *is_deleted = ndeleted > 0;
    }
    return status;
}

static dd_status
tcp_num_keys(dd_store *head, int64_t *count, const dd_wait *wait, dd_error *err)
{
    tcp_operation operation = {tcp_store_of(head), "num_keys", wait, err};
    tcp_call call;
    tcp_call_begin(&call, &operation, DD_TCP_NUM_KEYS);
    return tcp_call_end(&call, tcp_call_ask_number(&call, count));
}

/* ---- life */

static dd_status
tcp_clone(dd_store *head, dd_store **other, const dd_wait *wait, dd_error *err)
{
    tcp_store *store = tcp_store_of(head);
    dd_tcp_store_options options = {
        .host = store->host,
        .port = store->target.port,
        .timeout_ns = dd_store_head_get_timeout_ns(head),
        .world_size = -1,
        .secret = dd_blob_view(&store->secret),
        .server = store->server,
    };
    return dd_tcp_store_open(other, &options, wait, err);
}

static void
tcp_destroy(dd_store *head)
{
    tcp_store *store = tcp_store_of(head);
    bool is_forked = dd_store_is_forked(head);
    if (!is_forked) {
        /* In a forked child the list may be half changed: it is left alone. */
        tcp_store_close_sides(store);
        pthread_mutex_destroy(&store->mu);
        pthread_cond_destroy(&store->cond);
    }
    tcp_link_fini(&store->main_link, is_forked);
    dd_tcp_server_release(store->server);
    dd_blob_fini(&store->secret);
    dd_mem_free(store->host);
    dd_mem_free(store);
}

static const dd_store_ops tcp_store_ops = {
    .kind = "TCPStore",
    .set = tcp_set,
    .get = tcp_get,
    .try_get = tcp_try_get,
    .add = tcp_add,
    .compare_set = tcp_compare_set,
    .wait = tcp_wait,
    .check = tcp_check,
    .delete_key = tcp_delete_key,
    .num_keys = tcp_num_keys,
    .append = tcp_append,
    .multi_get = tcp_multi_get,
    .multi_set = tcp_multi_set,
    .queue_push = tcp_queue_push,
    .queue_pop = tcp_queue_pop,
    .queue_len = tcp_queue_len,
    .list_keys = tcp_list_keys,
    .barrier = tcp_barrier,
    .meet = tcp_meet,
    .clone = tcp_clone,
    .has_extended_api = dd_store_extended_api_yes,
    .get_timeout_ns = dd_store_head_get_timeout_ns,
    .set_timeout_ns = dd_store_head_set_timeout_ns,
    .destroy = tcp_destroy,
};

static dd_status
create_store(tcp_store **out, const dd_tcp_store_options *options, dd_error *err)
{
    size_t host_size = strlen(options->host) + 1;
    tcp_store *store = dd_mem_zalloc(sizeof *store);
    char *host = dd_mem_alloc(host_size);
    if (store == NULL || host == NULL) {
        dd_mem_free(store);
        dd_mem_free(host);
        return dd_error_no_memory(err, sizeof *store + host_size);
    }
    memcpy(host, options->host, host_size);
    dd_store_init(&store->head, &tcp_store_ops, options->timeout_ns);
    store->host = host;
    store->target.host = host;
    store->target.port = options->server != NULL ? dd_tcp_server_port(options->server) : options->port;
    snprintf(store->where, sizeof store->where, "TCPStore at %.64s:%u", host, store->target.port);
    dd_mutex_init(&store->mu);
    dd_cond_init(&store->cond);
    dd_list_init(&store->idle_sides);
    tcp_link_init(&store->main_link);
    if (options->server != NULL) {
        store->server = dd_tcp_server_acquire(options->server);
    }
    dd_status status = dd_blob_assign(&store->secret, options->secret, err);
    if (status != DD_OK) {
        tcp_destroy(&store->head);
        return status;
    }
    store->target.secret = dd_blob_view(&store->secret);
    *out = store;
    return DD_OK;
}

/* Adds one to the join key, which is not a user's key. */
static dd_status
join(tcp_store *store, const dd_wait *wait, dd_error *err)
{
    tcp_operation operation = {store, "joining", wait, err};
    tcp_call call;
    int64_t njoined;
    tcp_call_begin(&call, &operation, DD_TCP_ADD);
    dd_tcp_write_bytes(&call.writer, dd_bytes_of_string(DD_TCP_JOIN_KEY));
    dd_tcp_write_u64(&call.writer, 1);
    return tcp_call_end(&call, tcp_call_ask_number(&call, &njoined));
}

dd_status
dd_tcp_store_open(dd_store **out, const dd_tcp_store_options *options, const dd_wait *wait, dd_error *err)
{
    tcp_store *store = NULL;
    dd_status status = create_store(&store, options, err);
    if (status != DD_OK) {
        return status;
    }
    status = tcp_store_open_main(store, wait, err);
    bool is_counted = options->world_size >= 0 && options->is_wait_for_workers;
    if (status == DD_OK && is_counted) {
        status = join(store, wait, err);
    }
    if (status == DD_OK && is_counted && store->server != NULL) {
        status = dd_tcp_server_wait_joined(store->server, options->world_size, wait, err);
    }
    if (status != DD_OK) {
        tcp_destroy(&store->head);
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

bool
dd_tcp_store_is_extended(dd_store *store)
{
    return tcp_store_of(store)->target.is_extended;
}

dd_tcp_server *
dd_tcp_store_server(dd_store *store)
{
    return tcp_store_of(store)->server;
}

/* The TCPStore under any prefixes; NULL: it is of another kind. */
static tcp_store *
find_tcp_store(dd_store *store)
{
    while (dd_prefix_store_is(store)) {
        store = dd_prefix_store_underlying(store);
    }
    return store->ops == &tcp_store_ops ? tcp_store_of(store) : NULL;
}

dd_addr
dd_tcp_store_own_addr(dd_store *store)
{
    const tcp_store *self = find_tcp_store(store);
    if (self == NULL) {
        return (dd_addr){.len = 0};
    }
    const tcp_target *target = &self->target;
    bool is_misleading = dd_addr_is_loopback(&target->own_addr) && !dd_addr_names_loopback(target->host);
    return is_misleading ? (dd_addr){.len = 0} : target->own_addr;
}

dd_status
dd_tcp_store_refused(dd_store *store, dd_blob *who, const dd_wait *wait, dd_error *err)
{
    tcp_store *self = find_tcp_store(store);
    dd_blob_clear(who, 0);
    if (self == NULL || !self->target.is_extended) {
        return DD_OK;
    }
    tcp_operation operation = {self, "asking who was refused", wait, err};
    tcp_call call;
    dd_tcp_reader reader;
    bool is_known = false;
    tcp_call_begin(&call, &operation, DD_TCP_TRY_GET);
    dd_tcp_write_bytes(&call.writer, dd_bytes_of_string(DD_TCP_REFUSED_KEY));
    dd_status status = tcp_call_ask(&call, &reader);
    if (status == DD_OK) {
        status = tcp_call_take_maybe(&call, &reader, who, &is_known);
    }
    return tcp_call_end(&call, status);
}
