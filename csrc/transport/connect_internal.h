/* Declarations shared by the connector's files. Fields belong to the connector's thread unless
 * marked otherwise. A handshake is a state machine, advanced by input on its socket or by its
 * deadline. */
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

/* Maximum number of dials in progress; further dials are queued. */
#define CONNECT_DIALS_MAX 64
/* Maximum number of connections that are not links yet, for each stage of net/admission.h; further
 * connections wait in the kernel. CONNECT_INCOMING_MAX covers all stages: there may be up to twice
 * CONNECT_STAGE_MAX greeted connections, since silent connections become greeted. */
#define CONNECT_STAGE_MAX 64
#define CONNECT_INCOMING_MAX (3 * CONNECT_STAGE_MAX + 1)
/* Maximum number of listening sockets: one per own TCP address, and one Unix socket. */
#define CONNECT_LISTEN_MAX (DD_ADDR_LIST_MAX + 1)
/* Maximum number of addresses that a dial tries: the peer's TCP addresses, and its Unix socket. */
#define CONNECT_RACERS_MAX (DD_ADDR_LIST_MAX + 1)
#define CONNECT_POLLED_MAX \
    (1 + CONNECT_LISTEN_MAX + CONNECT_INCOMING_MAX + CONNECT_DIALS_MAX * CONNECT_RACERS_MAX)

/* ---- connect_hello.c: messages of the handshake; sizes in bytes
 *
 *     dialler -> listener   hello    magic 4, version 2, flags 2, own uid 16, wanted uid 16,
 *                                    lane 4, cipher 4, nonce 32
 *     listener -> dialler   answer   magic 4, version 2, result 1, zero 1, nonce 32, proof 32
 *     dialler -> listener   proof    32, if there is a secret
 *     listener -> dialler   result  1
 *
 * Numbers are little-endian. net/auth.h defines the proofs. They cover the whole hello, so a proof
 * is valid only for these two processes, this lane and this connection. On an encrypted link, the
 * first message of its key exchange replaces the hello's nonce and makes the hello longer; the
 * second message replaces the answer's nonce and proof. All later bytes are sealed (encrypted), and
 * the proof is one byte. */

#define CONNECT_HELLO_BYTES 80
#define CONNECT_SEALED_HELLO_BYTES 96
#define CONNECT_ANSWER_BYTES 72
#define CONNECT_SEALED_PROOF_BYTES 1

typedef enum connect_result {
    CONNECT_GO_ON, /* no objection so far: continue the handshake (only in an answer) */
    CONNECT_OK,
    CONNECT_BUSY,
    CONNECT_OTHER_PROCESS, /* the listener is not the process that the dialler wants */
    CONNECT_OTHER_VERSION,
    CONNECT_SECRET_WANTED, /* the listener has a secret, but the dialler has none */
    CONNECT_NO_SECRET,     /* the dialler has a secret, but the listener has none */
    CONNECT_DENIED,        /* the dialler's proof of the secret is wrong */
    CONNECT_NO_SUCH_LANE,
    CONNECT_ENCRYPTION_WANTED, /* the listener encrypts, but the dialler does not */
    CONNECT_NO_ENCRYPTION,     /* the dialler encrypts, but the listener does not */
    CONNECT_NO_CIPHER,         /* the listener does not support the dialler's cipher */
    CONNECT_RESULT_COUNT,
} connect_result;

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
    dd_cipher cipher; /* the dialler's cipher, if is_sealed is true; otherwise unused */
    unsigned version;
    uint8_t bytes[CONNECT_SEALED_HELLO_BYTES]; /* the hello as sent; proofs cover all its bytes */
} connect_hello;

typedef struct connect_answer {
    connect_result result;
    unsigned version;
    uint8_t nonce[DD_AUTH_NONCE_BYTES];
    uint8_t proof[DD_SHA256_BYTES];
} connect_answer;

/* Write a hello. connect_hello_write_head writes hello->bytes up to the nonce; connect_hello_write
 * also writes a random nonce, for a link that is not sealed. */
