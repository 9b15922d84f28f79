/* Private declarations of the connector. Fields belong to its thread unless marked otherwise. Each
 * handshake is a state machine that advances when its socket is ready or its deadline passes. */
#ifndef DD_TRANSPORT_CONNECT_INTERNAL_H
#define DD_TRANSPORT_CONNECT_INTERNAL_H

#include "core/list.h"
#include "core/lock.h"
#include "core/thread.h"
#include "net/admission.h"
#include "net/auth.h"
#include "net/seal.h"
#include "transport/connect.h"

#include <poll.h>
#include <stdatomic.h>

/* Limit of dials under way; others are queued. */
#define CONNECT_DIALS_MAX 64
/* Limit of connections that are not links yet, per stage of net/admission.h; others wait in the
 * kernel. GUESTS_MAX covers all stages: greeted ones may be twice that, as silent ones join
 * them. */
#define CONNECT_STAGE_MAX 64
#define CONNECT_INCOMING_MAX (3 * CONNECT_STAGE_MAX + 1)
/* All addresses of a card; or a loopback address, then one socket for all; plus the Unix socket. */
#define CONNECT_LISTEN_MAX (DD_ADDR_LIST_MAX + 1)
/* The addresses of a card, and the Unix socket. */
#define CONNECT_RACERS_MAX (DD_ADDR_LIST_MAX + 1)
#define CONNECT_POLLED_MAX \
    (1 + CONNECT_LISTEN_MAX + CONNECT_INCOMING_MAX + CONNECT_DIALS_MAX * CONNECT_RACERS_MAX)

/* ---- connect_hello.c: messages of the handshake
 *
 *     dialler -> listener   hello    magic 4, version 2, flags 2, own uid 16, wanted uid 16,
 *                                    lane 4, cipher 4, nonce 32
 *     listener -> dialler   answer   magic 4, version 2, verdict 1, zero 1, nonce 32, proof 32
 *     dialler -> listener   proof    32, if there is a secret
 *     listener -> dialler   verdict  1
 *
 * Numbers are little-endian. net/auth.h defines the proofs; their opening is the hello: a proof is
 * only valid for these two processes, this lane and this connection. On an encrypted link, message
 * 1 of its handshake replaces the nonce of the hello (which is longer), message 2 nonce and proof
 * of the answer. All later bytes are sealed; the proof is one byte. */

#define CONNECT_HELLO_BYTES 80
#define CONNECT_SEALED_HELLO_BYTES 96
#define CONNECT_ANSWER_BYTES 72
#define CONNECT_SEALED_PROOF_BYTES 1

typedef enum connect_verdict {
    CONNECT_GO_ON, /* in an answer: accepted so far */
    CONNECT_OK,
    CONNECT_BUSY,
    CONNECT_OTHER_PROCESS, /* the wanted process is not here */
    CONNECT_OTHER_VERSION,
    CONNECT_SECRET_WANTED, /* the dialler has none */
    CONNECT_NO_SECRET,     /* the listener has none */
    CONNECT_DENIED,        /* the dialler's proof is wrong */
    CONNECT_NO_SUCH_LANE,
    CONNECT_ENCRYPTION_WANTED, /* the dialler does not encrypt */
    CONNECT_NO_ENCRYPTION,     /* the listener does not encrypt */
    CONNECT_NO_CIPHER,         /* the listener does not support the dialler's cipher */
    CONNECT_VERDICT_COUNT,
} connect_verdict;

typedef enum connect_role {
    CONNECT_DIALER,
    CONNECT_LISTENER,
} connect_role;

typedef struct connect_hello {
    dd_uid from;
    dd_uid to;
    uint32_t lane;
    bool has_secret;
    bool is_sealed;
    dd_cipher cipher; /* if is_sealed */
    unsigned version;
    uint8_t bytes[CONNECT_SEALED_HELLO_BYTES]; /* the whole hello, which proofs cover */
} connect_hello;

