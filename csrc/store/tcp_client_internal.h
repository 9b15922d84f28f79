/* Declarations that the files of the TCPStore client share: tcp_store.c (lifecycle), tcp_ops.c (the
 * requests of each operation), tcp_tagged.c (the one connection to a dldist server), tcp_untagged.c
 * (connections to a PyTorch server) and tcp_link.h (the bytes of a connection). */
#ifndef DD_STORE_TCP_CLIENT_INTERNAL_H
#define DD_STORE_TCP_CLIENT_INTERNAL_H

#include "core/list.h"
#include "core/lock.h"
#include "store/tcp_link.h"
#include "store/tcp_store.h"

#include <pthread.h>

/* Minimum time in which a request that the server answers immediately may be answered, even if the
 * caller's deadline is earlier: a caller with a timeout of 0 still wants the answer. */
#define TCP_ANSWER_NS (1 * DD_NS_PER_S)

#define TCP_IDLE_MAX 8

typedef struct tcp_store {
    dd_store head;
    /* the next fields are const after init */
    dd_blob secret;
    dd_tcp_server *server; /* a reference to this process's server, or NULL if it has none */
    char where[96];        /* name for messages: "TCPStore at host:port" */
    tcp_target target;     /* const once the first connection is open */

    dd_lock mu;
    pthread_cond_t cond; /* broadcast when another thread's answer arrives or a reader stops */
    /* all fields from here to `idle` and `nidle` are guarded by mu */
    dd_error dead; /* reason why the server is lost; code is DD_OK if the server is not lost */
    /* The following fields are used only with a dldist server, whose connection has tags. */
    bool is_read;       /* true while a thread reads from the connection */
    dd_list unanswered; /* list of tcp_exchange: requests that were sent and are not answered yet */
    uint32_t last_tag;
    dd_blob backlog;      /* bytes that the socket has not accepted; the next sender sends them */
    size_t backlog_nsent; /* number of bytes of the backlog sent so far */
    /* The following fields are used only with a PyTorch server, whose connections have no tags. */
    tcp_link *idle[TCP_IDLE_MAX]; /* unused connections, the last used one at the end */
    unsigned nidle;

    /* The one connection to a dldist server; const after init. Only the thread that has set is_read
     * may read from the connection, and only the holder of mu may send. */
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
/* Send a request with an internal key, answered immediately. `label`: its name in messages. */
dd_status tcp_run_internal(tcp_store *store, const dd_store_request *request, dd_store_result *result,
                           const char *label, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* ---- requests */

/* A request and its answer. */
typedef struct tcp_exchange {
    const dd_tcp_op_row *row;
    dd_bytes key;    /* key of a QUEUE_POP, to return the item */
    dd_blob request; /* encoded request; for a dldist server, preceded by space for a tag */
    tcp_reply reply; /* the reply in `answer`; reader.at is NULL until it has arrived */
    dd_blob answer;
    /* The following fields are for a dldist server; guarded by the store's mu after the sending. */
    dd_list unanswered;
    uint32_t tag; /* 0 if the request was not sent */
    bool is_answered;
    /* true if the caller of a QUEUE_POP has returned: `unanswered` then owns this exchange, and
     * `request` contains only the key */
    bool is_cancelled;
} tcp_exchange;

/* Send a request, wait for its answer, and find the reply in the answer. An error that the server
 * reports is returned unchanged. DD_NETWORK_TIMED_OUT: no answer before the deadline. DD_NETWORK:
 * the server and its data are lost; every later call fails immediately. */
typedef dd_status tcp_exchange_fn(tcp_store *store, tcp_exchange *exchange, const dd_wait *wait,
                                  dd_error *err);

/* Exchange over the one connection to a dldist server (tcp_tagged.c). All threads share it, and it
 * is open as long as the store. If no thread is reading, a thread that waits for an answer reads
 * the answers for all threads. At its deadline, or on DD_INTERRUPTED, a request that waits at the
 * server is cancelled; its reply is then the server's answer to the cancellation, or a result that
 * arrives first. The answer to an abandoned request is dropped, except that the item of a QUEUE_POP
 * is sent back. */
tcp_exchange_fn tcp_tagged_exchange;
void tcp_tagged_free(tcp_exchange *pop); /* free an abandoned QUEUE_POP */

/* Exchange over connections to a PyTorch server, whose protocol has no tags (tcp_untagged.c). A
 * request uses a connection until it is answered, so a single thread needs only one connection. */
tcp_exchange_fn tcp_untagged_exchange;

/* Open another connection, owned by the caller. The first one detects the kind of server. */
dd_status tcp_untagged_create_link(tcp_store *store, tcp_link **link, const dd_wait *wait,
                                   dd_error *err) DD_MUST_CHECK;
void tcp_untagged_release(tcp_store *store, tcp_link *link);

dd_status tcp_store_check_dead_locked(const tcp_store *store, dd_error *err) DD_MUST_CHECK;
void tcp_store_note_dead_locked(tcp_store *store, const dd_error *why);

#endif
