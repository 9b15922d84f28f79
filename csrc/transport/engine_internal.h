/* What the files of the engine share. Everything here belongs to the holder of the engine's lock, unless a
 * field says otherwise.
 *
 * Messages end in one way: message_end puts them on the engine's list of done ones, and engine_tell_done,
 * which only those who drive call, tells their owners; or those ask, after their post (dd_context_tell_locked). So no callback comes from within a post, and no list changes
 * under somebody's feet. Links break in one way as well: lane_break notes it, and engine_settle, in the
 * next round, does what follows from it. */
#ifndef DD_TRANSPORT_ENGINE_INTERNAL_H
#define DD_TRANSPORT_ENGINE_INTERNAL_H

#include "core/fork.h"
#include "core/lock.h"
#include "core/map.h"
#include "core/thread.h"
#include "core/wait_policy.h"
#include "transport/context.h"
#include "transport/engine.h"
#include "transport/frame.h"
#include "transport/link.h"

#include <pthread.h>
#include <sys/epoll.h>

#define DD_LANES_MAX 16
#define SHM_EAGER_MAX ((size_t)32 << 10)
#define TCP_EAGER_MAX ((size_t)64 << 10)
/* Eager messages that the receiver has not got rid of, headers included; a direction. */
#define CREDIT_NBYTES ((size_t)1 << 20)
#define LANE_BUFFER_NBYTES ((size_t)8 << 10)
#define HELD_INLINE_NBYTES ((size_t)128)
/* So long a link with a process is kept whose card is not known here. */
#define UNKNOWN_KEPT_NS (5 * DD_NS_PER_S)

typedef struct dd_lane dd_lane;

/* Where a message is. */
typedef enum message_stage {
    STAGE_IDLE,
    STAGE_POSTED, /* a receive: in a list of its context */
    STAGE_MOVING, /* in one of the lists of its peer, which says the rest */
    STAGE_DONE,   /* in engine->done */
} message_stage;

/* A message that has come before anybody wanted it; or, for a context that is not open yet, any frame for
 * it. */
typedef struct held {
    dd_list link;
    dd_frame frame;
    dd_peer *peer;
    uint64_t order;     /* of arrival, over all peers */
    uint8_t *data;      /* payload: `small` or its own block */
    bool is_told;       /* its context knows of it (on_coll) */
    dd_message *sender; /* within this process: the send that waits for its receiver */
    uint8_t small[HELD_INLINE_NBYTES];
} held;

/* Something to write. */
typedef struct out_frame {
    dd_list link;
    dd_frame frame;
    dd_message *
        message; /* whose bytes from frame.offset on are the payload; NULL for control frames and when it was cancelled */
    uint8_t *owned; /* then: the payload; freed in the end */
    uint8_t reply;  /* a reply_kind */
} out_frame;

/* Frames that a peer causes by its own, as long as they are queued. */
typedef enum reply_kind {
    REPLY_NONE,
    REPLY_ANSWER,  /* to a QUESTION */
    REPLY_REFUSAL, /* of an RTS */
    REPLY_KINDS,
} reply_kind;

struct dd_lane {
    dd_list link; /* engine->shm_lanes or tcp_lanes */
    dd_link *stream;
    dd_peer *peer;
    int number;
    bool is_ended;       /* no more input */
    bool is_receiving;   /* lane_receive is on the stack */
    bool is_held_up;     /* a frame waits in buf for what other lanes still bring, or for the next round */
    bool is_output_dead; /* nothing more can be written */
    uint32_t watched;    /* events asked of epoll */

    out_frame current; /* being written */
    uint8_t header[DD_FRAME_NBYTES];
    size_t header_nbytes;
    size_t written; /* of its header and payload */
    bool is_writing;

    dd_frame frame; /* whose payload is arriving */
    size_t payload_left;
    uint8_t *sink;      /* where it goes; NULL: thrown away */
    dd_message *recv;   /* whose memory that is */
    held *collected;    /* the same: in no list, delivered when all has come */
    dd_context *cached; /* of the last message */
    size_t begin;
    size_t end;
    uint8_t buf[LANE_BUFFER_NBYTES];
};

