#include "store/tcp_store.h"

#include "core/log.h"
#include "core/mem.h"
#include "core/thread.h"
#include "store/tcp_link.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A request that the server answers at once is given this long, whatever the caller's deadline: a caller who asks with a
 * time-out of 0 still wants the answer. */
#define ANSWER_NS (1 * DD_NS_PER_S)
#define MAX_IDLE_SIDES 8
#define MAX_KEYS_NAMED 64

typedef struct tcp_store {
    dd_store head;
    /* const after init */
    char *host;
    dd_blob secret;
    dd_tcp_server *server; /* owned reference, or NULL */
    char where[96];        /* "TCPStore at host:port", for messages */
    tcp_target target;     /* const once the first link is open */

    pthread_mutex_t mu;
    pthread_cond_t cond; /* signalled when main_link becomes free */
    /* guarded by mu */
    bool is_main_busy;
    dd_list idle_sides;
    unsigned nidle;
    dd_error dead; /* not OK: the server is gone, and why */

    /* whoever set is_main_busy */
    tcp_link main_link;
    bool is_ringless; /* a ring was tried and did not work */
} tcp_store;

static tcp_store *
from_head(dd_store *head)
{
    return DD_CONTAINER_OF(head, tcp_store, head);
}

/* --- calls --------------------------------------------------------------------------------------------------- */

/* One operation under way: the link it holds and what it says of itself when it fails. */
typedef struct call {
    tcp_store *store;
    const char *what; /* "get" */
    const dd_wait *wait;
    dd_wait answer_wait; /* for requests that are answered at once */
    dd_error *err;
    tcp_link *link;
    bool is_main;
    dd_tcp_op op;
    dd_tcp_writer writer;
} call;

static dd_status
check_dead_locked(const tcp_store *store, dd_error *err)
{
    if (store->dead.code == DD_OK) {
        return DD_OK;
    }
    return dd_error_set(err, store->dead.code, "the server is gone since an earlier call: %s",
                        store->dead.message);
}

/* Takes the main link, opened. */
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

/* Opens the main link, with a ring where the server is on this host. Caller holds the main link. */
static dd_status
open_main(tcp_store *store, const dd_wait *wait, dd_error *err)
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

/* A request whose answer did not come in time is still owed one; only a new connection starts clean. */
static void
close_if_late(tcp_link *link, dd_status status)
{
    if (status == DD_NETWORK_TIMED_OUT || status == DD_INTERRUPTED) {
        tcp_link_close(link);
    }
}

/* Ends the call: gives the link back and says in the error who failed. Returns status. */
static dd_status
call_end(call *c, dd_status status)
{
    tcp_store *store = c->store;
    if (c->is_main) {
        close_if_late(c->link, status);
        release_main(store, status, c->err);
    }
    if (status != DD_OK && status != DD_INTERRUPTED && status != DD_TIMED_OUT && status != DD_QUEUE_EMPTY) {
        dd_error_prepend(c->err, "%s on %s", c->what, store->where);
    }
    return status;
}

static dd_wait
long_enough_for_an_answer(const dd_wait *wait)
{
    dd_wait longer = *wait;
    int64_t least_ns = dd_clock_now_ns() + ANSWER_NS;
    if (longer.deadline_ns < least_ns) {
        longer.deadline_ns = least_ns;
    }
    return longer;
}

static void
call_begin_request(call *c, dd_tcp_op op)
{
    c->op = op;
    c->writer = tcp_link_begin(c->link, op, c->err);
}

/* Starts a call on the main link. */
static dd_status
call_begin(call *c, dd_store *head, const char *what, dd_tcp_op op, const dd_wait *wait, dd_error *err)
{
    tcp_store *store = from_head(head);
    *c = (call){.store = store, .what = what, .wait = wait, .err = err};
    c->answer_wait = long_enough_for_an_answer(wait);
    dd_status status = acquire_main(store, &c->answer_wait, err);
    if (status == DD_OK) {
        c->is_main = true;
        c->link = &store->main_link;
        if (c->link->fd < 0) {
            status = open_main(store, &c->answer_wait, err);
        }
    }
    if (status != DD_OK) {
        return call_end(c, status);
    }
    call_begin_request(c, op);
    return DD_OK;
}

static bool
is_extended(const call *c)
{
    return c->store->target.is_extended;
}

/* The limits of an extended server are checked here, where the error can name the argument; of another server nothing
 * is known. */
static void
check_limit(call *c, uint64_t size, uint64_t limit, const char *what)
{
    if (is_extended(c) && size > limit && c->writer.status == DD_OK) {
        c->writer.status =
            dd_error_set(c->err, DD_INVALID_ARGUMENT,
                         "%s of %" PRIu64 " is over the server's limit of %" PRIu64, what, size, limit);
    }
}

