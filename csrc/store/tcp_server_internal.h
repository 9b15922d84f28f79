/* Shared by the files of the TCPStore server: tcp_server.c (lifecycle, listening, the loop),
 * tcp_conn.c (a connection's bytes), tcp_serve.c (the operations), tcp_joined.c (joined clients).
 *
 * Everything marked "loop" belongs to the server's thread once it runs. A closed connection is
 * freed only at the end of the turn (deferred close), since the code that closes it may be
 * called by the keyspace, and an event for it may already be fetched. */
#ifndef DD_STORE_TCP_SERVER_INTERNAL_H
#define DD_STORE_TCP_SERVER_INTERNAL_H

#include "core/list.h"
#include "core/lock.h"
#include "core/wait_policy.h"
#include "net/addr.h"
#include "net/admission.h"
#include "net/auth.h"
#include "net/seal.h"
#include "store/keyspace.h"
#include "store/tcp_protocol.h"
#include "store/tcp_server.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>

#define TCP_WHO_MAX 128
#define TCP_RECV_BYTES ((size_t)64 << 10)

/* A descriptor that the loop watches. It may be removed at any time, but freed only between turns:
 * an event that was already fetched for it is still delivered. */
typedef struct tcp_handler tcp_handler;
struct tcp_handler {
    int fd;
    void (*on_event)(tcp_handler *handler, uint32_t events); /* EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP */
};

typedef struct tcp_listener {
    tcp_handler handler;
    dd_tcp_server *server;
    int64_t retry_ns; /* time of the next attempt to accept; 0 if it accepts */
    bool is_unix;
} tcp_listener;

typedef enum tcp_conn_state {
    TCP_CONN_NEW,        /* must show the magic number */
    TCP_CONN_GREETED,    /* must send HELLO: the store has a secret, or no descriptors to spare */
    TCP_CONN_CHALLENGED, /* must prove that it knows the secret */
    TCP_CONN_OPEN,
} tcp_conn_state;

typedef struct tcp_conn {
    tcp_handler handler;
    dd_tcp_server *server;
    dd_list link;                /* in server->conns or server->closing */
    dd_admission_peer admission; /* until the connection is open */
    tcp_conn_state state;
    bool is_unix;     /* of the same user, on this host */
    bool is_extended; /* sent HELLO: replies carry a status */
    bool is_tagged;   /* requests and answers have tags, from the end of the handshake on */
    bool is_closing;
    bool is_surplus;        /* no descriptor to spare for it; reported in the answer to HELLO */
    bool closes_after_send; /* close it once `out` is sent */
    uint8_t op;             /* of the request being scanned or served */
    uint32_t tag;           /* tag of that request */
    size_t reply_at;        /* where the answer to it begins in `out`, while that is being written */
    uint32_t watched;       /* events that epoll watches */
    dd_tcp_scan scan;       /* zeroed between requests */
    dd_blob in;             /* the start of an incomplete request */
    dd_blob out;            /* replies; the first out_sent bytes are already sent */
    size_t out_sent;
    dd_list parked; /* of tcp_parked: its requests that wait for keys */
    unsigned nparked;
    char who[TCP_WHO_MAX];                /* name that a dldist client gave in HELLO; "" if none */
    uint8_t opening[DD_AUTH_NONCE_BYTES]; /* nonces of client and server, see net/auth.h */
    uint8_t nonce[DD_AUTH_NONCE_BYTES];
    dd_seal *seal;       /* NULL if its requests are not sealed */
    bool is_reply_clear; /* the answer to its HELLO must not be sealed */
} tcp_conn;

/* A request that waits for keys. */
typedef struct tcp_parked {
    dd_list link; /* in conn->parked */
    tcp_conn *conn;
    dd_tcp_op op;
    uint32_t tag;
    dd_key_waiter waiter;
} tcp_parked;

/* Limit for each connection: a client parks one request for each of its waiting threads. */
#define TCP_PARKED_MAX 65536u

#define TCP_REFUSED_MAX 4

