/* A process group: what a user calls. Made from (store, rank, size) alone, any number per process, used from any thread.
 *
 * Collectives of a group run in the order of their calls, which must be the same on every rank; those of different groups do not
 * wait for each other. Point-to-point messages go beside them. The first failure of a collective, the loss of a member and an abort
 * end everything under way, and every later call fails at once with the original cause. */
#ifndef DD_GROUP_GROUP_H
#define DD_GROUP_GROUP_H

#include "collective/carrier.h"
#include "collective/coll.h"
#include "collective/select.h"
#include "core/wait.h"
#include "observe/recorder.h"
#include "store/store.h"
#include "transport/context.h" /* DD_ANY_RANK */
#include "work/work.h"

typedef struct dd_group dd_group;

#define DD_GROUP_DEFAULT_TIMEOUT_NS (1800 * DD_NS_PER_S)

typedef struct dd_group_options {
    dd_bytes name; /* for messages, and a prefix in the store: groups over one store have different names */
    int64_t timeout_ns; /* of operations that are given none */
    dd_selection selection;
    size_t large_segment_nbytes; /* 0: by the selection */
} dd_group_options;

/* Meets the other ranks in the store, until the deadline: DD_OP_TIMED_OUT names the ranks that have come
 * (host, pid) and those that have not. A rank that is taken is DD_INVALID_ARGUMENT, on the rank that finds
 * out. If the meeting becomes hopeless, all ranks that have come fail at once: DD_MISMATCH (another size),
 * DD_PEER_LOST (a rank that had come has died), DD_ABORTED (a rank was interrupted, or cannot go on).
 * Names may be used again after the group before has been closed by all or abandoned. A process that joins
 * as two ranks needs an engine for each, which is arranged here: `engine` is used unless it is in this
 * group already. With size 1 the store may be NULL and nothing is opened. */
dd_status dd_group_open(dd_engine *engine, dd_store *store, int rank, int size,
                        const dd_group_options *options, dd_group **group, const dd_wait *wait,
                        dd_error *err) DD_MUST_CHECK;

/* A group of some members, made by them alone: ranks (of the parent; this one among them) in the order of the new ranks. `tag` tells
 * apart groups of the same ranks that are made at the same time from several threads; else 0. Needs no store. */
dd_status dd_group_split(dd_group *parent, const int *ranks, int nranks, uint64_t tag,
                         const dd_group_options *options, dd_group **group, const dd_wait *wait,
                         dd_error *err) DD_MUST_CHECK;

dd_group *dd_group_acquire(dd_group *group);
/* The last reference closes it (without waiting for the others). NULL is fine. */
void dd_group_release(dd_group *group);

/* Good order: waits for the works under way until the deadline, says goodbye, and lets everything go. Every later call is DD_CLOSED.
 * Idempotent; from any thread. */