static void
write_key(call *c, dd_bytes key)
{
    check_limit(c, (uint64_t)key.len + 1, c->store->target.limits.max_key_bytes, "key length");
    dd_tcp_write_user_key(&c->writer, key);
}

static void
write_value(call *c, dd_bytes value)
{
    check_limit(c, value.len, c->store->target.limits.max_value_bytes, "value length");
    dd_tcp_write_bytes(&c->writer, value);
}

static void
write_count(call *c, size_t count)
{
    check_limit(c, count, c->store->target.limits.max_keys, "number of keys");
    dd_tcp_write_u64(&c->writer, count);
}

static void
write_keys(call *c, const dd_bytes *keys, size_t nkeys)
{
    write_count(c, nkeys);
    for (size_t i = 0; i < nkeys; i++) {
        write_key(c, keys[i]);
    }
}

static dd_status
call_send(call *c)
{
    check_limit(c, c->link->out.len, c->store->target.limits.max_request_bytes, "request length");
    if (c->writer.status != DD_OK) {
        return c->writer.status;
    }
    return tcp_link_send(c->link, &c->answer_wait, c->err);
}

/* Sends the request and receives its answer, of which the pattern comes `repeats` times. */
static dd_status
call_ask_many(call *c, uint64_t repeats, dd_tcp_reader *reader)
{
    dd_status status = call_send(c);
    if (status == DD_OK) {
        status = tcp_link_receive(c->link, c->op, repeats, reader, &c->answer_wait, c->err);
    }
    return status;
}

static dd_status
call_ask(call *c, dd_tcp_reader *reader)
{
    return call_ask_many(c, 1, reader);
}

static dd_status
copy_value(call *c, dd_tcp_reader *reader, dd_blob *value)
{
    return dd_blob_assign(value, dd_tcp_read_bytes(reader), c->err);
}

/* --- side links ---------------------------------------------------------------------------------------------- */

/* A link for one call that may have to wait: an idle one, or a new one. */
static dd_status
acquire_side(tcp_store *store, tcp_link **out, const dd_wait *wait, dd_error *err)
{
    tcp_link *link = NULL;
    pthread_mutex_lock(&store->mu);
    dd_status status = check_dead_locked(store, err);
    if (status == DD_OK && store->nidle > 0) {
        link = DD_CONTAINER_OF(store->idle_sides.next, tcp_link, list);
        dd_list_remove(&link->list);
        store->nidle--;
    }
    pthread_mutex_unlock(&store->mu);
    if (status == DD_OK && link == NULL) {
        link = dd_mem_zalloc(sizeof *link);
        if (link == NULL) {
            return dd_error_no_memory(err, sizeof *link);
        }
        tcp_link_init(link);
        status = tcp_link_open(link, &store->target, wait, err);
        if (status != DD_OK) {
            tcp_link_fini(link, false);
            dd_mem_free(link);
        }
    }
    if (status == DD_OK) {
        *out = link;
    }
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
        tcp_link_fini(link, false);
        dd_mem_free(link);
    }
}

/* Makes sure that the server has done all that was sent over the main link without an answer. */
static dd_status
fence(dd_store *head, const char *what, const dd_wait *wait, dd_error *err)
{
    call c;
    dd_status status = call_begin(&c, head, what, DD_TCP_PING, wait, err);
    if (status != DD_OK) {
        return status;
    }
    if (c.link->nunanswered > 0) {
        dd_tcp_reader reader;
        dd_tcp_write_u32(&c.writer, 0);
        status = call_ask(&c, &reader);
    }
    return call_end(&c, status);
}

/* Starts a call on a side link; the main link has been asked before. */
static dd_status
side_begin(call *c, dd_store *head, const char *what, dd_tcp_op op, const dd_wait *wait, dd_error *err)
{
    *c = (call){.store = from_head(head), .what = what, .wait = wait, .err = err};
    c->answer_wait = long_enough_for_an_answer(wait);
    dd_status status = acquire_side(c->store, &c->link, &c->answer_wait, err);
    if (status != DD_OK) {
        return call_end(c, status);
    }
    call_begin_request(c, op);
    return DD_OK;
}

static dd_status
side_end(call *c, dd_status status)
{
    close_if_late(c->link, status);
    release_side(c->store, c->link);
    return call_end(c, status);
}

/* Calls off a waiting request of an extended link. The server answers it all the same, perhaps with what was waited for:
 * DD_OK then, and the reader has the answer. */
