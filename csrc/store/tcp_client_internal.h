/* What the files of the TCPStore client share: tcp_store.c (opening, closing), tcp_ops.c (the operations) and,
 * below them, tcp_call.c (a request and its answer), tcp_tagged.c (the one connection to a server of ours) and
 * tcp_plain.c (those to a server of PyTorch). tcp_link.h is the bytes of a connection.
 *
 * An operation makes one call or several; a call makes one request or several over one connection. */
#ifndef DD_STORE_TCP_CLIENT_INTERNAL_H
#define DD_STORE_TCP_CLIENT_INTERNAL_H

#include "core/list.h"
#include "core/lock.h"
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

    dd_lock mu;
    pthread_cond_t cond; /* broadcast when answers have come for others, and when nobody reads any more */
    /* guarded by mu */
    dd_error dead; /* not OK: the server is gone, and why */
    /* with tags */
    bool is_read;       /* somebody reads from the link */
    dd_list unanswered; /* of tcp_call: sent and not answered yet */
    uint32_t last_tag;
    dd_blob backlog; /* of requests that the socket has not taken yet: the next who sends sends this first; */
    size_t backlog_nsent; /* so many bytes of it are sent, */
    uint64_t nqueued;     /* so many of all requests were ever given to the link, */
    uint64_t nsent;       /* and so many sent */
    /* without */
    dd_list idle; /* links that nobody uses */
    unsigned nidle;

    /* with tags: the one; const after init. Whoever has set is_read reads from it, the holder of mu sends */
    tcp_link *link;
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

/* The fields of a request, in the order of its pattern: every k takes the next key, every v the next
 * value. */
typedef struct tcp_fields {
    const dd_bytes *keys;
    const dd_bytes *values;
    size_t count; /* of a repeated group */
    int64_t number;
    bool is_internal; /* the key is none of a user's */
} tcp_fields;

typedef struct tcp_call {
    const tcp_operation *operation; /* borrowed */
    dd_wait answer_wait;            /* the operation's wait, at least TCP_ANSWER_NS long */
    /* the request under way */
    dd_tcp_op op;
    uint64_t repeats; /* how often the pattern of its reply comes */
    dd_blob request;
    dd_tcp_writer writer; /* into it */
    /* with tags; guarded by the store's mu once it is sent */
    dd_list unanswered;
    uint32_t tag;
    uint64_t end; /* sent when the store's nsent is so much */
    bool is_answered;
    dd_blob answer;
    /* without */
    tcp_link *link; /* this call's alone; NULL: none could be had, or it is given back */
} tcp_call;

/* tcp_call.c */

static inline bool
tcp_call_is_extended(const tcp_call *call)
{
    return call->operation->store->target.is_extended;
}

/* Must be ended. What fails here is returned by the first request. */
void tcp_call_begin(tcp_call *call, const tcp_operation *operation);

/* A request that is answered at once; the reader is valid until the next. What is over an extended
 * server's limits fails here, where the error can name it; of another server nothing is known. */
dd_status tcp_call_ask(tcp_call *call, dd_tcp_op op, const tcp_fields *fields,
                       dd_tcp_reader *reader) DD_MUST_CHECK;

/* A request that may wait: sends it and waits for its answer until the operation's own deadline; then, or
 * on an interrupt, calls the request off, which is answered all the same (DD_TCP_OP_LIST). DD_OK: the
 * reader has an answer, perhaps that the wait was called off. DD_TIMED_OUT: there is none, as from a
 * server that cannot be asked to call off. DD_INTERRUPTED: `reader->at` is NULL, or it has the answer that
 * came before the request was called off. */
dd_status tcp_call_wait(tcp_call *call, dd_tcp_op op, const tcp_fields *fields,
                        dd_tcp_reader *reader) DD_MUST_CHECK;

/* Gives the link back and says in the error which operation failed, on which server. Returns the status, or a
 * better one. */
dd_status tcp_call_end(tcp_call *call, dd_status status);

/* Whole calls, by what the server replies: nothing, a number, a value if there is one. It has done then
 * what was asked. */
dd_status tcp_tell(const tcp_operation *operation, dd_tcp_op op, const tcp_fields *fields) DD_MUST_CHECK;
dd_status tcp_ask_number(const tcp_operation *operation, dd_tcp_op op, const tcp_fields *fields,
                         int64_t *number) DD_MUST_CHECK;
dd_status tcp_ask_maybe(const tcp_operation *operation, dd_tcp_op op, const tcp_fields *fields,
                        dd_blob *value, bool *is_found) DD_MUST_CHECK;
/* A list of one value or none. */
dd_status tcp_take_maybe(dd_tcp_reader *reader, dd_blob *value, bool *is_found, dd_error *err) DD_MUST_CHECK;

dd_status tcp_store_check_dead_locked(const tcp_store *store, dd_error *err) DD_MUST_CHECK;
/* The connection was lost, so the server is gone, and the data with it: every later call fails at once. */
void tcp_store_note_dead_locked(tcp_store *store, const dd_error *why);

/* tcp_tagged.c: the one connection to a server of ours. Requests of all threads go over it, and whoever
 * waits for an answer and finds nobody reading reads for all. It is never closed while the store lives: a
 * request that is given up is forgotten, and its answer dropped when it comes. */

/* Gives the request to the link, which sends it now or later; nothing of it is undone. */
dd_status tcp_tagged_send(tcp_call *call) DD_MUST_CHECK;
/* Waits until it is answered: call->answer. On any failure it can be waited for again. */
dd_status tcp_tagged_await(tcp_call *call, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
/* Asks the server to call the request off, if it waits still. */
dd_status tcp_tagged_cancel(tcp_call *call) DD_MUST_CHECK;
void tcp_tagged_end(tcp_call *call);

/* tcp_plain.c: connections to a server of PyTorch, whose protocol knows no tags. Each call has one to
 * itself until it has its answer, so the calls of one thread need one. */

/* Another connection, returned owned; the first one says what the server is. */
dd_status tcp_store_create_link(tcp_store *store, tcp_link **link, const dd_wait *wait,
                                dd_error *err) DD_MUST_CHECK;
void tcp_plain_begin(tcp_call *call);
/* Gives the link back; returns the status, or a better one. */
dd_status tcp_plain_end(tcp_call *call, dd_status status);
void tcp_plain_release(tcp_store *store, tcp_link *link);
void tcp_plain_close(tcp_store *store);

/* tcp_ops.c has the table of operations; these two are in tcp_store.c. */
extern const dd_store_ops tcp_store_ops;
dd_status tcp_clone(dd_store *head, dd_store **other, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
void tcp_destroy(dd_store *head);

#endif
