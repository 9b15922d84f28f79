/* Messages from rank to rank, and the barrier that names who is missing. */
#include "group/group_internal.h"

#include "core/mem.h"

#include <stdio.h>
#include <string.h>

/* Looks for the end of a message without giving the lock away. The first ones take about a microsecond, also of callers that keep
 * others waiting. */
#define HASTY_LOOKS 16
#define PATIENT_LOOKS 64
/* Messages of callers have all tags of channel 0. */
#define MONITOR_CHANNEL 1

static void
on_message_done(dd_message *message, const dd_error *error)
{
    p2p_call *call = message->owner;
    dd_group *group = call->base.group;
    call->base.work.source_rank = message->source;
    call->base.work.nbytes = message->received;
    if (message->rank == DD_ANY_RANK && error == NULL && call->base.record != DD_NO_RECORD) {
        dd_recorder_set_peer(dd_recorder_of_group(group->recorder_group), call->base.record, message->source);
    }
    /* A message that ended with its peer has the same to tell as everything else that did. */
    bool is_lost = error != NULL && error->code == DD_PEER_LOST && group->cause.code != DD_OK;
    group_complete_locked(&call->base, is_lost ? &group->cause : error);
    group_update_task_locked(group);
}

void
group_cancel_message_locked(p2p_call *call, const dd_error *cause)
{
    dd_context_cancel_locked(call->base.group->context, &call->message, cause);
}

/* Nobody else is there any more who could send; only what has come before counts. */
static void
end_hopeless_locked(dd_group *group, p2p_call *call)
{
    dd_error cause;
    dd_error_set(&cause, DD_PEER_LOST, "all other ranks have left the group");
    if (group->size > 1 && group->ngone == group->size - 1) {
        group_cancel_message_locked(call, &cause);
    }
}

/* A member that has left sends nothing more, and takes nothing. What it had sent before is here. */
static dd_status
check_locked(const p2p_call *call, dd_error *err)
{
    dd_group *group = call->base.group;
    const char *what = call->base.work.what;
    int rank = call->message.rank;
    if ((rank < 0 || rank >= group->size) && (rank != DD_ANY_RANK || call->is_send)) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "%s: invalid rank: %d is not in 0 to %d", what, rank,
                            group->size - 1);
    }
    dd_status status = group_check_usable_locked(group, what, err);
    if (status != DD_OK || !call->is_send || !group->members[rank].is_gone) {
        return status;
    }
    char who[128];
    dd_error_set(err, DD_PEER_LOST, "%s on group \"%.*s\" (rank %d of %d): %s has left the group", what,
                 (int)group->name.len, (const char *)group->name.data, group->rank, group->size,
                 group_print_member(group, rank, who));
    const dd_card *card = dd_peer_card(group->peers[rank]);
    dd_error_blame(err, rank, card->host, card->pid);
    return DD_PEER_LOST;
}

/* Fills in what is not `message`'s own. */
static void
init_call(p2p_call *call, dd_group *group, const dd_message *message, bool is_send,
          const dd_call_options *options)
{
    group_init_call(&call->base, group, is_send ? "send" : "recv", options, DD_NEVER_NS);
    call->base.has_recorded_start = true;
    call->is_send = is_send;
    call->message = *message;
    call->message.on_done = on_message_done;
    call->message.owner = call;
    if (options->is_typed) {
        call->signature = (dd_signature){.dtype = (uint8_t)options->dtype,
                                         .flags = DD_SIGNATURE_TYPED,
                                         .count = message->nbytes / dd_dtype_size(options->dtype)};
        call->message.signature = &call->signature;
    }
}

/* What is in the receiver's ring, or has come from the sender, ends in here: it needs nobody to drive. The other side does not wait for the
 * record of the call, nor for the time of day. */
static void
post_locked(p2p_call *call, const dd_call_options *options)
{
    dd_group *group = call->base.group;
    dd_list_push_back(&group->messages, &call->base.link);
    if (call->is_send) {
        dd_context_post_send_locked(group->context, &call->message);
    } else {
        dd_context_post_recv_locked(group->context, &call->message);
    }
    if (options->record != NULL || options->on_done != NULL) {
        group_stamp_locked(&call->base);
    } /* else most calls have ended before anybody asks when they began */
    (void)dd_context_tell_locked(&call->message);
}

/* What has not ended gets its deadline, and somebody to look after it. */
static void
watch_locked(p2p_call *call)
{
    if (!dd_work_is_done(&call->base.work)) {
        group_stamp_locked(&call->base);
        group_note_deadline_locked(call->base.group, call->base.deadline_ns);
        if (call->message.rank == DD_ANY_RANK) {
            end_hopeless_locked(call->base.group, call);
        }
    }
}

/* ---- calls that do not wait */

