/* The parts of the connector, which only they see.
 *
 * A hand-shake is a job, run by a thread. Jobs that are about lane 0 to the same peer have to agree on
 * which of them makes the link; connect.c keeps the books on that, and calls nobody with its lock held. */
#ifndef DD_TRANSPORT_CONNECT_INTERNAL_H
#define DD_TRANSPORT_CONNECT_INTERNAL_H

#include "core/list.h"
#include "core/lock.h"
#include "core/thread.h"
#include "net/sha256.h"
#include "transport/connect.h"

#include <poll.h>
#include <stdatomic.h>

/* Hand-shakes at once. More have to wait for their turn: incoming connections in the lobby and in the
 * kernel, our own dials in a queue. */
#define CONNECT_ACCEPTS_MAX 64
#define CONNECT_DIALS_MAX 64
/* A hand-shake that goes well is over in less time than it takes to start a thread, so one thread does all
 * dials, and one all that come in. When it has not taken the next one for that long, it is stuck with
 * somebody slow, and there will be twice as many. */
#define CONNECT_STUCK_NS (10 * DD_NS_PER_MS)
/* All addresses of a card; or a loopback address, and then all in one. */
#define CONNECT_LISTEN_MAX DD_ADDR_LIST_MAX
#define CONNECT_LOBBY_MAX 64
#define CONNECT_HELLO_BYTES 80

typedef enum connect_stage {
    CONNECT_WAITING, /* in the queue, or a connection that has said hello and no more */
    CONNECT_DIALING, /* a dial under way */
    CONNECT_CLAIMED, /* a connection that is going to be the link to its peer */
} connect_stage;

typedef struct connect_job {
    dd_list link; /* guarded by mu */
    /* const after init */
    dd_connector *connector;
    bool is_dial;
    int64_t start_ns;
    int64_t deadline_ns;
    int fd;                             /* accept: the job's */
    uint8_t hello[CONNECT_HELLO_BYTES]; /* accept: what has been said */
    bool is_unix;                       /* accept */
    dd_card card;                       /* dial */
    /* of a dial const after init, of an accept guarded by mu until CLAIMED, const then */
    dd_uid peer;
    int lane;
    /* guarded by mu */
    connect_stage stage;
    bool is_answered; /* dial: the peer's own dial has made the link */
    /* atomic, relaxed: ends the job's waits soon; nothing is read because of it */
    atomic_bool is_called_off;
} connect_job;

/* A connection that may be anybody's. */
typedef struct connect_guest {
    int fd;
    bool is_unix;
    int64_t until_ns; /* by when it has to say hello */
    size_t nbytes;    /* of the hello */
    uint8_t hello[CONNECT_HELLO_BYTES];
} connect_guest;

typedef struct connect_lobby {
    connect_guest guests[CONNECT_LOBBY_MAX];
    size_t count;
    uint64_t dice;
} connect_lobby;

/* Listening TCP sockets. */
typedef struct connect_ports {
    int fds[CONNECT_LISTEN_MAX];
    size_t count;
    bool is_loopback; /* from outside nobody reaches them */
} connect_ports;

/* Threads that do the same kind of job, and what waits for them. Guarded by mu. */
typedef struct connect_pool {
    dd_list queue;
    int nthreads;
    bool has_moved; /* a job has been taken from the queue since the listener looked */
} connect_pool;

struct dd_connector {
    /* const after init */
    dd_connect_options options; /* with copies of what it points to */
    dd_connect_handler handler;
    const dd_card *card; /* the owner's, of this process */
    dd_uid uid;
    uint64_t generation;
    int unix_fd;         /* -1: none */
    connect_lobby lobby; /* the listener's */
    int wake_fd;         /* eventfd: for the listener to look at the books */
    pthread_t listener;
    /* written by the listener: why it cannot accept, 0 while it can (release); and since when, written
     * before that */
    atomic_int accept_errno;
    atomic_int_fast64_t failing_since_ns;
    int64_t failed_ns; /* the listener's: when it could not last */
    char congestion[32];
    dd_blob ifnames;
    dd_blob secret;

    dd_lock mu;
    pthread_cond_t cond; /* any change of what follows */
    /* guarded by mu */
    dd_list jobs; /* running */
    connect_pool dials;
    connect_pool accepts;
    connect_ports ports; /* closed by the listener only, which polls them */
    bool wants_ports;
    int naccepted; /* connections that are running or wait for it */
    bool is_closing;
    bool has_finished;
    pthread_t finished; /* the thread that ended last, which the next one joins */
};

/* ---- connect.c: the books */

/* For it to look at the books and at its ports. */
void connect_wake_listener(const dd_connector *connector);

/* The wait of a job: its deadline, and being called off. */
dd_wait connect_job_wait(connect_job *job);

/* Accept, lane 0: whether this may become the link to job->peer; then all others hold back until
 * connect_settle_accept. */
bool connect_claim(connect_job *job, const dd_uid *peer);
/* Accept: the link is there and handed over, or has come to nothing. */
void connect_settle_accept(connect_job *job, bool is_linked);

/* Dial: waits while somebody holds a claim on the peer. False when there is nothing left to do: the peer
 * has come by itself, or the connector closes. */
bool connect_begin_dial(connect_job *job);
/* Dial: the same, after it has come to something or nothing. True: tell the owner. */
bool connect_settle_dial(connect_job *job);
/* Dial: sleeps after BUSY. False as above. */
bool connect_sleep_busy(connect_job *job, int64_t duration_ns);

/* ---- connect_listen.c */

