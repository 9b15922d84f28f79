/* A context: the messages of one group. Ranks are the group's; every function except open and close
 * needs the engine's lock.
 *
 * A message is matched by (context, sender, kind, tag, channel), first in first out. Point-to-point
 * receives may take any sender. Messages of collectives have the sequence number as tag, and the
 * operation's signature, on which both sides must agree. Messages of windows (requests) need no
 * posted receive: the handler supplies one when the header arrives.
 *
 * Small messages are sent eagerly, up to a credit, and the receiver holds them until they are
 * matched. Larger ones wait at the sender until the receiver has memory (rendezvous), and may use
 * several lanes. */
#ifndef DD_TRANSPORT_CONTEXT_H
#define DD_TRANSPORT_CONTEXT_H

#include "transport/cause.h"
#include "transport/engine.h"
#include "transport/signature.h"

#define DD_ANY_RANK (-1)

typedef enum dd_message_kind {
    DD_MESSAGE_P2P,
    DD_MESSAGE_COLL,
    DD_MESSAGE_WINDOW,
} dd_message_kind;

/* A send or receive under way. The owner embeds it, fills in the first part, and must not touch it
 * until on_done. */
typedef struct dd_message dd_message;
struct dd_message {
    dd_message_kind kind;
    int rank; /* the other side; DD_ANY_RANK only in a P2P receive */
    uint64_t tag;
    uint32_t channel;
    void *data;
    /* For a receive: the room. A larger message is DD_INVALID_ARGUMENT, naming both sizes; a
     * smaller one is accepted for P2P, and DD_MISMATCH for COLL. */
    size_t nbytes;
    /* For COLL. For P2P possibly NULL; DD_MISMATCH if both sides have one and the dtypes differ. */
    const dd_signature *signature;
    /* Called once, not within a post (but see dd_context_notify_locked). `error`: NULL on success. */
    void (*on_done)(dd_message *message, const dd_error *error);
    void *owner;

    int source;      /* result: the sender's rank */
    size_t received; /* result: size of the message */

    /* private to the transport */
    dd_list link;
    uint8_t stage;
    bool is_send;
    bool is_posted;    /* true until on_done; the poster may read it */
    uint64_t id;       /* of a rendezvous; else 0 */
    uint64_t order;    /* of a receive: its place in the order of posting */
    size_t cut;        /* bytes handed to lanes, or announced by DATA */
    size_t moved;      /* bytes that have been transferred */
    dd_error *failure; /* result for on_done; NULL on success */
    struct dd_context *context;
    struct dd_peer *peer;
};

/* The header of a request, which precedes its bytes. The sender's signature is not compared. */
typedef struct dd_request {
    uint64_t tag;
    uint32_t channel;
    uint64_t nbytes;
    dd_signature signature;
} dd_request;

/* Callbacks to the owner of a context, with the lock held. */
typedef struct dd_context_handler {
    void *ctx;
    /* A message of a collective has arrived, possibly before its receive is posted: for comparing
     * signatures early, and for knowing which ranks have joined. */
    void (*on_coll)(void *ctx, int rank, uint64_t sequence, const dd_signature *signature);
    /* A rank has aborted, for this cause. */
    void (*on_abort)(void *ctx, int rank, const dd_cause *cause);
    /* A rank is unreachable. Not called for a rank that has sent GOODBYE to this context. */
    void (*on_lost)(void *ctx, int rank, const dd_error *error);
    /* A rank has closed its context cleanly. */
    void (*on_goodbye)(void *ctx, int rank);
    /* on_query: a rank queries this one's progress; set the state. on_answer: a rank answers. */
    void (*on_query)(void *ctx, uint64_t *sequence, dd_signature *signature, bool *is_inside);
    void (*on_answer)(void *ctx, int rank, uint64_t sequence, const dd_signature *signature, bool is_inside);
    /* Called before on_answer: the network repeatedly loses `nbytes` bytes that the rank sends to
     * rank `to`; 0 if there is no loss. */
    void (*on_loss)(void *ctx, int rank, int to, uint64_t nbytes);
    /* A request has arrived. Return its receive, which counts as posted, or NULL to hold it; then
     * the following requests must also be held. */
    dd_message *(*on_request)(void *ctx, int rank, const dd_request *request);
    /* A process of this host has rung: check what its ranks have posted in shared memory. Frames
     * that arrived earlier on links have been handled. */
    void (*on_bell)(void *ctx);
    /* A rank of this host requests a descriptor: call dd_context_pass_fd_locked if it exists. */
    void (*on_fd_wanted)(void *ctx, int rank, uint64_t fd_key);
    /* A rank passes `fd`: DD_SOCK_FD_REFUSED if this process had no room for it, DD_FD_DENIED if
     * there is none. Return true to take it; otherwise it is closed as unwanted or a duplicate. */
    bool (*on_fd)(void *ctx, int rank, uint64_t fd_key, int fd);
} dd_context_handler;

