/* A process group, made from (store, rank, size). A process may have any number of groups, and use
 * them from any thread.
 *
 * Collectives of a group run in the order of their calls, which must be the same on every rank.
 * Collectives of different groups run independently, and so do point-to-point messages. The first
 * failure of a collective, the loss of a member or an abort ends everything under way; every later
 * call fails immediately with the original cause. */
#ifndef DD_GROUP_GROUP_H
#define DD_GROUP_GROUP_H

#include "collective/carrier.h"
#include "collective/coll.h"
#include "collective/select.h"
#include "core/wait.h"
#include "observe/recorder.h"
#include "store/store.h"
#include "transport/context.h" /* for DD_ANY_RANK */
#include "transport/endpoint.h"
#include "work/work.h"

typedef struct dd_group dd_group;

#define DD_GROUP_DEFAULT_TIMEOUT_NS (1800 * DD_NS_PER_S)

typedef struct dd_group_options {
    /* Name in error messages and prefix of the group's keys in the store: groups that share a store
     * must have different names. */
    dd_bytes name;
    int64_t timeout_ns; /* timeout of operations that have none of their own */
    dd_selection selection;
    size_t large_segment_nbytes; /* maximum size of a large collective's messages; 0: choose */
} dd_group_options;

/* Open a group: meet the other ranks in the store until the deadline. DD_OP_TIMED_OUT names the
 * ranks that have joined (host, pid) and the missing ones. If the meeting cannot succeed, all joined
 * ranks fail: DD_MISMATCH (another size, or two processes with one rank), DD_PEER_LOST (a joined
 * rank has died), DD_ABORTED (a rank was interrupted or cannot go on). A name may be reused after
 * all ranks have closed or abandoned the old group. A process that joins as two ranks needs two
 * engines: if `engine` already has a rank of the group, another is opened. With size 1 there is no
 * meeting, and store may be NULL. */
dd_status dd_group_open(dd_engine *engine, dd_store *store, int rank, int size,
                        const dd_group_options *options, dd_group **group, const dd_wait *wait,
                        dd_error *err) DD_MUST_CHECK;

/* Append the address record that ranks with this engine publish in `store` to `endpoint`. */
dd_status dd_group_make_endpoint(dd_engine *engine, dd_store *store, dd_blob *endpoint,
                                 dd_error *err) DD_MUST_CHECK;
/* Find out if the process that published `endpoint` runs. `own_endpoint` must be of this process.
 * UNKNOWN for malformed bytes and for this process. Fails only with DD_INTERRUPTED. */
