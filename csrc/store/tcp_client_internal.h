/* What the files of the TCPStore client share: tcp_store.c (opening, closing), tcp_ops.c (what is asked for each
 * operation) and the two ways to ask, tcp_tagged.c (the one connection to a server of ours) and tcp_plain.c (those to
 * a server of PyTorch). tcp_link.h is the bytes of a connection. */
#ifndef DD_STORE_TCP_CLIENT_INTERNAL_H
#define DD_STORE_TCP_CLIENT_INTERNAL_H

#include "core/list.h"
#include "core/lock.h"
#include "store/tcp_link.h"
#include "store/tcp_store.h"

#include <pthread.h>

/* A request that the server answers at once is given this long, whatever the caller's deadline: a caller who
 * asks with a time-out of 0 still wants the answer. */
#define TCP_ANSWER_NS (1 * DD_NS_PER_S)

#define TCP_IDLE_MAX 8

typedef struct tcp_store {
    dd_store head;
    /* const after init */
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
    dd_list unanswered; /* of tcp_exchange: sent and not answered yet */
    uint32_t last_tag;
    dd_blob backlog; /* of requests that the socket has not taken yet: the next to send sends this first; */
    size_t backlog_nsent; /* so many bytes of it are sent */
    /* without */
    tcp_link *idle[TCP_IDLE_MAX]; /* links that nobody uses, the latest last */
    unsigned nidle;

    /* with tags: the one; const after init. The thread that has set is_read reads from it, the holder of mu sends */
    tcp_link *link;

    char host[]; /* const after init */
} tcp_store;

static inline tcp_store *
tcp_store_of(dd_store *head)
{
    return DD_CONTAINER_OF(head, tcp_store, head);
}

/* ---- tcp_ops.c */

dd_status tcp_run(dd_store *head, const dd_store_request *request, dd_store_result *result,
                  const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
/* A request that is answered at once, of a key that is none of a user's. `what` is for messages. */
dd_status tcp_ask_internal(tcp_store *store, const dd_store_request *request, dd_store_result *result,
                           const char *what, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* ---- asking */

/* A request and its answer. */
typedef struct tcp_exchange {
    const dd_tcp_op_row *row;
    dd_bytes key;    /* of a QUEUE_POP */
    dd_blob request; /* with tags, after room for one */
    tcp_reply reply; /* in the answer; its reader at NULL: there is none */
    dd_blob answer;
    /* with tags; guarded by the store's mu once it is sent */
    dd_list unanswered;
    uint32_t tag; /* 0: it was not sent */
    bool is_answered;
    /* a QUEUE_POP whose caller is gone, owned by the list: `request` is its key */
    bool is_given_up;
} tcp_exchange;

/* What both ways do: send the request, wait for its answer, and find its reply. What the server reports is returned as it
 * is. DD_NETWORK_TIMED_OUT: the answer did not come in time. DD_NETWORK: the server is gone, and the data with it, so
 * every later call fails at once. */
typedef dd_status tcp_ask_fn(tcp_store *store, tcp_exchange *exchange, const dd_wait *wait, dd_error *err);

/* tcp_tagged.c: the one connection to a server of ours. Requests of all threads go over it. A thread that
 * waits for an answer and finds nobody reading reads for all. It is never closed while the store lives: a request that is given up
 * is forgotten, and its answer dropped when it comes, but for the item of a QUEUE_POP, which is sent back.
 *
 * A request that waits at the server is called off when the deadline is over, and answered all the same, which is then
 * the reply. DD_INTERRUPTED: the same, and what has come at the last moment is the reply. */
tcp_ask_fn tcp_tagged_ask;
void tcp_tagged_free(tcp_exchange *pop); /* one that was given up */

/* tcp_plain.c: connections to a server of PyTorch, whose protocol knows no tags. Each request has one to itself until
 * it is answered, so one thread needs one. */
tcp_ask_fn tcp_plain_ask;

/* Another connection, returned owned; the first one says what the server is. */
dd_status tcp_plain_create_link(tcp_store *store, tcp_link **link, const dd_wait *wait,
                                dd_error *err) DD_MUST_CHECK;
void tcp_plain_release(tcp_store *store, tcp_link *link);

dd_status tcp_store_check_dead_locked(const tcp_store *store, dd_error *err) DD_MUST_CHECK;
void tcp_store_note_dead_locked(tcp_store *store, const dd_error *why);

#endif
