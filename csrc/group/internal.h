/* Internals of a group. Fields that are not constant are guarded by the engine's lock. */
#ifndef DD_GROUP_INTERNAL_H
#define DD_GROUP_INTERNAL_H

#include "collective/arena/board.h"
#include "collective/run.h"
#include "group/extension.h"
#include "group/group.h"
#include "meet/meeting.h"
#include "transport/context.h"

#define SIGNATURES_KEPT 16 /* signatures of started collectives, to check late messages */

/* Known state of a rank, from its messages and answers. */
typedef struct member_state {
    uint64_t sequence; /* of the last collective that it is known to have started */
    dd_signature signature;
    bool is_inside;     /* as of its last answer: that collective is under way there */
    bool has_signature; /* `signature` is known */
    bool has_left;      /* has left the group */
    bool has_voted;     /* during creation: the vote that it sends to this rank has arrived */
    bool is_queried;
    bool has_answered;
    bool is_absent; /* no process answered when it was dialled for a query */
    /* As of its last answer: bytes to rank lost_to that the network has lost; 0 if none. */
    uint64_t lost_nbytes;
    int lost_to;
} member_state;

#define GROUP_INLINE_BLOCKS 8 /* that fit into the call itself */

/* A call under way, a collective or a message: on the stack of a waiting caller, or in the group's
 * pool. A standing call is in the pool and keeps its form. */
typedef struct dd_standing_call group_call;
struct dd_standing_call {
    dd_work work; /* must be first: a work of a group is one of these */
    dd_list link; /* in group->collectives or group->messages */
    dd_group *group;
    int64_t timeout_ns;  /* < 0 for the group's */
    int64_t limit_ns;    /* upper limit of deadline_ns */
    int64_t deadline_ns; /* set by group_begin_record_locked; DD_NEVER_NS before */
    dd_timer late;       /* set by group_watch_locked */
    /* For the flight recorder, at most one of the two; used by group_begin_record_locked. */
    const dd_record_form *form;
    dd_record_call *record_args; /* the caller's */
    uint32_t stack;              /* with `form` */
    uint64_t record;
    bool has_recorded_start; /* its record begins as started, as no earlier call was pending */
    bool needs_record;       /* group_begin_record_locked has not run yet */
    bool is_quick;           /* takes about 1 us once all ranks have called it; needs no driver */
    bool is_message;
    bool is_send;           /* for messages */
    bool is_carried;        /* for messages: the carrier's library has it */
    dd_signature signature; /* of a collective or a typed message */
    union {
        dd_coll_args args;
        dd_message message;
    };
    dd_carried_message carried_message; /* for messages of a carrier */
    dd_carried carried;
    dd_coll_form *kept_form; /* owned; NULL for a one-shot call */
    bool is_checked;         /* guarded by the engine's lock: already seen by check_all_locked */
    /* The following are set only for calls of the pool. */
    struct call_pool *pool;
    dd_block *blocks; /* `inline_blocks`, or owned */
    dd_block inline_blocks[GROUP_INLINE_BLOCKS];
};

struct dd_coll_form {
    dd_signature signature;
    bool is_quick;
    dd_record_form *record; /* owned; NULL if recording is off */
};

struct dd_group {
    /* const after open, except as noted */
    dd_engine *engine; /* owned */
    uint64_t id;
    int rank;
    int size;
    bool is_crowded; /* more ranks on this host than cores that they may use */
    dd_blob name;
    dd_peer **peers; /* [size], owned */
    dd_topology topology;
    dd_context *context; /* owned; NULL once closed */
    dd_arena *arena;     /* owned; NULL if there is none */
    /* Descriptor of the arena during the group's creation: the creator's, to pass on request, or
     * the received one. -1 if there is none yet, DD_FD_DENIED if there will be none. */
    int arena_fd;
    int64_t arena_request_ns; /* when to request it next */
    dd_run *run;              /* owned; NULL once closed */
    struct call_pool *pool;   /* owned, shared with the works in use */
    dd_selection selection;
    size_t segment_nbytes;

    atomic_uint refs;
    atomic_int_fast64_t timeout_ns; /* relaxed: a setting */