struct dd_tcp_server {
    /* const after open */
    dd_tcp_limits limits;
    dd_blob secret;
    bool is_encryption_off;
    int64_t handshake_timeout_ns;
    uint16_t port;
    uint64_t fork_generation;
    pthread_t thread;
    dd_tcp_registry *registry;

    /* guarded by the registry's mutex if there is one, else atomic */
    atomic_uint refs;
    dd_list registry_link;

    /* loop */
    int epoll_fd;
    tcp_handler wake; /* an eventfd, written to stop the server */
    bool is_stopping;
    dd_spin spin;
    dd_keyspace ks;
    tcp_listener listeners[2 * DD_ADDR_LIST_MAX]; /* TCP, and a Unix socket for each address */
    size_t nlisteners;
    dd_list conns;
    dd_list closing;
    dd_admission admission; /* a connection is silent until it has sent the magic number */
    char refused[TCP_REFUSED_MAX]
                /* clients that did not show the secret, the latest first; "" if no more */
                [TCP_WHO_MAX];
    int accept_errno;   /* of the last connection if it was not accepted, else 0 */
    int64_t may_log_ns; /* when the next failed accept is logged */

    /* guarded by joined_mu */
    dd_lock joined_mu;
    pthread_cond_t joined_cond;
    int64_t njoined;
    char joined[768]; /* ": host (pid 12), ...": the first clients */
    bool is_joined_cut;
    unsigned nturned_away; /* connections rejected for lack of descriptors */

    /* atomic, relaxed; only for tests */
    atomic_uint_fast64_t nconns;
    atomic_uint_fast64_t naccepted; /* since the start */
    atomic_uint_fast64_t nreads;    /* number of successful receives */
    atomic_uint_fast64_t nparked;
    atomic_uint_fast64_t nentries; /* keys, queues and awaited keys */
};

/* tcp_server.c: create a server that does not listen; free one whose thread does not run. */
dd_status tcp_server_create(dd_tcp_server **out, const dd_tcp_server_options *options,
                            dd_error *err) DD_MUST_CHECK;
void tcp_server_free(dd_tcp_server *server);
/* Run one turn of the loop. Return true if there was an event. */
bool tcp_server_turn(dd_tcp_server *server, int timeout_ms);

/* tcp_joined.c: record a client; `sum` is the current value of the join key. */
void tcp_server_note_joined(dd_tcp_server *server, const char *who, int64_t sum);
/* Count a connection that was rejected for lack of descriptors. */
void tcp_server_note_turned_away(dd_tcp_server *server);

/* tcp_conn.c; loop only, except for tcp_server_watch() before the thread runs */

/* Watch a descriptor (level-triggered). The caller keeps handler->fd. */
dd_status tcp_server_watch(dd_tcp_server *server, tcp_handler *handler, uint32_t events,
                           dd_error *err) DD_MUST_CHECK;
void tcp_server_unwatch(dd_tcp_server *server, tcp_handler *handler);
/* Take over an accepted descriptor. It is closed if there is no memory. */
void tcp_conn_open(dd_tcp_server *server, int fd, bool is_unix, bool is_surplus);
void tcp_conn_close_deferred(tcp_conn *conn, const char *why);
/* Free the closed connections. Called at the end of every turn. */
void tcp_server_reap(dd_tcp_server *server);
/* Send as much of `out` as the socket takes; the loop sends the rest later. */
void tcp_conn_flush(tcp_conn *conn);
/* Write "host (pid 12)" of a dldist client, else the address. */
const char *tcp_conn_print_name(const tcp_conn *conn, char out[TCP_WHO_MAX]);

/* tcp_serve.c; loop only */

/* Drop a parked request without an answer. */
void tcp_parked_end(tcp_parked *parked);

/* Return true if the state of the connection allows the operation. */
bool tcp_serve_is_allowed(const tcp_conn *conn, uint8_t op);
void tcp_serve(tcp_conn *conn, uint8_t op, dd_bytes fields);
/* Report a record that failed authentication, if the client is tagged, and end the connection. */
void tcp_serve_forged(tcp_conn *conn);

#endif
