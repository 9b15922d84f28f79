/* Declarations shared by the engine's files. The engine's lock guards every field here, unless the
 * field's comment names another rule.
 *
 * Every message ends by the same path: message_end moves it to engine->done, and engine_notify_done,
 * which only drivers call, notifies its owner (or dd_context_notify_locked, called by the owner). So
 * posting a message never runs a callback, and no list changes during iteration. Every link breaks
 * by the same path: lane_break records the reason, and engine_end_broken_peers handles the
 * consequences in the next round. */
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
/* Limit of the eager bytes, headers included, that a receiver may hold for one sender. */
#define CREDIT_NBYTES ((size_t)1 << 20)
#define LANE_BUFFER_NBYTES ((size_t)8 << 10)
#define HELD_INLINE_NBYTES ((size_t)128)
/* Time in nanoseconds that a link is kept while the endpoint of its process is unknown here. */
#define UNKNOWN_LINK_NS (5 * DD_NS_PER_S)

typedef struct dd_lane dd_lane;

/* State of a message, stored in dd_message.stage. */
typedef enum message_stage {
    STAGE_IDLE,
    STAGE_POSTED, /* a receive without a message yet; in a list of its context */
    STAGE_MOVING, /* in progress; in a list of its peer, which tells the step */
    STAGE_DONE,   /* ended; in engine->done */
} message_stage;

/* A held entry: a message that arrived before its receive was posted, or a frame for a context that
 * is not open. */
typedef struct held {
    dd_list link;
    dd_frame frame;
    dd_peer *peer;
    uint64_t order;     /* position of this entry in the order of arrival, over all peers */
    uint8_t *data;      /* payload, in `small` or in separately allocated memory */
    bool is_notified;   /* true if on_coll has been called for the frame */
    dd_message *sender; /* for a message from this process to itself: the waiting send; else NULL */
    uint8_t small[HELD_INLINE_NBYTES];
} held;

/* A frame that is queued or being written. */
typedef struct out_frame {
    dd_list link;
    dd_frame frame;
    dd_message *message; /* message with the payload; NULL if cancelled or a control frame */
    uint8_t *owned;      /* payload of a frame without message; freed once written */
    uint8_t reply;       /* kind of reply, a reply_kind */
} out_frame;

/* Kinds of replies that a peer can provoke. Queued replies are limited in number, by kind. */
typedef enum reply_kind {
    REPLY_NONE,
    REPLY_ANSWER,  /* the answer to a QUESTION */
    REPLY_REFUSAL, /* the refusal of an RTS */
    REPLY_KINDS,
} reply_kind;

struct dd_lane {
    dd_list link; /* link in engine->shm_lanes or engine->tcp_lanes */
    dd_link *stream;
    dd_peer *peer;
    int number;
    bool is_ended;       /* true once no more input is read from the lane */
    bool is_receiving;   /* true while lane_receive runs for this lane */
    bool is_blocked;     /* true if the frame in `buf` waits for other lanes or the next round */
    bool is_output_dead; /* true once no more output can be written */
    uint32_t watched;    /* events that epoll watches for this lane */

    out_frame current; /* the frame that is being written; valid if is_writing */
    uint8_t header[DD_FRAME_NBYTES];
    size_t header_nbytes;
    size_t written; /* number of bytes of `current` written so far, header included */
    bool is_writing;

    dd_frame frame; /* the frame whose payload is being received */
    size_t payload_left;
    uint8_t *destination; /* address for the payload; NULL if the payload is dropped */
    dd_message *recv;     /* the receive that gets the payload, or NULL */
    held *collected;      /* held entry for the payload, or NULL; in no list until complete */
    dd_context *cached;   /* cache: the context of the last frame, or NULL */
    size_t begin;
    size_t end;
    uint8_t buf[LANE_BUFFER_NBYTES];
};

