#include "store/tcp_client_internal.h"

#include "core/mem.h"
#include "core/thread.h"

#include <inttypes.h>

#define MAX_IDLE_SIDES 8

/* ---- the main link */

static dd_status
check_dead_locked(const tcp_store *store, dd_error *err)
{
    if (store->dead.code == DD_OK) {
        return DD_OK;
    }
    return dd_error_set(err, store->dead.code, "the server is gone since an earlier call: %s",
                        store->dead.message);
}

/* Takes the main link, which may be closed. */
static dd_status
acquire_main(tcp_store *store, const dd_wait *wait, dd_error *err)
{
    dd_status status = DD_OK;
    pthread_mutex_lock(&store->mu);
    while (store->is_main_busy && status == DD_OK) {
        dd_cond_wait_slice(&store->cond, &store->mu, wait);
        if (!store->is_main_busy) {
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
        status = check_dead_locked(store, err);
    }
    store->is_main_busy = store->is_main_busy || status == DD_OK;
    pthread_mutex_unlock(&store->mu);
    return status;
}

/* A connection that was lost means that the server is gone, and the data with it: every later call fails at
 * once. */
static void
release_main(tcp_store *store, dd_status status, const dd_error *err)
{
    pthread_mutex_lock(&store->mu);
    store->is_main_busy = false;
    bool is_lost = status == DD_NETWORK && store->main_link.fd < 0;
    if (is_lost && store->dead.code == DD_OK) {
        (void)dd_error_set(&store->dead, DD_NETWORK, "%s",
                           err != NULL ? err->message : "the connection was lost");
    }
    pthread_cond_signal(&store->cond);
    pthread_mutex_unlock(&store->mu);
}

dd_status
tcp_store_open_main(tcp_store *store, const dd_wait *wait, dd_error *err)
{
    tcp_link *link = &store->main_link;
    dd_status status = tcp_link_open(link, &store->target, wait, err);
    if (status != DD_OK || !store->target.is_local || store->is_ringless) {
        return status;
    }
    tcp_link_add_ring(link, wait);
    if (link->fd >= 0) {
        return DD_OK;
    }
    store->is_ringless = true;
    return tcp_link_open(link, &store->target, wait, err);
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
    dd_status status = check_dead_locked(store, err);
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
tcp_store_close_sides(tcp_store *store)
{
    while (!dd_list_is_empty(&store->idle_sides)) {
        tcp_link *link = DD_CONTAINER_OF(store->idle_sides.next, tcp_link, list);
        dd_list_remove(&link->list);
        destroy_side(link);
    }
}

/* ---- a call's link */

static dd_wait
long_enough_for_an_answer(const dd_wait *wait)
{
    dd_wait longer = *wait;
    int64_t least_ns = dd_clock_now_ns() + TCP_ANSWER_NS;
    if (longer.deadline_ns < least_ns) {
        longer.deadline_ns = least_ns;
    }
    return longer;
}

static tcp_call
call_on(const tcp_operation *operation)
{
    return (tcp_call){.operation = operation, .writer = {.status = DD_OK, .err = operation->err}};
}

static dd_status
take_main(tcp_call *call)
{
    tcp_store *store = call->operation->store;
    dd_error *err = call->operation->err;
    call->answer_wait = long_enough_for_an_answer(call->operation->wait);
    dd_status status = acquire_main(store, &call->answer_wait, err);
    if (status != DD_OK) {
        return status;
    }
    call->link = &store->main_link;
    call->is_main = true;
    return call->link->fd < 0 ? tcp_store_open_main(store, &call->answer_wait, err) : DD_OK;
}

static dd_status
take_side(tcp_call *call)
{
    call->answer_wait = long_enough_for_an_answer(call->operation->wait);
    return acquire_side(call->operation->store, &call->link, &call->answer_wait, call->operation->err);
}

static void
give_back(tcp_call *call, dd_status status)
{
    if (call->link == NULL) {
        return;
    }
    if (status == DD_NETWORK_TIMED_OUT || status == DD_INTERRUPTED) {
        /* The answer is still to come; only a new connection starts clean. */
        tcp_link_close(call->link);
    }
    if (call->is_main) {
        release_main(call->operation->store, status, call->operation->err);
    } else {
        release_side(call->operation->store, call->link);
    }
    call->link = NULL;
    call->is_main = false;
}

/* ---- beginning */

void
tcp_call_next(tcp_call *call, dd_tcp_op op)
{
    call->op = op;
    if (call->writer.status == DD_OK) {
        call->writer = tcp_link_begin(call->link, op, call->operation->err);
    }
}

void
tcp_call_begin(tcp_call *call, const tcp_operation *operation, dd_tcp_op op)
{
    *call = call_on(operation);
    call->writer.status = take_main(call);
    tcp_call_next(call, op);
}

void
tcp_call_begin_side(tcp_call *call, const tcp_operation *operation, dd_tcp_op op)
{
    *call = call_on(operation);
    call->writer.status = take_side(call);
    tcp_call_next(call, op);
}

/* Makes sure that the server has done all that was sent over the main link without an answer. */
static dd_status
fence(const tcp_operation *operation)
{
    tcp_call call = call_on(operation);
    dd_status status = take_main(&call);
    if (status == DD_OK && call.link->nunanswered > 0) {
        status = tcp_call_ping(&call);
    }
    give_back(&call, status);
    return status;
}

void
tcp_call_begin_fenced(tcp_call *call, const tcp_operation *operation, dd_tcp_op op)
{
    *call = call_on(operation);
    call->is_fenced = true;
    call->writer.status = fence(operation);
    if (call->writer.status == DD_OK) {
        call->writer.status = take_side(call);
    }
    tcp_call_next(call, op);
}

void
tcp_call_begin_newer(tcp_call *call, const tcp_operation *operation, dd_tcp_op op)
{
    if (operation->store->target.is_extended) {
        tcp_call_begin(call, operation, op);
    } else {
        tcp_call_begin_fenced(call, operation, op);
    }
}

/* ---- the fields of a request */

static const dd_tcp_limits *
limits_of(const tcp_call *call)
{
    return &call->operation->store->target.limits;
}

bool
tcp_call_is_extended(const tcp_call *call)
{
    return call->operation->store->target.is_extended;
}

static void
check_limit(tcp_call *call, uint64_t size, uint64_t limit, const char *what)
{
    if (tcp_call_is_extended(call) && size > limit && call->writer.status == DD_OK) {
        call->writer.status =
            dd_error_set(call->operation->err, DD_INVALID_ARGUMENT,
                         "%s of %" PRIu64 " is over the server's limit of %" PRIu64, what, size, limit);
    }
}

void
tcp_call_write_key(tcp_call *call, dd_bytes key)
{
    check_limit(call, (uint64_t)key.len + 1, limits_of(call)->max_key_bytes, "key length");
    dd_tcp_write_user_key(&call->writer, key);
}

void
tcp_call_write_value(tcp_call *call, dd_bytes value)
{
    check_limit(call, value.len, limits_of(call)->max_value_bytes, "value length");
    dd_tcp_write_bytes(&call->writer, value);
}

void
tcp_call_write_count(tcp_call *call, size_t nkeys)
{
    check_limit(call, nkeys, limits_of(call)->max_keys, "number of keys");
    dd_tcp_write_u64(&call->writer, nkeys);
}

void
tcp_call_write_keys(tcp_call *call, const dd_bytes *keys, size_t nkeys)
{
    tcp_call_write_count(call, nkeys);
    for (size_t i = 0; i < nkeys; i++) {
        tcp_call_write_key(call, keys[i]);
    }
}

/* ---- sending and asking */

dd_status
tcp_call_send(tcp_call *call)
{
    if (call->writer.status == DD_OK) {
        check_limit(call, tcp_link_request_len(call->link), limits_of(call)->max_request_bytes,
                    "request length");
    }
    if (call->writer.status != DD_OK) {
        return call->writer.status;
    }
    return tcp_link_send(call->link, &call->answer_wait, call->operation->err);
}

dd_status
tcp_call_ask_many(tcp_call *call, uint64_t repeats, dd_tcp_reader *reader)
{
    dd_status status = tcp_call_send(call);
    if (status != DD_OK) {
        return status;
    }
    return tcp_link_receive(call->link, call->op, repeats, reader, &call->answer_wait, call->operation->err);
}

dd_status
tcp_call_ask(tcp_call *call, dd_tcp_reader *reader)
{
    return tcp_call_ask_many(call, 1, reader);
}

dd_status
tcp_call_ask_number(tcp_call *call, int64_t *number)
{
    dd_tcp_reader reader;
    dd_status status = tcp_call_ask(call, &reader);
    if (status == DD_OK) {
        *number = dd_tcp_read_i64(&reader);
    }
    return status;
}

dd_status
tcp_call_ask_maybe(tcp_call *call, dd_bytes key, dd_blob *value, bool *is_found)
{
    tcp_call_write_key(call, key);
    dd_tcp_reader reader;
    dd_status status = tcp_call_ask(call, &reader);
    return status == DD_OK ? tcp_call_take_maybe(call, &reader, value, is_found) : status;
}

dd_status
tcp_call_ping(tcp_call *call)
{
    dd_tcp_reader reader;
    tcp_call_next(call, DD_TCP_PING);
    dd_tcp_write_u32(&call->writer, 0);
    return tcp_call_ask(call, &reader);
}

/* Calls off a waiting request of an extended link and receives what the server answers to it. */
static dd_status
cancel(tcp_call *call, dd_tcp_reader *reader)
{
    dd_wait patience = dd_wait_after(TCP_ANSWER_NS);
    dd_tcp_writer writer = tcp_link_begin(call->link, DD_TCP_CANCEL_WAIT, NULL);
    dd_status status = writer.status;
    if (status == DD_OK) {
        status = tcp_link_send(call->link, &patience, NULL);
    }
    if (status == DD_OK) {
        status = tcp_link_receive(call->link, call->op, 1, reader, &patience, NULL);
    }
    return status;
}

dd_status
tcp_call_wait(tcp_call *call, dd_tcp_reader *reader)
{
    reader->at = NULL;
    dd_status status = tcp_call_send(call);
    if (status != DD_OK) {
        return status;
    }
    status = tcp_link_receive(call->link, call->op, 1, reader, call->operation->wait, call->operation->err);
    bool is_late = status == DD_NETWORK_TIMED_OUT || status == DD_INTERRUPTED;
    if (!is_late || call->link->fd < 0) {
        return status;
    }
    bool is_answered = tcp_call_is_extended(call) && cancel(call, reader) == DD_OK;
    if (!is_answered) {
        tcp_link_close(call->link);
        reader->at = NULL;
    }
    if (status == DD_INTERRUPTED) {
        return DD_INTERRUPTED;
    }
    return is_answered ? DD_OK : DD_TIMED_OUT;
}

dd_status
tcp_call_wait_to_stop(tcp_call *call)
{
    dd_tcp_reader reader;
    dd_status status = tcp_call_wait(call, &reader);
    bool is_called_off = status == DD_OK && dd_tcp_read_u8(&reader) != DD_TCP_STOP_WAITING;
    return is_called_off ? DD_TIMED_OUT : status;
}

/* ---- taking and ending */

dd_status
tcp_call_take_value(tcp_call *call, dd_tcp_reader *reader, dd_blob *value)
{
    return dd_blob_assign(value, dd_tcp_read_bytes(reader), call->operation->err);
}

dd_status
tcp_call_take_maybe(tcp_call *call, dd_tcp_reader *reader, dd_blob *value, bool *is_found)
{
    *is_found = dd_tcp_read_count(reader) > 0;
    return *is_found ? tcp_call_take_value(call, reader, value) : DD_OK;
}

dd_status
tcp_call_take_awaited(tcp_call *call, dd_tcp_reader *reader, dd_blob *value)
{
    bool is_found = false;
    dd_status status = tcp_call_take_maybe(call, reader, value, &is_found);
    return status == DD_OK && !is_found ? DD_TIMED_OUT : status;
}

static bool
is_main_well(const tcp_operation *operation)
{
    dd_error error;
    tcp_operation other = {operation->store, operation->what, operation->wait, &error};
    tcp_call call = call_on(&other);
    dd_status status = take_main(&call);
    if (status == DD_OK) {
        status = tcp_call_ping(&call);
    }
    give_back(&call, status);
    return status == DD_OK;
}

/* PyTorch's servers close the connection on an operation that they do not know: PyTorch's plain backend has
 * no queues, and older releases neither list nor barrier. So such an operation goes over a side link, and
 * when that is lost while the main one is well, the server is not gone but ignorant. */
static dd_status
explain_if_unknown(const tcp_call *call, dd_status status)
{
    bool may_be_unknown =
        status == DD_NETWORK && call->is_fenced && call->link != NULL && !tcp_call_is_extended(call);
    if (!may_be_unknown || !is_main_well(call->operation)) {
        return status;
    }
    return dd_error_set(call->operation->err, DD_NOT_SUPPORTED, "the server does not know this operation");
}

dd_status
tcp_call_end(tcp_call *call, dd_status status)
{
    const tcp_operation *operation = call->operation;
    status = explain_if_unknown(call, status);
    give_back(call, status);
    if (status != DD_OK && status != DD_INTERRUPTED && status != DD_TIMED_OUT && status != DD_QUEUE_EMPTY) {
        dd_error_prepend(operation->err, "%s on %s", operation->what, operation->store->where);
    }
    return status;
}
