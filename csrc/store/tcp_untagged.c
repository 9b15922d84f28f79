#include "store/tcp_client_internal.h"

#include "core/mem.h"

/* ---- lost servers */

dd_status
tcp_store_check_dead_locked(const tcp_store *store, dd_error *err)
{
    return store->dead.code == DD_OK
               ? DD_OK
               : dd_error_set(err, store->dead.code, "the server was lost in an earlier call: %s",
                              store->dead.message);
}

void
tcp_store_note_dead_locked(tcp_store *store, const dd_error *why)
{
    if (store->dead.code == DD_OK) {
        (void)dd_error_set(&store->dead, DD_NETWORK, "%s",
                           why != NULL ? why->message : "the connection was lost");
    }
}

/* ---- connections */

dd_status
tcp_untagged_create_link(tcp_store *store, tcp_link **out, const dd_wait *wait, dd_error *err)
{
    tcp_link *link = dd_mem_zalloc(sizeof *link);
    if (link == NULL) {
        return dd_error_no_memory(err, sizeof *link);
    }
    tcp_link_init(link);
    dd_status status = tcp_link_open(link, &store->target, wait, err);
    if (status != DD_OK) {
        tcp_link_destroy(link, false);
        return status;
    }
    *out = link;
    return DD_OK;
}

static dd_status
take_link(tcp_store *store, tcp_link **link, const dd_wait *wait, dd_error *err)
{
    dd_lock_take(&store->mu);
    dd_status status = tcp_store_check_dead_locked(store, err);
    *link = status == DD_OK && store->nidle > 0 ? store->idle[--store->nidle] : NULL;
    dd_lock_release(&store->mu);
    return status != DD_OK || *link != NULL ? status : tcp_untagged_create_link(store, link, wait, err);
}

void
tcp_untagged_release(tcp_store *store, tcp_link *link)
{
    dd_lock_take(&store->mu);
    bool is_cached = link->fd >= 0 && store->nidle < TCP_IDLE_MAX;
    if (is_cached) {
        store->idle[store->nidle++] = link;
    }
    dd_lock_release(&store->mu);
    if (!is_cached) {
        tcp_link_destroy(link, false);
    }
}

/* Return true if the server is reachable: then it closed the connection because it does not know
 * the operation. PyTorch's plain backend has no queues, and older releases have no list and no
 * barrier. */
static bool
is_op_unknown(tcp_store *store, dd_tcp_op op, const dd_wait *wait)
{
    tcp_link *peer_link;
    dd_error error;
    dd_wait patience = dd_wait_at_most(wait, TCP_ANSWER_NS / 4);
    if (op < DD_TCP_QUEUE_PUSH || tcp_untagged_create_link(store, &peer_link, &patience, &error) != DD_OK) {
        return false;
    }
    tcp_untagged_release(store, peer_link);
    return true;
}

/* Exchange a request and its reply. A PING's answer confirms a request that has no reply. */
dd_status
tcp_untagged_exchange(tcp_store *store, tcp_exchange *exchange, const dd_wait *wait, dd_error *err)
{
    tcp_link *link;
    dd_status status = take_link(store, &link, wait, err);
    if (status != DD_OK) {
        return status;
    }
    if (exchange->row->reply == NULL) {
        dd_tcp_writer writer;
        dd_tcp_writer_init(&writer, &exchange->request, err);
        dd_tcp_write(&writer, 'b', DD_TCP_PING);
        dd_tcp_write(&writer, 'u', 0);
        exchange->reply.op = DD_TCP_PING;
        status = writer.status;
    }
    if (status == DD_OK) {
        status = tcp_link_exchange(link, dd_blob_view(&exchange->request), &exchange->reply, wait, err);
    }
    exchange->answer = link->in;
    link->in = (dd_blob){0};
    if (status == DD_NETWORK && is_op_unknown(store, exchange->row->op, wait)) {
        status = dd_error_set(err, DD_NOT_SUPPORTED, "the store's server does not support this operation");
    } else if (status == DD_NETWORK) {
        dd_lock_take(&store->mu);
        tcp_store_note_dead_locked(store, err);
        dd_lock_release(&store->mu);
    }
    tcp_untagged_release(store, link);
    return status;
}