typedef struct connect_answer {
    connect_verdict verdict;
    unsigned version;
    uint8_t nonce[DD_AUTH_NONCE_BYTES];
    uint8_t proof[DD_SHA256_BYTES];
} connect_answer;

/* Fill in hello->bytes up to the nonce; or, for a link that is not sealed, with a fresh nonce. */
void connect_hello_write_head(connect_hello *hello);
dd_status connect_hello_write(connect_hello *hello, dd_error *err) DD_MUST_CHECK;
/* Return the size of a hello, of which at least CONNECT_HELLO_BYTES must be present. */
size_t connect_hello_nbytes(const connect_hello *hello);
/* Return true if these can be the first bytes of a hello. */
bool connect_is_hello_so_far(const uint8_t *bytes, size_t nbytes);
/* Parse hello->bytes. Returns false if they are not a hello. If the version is another one, only
 * the version is valid. */
bool connect_hello_read(connect_hello *hello);

/* Return the opening that proofs cover (net/auth.h), for a hello that is not sealed. */
static inline dd_bytes
connect_hello_opening(const connect_hello *hello)
{
    return dd_bytes_of(hello->bytes, CONNECT_HELLO_BYTES);
}

void connect_answer_write(const connect_answer *answer, uint8_t bytes[CONNECT_ANSWER_BYTES]);
bool connect_answer_read(const uint8_t bytes[CONNECT_ANSWER_BYTES], connect_answer *answer);

/* Set the error that a verdict means for this side (`role`); `version` is the other side's. */
dd_status connect_explain(connect_verdict verdict, connect_role role, unsigned version, dd_error *err);

/* Send all bytes; `seal` may be NULL. Fails if the socket has no room: messages of a handshake are
 * short, and an empty socket has room for them. */
dd_status connect_send(int fd, dd_seal *seal, const void *data, size_t nbytes, dd_error *err) DD_MUST_CHECK;
/* Receive more of `nbytes` bytes, of which *nheard have arrived. Sets *is_whole once all have. */
dd_status connect_receive(int fd, dd_seal *seal, uint8_t *bytes, size_t nbytes, size_t *nreceived,
                          bool *is_whole, dd_error *err) DD_MUST_CHECK;

/* ---- connect_seal.c: encrypted links */

/* Return true if links over a socket of this kind are encrypted. */
bool connect_is_sealed(const dd_connector *connector, bool is_unix);
/* For the dialler: begin writes the hello; finish takes the answer and wipes the noise. DD_AUTH if
 * the listener has another secret, or the bytes were changed on the way. */
dd_status connect_seal_begin(dd_noise *noise, connect_hello *hello, dd_error *err) DD_MUST_CHECK;
dd_status connect_seal_finish(dd_noise *noise, dd_bytes secret, const uint8_t answer[CONNECT_ANSWER_BYTES],
                              dd_seal **seal, dd_error *err) DD_MUST_CHECK;
/* For the listener, which must support the cipher: complete an answer that lacks only nonce and
 * proof. DD_AUTH if the hello was changed. */
dd_status connect_seal_answer(dd_bytes secret, const connect_hello *hello,
                              uint8_t answer[CONNECT_ANSWER_BYTES], dd_seal **seal,
                              dd_error *err) DD_MUST_CHECK;

/* ---- types */

/* A connection that is not a link yet; `step` is the message that is awaited. */
typedef enum incoming_step {
    INCOMING_HELLO,  /* its hello */
    INCOMING_PROOF,  /* its proof that it knows the secret */
    INCOMING_TAKING, /* its notice that it has taken the memory of the link */
} incoming_step;

typedef struct connect_incoming {
    dd_list node; /* in connector->incoming_all */
    dd_admission_peer admission;
    dd_connector *connector;
    int fd;
    bool is_unix;
    incoming_step step;
    size_t polled; /* as in connect_poll */
    size_t nreceived;
    connect_hello hello;
    uint8_t nonce[DD_AUTH_NONCE_BYTES];
    uint8_t proof[DD_SHA256_BYTES];
    dd_seal *seal; /* NULL if its messages are not sealed, or not yet */
    dd_link *link; /* in step TAKING: owns the socket */
} connect_incoming;

