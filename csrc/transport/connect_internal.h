/* The parts of the connector, which only they see. All that is not marked otherwise belongs to its thread, which never
 * blocks in a hand-shake: each is a small machine that goes on when its socket or its deadline says so. */
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

/* Dials under way at once; others wait their turn. */
#define CONNECT_DIALS_MAX 64
/* Connections of one stage of net/admission.h that are not links yet; others wait in the kernel. Of all stages: greeted ones may be
 * twice as many, as silent ones join them. */
#define CONNECT_STAGE_MAX 64
#define CONNECT_GUESTS_MAX (3 * CONNECT_STAGE_MAX + 1)
/* All addresses of a card; or a loopback address, and then all in one; and the Unix socket. */
#define CONNECT_LISTEN_MAX (DD_ADDR_LIST_MAX + 1)
/* The addresses of a card, and the Unix socket. */
#define CONNECT_RACERS_MAX (DD_ADDR_LIST_MAX + 1)
#define CONNECT_POLLED_MAX \
    (1 + CONNECT_LISTEN_MAX + CONNECT_GUESTS_MAX + CONNECT_DIALS_MAX * CONNECT_RACERS_MAX)

/* ---- connect_hello.c: what is said
 *
 *     dialer -> listener   hello    magic 4, version 2, flags 2, own uid 16, uid of whom it wants 16,
 *                                   lane 4, cipher 4, nonce 32
 *     listener -> dialer   answer   magic 4, version 2, verdict 1, zero 1, nonce 32, proof 32
 *     dialer -> listener   proof    32, where there is a secret
 *     listener -> dialer   verdict  1
 *
 * Numbers in little endian. net/auth.h defines the proofs; their opening is the hello, so a proof holds for these two processes, this lane
 * and this connection.
 *
 * A link that is encrypted has a cipher. Its hello is longer: message 1 of the hand-shake stands in the place of the nonce, and message 2
 * in that of the answer's nonce and proof. From then on all is sealed, beginning with the dialler's proof: one byte. */

#define CONNECT_HELLO_BYTES 80
#define CONNECT_SEALED_HELLO_BYTES 96
#define CONNECT_ANSWER_BYTES 72
#define CONNECT_SEALED_PROOF_BYTES 1

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
    CONNECT_ENCRYPTION_WANTED, /* the dialer does not encrypt */
    CONNECT_NO_ENCRYPTION,     /* the listener does not */
    CONNECT_NO_CIPHER,         /* the listener does not know the dialer's */
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
    dd_cipher cipher; /* where it is sealed */
    unsigned version;
    uint8_t bytes[CONNECT_SEALED_HELLO_BYTES]; /* all of it, as it goes into proofs */
} connect_hello;

typedef struct connect_answer {
    connect_verdict verdict;
    unsigned version;
    uint8_t nonce[DD_AUTH_NONCE_BYTES];
    uint8_t proof[DD_SHA256_BYTES];
} connect_answer;

/* Fills in bytes: all before the nonce; and the rest, with a fresh one, for a link that is not sealed. */
void connect_hello_write_head(connect_hello *hello);
dd_status connect_hello_write(connect_hello *hello, dd_error *err) DD_MUST_CHECK;
/* How many bytes it has; of one that is coming, with CONNECT_HELLO_BYTES of them here. */
size_t connect_hello_nbytes(const connect_hello *hello);
/* Whether these first bytes may be those of a hello. */
bool connect_is_hello_so_far(const uint8_t *bytes, size_t nbytes);
/* Reads bytes. False when it is no hello; of another version only that is known. */
bool connect_hello_read(connect_hello *hello);

/* The opening that proofs cover (net/auth.h), of a hello that is not sealed. */
static inline dd_bytes
connect_hello_opening(const connect_hello *hello)
{
    return dd_bytes_of(hello->bytes, CONNECT_HELLO_BYTES);
}

void connect_answer_write(const connect_answer *answer, uint8_t bytes[CONNECT_ANSWER_BYTES]);
bool connect_answer_read(const uint8_t bytes[CONNECT_ANSWER_BYTES], connect_answer *answer);

/* The failure that a verdict means for our side, `role`, where the other side has that version. */
dd_status connect_explain(connect_verdict verdict, connect_role role, unsigned version, dd_error *err);

/* Sends all of the bytes; `seal` may be NULL. What is said in a hand-shake is little, and an empty socket has room for it: one that
 * has none is a failure. */
dd_status connect_say(int fd, dd_seal *seal, const void *data, size_t nbytes, dd_error *err) DD_MUST_CHECK;
/* Hears the rest of `nbytes`, of which there are *nheard. *is_whole is false while some are missing. */
dd_status connect_hear(int fd, dd_seal *seal, uint8_t *bytes, size_t nbytes, size_t *nheard, bool *is_whole,
                       dd_error *err) DD_MUST_CHECK;

/* ---- connect_seal.c: links that are encrypted */

/* Whether links over such a socket are. */
bool connect_is_sealed(const dd_connector *connector, bool is_unix);
/* The dialler: writes the hello, and takes the answer to it; both wipe the noise in the end. DD_AUTH: the listener has another secret, or
 * something was changed on the way. */
