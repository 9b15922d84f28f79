/* The inside of a group. Everything that is not constant belongs to the holder of the engine's lock. */
#ifndef DD_GROUP_INTERNAL_H
#define DD_GROUP_INTERNAL_H

#include "collective/arena/board.h"
#include "collective/run.h"
#include "group/group.h"
#include "group/guest.h"
#include "meet/meeting.h"
#include "transport/context.h"

/* A rank that is through with a collective may still hear from one that took it for another. */
#define SIGNATURES_KEPT 16

/* What a rank is known to be at, from its messages and its answers. */
typedef struct member_state {
    uint64_t sequence; /* of the last collective it is known to have started */
    dd_signature signature;
    bool is_inside;   /* as of its last answer: that collective is under way there */
    bool has_said_it; /* `signature` is known */
    bool is_gone;     /* said goodbye */
    bool has_voted;   /* while the group is being made: what it had to tell this rank has come */
    bool is_asked;
    bool has_answered;
    bool is_absent; /* dialled to be asked, it was not there */
    /* As of its last answer: bytes that it has sent to rank lost_to are lost on the way; 0: none. */
    uint64_t lost_nbytes;
    int lost_to;
} member_state;

/* Blocks that a call has room for itself. */
#define GROUP_FEW_BLOCKS 8

/* One call under way, a collective or a message: on the stack of the caller that waits in it, or of the group's pool. One that is started
 * again and again is of the pool, too, and keeps its form. */
typedef struct dd_standing_call group_call;
struct dd_standing_call {
    dd_work work; /* first: a work of a group is one of these */
    dd_list link; /* in collectives, or in messages */
    dd_group *group;
    int64_t timeout_ns;  /* < 0: the group's */
    int64_t limit_ns;    /* the deadline is no later */
    int64_t deadline_ns; /* set by group_stamp_locked; DD_NEVER_NS before that */
    dd_timer late;       /* set by group_watch_locked */
    /* What the flight recorder is told, one or none of them: by group_stamp_locked. */
    const dd_record_form *form;
    dd_record_call *told; /* the caller's */
    uint32_t stack;       /* with `form` */
    uint64_t record;
    bool has_recorded_start; /* it was under way from the beginning */
    bool is_unstamped;       /* group_stamp_locked is still to come */
    bool is_quick;           /* takes a microsecond once the others are there, and nobody to drive */
    bool is_message;
    bool is_send;           /* of messages */
    bool is_carried;        /* a message that is in the carrier's library */
    dd_signature signature; /* of a collective; of a message that is typed */
    union {
        dd_coll_args args;
        dd_message message;
    };
    dd_carried_message parcel; /* of one that is carried */
    dd_carried carried;
    dd_coll_form *kept_form; /* owned; NULL: it is started once */
    bool is_chosen;          /* guarded by the engine's lock: among those that are about to be started */
    /* Only of calls of the pool. */
    struct call_pool *pool;
    dd_block *blocks; /* `few_blocks`, or owned */
    dd_block few_blocks[GROUP_FEW_BLOCKS];
};

struct dd_coll_form {
    dd_signature signature;
    bool is_quick;
    dd_record_form *record; /* owned; NULL: nobody records */
};

struct dd_group {
    /* const after open */
    dd_engine *engine; /* owned */
    uint64_t id;
    int rank;
    int size;
    bool is_crowded; /* there are more ranks on this host than cores that they may use */
    dd_blob name;
    dd_peer **peers; /* [size], owned */
    dd_topology topology;
    dd_context *context; /* owned; NULL once closed */
    dd_arena *arena;     /* owned; NULL: none */
    /* Of the arena, while the group is being made: the maker's, for those who ask for it, and what has come to
     * the others; -1: nothing yet. Also DD_FD_DENIED. */
    int arena_fd;
    int64_t ask_arena_ns;   /* when to ask for it next */
    dd_run *run;            /* owned; NULL once closed */
    struct call_pool *pool; /* owned, shared with the works that are in use */
    dd_selection selection;
    size_t segment_nbytes;

    atomic_uint refs;
    atomic_int_fast64_t timeout_ns; /* relaxed: a setting */