    /* guarded by the engine's lock */
    dd_task task;        /* queries, regions, carried messages: in the engine while a call runs */
    bool is_starting;    /* start_next_locked is running: do not enter it again */
    dd_list collectives; /* in the order of the calls; the first is under way while is_active */
    bool is_active;
    dd_list messages;                         /* the other calls */
    int ncarried;                             /* the messages in the carrier's library */
    uint64_t ncarried_posted;                 /* messages handed to the carrier */
    int64_t awake_until_ns;                   /* for the carrier's messages: see dd_run_may_nap */
    uint64_t nposted;                         /* collectives called */
    uint64_t nstarted;                        /* collectives started on this rank */
    dd_signature signatures[SIGNATURES_KEPT]; /* of the last started collectives, by sequence */
    dd_error cause;                           /* DD_OK, or the reason why every call fails */
    dd_cause *
        found; /* not NULL while group_end_complete_locked runs: the first failure that it finds goes there */
    bool has_found_own; /* this rank is the first to report it: no further collective starts */
    dd_cause failure;   /* `cause` as a record; kind 0 if the group has not failed */
    bool is_set_up;     /* on this rank; other ranks may not have finished */
    bool is_closing;
    bool is_suspended;
    bool is_suspending;
    pthread_t suspender; /* while is_suspending: the only thread that may call */
    bool is_revoked;     /* by any rank, perhaps after a failure */
    bool is_querying;    /* after a passed deadline: the other ranks have been queried */
    int64_t query_until_ns;
    /* Timers, set only while calls are under way. */
    dd_timer answers;      /* deadline for answers to queries */
    dd_timer query_timer;  /* next progress query of the collective under way */
    dd_timer region_timer; /* next request of a region */
    dd_timer poll_timer;   /* polls messages in the carrier's library, which wakes no thread */
    member_state *members; /* [size] */
    int nleft;
    atomic_bool is_idle;               /* no call is under way; stored with release */
    uint32_t nregions;                 /* number of region ids allocated */
    dd_list regions;                   /* dd_region of this rank, in use or kept for reuse */
    atomic_size_t kept_nbytes;         /* page bytes of unused arrays */
    dd_list foreign;                   /* regions of other ranks: see regions.c */
    int nwanted;                       /* foreign regions that are not mapped yet */
    uint64_t nmonitored;               /* number of calls of monitored_barrier */
    dd_recorder_group *recorder_group; /* owned; NULL if recording is off */
    dd_group_extension *extension;     /* owned; NULL if there is none */
    unsigned nsplits_refused;          /* here, for their arguments: others may have counted them */
    dd_blob splits;                    /* counts for each set of ranks: records of split_count */
};

/* ---- meet.c */

typedef struct group_meeting {
    dd_meeting_end end;
    /* Cards that replace those in `end`, of processes that are in the group several times. */
    dd_blob_list replaced_cards;
    dd_engine *engine; /* owned: the given one, or a new one */
} group_meeting;

