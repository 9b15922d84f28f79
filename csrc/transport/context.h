/* A context: the messages of one group. Ranks are the group's; every function but open and close wants the
 * engine's lock.
 *
 * A message is matched by (context, sender, kind, tag, channel), first in first out. Point-to-point
 * messages are matched by sender and tag, where a receive may take any sender. Messages of collectives
 * carry the sequence number as tag, and the signature of the operation, which both sides must agree on.
 * For messages of windows, requests, nobody has to wait: the handler finds a place for each when its head has come.
 *
 * Small messages travel at once (eager) and are held by the receiver until somebody wants them, up to a
 * credit; larger ones wait at the sender until there is memory to put them in (rendezvous), and may be
 * spread over several lanes. */
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

/* One send or receive under way. The owner embeds it, fills in the first part, and leaves it alone until
 * on_done. */
typedef struct dd_message dd_message;
struct dd_message {
    dd_message_kind kind;
    int rank; /* the other side; DD_ANY_RANK only in a P2P receive */
    uint64_t tag;
    uint32_t channel;
    void *data;
    /* Of a receive: room. More than that is DD_INVALID_ARGUMENT, naming both sizes; less is fine for P2P, and
     * DD_MISMATCH for COLL. */
    size_t nbytes;
    const dd_signature
        *signature; /* COLL. P2P: or NULL; where the other side's has another dtype, DD_MISMATCH */
    /* Once, never from within a post, but see dd_context_tell_locked. `error` is NULL for success. */
    void (*on_done)(dd_message *message, const dd_error *error);
    void *owner;

    int source;      /* result: the sender's rank */
    size_t received; /* result */

    /* the transport's own */
    dd_list link;
    uint8_t stage;
    bool is_send;
    bool is_posted;    /* until on_done; the poster may read it */
    uint64_t id;       /* of a rendezvous; else 0 */
    uint64_t order;    /* of a receive: when it was posted */
    size_t cut;        /* handed to lanes */
    size_t moved;      /* all the way */
    dd_error *failure; /* how it ended, until on_done is told */
    struct dd_context *context;
    struct dd_peer *peer;
};

/* The head of a request, which is known before its bytes come. The signature is the sender's message's; nobody compares it. */
typedef struct dd_request {
    uint64_t tag;
    uint32_t channel;
    uint64_t nbytes;
    dd_signature signature;
} dd_request;

/* What the owner of a context is told; the lock is held. */
typedef struct dd_context_handler {
    void *ctx;
    /* A message of a collective has come (also before anybody wants it): for comparing signatures early and
     * knowing who has arrived. */
    void (*on_coll)(void *ctx, int rank, uint64_t sequence, const dd_signature *signature);
    /* A rank says why it has given up. */
    void (*on_abort)(void *ctx, int rank, const dd_cause *cause);
    /* A rank cannot be reached any more. Not called for one that has said goodbye to this context. */
    void (*on_lost)(void *ctx, int rank, const dd_error *error);
    /* A rank has closed its context in good order. */
    void (*on_goodbye)(void *ctx, int rank);
    /* A rank asks how far we are: fill in the state. And: a rank has answered. */
    void (*on_asked)(void *ctx, uint64_t *sequence, dd_signature *signature, bool *is_inside);
    void (*on_answer)(void *ctx, int rank, uint64_t sequence, const dd_signature *signature, bool is_inside);
    /* ... and says, before that, that `nbytes` bytes which it has sent to rank `to` are lost on the way again and again; 0: none. */
    void (*on_loss)(void *ctx, int rank, int to, uint64_t nbytes);
    /* A request has come: the receive for it, which counts as posted; NULL: it is held, and so should those be that come after it. */
    dd_message *(*on_request)(void *ctx, int rank, const dd_request *request);
    /* A process of this host has rung: a look at what its ranks have posted in shared memory. What came by links before is known. */
    void (*on_bell)(void *ctx);
    /* A rank of this host wants what this one calls `word`: dd_context_pass_fd_locked, if it is there. */
    void (*on_fd_wanted)(void *ctx, int rank, uint64_t word);
    /* A rank passes something; `fd` is DD_SOCK_FD_REFUSED where this process had no room for it, and DD_FD_DENIED where that rank
     * has nothing to pass. True: it is taken, else it is closed, since nobody has asked for it, or it has come before. */
    bool (*on_fd)(void *ctx, int rank, uint64_t word, int fd);
} dd_context_handler;

typedef struct dd_context dd_context;