void connect_hello_write_head(connect_hello *hello);
dd_status connect_hello_write(connect_hello *hello, dd_error *err) DD_MUST_CHECK;
/* Return the size of a hello in bytes. The first CONNECT_HELLO_BYTES bytes must have arrived. */
size_t connect_hello_nbytes(const connect_hello *hello);
/* Return true if these bytes can be the beginning of a hello. */
bool connect_is_hello_so_far(const uint8_t *bytes, size_t nbytes);
/* Parse hello->bytes. Returns false if the bytes are not a hello. If the version in the hello
 * differs from this process's version, only hello->version is valid. */
bool connect_hello_read(connect_hello *hello);

/* Return the part of a hello that proofs cover (`opening` in net/auth.h); not for sealed links. */
static inline dd_bytes
connect_hello_opening(const connect_hello *hello)
{
    return dd_bytes_of(hello->bytes, CONNECT_HELLO_BYTES);
}

void connect_answer_write(const connect_answer *answer, uint8_t bytes[CONNECT_ANSWER_BYTES]);
bool connect_answer_read(const uint8_t bytes[CONNECT_ANSWER_BYTES], connect_answer *answer);

/* Set the error that `result` means for this side (`role`). `version` is the peer's version. */
dd_status connect_explain(connect_result result, connect_role role, unsigned version, dd_error *err);

/* Send all bytes, or fail if the socket has no room for them. Handshake messages are short, so a
 * socket without unsent data always has room. `seal` may be NULL. */
dd_status connect_send(int fd, dd_seal *seal, const void *data, size_t nbytes, dd_error *err) DD_MUST_CHECK;
/* Receive more of a message of `nbytes` bytes, *nreceived so far. Sets *is_whole if complete. */
dd_status connect_receive(int fd, dd_seal *seal, uint8_t *bytes, size_t nbytes, size_t *nreceived,
                          bool *is_whole, dd_error *err) DD_MUST_CHECK;

/* ---- connect_seal.c: encrypted links */

/* Return true if links over this kind of socket (Unix or TCP) are encrypted. */
bool connect_is_sealed(const dd_connector *connector, bool is_unix);
/* Functions for the dialler. begin writes the hello. finish handles the answer and wipes `noise`;
 * it returns DD_AUTH if the listener has another secret, or if bytes were changed on the way. */
dd_status connect_seal_begin(dd_noise *noise, connect_hello *hello, dd_error *err) DD_MUST_CHECK;
dd_status connect_seal_finish(dd_noise *noise, dd_bytes secret, const uint8_t answer[CONNECT_ANSWER_BYTES],
                              dd_seal **seal, dd_error *err) DD_MUST_CHECK;
/* For the listener: complete an answer by adding the nonce and the proof. The listener must support
 * the dialler's cipher. Returns DD_AUTH if the hello was changed on the way. */
dd_status connect_seal_answer(dd_bytes secret, const connect_hello *hello,
                              uint8_t answer[CONNECT_ANSWER_BYTES], dd_seal **seal,
                              dd_error *err) DD_MUST_CHECK;

/* ---- types */

/* The next message that a listener awaits on a connection that is not a link yet. */
typedef enum incoming_step {
    INCOMING_HELLO,  /* the dialler's hello */
    INCOMING_PROOF,  /* the proof that the dialler knows the secret */
    INCOMING_TAKING, /* the dialler's notice that it has mapped the link's shared memory */
} incoming_step;

typedef struct connect_incoming {
    dd_list node; /* link in connector->incoming_all */
    dd_admission_peer admission;
    dd_connector *connector;
    int fd;
    bool is_unix;
    incoming_step step;
    size_t polled; /* index of fd in connector->pollfds; set by connect_poll */
    size_t nreceived;
    connect_hello hello;
    uint8_t nonce[DD_AUTH_NONCE_BYTES];
    uint8_t proof[DD_SHA256_BYTES];
    dd_seal *seal; /* encrypts messages; NULL if they are not, or not yet, encrypted */
    dd_link *link; /* the new link, which owns the socket, in step INCOMING_TAKING; else NULL */
} connect_incoming;

typedef struct connect_dial connect_dial;

/* The TCP sockets on which the connector listens. */
typedef struct connect_ports {
    int fds[CONNECT_LISTEN_MAX];
    size_t count;
    bool is_loopback; /* true if other hosts cannot reach these ports */
} connect_ports;