/* What becomes of a peer:
 *
 *                somebody wants   it dials us            there is a     our dial    its dial fails,
 *                a link                                  link           fails       once welcome
 *     IDLE       DIALLING         ACCEPTING              CONNECTED
 *     DIALLING                    ACCEPTING, if its uid  CONNECTED      LOST
 *                                 is smaller, else BUSY
 *     ACCEPTING                   BUSY                   CONNECTED                  DIALLING, if somebody
 *                                                                                   wants a link, else IDLE
 *     CONNECTED                   BUSY                   is closed
 *     LOST                        BUSY                   is closed
 *
 * Whatever breaks a peer (peer_break) makes it LOST, for good: its groups never use it again. The process itself
 * may be well, since a cut network also breaks links. If a later meeting brings its card again, a new dd_peer of
 * the same uid replaces it in engine->peers, IDLE (peer_succeed); only older groups still refer to the lost one.
 * The two share no link, message or error. A frame that arrives over the new link for a group that knows the lost
 * dd_peer is dropped, as for a closed group. No dd_peer succeeds a process that has ended or has broken the
 * protocol (is_over). */
typedef enum peer_state {
    PEER_IDLE,
    PEER_ACCEPTING, /* the connector has been told that its dial is welcome */
    PEER_DIALLING,
    PEER_CONNECTED,
    PEER_LOST,
} peer_state;

/* Limits of what a peer may leave here without credit, and of replies that it does not read. Closing a context refuses all frames
 * that it holds. A rank sends one QUESTION to another per group and failure. */
#define PEER_HELD_MAX ((size_t)1 << 20)
#define PEER_REFUSALS_MAX (2 * PEER_HELD_MAX)
#define PEER_ANSWERS_MAX ((size_t)4096)

struct dd_peer {
    dd_map_node node; /* engine->peers; the key is card.uid */
    dd_engine *engine;
    unsigned refs; /* of others; the engine keeps a peer without any while there is a link */
    dd_card card;
    bool is_card_known; /* false: it has called before anybody told us of it */
    dd_blob published;  /* then: its card with its addresses, as it came */
    bool is_self;
    bool is_near; /* would be linked by shared memory */
    peer_state state;
    bool wants_link;
    uint64_t
        dial; /* its dial of lane 0 that counts, perhaps beside a dial of the peer's that has been accepted; 0: none */
    int64_t dialled_ns; /* when that began */
    bool is_said_lost;  /* somebody has given up a group because of it */
    bool is_over;       /* its process has ended, or has broken the protocol: no dd_peer succeeds this one */
    bool is_lost_there; /* it has lost its link to this process, as its group reports */
    bool is_succeeded;  /* engine->peers has another dd_peer of this uid */
    bool is_being_told; /* of a failure; as of engine_is_telling */
    /* Set while CONNECTED for the end of lane 0 after another lane's, or for the card; and without users, for contexts that may
     * still be opened. */
    dd_timer timer; /* on_due is peer_on_timer, or in a farewell another */
    /* When the link of a peer that has broken the protocol is closed, even if it has not received the reason.
     * DD_NEVER_NS until the reason is posted; 0 if no link waits for that. */
    int64_t farewell_until_ns;

    dd_lane *lanes[DD_LANES_MAX];
    int nlanes;
    int ndialling; /* lanes other than 0 */
    bool has_tried_lanes;
    size_t eager_max;

    dd_list out;                  /* out_frame, for lane 0 */
    size_t nreplies[REPLY_KINDS]; /* of it */
    dd_list awaiting;             /* sends: RTS queued or written */
    dd_list sending;              /* ... that have fragments to cut */
    dd_list flushing;             /* ... all of which is queued, or being written */
    dd_list receiving;            /* receives that have met their message */
    size_t nexpected;             /* posted receives from it */
    uint64_t last_id;             /* of our RTS */
    uint64_t begun_id;            /* ... that a lane has begun to write: the peer cannot know of others */
    uint64_t last_rts_id;         /* of its RTS */

