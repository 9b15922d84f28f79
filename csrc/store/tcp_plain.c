#include "store/tcp_client_internal.h"

#include "core/lock.h"
#include "core/mem.h"

#define MAX_IDLE_LINKS 8

dd_status
tcp_store_create_link(tcp_store *store, tcp_link **out, const dd_wait *wait, dd_error *err)
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

void
tcp_plain_begin(tcp_call *call)
{
    tcp_store *store = call->operation->store;
    dd_lock_take(&store->mu);
    call->writer.status = tcp_store_check_dead_locked(store, call->operation->err);
    if (call->writer.status == DD_OK && store->nidle > 0) {
        call->link = DD_CONTAINER_OF(store->idle.next, tcp_link, list);
        dd_list_remove(&call->link->list);
        store->nidle--;
    }
    dd_lock_release(&store->mu);
    if (call->writer.status == DD_OK && call->link == NULL) {
        call->writer.status =
            tcp_store_create_link(store, &call->link, &call->answer_wait, call->operation->err);
    }
}

void
tcp_plain_release(tcp_store *store, tcp_link *link)
{
    dd_lock_take(&store->mu);
    bool is_kept = link->fd >= 0 && store->nidle < MAX_IDLE_LINKS;
    if (is_kept) {
        dd_list_insert_before(store->idle.next, &link->list);
        store->nidle++;
    }
    dd_lock_release(&store->mu);
    if (!is_kept) {
        tcp_link_destroy(link, false);
    }
}

/* PyTorch's servers close the connection on an operation that they do not know: PyTorch's plain backend
 * has no queues, and older releases neither list nor barrier. A server that can be reached still is not
 * gone but ignorant. */
static bool
is_ignorant(const tcp_call *call)
{
    tcp_store *store = call->operation->store;
    tcp_link *other;
    dd_error error;
    dd_wait patience = dd_wait_at_most(&call->answer_wait, TCP_ANSWER_NS / 4);
    if (call->op < DD_TCP_QUEUE_PUSH || tcp_store_create_link(store, &other, &patience, &error) != DD_OK) {
        return false;
    }
    tcp_plain_release(store, other);
    return true;
}

dd_status
tcp_plain_end(tcp_call *call, dd_status status)
{
    tcp_store *store = call->operation->store;
    if (call->link == NULL) {
        return status;
    }
    if (status == DD_NETWORK && is_ignorant(call)) {
        status =
            dd_error_set(call->operation->err, DD_NOT_SUPPORTED, "the server does not know this operation");
    } else if (status == DD_NETWORK) {
        dd_lock_take(&store->mu);
        tcp_store_note_dead_locked(store, call->operation->err);
        dd_lock_release(&store->mu);
    }
    tcp_plain_release(store, call->link);
    call->link = NULL;
    return status;
}

void
tcp_plain_close(tcp_store *store)
{
    while (!dd_list_is_empty(&store->idle)) {
        tcp_link *link = DD_CONTAINER_OF(store->idle.next, tcp_link, list);
        dd_list_remove(&link->list);
        tcp_link_destroy(link, false);
    }
}
