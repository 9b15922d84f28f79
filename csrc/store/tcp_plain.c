#include "store/tcp_client_internal.h"

#include "core/mem.h"
#include "core/thread.h"

#define MAX_IDLE_SIDES 8

/* ---- the main link */

/* Takes the main link, which may be closed. */
static dd_status
acquire_main(tcp_store *store, const dd_wait *wait, dd_error *err)
{
    dd_status status = DD_OK;
    pthread_mutex_lock(&store->mu);
    while (store->is_busy && status == DD_OK) {
        dd_cond_wait_slice(&store->cond, &store->mu, wait);
        if (!store->is_busy) {
            break;
        }
        pthread_mutex_unlock(&store->mu);
        status = dd_wait_check(wait, err);
        if (status == DD_OK && dd_wait_is_over(wait)) {
            status = dd_error_set(err, DD_NETWORK_TIMED_OUT,
                                  "timed out after %.3f s while another thread waits for the server's answer",
                                  dd_wait_elapsed_s(wait));
        }
        pthread_mutex_lock(&store->mu);
    }
    if (status == DD_OK) {
        status = tcp_store_check_dead_locked(store, err);
    }
    store->is_busy = store->is_busy || status == DD_OK;
    pthread_mutex_unlock(&store->mu);
    return status;
}

static void
release_main(tcp_store *store, dd_status status, const dd_error *err)
{
    pthread_mutex_lock(&store->mu);
    store->is_busy = false;
    if (status == DD_NETWORK && store->link.fd < 0) {
        tcp_store_note_dead_locked(store, err);
    }
    pthread_cond_signal(&store->cond);
    pthread_mutex_unlock(&store->mu);
}

void
tcp_plain_begin(tcp_call *call)
{
    tcp_store *store = call->operation->store;
    dd_error *err = call->operation->err;
    call->writer.status = acquire_main(store, &call->answer_wait, err);
    if (call->writer.status != DD_OK) {
        return;
    }
    call->link = &store->link;
    if (call->link->fd < 0) {
        call->writer.status = tcp_link_open(call->link, &store->target, &call->answer_wait, err);
    }
}

/* ---- side links */

static void
destroy_side(tcp_link *link)
{
    tcp_link_fini(link, false);
    dd_mem_free(link);
}

static dd_status
create_side(tcp_store *store, tcp_link **out, const dd_wait *wait, dd_error *err)
{
    tcp_link *link = dd_mem_zalloc(sizeof *link);
    if (link == NULL) {
        return dd_error_no_memory(err, sizeof *link);
    }
    tcp_link_init(link);
    dd_status status = tcp_link_open(link, &store->target, wait, err);
    if (status != DD_OK) {
        destroy_side(link);
        return status;
    }
    *out = link;
    return DD_OK;
}

/* A link for one call that may have to wait: an idle one, or a new one. */
static dd_status
acquire_side(tcp_store *store, tcp_link **out, const dd_wait *wait, dd_error *err)
{
    tcp_link *idle = NULL;
    pthread_mutex_lock(&store->mu);
    dd_status status = tcp_store_check_dead_locked(store, err);
    if (status == DD_OK && store->nidle > 0) {
        idle = DD_CONTAINER_OF(store->idle_sides.next, tcp_link, list);
        dd_list_remove(&idle->list);
        store->nidle--;
    }
    pthread_mutex_unlock(&store->mu);
    if (status == DD_OK && idle == NULL) {
        return create_side(store, out, wait, err);
    }
    *out = idle;
    return status;
}

static void
release_side(tcp_store *store, tcp_link *link)
{
    bool is_kept = false;
    if (link->fd >= 0) {
        pthread_mutex_lock(&store->mu);
        is_kept = store->nidle < MAX_IDLE_SIDES;
        if (is_kept) {
            dd_list_push_back(&store->idle_sides, &link->list);
            store->nidle++;
        }
        pthread_mutex_unlock(&store->mu);
    }
    if (!is_kept) {
        destroy_side(link);
    }
}

void
tcp_plain_close(tcp_store *store)
{
    while (!dd_list_is_empty(&store->idle_sides)) {
        tcp_link *link = DD_CONTAINER_OF(store->idle_sides.next, tcp_link, list);
        dd_list_remove(&link->list);
        destroy_side(link);
    }
}

/* Asks over the main link: then the server has done all that was sent over it before. */
static dd_status
ping_main(const tcp_operation *operation, bool is_needed)
{
    tcp_call call;
    tcp_call_begin(&call, operation, DD_TCP_PING);
    dd_status status = call.writer.status;
    if (status == DD_OK && (is_needed || call.link->nunanswered > 0)) {
        status = tcp_call_ping(&call);
    }
    return tcp_plain_end(&call, status);
}

void
tcp_plain_begin_aside(tcp_call *call)
{
    call->is_aside = true;
    call->writer.status = ping_main(call->operation, false);
    if (call->writer.status == DD_OK) {
        call->writer.status =
            acquire_side(call->operation->store, &call->link, &call->answer_wait, call->operation->err);
    }
}

/* ---- ending */

/* PyTorch's servers close the connection on an operation that they do not know: PyTorch's plain backend has
 * no queues, and older releases neither list nor barrier. So such an operation goes over a side link, and
 * when that is lost while the main one is well, the server is not gone but ignorant. */
static dd_status
explain_if_unknown(const tcp_call *call, dd_status status)
{
    const tcp_operation *operation = call->operation;
    dd_error error;
    tcp_operation other = {operation->store, operation->what, operation->wait, &error};
    bool may_be_unknown = status == DD_NETWORK && call->is_aside && call->link != NULL;
    if (!may_be_unknown || ping_main(&other, true) != DD_OK) {
        return status;
    }
    return dd_error_set(operation->err, DD_NOT_SUPPORTED, "the server does not know this operation");
}

dd_status
tcp_plain_end(tcp_call *call, dd_status status)
{
    status = explain_if_unknown(call, status);
    if (call->link != NULL && call->is_aside) {
        release_side(call->operation->store, call->link);
    } else if (call->link != NULL) {
        release_main(call->operation->store, status, call->operation->err);
    }
    call->link = NULL;
    dd_blob_fini(&call->request);
    return status;
}