    size_t credit;     /* what we may still send eagerly */
    size_t lent;       /* what has been begun to be written, and not come back: the peer cannot return more */
    size_t owed;       /* what it may send again, and has not been told */
    size_t unreturned; /* what it has sent and not been told to have back */
    dd_list early;     /* held, for contexts that are not open */
    dd_list given_up;  /* held: ABORT for such contexts */
    size_t ngiven_up;
    size_t nheld; /* of it, here and in contexts */

    dd_list breaking; /* engine->breaking */
    bool is_breaking;
    const dd_error
        *error; /* why it breaks, and then why it is lost; NULL: neither. Owned, if there was memory for it */
};

typedef struct context_rank {
    dd_peer *peer;
    dd_list posted; /* receives */
    dd_list held;
    bool is_leaving; /* and has been asked, or will be as soon as there is a link */
    bool has_said_goodbye;
    bool is_lost; /* and the handler knows */
} context_rank;

typedef struct context_key {
    uint64_t id;
    uint64_t rank;
} context_key;

struct dd_context {
    dd_map_node node; /* engine->contexts */
    dd_list link;     /* engine->context_list */
    context_key key;
    dd_engine *engine;
    int rank;
    int nranks;
    dd_context_handler handler;
    dd_list posted_any; /* receives from any rank */
    dd_blob abort; /* what was said when this rank gave up, for those who connect later; empty: nothing */
    context_rank ranks[];
};

/* A thread that drives, or waits for its turn. */
typedef struct dd_waiter {
    dd_list link; /* engine->waiters while he waits for his turn */
    const atomic_bool *is_done;
    bool is_asleep; /* he drives, and sleeps on the links without the lock */
    bool is_background;
    pthread_cond_t turn;
} dd_waiter;

#define CLOSED_CONTEXTS_KEPT 1024

/* Counters, which only tests read: payload bytes and frames sent and received, by kind of link. */
typedef struct dd_engine_stats {
    uint64_t shm_sent_nbytes, tcp_sent_nbytes, self_sent_nbytes;
    uint64_t nframes_sent, nconnections;
    size_t held_nbytes; /* messages received before a call waited for them */
} dd_engine_stats;

struct dd_engine {
    atomic_uint refs;
    uint64_t generation; /* const after init */
    dd_lock mu;
    atomic_uint nlockers;       /* threads that want mu and had to wait; relaxed: a hint to the driver */
    dd_connect_options options; /* const after init; the strings are in option_text */
    dd_blob option_text;        /* const after init */
    dd_blob secret;             /* const after init */
    dd_connector *connector;    /* NULL before the first card */
    dd_card card;               /* uid const after init, the rest after the first card */
    dd_lock opening_mu;         /* held while the connector and its ports are made; taken before mu */
    dd_addr_list addrs;         /* guarded by opening_mu: where it listens */
    unsigned nmeetings;         /* written with opening_mu and mu */
    uint64_t ndials;            /* of lanes 0; the number of the last */
    bool has_met;               /* the same: somebody has said when meetings begin and end */
    dd_peer *self;

    dd_map peers;
    dd_map contexts;
    dd_list context_list;
    context_key closed[CLOSED_CONTEXTS_KEPT]; /* the last closed ones, in a circle */
    size_t nclosed;

    dd_list shm_lanes;
    dd_list tcp_lanes;
    size_t ntcp_lanes;
    unsigned lane_generation; /* changes when a lane is gone */
    dd_list breaking;
    dd_list done; /* messages whose owners have to be told */
    dd_list tasks;
    dd_list *next_task; /* of the walk under way */
    bool is_crowded;    /* some task said so in the last round */
    bool is_outnumbered;
    size_t nposted; /* messages */
    size_t nany;    /* of them receives from any rank that wait for their message */
    dd_timer_set timers;
    uint64_t next_order;

