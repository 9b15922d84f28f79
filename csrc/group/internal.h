/* Internals of a group. Fields that are not constant are guarded by the engine's lock. */
#ifndef DD_GROUP_INTERNAL_H
#define DD_GROUP_INTERNAL_H

#include "collective/arena/board.h"
#include "collective/run.h"
#include "group/extension.h"
#include "group/group.h"
#include "meet/meeting.h"
#include "transport/context.h"

#define SIGNATURES_MAX 16 /* number of started collectives whose signatures are kept */

/* The known state of a rank, from its messages and its answers to queries. */
typedef struct member_state {
    uint64_t sequence; /* last collective that the rank is known to have started */
    dd_signature signature;
    bool is_inside;     /* the rank was inside that collective at its last answer */
    bool has_signature; /* `signature` is set */
    bool has_left;      /* the rank has left the group */
    bool has_voted;     /* during creation: the rank's vote for this rank has arrived */
    bool is_queried;
    bool has_answered;
    bool is_absent; /* the rank was dialled for a query, and its process did not answer */
    /* From the rank's last answer: bytes sent to rank lost_to that the network lost; 0 if none. */
    uint64_t lost_nbytes;
    int lost_to;
} member_state;

#define GROUP_INLINE_BLOCKS 8 /* number of blocks that are stored in the call itself */

/* A call under way, which is a collective or a message. The call is on the stack of a waiting
 * caller, or in the group's pool. A prepared call is in the pool and keeps its form. */
typedef struct dd_prepared_call group_call;
struct dd_prepared_call {
    dd_work work; /* must be first: a work of a group is cast to its call */
    dd_list link; /* entry in group->collectives or group->messages */
    dd_group *group;
    int64_t timeout_ns;  /* timeout in ns; < 0 for the group's timeout */
    int64_t limit_ns;    /* upper limit of deadline_ns, from the caller */
    int64_t deadline_ns; /* set by group_begin_record_locked; DD_NEVER_NS before */
    dd_timer late;       /* timer of the deadline; set by group_watch_locked */
    /* Data for group_begin_record_locked to record: at most one of form and record_args is set. */
    const dd_record_form *form;
    dd_record_call *record_args; /* borrowed from the caller */
    uint32_t stack;              /* call site that is recorded with `form` */
    uint64_t record;
    bool has_recorded_start; /* recorded as started at first: no earlier call was pending */
    bool needs_record;       /* group_begin_record_locked has not run yet */
    bool is_quick;           /* takes about 1 us once all ranks have called; needs no driver */
    bool is_message;
    bool is_send;           /* only for messages */
    bool is_carried;        /* only for messages: the carrier's library has the message */
    dd_signature signature; /* only for a collective or a typed message */
    union {
        dd_coll_args args;
        dd_message message;
    };
    dd_carried_message carried_message; /* only for messages that a carrier moves */
    dd_carried carried;
    dd_coll_form *prepared_form; /* owned; NULL unless this is a prepared call */
    bool is_checked;             /* check_all_locked has visited it; guarded by the engine's lock */
    /* The fields from here on are set only for calls of the pool. */
    struct call_pool *pool;
    dd_block *blocks; /* array: `inline_blocks`, or an owned one */
    dd_block inline_blocks[GROUP_INLINE_BLOCKS];
};

struct dd_coll_form {
    dd_signature signature;
    bool is_quick;
    dd_record_form *record; /* owned; NULL if recording is off */
};

struct dd_group {
    /* The fields from here on are const after open, except as noted. */
    dd_engine *engine; /* owned */
    uint64_t id;
    int rank;
    int size;
    bool is_crowded; /* more ranks on this host than cores that these ranks may use */
    dd_blob name;
    dd_peer **peers; /* [size]: the peer of each rank; owned */
    dd_topology topology;
    dd_context *context; /* owned; NULL once closed */
    dd_arena *arena;     /* owned; NULL if there is none */
    /* Descriptor of the arena, during the group's creation: on the creator, passed to ranks that
     * request it; on other ranks, received. -1 if there is none yet, DD_FD_DENIED if there will be
     * none. */
    int arena_fd;
    int64_t arena_request_ns; /* time of the next request for the arena */
    dd_run *run;              /* owned; NULL once closed */
    struct call_pool *pool;   /* owned; shared with the works in use */
    dd_selection selection;
    size_t segment_nbytes;

    atomic_uint refs;
    atomic_int_fast64_t timeout_ns; /* relaxed, because it is only a setting */