/* `id` names the group: the same on all ranks, and no other group's. Takes references on the peers (nranks
 * of them; peers[rank] is this process). What came before the context was open is told to the handler
 * within this call, when *context is set already; and which ranks are lost. Several ranks of a group may
 * live in one process. */
dd_status dd_context_open(dd_engine *engine, uint64_t id, int rank, int nranks, dd_peer *const *peers,
                          const dd_context_handler *handler, dd_context **context,
                          dd_error *err) DD_MUST_CHECK;

/* Says goodbye to the connected peers. Posted messages must be done or cancelled; afterwards the handler is
 * not called. Waits until what was accepted for sending is with the kernel or the peer, at most until the
 * deadline. */
void dd_context_close(dd_context *context, const dd_wait *wait);

/* Starts the message; makes the connection if there is none. Failure shows by on_done. */
void dd_context_post_send_locked(dd_context *context, dd_message *message);
void dd_context_post_recv_locked(dd_context *context, dd_message *message);

/* For callers who do not want to drive for what has ended within its post: its owner is told now. True when it has ended. */
bool dd_context_tell_locked(dd_message *message);
/* Notify the owner of a posted message now if it has ended well. True if so. */
bool dd_context_tell_success_locked(dd_message *message);

/* Looks for the end of a posted message for a moment, `nlooks` times at most or until somebody else wants the lock, and tells its owner.
 * While nothing else is under way in this process, it looks at what comes from the other side through shared memory and at nothing
 * else; looks at everything count more. A peer that is only reached over a socket is not looked at. True when it has ended. Not from a callback. */
bool dd_context_look_locked(dd_message *message, int nlooks);

/* Something is awaited from the rank that no posted receive tells of, or not any more: its sockets are looked at more often. */
void dd_context_expect_locked(dd_context *context, int rank, bool is_expected);

/* Asks the handler again for the first request of the rank that is held, if there is one. */
void dd_context_take_request_locked(dd_context *context, int rank);

/* A send that is not done goes on from a copy of its memory. */
void dd_context_move_send_locked(dd_message *message, void *copy);

/* Ends a posted message with `error`, within this call. Memory is not touched afterwards; when half of it
 * was with the peer, that part of the stream is thrown away on arrival (receive) or the link is broken
 * (send of a large message: the peer is told). Nothing happens to one that is done. */
void dd_context_cancel_locked(dd_context *context, dd_message *message, const dd_error *error);

/* A message of a sequence number has come from rank that nobody has wanted yet; for comparing signatures
 * when an operation begins: calls `visit` for each held COLL message with this sequence number. */
void dd_context_visit_held_locked(dd_context *context, uint64_t sequence,
                                  void (*visit)(void *ctx, int rank, const dd_signature *signature),
                                  void *ctx);

/* Sends the connected ranks of the context (all but `except`, a rank or DD_ANY_RANK) why this rank has failed.
 * With `spares_near`, other processes of this host get nothing: they read the cause in shared memory. The part
 * that there is room for is on its way when this returns: if this process ends now, they receive it before
 * they see its end. The rest goes before dd_engine_wait returns to any caller, or is dropped after 200 ms. */
void dd_context_post_abort_locked(dd_context *context, int except, bool spares_near, const dd_cause *cause);

/* Asks a rank of this host for a descriptor, or passes one to it, which stays the caller's, or says that there is none (DD_FD_DENIED).
 * Needs no link. Either may be lost on the way: the rank that waits asks again. False: it has not gone. */
#define DD_FD_DENIED (-3)
bool dd_context_want_fd_locked(dd_context *context, int rank, uint64_t word);
bool dd_context_pass_fd_locked(dd_context *context, int rank, uint64_t word, int fd);
/* DD_SYSTEM: the last few have not gone, because of this process itself, so others will not either. */
dd_status dd_context_check_notes_locked(const dd_context *context, dd_error *err) DD_MUST_CHECK;

/* A rank has posted its cause in shared memory: handled as one that came by a link. */
void dd_context_hear_abort_locked(dd_context *context, int rank, dd_bytes cause);
/* A rank has posted in shared memory that it has left. If there is a link, a question goes by it first, since
 * messages may precede the answer. */
void dd_context_hear_goodbye_locked(dd_context *context, int rank);

/* Asks a rank how far it is, if it is connected. */
void dd_context_post_question_locked(dd_context *context, int rank);

bool dd_context_is_connected_locked(const dd_context *context, int rank);

/* Find a rank to which the network loses what this rank sends; returns false if none is known. */
bool dd_context_find_loss_locked(const dd_context *context, int *rank, dd_path_loss *loss);

#endif