/* States of a peer (rows) and events (columns). BUSY is not a state but the answer to a dial;
 * "closed" means that the new link is closed; blank, that nothing changes.
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
 * A peer that breaks (peer_break) stays LOST: its groups never use it again. Its process may be
 * alive, since a cut network also breaks links. If a later meeting (rendezvous) has its endpoint
 * again, a new dd_peer with the same uid, in state IDLE, replaces the lost one in engine->peers
 * (peer_replace); only older groups refer to the lost one. The two share no link, message or error.
 * A frame on the new link for a group that knows only the lost dd_peer is dropped, as for a closed
 * group. A peer whose process has ended or broken the protocol is never replaced (is_final). */
typedef enum peer_state {
    PEER_IDLE,
    PEER_ACCEPTING, /* a dial by the peer was accepted, and its link is being created */
    PEER_DIALLING,
    PEER_CONNECTED,
    PEER_LOST,
} peer_state;

/* Limits of held messages, and of queued replies that a peer does not read. A context that closes
 * refuses the messages that it holds. Per group and failure, a rank sends another one QUESTION. */
#define PEER_HELD_MAX ((size_t)1 << 20)
#define PEER_REFUSALS_MAX (2 * PEER_HELD_MAX)
#define PEER_ANSWERS_MAX ((size_t)4096)

struct dd_peer {
    dd_map_node node; /* node in engine->peers; the key is endpoint.uid */
    dd_engine *engine;
    unsigned refs; /* number of references; an unused peer is kept while it has a link */
    dd_endpoint endpoint;
    bool is_endpoint_known; /* false if the peer dialled before this process had its endpoint */
    dd_blob published;      /* encoded endpoint with addresses; empty unless is_endpoint_known */
    bool is_self;
    bool is_near; /* true if links with the peer use (or would use) shared memory */
    peer_state state;
    bool wants_link;
    /* Number of the latest dial of lane 0, or 0 if there is none. The dial's outcome counts even if
     * a dial by the peer has been accepted since. */
    uint64_t dial;
    int64_t dialled_ns;      /* time at which the dial `dial` began */
    bool is_reported_lost;   /* true if a rank aborted a group because it lost this peer */
    bool is_final;           /* true if the process ended or broke the protocol: never replaced */
    bool is_lost_remotely;   /* true if the peer reports that it lost its link to this process */
    bool is_replaced;        /* true if another dd_peer with this uid is in engine->peers */
    bool has_notice_pending; /* true while a failure notice to the peer is pending */
    /* If CONNECTED: limits the time from another lane's end to lane 0's, or until the endpoint is
     * known. If without users: limits how long frames for contexts that are not open are kept. */
    dd_timer timer; /* its callback is peer_on_timer or on_farewell_due */
    /* Time at which the link of a peer that broke the protocol is closed, even if the peer has not
     * received the reason. DD_NEVER_NS until the reason is posted; 0 if no link waits for that. */
    int64_t farewell_until_ns;

    dd_lane *lanes[DD_LANES_MAX];
    int nlanes;
    int ndialling; /* number of dials in progress, other than those of lane 0 */
    bool has_tried_lanes;
    size_t eager_max;

    dd_list out;                  /* frames queued for lane 0 (out_frame) */
    size_t nreplies[REPLY_KINDS]; /* number of replies of each kind in `out` */
    dd_list awaiting;             /* sends whose RTS (request to send) is not answered yet */
    dd_list sending;              /* sends whose data is not completely cut into fragments yet */
    dd_list flushing;             /* sends whose last bytes are queued or being written */
    dd_list receiving;            /* receives that are matched and whose data is still arriving */
    size_t nexpected;             /* posted receives and expected data (dd_context_expect_locked) */
    uint64_t last_id;             /* id of the last RTS that was posted to the peer */
    uint64_t begun_id;            /* id of the last RTS begun to be sent; the peer knows no later */
    uint64_t last_rts_id;         /* id of the last RTS that was received from the peer */