/* Meet the other ranks in the store. */
dd_status group_meet(dd_engine *engine, dd_store *store, int rank, int size, dd_bytes name,
                     group_meeting *meeting, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
void group_meeting_fini(group_meeting *meeting);

/* The place in the store where a rank posts that it cannot go on after the meeting
 * (dd_meeting_post). Such a rank may have no working link to the ranks that wait for it. */
typedef struct group_bulletin {
    dd_store *store;
    dd_bytes name;
    uint64_t generation;
    int64_t next_check_ns; /* next time to check it; 0 before the first check */
} group_bulletin;
/* Check the bulletin, at most every 500 ms: DD_OK if empty, the posted error, or DD_INTERRUPTED. */
dd_status group_bulletin_check(group_bulletin *bulletin, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* ---- setup.c */

typedef struct group_params {
    int rank;
    int size;
    const dd_group_options *options;
} group_params;

/* Additional inputs to the creation of a group. */
typedef struct group_setup {
    dd_group *parent;         /* for a split, else NULL; its failure also ends the creation */
    const int *parent_ranks;  /* [size] */
    group_bulletin *bulletin; /* NULL if there is no store */
} group_setup;

/* Add the parts that need other ranks: context, topology, arena, run. On failure, the caller must
 * destroy the group. */
dd_status group_set_up(dd_group *group, const group_setup *setup, const dd_wait *wait,
                       dd_error *err) DD_MUST_CHECK;

/* ---- arena_setup.c */

/* Set group->arena. If the ranks of this host cannot share one, it stays NULL, and the topology
 * makes each of them a host of its own. */
dd_status group_set_up_arena(dd_group *group, const group_setup *setup, const dd_wait *wait,
                             dd_error *err) DD_MUST_CHECK;

/* ---- group.c */

/* Create a group with all that needs no other rank. The caller must fill in the peers. */
dd_status group_create(dd_engine *engine, uint64_t id, const group_params *place, dd_group **group,
                       dd_error *err) DD_MUST_CHECK;
void group_destroy(dd_group *group); /* closed or incomplete; NULL is allowed */

/* For errors: group "dp" (rank 3 of 8). */
#define GROUP_FORMAT "group \"%.*s\" (rank %d of %d)"
#define GROUP_ARGS(group) \
    (int)(group)->name.len, (const char *)(group)->name.data, (group)->rank, (group)->size

/* ---- check.c: checks before a call begins */

/* Check that groups can be split off from `parent`: it is usable, or revoked and not closed. */
dd_status group_check_parent_locked(dd_group *parent, dd_error *err) DD_MUST_CHECK;
/* Like dd_group_check_usable_locked, but takes the lock, and refuses a forked child. */
dd_status group_check_usable(dd_group *group, const char *what, dd_error *err) DD_MUST_CHECK;
/* Check the arguments, and fill in the part of the form that all ranks must agree on. Block sizes
 * that differ by rank are not in it; they are compared block by block. */
dd_status group_check_coll(const dd_group *group, const dd_coll_args *args, dd_coll_form *form,
                           dd_error *err) DD_MUST_CHECK;

/* ---- call_pool.c */

dd_status group_create_pool(dd_group *group, dd_error *err) DD_MUST_CHECK;
void group_release_pool(struct call_pool *pool); /* drop the group's reference; NULL is allowed */
dd_status group_call_create(struct call_pool *pool, group_call **call, dd_error *err) DD_MUST_CHECK;
void group_call_destroy(group_call *call); /* free what the call owns; return it to the pool */

/* ---- call.c */

/* Take a call from the pool, with copies of its blocks. */
dd_status group_create_collective(dd_group *group, const dd_coll_args *args, const dd_call_options *options,
                                  group_call **call, dd_error *err) DD_MUST_CHECK;
/* Start calls of one group in this order, all or none. Pass `is_patient` if the caller waits for
 * the one call next. A call of the pool holds one more reference until it has ended. */
dd_status group_start_calls(group_call *const *calls, size_t ncalls, bool is_patient, const dd_wait *wait,
                            dd_error *err) DD_MUST_CHECK;
#define GROUP_MONITOR_CHANNEL 1 /* of monitored_barrier's messages */

/* ---- queue.c: calls under way */

/* Queue the call, and start it if it is next. A short call is recorded after its data is sent. */
void group_post_locked(group_call *call);
/* Poll for the call's end for 1 or 2 us. Pass is_hasty (< 1 us) if other threads are blocked. */
void group_poll_call_locked(group_call *call, bool is_hasty);
/* Start the deadline of a call that has not ended, and add the group's task to the engine. */
void group_watch_locked(group_call *call);

/* ---- complete.c: ends of calls */

/* Remove the call from its list and complete its work. `cause` is NULL on success. The call may be
 * freed by this. */
void group_complete_locked(group_call *call, const dd_error *cause);
/* The same with the group's cause; keeps_memory: the call's memory may still be in use. */
void group_complete_by_cause_locked(group_call *call, bool keeps_memory);
/* Fail the messages to and from `rank`, or all for DD_ANY_RANK. */
void group_fail_messages_locked(dd_group *group, int rank, const dd_error *cause);
void group_update_task_locked(dd_group *group); /* keep it in the engine only while calls run */

/* ---- carried_messages.c: messages that a carrier moves */

/* Hand a message to the carrier. Return false if the carrier does not support it. */
bool group_post_carried_locked(group_call *call);
bool group_poll_carried_locked(dd_group *group); /* true if a message has ended */
void group_poll_carried_call_locked(group_call *call, int npolls);
bool group_may_nap_locked(dd_group *group); /* false if messages in the library need polling */
/* End a message with `cause`, in the carrier or the context. */
void group_cancel_message_locked(group_call *call, const dd_error *cause);

/* ---- deadlines.c */

void group_deadlines_init(dd_group *group);
void group_start_deadline_locked(group_call *call); /* end the call at its deadline */
/* Schedule the first progress query of the collective under way, which has waited since `since_ns`.
 * At most once for each collective. */
void group_schedule_query_locked(dd_group *group, int64_t since_ns);

/* ---- events.c */

extern const dd_context_handler group_context_handler; /* complete except for ctx */
void group_receive_coll_locked(dd_group *group, int rank, uint64_t sequence, const dd_signature *signature);
/* Read the progress of a local rank from its board, which works even if the rank is stopped. */
void group_read_position_locked(dd_group *group, int rank);
/* Read the answer of a local rank from its board. Call once it has taken its news after a bell. */
void group_read_answer_locked(dd_group *group, int rank);

/* ---- vote.c: waiting during a group's creation */

/* Like dd_group_await, but also fail if a rank that takes part in the creation will not vote. */
dd_status group_await_others(dd_group *group, const group_setup *setup, bool (*is_ready)(void *ctx),
                             void *ctx, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
/* Set votes[h] to 1 if all ranks of host h (of the topology) have passed true, else 0. */
dd_status group_exchange_votes(dd_group *group, const group_setup *setup, bool own, uint8_t *votes,
                               const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* ---- board.c: communication within a host without a link */

/* Report the failure to all ranks but `except`, its origin: on the board to local ranks, by links
 * to others. During creation, local ranks may not have the board, so links reach them as well. */
void group_report_failure_locked(dd_group *group, int except, const dd_cause *cause);
void group_post_leaving_locked(dd_group *group);  /* call after the context's goodbyes */
void group_post_position_locked(dd_group *group); /* publish this rank's progress on the board */
/* Publish the bytes that the network loses, for ranks that ring this one's bell after a timeout. */
void group_note_loss_locked(dd_group *group);
bool group_is_on_board(const dd_group *group, int rank); /* the board shows its progress */
/* Ring the bell of each local rank that is due one. By taking its news, it shows that it runs. */
void group_ring_others_locked(dd_group *group);
#define GROUP_ARENA_FD_KEY 0 /* names the arena's descriptor; regions have keys from 1 */

/* ---- error_text.c: causes and their messages; see also dd_group_error_about */

/* "rank 2 (node-b, pid 77)" */
const char *group_print_member(const dd_group *group, int rank, char out[128]);
void group_blame(const dd_group *group, int rank, dd_error *err); /* make it the rank that the error blames */
/* Make a cause found by this rank. The caller fills in the fields of its kind. */
dd_cause group_make_cause(const dd_group *group, dd_cause_kind kind, dd_status code, int blamed);
/* Convert an error to a cause for other ranks. Drops a blamed rank that is only in the parent. */
dd_cause group_cause_of_error(const dd_group *group, const dd_error *error);
/* Make the cause of a late collective, from the answers of the other ranks. */
dd_cause group_cause_of_lateness(const dd_group *group, const group_call *call);
/* Word a cause as this rank sees it. */
void group_explain_cause(const dd_group *group, const dd_cause *cause, dd_error *error);
/* Prepend the call to the error's message (all_reduce #41 on group "dp" (rank 3 of 8): ...) and
 * note it in the error. Sequence 0 means no number. err may be NULL. */
void group_note_call(const dd_group *group, const char *what, uint64_t sequence, int64_t elapsed_ns,
                     dd_error *err);
/* Make the error of an operation from its cause. */
void group_describe_failure(const dd_group *group, const dd_work *work, const dd_error *cause,
                            dd_error *error);
void group_append(dd_error *error, const char *text); /* append "; <text>", keep the blamed rank */
/* Return the signature of a started collective, or NULL if it is not started or too old. */
const dd_signature *group_signature_of(const dd_group *group, uint64_t sequence);
/* Append whose packets the network loses. Return the rank at that path's other end, as seen from
 * this one, or -1 if no loss is known. */
int group_add_loss_locked(const dd_group *group, dd_error *error);
/* Append the progress of a message that has timed out: bytes received, or lost on the network. */
void group_add_progress_locked(const dd_group *group, const dd_message *message, dd_error *error);

/* ---- fail.c: failure of a group */

/* End the calls that are complete on this rank: their data has arrived, in messages or in shared
 * memory, whether or not this rank has looked at it. Every failure of a group or of its collectives
 * does this first, so that later events cannot fail a call that has all its data. Collectives end
 * in the order of the calls: the ones queued behind the current one are started as well, unless a
 * carrier moves their data. A failure found here fails the group. */
void group_end_complete_locked(dd_group *group);
/* True if the group has failed, or group_end_complete_locked has found a failure that this rank is
 * the first to report. */
bool group_has_failed_locked(const dd_group *group);
/* Fail the group. The first cause is kept and sent to the other ranks; it ends everything under way
 * that is not complete. Use dd_group_fail_locked for an error that has no cause record. */
void group_fail_cause_locked(dd_group *group, const dd_cause *cause);
/* Fail the group because this rank cannot do its part: prepend its name, and blame it. */
void group_fail_own_locked(dd_group *group, dd_error *error);
void group_fail_mismatch_locked(dd_group *group, const dd_arena_mismatch *blamed);
/* Fail the group because `rank` has made a different call than this rank. */
void group_fail_calls_locked(dd_group *group, int rank, uint64_t sequence, const dd_signature *theirs);
/* The same if a message of a collective has an unexpected size; `error` describes it. */
void group_fail_misfit_locked(dd_group *group, const dd_error *error);
/* Fail the group because a message has arrived for a collective that was complete here. */
void group_fail_surplus_locked(dd_group *group, int rank, uint64_t sequence);

/* ---- record.c: entries of the flight recorder */

/* Give an accepted call its start time, deadline and record, once per start. This may be deferred
 * until other ranks have the data that they need from this one, so that they do not wait for it;
 * the functions that record more do it first. */
void group_begin_record_locked(group_call *call);
/* Stamp the call if its record or on_done needs the start time; most others end without it. */
void group_begin_record_if_needed_locked(group_call *call);
void group_record_start_locked(group_call *call);
/* Call before completing the work, which may free the call. `error` NULL for success. */
void group_record_end_locked(group_call *call, const dd_error *error);
void group_raise_alarm_locked(dd_group *group); /* call before the group's calls end */

/* ---- regions.c */

void group_want_region(void *ctx, int local, uint32_t id); /* want_region of dd_run_env */
/* Map wanted regions whose descriptors have arrived. Return true if there were any: the operation
 * that waits for them can continue, or fails with *error, whose code is otherwise unchanged. */
bool group_map_wanted_locked(dd_group *group, dd_error *error);
/* Set the timer for the next request of a wanted region, if calls are under way. */
void group_start_region_timer_locked(dd_group *group);
/* Context events: a local rank requests a region; a requested one has arrived (true if taken). */
void group_pass_region_locked(dd_group *group, int rank, uint32_t id);
bool group_take_region_locked(dd_group *group, int rank, uint32_t id, int fd);
void group_destroy_regions(dd_group *group);
void group_clear_kept_regions_locked(dd_group *group);     /* return their pages to the system */
size_t group_regions_nbytes_locked(const dd_group *group); /* of regions in use */
/* Drop a reference. True if it was the last; then the caller must release the region's group. */
bool group_release_region(dd_region *region);
/* Replace the pages of a block in a region of this rank: later remote writes do not show here. */
dd_status group_take_back_locked(dd_group *group, dd_block block, dd_error *err) DD_MUST_CHECK;

#endif
