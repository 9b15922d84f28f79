/* A context: the messages of one group. Ranks are numbers in that group. Every function except open
 * and close requires the engine's lock.
 *
 * A message matches a receive of the same (context, sender, kind, tag, channel), first in, first
 * out. Point-to-point receives may accept any sender and any tag. A peek is a receive that takes
 * nothing: it ends when a matching message is held. Messages of collectives have the sequence
 * number as tag, and the operation's signature, on which both sides must agree. Messages of windows
 * (requests) need no posted receive: the handler supplies the receive when the header arrives.
 *
 * Small messages are sent eagerly, up to a credit, and the receiver holds them until they are
 * matched. Larger messages wait at the sender until the receiver has posted memory, and may use
 * several lanes (connections). */
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

/* A send or receive in progress. Its owner embeds this struct and must fill in the fields before
 * `source`. The owner must not touch the struct between the post and on_done. */
typedef struct dd_message dd_message;
struct dd_message {
    dd_message_kind kind;
    int rank; /* number of the other rank; DD_ANY_RANK only in a P2P receive */
    uint64_t tag;
    uint32_t channel;
    bool is_any_tag; /* only in a P2P receive: matches every tag, and `tag` is ignored */
    bool is_peek;    /* only in a P2P receive: gets the results, but not the message */
    void *data;
    /* For a send: the size of `data` in bytes. For a receive: the maximum size. A larger message
     * fails with DD_INVALID_ARGUMENT, which names both sizes. A smaller message is accepted for
     * P2P, and fails with DD_MISMATCH for COLL. */
    size_t nbytes;
    /* Signature of the operation. Must be set for COLL; may be NULL for P2P. A P2P message fails
     * with DD_MISMATCH if both sides have a signature and the dtypes differ. */
    const dd_signature *signature;
    /* Called once, never within a post (see dd_context_notify_locked). `error`: NULL on success. */
    void (*on_done)(dd_message *message, const dd_error *error);
    void *owner;

    int source;        /* result of a receive: the rank that sent the message */
    uint64_t sent_tag; /* result of a receive: the tag of the message */
    size_t received;   /* result of a receive: the size of the message in bytes */

    /* all fields below are private to the transport */
    dd_list link;
    uint8_t stage;
    bool is_send;
    bool is_posted;    /* true from the post until on_done; the owner may read this field */
    uint64_t id;       /* id of a message that is sent on request (RTS); 0 for an eager message */
    uint64_t order;    /* position of this message in the order of all posts */
    size_t cut;        /* bytes handed to lanes (send), or announced by DATA frames (receive) */
    size_t moved;      /* number of bytes transferred so far */
    dd_error *failure; /* error to pass to on_done; NULL on success */
    struct dd_context *context;
    struct dd_peer *peer;
};

/* The header of a window's message, which arrives before its data. Signatures are not compared. */
typedef struct dd_request {
    uint64_t tag;
    uint32_t channel;
    uint64_t nbytes;
    dd_signature signature;
} dd_request;

/* Callbacks to the owner of a context. They run with the engine's lock held. */
typedef struct dd_context_handler {
    void *ctx;
    /* A message of a collective has arrived, maybe before its receive is posted. The callee can
     * compare signatures early, and learns that the rank has joined. */
    void (*on_coll)(void *ctx, int rank, uint64_t sequence, const dd_signature *signature);
    /* Rank `rank` has aborted the group, for this cause. */
    void (*on_abort)(void *ctx, int rank, const dd_cause *cause);
    /* Rank `rank` is unreachable. Not called for a rank that has closed its context (GOODBYE). */
    void (*on_lost)(void *ctx, int rank, const dd_error *error);
    /* Rank `rank` has closed its context cleanly. */
    void (*on_goodbye)(void *ctx, int rank);
    /* on_query: another rank queries this rank's progress; the callee must set the three values.
     * on_answer: rank `rank` has answered a query by this rank with its own progress. */
    void (*on_query)(void *ctx, uint64_t *sequence, dd_signature *signature, bool *is_inside);
    void (*on_answer)(void *ctx, int rank, uint64_t sequence, const dd_signature *signature, bool is_inside);
    /* The network repeatedly loses data that rank `rank` sends to rank `to`. `nbytes` is the size
     * of the lost data, 0 if there is no loss. Called before on_answer. */
    void (*on_loss)(void *ctx, int rank, int to, uint64_t nbytes);
    /* A window's message has arrived. Return a receive for it, which then counts as posted, or NULL
     * to hold the request; while one is held, the callee must return NULL for all later ones. */
    dd_message *(*on_request)(void *ctx, int rank, const dd_request *request);
    /* Another process of this host has rung: check what its ranks have written to shared memory.
     * Frames that arrived on links before the bell have been handled. */
    void (*on_bell)(void *ctx);
    /* A rank of this host requests the file descriptor with the key `fd_key`. If the descriptor
     * exists, the callee must call dd_context_pass_fd_locked. */
    void (*on_fd_wanted)(void *ctx, int rank, uint64_t fd_key);
    /* A rank passes the requested file descriptor `fd`: DD_SOCK_FD_REFUSED if this process had no
     * room for it, DD_FD_DENIED if it does not exist. Return true to take ownership; after false,
     * for an unwanted or duplicate descriptor, the caller closes it. */
    bool (*on_fd)(void *ctx, int rank, uint64_t fd_key, int fd);
} dd_context_handler;

typedef struct dd_context dd_context;