    size_t credit; /* number of bytes that may still be sent eagerly */
    /* Number of eager bytes, headers included, that were sent and whose credit the peer has not
     * returned. The peer must not return more credit than this. */
    size_t lent;
    size_t owed;         /* credit, in bytes, that the next frame returns to the peer */
    size_t unreturned;   /* eager bytes received from the peer whose credit is not returned yet */
    dd_list early;       /* list of held entries for contexts that are not open */
    dd_list held_aborts; /* list of held ABORT frames for contexts that are not open */
    size_t nheld_aborts;
    size_t nheld; /* number of held entries from this peer, here and in all contexts */

    dd_list breaking; /* link in engine->breaking */
    bool is_breaking;
    const dd_error *error; /* why the peer breaks or is lost, else NULL; owned, except &no_memory */
};

typedef struct context_rank {
    dd_peer *peer;
    dd_list posted; /* list of posted receives from this rank */
    dd_list held;
    bool is_leaving; /* true if shared memory says that the rank left, which a QUESTION verifies */
    bool has_sent_goodbye;
    bool is_lost; /* true once on_lost has been called for the rank */
} context_rank;

typedef struct context_key {
    uint64_t id;
    uint64_t rank;
} context_key;

struct dd_context {
    dd_map_node node; /* node in engine->contexts */
    dd_list link;     /* link in engine->context_list */
    context_key key;
    dd_engine *engine;
    int rank;
    int nranks;
    dd_context_handler handler;
    dd_list posted_any; /* list of posted receives from any rank */
    dd_blob abort;      /* encoded cause that this rank sent in ABORT, for later links; or empty */
    context_rank ranks[];
};

/* A thread that drives the engine, or waits for its turn to drive. */
typedef struct dd_waiter {
    dd_list link; /* link in engine->waiters while the thread waits for its turn */
    const atomic_bool *is_done;
    bool is_asleep; /* true while this driver sleeps on the links, without the lock */
    bool is_background;
    pthread_cond_t turn;
} dd_waiter;

#define CLOSED_CONTEXTS_MAX 1024

/* Counters that only tests read: payload bytes sent by kind of link, frames, connections. */
typedef struct dd_engine_stats {
    uint64_t shm_sent_nbytes, tcp_sent_nbytes, self_sent_nbytes;
    uint64_t nframes_sent, nconnections;
    size_t held_nbytes; /* size of the messages that arrived before their receives were posted */
} dd_engine_stats;

struct dd_engine {
    atomic_uint refs;
    uint64_t generation; /* const after init */
    dd_lock mu;
    atomic_uint nlockers;       /* number of threads that wait for mu; relaxed, only a hint */
    dd_connect_options options; /* const after init; the strings are in option_text */
    dd_blob option_text;        /* const after init */
    dd_blob secret;             /* const after init */
    dd_connector *connector;    /* NULL until dd_engine_endpoint is first called */
    dd_endpoint endpoint;       /* const after the first dd_engine_endpoint; uid after init */
    dd_lock opening_mu;         /* must be taken before mu; held while opening connector, ports */
    dd_addr_list addrs;         /* guarded by opening_mu: addresses that the connector listens on */
    unsigned nmeetings;         /* number of meetings in progress; written with opening_mu and mu */
    uint64_t ndials;            /* number of lane 0 dials so far: the number of the latest dial */
    bool has_begun_meeting;     /* true after the first meeting; written with opening_mu and mu */
    dd_peer *self;

    dd_map peers;
    dd_map contexts;
    dd_list context_list;
    context_key closed[CLOSED_CONTEXTS_MAX]; /* ring buffer of recently closed contexts */
    size_t nclosed;

    dd_list shm_lanes;
    dd_list tcp_lanes;
    size_t ntcp_lanes;
    unsigned lane_generation; /* incremented whenever a lane is destroyed */
    dd_list breaking;
    dd_list done; /* list of messages that have ended and whose owners must be notified */
    dd_list tasks;
    dd_list *next_task; /* next task of an iteration in progress; changed if that task is removed */
    bool is_crowded;    /* true if any task was crowded in the last round */
    bool is_outnumbered;
    size_t nposted; /* number of messages that are posted */
    size_t nany;    /* number of receives from any rank that are not matched */
    dd_timer_set timers;
    uint64_t next_order;

