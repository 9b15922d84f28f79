/* What the files of the TCPStore client share: tcp_store.c (opening, closing, the operations that are one
 * request), tcp_call.c (a request and its answer: which link it goes over, and what becomes of the link),
 * tcp_waits.c (what may have to wait for a key) and tcp_newer.c (what only newer servers know). tcp_link.h is
 * one connection.
 *
 * An operation makes one call or several. A call is begun, given its fields, asked or sent, and ended:
 *
 *     tcp_operation add = {tcp_store_of(head), "add", wait, err};
 *     tcp_call call;
 *     int64_t sum;
 *     tcp_call_begin(&call, &add, DD_TCP_ADD);
 *     tcp_call_write_key(&call, key);
 *     dd_tcp_write_u64(&call.writer, 1);
 *     return tcp_call_end(&call, tcp_call_ask_number(&call, &sum));
 *
 * What fails before the request is sent, from the beginning on, sticks in the writer: sending it returns the
 * failure. */
#ifndef DD_STORE_TCP_CLIENT_INTERNAL_H
#define DD_STORE_TCP_CLIENT_INTERNAL_H

#include "core/list.h"
#include "store/tcp_link.h"
#include "store/tcp_store.h"

#include <pthread.h>

/* tcp_meet.c. The operation is that of dd_store_ops. */
dd_status tcp_meet(dd_store *head, const dd_meet_request *request, dd_meet_reply *reply, const dd_wait *wait,
                   dd_error *err) DD_MUST_CHECK;

/* A request that the server answers at once is given this long, whatever the caller's deadline: a caller who
 * asks with a time-out of 0 still wants the answer. */
#define TCP_ANSWER_NS (1 * DD_NS_PER_S)

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

static inline tcp_store *
tcp_store_of(dd_store *head)
{
    return DD_CONTAINER_OF(head, tcp_store, head);
}

/* What a user has asked for: the same for all the calls that it takes. */
typedef struct tcp_operation {
    tcp_store *store;
    const char *what; /* "get": for messages */
    const dd_wait *wait;
    dd_error *err;
} tcp_operation;

/* One request of an operation, and the link that it holds. */
typedef struct tcp_call {
    const tcp_operation *operation; /* borrowed */
    tcp_link *link;                 /* NULL: none could be had, or it is given back */
    bool is_main;
    bool is_fenced;
    dd_wait answer_wait; /* the operation's wait, at least TCP_ANSWER_NS long */
    dd_tcp_op op;
    dd_tcp_writer writer;
} tcp_call;

/* tcp_call.c: beginning. Whatever has been begun must be ended. */

/* Over the main link, behind all that was sent there before. */
void tcp_call_begin(tcp_call *call, const tcp_operation *operation, dd_tcp_op op);

/* Over a side link, for a request that may have to wait. The operation has had an answer over the main one
 * before: the server has then done all that was sent. */
void tcp_call_begin_side(tcp_call *call, const tcp_operation *operation, dd_tcp_op op);

/* The same without that condition: waits itself until the server has done all that was sent. A server that
 * hangs up on the request while the main link is well does not know it: the end says so. */
void tcp_call_begin_fenced(tcp_call *call, const tcp_operation *operation, dd_tcp_op op);

/* An operation that only newer servers know: over the main link to an extended one, else fenced. */
void tcp_call_begin_newer(tcp_call *call, const tcp_operation *operation, dd_tcp_op op);

/* Another request over the same link, after the answer to the one before. */
void tcp_call_next(tcp_call *call, dd_tcp_op op);

/* tcp_call.c: the fields of a request. What is over an extended server's limits fails here, where the error
 * can name it; of another server nothing is known. */

bool tcp_call_is_extended(const tcp_call *call);
void tcp_call_write_key(tcp_call *call, dd_bytes key);
void tcp_call_write_value(tcp_call *call, dd_bytes value);
void tcp_call_write_count(tcp_call *call, size_t nkeys);
void tcp_call_write_keys(tcp_call *call, const dd_bytes *keys, size_t nkeys); /* with their count */

/* tcp_call.c: sending and asking. The answer that a reader takes apart is valid until the next request. */

/* For a request that has no answer. */
dd_status tcp_call_send(tcp_call *call) DD_MUST_CHECK;
dd_status tcp_call_ask(tcp_call *call, dd_tcp_reader *reader) DD_MUST_CHECK;
/* The reply's pattern comes `repeats` times. */
dd_status tcp_call_ask_many(tcp_call *call, uint64_t repeats, dd_tcp_reader *reader) DD_MUST_CHECK;
/* For an answer that is a number. */
dd_status tcp_call_ask_number(tcp_call *call, int64_t *number) DD_MUST_CHECK;
/* Of the key: one value, if there is one. */
dd_status tcp_call_ask_maybe(tcp_call *call, dd_bytes key, dd_blob *value, bool *is_found) DD_MUST_CHECK;
/* Begins, sends and awaits a PING: then the server has done all that was sent over the link. */
dd_status tcp_call_ping(tcp_call *call) DD_MUST_CHECK;