static dd_status
cancel(call *c, dd_tcp_reader *reader, dd_error *err)
{
    dd_wait patience = dd_wait_after(ANSWER_NS);
    dd_tcp_writer writer = tcp_link_begin(c->link, DD_TCP_CANCEL_WAIT, err);
    dd_status status = writer.status;
    if (status == DD_OK) {
        status = tcp_link_send(c->link, &patience, err);
    }
    if (status == DD_OK) {
        status = tcp_link_receive(c->link, c->op, 1, reader, &patience, err);
    }
    if (status != DD_OK) {
        tcp_link_close(c->link);
    }
    return status;
}

/* Sends a request that may wait and waits for its answer, until the caller's own deadline. At the deadline or on an
 * interrupt the request is called off, and *is_answered tells whether the answer had come by then: the status is DD_TIMED_OUT
 * or DD_INTERRUPTED either way. */
static dd_status
call_wait(call *c, dd_tcp_reader *reader, bool *is_answered)
{
    *is_answered = false;
    dd_status status = call_send(c);
    if (status != DD_OK) {
        return status;
    }
    status = tcp_link_receive(c->link, c->op, 1, reader, c->wait, c->err);
    bool is_late = status == DD_NETWORK_TIMED_OUT || status == DD_INTERRUPTED;
    if (!is_late || c->link->fd < 0) {
        return status;
    }
    if (!is_extended(c)) {
        tcp_link_close(c->link);
    } else {
        *is_answered = cancel(c, reader, NULL) == DD_OK;
    }
    return status == DD_INTERRUPTED ? status : DD_TIMED_OUT;
}

/* --- simple operations --------------------------------------------------------------------------------------- */

static dd_status
tcp_set(dd_store *head, dd_bytes key, dd_bytes value, const dd_wait *wait, dd_error *err)
{
    call c;
    dd_status status = call_begin(&c, head, "set", DD_TCP_SET, wait, err);
    if (status != DD_OK) {
        return status;
    }
    write_key(&c, key);
    write_value(&c, value);
    return call_end(&c, call_send(&c));
}

static dd_status
tcp_append(dd_store *head, dd_bytes key, dd_bytes value, const dd_wait *wait, dd_error *err)
{
    call c;
    dd_status status = call_begin(&c, head, "append", DD_TCP_APPEND, wait, err);
    if (status != DD_OK) {
        return status;
    }
    write_key(&c, key);
    write_value(&c, value);
    return call_end(&c, call_send(&c));
}

static dd_status
tcp_multi_set(dd_store *head, const dd_bytes *keys, const dd_bytes *values, size_t nkeys, const dd_wait *wait,
              dd_error *err)
{
    call c;
    dd_status status = call_begin(&c, head, "multi_set", DD_TCP_MULTI_SET, wait, err);
    if (status != DD_OK) {
        return status;
    }
    write_count(&c, nkeys);
    for (size_t i = 0; i < nkeys; i++) {
        write_key(&c, keys[i]);
        write_value(&c, values[i]);
    }
    return call_end(&c, call_send(&c));
}

static dd_status
tcp_add(dd_store *head, dd_bytes key, int64_t amount, int64_t *sum, const dd_wait *wait, dd_error *err)
{
    call c;
    dd_status status = call_begin(&c, head, "add", DD_TCP_ADD, wait, err);
    if (status != DD_OK) {
        return status;
    }
    write_key(&c, key);
    dd_tcp_write_u64(&c.writer, (uint64_t)amount);
    dd_tcp_reader reader;
    status = call_ask(&c, &reader);
    if (status == DD_OK) {
        *sum = dd_tcp_read_i64(&reader);
    }
    return call_end(&c, status);
}

static dd_status
tcp_compare_set(dd_store *head, dd_bytes key, dd_bytes expected, dd_bytes desired, dd_blob *value,
                const dd_wait *wait, dd_error *err)
{
    call c;
    dd_status status = call_begin(&c, head, "compare_set", DD_TCP_COMPARE_SET, wait, err);
    if (status != DD_OK) {
        return status;
    }
    write_key(&c, key);
    write_value(&c, expected);
    write_value(&c, desired);
    dd_tcp_reader reader;
    status = call_ask(&c, &reader);
    if (status == DD_OK) {
        status = copy_value(&c, &reader, value);
    }
    return call_end(&c, status);
}

static dd_status
tcp_delete_key(dd_store *head, dd_bytes key, bool *is_deleted, const dd_wait *wait, dd_error *err)
{
    call c;
    dd_status status = call_begin(&c, head, "delete_key", DD_TCP_DELETE_KEY, wait, err);
    if (status != DD_OK) {
        return status;
    }
    write_key(&c, key);
    dd_tcp_reader reader;
    status = call_ask(&c, &reader);
    if (status == DD_OK) {
        *is_deleted = dd_tcp_read_i64(&reader) > 0;
    }
    return call_end(&c, status);
}