    out_frame *free_out; /* pool of unused out_frames, linked by link.next */
    held *free_held;
    size_t nfree_held;

    int epoll_fd;
    int wake_fd;
    int bell_fd;                /* the doorbell's socket or -1; const after dd_engine_endpoint */
    unsigned ndatagrams_failed; /* number of failed datagrams in a row, due to this process */
    int datagrams_errno;        /* errno of the last datagram that failed due to this process */
    /* errno and time of the last link that failed because of this process before any group knew the
     * link; 0 if there was none. */
    int link_errno;
    int64_t link_failed_ns;
    dd_spin spin;
    dd_waiter *driver; /* the waiter that drives the engine; NULL if no thread drives */
    dd_list waiters;
    dd_waiter background;
    int64_t notices_until_ns; /* time until which pending failure notices delay callers, or 0 */
    bool has_rung;            /* true if a bell has rung, so contexts must check shared memory */
    bool is_reading_links;    /* true while dd_engine_read_links_locked runs */
    bool is_delivering_self;  /* true while self_deliver runs */
    bool has_postponed;       /* true if a lane has a frame for the next round */
    bool is_wake_due;         /* true if dd_engine_unlock must wake waiters that are done */
    unsigned nsleeping;       /* threads asleep on the links: the driver, and former drivers */
    unsigned nrounds;

    /* True if `thread` must be joined. Written with opening_mu and mu held, read with either. */
    bool has_thread;
    bool is_closing;
    pthread_t thread; /* guarded by opening_mu */
    dd_lock nap_mu;
    pthread_cond_t nap;
    bool is_kicked;         /* guarded by nap_mu */
    bool is_stopping;       /* guarded by nap_mu */
    atomic_bool is_stopped; /* the background thread's is_done flag */
    /* Number of times that callers drove or polled everything (ndrives), and that they polled only
     * one call (ncalls). Written with mu held, read by the background thread; relaxed. */
    atomic_uint_fast64_t ndrives, ncalls;
    atomic_bool is_driven;       /* true if a caller drives; read by the background thread */
    atomic_uint nprompt;         /* number of requests for prompt answers; written with mu held */
    atomic_bool is_napping_long; /* true if the background thread naps long; set with nap_mu */

    dd_engine_stats stats;
};

/* The files form layers in the order below: a file calls no function of a later file. Work for a
 * later file waits in engine->done or engine->breaking until the next round. */

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
/* Release the lock so that waiting threads can take it, then take it again. */
void engine_yield_lock(dd_engine *engine);
void engine_wake_driver(dd_engine *engine);
/* Wake the driver if it sleeps; if no thread drives, wake the background thread. */
void engine_wake(dd_engine *engine);

dd_peer *engine_find_peer(dd_engine *engine, const dd_uid *uid);
dd_context *engine_find_context(dd_engine *engine, uint64_t id, uint32_t rank);
bool engine_has_closed(const dd_engine *engine, uint64_t id, uint32_t rank);
void engine_note_closed(dd_engine *engine, const context_key *key);
void engine_clear_closed(dd_engine *engine, const context_key *key);

/* Return a copy of `out` for a queue, or NULL if there is no memory. */
out_frame *engine_create_out(dd_engine *engine, const out_frame *out);
void engine_destroy_out(dd_engine *engine, out_frame *out);
held *engine_create_held(dd_peer *peer, const dd_frame *frame); /* NULL if no memory */
void engine_destroy_held(dd_engine *engine, held *entry);
/* Allocate the payload of a held entry. Returns false if there is no memory. */
bool held_alloc_payload(held *entry, size_t nbytes);

/* ---- message.c: ends of messages */