    out_frame *free_out; /* by link.next */
    held *free_held;
    size_t nfree_held;

    int epoll_fd;
    int wake_fd;
    int bell_fd;            /* -1: none; const after the first card */
    unsigned nnotes_failed; /* one after the other, by this process's own fault */
    int notes_errno;        /* of the last */
    int link_errno; /* of the last link that was lost by this process's own fault before a group knew of it; 0: none */
    int64_t link_failed_ns;
    dd_spin spin;
    dd_waiter *driver; /* NULL: nobody */
    dd_list waiters;
    dd_waiter background;
    int64_t telling_until_ns; /* failures have been told that may not be on their way; 0: none */
    bool has_rung;            /* somebody: contexts have to be told */
    bool is_taking_in;        /* dd_engine_take_in_locked is on the stack */
    bool is_pumping_self;     /* self_pump is */
    bool has_postponed;       /* a frame waits in a lane for the next round: engine_postpones */
    bool is_wake_due; /* somebody else than the driver has ended something: dd_engine_unlock passes it on */
    /* Threads that sleep on the links: the driver, and one that has yet to notice that its role was taken. */
    unsigned nsleeping;
    unsigned nrounds;

    bool has_thread; /* written with opening_mu and mu, read with either: `thread` must be joined */
    bool is_closing;
    pthread_t thread; /* guarded by opening_mu */
    dd_lock nap_mu;
    pthread_cond_t nap;
    bool is_kicked;         /* guarded by nap_mu */
    bool is_stopping;       /* guarded by nap_mu */
    atomic_bool is_stopped; /* the background thread's own is_done */
    /* How often callers have begun to drive, or to look at everything for a while, and how often they have looked at a call of theirs alone;
     * relaxed, written with mu: the background thread compares them. */
    atomic_uint_fast64_t ndrives, ncalls;
    atomic_bool is_driven;       /* a caller drives; for the same */
    atomic_uint nattentive;      /* how many want that (dd_engine_attend_locked); written with mu */
    atomic_bool is_napping_long; /* the background thread; written with nap_mu */

    dd_engine_stats stats;
};

/* The files stand on each other in this order; none calls one that comes later. What has to go up waits in a list of the engine's (done,
 * breaking) for the next round. */

/* ---- engine_base.c: the lock, waking, what is found by its key, pools */

static inline bool
engine_is_forked(const dd_engine *engine)
{
    return engine->generation != dd_fork_generation();
}
static inline bool
waiter_is_done(const dd_waiter *waiter)
{
    return waiter->is_done != NULL && atomic_load_explicit(waiter->is_done, memory_order_acquire);
}
/* Wakes those whose work somebody else has finished. */
void engine_wake_done_waiters(dd_engine *engine);
/* A driver lets those in who want the lock for a moment. */
void engine_let_others_in(dd_engine *engine);
/* Makes a driver that sleeps look around. */
void engine_rouse_driver(dd_engine *engine);
/* The same; and where nobody drives, the background thread takes over. */
void engine_wake(dd_engine *engine);

dd_peer *engine_find_peer(dd_engine *engine, const dd_uid *uid);
dd_context *engine_find_context(dd_engine *engine, uint64_t id, uint32_t rank);
bool engine_has_closed(const dd_engine *engine, uint64_t id, uint32_t rank);
void engine_note_closed(dd_engine *engine, const context_key *key);
void engine_forget_closed(dd_engine *engine, const context_key *key);

/* A copy that may be queued; NULL: no memory. */
out_frame *engine_take_out(dd_engine *engine, const out_frame *out);
void engine_give_out(dd_engine *engine, out_frame *out);
held *engine_take_held(dd_peer *peer, const dd_frame *frame); /* NULL: no memory */
void engine_give_held(dd_engine *engine, held *entry);
/* Memory for the payload of an entry. */
bool held_make_room(held *entry, size_t nbytes);

/* ---- message.c: ends of messages */

