/* Shared by the files of the engine. The engine's lock guards everything that has no other note.
 *
 * Messages end in one way: message_end moves them to engine->done, and engine_notify_done, which only
 * drivers call, notifies their owners; an owner may also query its message after a post
 * (dd_context_notify_locked). So no post runs a callback, and no list changes during iteration. Links
 * break in one way: lane_break records it, and engine_end_broken_peers handles the consequences in the next
 * round. */
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
/* Limit of eager messages that the receiver still holds, headers included, per direction. */
#define CREDIT_NBYTES ((size_t)1 << 20)
#define LANE_BUFFER_NBYTES ((size_t)8 << 10)
#define HELD_INLINE_NBYTES ((size_t)128)
/* How long a link with a process is kept whose card is not known here. */
#define UNKNOWN_KEPT_NS (5 * DD_NS_PER_S)

typedef struct dd_lane dd_lane;

/* The state of a message. */
typedef enum message_stage {
    STAGE_IDLE,
    STAGE_POSTED, /* a receive, in a list of its context */
    STAGE_MOVING, /* in a list of its peer, which shows its state */
    STAGE_DONE,   /* in engine->done */
} message_stage;

/* A message that has arrived before its receive was posted; or any frame for a context that is not
 * open yet. */
typedef struct held {
    dd_list link;
    dd_frame frame;
    dd_peer *peer;
    uint64_t order;     /* of arrival, over all peers */
    uint8_t *data;      /* payload: `small`, or a block of its own */
    bool is_notified;   /* its context has been notified (on_coll) */
    dd_message *sender; /* within this process: the send that waits for its receive */
    uint8_t small[HELD_INLINE_NBYTES];
} held;

/* A frame to write. */
typedef struct out_frame {
    dd_list link;
    dd_frame frame;
    dd_message *
        message; /* whose bytes from frame.offset on are the payload; NULL for control frames and when it was cancelled */
    uint8_t *owned; /* the payload if `message` is NULL; freed after it is written */
    uint8_t reply;  /* a reply_kind */
} out_frame;

/* Replies that a peer provokes; queued ones are counted by kind. */
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
    bool is_ended;       /* no more input is read */
    bool is_receiving;   /* lane_receive is on the stack */
    bool is_held_up;     /* the frame in buf waits for data of other lanes, or for the next round */
    bool is_output_dead; /* nothing more can be written */
    uint32_t watched;    /* events requested from epoll */

    out_frame current; /* the frame being written */
    uint8_t header[DD_FRAME_NBYTES];
    size_t header_nbytes;
    size_t written; /* bytes of its header and payload */
    bool is_writing;

    dd_frame frame; /* the frame whose payload is arriving */
    size_t payload_left;
    uint8_t *sink;      /* destination of the payload; NULL to drop it */
    dd_message *recv;   /* receive that the payload is for, or NULL */
    held *collected;    /* entry that the payload is for, or NULL; in no list until complete */
    dd_context *cached; /* context of the last message */
    size_t begin;
    size_t end;
    uint8_t buf[LANE_BUFFER_NBYTES];
};

/* States of a peer. BUSY: only an answer. "closed": the new link is. Blank: nothing changes.
 *
 *                a link is   it dials this          a link is   own dial   its dial fails
 *                wanted      process                made        fails      once accepted
 *     IDLE       DIALLING    ACCEPTING              CONNECTED
 *     DIALLING               ACCEPTING, if its uid  CONNECTED   LOST
 *                            is smaller, else BUSY
 *     ACCEPTING              BUSY                   CONNECTED              DIALLING, if wanted,
 *                                                                          else IDLE
 *     CONNECTED              BUSY                   closed
 *     LOST                   BUSY                   closed
 *
 * A peer that breaks (peer_break) is LOST for good: its groups never use it again. The process may
 * be alive, since a cut network also breaks links. If a later meeting brings its card again, a new
 * dd_peer of the same uid replaces it in engine->peers, IDLE (peer_replace); only older groups
 * refer to the lost one. The two share no link, message or error. A frame on the new link for a
 * group that knows the lost dd_peer is dropped, as for a closed group. No dd_peer succeeds a
 * process that has ended or has broken the protocol (is_final). */