/* End a message: move it to engine->done. `error` is copied; it is NULL on success. */
void message_end(dd_message *message, const dd_error *error);
/* End a message with an error, which blames the other rank: its name and the formatted text. */
void message_fail(dd_message *message, dd_status code, const char *format, ...) DD_PRINTF(3, 4);
/* End a message because the other rank has closed the group. */
void message_fail_closed(dd_message *message);
/* End a message whose peer is lost, with the peer's error. */
void message_fail_lost(dd_message *message);
void message_fail_memory(dd_message *message, size_t nbytes);
/* End a message that does not fit the other rank's message, for `reason` (a dd_refusal).
 * `peer_signature` and `nbytes` are the signature and the size of the other rank's message. */
void message_fail_misfit(dd_message *message, int reason, const dd_signature *peer_signature,
                         uint64_t nbytes);
void message_unpost(dd_message *message);
/* Call on_done of an ended message. */
void message_notify(dd_message *message);
void engine_notify_done(dd_engine *engine);

/* ---- peer.c: creation, dialling and breaking of peers and lanes */

dd_status peer_create(dd_engine *engine, const dd_uid *uid, dd_peer **peer, dd_error *err) DD_MUST_CHECK;
void peer_destroy(dd_peer *peer);
void peer_destroy_lanes(dd_peer *peer);
void peer_discard_output(dd_peer *peer);
/* Free the peer if it has no users, no link and no frames for contexts that are not open. */
void peer_reap(dd_peer *peer);
/* Replace a peer that is lost here, or at its own end, by a new peer for the same process. Leaves
 * *peer unchanged if it is not lost, or if its process has ended or has broken the protocol. */
dd_status peer_replace(dd_peer **peer, dd_error *err) DD_MUST_CHECK;
/* Set the endpoint of a peer, or set it again. */
dd_status peer_set_endpoint(dd_peer *peer, const dd_endpoint *endpoint, dd_bytes published,
                            dd_error *err) DD_MUST_CHECK;
/* Call dd_connector_dial; the connector must exist. `number` must be 0 for lanes other than 0. */
dd_status peer_dial(dd_peer *peer, int lane, uint64_t number, int64_t deadline_ns,
                    dd_error *err) DD_MUST_CHECK;
void peer_start_timer(dd_peer *peer, int64_t after_ns);
void peer_on_timer(dd_timer *timer);
/* Break a peer (peer_break), or the peer of a lane (lane_break), possibly only once lane 0 has
 * ended. If a peer breaks repeatedly, its first error is kept. */
void lane_break(dd_lane *lane, const dd_error *error);
void peer_break(dd_peer *peer, const dd_error *error);
/* Break the peer and stop reading. Its link is closed after the reason (a farewell) has arrived. */
void peer_protocol_error(dd_peer *peer, const char *format, ...) DD_PRINTF(2, 3);
/* Break the peer for lack of memory; `label` must be a phrase such as "for a message to it". */
void peer_break_for_memory(dd_peer *peer, const char *label, size_t nbytes);
/* Break the lane because its link was closed, or because `attempt` ("cannot send") failed. */
void lane_break_for_io(dd_lane *lane, dd_io io, const char *attempt);
void engine_note_link_failure(dd_engine *engine, int sys_errno);
void lane_end_input(dd_lane *lane);
/* Detach a receive from the peer's lanes; payload that still arrives for it is dropped. */
void peer_detach_recv(dd_peer *peer, dd_message *message);

/* ---- peer_send.c: output */

