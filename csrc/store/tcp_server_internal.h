/* Declarations that the files of the TCPStore server share: tcp_server.c (lifecycle, listening, the
 * loop), tcp_conn.c (a connection's bytes), tcp_serve.c (operations), tcp_joined.c (joined
 * clients).
 *
 * Data that is marked "loop" must be used only by the server's thread once that thread runs. A
 * closed connection is freed only at the end of the loop's turn (deferred close), because the
 * keyspace may call the code that closes it, and epoll may have returned an event for it. */
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

#define TCP_CLIENT_NAME_MAX 128
#define TCP_RECV_BYTES ((size_t)64 << 10)

/* A descriptor that the loop watches. It may be removed at any time, but must be freed only between
 * turns: an event that epoll has already returned for it is still delivered. */
typedef struct tcp_handler tcp_handler;
struct tcp_handler {
    int fd;
    /* Called with a set of EPOLLIN, EPOLLOUT, EPOLLERR and EPOLLHUP. */
    void (*on_event)(tcp_handler *handler, uint32_t events);
};

typedef struct tcp_listener {
    tcp_handler handler;
    dd_tcp_server *server;
    int64_t retry_ns; /* time of the next attempt to accept; 0 if epoll watches the socket */
    bool is_unix;
} tcp_listener;

typedef enum tcp_conn_state {
    TCP_CONN_NEW,        /* the client must send the magic number */
    TCP_CONN_GREETED,    /* the client must send HELLO: a secret is set, or descriptors are few */
    TCP_CONN_CHALLENGED, /* the client must prove that it knows the secret */
    TCP_CONN_OPEN,
} tcp_conn_state;

typedef struct tcp_conn {
    tcp_handler handler;
    dd_tcp_server *server;
    dd_list link;                /* link in server->conns or server->closed */
    dd_admission_peer admission; /* used until the state is TCP_CONN_OPEN */
    tcp_conn_state state;
    bool is_unix;     /* true for a Unix socket: the client is a process of this user and host */
    bool is_extended; /* true once the client has sent HELLO: replies then begin with a status */
    bool is_tagged;   /* true after a dldist handshake: requests and answers have tags */
    bool is_closing;
    bool is_surplus;        /* true if descriptors are short: the answer to HELLO then reports it */
    bool closes_after_send; /* true if the connection must be closed once `out` is sent */
    uint8_t op;             /* operation of the request that is being scanned or served */
    uint32_t tag;           /* tag of the request that is being scanned or served */
    size_t reply_at;        /* offset in `out` of the answer being written */
    uint32_t watched;       /* events that epoll watches for this connection */
    dd_tcp_scan scan;       /* state of scanning a request; zeroed between two requests */
    dd_blob in;             /* received bytes of an incomplete request */
    dd_blob out;            /* replies; the first out_sent bytes have been sent */
    size_t out_sent;
    dd_list parked; /* list of tcp_parked: requests of this connection that wait for keys */
    unsigned nparked;
    char client[TCP_CLIENT_NAME_MAX];     /* name in the HELLO of a dldist client, or "" */
    uint8_t opening[DD_AUTH_NONCE_BYTES]; /* nonce of the client; see net/auth.h */
    uint8_t nonce[DD_AUTH_NONCE_BYTES];
    dd_seal *seal;       /* NULL if the connection is not encrypted */
    bool is_reply_clear; /* true while the answer to HELLO, which is not encrypted, is sent */
} tcp_conn;

/* A request that waits until its keys are present. */
typedef struct tcp_parked {
    dd_list link; /* link in conn->parked */
    tcp_conn *conn;
    dd_tcp_op op;
    uint32_t tag;
    dd_key_waiter waiter;
} tcp_parked;

/* Maximum number of waiting requests of a connection. A client has one for each waiting thread. */
#define TCP_PARKED_MAX 65536u

#define TCP_REFUSED_MAX 4

struct dd_tcp_server {
    /* the next fields are const after open */
    dd_tcp_limits limits;
    dd_blob secret;
    bool is_encryption_off;
    bool is_open_to_own_torch;
    int64_t handshake_timeout_ns;
    uint16_t port;
    uint64_t fork_generation;
    pthread_t thread;
    dd_tcp_registry *registry;