/* Ends a message: takes it out of its list and counts it done. `error` (copied) NULL for success. */
void message_end(dd_message *message, const dd_error *error);
/* The same with an error that blames the other side: its name, and these words. */
void message_fail(dd_message *message, dd_status code, const char *format, ...) DD_PRINTF(3, 4);
void message_fail_closed(dd_message *message); /* the other side has closed the group */
void message_fail_lost(dd_message *message);   /* it is lost, for the reason that its peer has */
void message_fail_memory(dd_message *message, size_t nbytes);
/* Ends a message, on either side, that does not fit the other side's (dd_refusal). */
void message_fail_misfit(dd_message *message, int reason, const dd_signature *theirs, uint64_t nbytes);
/* Takes a receive out of its list of posted ones. */
void message_unpost(dd_message *message);
/* Tells its owner. */
void message_tell(dd_message *message);
void engine_tell_done(dd_engine *engine);

/* ---- peer.c: peers and their lanes: life, dialling, breaking */

dd_status peer_create(dd_engine *engine, const dd_uid *uid, dd_peer **peer, dd_error *err) DD_MUST_CHECK;
void peer_destroy(dd_peer *peer);
void peer_destroy_lanes(dd_peer *peer);
void peer_drop_output(dd_peer *peer);
/* Frees it if nobody wants it any more. */
void peer_reap(dd_peer *peer);
/* Replace a peer that is lost, here or at its own end, by a new one for the same process. *peer stays the same if it is
 * not lost, or if its process has ended or has broken the protocol. */
dd_status peer_succeed(dd_peer **peer, dd_error *err) DD_MUST_CHECK;
/* The card of a peer that may have been unknown until now. */
dd_status peer_note_card(dd_peer *peer, const dd_card *card, dd_bytes published, dd_error *err) DD_MUST_CHECK;
/* As dd_connector_dial, where there is a connector. The numbers of lanes other than 0 are 0. */
dd_status peer_dial(dd_peer *peer, int lane, uint64_t number, int64_t deadline_ns,
                    dd_error *err) DD_MUST_CHECK;
void peer_start_timer(dd_peer *peer, int64_t after_ns);
void peer_on_timer(dd_timer *timer);
/* Breaks the peer of the lane; the first reason stays. */
void lane_break(dd_lane *lane, const dd_error *error);
void peer_break(dd_peer *peer, const dd_error *error);
/* Nothing more is read from the peer. It receives the reason before its link is closed (farewell_until_ns). */
void peer_protocol_error(dd_peer *peer, const char *format, ...) DD_PRINTF(2, 3);
/* The connection breaks, since there is no memory "for a message to it". */
void peer_break_for_memory(dd_peer *peer, const char *what, size_t nbytes);
/* "cannot send", or what else has failed; or the other side has closed the connection. */
void lane_break_for_io(dd_lane *lane, dd_io io, const char *attempt);
/* For dd_engine_check_links_locked. */
void engine_note_link_failure(dd_engine *engine, int sys_errno);
void lane_end_input(dd_lane *lane);
/* Takes a receive that has met its message out of the lanes. */
void peer_forget_recv(dd_peer *peer, dd_message *message);

/* ---- peer_send.c: what goes out */