dd_status dd_group_close(dd_group *group, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* Ends all works at once with DD_ABORTED and tells the members why. Idempotent (the first reason stays), from any thread. */
void dd_group_abort(dd_group *group, const char *reason);
/* The same, and from now on dd_group_split makes groups of its members nevertheless: what comes next needs them. If the group has failed
 * before, that cause stays, and the other ranks do not hear of this. */
void dd_group_revoke(dd_group *group, const char *reason);

/* All ranks call this. Waits for their collectives that are under way, and gives the memory that the group works in back to the system, on
 * all ranks when it returns. Until dd_group_resume, calls are DD_INVALID_ARGUMENT, except for the end of the group. Nothing if it is
 * suspended already. If one rank cannot suspend the group, no rank does, and all get an error. Arrays in use keep their contents. */
dd_status dd_group_suspend(dd_group *group, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
/* Does not wait for the others, who call it, too. Nothing if the group is not suspended. */
dd_status dd_group_resume(dd_group *group, dd_error *err) DD_MUST_CHECK;
/* The shared memory that this rank of the group answers for, in bytes. */
typedef struct dd_group_memory {
    size_t suspend;   /* what a suspension gives back, at most */
    size_t suspended; /* ... and what this one has given back */
    size_t persist;   /* what stays */
} dd_group_memory;
void dd_group_get_memory(dd_group *group, dd_group_memory *memory);

/* From now on the library moves the data of what it has calls for. All ranks call it, before the group is used. If it fails on one of them,
 * the group has failed. Groups that are split off from this one have no carrier. */
dd_status dd_group_carry(dd_group *group, dd_carrier_library *library, const dd_wait *wait,
                         dd_error *err) DD_MUST_CHECK;
dd_carrier_library *dd_group_carrier(const dd_group *group); /* NULL: none */
/* How many collectives and messages have gone by the carrier. */
uint64_t dd_group_count_carried(dd_group *group);

int dd_group_rank(const dd_group *group);
int dd_group_size(const dd_group *group);
dd_bytes dd_group_name(const dd_group *group);
int64_t dd_group_get_timeout_ns(dd_group *group);
void dd_group_set_timeout_ns(dd_group *group, int64_t timeout_ns);
dd_engine *dd_group_engine(dd_group *group); /* borrowed */
/* Host, pid, transport ("shared memory", "TCP", "self", "" before the first message, and when it has left) of a member. */
typedef struct dd_member_info {
    char host[DD_HOST_NAME_MAX];
    long long pid;
    bool is_same_host;
    const char *transport;
} dd_member_info;
void dd_group_get_member(dd_group *group, int rank, dd_member_info *info);
/* How many collectives have been started. */
uint64_t dd_group_sequence(dd_group *group);
/* DD_OK, or why every call fails. */
dd_status dd_group_check(dd_group *group, dd_error *err) DD_MUST_CHECK;

/* From now on calls are recorded, and a failure raises an alarm: at once, when there has been one. A reference is taken. At most once, and
 * before the group is used. */
void dd_group_set_recorder(dd_group *group, dd_recorder_group *recorder_group);
/* Borrowed; NULL: nobody records. */
dd_recorder_group *dd_group_recorder_group(dd_group *group);

/* ---- operations
 *
 * Each checks its arguments before anything is sent (DD_INVALID_ARGUMENT), starts, and gives a work to wait for. Memory of blocks
 * must stay valid until the work is done; the arrays of blocks are copied. timeout_ns < 0: the group's. Failures after the start
 * are the work's:
 *     DD_OP_TIMED_OUT   names the ranks that have not arrived and what they do meanwhile
 *     DD_PEER_LOST      names the rank, its host and pid
 *     DD_MISMATCH       names both sides and what they called
 *     DD_ABORTED        names who aborted and why */

typedef struct dd_call_options {
    int64_t timeout_ns; /* < 0: the group's */
    /* Of a message: its elements are of `dtype`. If the other side has another one, both sides get
     * DD_MISMATCH, but for a sender whose message has gone already; a carrier compares nothing. An untyped message is
     * bytes, which go with every dtype. */
    bool is_typed;
    dd_dtype dtype;
    /* What the flight recorder is told of the call once it has been taken; NULL: nothing. The group fills in the times. */
    dd_record_call *record;
    /* Of a collective that the form was made of: then nothing is checked, and the form is recorded, with the stack (of call_sites.h),
     * instead of `record`. NULL: none. It is held until the function returns. */
    const struct dd_coll_form *form;
    uint32_t stack;
    /* Handed to the work (work.h). */
    void (*on_done)(dd_work *work, void *ctx);
    void *ctx;
} dd_call_options;

/* What a collective of this group is, apart from where its blocks lie: checked and put together once, for all calls that are the same
 * but for that. Constant; does not hold the group. */
typedef struct dd_coll_form dd_coll_form;
/* Checks as dd_group_collective does. The record is copied. */
dd_status dd_coll_form_create(dd_group *group, const dd_coll_args *args, const dd_record_call *record,
                              dd_coll_form **form, dd_error *err) DD_MUST_CHECK;
void dd_coll_form_destroy(dd_coll_form *form); /* NULL is fine */

dd_status dd_group_collective(dd_group *group, const dd_coll_args *args, const dd_call_options *options,
                              dd_work **work, dd_error *err) DD_MUST_CHECK;

/* A message to or from a rank; to oneself is fine. */
typedef struct dd_p2p {
    bool is_send;
    int rank;     /* of a receive also DD_ANY_RANK */
    uint64_t tag; /* any number */
    dd_block block;
    uint32_t channel; /* 0; others are the group's own */
} dd_p2p;

dd_status dd_group_p2p(dd_group *group, const dd_p2p *p2p, const dd_call_options *options, dd_work **work,
                       dd_error *err) DD_MUST_CHECK;
/* The same and dd_group_wait with the call's own time-out, in one, without allocating: no system call either, where a small message
 * goes through shared memory and the other side is there. *source: whose message it was. An interrupt aborts the group, since the
 * memory is the caller's again. */
dd_status dd_group_p2p_and_wait(dd_group *group, const dd_p2p *p2p, const dd_call_options *options,
                                int *source, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* Rank 0 waits for each of the others, and then lets them go; the error on rank 0 names the first missing rank, or with
 * is_all all of them. The others learn that rank 0 has failed, and why. Synchronous. */
dd_status dd_group_monitored_barrier(dd_group *group, int64_t timeout_ns, bool is_all, const dd_wait *wait,
                                     dd_error *err) DD_MUST_CHECK;

/* Waits for a work of this group: drives the engine, as dd_engine_kick has somebody else do. Calls wait->let_go unless the work has ended
 * well. A time-out of `wait` is DD_OP_TIMED_OUT and leaves the operation under way; DD_INTERRUPTED does too (the caller aborts the group
 * if nobody will wait again). Else what dd_work_result says. */
dd_status dd_group_wait(dd_group *group, dd_work *work, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* The same as dd_group_collective and dd_group_wait with the call's own time-out, in one, without allocating: the way of calls
 * that are not asynchronous. An interrupt aborts the group, since the operation cannot be taken up again.
 * Calls wait->let_go unless the call is over after a few looks. */
dd_status dd_group_collective_and_wait(dd_group *group, const dd_coll_args *args,
                                       const dd_call_options *options, const dd_wait *wait,
                                       dd_error *err) DD_MUST_CHECK;

/* Every rank's bytes to all, in the order of ranks: all[size * nbytes]. For what ranks tell each other when they make something. */
dd_status dd_group_exchange(dd_group *group, const void *own, size_t nbytes, void *all, const dd_wait *wait,
                            dd_error *err) DD_MUST_CHECK;

/* ---- the same call again and again */

/* A collective that has been checked once and is started as often as one likes, each time in its turn among the group's collectives:
 * blocks, signature and record are put together when it is made. Where other ranks make the same call plainly, that is the same to
 * them. Memory of blocks stays valid while the call is held, and the group while any of these functions runs. From any thread, but one
 * at a time starts it; a thread that waits for it while another starts it again may wait for that start, too. */
typedef struct dd_standing_call dd_standing_call;

/* Checks as dd_group_collective does, and sends nothing. The time-out is that of each start; the record is copied, and every start has
 * one like it. on_done does not count. Holds the group. */
dd_status dd_group_make_standing(dd_group *group, const dd_coll_args *args, const dd_call_options *options,
                                 dd_standing_call **call, dd_error *err) DD_MUST_CHECK;
/* Ends it; NULL is fine. False: nothing is under way any more. True: it goes on to its end, when on_done is told, once, as the work's (see
 * work.h), that the blocks are not needed any more; the call must not be used again. References to the work stay good. */
bool dd_standing_destroy(dd_standing_call *call, void (*on_done)(dd_work *work, void *ctx), void *ctx);
/* How the last start goes, or went: done and well before the first. Borrowed. */
dd_work *dd_standing_work(dd_standing_call *call);

/* What each start does: the arguments, whose blocks are the call's own, and the time-out, < 0: the group's. */
void dd_standing_describe(const dd_standing_call *call, dd_coll_args *args, int64_t *timeout_ns);

/* Starts calls of one group, in this order, in one go: none is started when one of them cannot be (DD_INVALID_ARGUMENT while it is under
 * way). They go as far as they can without waiting, and then on: at once, or, of small ones in shared memory, when somebody waits, after
 * 20 ms at the latest. With `is_patient` there is one, for which the caller waits next: it looks for the end for a moment already, and
 * nobody else is woken. Calls wait->let_go if it takes longer than about a microsecond. */
dd_status dd_standing_start(dd_standing_call *const *calls, size_t ncalls, bool is_patient,
                            const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
/* As dd_group_wait, for the last start. Calls wait->let_go if it takes longer than about a microsecond. */
dd_status dd_standing_wait(dd_standing_call *call, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
/* Whether the last start has ended; looks for that for about a microsecond, and never waits for a lock. */
bool dd_standing_look(dd_standing_call *call);

/* ---- memory that the ranks of this host share */

/* Memory that this rank owns and the others of its host can look into: collectives on it need no copies. Zeroed. It may be used
 * for anything, and outlive the group. */
typedef struct dd_region dd_region;
dd_status dd_group_alloc(dd_group *group, size_t nbytes, dd_region **region, dd_error *err) DD_MUST_CHECK;
void *dd_region_data(const dd_region *region);
size_t dd_region_nbytes(const dd_region *region);
/* Memory of somebody else becomes a region's, where it is: `at` is a shared mapping of `fd`, begins with a page, and nobody writes to
 * it meanwhile. Afterwards it and the region's own address are the same memory, with what was in it, and `fd` is a descriptor of it:
 * the owner of the mapping unmaps it and closes `fd` as if nothing had happened. On failure the memory is as before. */
dd_status dd_group_adopt(dd_group *group, void *at, size_t nbytes, int fd, dd_region **region,
                         dd_error *err) DD_MUST_CHECK;
/* That mapping is gone: with its release the region gives its memory back to the system, and may adopt the next. Without this it
 * keeps it until the group is gone. */
void dd_region_note_unmapped(dd_region *region);
/* The region of this rank that all of these bytes lie in; NULL: none, or this is a forked child. Borrowed: good for as long as somebody
 * holds the region. */
dd_region *dd_group_find_region(dd_group *group, const void *data, size_t nbytes);
dd_region *dd_region_acquire(dd_region *region);
void dd_region_release(dd_region *region); /* NULL is fine */

#endif
