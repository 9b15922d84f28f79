/* What the files of the TCPStore server share: tcp_server.c (life, listening, the loop), tcp_conn.c (one connection's
 * bytes), tcp_serve.c (what each operation does) and tcp_joined.c.
 *
 * Everything marked "loop" belongs to the server's thread once it runs. A connection that has to go is doomed (closed) at
 * once and buried (freed) at the end of the turn: the code that doomed it may be deep inside the keyspace, and an event for it
 * may have been fetched. */
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

/* A descriptor that the loop watches. It may be removed at any time, and is freed between turns only: an event that was
 * already fetched for it is delivered still. */
typedef struct tcp_handler tcp_handler;
struct tcp_handler {
    int fd;
    void (*on_event)(tcp_handler *handler, uint32_t events); /* EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP */
};

typedef struct tcp_listener {
    tcp_handler handler;
    dd_tcp_server *server;
    int64_t retry_ns; /* it does not accept until then; 0: it accepts */
    bool is_unix;
} tcp_listener;

typedef enum tcp_conn_state {
    TCP_CONN_NEW,        /* must show the magic number */
    TCP_CONN_GREETED,    /* must say hello: the store has a secret, or no descriptors and tells it so */
    TCP_CONN_CHALLENGED, /* must prove that it knows the secret */
    TCP_CONN_OPEN,
} tcp_conn_state;

typedef struct tcp_conn {
    tcp_handler handler;
    dd_tcp_server *server;
    dd_list link;                /* in server->conns or server->doomed */
    dd_admission_peer admission; /* until it is open */
    tcp_conn_state state;
    bool is_unix;     /* of our own user, on this host */
    bool is_extended; /* said hello: replies carry a status, */
    bool is_tagged;   /* and, from the end of the handshake on, requests and answers a tag */
    bool is_doomed;
    bool is_surplus;    /* there is no descriptor to spare for it: it is told so when it says hello */
    bool is_last_words; /* to be doomed when `out` is sent */
    uint8_t op;         /* of the request being scanned or served, */
    uint32_t tag;       /* and its tag */
    size_t reply_at;    /* where its answer begins in `out`, while that is written */
    uint32_t watched;   /* the events epoll looks for */
    dd_tcp_scan scan;   /* zeroed between requests */
    dd_blob in;         /* the start of a request whose rest has not come */
    dd_blob out;        /* replies; the first out_sent bytes are sent */
    size_t out_sent;
    dd_list parked; /* of tcp_parked: its requests that wait for keys */
    unsigned nparked;
    char who[TCP_WHO_MAX];                /* what an extended client calls itself; "": it has not said */
    uint8_t opening[DD_AUTH_NONCE_BYTES]; /* the client's nonce, and the server's, as in net/auth.h */
    uint8_t nonce[DD_AUTH_NONCE_BYTES];
    dd_seal *seal;       /* NULL: what it says is not sealed */
    bool is_reply_clear; /* the answer to its hello is not sealed yet */
} tcp_conn;

/* A request that waits for keys. */
typedef struct tcp_parked {
    dd_list link; /* in conn->parked */
    tcp_conn *conn;
    dd_tcp_op op;
    uint32_t tag;
    dd_key_waiter waiter;
} tcp_parked;

/* More are nonsense: a client has one for each of its threads that waits. */
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

    /* guarded by the registry's mutex when there is one, else atomic */
    atomic_uint refs;
    dd_list registry_link;

    /* loop */
    int epoll_fd;
    tcp_handler wake; /* an eventfd, written to stop the server */
    bool is_stopping;
    dd_spin spin;
    dd_keyspace ks;
    tcp_listener listeners[2 * DD_ADDR_LIST_MAX]; /* by TCP, and by the Unix socket of each */
    size_t nlisteners;
    dd_list conns;
    dd_list doomed;
    dd_admission admission; /* a connection is silent until it has shown the magic number */
    char refused[TCP_REFUSED_MAX]
                [TCP_WHO_MAX]; /* who has not shown the secret, the latest first; "": nobody */
    int accept_errno;          /* of the last connection that was not accepted; 0 after one that was */
    int64_t may_log_ns;        /* when the next of them is logged */

    /* guarded by joined_mu */
    dd_lock joined_mu;
    pthread_cond_t joined_cond;
    int64_t njoined;
    char joined[768]; /* ": host (pid 12), ...": who the first of them are */
    bool is_joined_cut;
    unsigned nturned_away; /* for want of descriptors */

    /* atomic, relaxed; only tests read them */
    atomic_uint_fast64_t nconns;
    atomic_uint_fast64_t naccepted; /* since the start */
    atomic_uint_fast64_t nreads;    /* how often bytes were received */
    atomic_uint_fast64_t nparked;
    atomic_uint_fast64_t nentries; /* keys, queues and awaited keys */
};

/* tcp_server.c */

/* A server that does not listen and has no thread yet; and the end of one whose thread does not run. */
dd_status tcp_server_create(dd_tcp_server **out, const dd_tcp_server_options *options,
                            dd_error *err) DD_MUST_CHECK;
void tcp_server_free(dd_tcp_server *server);
/* One turn of the loop; whether anything has happened. */
bool tcp_server_turn(dd_tcp_server *server, int timeout_ms);

/* tcp_joined.c */

/* `sum` is the value of the join key now. */
void tcp_server_note_joined(dd_tcp_server *server, const char *who, int64_t sum);
/* A connection, for want of descriptors. */
void tcp_server_note_turned_away(dd_tcp_server *server);

/* tcp_conn.c; all loop only, but for watching before it runs */

/* Level-triggered. handler->fd stays the caller's. */
dd_status tcp_server_watch(dd_tcp_server *server, tcp_handler *handler, uint32_t events,
                           dd_error *err) DD_MUST_CHECK;
void tcp_server_unwatch(dd_tcp_server *server, tcp_handler *handler);
/* Takes over an accepted descriptor; without memory it is closed. */
void tcp_conn_open(dd_tcp_server *server, int fd, bool is_unix, bool is_surplus);
void tcp_conn_doom(tcp_conn *conn, const char *why);
/* Frees the doomed: the last act of every turn. */
void tcp_server_bury(dd_tcp_server *server);
/* Sends what is in `out`, as much as the socket takes; the rest follows when it can. */
void tcp_conn_flush(tcp_conn *conn);
/* "host (pid 12)" of an extended client, else its address. */
const char *tcp_conn_who(const tcp_conn *conn, char out[TCP_WHO_MAX]);

/* tcp_serve.c; loop only */

/* Forgets a request that waits, without an answer. */
void tcp_parked_end(tcp_parked *parked);

/* Whether the connection's state allows the operation; it is then served with its fields. */
bool tcp_serve_is_allowed(const tcp_conn *conn, uint8_t op);
void tcp_serve(tcp_conn *conn, uint8_t op, dd_bytes fields);
/* What has come is not what the client has sealed: says so, where it listens, and ends the connection. */
void tcp_serve_forged(tcp_conn *conn);

#endif