/* Open a context. `id` must be the same on all ranks of the group, and different from the id of
 * every other group. Takes a reference on each of the `nranks` peers; peers[rank] must be this
 * process. Frames that arrived earlier, and lost ranks, are reported to the handler within this
 * call, after *context is set. Several ranks of a group may be in one process. */
dd_status dd_context_open(dd_engine *engine, uint64_t id, int rank, int nranks, dd_peer *const *peers,
                          const dd_context_handler *handler, dd_context **context,
                          dd_error *err) DD_MUST_CHECK;

/* Close a context, and send GOODBYE to the connected peers. All posted messages must have ended or
 * been cancelled before. The handler is not called afterwards. Blocks until all posted frames have
 * reached the kernel or the peers, but at most until the deadline. */
void dd_context_close(dd_context *context, const dd_wait *wait);

/* Post a message, and start to connect if there is no link. Errors are passed to on_done. */
void dd_context_post_send_locked(dd_context *context, dd_message *message);
void dd_context_post_recv_locked(dd_context *context, dd_message *message);

/* Call on_done now if the message has ended, so that its owner need not drive the engine to be
 * notified. Returns true if on_done has been called, now or earlier. */
bool dd_context_notify_locked(dd_message *message);
/* Call on_done now if the message has ended successfully. Returns true if on_done was called. */
bool dd_context_notify_success_locked(dd_message *message);

/* Poll until a posted message ends, then call on_done. Stops after `npolls` polls, or if another
 * thread wants the lock. If nothing else is in progress in this process, only the shared memory of
 * the message's peer is polled; otherwise everything, which counts as several polls. Returns false
 * immediately for a peer that is reached over a socket. Returns true if the message has ended. Must
 * not be called from a callback. */
bool dd_context_poll_locked(dd_message *message, int npolls);

/* Start (is_expected is true) or stop expecting data from `rank` without a posted receive. While
 * any such data is expected, the sockets of `rank` are polled more often. */
void dd_context_expect_locked(dd_context *context, int rank, bool is_expected);

/* Call on_request again for the oldest held request of `rank`, if there is one. */
void dd_context_take_request_locked(dd_context *context, int rank);

/* Continue an unfinished send from `copy`, a copy of its data. The original is no longer read. */
void dd_context_move_send_locked(dd_message *message, void *copy);

/* End a posted message with `error`, and call on_done within this call; the message's data is not
 * accessed afterwards. Data still arriving for a receive is dropped; the receiver of a large send
 * is notified. A message that has already ended keeps its result. */
void dd_context_cancel_locked(dd_context *context, dd_message *message, const dd_error *error);

/* Call `visit` for each held P2P message of `rank` on this channel, in the order of its sends. */
void dd_context_visit_unread_locked(const dd_context *context, int rank, uint32_t channel,
                                    void (*visit)(void *ctx, uint64_t tag), void *ctx);

/* Cancel a posted receive that no message has matched yet, and call on_done within this call with
 * `error`. Returns false, without effect, if a message has matched or the receive has ended. */
bool dd_context_withdraw_locked(dd_message *message, const dd_error *error);

/* Call `visit` for each held message of the collective with this sequence number whose receive is
 * not posted yet. With this, a starting operation can compare signatures. */
void dd_context_visit_held_locked(dd_context *context, uint64_t sequence,
                                  void (*visit)(void *ctx, int rank, const dd_signature *signature),
                                  void *ctx);

/* Send the cause of this rank's failure to all connected ranks except rank `except` (DD_ANY_RANK:
 * no exception). If spares_near is true, send nothing to processes of this host, which read the
 * cause in shared memory. Frames that the links have room for are sent before this returns: even if
 * this process then ends, their receivers get the cause before they detect the end. The other
 * frames are sent before dd_engine_wait returns to any caller, or dropped after 200 ms. */
void dd_context_post_abort_locked(dd_context *context, int except, bool spares_near, const dd_cause *cause);

/* Request a file descriptor from a rank of this host (want_fd), or send one (pass_fd). pass_fd does
 * not close `fd`, which may be DD_FD_DENIED. No link is needed. Datagrams may be lost, so the
 * requesting rank must repeat its request. Returns false if nothing was sent. */
#define DD_FD_DENIED (-3)
bool dd_context_want_fd_locked(dd_context *context, int rank, uint64_t fd_key);
bool dd_context_pass_fd_locked(dd_context *context, int rank, uint64_t fd_key, int fd);
/* Return DD_SYSTEM if the last six datagrams failed because of this process, otherwise DD_OK. */
dd_status dd_context_check_datagrams_locked(const dd_context *context, dd_error *err) DD_MUST_CHECK;

/* Handle a cause of failure that a rank has written to shared memory, as if received on a link. */
void dd_context_handle_abort_locked(dd_context *context, int rank, dd_bytes cause);
/* Handle a rank's mark in shared memory that it has left. If there is a link, first send a QUESTION
 * and wait for the answer, since earlier messages of the rank may still be arriving. */
void dd_context_handle_goodbye_locked(dd_context *context, int rank);

/* Query the progress of a rank, if it is connected; its answer is passed to on_answer. */
void dd_context_post_question_locked(dd_context *context, int rank);

bool dd_context_is_connected_locked(const dd_context *context, int rank);

/* Find a rank to which the network repeatedly loses data of this rank. Returns false if none. */
bool dd_context_find_loss_locked(const dd_context *context, int *rank, dd_path_loss *loss);

#endif