typedef enum peer_state {
    PEER_IDLE,
    PEER_ACCEPTING, /* its dial was accepted; the link is being made */
    PEER_DIALLING,
    PEER_CONNECTED,
    PEER_LOST,
} peer_state;

/* Limits of held messages, and of queued replies that a peer does not read. Closing a context
 * refuses all frames that it holds. A rank sends one QUESTION to another per group and failure. */
#define PEER_HELD_MAX ((size_t)1 << 20)
#define PEER_REFUSALS_MAX (2 * PEER_HELD_MAX)
#define PEER_ANSWERS_MAX ((size_t)4096)

struct dd_peer {
    dd_map_node node; /* engine->peers; the key is card.uid */
    dd_engine *engine;
    unsigned refs; /* of users; without any, the engine keeps a peer that has a link */
    dd_card card;
    bool is_card_known; /* false if it dialled before this process read its card */
    dd_blob published;  /* if is_card_known: the encoded card with its addresses */
    bool is_self;
    bool is_near; /* it would be linked by shared memory */
    peer_state state;
    bool wants_link;
    /* Number of the dial of lane 0 that counts, even if a dial of the peer has been accepted; 0 if
     * none. */
    uint64_t dial;
    int64_t dialled_ns;      /* when `dial` began */
    bool is_reported_lost;   /* a rank has aborted a group because of it */
    bool is_final;           /* its process has ended, or has broken the protocol: no successor */
    bool is_lost_remotely;   /* its group reports that it lost its link to this process */
    bool is_replaced;        /* engine->peers has another dd_peer of this uid */
    bool has_notice_pending; /* a failure notice to it is pending (engine_is_notifying) */
    /* While CONNECTED: waits for the end of lane 0 after another lane's, or for the card. Without
     * users: keeps frames for contexts that may still be opened. */
    dd_timer timer; /* on_due is peer_on_timer, or on_farewell_due */
    /* When the link of a peer that has broken the protocol is closed, even if it has not received
     * the reason. DD_NEVER_NS until the reason is posted; 0 if no link waits for that. */
    int64_t farewell_until_ns;

    dd_lane *lanes[DD_LANES_MAX];
    int nlanes;
    int ndialling; /* lanes other than 0 */
    bool has_tried_lanes;
    size_t eager_max;

    dd_list out;                  /* out_frame, for lane 0 */
    size_t nreplies[REPLY_KINDS]; /* in `out` */
    dd_list awaiting;             /* sends whose RTS is queued or written */
    dd_list sending;              /* sends that have fragments to cut */
    dd_list flushing;             /* sends that are completely queued or being written */
    dd_list receiving;            /* receives that have been matched */
    size_t nexpected;             /* receives posted for it, plus dd_context_expect_locked */
    uint64_t last_id;             /* of the last RTS to it */
    uint64_t begun_id;            /* ... that a lane has begun to write: it knows no later ones */
    uint64_t last_rts_id;         /* of its last RTS */

    size_t credit; /* bytes that may still be sent eagerly */
    /* Eager bytes that were written or begun, and not returned: the peer cannot return more. */
    size_t lent;
    size_t owed;         /* bytes to return to it with the next frame */
    size_t unreturned;   /* bytes that it sent, not returned yet */
    dd_list early;       /* held: for contexts that are not open */
    dd_list kept_aborts; /* held: ABORT for such contexts */
    size_t nkept_aborts;
    size_t nheld; /* entries of this peer, here and in contexts */

    dd_list breaking; /* link in engine->breaking */
    bool is_breaking;
    const dd_error *error; /* why it breaks or is lost, else NULL; owned, unless it is no_memory */
};

typedef struct context_rank {
    dd_peer *peer;
    dd_list posted; /* receives from this rank */
    dd_list held;
    bool is_leaving; /* has posted that it leaves: a QUESTION is sent once there is a link */
    bool has_sent_goodbye;
    bool is_lost; /* and the handler was notified */
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
    dd_blob abort;      /* ABORT that this rank has sent, for later connections; or empty */
    context_rank ranks[];
};

/* A thread that drives, or waits for its turn. */
typedef struct dd_waiter {
    dd_list link; /* engine->waiters while it waits for its turn */
    const atomic_bool *is_done;
    bool is_asleep; /* it drives, and sleeps on the links without the lock */
    bool is_background;
    pthread_cond_t turn;
} dd_waiter;