typedef struct connect_dial connect_dial;

/* Listening TCP sockets. */
typedef struct connect_ports {
    int fds[CONNECT_LISTEN_MAX];
    size_t count;
    bool is_loopback; /* unreachable from other hosts */
} connect_ports;

struct dd_connector {
    /* const after init */
    dd_connect_options options;
    dd_connect_handler handler;
    const dd_card *card; /* of this process; the owner's */
    dd_uid uid;
    uint64_t generation;
    int unix_fd; /* -1 if there is none */
    int wake_fd; /* eventfd: wakes the thread to check the guarded fields */
    pthread_t thread;
    /* errno if accepting fails, else 0 (release); and since when, written before it. */
    atomic_int accept_errno;
    atomic_int_fast64_t failing_since_ns;
    /* For dd_connector_last_shortage: the errno (release), written after its time. */
    atomic_int shortage_errno;
    atomic_int_fast64_t shortage_ns;

    /* owned by the thread */
    int64_t failed_ns;  /* when accepting failed last */
    int64_t may_log_ns; /* when the next failure to accept may be logged */
    dd_list incoming_all;
    dd_admission admission;
    dd_list dials;
    size_t ndials;
    struct pollfd pollfds[CONNECT_POLLED_MAX];
    nfds_t npolled;
    int64_t sleep_until_ns;

    dd_lock mu;
    /* guarded by mu */
    dd_list queue;       /* dials that have not begun */
    connect_ports ports; /* closed only by the thread, which polls them */
    bool wants_ports;
    bool is_closing;
};

/* ---- connect.c */

/* Record a handshake that failed with `err` if this process lacked a resource: the other side may
 * take the link as made. */
void connect_note_shortage(dd_connector *connector, const dd_error *err);

/* ---- connect_sleep.c */

/* Wake the thread to check the guarded fields. */
void connect_wake(const dd_connector *connector);
/* End the next sleep when fd has one of the events; connect_is_ready(polled) is true then. */
void connect_poll(dd_connector *connector, int fd, short events, size_t *polled);
/* End the next sleep at this time. */
void connect_sleep_until(dd_connector *connector, int64_t until_ns);
/* Call once after each sleep. Returns true if there was an event. */
bool connect_is_ready(const dd_connector *connector, size_t *polled);
/* Forget the events and times of the last sleep; then sleep. */
void connect_begin_round(dd_connector *connector);
void connect_sleep(dd_connector *connector);

/* ---- connect_accept.c */

void connect_init_incoming(dd_connector *connector);
/* Takes fd. Call only if there is room in connector->admission. */
void connect_add_incoming(dd_connector *connector, int fd, bool is_unix);
void connect_poll_incoming(dd_connector *connector);
/* After the sleep: advance connections with input, and close those that have timed out. */
void connect_advance_incoming(dd_connector *connector);
void connect_close_incoming(dd_connector *connector);

/* ---- connect_dial.c */

void connect_poll_dials(dd_connector *connector);
/* After the sleep: advance all dials, and begin queued ones. */
void connect_run_dials(dd_connector *connector);
void connect_destroy_dials(dd_connector *connector);

/* ---- connect_listen.c */

/* Open listening sockets and return their addresses. On failure nothing is open. */
dd_status connect_listen_tcp(const dd_connector *connector, const dd_addr *first, connect_ports *ports,
                             dd_addr_list *addrs, dd_error *err) DD_MUST_CHECK;
void connect_close_ports(connect_ports *ports);
/* Return the sockets to poll. Closes ports that are no longer wanted, while nothing polls them. */
size_t connect_take_listeners(dd_connector *connector, int fds[CONNECT_LISTEN_MAX]);
/* Open the Unix socket, and set card->has_unix. */
void connect_listen_unix(dd_connector *connector, dd_card *card);

/* Set TCP_CONGESTION if the options name one. */
dd_status connect_set_congestion(const dd_connector *connector, int fd, dd_error *err) DD_MUST_CHECK;

#endif