/* So many calls are kept to be used again. */
#define POOL_MAX 64u

/* Anybody gives a call back; only the holder of the engine's lock takes one, so nobody else takes what he is looking at. */
typedef struct p2p_pool {
    atomic_uint refs;        /* the group's, and one for each call that is in use */
    atomic_uint nfree;       /* relaxed: a bound */
    _Atomic(dd_list *) free; /* links of calls, by `next`; release, acquire: what they point to */
} p2p_pool;

static p2p_call *
call_of_link(dd_list *link)
{
    return (p2p_call *)DD_CONTAINER_OF(link, group_call, link);
}

void
group_release_pool(p2p_pool *pool)
{
    if (pool == NULL || atomic_fetch_sub_explicit(&pool->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    dd_list *link = atomic_load_explicit(&pool->free, memory_order_acquire);
    while (link != NULL) {
        p2p_call *call = call_of_link(link);
        link = link->next;
        dd_mem_free(call);
    }
    dd_mem_free(pool);
}

static void
give_call(p2p_call *call)
{
    p2p_pool *pool = call->pool;
    if (atomic_fetch_add_explicit(&pool->nfree, 1, memory_order_relaxed) >= POOL_MAX) {
        atomic_fetch_sub_explicit(&pool->nfree, 1, memory_order_relaxed);
        dd_mem_free(call);
    } else {
        dd_list *link = &call->base.link;
        link->next = atomic_load_explicit(&pool->free, memory_order_relaxed);
        while (!atomic_compare_exchange_weak_explicit(&pool->free, &link->next, link, memory_order_release,
                                                      memory_order_relaxed)) {
        }
    }
    group_release_pool(pool);
}

static void
on_work_unused(dd_work *work)
{
    give_call((p2p_call *)DD_CONTAINER_OF(work, group_call, work));
}

static p2p_pool *
make_pool(void)
{
    p2p_pool *pool = dd_mem_zalloc(sizeof *pool);
    if (pool != NULL) {
        atomic_init(&pool->refs, 1);
    }
    return pool;
}

/* NULL: no memory. */
static p2p_call *
take_call_locked(dd_group *group)
{
    if (group->pool == NULL && (group->pool = make_pool()) == NULL) {
        return NULL;
    }
    p2p_pool *pool = group->pool;
    dd_list *link = atomic_load_explicit(&pool->free, memory_order_acquire);
    while (link != NULL && !atomic_compare_exchange_weak_explicit(
                               &pool->free, &link, link->next, memory_order_acquire, memory_order_acquire)) {
    }
    p2p_call *call = link != NULL ? call_of_link(link) : dd_mem_alloc(sizeof *call);
    if (call != NULL) {
        atomic_fetch_sub_explicit(&pool->nfree, link != NULL ? 1 : 0, memory_order_relaxed);
        atomic_fetch_add_explicit(&pool->refs, 1, memory_order_relaxed);
        call->pool = pool;
    }
    return call;
}

static dd_status
start_locked(p2p_call *call, const dd_call_options *options, dd_work **work, dd_error *err)
{
    dd_status status = check_locked(call, err);
    if (status != DD_OK) {
        give_call(call);
        return status;
    }
    call->base.work.destroy = on_work_unused;
    *work = dd_work_acquire(&call->base.work);
    post_locked(call, options);
    watch_locked(call);
    return DD_OK;
}

static dd_status
start_message(dd_group *group, const dd_message *message, bool is_send, const dd_call_options *options,
              dd_work **work, dd_error *err)
{
    dd_status status = dd_engine_check_fork(group->engine, err);
    if (status != DD_OK) {
        return status;
    }
    dd_engine_lock(group->engine);
    p2p_call *call = take_call_locked(group);
    if (call != NULL) {
        init_call(call, group, message, is_send, options);
        status = start_locked(call, options, work, err);
    } else {
        status = dd_error_no_memory(err, sizeof *call);
    }
    dd_engine_unlock(group->engine);
    return status;
}

static dd_message
make_message(dd_block block, int rank, uint64_t tag)
{
    return (dd_message){
        .kind = DD_MESSAGE_P2P, .rank = rank, .tag = tag, .data = block.data, .nbytes = block.nbytes};
}

dd_status
dd_group_send(dd_group *group, dd_block block, int rank, uint64_t tag, const dd_call_options *options,
              dd_work **work, dd_error *err)
{
    dd_message message = make_message(block, rank, tag);
    return start_message(group, &message, true, options, work, err);
}

dd_status
dd_group_recv(dd_group *group, dd_block block, int rank, uint64_t tag, const dd_call_options *options,
              dd_work **work, dd_error *err)
{
    dd_message message = make_message(block, rank, tag);
    return start_message(group, &message, false, options, work, err);
}

/* ---- calls that wait */

static void
look_locked(p2p_call *call, int nlooks)
{
    if (!dd_work_is_done(&call->base.work)) {
        (void)dd_context_look_locked(&call->message, nlooks);
    }
}

/* Of a call that init_call has made, as a part of `what`. */
static dd_status
run_call(p2p_call *call, const char *what, const dd_call_options *options, const dd_wait *wait, dd_error *err)
{
    dd_group *group = call->base.group;
    dd_work *work = &call->base.work;
    dd_status status = dd_engine_check_fork(group->engine, err);
    if (status != DD_OK) {
        return status;
    }
    if (!dd_engine_try_lock(group->engine)) {
        dd_wait_let_go(wait);
        dd_engine_lock(group->engine);
    }
    if (group->cause.code != DD_OK) {
        dd_wait_let_go(wait); /* until the others have been told of it */
    }
    status = check_locked(call, err);
    if (status == DD_OK) {
        post_locked(call, options);
        look_locked(call, HASTY_LOOKS);
        if (!dd_work_is_done(work)) { /* it is under way, also before it is watched */
            atomic_store_explicit(&group->is_idle, false, memory_order_release);
        }
    }
    dd_engine_unlock(group->engine);
    if (status != DD_OK) {
        return status;
    }
    if (!dd_work_is_done(work)) {
        dd_wait_let_go(wait);
        dd_engine_lock(group->engine);
        look_locked(call, PATIENT_LOOKS);
        watch_locked(call);
        dd_engine_unlock(group->engine);
    }
    return group_await_end(&call->base, what, wait, err);
}

dd_status
dd_group_send_and_wait(dd_group *group, dd_block block, int rank, uint64_t tag,
                       const dd_call_options *options, const dd_wait *wait, dd_error *err)
{
    p2p_call call;
    dd_message message = make_message(block, rank, tag);
    init_call(&call, group, &message, true, options);
    return run_call(&call, "send", options, wait, err);
}

dd_status
dd_group_recv_and_wait(dd_group *group, dd_block block, int rank, uint64_t tag,
                       const dd_call_options *options, int *source, const dd_wait *wait, dd_error *err)
{
    p2p_call call;
    dd_message message = make_message(block, rank, tag);
    init_call(&call, group, &message, false, options);
    dd_status status = run_call(&call, "recv", options, wait, err);
    if (status == DD_OK) {
        *source = call.base.work.source_rank;
    }
    return status;
}

/* ---- monitored_barrier */

#define VERDICT_MAX 512

/* What rank 0 tells the others: empty when all have come. */
typedef struct barrier_verdict {
    char text[VERDICT_MAX];
} barrier_verdict;

typedef struct barrier_note {
    int rank;
    uint64_t tag;
    void *data;
    size_t nbytes;
} barrier_note;

static uint64_t
next_monitored_tag(dd_group *group)
{
    dd_engine_lock(group->engine);
    uint64_t tag = group->nmonitored++;
    dd_engine_unlock(group->engine);
    return tag;
}

/* A message of the barrier, with a deadline of its own. */
static dd_status
run_note(dd_group *group, const barrier_note *note, bool is_send, int64_t timeout_ns, const dd_wait *wait,
         dd_error *err)
{
    p2p_call call;
    dd_call_options options = {.timeout_ns = timeout_ns};
    dd_message message = make_message((dd_block){note->data, note->nbytes}, note->rank, note->tag);
    message.channel = MONITOR_CHANNEL;
    init_call(&call, group, &message, is_send, &options);
    return run_call(&call, "monitored_barrier", &options, wait, err);
}

static void
tell_verdict(dd_group *group, const barrier_verdict *verdict, uint64_t tag, const dd_wait *wait)
{
    for (int rank = 1; rank < group->size; rank++) {
        barrier_note note = {.rank = rank,
                             .tag = tag,
                             .data = (void *)(uintptr_t)verdict->text,
                             .nbytes = sizeof verdict->text};
        dd_status ignored =
            run_note(group, &note, true, 2 * DD_NS_PER_S, wait, NULL); /* who has not come does not hear it */
        (void)ignored;
    }
}

static dd_status
await_members(dd_group *group, int64_t timeout_ns, bool is_all, uint64_t tag, const dd_wait *wait,
              dd_error *err)
{
    dd_wait patience = dd_wait_at_most(wait, timeout_ns);
    uint8_t byte;
    char missing[256] = "";
    int nmissing = 0;
    int first = -1;
    bool was_out_of_time = false; /* before it asked the first of the missing */
    dd_error why = {.code = DD_OK};
    for (int rank = 1; rank < group->size && (nmissing == 0 || is_all); rank++) {
        dd_error error;
        barrier_note note = {.rank = rank, .tag = tag, .data = &byte, .nbytes = 1};
        int64_t left_ns = dd_deadline_left_ns(patience.deadline_ns);
        dd_status status = run_note(group, &note, false, left_ns, wait, &error);
        bool is_over = status != DD_OK && dd_group_check(group, NULL) != DD_OK;
        if (status == DD_INTERRUPTED || is_over) {
            return dd_error_copy(err,
                                 &error); /* nobody is late: the group has ended, and the error says why */
        }
        if (status != DD_OK) {
            first = first < 0 ? rank : first;
            was_out_of_time |= nmissing == 0 && left_ns == 0;
            why = nmissing == 0 ? error : why;
            size_t used = strlen(missing);
            snprintf(missing + used, sizeof missing - used, nmissing++ == 0 ? "%d" : ", %d", rank);
        }
    }
    if (nmissing == 0) {
        return DD_OK;
    }
    long long timeout_ms = timeout_ns / DD_NS_PER_MS;
    if (was_out_of_time) {
        dd_error_prepend(&why, "Rank 0 timed out in monitoredBarrier after %lld ms", timeout_ms);
    }
    dd_error_set(err, why.code,
                 "[Rank 0]: Rank%s %s failed to pass monitoredBarrier in %lld ms (group \"%.*s\"): %s",
                 nmissing > 1 ? "s" : "", missing, timeout_ms, (int)group->name.len,
                 (const char *)group->name.data, why.message);
    const dd_card *card = dd_peer_card(group->peers[first]);
    dd_error_blame(err, first, card->host, card->pid);
    return why.code;
}

static dd_status
monitor(dd_group *group, int64_t timeout_ns, bool is_all, uint64_t tag, const dd_wait *wait, dd_error *err)
{
    barrier_verdict verdict = {.text = ""};
    dd_error error;
    dd_status status = await_members(group, timeout_ns, is_all, tag, wait, &error);
    if (status == DD_INTERRUPTED) {
        return dd_error_copy(err, &error);
    }
    if (status != DD_OK) {
        snprintf(verdict.text, sizeof verdict.text, "%.*s", VERDICT_MAX - 1, error.message);
    }
    tell_verdict(group, &verdict, tag, wait);
    return status == DD_OK ? DD_OK : dd_error_copy(err, &error);
}

static dd_status
hear_verdict(dd_group *group, const barrier_verdict *verdict, dd_error *err)
{
    if (verdict->text[0] == '\0') {
        return DD_OK;
    }
    return dd_error_set(
        err, DD_OP_TIMED_OUT,
        "Rank %d successfully reached monitoredBarrier, but received errors while waiting for "
        "send/recv from rank 0; rank 0 has given up: %.*s",
        group->rank, VERDICT_MAX - 1, verdict->text);
}

static dd_status
report_and_hear(dd_group *group, int64_t timeout_ns, uint64_t tag, const dd_wait *wait, dd_error *err)
{
    uint8_t byte = 0;
    barrier_verdict verdict = {.text = ""};
    barrier_note report = {.tag = tag, .data = &byte, .nbytes = 1};
    barrier_note answer = {.tag = tag, .data = verdict.text, .nbytes = sizeof verdict.text};
    /* Rank 0 may take all its patience with the others, and needs a moment to tell. */
    int64_t patience_ns = timeout_ns < INT64_MAX - DD_NS_PER_S ? timeout_ns + DD_NS_PER_S : timeout_ns;
    dd_wait patience = dd_wait_at_most(wait, patience_ns);
    dd_status status = run_note(group, &report, true, timeout_ns, wait, err);
    if (status != DD_INTERRUPTED) { /* whatever has become of the report, rank 0 may have something to tell */
        status = run_note(group, &answer, false, dd_deadline_left_ns(patience.deadline_ns), wait, err);
    }
    if (status == DD_OK) {
        status = hear_verdict(group, &verdict, err);
    } else if (status != DD_INTERRUPTED) {
        dd_error_prepend(
            err,
            "Rank %d successfully reached monitoredBarrier, but received errors while waiting for "
            "send/recv from rank 0",
            group->rank);
    }
    return status;
}

dd_status
dd_group_monitored_barrier(dd_group *group, int64_t timeout_ns, bool is_all, const dd_wait *wait,
                           dd_error *err)
{
    int64_t timeout = timeout_ns >= 0 ? timeout_ns : dd_group_get_timeout_ns(group);
    dd_status status = dd_group_check(group, err);
    if (status != DD_OK) {
        return status;
    }
    uint64_t tag = next_monitored_tag(group);
    return group->rank == 0 ? monitor(group, timeout, is_all, tag, wait, err)
                            : report_and_hear(group, timeout, tag, wait, err);
}