static dd_status
tcp_num_keys(dd_store *head, int64_t *count, const dd_wait *wait, dd_error *err)
{
    call c;
    dd_status status = call_begin(&c, head, "num_keys", DD_TCP_NUM_KEYS, wait, err);
    if (status != DD_OK) {
        return status;
    }
    dd_tcp_reader reader;
    status = call_ask(&c, &reader);
    if (status == DD_OK) {
        *count = dd_tcp_read_i64(&reader);
    }
    return call_end(&c, status);
}

/* CHECK within a call that goes on with another request on the same link. */
static dd_status
ask_check(call *c, const dd_bytes *keys, size_t nkeys, bool *is_ready)
{
    write_keys(c, keys, nkeys);
    dd_tcp_reader reader;
    dd_status status = call_ask(c, &reader);
    if (status == DD_OK) {
        *is_ready = dd_tcp_read_u8(&reader) == DD_TCP_READY;
    }
    return status;
}

static dd_status
tcp_check(dd_store *head, const dd_bytes *keys, size_t nkeys, bool *is_ready, const dd_wait *wait,
          dd_error *err)
{
    call c;
    dd_status status = call_begin(&c, head, "check", DD_TCP_CHECK, wait, err);
    if (status != DD_OK) {
        return status;
    }
    return call_end(&c, ask_check(&c, keys, nkeys, is_ready));
}

/* --- values that may have to be waited for ------------------------------------------------------------------- */

/* A list of one value or none. */
static dd_status
take_maybe(call *c, dd_tcp_reader *reader, dd_blob *value, bool *is_found)
{
    *is_found = dd_tcp_read_count(reader) > 0;
    return *is_found ? copy_value(c, reader, value) : DD_OK;
}

static dd_status
ask_try_get(call *c, dd_bytes key, dd_blob *value, bool *is_found)
{
    write_key(c, key);
    dd_tcp_reader reader;
    dd_status status = call_ask(c, &reader);
    return status == DD_OK ? take_maybe(c, &reader, value, is_found) : status;
}

/* PyTorch's protocol answers a GET of a missing key as if it were empty, so it is asked for first. */
static dd_status
ask_try_get_plain(call *c, dd_bytes key, dd_blob *value, bool *is_found)
{
    dd_status status = ask_check(c, &key, 1, is_found);
    if (status != DD_OK || !*is_found) {
        return status;
    }
    call_begin_request(c, DD_TCP_GET);
    write_key(c, key);
    dd_tcp_reader reader;
    status = call_ask(c, &reader);
    return status == DD_OK ? copy_value(c, &reader, value) : status;
}

static dd_status
try_get(dd_store *head, const char *what, dd_bytes key, dd_blob *value, bool *is_found, const dd_wait *wait,
        dd_error *err)
{
    bool is_plain = !from_head(head)->target.is_extended;
    call c;
    dd_status status = call_begin(&c, head, what, is_plain ? DD_TCP_CHECK : DD_TCP_TRY_GET, wait, err);
    if (status != DD_OK) {
        return status;
    }
    status = is_plain ? ask_try_get_plain(&c, key, value, is_found) : ask_try_get(&c, key, value, is_found);
    return call_end(&c, status);
}

static dd_status
tcp_try_get(dd_store *head, dd_bytes key, dd_blob *value, bool *is_found, const dd_wait *wait, dd_error *err)
{
    return try_get(head, "try_get", key, value, is_found, wait, err);
}

/* The keys that a time-out names, as many as there is room for. */
typedef struct missing_keys {
    dd_bytes keys[MAX_KEYS_NAMED];
    size_t count;
} missing_keys;

static void
note_if_missing(missing_keys *missing, dd_bytes key, bool is_there)
{
    if (!is_there && missing->count < MAX_KEYS_NAMED) {
        missing->keys[missing->count++] = key;
    }
}

/* All in one request, where the server knows how. */
static dd_status
find_missing_at_once(dd_store *head, const dd_bytes *keys, size_t nkeys, missing_keys *missing,
                     const dd_wait *wait)
{
    call c;
    dd_status status = call_begin(&c, head, "check", DD_TCP_CHECK_EACH, wait, NULL);
    if (status != DD_OK) {
        return status;
    }
    write_keys(&c, keys, nkeys);
    dd_tcp_reader reader;
    status = call_ask(&c, &reader);
    if (status == DD_OK) {
        dd_bytes flags = dd_tcp_read_bytes(&reader);
        for (size_t i = 0; i < nkeys; i++) {
            note_if_missing(missing, keys[i], i < flags.len && flags.data[i] != 0);
        }
    }
    return call_end(&c, status);
}