    /* The fields from here on are guarded by the engine's lock. */
    dd_task task;        /* in the engine during calls: queries, regions, carried messages */
    bool is_starting;    /* start_next_locked is running: do not enter it again */
    dd_list collectives; /* in the order of the calls; if is_active, the first is under way */
    bool is_active;
    dd_list messages;         /* the messages under way */
    int ncarried;             /* number of messages that the carrier's library has */
    uint64_t ncarried_posted; /* number of messages handed to the carrier so far */
    int64_t awake_until_ns;   /* argument of dd_run_may_nap, for the carrier's messages */
    uint64_t nposted;         /* number of collectives called on this rank */
    uint64_t nstarted;        /* number of collectives started on this rank */
    /* Signatures of the last started collectives; the index is sequence % SIGNATURES_MAX. */
    dd_signature signatures[SIGNATURES_MAX];
    dd_error cause; /* DD_OK, or the reason why every call fails */
    dd_cause *
        found; /* not NULL while group_end_complete_locked runs: the first failure that it finds goes there */
    bool has_own_failure; /* this rank is the first to report `found`: start no more collectives */
    dd_cause failure;     /* `cause` as a record; kind 0 if the group has not failed */
    bool is_set_up;       /* setup has ended on this rank; other ranks may not have finished */
    bool is_closing;
    bool is_suspended;
    bool is_suspending;
    pthread_t suspender; /* while is_suspending, the only thread that may use the group */
    bool is_revoked;     /* some rank has revoked the group, perhaps after a failure */
    bool is_querying;    /* a deadline has passed, and the other ranks have been queried */
    int64_t query_until_ns;
    /* The timers are set only while calls are under way. */
    dd_timer answers;      /* wakes the driver to check for answers to queries */
    dd_timer query_timer;  /* runs at the next progress query of the collective under way */
    dd_timer region_timer; /* runs at the next request for a region */
    dd_timer poll_timer;   /* polls messages in the carrier's library, which wakes no thread */
    member_state *members; /* [size]: the state of each rank */
    int nleft;
    atomic_bool is_idle;               /* no call is under way; stored with release */
    uint32_t nregions;                 /* number of region ids allocated */
    dd_list regions;                   /* this rank's dd_regions, in use or kept for reuse */
    atomic_size_t unused_nbytes;       /* bytes of pages in unused arrays */
    dd_list foreign;                   /* foreign_region entries: regions of other ranks */
    int nwanted;                       /* foreign regions that are not mapped yet */
    uint64_t nmonitored;               /* number of calls of monitored_barrier */
    dd_recorder_group *recorder_group; /* owned; NULL if recording is off */
    dd_group_extension *extension;     /* owned; NULL if there is none */
    /* Number of splits that this rank refused for their arguments; other ranks may count them. */
    unsigned nsplits_refused;
    /* Array of split_count: for each set of ranks, the number of its splits. */
    dd_blob splits;
};

/* ---- meet.c */

typedef struct group_meeting {
    dd_meeting_end end;
    /* Address records that replace some in `end`: of ranks in the process of a lower rank. */
    dd_blob_list replaced_endpoints;
    dd_engine *engine; /* owned; the given engine, or a new one */
} group_meeting;