    /* guarded by the engine's lock */
    dd_task task;        /* questions, regions, carried messages: in the engine while anything is under way */
    bool is_starting;    /* start_next is running: do not enter it again */
    dd_list collectives; /* in the order of the calls; the first is under way while is_active */
    bool is_active;
    dd_list messages;                         /* the other calls */
    int ncarried;                             /* of them, those in the carrier's library */
    uint64_t nparcels;                        /* messages that the carrier has been handed */
    int64_t awake_until_ns;                   /* for them: see dd_run_may_nap */
    uint64_t nposted;                         /* collectives that have been called */
    uint64_t nstarted;                        /* ... and that have been started here */
    dd_signature signatures[SIGNATURES_KEPT]; /* of the last ones started, by sequence */
    dd_error cause; /* code DD_OK while nothing is wrong; else why everything fails */
    dd_cause *
        found; /* not NULL while group_end_complete_locked runs: the first failure that it finds goes there */
    bool has_found_own; /* one that this rank is the first to report: no further collective is started */
    dd_cause failure;   /* what `cause` puts in words; kind 0 while nothing is wrong */
    bool is_made;       /* on this rank; others may not be through yet */
    bool is_closing;
    bool is_suspended;
    bool is_suspending;
    pthread_t suspender; /* while is_suspending: the only thread that may call */
    bool is_revoked;     /* by this rank or another: it may have failed before */
    bool is_asking;      /* a deadline has passed and the others have been asked where they are */
    int64_t asked_until_ns;
    /* Set while calls are under way, or not at all. */
    dd_timer answers;      /* of ranks that have been asked */
    dd_timer curious;      /* the collective under way asks where the others are */
    dd_timer ask_again;    /* for regions */
    dd_timer look;         /* for messages in the carrier's library, which wakes nobody */
    member_state *members; /* [size] */
    int ngone;
    atomic_bool is_idle;               /* nothing is under way; release */
    uint32_t nregions;                 /* ids given out */
    dd_list regions;                   /* dd_region of this rank, in use or kept for the next */
    atomic_size_t kept_nbytes;         /* of pages, in arrays that are not in use */
    dd_list foreign;                   /* regions of others: see regions.c */
    int nwanted;                       /* those of them that have not been mapped yet */
    uint64_t nmonitored;               /* calls of monitored_barrier */
    dd_recorder_group *recorder_group; /* owned; NULL: nobody records */
    dd_group_guest *guest;             /* owned; NULL: there is none */
    unsigned nsplits_refused; /* here, for their arguments: the other members may have counted them */
    dd_blob splits;           /* how often each set of ranks has been split off: records of split_count */
};

/* ---- meet.c */

typedef struct group_meeting {
    dd_meeting_end end;
    dd_blob_list
        again; /* cards in place of those in `end`: of processes that are in the group several times */
    dd_engine *engine; /* owned: the one that was given, or one of its own */
} group_meeting;