static dd_status
find_missing_one_by_one(dd_store *head, const dd_bytes *keys, size_t nkeys, missing_keys *missing,
                        const dd_wait *wait)
{
    dd_status status = DD_OK;
    for (size_t i = 0; i < nkeys && missing->count < MAX_KEYS_NAMED && status == DD_OK; i++) {
        bool is_there = false;
        status = tcp_check(head, &keys[i], 1, &is_there, wait, NULL);
        note_if_missing(missing, keys[i], is_there);
    }
    return status;
}

static dd_status
missing_error(dd_store *head, const char *what, const dd_bytes *keys, size_t nkeys, const dd_wait *wait,
              dd_error *err)
{
    dd_wait patience = dd_wait_after(ANSWER_NS);
    missing_keys missing = {.count = 0};
    dd_status status = from_head(head)->target.is_extended
                           ? find_missing_at_once(head, keys, nkeys, &missing, &patience)
                           : find_missing_one_by_one(head, keys, nkeys, &missing, &patience);
    if (status != DD_OK || missing.count == 0) {
        /* The server does not answer any more, or they have come since: then all that can be said is what was asked. */
        return dd_store_error_missing(err, what, from_head(head)->where, keys, nkeys, nkeys, wait);
    }
    return dd_store_error_missing(err, what, from_head(head)->where, missing.keys, missing.count, nkeys,
                                  wait);
}

/* Waits on a side link until the keys are there. */
static dd_status
side_wait(dd_store *head, const char *what, const dd_bytes *keys, size_t nkeys, const dd_wait *wait,
          dd_error *err)
{
    call c;
    dd_status status = side_begin(&c, head, what, DD_TCP_WAIT, wait, err);
    if (status != DD_OK) {
        return status;
    }
    write_keys(&c, keys, nkeys);
    dd_tcp_reader reader;
    bool is_answered;
    status = call_wait(&c, &reader, &is_answered);
    if (status == DD_TIMED_OUT && is_answered && dd_tcp_read_u8(&reader) == DD_TCP_STOP_WAITING) {
        status = DD_OK;
    }
    status = side_end(&c, status);
    return status == DD_TIMED_OUT ? missing_error(head, what, keys, nkeys, wait, err) : status;
}

/* The same for one value, which comes with the answer. */
static dd_status
side_wait_get(dd_store *head, dd_bytes key, dd_blob *value, const dd_wait *wait, dd_error *err)
{
    call c;
    dd_status status = side_begin(&c, head, "get", DD_TCP_WAIT_GET, wait, err);
    if (status != DD_OK) {
        return status;
    }
    write_key(&c, key);
    dd_tcp_reader reader;
    bool is_answered;
    bool is_found = false;
    status = call_wait(&c, &reader, &is_answered);
    if (status == DD_OK || (status == DD_TIMED_OUT && is_answered)) {
        dd_status taken = take_maybe(&c, &reader, value, &is_found);
        status = is_found || taken != DD_OK ? taken : DD_TIMED_OUT;
    }
    status = side_end(&c, status);
    return status == DD_TIMED_OUT ? missing_error(head, "get", &key, 1, wait, err) : status;
}

static dd_status
tcp_wait(dd_store *head, const dd_bytes *keys, size_t nkeys, const dd_wait *wait, dd_error *err)
{
    bool is_ready = false;
    dd_status status = tcp_check(head, keys, nkeys, &is_ready, wait, err);
    if (status != DD_OK || is_ready) {
        return status;
    }
    if (dd_wait_is_over(wait)) {
        return missing_error(head, "wait", keys, nkeys, wait, err);
    }
    return side_wait(head, "wait", keys, nkeys, wait, err);
}

/* A key that is deleted between the wait and the get is waited for again. */
static dd_status
wait_and_get_plain(dd_store *head, dd_bytes key, dd_blob *value, const dd_wait *wait, dd_error *err)
{
    for (;;) {
        dd_status status = side_wait(head, "get", &key, 1, wait, err);
        bool is_found = false;
        if (status == DD_OK) {
            status = try_get(head, "get", key, value, &is_found, wait, err);
        }
        if (status != DD_OK || is_found) {
            return status;
        }
    }
}

static dd_status
tcp_get(dd_store *head, dd_bytes key, dd_blob *value, const dd_wait *wait, dd_error *err)
{
    bool is_found = false;
    dd_status status = try_get(head, "get", key, value, &is_found, wait, err);
    if (status != DD_OK || is_found) {
        return status;
    }
    if (dd_wait_is_over(wait)) {
        return missing_error(head, "get", &key, 1, wait, err);
    }
    if (from_head(head)->target.is_extended) {
        return side_wait_get(head, key, value, wait, err);
    }
    return wait_and_get_plain(head, key, value, wait, err);
}