dd_status dd_group_find_presence(dd_bytes endpoint, dd_bytes own_endpoint, dd_presence *presence,
                                 const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* Make a group of some members of `parent`. Collective over these members: no other rank takes
 * part. `ranks` are ranks of the parent, including this one, in the order of the new ranks. If
 * several threads make groups of the same ranks at the same time, pass a different `tag` for each,
 * else 0. Needs no store. */
dd_status dd_group_split(dd_group *parent, const int *ranks, int nranks, uint64_t tag,
                         const dd_group_options *options, dd_group **group, const dd_wait *wait,
                         dd_error *err) DD_MUST_CHECK;

dd_group *dd_group_acquire(dd_group *group);
/* Drop a reference. The last release closes the group without waiting for ranks. May be NULL. */
void dd_group_release(dd_group *group);

/* Close the group: wait for works under way until the deadline, send goodbyes to the members, and
 * release resources. Later calls return DD_CLOSED. Idempotent; may be called from any thread. */
dd_status dd_group_close(dd_group *group, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* End all works with DD_ABORTED and send the reason to the members. Idempotent (the first reason is
 * kept); may be called from any thread. */
void dd_group_abort(dd_group *group, const char *reason);
/* Like dd_group_abort, but dd_group_split can still make groups of the members afterwards. If the
 * group has failed before, its cause is kept, and the other ranks are not notified. */
void dd_group_revoke(dd_group *group, const char *reason);

/* Collective. Wait for the collectives under way, and return the group's working memory to the
 * system. When this call returns, all ranks have done so. Until dd_group_resume, calls fail with
 * DD_INVALID_ARGUMENT, except those that end the group. No effect if the group is suspended
 * already. If one rank cannot suspend the group, none does, and all get an error. Arrays in use
 * keep their contents. */
dd_status dd_group_suspend(dd_group *group, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
/* End the suspension. All ranks must call this, and none waits. No effect if not suspended. */
dd_status dd_group_resume(dd_group *group, dd_error *err) DD_MUST_CHECK;
/* Shared memory of the group that is accounted to this rank, in bytes. */
typedef struct dd_group_memory {
    size_t suspend;   /* upper bound of the bytes that a suspension returns to the system */
    size_t suspended; /* bytes that the current suspension has returned */
    size_t persist;   /* bytes that a suspension keeps */
} dd_group_memory;
void dd_group_get_memory(dd_group *group, dd_group_memory *memory);

/* Let `library` move the data of the calls that it supports. Collective; call before the group is
 * used. A failure on one rank fails the group. Groups split off from it have no carrier. */
dd_status dd_group_set_carrier(dd_group *group, dd_carrier_library *library, const dd_wait *wait,
                               dd_error *err) DD_MUST_CHECK;
dd_carrier_library *dd_group_carrier(const dd_group *group); /* NULL if there is none */
/* Number of collectives and messages handed to the carrier so far. */
uint64_t dd_group_count_carried(dd_group *group);

int dd_group_rank(const dd_group *group);
int dd_group_size(const dd_group *group);
dd_bytes dd_group_name(const dd_group *group);
int64_t dd_group_get_timeout_ns(dd_group *group);
void dd_group_set_timeout_ns(dd_group *group, int64_t timeout_ns);
dd_engine *dd_group_engine(dd_group *group); /* borrowed */
/* A member. transport: "shared memory", "TCP", "self", or "" (no message yet, or it has left). */
typedef struct dd_member_info {
    char host[DD_HOST_NAME_MAX];
    long long pid;
    bool is_same_host;
    const char *transport;
} dd_member_info;
void dd_group_get_member(dd_group *group, int rank, dd_member_info *info);
uint64_t dd_group_sequence(dd_group *group); /* number of collectives called by this rank */
/* Return DD_OK if calls may begin, else the error that every call gets. */
dd_status dd_group_check(dd_group *group, dd_error *err) DD_MUST_CHECK;

/* Record calls from now on, and raise an alarm if the group fails or has failed. Takes a reference
 * to recorder_group. Call at most once, before the group is used. */
void dd_group_set_recorder(dd_group *group, dd_recorder_group *recorder_group);
dd_recorder_group *dd_group_recorder_group(dd_group *group); /* borrowed; NULL if there is none */

/* ---- operations
 *
 * Each function checks its arguments before anything is sent (DD_INVALID_ARGUMENT), starts, and
 * returns a work to wait for. Memory of blocks must stay valid until the work is done; the dd_block
 * arrays are copied. Pass timeout_ns < 0 for the group's timeout. The work reports failures after
 * the start:
 *     DD_OP_TIMED_OUT   names the ranks that have not arrived and their current calls
 *     DD_PEER_LOST      names the rank, its host and pid
 *     DD_MISMATCH       names both sides and their calls
 *     DD_ABORTED        names the rank that aborted and its reason */

typedef struct dd_call_options {
    int64_t timeout_ns; /* timeout in ns; < 0 for the group's timeout */
    /* For a message: true if its elements have type `dtype`. If the dtypes of sender and receiver
     * differ, both get DD_MISMATCH, except a sender whose message has left already; a carrier does
     * not compare dtypes. An untyped message is bytes, which match every dtype. */
    bool is_typed;
    dd_dtype dtype;
    uint64_t foreign_dtype; /* as in dd_coll_args */
    /* Arguments to record when the call is accepted; NULL for no record. The group sets the
     * times. */
    dd_record_call *record;
    /* For a collective: the form of its arguments, or NULL. If there is a form, the arguments are
     * not checked, and the call is recorded from the form and `stack` (call_sites.h) instead of
     * `record`. The form must stay valid during the call. */
    const struct dd_coll_form *form;
    uint32_t stack;
    /* Called when the work is done (work.h). */
    void (*on_done)(dd_work *work, void *ctx);
    void *ctx;
} dd_call_options;

/* A prepared form of a collective of this group: its arguments without the addresses of the blocks.
 * The form is checked and assembled once, for all calls that differ only in addresses. Constant;
 * holds no reference to the group. */
typedef struct dd_coll_form dd_coll_form;
/* Create a form, with the checks of dd_group_collective. The record is copied. */
dd_status dd_coll_form_create(dd_group *group, const dd_coll_args *args, const dd_record_call *record,
                              dd_coll_form **form, dd_error *err) DD_MUST_CHECK;
void dd_coll_form_destroy(dd_coll_form *form); /* NULL is allowed */

dd_status dd_group_collective(dd_group *group, const dd_coll_args *args, const dd_call_options *options,
                              dd_work **work, dd_error *err) DD_MUST_CHECK;

/* The channel of the messages that continue another message, with a tag from it. */
#define DD_P2P_PARTS_CHANNEL 2

/* A message to or from a rank, which may be this one. */
typedef struct dd_p2p {
    bool is_send;
    int rank;     /* rank of the other side; DD_ANY_RANK in a receive is any sender */
    uint64_t tag; /* any number, equal on both sides */
    dd_block block;
    uint32_t channel; /* 0 or DD_P2P_PARTS_CHANNEL; the group uses other channels internally */
    bool is_any_tag;  /* only for a receive: accept any tag; `tag` is ignored */
    bool is_peek;     /* only for a receive without a block: do not take the message */
} dd_p2p;

/* The message that a receive or a peek has found. */
typedef struct dd_p2p_result {
    int source;
    uint64_t tag;
    size_t nbytes;
} dd_p2p_result;

dd_status dd_group_p2p(dd_group *group, const dd_p2p *p2p, const dd_call_options *options, dd_work **work,
                       dd_error *err) DD_MUST_CHECK;
/* Send or receive a message and wait for its end, with the call's own timeout, without allocating.
 * A small message through shared memory needs no system call if the other side is ready. On success,
 * sets *result. An interrupt aborts the group, because the caller may reuse the memory. */
dd_status dd_group_p2p_and_wait(dd_group *group, const dd_p2p *p2p, const dd_call_options *options,
                                dd_p2p_result *result, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
/* Poll once for a message that `p2p`, a peek, matches. Sets *is_found, and *result if it is true. */
dd_status dd_group_probe(dd_group *group, const dd_p2p *p2p, bool *is_found, dd_p2p_result *result,
                         dd_error *err) DD_MUST_CHECK;
/* Cancel a receive of this group, which ends with DD_ABORTED. Returns false, without effect, if a
 * message has matched it, the work is done, or it is no receive that can be taken back. */
bool dd_group_withdraw(dd_group *group, dd_work *work);

/* A barrier in which rank 0 waits for each other rank and then releases them. Rank 0's error names
 * the first missing rank, or all if is_all; the other ranks get the same error. Synchronous. */
dd_status dd_group_monitored_barrier(dd_group *group, int64_t timeout_ns, bool is_all, const dd_wait *wait,
                                     dd_error *err) DD_MUST_CHECK;

/* Wait for a work of this group by driving the engine (dd_engine_kick makes the background thread
 * drive the engine). Calls wait->on_block unless the work has ended in success. If `wait` ends
 * first, return DD_OP_TIMED_OUT or DD_INTERRUPTED and leave the operation under way; abort the
 * group if no thread will wait for it again. Otherwise return the work's result. */
dd_status dd_group_wait(dd_group *group, dd_work *work, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* Start a collective and wait for its end, with the call's own timeout, without allocating. An
 * interrupt aborts the group, because the operation cannot be resumed. Calls wait->on_block unless
 * the call ends after a few polls. */
dd_status dd_group_collective_and_wait(dd_group *group, const dd_coll_args *args,
                                       const dd_call_options *options, const dd_wait *wait,
                                       dd_error *err) DD_MUST_CHECK;

/* Gather nbytes bytes of every rank in all[size * nbytes], in rank order. Used during setup. */
dd_status dd_group_exchange(dd_group *group, const void *own, size_t nbytes, void *all, const dd_wait *wait,
                            dd_error *err) DD_MUST_CHECK;

/* ---- calls that are started many times */

/* A collective that is checked once and started any number of times, each time in its turn among
 * the group's collectives. Blocks, signature and record are prepared when it is made. Other ranks
 * may make the same call in the ordinary way. The blocks' memory must stay valid until the call is
 * released, and the group must stay valid while any of these functions runs. Any thread may use the
 * call, but only one thread at a time may start it. If a thread waits while another one starts the
 * call again, it may wait for both starts. */
typedef struct dd_prepared_call dd_prepared_call;

/* Make a prepared call, with the checks of dd_group_collective; sends nothing. The timeout applies
 * to each start. The record is copied, and used for each start. on_done is ignored. Holds a
 * reference to the group. */
dd_status dd_group_prepare_call(dd_group *group, const dd_coll_args *args, const dd_call_options *options,
                                dd_prepared_call **call, dd_error *err) DD_MUST_CHECK;
/* Release the call; NULL is allowed. It must not be used again; references to its work stay valid.
 * Return false if the call is not under way. Otherwise return true: the call runs to its end, and
 * then on_done is called once, as in work.h, because the blocks are no longer needed. */
bool dd_prepared_destroy(dd_prepared_call *call, void (*on_done)(dd_work *work, void *ctx), void *ctx);
/* Return the work of the last start; before the first start, a work that is done. Borrowed. */
dd_work *dd_prepared_work(dd_prepared_call *call);

/* Get the call's timeout_ns, and the arguments of each start, with the call's own blocks. */
void dd_prepared_describe(const dd_prepared_call *call, dd_coll_args *args, int64_t *timeout_ns);

/* Start calls of one group in this order. If one of them cannot be started (DD_INVALID_ARGUMENT if
 * it is under way), none is started. Calls advance as far as they can without waiting. A driver
 * then continues the calls; for small calls in shared memory, the driver is a thread that waits, or
 * the background thread after at most 20 ms. Pass `is_patient` with a single call that the caller
 * waits for next: the call is polled briefly, and no other thread is woken. Calls wait->on_block if
 * starting takes longer than about a microsecond. */
dd_status dd_prepared_start(dd_prepared_call *const *calls, size_t ncalls, bool is_patient,
                            const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
/* Wait like dd_group_wait for the last start. Calls wait->on_block after about a microsecond. */
dd_status dd_prepared_wait(dd_prepared_call *call, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
/* Return true if the last start has ended. Polls for about 1 us; never waits for a lock. */
bool dd_prepared_poll(dd_prepared_call *call);

/* ---- memory shared by the ranks of this host */

/* Zeroed memory that this rank owns and the other ranks of its host can map: collectives on it need
 * no copies. May be used for anything, and may outlive the caller's reference to the group. */
typedef struct dd_region dd_region;
dd_status dd_group_alloc(dd_group *group, size_t nbytes, dd_region **region, dd_error *err) DD_MUST_CHECK;
void *dd_region_data(const dd_region *region);
size_t dd_region_nbytes(const dd_region *region);
/* Turn memory of another owner into a region, in place. `at` must be a shared mapping of `fd`,
 * aligned to pages; no thread may write to it during the call. Afterwards `at` and the region's own
 * address are the same memory, with its contents, and `fd` is a descriptor of this memory: the
 * owner of the mapping unmaps `at` and closes `fd` as usual. On failure the memory is unchanged. */
dd_status dd_group_adopt(dd_group *group, void *at, size_t nbytes, int fd, dd_region **region,
                         dd_error *err) DD_MUST_CHECK;
/* Record that the adopted mapping has been unmapped; must be called after it was. When the region
 * is released, its memory then returns to the system; otherwise, the group keeps the memory. */
void dd_region_note_unmapped(dd_region *region);
/* Return this rank's region that contains all of these bytes, or NULL if there is none or this is a
 * forked child. Borrowed: valid while a reference to the region is held. */
dd_region *dd_group_find_region(dd_group *group, const void *data, size_t nbytes);
dd_region *dd_region_acquire(dd_region *region);
void dd_region_release(dd_region *region); /* NULL is allowed */

#endif