#define CLOSED_CONTEXTS_KEPT 1024

/* Counters that only tests read: payload bytes and frames sent, by kind of link. */
typedef struct dd_engine_stats {
    uint64_t shm_sent_nbytes, tcp_sent_nbytes, self_sent_nbytes;
    uint64_t nframes_sent, nconnections;
    size_t held_nbytes; /* messages that arrived before their receives were posted */
} dd_engine_stats;

struct dd_engine {
    atomic_uint refs;
    uint64_t generation; /* const after init */
    dd_lock mu;
    atomic_uint nlockers;       /* threads that wait for mu; relaxed: a hint to the driver */
    dd_connect_options options; /* const after init; its strings are in option_text */
    dd_blob option_text;        /* const after init */
    dd_blob secret;             /* const after init */
    dd_connector *connector;    /* NULL before the first card */
    dd_card card;               /* uid is const after init, the rest after the first card */
    dd_lock opening_mu;         /* held while the connector and ports are made; taken before mu */
    dd_addr_list addrs;         /* guarded by opening_mu: its listening addresses */
    unsigned nmeetings;         /* written with opening_mu and mu */
    uint64_t ndials;            /* of lanes 0; number of the last dial */
    bool has_begun_meeting;     /* written with opening_mu and mu: a meeting has begun */
    dd_peer *self;

    dd_map peers;
    dd_map contexts;
    dd_list context_list;
    context_key closed[CLOSED_CONTEXTS_KEPT]; /* ring buffer of the last closed contexts */
    size_t nclosed;

    dd_list shm_lanes;
    dd_list tcp_lanes;
    size_t ntcp_lanes;
    unsigned lane_generation; /* changes when a lane is destroyed */
    dd_list breaking;
    dd_list done; /* messages whose owners must be notified */
    dd_list tasks;
    dd_list *next_task; /* of the iteration under way */
    bool is_crowded;    /* true of some task in the last round */
    bool is_outnumbered;
    size_t nposted; /* number of messages */
    size_t nany;    /* number of unmatched receives from any rank */
    dd_timer_set timers;
    uint64_t next_order;

    out_frame *free_out; /* linked by link.next */
    held *free_held;
    size_t nfree_held;

    int epoll_fd;
    int wake_fd;
    int bell_fd;                /* -1 if there is none; const after the first card */
    unsigned ndatagrams_failed; /* consecutive failures of datagrams, by own fault */
    int datagrams_errno;        /* of the last failure */
    /* Of the last link that was lost by this process's own fault before a group knew it; 0 if
     * none. */
    int link_errno;
    int64_t link_failed_ns;
    dd_spin spin;
    dd_waiter *driver; /* NULL if no thread drives */
    dd_list waiters;
    dd_waiter background;
    int64_t notices_until_ns; /* until when failure notices delay callers; 0 if there are none */
    bool has_rung;            /* a process has rung: contexts must be notified */
    bool is_reading_links;    /* dd_engine_read_links_locked is on the stack */
    bool is_pumping_self;     /* self_pump is on the stack */
    bool has_postponed;       /* a frame waits in a lane for the next round (engine_postpones) */
    bool is_wake_due;         /* another thread has ended work: dd_engine_unlock wakes waiters */
    /* Threads that sleep on the links: the driver, and one that has lost that role asleep. */
    unsigned nsleeping;
    unsigned nrounds;

    bool has_thread; /* written with opening_mu and mu, read with either: `thread` must be joined */
    bool is_closing;
    pthread_t thread; /* guarded by opening_mu */
    dd_lock nap_mu;
    pthread_cond_t nap;
    bool is_kicked;         /* guarded by nap_mu */
    bool is_stopping;       /* guarded by nap_mu */
    atomic_bool is_stopped; /* is_done of the background thread */
    /* How often callers have driven or polled everything, and how often they have polled one call.
     * Relaxed, written with mu; the background thread compares them. */
    atomic_uint_fast64_t ndrives, ncalls;
    atomic_bool is_driven;       /* a caller drives; read by the background thread */
    atomic_uint nprompt;         /* requests by dd_engine_set_prompt_locked; written with mu */
    atomic_bool is_napping_long; /* the background thread naps for long; written with nap_mu */