static dd_status
take_values(call *c, dd_tcp_reader *reader, size_t count, dd_blob_list *values)
{
    dd_status status = dd_blob_list_init(values, count, c->err);
    for (size_t i = 0; i < count && status == DD_OK; i++) {
        status = copy_value(c, reader, &values->items[i]);
    }
    if (status != DD_OK) {
        dd_blob_list_fini(values);
    }
    return status;
}

static dd_status
tcp_multi_get(dd_store *head, const dd_bytes *keys, size_t nkeys, dd_blob_list *values, const dd_wait *wait,
              dd_error *err)
{
    dd_status status = tcp_wait(head, keys, nkeys, wait, err);
    if (status != DD_OK) {
        return status;
    }
    call c;
    status = call_begin(&c, head, "multi_get", DD_TCP_MULTI_GET, wait, err);
    if (status != DD_OK) {
        return status;
    }
    write_keys(&c, keys, nkeys);
    dd_tcp_reader reader;
    status = call_ask_many(&c, nkeys, &reader);
    if (status == DD_OK) {
        status = take_values(&c, &reader, nkeys, values);
    }
    return call_end(&c, status);
}

/* --- operations that only newer servers know ----------------------------------------------------------------- */

/* PyTorch's servers close the connection on an operation that they do not know: PyTorch's plain backend has no queues, and
 * older releases neither list nor barrier. So such an operation goes over a side link, and when that is lost while the main
 * one is well, the server is not gone but ignorant. */
static dd_status
modern_begin(call *c, dd_store *head, const char *what, dd_tcp_op op, const dd_wait *wait, dd_error *err)
{
    if (from_head(head)->target.is_extended) {
        return call_begin(c, head, what, op, wait, err);
    }
    dd_status status = fence(head, what, wait, err);
    return status == DD_OK ? side_begin(c, head, what, op, wait, err) : status;
}

static dd_status
explain_if_unknown(call *c, dd_status status)
{
    dd_store *head = &c->store->head;
    if (status != DD_NETWORK || c->store->target.is_extended) {
        return status;
    }
    call ping;
    dd_error error;
    dd_status alive = call_begin(&ping, head, c->what, DD_TCP_PING, c->wait, &error);
    if (alive == DD_OK) {
        dd_tcp_reader reader;
        dd_tcp_write_u32(&ping.writer, 0);
        alive = call_end(&ping, call_ask(&ping, &reader));
    }
    return alive == DD_OK
               ? dd_error_set(c->err, DD_NOT_SUPPORTED, "%s: the server at %s does not know this operation",
                              c->what, c->store->where)
               : status;
}

static dd_status
modern_end(call *c, dd_status status)
{
    return c->is_main ? call_end(c, status) : explain_if_unknown(c, side_end(c, status));
}

static dd_status
tcp_queue_push(dd_store *head, dd_bytes key, dd_bytes value, const dd_wait *wait, dd_error *err)
{
    call c;
    dd_status status = modern_begin(&c, head, "queue_push", DD_TCP_QUEUE_PUSH, wait, err);
    if (status != DD_OK) {
        return status;
    }
    write_key(&c, key);
    write_value(&c, value);
    status = call_send(&c);
    if (status == DD_OK && !c.is_main) {
        /* Nothing else would tell whether the server knows queues. */
        dd_tcp_reader reader;
        call_begin_request(&c, DD_TCP_PING);
        dd_tcp_write_u32(&c.writer, 0);
        status = call_ask(&c, &reader);
    }
    return modern_end(&c, status);
}

static dd_status
try_pop(dd_store *head, dd_bytes key, dd_blob *value, bool *is_found, const dd_wait *wait, dd_error *err)
{
    call c;
    dd_status status = modern_begin(&c, head, "queue_pop", DD_TCP_QUEUE_POP, wait, err);
    if (status != DD_OK) {
        return status;
    }
    write_key(&c, key);
    dd_tcp_reader reader;
    status = call_ask(&c, &reader);
    if (status == DD_OK) {
        status = take_maybe(&c, &reader, value, is_found);
    }
    return modern_end(&c, status);
}

/* The item that came while the caller was on his way out goes back, to the end of the queue: nothing is lost. */
static void
give_item_back(dd_store *head, dd_bytes key, dd_tcp_reader *reader)
{
    if (dd_tcp_read_count(reader) > 0) {
        dd_wait patience = dd_wait_after(ANSWER_NS);
        dd_error error;
        if (tcp_queue_push(head, key, dd_tcp_read_bytes(reader), &patience, &error) != DD_OK) {
            DD_LOG(DD_LOG_INFO, "store client: an item of a queue is lost: %s", error.message);
        }
    }
}