/* Meets the others in the store. */
dd_status group_meet(dd_engine *engine, dd_store *store, int rank, int size, dd_bytes name,
                     group_meeting *meeting, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
void group_meeting_fini(group_meeting *meeting);

/* Where a rank says that it cannot go on after the meeting (dd_meeting_post): it may have no link to the ranks that
 * wait for it, or none that works. */
typedef struct group_bulletin {
    dd_store *store;
    dd_bytes name;
    uint64_t generation;
    int64_t look_ns; /* when to look next; 0: it has not been looked at */
} group_bulletin;
/* Looks now and then. DD_OK while there is nothing, or what has been posted; DD_INTERRUPTED. */
dd_status group_bulletin_check(group_bulletin *bulletin, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* ---- setup.c */

/* This rank's place in a group. */
typedef struct group_place {
    int rank;
    int size;
    const dd_group_options *options;
} group_place;

/* Who takes part in the making of a group, beside its ranks. */
typedef struct group_setup {
    dd_group *parent;         /* of a split: what ends it ends the making of this one; else NULL */
    const int *parent_ranks;  /* [size] */
    group_bulletin *bulletin; /* NULL: there is no store */
} group_setup;

/* Adds what needs the others' help: context, topology, arena, run. On failure the group is to be destroyed. */
dd_status group_set_up(dd_group *group, const group_setup *setup, const dd_wait *wait,
                       dd_error *err) DD_MUST_CHECK;

/* ---- arena_setup.c */

/* group->arena stays NULL if the ranks of this host cannot share one; the topology then has each of them as a host. */
dd_status group_set_up_arena(dd_group *group, const group_setup *setup, const dd_wait *wait,
                             dd_error *err) DD_MUST_CHECK;

/* ---- group.c */

/* Has all that needs nobody's help; the caller fills in the peers. */
dd_status group_create(dd_engine *engine, uint64_t id, const group_place *place, dd_group **group,
                       dd_error *err) DD_MUST_CHECK;
void group_destroy(dd_group *group); /* closed, or half made; NULL is fine */

/* ---- small things */

/* For errors: group "dp" (rank 3 of 8). */
#define GROUP_FORMAT "group \"%.*s\" (rank %d of %d)"
#define GROUP_ARGS(group) \
    (int)(group)->name.len, (const char *)(group)->name.data, (group)->rank, (group)->size

/* ---- check.c: whether a call may begin */

/* Whether it can have offspring: also once it was revoked. */
dd_status group_check_parent_locked(dd_group *parent, dd_error *err) DD_MUST_CHECK;
/* dd_group_check_usable_locked without the lock, and in a forked child. */
dd_status group_check_usable(dd_group *group, const char *what, dd_error *err) DD_MUST_CHECK;
/* What all ranks must agree on, once it has been checked. Block sizes of the others differ by rank, and are compared block by block. */
dd_status group_check_coll(const dd_group *group, const dd_coll_args *args, dd_coll_form *form,
                           dd_error *err) DD_MUST_CHECK;

/* ---- call_pool.c */

dd_status group_make_pool(dd_group *group, dd_error *err) DD_MUST_CHECK;
/* Drops the group's reference; NULL is fine. Works of the group may live on. */
void group_release_pool(struct call_pool *pool);
dd_status group_take_call(struct call_pool *pool, group_call **call, dd_error *err) DD_MUST_CHECK;
/* Frees what the call owns and returns it to its pool. */
void group_give_call(group_call *call);

/* ---- call.c */

/* A call of the pool, with copies of its blocks. */
dd_status group_take_collective(dd_group *group, const dd_coll_args *args, const dd_call_options *options,
                                group_call **call, dd_error *err) DD_MUST_CHECK;
/* Starts calls of one group, one after the other: all of them, or none. With `is_patient` the caller waits for the one call next. A
 * call of the pool holds one more reference from now on, until it has ended. */
dd_status group_start_calls(group_call *const *calls, size_t ncalls, bool is_patient, const dd_wait *wait,
                            dd_error *err) DD_MUST_CHECK;
/* Of messages of monitored_barrier. */
#define GROUP_MONITOR_CHANNEL 1

/* ---- queue.c: calls under way */

/* Starts it if it is its turn. The other side waits neither for the record of a short call nor for the time of day. */
void group_post_locked(group_call *call);
/* Looks for its end for a microsecond or two, or for less than one: for callers who hold something that others need. */
void group_look_locked(group_call *call, bool is_hasty);
/* What has not ended gets its deadline, and somebody to look after it. */
void group_watch_locked(group_call *call);

/* ---- complete.c: ends of calls */

/* Takes it out of its list and completes its work; `cause` NULL for success. Lets the call go. */
void group_complete_locked(group_call *call, const dd_error *cause);
/* The same with the group's cause; keeps_memory: somebody may still use the call's. */
void group_complete_by_cause_locked(group_call *call, bool keeps_memory);
/* Those to and from `rank`, or all for DD_ANY_RANK. */
void group_fail_messages_locked(dd_group *group, int rank, const dd_error *cause);
/* Puts the group's task in, or takes it out, as the work at hand demands. */
void group_update_task_locked(dd_group *group);

/* ---- carried_messages.c: messages that a carrier takes */

/* Hands a message to the carrier. False: it is not one for it. */
bool group_post_carried_locked(group_call *call);
/* True: one has ended. */
bool group_look_at_carried_locked(dd_group *group);
void group_look_for_carried_locked(group_call *call, int nlooks);
/* False: messages in the library are worth another look. */
bool group_may_nap_locked(dd_group *group);
/* Ends a message with `cause`, wherever it is. */
void group_cancel_message_locked(group_call *call, const dd_error *cause);

/* ---- deadlines.c */

void group_deadlines_init(dd_group *group);
/* The call ends at its deadline, if it has not before. */
void group_start_deadline_locked(group_call *call);
/* The collective under way, which has been waited for since then, looks after the others some time. Once for each. */
void group_be_curious_locked(dd_group *group, int64_t since_ns);

/* ---- events.c */

extern const dd_context_handler group_context_handler; /* but for its ctx */
void group_hear_coll_locked(dd_group *group, int rank, uint64_t sequence, const dd_signature *signature);
/* Where a rank of this host is, by its board; whether it runs is another question. */
void group_hear_place_locked(dd_group *group, int rank);
/* A rank of this host has taken its news since its bell was rung: its answer is on its board. */
void group_hear_answer_locked(dd_group *group, int rank);

/* ---- vote.c: what the making of a group waits for */

/* As dd_group_await; and fails when a rank that takes part in the making will not vote any more. */
dd_status group_await_others(dd_group *group, const group_setup *setup, bool (*is_there)(void *ctx),
                             void *ctx, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
/* votes[h] becomes 1 if all ranks of host h (of the topology) have given true. */
dd_status group_exchange_votes(dd_group *group, const group_setup *setup, bool own, uint8_t *votes,
                               const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* ---- board.c: what ranks of a host tell each other without a link */

/* Reports the failure to all ranks but `except`, its origin: on the board to the ranks of this host, by links
 * to the others. While the group is being made, a rank of this host may not have the board yet, so links carry
 * it inside the host as well. */
void group_report_failure_locked(dd_group *group, int except, const dd_cause *cause);
/* After the context's goodbyes. */
void group_post_leaving_locked(dd_group *group);
/* Says on the board where this rank is. */
void group_note_place_locked(dd_group *group);
/* Publish the bytes of this rank that the network loses, for ranks that ring its bell when their time is up. */
void group_note_loss_locked(dd_group *group);
/* Whether the rank can be looked up on the board. */
bool group_is_on_board(const dd_group *group, int rank);
/* Rings those of this host for whom a bell is due, who show by hearing it that they run. */
void group_ring_others_locked(dd_group *group);
/* What ranks call the arena that they ask for or pass; regions have words from 1. */
#define GROUP_ARENA_WORD 0

/* ---- error_text.c: causes and the sentences for them; see also dd_group_error_about */

/* "rank 2 (node-b, pid 77)" */
const char *group_print_member(const dd_group *group, int rank, char out[128]);
/* The member is the error's culprit. */
void group_blame(const dd_group *group, int rank, dd_error *err);
/* A cause that this rank has found, without what only its kind has. */
dd_cause group_make_cause(const dd_group *group, dd_cause_kind kind, dd_status code, int culprit);
/* What the others are told of an error. Its culprit may be a process that is only in the parent of this
 * group. */
dd_cause group_cause_of_error(const dd_group *group, const dd_error *error);
/* Of the collective that is too late, by the answers of the others. */
dd_cause group_cause_of_lateness(const dd_group *group, const group_call *call);
/* The words for a cause, as this rank sees it. */
void group_explain_cause(const dd_group *group, const dd_cause *cause, dd_error *error);
/* Puts a call in front of the error that is there, and notes it: all_reduce #41 on group "dp" (rank 3 of 8): ...
 * A sequence of 0 is none. err may be NULL. */
void group_note_call(const dd_group *group, const char *what, uint64_t sequence, int64_t elapsed_ns,
                     dd_error *err);
/* Makes the error of an operation from its cause. */
void group_describe_failure(const dd_group *group, const dd_work *work, const dd_error *cause,
                            dd_error *error);
/* Adds "; <text>"; the culprit stays. */
void group_append(dd_error *error, const char *text);
/* Of a collective that was started here; NULL when that is too long ago, or still to come. */
const dd_signature *group_signature_of(const dd_group *group, uint64_t sequence);
/* Adds whose packets the network loses, and returns the rank at the other end, seen from this one; -1: nothing is known of that. */
int group_add_loss_locked(const dd_group *group, dd_error *error);
/* Adds how far a message has come that has run out of time. */
void group_add_progress_locked(const dd_group *group, const dd_message *message, dd_error *error);

/* ---- fail.c: the first cause of a failure, which ends everything */

/* End the calls that are complete on this rank: their data has arrived, in messages or in shared memory, whether or not
 * this rank has looked at it. Every failure of a group or of its collectives does this first, so that no call fails that has
 * all it needs, whatever is published next. Collectives end in the order of the calls: those behind the one under way are
 * also started, unless a carrier moves their data. A failure that this finds fails the group. */
void group_end_complete_locked(dd_group *group);
/* True if the group has failed, or group_end_complete_locked has found a failure that this rank is the first to report. */
bool group_has_failed_locked(const dd_group *group);
/* The first cause ends everything under way that is not complete, and stays; the other ranks receive it.
 * dd_group_fail_locked: where nothing but words is known. */
void group_fail_cause_locked(dd_group *group, const dd_cause *cause);
/* With what this rank cannot do, whatever the others do: its name goes before the words. */
void group_fail_own_locked(dd_group *group, dd_error *error);
void group_fail_mismatch_locked(dd_group *group, const dd_arena_culprit *culprit);
/* `rank` has called something else than this rank. */
void group_fail_calls_locked(dd_group *group, int rank, uint64_t sequence, const dd_signature *theirs);
/* The same for a message of a collective whose size was not what this rank expected: `error` says so. */
void group_fail_misfit_locked(dd_group *group, const dd_error *error);
/* A message has come for a collective that was through here. */
void group_fail_surplus_locked(dd_group *group, int rank, uint64_t sequence);

/* ---- record.c: what the flight recorder is told */

/* The call has been taken: from now on it has a start, a deadline and a record. It may be put off until the others have what they need of
 * this rank, which then do not wait for that: whatever else is told of the call first sees to it. Once for each start. */
void group_stamp_locked(group_call *call);
/* Where the record or on_done asks when it began. Most other calls have ended before anybody does. */
void group_stamp_if_told_locked(group_call *call);
void group_record_start_locked(group_call *call);
/* Before the work tells: then the call may be gone. `error` NULL for success. */
void group_record_end_locked(group_call *call, const dd_error *error);
/* The group has failed. Before its calls end. */
void group_raise_alarm_locked(dd_group *group);

/* ---- regions.c */

void group_want_region(void *ctx, int local, uint32_t id); /* of dd_run_env */
/* Whether some have come: then the operation that has waited for them goes on, or fails with *error, whose code is else left alone. */
bool group_map_wanted_locked(dd_group *group, dd_error *error);
/* Sets the timer for the next region that is to be asked for again, if there is one and calls are under way. */
void group_start_asking_again_locked(dd_group *group);
/* Of the context's handler: a local rank asks for a region of ours; what has been asked for has come. */
void group_pass_region_locked(dd_group *group, int rank, uint32_t id);
bool group_take_region_locked(dd_group *group, int rank, uint32_t id, int fd);
void group_drop_regions(dd_group *group);
/* Gives the pages of arrays that are kept for the next back to the system. */
void group_clear_kept_regions_locked(dd_group *group);
/* Of all arrays of this rank, whether in use or not. */
size_t group_regions_nbytes_locked(const dd_group *group);
/* True: that was the last reference; then the region no longer holds the group. */
bool group_let_region_go(dd_region *region);
/* From now on, what other ranks write to the block, which is in a region of ours, does not show here any
 * more. */
dd_status group_take_back_locked(dd_group *group, dd_block block, dd_error *err) DD_MUST_CHECK;

#endif