struct dd_connector {
    /* all fields up to `thread` are const after init */
    dd_connect_options options;
    dd_connect_handler handler;
    const dd_endpoint *endpoint; /* this process's endpoint, owned by the engine */
    dd_uid uid;
    uint64_t generation;
    int unix_fd; /* listening Unix socket, or -1 */
    int wake_fd; /* eventfd that makes the connector's thread check the fields guarded by mu */
    pthread_t thread;
    atomic_int accept_errno; /* errno if accepting fails, else 0; stored after failing_since_ns */
    atomic_int_fast64_t failing_since_ns;
    atomic_int shortage_errno; /* errno of the last shortage, or 0; stored after shortage_ns */
    atomic_int_fast64_t shortage_ns;

    /* all fields up to `sleep_until_ns` are used only by the connector's thread */
    int64_t failed_ns;  /* time of the last failed accept */
    int64_t may_log_ns; /* earliest time to log another failed accept */
    dd_list incoming_all;
    dd_admission admission;
    dd_list dials;
    size_t ndials;
    struct pollfd pollfds[CONNECT_POLLED_MAX];
    nfds_t npolled;
    int64_t sleep_until_ns;

    dd_lock mu;
    /* this field and all below are guarded by mu */
    dd_list queue;       /* list of dials that have not begun */
    connect_ports ports; /* guarded by mu; closed only by the connector's thread */
    bool wants_ports;
    bool is_closing;
};

/* ---- connect.c */

/* Record that a handshake failed with `err`, if the cause was a lack of local resources. The peer
 * may then believe that the link exists. */
void connect_note_shortage(dd_connector *connector, const dd_error *err);

/* ---- connect_sleep.c */

/* Wake the connector's thread, so that it checks the fields guarded by mu. */
void connect_wake(const dd_connector *connector);
/* Let the next sleep end when fd has one of `events`: connect_is_ready(polled) is then true. */
void connect_poll(dd_connector *connector, int fd, short events, size_t *polled);
/* Let the next sleep end at until_ns, or earlier. */
void connect_sleep_until(dd_connector *connector, int64_t until_ns);
/* Return true if the last sleep ended with an event for `polled`. Must be called once per sleep. */
bool connect_is_ready(const dd_connector *connector, size_t *polled);
/* begin_round: clear the events and times of the last sleep. sleep: wait for a new event or time */
void connect_begin_round(dd_connector *connector);
void connect_sleep(dd_connector *connector);

/* ---- connect_accept.c */

void connect_init_incoming(dd_connector *connector);
/* Add a new connection, which takes ownership of fd. connector->admission must have room for it. */
void connect_add_incoming(dd_connector *connector, int fd, bool is_unix);
void connect_poll_incoming(dd_connector *connector);
/* Advance connections that have input, and close those that timed out. Call after connect_sleep. */
void connect_advance_incoming(dd_connector *connector);
void connect_close_incoming(dd_connector *connector);

/* ---- connect_dial.c */

void connect_poll_dials(dd_connector *connector);
/* Advance all dials, and begin queued dials. Call after connect_sleep. */
void connect_run_dials(dd_connector *connector);
void connect_destroy_dials(dd_connector *connector);

/* ---- connect_listen.c */

/* Open the TCP sockets to listen on, and return their addresses. On failure, none stays open. */
dd_status connect_listen_tcp(const dd_connector *connector, const dd_addr *first, connect_ports *ports,
                             dd_addr_list *addrs, dd_error *err) DD_MUST_CHECK;
void connect_close_ports(connect_ports *ports);
/* Return the sockets to poll. Also closes unwanted ports, so must not be called during a poll. */
size_t connect_take_listeners(dd_connector *connector, int fds[CONNECT_LISTEN_MAX]);
/* Open the listening Unix socket, and set endpoint->has_unix to true if that succeeds. */
void connect_listen_unix(dd_connector *connector, dd_endpoint *endpoint);

/* Set TCP_CONGESTION of a socket if the options name an algorithm. */
dd_status connect_set_congestion(const dd_connector *connector, int fd, dd_error *err) DD_MUST_CHECK;

#endif