/* Return a frame from a context to a rank (context_frame), or a reply to a frame (reply_frame). */
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
/* Send the message in `out`, which must have its frame; type, id and payload are set here. */
void peer_post_message(dd_peer *peer, out_frame *out);
/* Send a control frame. `payload` is copied; only ABORT frames have one. */
void peer_post_frame(dd_peer *peer, const dd_frame *frame, dd_bytes payload);
/* Send a frame to a peer that is breaking, to report why. */
void peer_post_farewell(dd_peer *peer, const dd_frame *frame, dd_bytes payload);
/* Queue the answer to a QUESTION. If too many answers are queued, the peer breaks. */
void peer_post_answer(dd_peer *peer, const dd_frame *frame);
/* Refuse an RTS. The refusal has the size and signature of its receive `recv` (may be NULL). */
void peer_post_refusal(dd_peer *peer, const dd_frame *rts, dd_refusal reason, const dd_message *recv);
/* Remove and return the first frame queued in peer->out, which must not be empty. */
out_frame *peer_pop_out(dd_peer *peer);
bool lane_has_output(const dd_lane *lane);
/* Return true if lane 0 has frames to write that are not fragments of large messages. */
bool peer_has_queued(const dd_peer *peer);
/* Write as many bytes as the link has room for. Returns true if any were written. */
bool lane_pump(dd_lane *lane);
void peer_on_cts(dd_peer *peer, const dd_frame *frame);
void peer_on_refuse(dd_peer *peer, const dd_frame *frame);
/* Remove an unfinished send from the queues and lanes of its peer. */
void peer_detach_send(dd_peer *peer, dd_message *message);
void peer_return_credit(dd_peer *peer, size_t nbytes);

/* ---- context_control.c: control frames between ranks */

/* Send a control frame to a rank. Has no effect if the rank is unreachable. */
void context_send_control(dd_context *context, int rank, dd_frame_type type, dd_bytes payload);
void context_on_control(dd_context *context, const dd_frame *frame, dd_bytes payload);
/* Send this rank's error to a breaking peer, which would otherwise report this rank as lost. */
void context_post_farewell(dd_context *context, dd_peer *peer);
/* Fail all messages to and from a peer that is lost, and call on_lost. */
void context_on_peer_lost(dd_context *context, dd_peer *peer);
/* Call on_bell, which checks what ranks of this host have written to shared memory. Must be called
 * before a frame ends messages: its sender may have written the cause of a failure there first. */
void context_read_posts(dd_context *context);
/* Send a newly connected peer the ABORT or QUESTION that was posted before it was connected. */
void context_on_peer_connected(dd_context *context, const dd_peer *peer);
/* Return true if `peer` replaced the dd_peer that this context knows as the frame's sender. */
bool context_knows_predecessor(const dd_context *context, const dd_frame *frame, const dd_peer *peer);
/* Return true if the frame's source rank belongs to the peer; if not, break the peer. */
bool context_check_source(const dd_context *context, const dd_frame *frame, dd_peer *peer);

/* ---- context_match.c: matching messages with receives */

/* Find the receive for an EAGER or RTS frame, and remove it from its list. Returns NULL if the
 * frame must be held. `is_notified` must be true if on_coll was already called for the frame. */
dd_message *context_match(dd_context *context, const dd_frame *frame, bool is_notified);
/* End the peeks that match a message which has just been held. */
void context_end_peeks(dd_context *context, const dd_frame *frame);
/* Return 0 if the message fits the receive; otherwise end the receive and return a dd_refusal. */
int context_check_fit(dd_message *recv, const dd_frame *frame, dd_peer *peer);
void context_begin_rendezvous(dd_message *recv, const dd_frame *frame, dd_peer *peer);
/* Pass a held entry to its receive, and free the entry, which may be in a list. */
void context_take_held(dd_message *recv, held *entry);

/* ---- context_held.c: frames without a receive or an open context */

/* Deliver a complete held entry, which must be in no list; hold it again if there is no receive. */
void engine_deliver(held *entry);
/* Remove and return the next frame held for a context that is being opened; NULL if none. */
held *peer_pop_early(dd_peer *peer, const context_key *key);
/* Free the held messages of a closing context: return their credit, or refuse their RTS. */
void context_release_all_held(dd_context *context);
void peer_cancel_rts(dd_peer *peer, uint64_t id);
/* Free the held entries in `list` whose data can no longer arrive because their peer is lost. */
void engine_destroy_unfinished(dd_engine *engine, dd_list *list);
/* Handle the frames that this process has sent to itself. Returns true if there were any. */
bool self_deliver(dd_engine *engine);