    dd_engine_stats stats;
};

/* The files form layers in this order; none calls a later one. Work for a later file waits in
 * engine->done or engine->breaking for the next round. */

/* ---- engine_base.c: the lock, waking, lookups, pools */

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
void engine_wake_done_waiters(dd_engine *engine);
/* Release the lock to threads that wait for it, and take it again. */
void engine_yield_lock(dd_engine *engine);
void engine_wake_driver(dd_engine *engine);
/* Wake a driver that sleeps (rouse); if no thread drives, the background thread (wake). */
void engine_wake(dd_engine *engine);

dd_peer *engine_find_peer(dd_engine *engine, const dd_uid *uid);
dd_context *engine_find_context(dd_engine *engine, uint64_t id, uint32_t rank);
bool engine_has_closed(const dd_engine *engine, uint64_t id, uint32_t rank);
void engine_note_closed(dd_engine *engine, const context_key *key);
void engine_clear_closed(dd_engine *engine, const context_key *key);

/* Return a copy that may be queued; NULL if there is no memory. */
out_frame *engine_create_out(dd_engine *engine, const out_frame *out);
void engine_destroy_out(dd_engine *engine, out_frame *out);
held *engine_create_held(dd_peer *peer, const dd_frame *frame); /* NULL if there is no memory */
void engine_destroy_held(dd_engine *engine, held *entry);
/* Allocate the payload of an entry. Returns false if there is no memory. */
bool held_alloc_payload(held *entry, size_t nbytes);

/* ---- message.c: ends of messages */

/* End a message: move it to the list of done ones. `error` (copied) is NULL on success. */
void message_end(dd_message *message, const dd_error *error);
/* End a message with an error that blames the other side: its name, and the formatted text. */
void message_fail(dd_message *message, dd_status code, const char *format, ...) DD_PRINTF(3, 4);
void message_fail_closed(dd_message *message); /* the other side has closed the group */
void message_fail_lost(dd_message *message);   /* with the error of its peer */
void message_fail_memory(dd_message *message, size_t nbytes);
/* End a message that does not fit the other side's, on either side (dd_refusal). */
void message_fail_misfit(dd_message *message, int reason, const dd_signature *theirs, uint64_t nbytes);
void message_unpost(dd_message *message);
/* Call on_done. */
void message_notify(dd_message *message);
void engine_notify_done(dd_engine *engine);

/* ---- peer.c: peers and their lanes: life, dialling, breaking */

dd_status peer_create(dd_engine *engine, const dd_uid *uid, dd_peer **peer, dd_error *err) DD_MUST_CHECK;
void peer_destroy(dd_peer *peer);
void peer_destroy_lanes(dd_peer *peer);
void peer_discard_output(dd_peer *peer);
/* Free the peer if it has no users, link or kept frames. */
void peer_reap(dd_peer *peer);
/* Replace a peer that is lost, here or at its own end, by a new one for the same process. *peer
 * stays the same if it is not lost, or if its process has ended or has broken the protocol. */
dd_status peer_replace(dd_peer **peer, dd_error *err) DD_MUST_CHECK;
/* Set a peer's card, possibly for the first time. */
dd_status peer_note_card(dd_peer *peer, const dd_card *card, dd_bytes published, dd_error *err) DD_MUST_CHECK;
/* Call dd_connector_dial (there must be a connector). `number` is 0 for lanes other than 0. */
dd_status peer_dial(dd_peer *peer, int lane, uint64_t number, int64_t deadline_ns,
                    dd_error *err) DD_MUST_CHECK;
void peer_start_timer(dd_peer *peer, int64_t after_ns);
void peer_on_timer(dd_timer *timer);
/* Break the peer of the lane; the first reason stays. */
void lane_break(dd_lane *lane, const dd_error *error);
void peer_break(dd_peer *peer, const dd_error *error);
/* Break the peer and stop reading; it gets the reason before its link is closed (farewell). */
void peer_protocol_error(dd_peer *peer, const char *format, ...) DD_PRINTF(2, 3);
/* Break the peer for lack of memory; `what` is such as "for a message to it". */
void peer_break_for_memory(dd_peer *peer, const char *what, size_t nbytes);
/* Break the lane: `attempt` ("cannot send") has failed, or the other side has closed it. */
void lane_break_for_io(dd_lane *lane, dd_io io, const char *attempt);
void engine_note_link_failure(dd_engine *engine, int sys_errno);
void lane_end_input(dd_lane *lane);
/* Detach a receive from the lanes; its remaining payload is dropped. */
void peer_detach_recv(dd_peer *peer, dd_message *message);