static dd_status
side_wait_pop(dd_store *head, dd_bytes key, dd_blob *value, const dd_wait *wait, dd_error *err)
{
    call c;
    dd_status status = side_begin(&c, head, "queue_pop", DD_TCP_WAIT_POP, wait, err);
    if (status != DD_OK) {
        return status;
    }
    write_key(&c, key);
    dd_tcp_reader reader;
    bool is_answered;
    bool is_found = false;
    status = call_wait(&c, &reader, &is_answered);
    if (status == DD_INTERRUPTED && is_answered) {
        give_item_back(head, key, &reader);
    } else if (status == DD_OK || (status == DD_TIMED_OUT && is_answered)) {
        dd_status taken = take_maybe(&c, &reader, value, &is_found);
        status = is_found || taken != DD_OK ? taken : DD_TIMED_OUT;
    }
    status = side_end(&c, status);
    return status == DD_TIMED_OUT ? missing_error(head, "queue_pop", &key, 1, wait, err) : status;
}

/* PyTorch's way: wait for the queue to have something, then try to be the first to take it. */
static dd_status
wait_and_pop_plain(dd_store *head, dd_bytes key, dd_blob *value, const dd_wait *wait, dd_error *err)
{
    for (;;) {
        dd_status status = side_wait(head, "queue_pop", &key, 1, wait, err);
        bool is_found = false;
        if (status == DD_OK) {
            status = try_pop(head, key, value, &is_found, wait, err);
        }
        if (status != DD_OK || is_found) {
            return status;
        }
    }
}

static dd_status
tcp_queue_pop(dd_store *head, dd_bytes key, bool is_blocking, dd_blob *value, const dd_wait *wait,
              dd_error *err)
{
    bool is_found = false;
    dd_status status = try_pop(head, key, value, &is_found, wait, err);
    if (status != DD_OK || is_found) {
        return status;
    }
    if (!is_blocking) {
        return dd_error_set(err, DD_QUEUE_EMPTY, "queue is empty");
    }
    if (dd_wait_is_over(wait)) {
        return missing_error(head, "queue_pop", &key, 1, wait, err);
    }
    return from_head(head)->target.is_extended ? side_wait_pop(head, key, value, wait, err)
                                               : wait_and_pop_plain(head, key, value, wait, err);
}

static dd_status
tcp_queue_len(dd_store *head, dd_bytes key, int64_t *count, const dd_wait *wait, dd_error *err)
{
    call c;
    dd_status status = modern_begin(&c, head, "queue_len", DD_TCP_QUEUE_LEN, wait, err);
    if (status != DD_OK) {
        return status;
    }
    write_key(&c, key);
    dd_tcp_reader reader;
    status = call_ask(&c, &reader);
    if (status == DD_OK) {
        *count = dd_tcp_read_i64(&reader);
    }
    return modern_end(&c, status);
}

/* The keys of users begin with "/"; others, as the join key, are not shown. */
static dd_status
take_user_keys(call *c, dd_tcp_reader *reader, dd_blob_list *keys)
{
    size_t count = (size_t)dd_tcp_read_count(reader);
    dd_status status = dd_blob_list_init(keys, count, c->err);
    size_t nkept = 0;
    for (size_t i = 0; i < count && status == DD_OK; i++) {
        dd_bytes key = dd_tcp_read_bytes(reader);
        if (key.len > 0 && key.data[0] == '/') {
            status = dd_blob_assign(&keys->items[nkept++], dd_bytes_of(key.data + 1, key.len - 1), c->err);
        }
    }
    if (status != DD_OK) {
        dd_blob_list_fini(keys);
        return status;
    }
    keys->count = nkept;
    return DD_OK;
}

static dd_status
tcp_list_keys(dd_store *head, dd_blob_list *keys, const dd_wait *wait, dd_error *err)
{
    call c;
    dd_status status = modern_begin(&c, head, "list_keys", DD_TCP_LIST_KEYS, wait, err);
    if (status != DD_OK) {
        return status;
    }
    dd_tcp_reader reader;
    status = call_ask(&c, &reader);
    if (status == DD_OK) {
        status = take_user_keys(&c, &reader, keys);
    }
    return modern_end(&c, status);
}

/* The number of those who have come, as the server stores it. */
static bool
is_complete(dd_bytes count, int64_t world_size)
{
    int64_t ncome = 0;
    for (size_t i = 0; i < count.len && i < 18 && count.data[i] >= '0' && count.data[i] <= '9'; i++) {
        ncome = ncome * 10 + (count.data[i] - '0');
    }
    return ncome >= world_size;
}