/* Of a context to one of its ranks; and the answer to a frame that has come, about the same message. */
static inline dd_frame
context_frame(const dd_context *context, dd_frame_type type, int rank)
{
    return (dd_frame){.type = (uint8_t)type,
                      .context = context->key.id,
                      .source = (uint32_t)context->rank,
                      .target = (uint32_t)rank};
}
static inline dd_frame
reply_frame(const dd_frame *to, dd_frame_type type)
{
    return (dd_frame){.type = (uint8_t)type,
                      .context = to->context,
                      .id = to->id,
                      .source = to->target,
                      .target = to->source};
}
static inline size_t
eager_cost(size_t nbytes)
{
    return nbytes + DD_FRAME_NBYTES;
}
/* `out` has the message and its frame, but for what depends on the way that it goes. */
void peer_post_message(dd_peer *peer, out_frame *out);
/* Control frames. `payload` (of ABORT) is copied. */
void peer_post_frame(dd_peer *peer, const dd_frame *frame, dd_bytes payload);
/* The same to a peer that is breaking, for the reason of that. */
void peer_post_farewell(dd_peer *peer, const dd_frame *frame, dd_bytes payload);
/* Queue the answer to a QUESTION. Like a refusal, it breaks the peer for a protocol error if too many replies are queued. */
void peer_post_answer(dd_peer *peer, const dd_frame *frame);
/* Says no to an RTS, and what the receive wants; NULL: there is none. */
void peer_post_refusal(dd_peer *peer, const dd_frame *rts, dd_refusal reason, const dd_message *recv);
/* Takes the first frame of a queue that is not empty out of it. */
out_frame *peer_take_out(dd_peer *peer);
bool lane_has_output(const dd_lane *lane);
/* Whether frames other than large messages' wait for lane 0. */
bool peer_has_queued(const dd_peer *peer);
/* Writes what there is room for; true when anything was written. */
bool lane_pump(dd_lane *lane);
void peer_on_cts(dd_peer *peer, const dd_frame *frame);
void peer_on_refuse(dd_peer *peer, const dd_frame *frame);
/* Takes a send that is not done out of queues and lanes. */
void peer_forget_send(dd_peer *peer, dd_message *message);
/* Gives back credit for an eager message that is gone. */
void peer_return_credit(dd_peer *peer, size_t nbytes);

/* ---- context_control.c: what ranks say beside messages */

/* A control frame to a rank, if it can be reached. */
void context_tell(dd_context *context, int rank, dd_frame_type type, dd_bytes payload);
/* A frame for a context that is open: ABORT, QUESTION, ANSWER, GOODBYE. */
void context_on_control(dd_context *context, const dd_frame *frame, dd_bytes payload);
/* Send the error of a peer that is breaking to it, so that it does not take this rank for lost. */
void context_post_farewell(dd_context *context, dd_peer *peer);
/* The peer is lost: its messages fail, the handler is told. */
void context_on_peer_lost(dd_context *context, dd_peer *peer);
/* Has the handler look at what ranks of this host have posted in shared memory. Before a frame ends something: the sender may have
 * posted the cause first. */
void context_read_posts(dd_context *context);
/* A peer is there that may have missed that we have given up. */
void context_on_peer_connected(dd_context *context, const dd_peer *peer);
/* True if the context knows the sender of the frame by an earlier dd_peer of the same process. */
bool context_knows_predecessor(const dd_context *context, const dd_frame *frame, const dd_peer *peer);
/* Whether the frame's ranks are those of the peer; breaks the link if not. */
bool context_check_source(const dd_context *context, const dd_frame *frame, dd_peer *peer);

/* ---- context_match.c: messages meet receives */

/* The receive that an arriving EAGER or RTS is for, out of its list; NULL: hold it. `is_told`: the handler knows of it. */
dd_message *context_match(dd_context *context, const dd_frame *frame, bool is_told);
/* Whether the message fits the receive; if not, the receive ends, and the reason is returned; else 0. */
int context_check_fit(dd_message *recv, const dd_frame *frame, dd_peer *peer);
/* A receive has met an RTS of a peer. */
void context_begin_rendezvous(dd_message *recv, const dd_frame *frame, dd_peer *peer);
/* An entry that is in no list or a held one has met its receive: goes on with it as far as it has come, and frees the entry. */
void context_take_held(dd_message *recv, held *entry);

/* ---- context_held.c: what has come before anybody wanted it */

/* A frame, whole but for a rendezvous's data, in an entry that is in no list: goes to its context, and a message to its receive, or is
 * kept until there is one. */
void engine_deliver(held *entry);
/* What has come for a context that is being opened, one after the other; NULL: nothing more. */
held *peer_take_early(dd_peer *peer, const context_key *key);
/* Nobody will want them any more: frees them, and gives their credit back or refuses them. */
void context_drop_all_held(dd_context *context);
/* The peer has given up what it had announced. */
void peer_drop_rts(dd_peer *peer, uint64_t id);
/* The connection is lost: frees the entries of the list that were not complete. */
void engine_drop_unfinished(dd_engine *engine, dd_list *list);
/* Frames that a process has sent to itself. True when there were any. */
bool self_pump(dd_engine *engine);