/* ---- peer_send.c: output */

/* A frame from a context to one of its ranks; and the answer to a received frame. */
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
/* Send a message. `out` has it and its frame; type, id and payload are set here. */
void peer_post_message(dd_peer *peer, out_frame *out);
/* Send a control frame. `payload` (of ABORT) is copied. */
void peer_post_frame(dd_peer *peer, const dd_frame *frame, dd_bytes payload);
/* Send a frame to a breaking peer: the reason why it breaks. */
void peer_post_farewell(dd_peer *peer, const dd_frame *frame, dd_bytes payload);
/* Queue the answer to a QUESTION. Like a refusal, breaks the peer if too many are queued. */
void peer_post_answer(dd_peer *peer, const dd_frame *frame);
/* Refuse an RTS. `recv` has the wanted size and signature; NULL if there is no receive. */
void peer_post_refusal(dd_peer *peer, const dd_frame *rts, dd_refusal reason, const dd_message *recv);
/* Remove and return the first frame of `out`, which must not be empty. */
out_frame *peer_pop_out(dd_peer *peer);
bool lane_has_output(const dd_lane *lane);
/* Return true if frames other than fragments of large messages wait for lane 0. */
bool peer_has_queued(const dd_peer *peer);
/* Write as much as there is room for. Returns true if anything was written. */
bool lane_pump(dd_lane *lane);
void peer_on_cts(dd_peer *peer, const dd_frame *frame);
void peer_on_refuse(dd_peer *peer, const dd_frame *frame);
/* Remove an unfinished send from queues and lanes. */
void peer_detach_send(dd_peer *peer, dd_message *message);
void peer_return_credit(dd_peer *peer, size_t nbytes);

/* ---- context_control.c: control frames between ranks */

/* Send a control frame to a rank, if it is reachable. */
void context_send_control(dd_context *context, int rank, dd_frame_type type, dd_bytes payload);
void context_on_control(dd_context *context, const dd_frame *frame, dd_bytes payload);
/* Send a breaking peer the error, so that it does not take this rank for lost. */
void context_post_farewell(dd_context *context, dd_peer *peer);
/* Fail the messages of a lost peer, and notify the handler. */
void context_on_peer_lost(dd_context *context, dd_peer *peer);
/* Let the handler check the posts of this host's ranks in shared memory. Call before a frame ends
 * something: the sender may have posted the cause first. */
void context_read_posts(dd_context *context);
/* Send a newly connected peer the ABORT or QUESTION that it may have missed. */
void context_on_peer_connected(dd_context *context, const dd_peer *peer);
/* Return true if the context knows an earlier dd_peer of the frame's sender. */
bool context_knows_predecessor(const dd_context *context, const dd_frame *frame, const dd_peer *peer);
/* Return true if the frame's source rank is the peer's; break the peer if not. */
bool context_check_source(const dd_context *context, const dd_frame *frame, dd_peer *peer);

/* ---- context_match.c: matching of messages and receives */

/* Find the receive for an EAGER or RTS and remove it from its list; NULL if the frame must be held.
 * `is_notified`: on_coll has been called for the frame. */
dd_message *context_match(dd_context *context, const dd_frame *frame, bool is_notified);
/* Return 0 if the message fits the receive; else end the receive, and return the reason. */
int context_check_fit(dd_message *recv, const dd_frame *frame, dd_peer *peer);
void context_begin_rendezvous(dd_message *recv, const dd_frame *frame, dd_peer *peer);
/* Continue with an entry that is matched, in no list or a held one, and free it. */
void context_take_held(dd_message *recv, held *entry);

/* ---- context_held.c: frames without a receive or context */

/* Deliver a frame in an entry that is in no list; only a rendezvous's data may be missing. A
 * message is kept if there is no receive yet. */
