/* The parts of the connector, which only they see.
 *
 * A hand-shake is a job, run by a thread. Jobs that are about lane 0 to the same peer have to agree on
 * which of them makes the link; connect.c keeps the books on that, and calls nobody with its lock held. */
#ifndef DD_TRANSPORT_CONNECT_INTERNAL_H
#define DD_TRANSPORT_CONNECT_INTERNAL_H

#include "core/list.h"
#include "core/thread.h"
#include "net/sha256.h"
#include "transport/connect.h"

#include <stdatomic.h>

/* Hand-shakes at once; more of them wait for their turn: those who connect to us in the kernel, our own
 * dials in a queue. */
#define CONNECT_ACCEPTS_MAX 64
#define CONNECT_DIALS_MAX 64
/* A hand-shake that goes well is over in less time than it takes to start a thread, so one thread does all
 * dials, and one all that come in. When it has not taken the next one for that long, it is stuck with
 * somebody slow, and there will be twice as many. */
#define CONNECT_STUCK_NS (10 * DD_NS_PER_MS)
#define CONNECT_LISTEN_MAX (DD_ADDR_LIST_MAX + 1)

typedef enum connect_stage {
    CONNECT_WAITING, /* in the queue, or a connection that has not said hello yet */
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
    int fd;       /* accept: the job's */
    bool is_unix; /* accept */
    dd_card card; /* dial */
    /* of a dial const after init, of an accept guarded by mu until CLAIMED, const then */
    dd_uid peer;
    int lane;
    /* guarded by mu */
    connect_stage stage;
    bool is_answered; /* dial: the peer's own dial has made the link */
    /* atomic, relaxed: ends the job's waits soon; nothing is read because of it */
    atomic_bool is_called_off;
} connect_job;

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
    int listen_fds[CONNECT_LISTEN_MAX];
    size_t nlisten;
    int wake_fd; /* eventfd: for the listener to look at the books */
    pthread_t listener;
    char congestion[32];
    dd_blob secret;

    pthread_mutex_t mu;
    pthread_cond_t cond; /* any change of what follows */
    /* guarded by mu */
    dd_list jobs; /* running */
    connect_pool dials;
    connect_pool accepts;
    int naccepted; /* connections that are running or wait for it */
    bool is_closing;
    bool has_finished;
    pthread_t finished; /* the thread that ended last, which the next one joins */
};

/* ---- connect.c: the books */

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

/* Opens the listening sockets and fills in where they are in the card. On failure nothing is open. */
dd_status connect_listen(dd_connector *connector, dd_card *card, const dd_addr *first,
                         dd_error *err) DD_MUST_CHECK;
void connect_stop_listening(dd_connector *connector);

/* TCP_CONGESTION, where asked for. */
dd_status connect_set_congestion(const dd_connector *connector, int fd, dd_error *err) DD_MUST_CHECK;

/* Whether the process at the other end of a Unix socket is of our user. */
bool connect_is_same_user(int fd);

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

#define CONNECT_HELLO_BYTES 80
#define CONNECT_ANSWER_BYTES 72
#define CONNECT_NONCE_BYTES 32
#define CONNECT_VERSION 2

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