/* Opens listening sockets and tells where they are. On failure nothing is open. */
dd_status connect_listen_tcp(const dd_connector *connector, const dd_addr *first, connect_ports *ports,
                             dd_addr_list *addrs, dd_error *err) DD_MUST_CHECK;
/* Whether that would be just a loopback address. */
bool connect_is_for_loopback(const dd_connector *connector, const dd_addr *first);
void connect_close_ports(connect_ports *ports);
/* What the listener is to poll. Closes the ports that are not wanted any more, as nobody polls them now. */
size_t connect_take_listeners(dd_connector *connector, int fds[CONNECT_LISTEN_MAX + 1]);
/* The Unix socket, whose name goes into the card; "" when there is none. */
void connect_listen_unix(dd_connector *connector, dd_card *card);

/* TCP_CONGESTION, where asked for. */
dd_status connect_set_congestion(const dd_connector *connector, int fd, dd_error *err) DD_MUST_CHECK;

/* ---- connect_lobby.c: the listener's thread only */

void connect_lobby_init(connect_lobby *lobby);
void connect_lobby_fini(connect_lobby *lobby); /* closes all */
/* Whether there is room for one more, which may cost a silent one its place. */
bool connect_lobby_has_room(const connect_lobby *lobby);
/* Closes a silent one to have its descriptor; false: there is none. */
bool connect_lobby_evict(connect_lobby *lobby);
/* Takes fd, and hears what it has said already. */
void connect_lobby_add(connect_lobby *lobby, int fd, int64_t timeout_ns);
/* Fills in what to poll (CONNECT_LOBBY_MAX at most), and shortens the time-out (-1: none) to the next
 * deadline. */
nfds_t connect_lobby_poll(const connect_lobby *lobby, struct pollfd *pollfds, int *timeout_ms);
/* After the poll, with nothing added in between: hears those that have something to say, closes those that
 * are late. */
void connect_lobby_hear(connect_lobby *lobby, const struct pollfd *pollfds);
/* Gives away one that has said hello. */
bool connect_lobby_take(connect_lobby *lobby, connect_guest *guest);

/* ---- connect_hello.c: what is said
 *
 *     dialer -> listener   hello    magic 4, version 2, flags 2, own uid 16, uid of whom it wants 16,
 *                                   lane 4, zero 4, nonce 32
 *     listener -> dialer   answer   magic 4, version 2, verdict 1, zero 1, nonce 32, proof 32
 *     dialer -> listener   proof    32, where there is a secret
 *     listener -> dialer   verdict  1
 *
 * Numbers in little endian. A proof is HMAC-SHA256(secret, role || hello || nonce of the answer): it holds
 * for these two processes, this lane and this connection. */

#define CONNECT_ANSWER_BYTES 72
#define CONNECT_NONCE_BYTES 32
#define CONNECT_VERSION 4

typedef enum connect_verdict {
    CONNECT_GO_ON, /* in an answer: so far, so good */
    CONNECT_OK,
    CONNECT_BUSY,
    CONNECT_OTHER_PROCESS, /* the one that is wanted is not here */
    CONNECT_OTHER_VERSION,
    CONNECT_SECRET_WANTED, /* the dialer has none */
    CONNECT_NO_SECRET,     /* the listener has none */
    CONNECT_DENIED,        /* the dialer's proof is wrong */
    CONNECT_NO_SUCH_LANE,
    CONNECT_VERDICT_COUNT,
} connect_verdict;

typedef struct connect_hello {
    dd_uid from;
    dd_uid to;
    uint32_t lane;
    bool has_secret;
    unsigned version;
    uint8_t bytes[CONNECT_HELLO_BYTES]; /* all of it, as it goes into proofs */
} connect_hello;

typedef struct connect_answer {
    connect_verdict verdict;
    unsigned version;
    uint8_t nonce[CONNECT_NONCE_BYTES];
    uint8_t proof[DD_SHA256_BYTES];
} connect_answer;

/* Fills in bytes, with a fresh nonce. */
dd_status connect_hello_write(connect_hello *hello, dd_error *err) DD_MUST_CHECK;
/* Whether these first bytes may be those of a hello. */
bool connect_is_hello_so_far(const uint8_t *bytes, size_t nbytes);
/* Reads bytes. False when it is no hello; of another version only that is known. */
bool connect_hello_read(connect_hello *hello);

void connect_answer_write(const connect_answer *answer, uint8_t bytes[CONNECT_ANSWER_BYTES]);
bool connect_answer_read(const uint8_t bytes[CONNECT_ANSWER_BYTES], connect_answer *answer);

typedef enum connect_role {
    CONNECT_DIALER,
    CONNECT_LISTENER,
} connect_role;

void connect_prove(dd_bytes secret, connect_role role, const connect_hello *hello,
                   const uint8_t nonce[CONNECT_NONCE_BYTES], uint8_t proof[DD_SHA256_BYTES]);
bool connect_check_proof(dd_bytes secret, connect_role role, const connect_hello *hello,
                         const uint8_t nonce[CONNECT_NONCE_BYTES], const uint8_t proof[DD_SHA256_BYTES]);

/* All of the bytes, or a failure that says what was being done ("cannot send the hello"). */
dd_status connect_send(int fd, const void *data, size_t nbytes, const dd_wait *wait,
                       dd_error *err) DD_MUST_CHECK;
dd_status connect_recv(int fd, void *data, size_t nbytes, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* ---- connect_accept.c, connect_dial.c: a hand-shake from its start to its end, on its thread */

void connect_accept_run(connect_job *job);
void connect_dial_run(connect_job *job);

#endif