void engine_deliver(held *entry);
/* Return the next frame kept for a context that is being opened; NULL if there is none. */
held *peer_pop_early(dd_peer *peer, const context_key *key);
/* Free the held messages of a context that closes, and return their credit or refuse them. */
void context_release_all_held(dd_context *context);
void peer_cancel_rts(dd_peer *peer, uint64_t id);
/* Free the entries whose data can no longer arrive. */
void engine_destroy_unfinished(dd_engine *engine, dd_list *list);
/* Handle the frames that the process has sent to itself. Returns true if there were any. */
bool self_pump(dd_engine *engine);

/* ---- peer_recv.c: input */

/* Read all that has arrived. Returns true if there was any. */
bool lane_receive(dd_lane *lane);
/* Return true for a frame that would fail messages while a failing group reads the links
 * (dd_engine_read_links_locked): a farewell, a CANCEL, or a refusal by a closed group. It waits for
 * the next round: the group's messages have then failed with its own cause, a better reason. */
bool engine_postpones(const dd_engine *engine, const dd_frame *frame);

/* ---- peer_link.c: new links. The connector's handler; tests also pass it links of their own */

bool engine_may_accept(void *ctx, const dd_uid *uid);
void engine_on_accept_failed(void *ctx, const dd_uid *uid);
void engine_on_accepted(void *ctx, const dd_uid *uid, int lane, dd_link *stream);
bool engine_wants_dial(void *ctx, const dd_uid *uid, uint64_t dial, bool is_busy);
void engine_on_dialled(void *ctx, const dd_uid *uid, int lane, uint64_t dial, dd_link *stream);
void engine_on_dial_failed(void *ctx, const dd_uid *uid, int lane, uint64_t dial, const dd_error *error);

/* ---- engine_bell.c: the doorbell */

/* Open the socket at which other processes of this host can ring. */
dd_status engine_open_bell(dd_engine *engine, dd_error *err) DD_MUST_CHECK;
void engine_answer_bell(dd_engine *engine);
/* Notify contexts of a ring. Call after frames that arrived earlier on links were handled. */
void engine_notify_rung(dd_engine *engine);

/* ---- engine_round.c: one round of work without waiting */

/* Run one round. Returns true if there was work. */
bool engine_run_round(dd_engine *engine);
/* Run the timers that are due, and return the time of the next one. */
int64_t engine_run_timers(dd_engine *engine, int64_t now_ns);
/* Handle epoll's events. Returns true on progress. */
bool engine_handle_events(dd_engine *engine, const struct epoll_event *events, int nevents);
/* Handle everything that has arrived, from all peers: before a verdict on lost peers. */
void engine_receive_all(dd_engine *engine);
/* Handle the consequences of broken links. */
void engine_end_broken_peers(dd_engine *engine);
/* Return true if a failure notice to some peer is not on its way yet. */
bool engine_is_notifying(dd_engine *engine);
/* Empty the wake_fd, unless a thread is still asleep that must see it. */
void engine_drain_wake_fd(dd_engine *engine);
/* Arrange for being woken. Returns false if there is work: do not sleep. */
bool engine_fall_asleep(dd_engine *engine);

/* ---- engine_nap.c: the naps of the background thread */

/* The background thread's last view of callers. */
typedef struct engine_callers_seen {
    uint64_t ndrives, ncalls;
    bool are_active; /* there were some during the last nap */
} engine_callers_seen;

void engine_nap_init(dd_engine *engine);
/* note_undriven: call with mu when the driver leaves. cut_nap_short: call next, if it was a caller
 * and no thread follows it; ends a long nap if answers are awaited. */
void engine_note_undriven(dd_engine *engine);
void engine_cut_nap_short(dd_engine *engine);
/* Nap until kicked, or until no caller has driven for a nap. Returns false if the engine stops. */
bool engine_nap(dd_engine *engine, engine_callers_seen *seen);

/* ---- engine_drive.c: drivers. Above it: engine.c, context.c (opening and closing) */

void engine_drive_init(dd_engine *engine);
dd_status engine_start_background(dd_engine *engine, dd_error *err) DD_MUST_CHECK;
void engine_stop_background(dd_engine *engine); /* without the lock */
/* Drive until is_done(ctx), called with the lock, returns true, or until the wait ends. */
void engine_flush(dd_engine *engine, bool (*is_done)(void *ctx), void *ctx, const dd_wait *wait);

#endif