/* Sends a request that may wait, and waits for its answer until the operation's own deadline; then, or on an
 * interrupt, calls the request off, which is answered all the same (DD_TCP_OP_LIST). DD_OK: the reader has an
 * answer, perhaps that the wait was called off. DD_TIMED_OUT: there is none, as from a server that cannot be
 * asked to call off. DD_INTERRUPTED: `reader->at` is NULL, or it has the answer that came before the request
 * was called off. */
dd_status tcp_call_wait(tcp_call *call, dd_tcp_reader *reader) DD_MUST_CHECK;

/* The same where the answer is STOP_WAITING. DD_TIMED_OUT: that did not come. */
dd_status tcp_call_wait_to_stop(tcp_call *call) DD_MUST_CHECK;

/* tcp_call.c: taking and ending. */

dd_status tcp_call_take_value(tcp_call *call, dd_tcp_reader *reader, dd_blob *value) DD_MUST_CHECK;
/* A list of one value or none. */
dd_status tcp_call_take_maybe(tcp_call *call, dd_tcp_reader *reader, dd_blob *value,
                              bool *is_found) DD_MUST_CHECK;
/* The same after tcp_call_wait. DD_TIMED_OUT: none, since the wait was called off. */
dd_status tcp_call_take_awaited(tcp_call *call, dd_tcp_reader *reader, dd_blob *value) DD_MUST_CHECK;

/* Gives the link back and says in the error which operation failed, on which server. Returns the status, or a
 * better one. */
dd_status tcp_call_end(tcp_call *call, dd_status status);

/* tcp_call.c: links. */

/* Opens the main link, with a ring where the server is on this host. The caller holds the link, or nobody
 * else has the store yet. */
dd_status tcp_store_open_main(tcp_store *store, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
void tcp_store_close_sides(tcp_store *store);

/* tcp_waits.c. The operations are those of dd_store_ops. */

dd_status tcp_try_get(dd_store *head, dd_bytes key, dd_blob *value, bool *is_found, const dd_wait *wait,
                      dd_error *err) DD_MUST_CHECK;
dd_status tcp_check(dd_store *head, const dd_bytes *keys, size_t nkeys, bool *is_ready, const dd_wait *wait,
                    dd_error *err) DD_MUST_CHECK;
dd_status tcp_get(dd_store *head, dd_bytes key, dd_blob *value, const dd_wait *wait,
                  dd_error *err) DD_MUST_CHECK;
dd_status tcp_wait(dd_store *head, const dd_bytes *keys, size_t nkeys, const dd_wait *wait,
                   dd_error *err) DD_MUST_CHECK;
dd_status tcp_multi_get(dd_store *head, const dd_bytes *keys, size_t nkeys, dd_blob_list *values,
                        const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* Waits on a side link until all the keys are there. DD_TIMED_OUT names those that are not. */
dd_status tcp_wait_aside(const tcp_operation *operation, const dd_bytes *keys, size_t nkeys) DD_MUST_CHECK;

/* How PyTorch's protocol gets what has to be waited for: waits until the key is there, then tries to take
 * what it holds, and waits again if there was nothing to take: another was faster, or the key has a value and
 * no item. */
typedef dd_status (*tcp_try_fn)(const tcp_operation *operation, dd_bytes key, dd_blob *value, bool *is_found);
dd_status tcp_wait_and_try(const tcp_operation *operation, dd_bytes key, dd_blob *value,
                           tcp_try_fn try) DD_MUST_CHECK;

/* DD_TIMED_OUT, naming those of the keys that are missing now. */
dd_status tcp_error_missing(const tcp_operation *operation, const dd_bytes *keys, size_t nkeys);

/* tcp_newer.c. The operations are those of dd_store_ops. */

dd_status tcp_queue_push(dd_store *head, dd_bytes key, dd_bytes value, const dd_wait *wait,
                         dd_error *err) DD_MUST_CHECK;
dd_status tcp_queue_pop(dd_store *head, dd_bytes key, bool is_blocking, dd_blob *value, const dd_wait *wait,
                        dd_error *err) DD_MUST_CHECK;
dd_status tcp_queue_len(dd_store *head, dd_bytes key, int64_t *count, const dd_wait *wait,
                        dd_error *err) DD_MUST_CHECK;
dd_status tcp_list_keys(dd_store *head, dd_blob_list *keys, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
dd_status tcp_barrier(dd_store *head, dd_bytes key, int64_t world_size, const dd_wait *wait,
                      dd_error *err) DD_MUST_CHECK;

#endif