typedef struct dd_context dd_context;

/* Open a context. `id` identifies the group: the same on all its ranks, and no other group's. Takes
 * a reference on each of the nranks peers; peers[rank] is this process. Frames that arrived
 * earlier, and lost ranks, are reported to the handler within this call, after *context is set.
 * Several ranks of a group may be in one process. */
dd_status dd_context_open(dd_engine *engine, uint64_t id, int rank, int nranks, dd_peer *const *peers,
                          const dd_context_handler *handler, dd_context **context,
                          dd_error *err) DD_MUST_CHECK;

/* Close a context, and send GOODBYE to the connected peers. Posted messages must be done or
 * cancelled; the handler is not called afterwards. Waits until the kernel or the peers have all
 * frames that were posted, at most until the deadline. */
void dd_context_close(dd_context *context, const dd_wait *wait);

/* Start the message, and connect if there is no link. on_done reports failures. */
void dd_context_post_send_locked(dd_context *context, dd_message *message);
void dd_context_post_recv_locked(dd_context *context, dd_message *message);

/* Call on_done now if the message has ended: a caller need not drive for it. Returns true if so. */
bool dd_context_notify_locked(dd_message *message);
/* Call on_done now if the posted message has succeeded. Returns true if so. */
bool dd_context_notify_success_locked(dd_message *message);

/* Poll for the end of a posted message, at most `npolls` times or until another thread wants the
 * lock, and call on_done. If nothing else is under way in this process, polls only the shared
 * memory of the other side; else everything, which counts as several polls. Never polls a peer that
 * is reached over a socket. Returns true if the message has ended. Not from a callback. */
bool dd_context_poll_locked(dd_message *message, int npolls);

/* Count (is_expected) or discount data that is awaited from the rank without a posted receive:
 * while there is any, the rank's sockets are polled more often. */
void dd_context_expect_locked(dd_context *context, int rank, bool is_expected);

/* Offer the first held request of the rank, if there is one, to the handler again. */
void dd_context_take_request_locked(dd_context *context, int rank);

/* Continue an unfinished send from a copy of its memory. */
void dd_context_move_send_locked(dd_message *message, void *copy);

/* End a posted message with `error`, and call on_done within this call. Its memory is not accessed
 * afterwards. Bytes of a receive that are still arriving are dropped; the receiver of a large send
 * is notified. A message that has ended already keeps its result. */
void dd_context_cancel_locked(dd_context *context, dd_message *message, const dd_error *error);

/* Call `visit` for each held COLL message with this sequence number, whose receive is not posted
 * yet; for comparing signatures when an operation begins. */
void dd_context_visit_held_locked(dd_context *context, uint64_t sequence,
                                  void (*visit)(void *ctx, int rank, const dd_signature *signature),
                                  void *ctx);

/* Send the cause of this rank's failure to the connected ranks except `except` (or DD_ANY_RANK).
 * With `spares_near`, processes of this host get nothing: they read it in shared memory. As much as
 * there is room for is on its way on return: if this process then ends, peers receive it before
 * they see the end. The rest is sent before dd_engine_wait returns to any caller, or is dropped
 * after 200 ms. */
void dd_context_post_abort_locked(dd_context *context, int except, bool spares_near, const dd_cause *cause);

/* Request a descriptor from a rank of this host; pass one, which stays the caller's, or
 * DD_FD_DENIED. Needs no link. A datagram may be lost: the waiting rank must repeat its request.
 * Returns false if nothing was sent. */
#define DD_FD_DENIED (-3)
bool dd_context_want_fd_locked(dd_context *context, int rank, uint64_t fd_key);
bool dd_context_pass_fd_locked(dd_context *context, int rank, uint64_t fd_key, int fd);
/* Return DD_SYSTEM if the last six datagrams failed through this process's own fault. */
dd_status dd_context_check_datagrams_locked(const dd_context *context, dd_error *err) DD_MUST_CHECK;

/* Handle a cause that a rank has posted in shared memory, like one received over a link. */
void dd_context_handle_abort_locked(dd_context *context, int rank, dd_bytes cause);
/* Handle a rank's note in shared memory that it has left. If there is a link, a QUESTION is sent
 * first, since messages may precede the answer. */
void dd_context_handle_goodbye_locked(dd_context *context, int rank);

/* Query the progress of a rank, if it is connected. */
void dd_context_post_question_locked(dd_context *context, int rank);

bool dd_context_is_connected_locked(const dd_context *context, int rank);

/* Find a rank to which the network loses this rank's data. Returns false if none is known. */
bool dd_context_find_loss_locked(const dd_context *context, int *rank, dd_path_loss *loss);

#endif