    /* both guarded by the registry's mutex; without a registry, refs is atomic */
    atomic_uint refs;
    dd_list registry_link;

    /* loop: the following fields, up to may_log_ns */
    int epoll_fd;
    tcp_handler wake; /* eventfd, written to stop the server */
    bool is_stopping;
    dd_spin spin;
    dd_keyspace ks;
    tcp_listener listeners[2 * DD_ADDR_LIST_MAX]; /* TCP sockets, and a Unix socket for each */
    size_t nlisteners;
    dd_list conns;
    dd_list closed;
    dd_admission admission; /* stage "silent": the client has not sent the magic number yet */
    char refused[TCP_REFUSED_MAX]
                /* clients that failed to prove the secret, the latest first; "" ends the list */
                [TCP_CLIENT_NAME_MAX];
    int accept_errno;   /* errno of the last attempt to accept; 0 if it succeeded */
    int64_t may_log_ns; /* earliest time at which another failure to accept is logged */

    /* The following fields, up to nrejected, are guarded by joined_mu. */
    dd_lock joined_mu;
    pthread_cond_t joined_cond;
    int64_t njoined;
    char joined[768]; /* names of the first clients that joined: ": host (pid 12), ..." */
    bool is_joined_cut;
    unsigned nrejected; /* number of connections rejected for lack of descriptors so far */

    /* The following counters are atomic and relaxed; only tests read them. */
    atomic_uint_fast64_t nconns;
    atomic_uint_fast64_t naccepted; /* number of connections accepted so far */
    atomic_uint_fast64_t nreads;    /* number of successful receives so far */
    atomic_uint_fast64_t nparked;
    atomic_uint_fast64_t nentries; /* number of entries: keys, queues and awaited keys */
};

/* tcp_server.c: create a server that does not listen; free a server whose thread does not run. */
dd_status tcp_server_create(dd_tcp_server **out, const dd_tcp_server_options *options,
                            dd_error *err) DD_MUST_CHECK;
void tcp_server_free(dd_tcp_server *server);
/* Run one turn of the server's loop. Return true if there was an event. */
bool tcp_server_turn(dd_tcp_server *server, int timeout_ms);

/* Record that a client has joined (tcp_joined.c). `sum` is the new value of "init/". */
void tcp_server_note_joined(dd_tcp_server *server, const char *client, int64_t sum);
/* Count a connection that was rejected for lack of descriptors. */
void tcp_server_note_rejected(dd_tcp_server *server);

/* tcp_conn.c: for the server's thread only; tcp_server_watch also before that thread runs. */

/* Add a descriptor to epoll, level-triggered. The caller keeps ownership of handler->fd. */
dd_status tcp_server_watch(dd_tcp_server *server, tcp_handler *handler, uint32_t events,
                           dd_error *err) DD_MUST_CHECK;
void tcp_server_unwatch(dd_tcp_server *server, tcp_handler *handler);
/* Create a connection, which owns the accepted descriptor `fd`. Without memory, close `fd`. */
void tcp_conn_open(dd_tcp_server *server, int fd, bool is_unix, bool is_surplus);
/* Close the descriptor of a connection. tcp_server_reap frees the connection later. */
void tcp_conn_close(tcp_conn *conn, const char *why);
/* Free all closed connections. Must be called at the end of every turn of the loop. */
void tcp_server_reap(dd_tcp_server *server);
/* Send as much of conn->out as the socket accepts. The loop sends the rest later. */
void tcp_conn_flush(tcp_conn *conn);
/* Write a client's name: "host (pid 12)" for a dldist client, else its address. Return `out`. */
const char *tcp_conn_print_name(const tcp_conn *conn, char out[TCP_CLIENT_NAME_MAX]);

/* ---- tcp_serve.c: only for the server's thread */

/* Remove and free a parked request without answering it. */
void tcp_parked_end(tcp_parked *parked);

/* Return true if the state of the connection allows the operation. */
bool tcp_serve_is_allowed(const tcp_conn *conn, uint8_t op);
void tcp_serve(tcp_conn *conn, uint8_t op, dd_bytes fields);
/* Handle a record that failed authentication: report it if there are tags, end the connection. */
void tcp_serve_forged(tcp_conn *conn);

#endif