/* Meet the other ranks in the store, and fill in `meeting`. */
dd_status group_meet(dd_engine *engine, dd_store *store, int rank, int size, dd_bytes name,
                     group_meeting *meeting, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
void group_meeting_fini(group_meeting *meeting);

/* Keys in the store under which a rank posts why it cannot continue after the meeting
 * (dd_meeting_post), because it may have no working link to the ranks that wait for it. */
typedef struct group_bulletin {
    dd_store *store;
    dd_bytes name;
    uint64_t generation;
    int64_t next_check_ns; /* time of the next check; 0 before the first one */
} group_bulletin;
/* Check the bulletin, at most every 500 ms. Return DD_OK if it is empty or not due for a check, the
 * posted error, or DD_INTERRUPTED. */
dd_status group_bulletin_check(group_bulletin *bulletin, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* ---- setup.c */

typedef struct group_params {
    int rank;
    int size;
    const dd_group_options *options;
} group_params;

/* Additional inputs to the creation of a group. */
typedef struct group_setup {
    dd_group *parent;         /* parent of a split, else NULL; if it fails, so does the creation */
    const int *parent_ranks;  /* [size]: the new group's ranks, as ranks of the parent */
    group_bulletin *bulletin; /* NULL if there is no store */
} group_setup;

/* Set up the parts of a group that need other ranks: context, topology, arena, run. If this fails,
 * the caller must destroy the group. */
dd_status group_set_up(dd_group *group, const group_setup *setup, const dd_wait *wait,
                       dd_error *err) DD_MUST_CHECK;

/* ---- arena_setup.c */

/* Set group->arena. If the ranks of this host cannot share an arena, the field stays NULL, and the
 * topology treats each of these ranks as a host of its own. */
dd_status group_set_up_arena(dd_group *group, const group_setup *setup, const dd_wait *wait,
                             dd_error *err) DD_MUST_CHECK;

/* ---- group.c */

/* Create a group, except the parts that need other ranks. The caller must fill in group->peers. */
dd_status group_create(dd_engine *engine, uint64_t id, const group_params *params, dd_group **group,
                       dd_error *err) DD_MUST_CHECK;
void group_destroy(dd_group *group); /* the group must be closed or incomplete; NULL is allowed */

/* Format of a group in errors: group "dp" (rank 3 of 8). */
#define GROUP_FORMAT "group \"%.*s\" (rank %d of %d)"
#define GROUP_ARGS(group) \
    (int)(group)->name.len, (const char *)(group)->name.data, (group)->rank, (group)->size

/* ---- check.c: checks before a call begins */

/* Check that groups can be split off: `parent` is usable, or it is revoked and not closed. */
dd_status group_check_parent_locked(dd_group *parent, dd_error *err) DD_MUST_CHECK;
/* Like dd_group_check_usable_locked, but take the lock first, and fail in a forked child. */
dd_status group_check_usable(dd_group *group, const char *label, dd_error *err) DD_MUST_CHECK;
/* Check the arguments of a collective, and fill in the signature and is_quick of its form. The
 * signature is the part on which all ranks must agree. Block sizes that differ by rank are not in
 * it; they are compared block by block. */
dd_status group_check_coll(const dd_group *group, const dd_coll_args *args, dd_coll_form *form,
                           dd_error *err) DD_MUST_CHECK;

/* ---- call_pool.c */

dd_status group_create_pool(dd_group *group, dd_error *err) DD_MUST_CHECK;
void group_release_pool(struct call_pool *pool); /* drop the group's reference; NULL is allowed */
dd_status group_call_create(struct call_pool *pool, group_call **call, dd_error *err) DD_MUST_CHECK;
void group_call_destroy(group_call *call); /* free what the call owns; return it to the pool */

/* ---- call.c */

/* Take a call from the pool for a collective, with copies of its blocks. */
dd_status group_create_collective(dd_group *group, const dd_coll_args *args, const dd_call_options *options,
                                  group_call **call, dd_error *err) DD_MUST_CHECK;
/* Start calls of one group in this order, all or none. Pass `is_patient` only with a single call
 * that the caller waits for next. A start holds a reference to a call of the pool until the end. */
dd_status group_start_calls(group_call *const *calls, size_t ncalls, bool is_patient, const dd_wait *wait,
                            dd_error *err) DD_MUST_CHECK;
#define GROUP_MONITOR_CHANNEL 1 /* channel of monitored_barrier's messages */

/* ---- queue.c: calls under way */

/* Queue the call; start it if it is the first. A quick call is recorded after its data is sent. */
void group_post_locked(group_call *call);
/* Poll for the call's end for 1 or 2 us. If other threads are blocked, pass is_hasty to poll for
 * less than 1 us. */
void group_poll_call_locked(group_call *call, bool is_hasty);
/* If the call has not ended, start its deadline and add the group's task to the engine. */
void group_watch_locked(group_call *call);

/* ---- complete.c: ends of calls */

/* Remove the call from its list and complete its work, which may free the call. `cause` is NULL on
 * success. */
void group_complete_locked(group_call *call, const dd_error *cause);
/* Complete the call with the group's cause. keeps_memory: the call's memory may still be in use. */
void group_complete_by_cause_locked(group_call *call, bool keeps_memory);
/* Fail the messages to and from `rank`, or all messages if it is DD_ANY_RANK. */
void group_fail_messages_locked(dd_group *group, int rank, const dd_error *cause);
void group_update_task_locked(dd_group *group); /* keeps the task in the engine during calls */

/* ---- carried_messages.c: messages that a carrier moves */

/* Hand a message to the carrier. Return false if the carrier does not support it. */
bool group_post_carried_locked(group_call *call);
bool group_carries_messages(const dd_group *group); /* true for messages with the carrier's tags */
bool group_poll_carried_locked(dd_group *group);    /* true if a message has ended */
void group_poll_carried_call_locked(group_call *call, int npolls);
bool group_may_nap_locked(dd_group *group); /* false if the carrier's messages need polling */
/* End a message with `cause`, in the carrier or the context. */
void group_cancel_message_locked(group_call *call, const dd_error *cause);

/* ---- deadlines.c */

void group_deadlines_init(dd_group *group);
void group_start_deadline_locked(group_call *call); /* end the call when its deadline passes */
/* Schedule the first progress query of the collective under way, which has waited since `since_ns`.
 * No effect if a query is scheduled already. */
void group_schedule_query_locked(dd_group *group, int64_t since_ns);

/* ---- events.c */

extern const dd_context_handler group_context_handler; /* a template: copy it and set `ctx` */
void group_receive_coll_locked(dd_group *group, int rank, uint64_t sequence, const dd_signature *signature);
/* Read a local rank's progress from its board. This works even if the rank is stopped. */
void group_read_position_locked(dd_group *group, int rank);
/* Read a local rank's answer from its board. Call after the rank has taken its posts. */
void group_read_answer_locked(dd_group *group, int rank);

/* ---- vote.c: waiting during a group's creation */

/* Like dd_group_await, but also fail if a rank that takes part in the creation will not vote. */
dd_status group_await_others(dd_group *group, const group_setup *setup, bool (*is_ready)(void *ctx),
                             void *ctx, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
/* Exchange votes: set votes[h] to 1 if all ranks of host h passed own_vote = true, else to 0. */
dd_status group_exchange_votes(dd_group *group, const group_setup *setup, bool own_vote, uint8_t *votes,
                               const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* ---- board.c: communication within a host without a link */

/* Report the failure to all ranks except `except`, where it began: by the board to local ranks, by
 * links to others. During creation, when there may be no board, links also reach local ranks. */
void group_report_failure_locked(dd_group *group, int except, const dd_cause *cause);
void group_post_leaving_locked(dd_group *group);  /* call after the context has sent its goodbyes */
void group_post_position_locked(dd_group *group); /* publish this rank's progress on the board */
/* Publish bytes that the network has lost, for ranks that ring this rank's bell after a timeout. */
void group_note_loss_locked(dd_group *group);
bool group_is_on_board(const dd_group *group, int rank); /* true if a board shows its progress */
/* Ring the bell of each local rank that is due one. A rank that then takes the posts runs. */
void group_ring_others_locked(dd_group *group);
#define GROUP_ARENA_FD_KEY 0 /* key of the arena's descriptor; keys of regions start at 1 */

/* ---- error_text.c: causes and their messages; see also dd_group_error_about */

/* Print "rank 2 (node-b, pid 77)" into `out`, and return `out`. */
const char *group_print_member(const dd_group *group, int rank, char out[128]);
void group_blame(const dd_group *group, int rank, dd_error *err); /* blame `rank` in the error */
/* Make the record of a cause found by this rank. The caller must fill in the kind's fields. */
dd_cause group_make_cause(const dd_group *group, dd_cause_kind kind, dd_status code, int blamed);
/* Convert an error to a cause for other ranks. Drops a blamed rank that is not in this group. */
dd_cause group_cause_of_error(const dd_group *group, const dd_error *error);
/* Make the cause of a collective that has timed out, from the answers of the other ranks. */
dd_cause group_cause_of_lateness(const dd_group *group, const group_call *call);
/* Set DD_OP_TIMED_OUT for a group that was closed, with its calls under way and their places. */
dd_status group_error_leftovers_locked(const dd_group *group, const dd_wait *wait, dd_error *err);
/* Make the error text of a cause, as this rank sees it. */
void group_explain_cause(const dd_group *group, const dd_cause *cause, dd_error *error);
/* Prepend the call to the error's message, as in: all_reduce #41 on group "dp" (rank 3 of 8): ...
 * Also store the call in the error. Pass sequence 0 if the call has no number. err may be NULL. */
void group_note_call(const dd_group *group, const char *label, uint64_t sequence, int64_t elapsed_ns,
                     dd_error *err);
/* Make the error of a failed operation from the cause of its failure. */
void group_describe_failure(const dd_group *group, const dd_work *work, const dd_error *cause,
                            dd_error *error);
void group_append(dd_error *error, const char *text); /* append "; <text>"; the blamed rank stays */
/* Return a started collective's signature, or NULL if it is not started or no longer kept. */
const dd_signature *group_signature_of(const dd_group *group, uint64_t sequence);
/* Append a sentence about ranks whose packets the network loses. Return the rank at the other end
 * of the lossy path, as seen from this rank, or -1 if no loss is known. */
int group_add_loss_locked(const dd_group *group, dd_error *error);
/* Print "tag 7", "any tag" or "part of an object". */
const char *group_print_tag(const dd_message *message, char out[32]);
/* Append how far a timed-out message got: bytes received, or bytes lost on the network. For a
 * receive, append the tags of the messages that have arrived and do not match it. */
void group_add_progress_locked(const dd_group *group, const dd_message *message, dd_error *error);

/* ---- fail.c: failure of a group */

/* End the calls that are complete on this rank: their data has arrived, in messages or in shared
 * memory, even if this rank has not processed the data yet. Every failure of a group or of its
 * collectives does this first, so that later events cannot fail a call whose data has arrived.
 * Collectives end in the order of the calls: the ones queued behind the current one are started as
 * well, unless a carrier moves their data. A failure found here fails the group. */
void group_end_complete_locked(dd_group *group);
/* Return true if the group has failed, or if group_end_complete_locked has found a failure that
 * this rank is the first to report. */
bool group_has_failed_locked(const dd_group *group);
/* Fail the group. The first cause is kept and sent to the other ranks, and ends all calls that are
 * not complete. Use dd_group_fail_locked for an error that has no cause record. */
void group_fail_cause_locked(dd_group *group, const dd_cause *cause);
/* Fail the group because this rank cannot do its part: prepend this rank's name to the error, and
 * blame this rank. */
void group_fail_own_locked(dd_group *group, dd_error *error);
void group_fail_mismatch_locked(dd_group *group, const dd_arena_mismatch *blamed);
/* Fail the group because `rank` has made a different call than this rank. */
void group_fail_calls_locked(dd_group *group, int rank, uint64_t sequence,
                             const dd_signature *peer_signature);
/* Fail the group because a collective's message has an unexpected size, as `error` describes. */
void group_fail_misfit_locked(dd_group *group, const dd_error *error);
/* Fail the group because a message has arrived for a collective that is complete on this rank. */
void group_fail_surplus_locked(dd_group *group, int rank, uint64_t sequence);

/* ---- record.c: entries of the flight recorder */

/* Give an accepted call its start time, deadline and record, once per start. The caller may defer
 * this until other ranks have the data that they need from this rank, so that they do not wait for
 * the recorder; all other functions that record the call do this first. */
void group_begin_record_locked(group_call *call);
/* Set the call's start time if its record or on_done needs one; for most calls, neither does. */
void group_begin_record_if_needed_locked(group_call *call);
void group_record_start_locked(group_call *call);
/* Call before completing the work, which may free the call. `error` is NULL on success. */
void group_record_end_locked(group_call *call, const dd_error *error);
void group_raise_alarm_locked(dd_group *group); /* call before the group's calls end */

/* ---- regions.c */

void group_want_region(void *ctx, int local, uint32_t id); /* the callback dd_run_env.want_region */
/* Map wanted regions whose descriptors have arrived. Return true if there were any: the operation
 * that waits for the regions can continue, or must fail if error->code has been set. */
bool group_map_wanted_locked(dd_group *group, dd_error *error);
/* Set the timer for the next request of a wanted region, if calls are under way. */
void group_start_region_timer_locked(dd_group *group);
/* Handle two events of the context: a local rank requests a region; a requested region has arrived.
 * take_region returns true if it takes ownership of `fd`. */
void group_pass_region_locked(dd_group *group, int rank, uint32_t id);
bool group_take_region_locked(dd_group *group, int rank, uint32_t id, int fd);
void group_destroy_regions(dd_group *group);
void group_clear_unused_regions_locked(dd_group *group);   /* return their pages to the system */
size_t group_regions_nbytes_locked(const dd_group *group); /* bytes of regions in use */
/* Drop a reference. True if it was the last; the caller must then release the region's group. */
bool group_release_region(dd_region *region);
/* Replace the pages of a block in a region of this rank, so that other ranks' later writes do not
 * reach the block. */
dd_status group_take_back_locked(dd_group *group, dd_block block, dd_error *err) DD_MUST_CHECK;

#endif