/* ---- peer_recv.c: input */

/* Read the input that has arrived on the lane. Returns true if there was any. */
bool lane_receive(dd_lane *lane);
/* Return true if a frame must wait for the next round. While a failing group reads the links
 * (dd_engine_read_links_locked), farewells, CANCELs and refusals by closed groups wait: otherwise
 * they would fail the group's messages before the group does so with its own, better cause. */
bool engine_postpones(const dd_engine *engine, const dd_frame *frame);

/* ---- peer_link.c: handlers of the connector, for new links; tests also pass links to them */

bool engine_may_accept(void *ctx, const dd_uid *uid);
void engine_on_accept_failed(void *ctx, const dd_uid *uid);
void engine_on_accepted(void *ctx, const dd_uid *uid, int lane, dd_link *stream);
bool engine_wants_dial(void *ctx, const dd_uid *uid, uint64_t dial, bool is_busy);
void engine_on_dialled(void *ctx, const dd_uid *uid, int lane, uint64_t dial, dd_link *stream);
void engine_on_dial_failed(void *ctx, const dd_uid *uid, int lane, uint64_t dial, const dd_error *error);

/* ---- engine_bell.c: the doorbell */

/* Open the doorbell's socket, at which other processes of this host can ring. */
dd_status engine_open_bell(dd_engine *engine, dd_error *err) DD_MUST_CHECK;
void engine_answer_bell(dd_engine *engine);
/* Call on_bell of all contexts if a bell has rung. Earlier frames must have been handled. */
void engine_notify_rung(dd_engine *engine);

/* ---- engine_round.c: one round of driving, which never waits */

/* Run one round. Returns true if there was work to do. */
bool engine_run_round(dd_engine *engine);
/* Run the timers that have expired, and return the time of the next timer. */
int64_t engine_run_timers(dd_engine *engine, int64_t now_ns);
/* Handle the events that epoll returned. Returns true on progress. */
bool engine_handle_events(dd_engine *engine, const struct epoll_event *events, int nevents);
/* Handle all input from all peers. Must be called before a peer is declared lost. */
void engine_receive_all(dd_engine *engine);
/* Handle the consequences of broken links: notify contexts, fail messages. */
void engine_end_broken_peers(dd_engine *engine);
/* Return true if a failure notice to some peer has not left this process yet. */
bool engine_is_notifying(dd_engine *engine);
/* Reset wake_fd, unless a sleeping thread must still be woken by it. */
void engine_drain_wake_fd(dd_engine *engine);
/* Prepare to sleep: request bells and events. Returns false if there is work: then do not sleep. */
bool engine_fall_asleep(dd_engine *engine);

/* ---- engine_nap.c: the naps of the background thread */

/* The counters ndrives and ncalls as the background thread last read them. */
typedef struct engine_callers_seen {
    uint64_t ndrives, ncalls;
    bool are_active; /* true if callers were active during the last nap */
} engine_callers_seen;

void engine_nap_init(dd_engine *engine);
/* note_undriven: call, with mu held, when a driver stops. cut_nap_short: call next if the driver
 * was a caller and no thread follows; ends the thread's long nap if prompt answers are wanted. */
void engine_note_undriven(dd_engine *engine);
void engine_cut_nap_short(dd_engine *engine);
/* Nap until kicked, or until no caller drove during a nap. Returns false if the engine stops. */
bool engine_nap(dd_engine *engine, engine_callers_seen *seen);

/* ---- engine_drive.c: drivers. The last layers, engine.c and context.c, declare nothing here */

void engine_drive_init(dd_engine *engine);
dd_status engine_start_background(dd_engine *engine, dd_error *err) DD_MUST_CHECK;
void engine_stop_background(dd_engine *engine); /* must be called without mu */
/* Drive until is_done(ctx) returns true or the wait ends. is_done is called with mu held. */
void engine_flush(dd_engine *engine, bool (*is_done)(void *ctx), void *ctx, const dd_wait *wait);

#endif