/* ---- peer_recv.c: what comes in */

/* Reads what there is; true when anything came. */
bool lane_receive(dd_lane *lane);
/* True for a frame that would fail messages while a failing group reads the links (dd_engine_take_in_locked): a farewell, a
 * cancelled message, or a refusal by a closed group. It counts in the next round, when messages of the group have failed
 * with its own cause, which is the better reason. */
bool engine_postpones(const dd_engine *engine, const dd_frame *frame);

/* ---- peer_link.c: links that come. The handler of the connector; also for tests that bring links of their own */

bool engine_may_accept(void *ctx, const dd_uid *uid);
void engine_on_accept_failed(void *ctx, const dd_uid *uid);
void engine_on_accepted(void *ctx, const dd_uid *uid, int lane, dd_link *stream);
bool engine_wants_dial(void *ctx, const dd_uid *uid, uint64_t dial, bool is_busy);
void engine_on_dialled(void *ctx, const dd_uid *uid, int lane, uint64_t dial, dd_link *stream);
void engine_on_dial_failed(void *ctx, const dd_uid *uid, int lane, uint64_t dial, const dd_error *error);

/* ---- engine_bell.c */

/* The socket, and with it the promise that others of this host can ring here. */
dd_status engine_open_bell(dd_engine *engine, dd_error *err) DD_MUST_CHECK;
/* Something has come. */
void engine_answer_bell(dd_engine *engine);
/* Tells contexts that somebody has rung; after what had come by links. */
void engine_tell_rung(dd_engine *engine);

/* ---- engine_round.c: what there is to do without waiting */

/* All of that. True when something was. */
bool engine_run_round(dd_engine *engine);
/* Runs the timers that are due, and returns when the next one is. */
int64_t engine_run_timers(dd_engine *engine, int64_t now_ns);
/* What epoll has said. True when something has moved. */
bool engine_handle_events(dd_engine *engine, const struct epoll_event *events, int nevents);
/* Everything that has come by now, from all peers: before a verdict on who is gone. */
void engine_hear_all(dd_engine *engine);
/* What follows from links that broke. */
void engine_settle(dd_engine *engine);
/* Whether what some peer is told of a failure is not on its way yet. */
bool engine_is_telling(dd_engine *engine);
/* Not while somebody sleeps who has to see it: nothing then. */
void engine_drain_wake_fd(dd_engine *engine);
/* Arranges for being woken. False when there is something to do after all. */
bool engine_fall_asleep(dd_engine *engine);

/* ---- engine_nap.c: the naps of the background thread */

/* What the background thread has seen of callers. */
typedef struct engine_callers_seen {
    uint64_t ndrives, ncalls;
    bool are_about; /* some have come in the last nap */
} engine_callers_seen;

void engine_nap_init(dd_engine *engine);
/* With mu: the driver leaves. And then, if it was a caller and nobody drives in its stead: where somebody counts on answers, a long nap ends. */
void engine_note_undriven(dd_engine *engine);
void engine_cut_nap_short(dd_engine *engine);
/* Until it is kicked, or no caller has driven for a while. False: the engine stops. */
bool engine_nap(dd_engine *engine, engine_callers_seen *seen);

/* ---- engine_drive.c: who drives. Above it: engine.c, context.c (opening and closing) */

void engine_drive_init(dd_engine *engine);
dd_status engine_start_background(dd_engine *engine, dd_error *err) DD_MUST_CHECK;
void engine_stop_background(dd_engine *engine); /* without the lock */
/* Drives until what was posted has gone as far as `is_through` (with the lock) wants to see it, or the wait is over. */
void engine_flush(dd_engine *engine, bool (*is_through)(void *ctx), void *ctx, const dd_wait *wait);

#endif