dd_status connect_seal_begin(dd_noise *noise, connect_hello *hello, dd_error *err) DD_MUST_CHECK;
dd_status connect_seal_finish(dd_noise *noise, dd_bytes secret, const uint8_t answer[CONNECT_ANSWER_BYTES],
                              dd_seal **seal, dd_error *err) DD_MUST_CHECK;
/* The listener, who has the cipher: completes an answer that is written but for its nonce and proof. DD_AUTH: the hello was changed. */
dd_status connect_seal_answer(dd_bytes secret, const connect_hello *hello,
                              uint8_t answer[CONNECT_ANSWER_BYTES], dd_seal **seal,
                              dd_error *err) DD_MUST_CHECK;

/* ---- what there is */

/* A connection from a stranger. */
typedef enum guest_step {
    GUEST_HELLO,  /* has to say hello */
    GUEST_PROOF,  /* has to prove that it knows the secret */
    GUEST_TAKING, /* has to say that it has taken the memory of its link */
} guest_step;

typedef struct connect_guest {
    dd_list node; /* in connector->guests */
    dd_admission_peer admission;
    dd_connector *connector;
    int fd;
    bool is_unix;
    guest_step step;
    size_t polled; /* as in connect_poll */
    size_t nheard;
    connect_hello hello;
    uint8_t nonce[DD_AUTH_NONCE_BYTES];
    uint8_t proof[DD_SHA256_BYTES];
    dd_seal *seal; /* NULL: what it says is not sealed, or not yet */
    dd_link *link; /* TAKING: owns the socket */
} connect_guest;

typedef struct connect_dial connect_dial;

/* Listening TCP sockets. */
typedef struct connect_ports {
    int fds[CONNECT_LISTEN_MAX];
    size_t count;
    bool is_loopback; /* from outside nobody reaches them */
} connect_ports;

struct dd_connector {
    /* const after init */
    dd_connect_options options;
    dd_connect_handler handler;
    const dd_card *card; /* the owner's, of this process */
    dd_uid uid;
    uint64_t generation;
    int unix_fd; /* -1: none */
    int wake_fd; /* eventfd: for the thread to look at what is guarded */
    pthread_t thread;
    /* Why connections cannot be accepted, 0 while they can (release); and since when, written before that. */
    atomic_int accept_errno;
    atomic_int_fast64_t failing_since_ns;
    /* Of hand-shakes, as dd_connector_last_shortage has it: release, after its time. */
    atomic_int shortage_errno;
    atomic_int_fast64_t shortage_ns;

    /* the thread's */
    int64_t failed_ns;  /* when accepting could not last */
    int64_t may_log_ns; /* thread only: when the next failure to accept is logged */
    dd_list guests;
    dd_admission admission;
    dd_list dials;
    size_t ndials;
    struct pollfd pollfds[CONNECT_POLLED_MAX];
    nfds_t npolled;
    int64_t sleep_until_ns;

    dd_lock mu;
    /* guarded by mu */
    dd_list queue;       /* dials that have not begun */
    connect_ports ports; /* closed by the thread only, which polls them */
    bool wants_ports;
    bool is_closing;
};

/* ---- connect.c */

/* Of a hand-shake that has come to nothing by `err`: the other side may have taken the link for made. */
void connect_note_shortage(dd_connector *connector, const dd_error *err);

/* ---- connect_sleep.c */

/* For the thread to look at what is guarded. */
void connect_wake(const dd_connector *connector);
/* Has the next sleep end when fd has one of the events. *polled finds what it had. */
void connect_poll(dd_connector *connector, int fd, short events, size_t *polled);
/* Has it end at that time. */
void connect_sleep_until(dd_connector *connector, int64_t until_ns);
/* Once after each sleep: whether there was something. */
bool connect_is_ready(const dd_connector *connector, size_t *polled);
/* Forgets what the last sleep was for, and sleeps. */
void connect_begin_round(dd_connector *connector);
void connect_sleep(dd_connector *connector);

/* ---- connect_accept.c */

void connect_init_guests(dd_connector *connector);
/* Takes fd. Call only if there is room in connector->admission. */
void connect_add_guest(dd_connector *connector, int fd, bool is_unix);
void connect_poll_guests(dd_connector *connector);
/* After the sleep: goes on with those that have said something, closes those that are late. */
void connect_hear_guests(dd_connector *connector);
void connect_close_guests(dd_connector *connector);

/* ---- connect_dial.c */

void connect_poll_dials(dd_connector *connector);
/* After the sleep: goes on with all, and takes new ones. */
void connect_run_dials(dd_connector *connector);
void connect_drop_dials(dd_connector *connector);

/* ---- connect_listen.c */

/* Opens listening sockets and tells where they are. On failure nothing is open. */
dd_status connect_listen_tcp(const dd_connector *connector, const dd_addr *first, connect_ports *ports,
                             dd_addr_list *addrs, dd_error *err) DD_MUST_CHECK;
void connect_close_ports(connect_ports *ports);
/* What the thread is to poll. Closes the ports that are not wanted any more, as nobody polls them now. */
size_t connect_take_listeners(dd_connector *connector, int fds[CONNECT_LISTEN_MAX]);
/* The Unix socket, and in the card whether there is one. */
void connect_listen_unix(dd_connector *connector, dd_card *card);

/* TCP_CONGESTION, where asked for. */
dd_status connect_set_congestion(const dd_connector *connector, int fd, dd_error *err) DD_MUST_CHECK;

#endif