/* A deadline that was over before the answer could come says nothing of the barrier: its count does. */
static dd_status
settle_late_barrier(dd_store *head, dd_bytes key, int64_t world_size, const dd_wait *wait, dd_error *err)
{
    dd_wait patience = dd_wait_after(ANSWER_NS);
    dd_blob count = {0};
    bool is_found = false;
    char key_text[160];
    dd_bytes_print(key, key_text, sizeof key_text);
    (void)tcp_try_get(head, key, &count, &is_found, &patience, NULL);
    if (is_found && is_complete(dd_blob_view(&count), world_size)) {
        dd_blob_fini(&count);
        return DD_OK;
    }
    dd_status status = dd_error_set(
        err, DD_TIMED_OUT, "barrier timed out after %.3f s on %s, key: %s: %.*s of %" PRId64 " have come",
        dd_wait_elapsed_s(wait), from_head(head)->where, key_text, is_found ? (int)count.len : 1,
        is_found ? (const char *)count.data : "?", world_size);
    dd_blob_fini(&count);
    return status;
}

static dd_status
tcp_barrier(dd_store *head, dd_bytes key, int64_t world_size, const dd_wait *wait, dd_error *err)
{
    call c;
    dd_status status = fence(head, "barrier", wait, err);
    if (status == DD_OK) {
        status = side_begin(&c, head, "barrier", DD_TCP_BARRIER, wait, err);
    }
    if (status != DD_OK) {
        return status;
    }
    write_key(&c, key);
    dd_tcp_write_u64(&c.writer, (uint64_t)world_size);
    dd_tcp_reader reader;
    bool is_answered;
    status = call_wait(&c, &reader, &is_answered);
    if (status == DD_TIMED_OUT && is_answered && dd_tcp_read_u8(&reader) == DD_TCP_STOP_WAITING) {
        status = DD_OK;
    }
    status = explain_if_unknown(&c, side_end(&c, status));
    return status == DD_TIMED_OUT ? settle_late_barrier(head, key, world_size, wait, err) : status;
}

/* --- life ---------------------------------------------------------------------------------------------------- */

static dd_status
tcp_clone(dd_store *head, dd_store **other, const dd_wait *wait, dd_error *err)
{
    tcp_store *store = from_head(head);
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
free_sides(tcp_store *store, bool is_forked)
{
    while (!dd_list_is_empty(&store->idle_sides)) {
        tcp_link *link = DD_CONTAINER_OF(store->idle_sides.next, tcp_link, list);
        dd_list_remove(&link->list);
        tcp_link_fini(link, is_forked);
        dd_mem_free(link);
    }
}

static void
tcp_destroy(dd_store *head)
{
    tcp_store *store = from_head(head);
    bool is_forked = dd_store_is_forked(head);
    if (!is_forked) {
        /* In a forked child the list may be half changed: it is left alone. */
        free_sides(store, is_forked);
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

static dd_status
connect_store(tcp_store *store, const dd_wait *wait, dd_error *err)
{
    /* A server on all addresses is reached on this machine's own. */
    const char *host = dd_addr_is_wildcard(store->host) ? "localhost" : store->host;
    dd_status status = dd_addr_resolve(host, store->target.port, &store->target.addrs, wait, err);
    return status == DD_OK ? open_main(store, wait, err) : status;
}

/* Adds one to the join key, which is not a user's key. */
static dd_status
join(tcp_store *store, const dd_wait *wait, dd_error *err)
{
    call c;
    dd_status status = call_begin(&c, &store->head, "joining", DD_TCP_ADD, wait, err);
    if (status != DD_OK) {
        return status;
    }
    dd_tcp_write_bytes(&c.writer, dd_bytes_of_string(DD_TCP_JOIN_KEY));
    dd_tcp_write_u64(&c.writer, 1);
    dd_tcp_reader reader;
    return call_end(&c, call_ask(&c, &reader));
}

dd_status
dd_tcp_store_open(dd_store **out, const dd_tcp_store_options *options, const dd_wait *wait, dd_error *err)
{
    tcp_store *store = NULL;
    dd_status status = create_store(&store, options, err);
    if (status != DD_OK) {
        return status;
    }
    status = connect_store(store, wait, err);
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
    return from_head(store)->host;
}

uint16_t
dd_tcp_store_port(dd_store *store)
{
    return from_head(store)->target.port;
}

bool
dd_tcp_store_is_server(dd_store *store)
{
    return from_head(store)->server != NULL;
}

bool
dd_tcp_store_is_extended(dd_store *store)
{
    return from_head(store)->target.is_extended;
}

dd_tcp_server *
dd_tcp_store_server(dd_store *store)
{
    return from_head(store)->server;
}
