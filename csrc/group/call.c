/* Calls from start to end. Collectives and messages share one type, group_call, and the same steps:
 * a call is checked, posted, polled, watched and ended. */
#include "group/internal.h"

#include "core/mem.h"

#include <stdio.h>
#include <string.h>

/* ---- initialisation */

static void
init_call(group_call *call, dd_group *group, const char *label, const dd_call_options *options)
{
    dd_work_init(&call->work, label, 0, 0);
    call->work.on_done = options->on_done;
    call->work.ctx = options->ctx;
    dd_list_init(&call->link);
    call->group = group;
    call->timeout_ns = options->timeout_ns;
    call->limit_ns = DD_NEVER_NS;
    call->deadline_ns = DD_NEVER_NS;
    dd_timer_init(&call->late, NULL);
    call->form = options->form != NULL ? options->form->record : NULL;
    call->record_args = options->form == NULL ? options->record : NULL;
    call->stack = options->stack;
    call->is_checked = false;
    call->prepared_form = NULL;
    call->record = DD_NO_RECORD;
    call->needs_record = true;
}

/* Initialise a collective. Checks the arguments unless they have a form. Does not copy arrays. */
static dd_status
init_collective(group_call *call, dd_group *group, const dd_coll_args *args, const dd_call_options *options,
                dd_error *err)
{
    dd_coll_form checked;
    const dd_coll_form *form = options->form;
    dd_status status = DD_OK;
    if (form == NULL) {
        form = &checked;
        status = group_check_coll(group, args, &checked, err);
    }
    if (status == DD_OK) {
        init_call(call, group, dd_coll_name(args->coll), options);
        call->args = *args;
        call->args.reduction.divisor = group->size;
        call->signature = form->signature;
        call->is_quick = form->is_quick;
        call->is_message = call->is_carried = false;
    }
    return status;
}

static void
call_on_message_done(dd_message *message, const dd_error *error)
{
    group_call *call = message->owner;
    dd_group *group = call->group;
    call->work.source_rank = message->source;
    call->work.tag = message->is_send ? message->tag : message->sent_tag;
    call->work.nbytes = message->received;
    if (message->rank == DD_ANY_RANK && error == NULL && call->record != DD_NO_RECORD) {
        dd_recorder_set_peer(dd_recorder_of_group(group->recorder_group), call->record, message->source);
    }
    /* A message that ends because its peer is lost gets the group's cause, like all other calls. */
    bool is_lost = error != NULL && error->code == DD_PEER_LOST && group->cause.code != DD_OK;
    if (is_lost) {
        group_complete_by_cause_locked(call, error->keeps_memory);
    } else {
        group_complete_locked(call, error);
    }
    group_update_task_locked(group);
}

static void
init_message(group_call *call, dd_group *group, const dd_p2p *p2p, const dd_call_options *options)
{
    init_call(call, group, p2p->is_send ? "send" : p2p->is_peek ? "probe" : "recv", options);
    call->is_message = true;
    call->is_send = p2p->is_send;
    call->is_quick = true;
    call->is_carried = false;
    call->message = (dd_message){.kind = DD_MESSAGE_P2P,
                                 /* Needed for a carried message. Any other message is posted, which
                                  * sets the field. */
                                 .is_send = p2p->is_send,
                                 .rank = p2p->rank,
                                 .tag = p2p->tag,
                                 .channel = p2p->channel,
                                 .is_any_tag = p2p->is_any_tag,
                                 .is_peek = p2p->is_peek,
                                 .data = p2p->block.data,
                                 .nbytes = p2p->block.nbytes,
                                 .on_done = call_on_message_done,
                                 .owner = call};
    if (options->is_typed) {
        call->signature = dd_signature_of_message(options->dtype, p2p->block.nbytes);
        call->signature.extra_bits = options->foreign_dtype;
        call->message.signature = &call->signature;
    }
}

/* Check a call before it starts. A rank that has left the group receives nothing more, but all
 * messages that it sent have arrived. */
static dd_status
call_check_locked(const group_call *call, dd_error *err)
{
    dd_group *group = call->group;
    const char *label = call->work.label;
    int rank = call->is_message ? call->message.rank : 0;
    if ((rank < 0 || rank >= group->size) && (rank != DD_ANY_RANK || call->is_send)) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "%s: invalid rank: got %d, expected 0 to %d", label,
                            rank, group->size - 1);
    }
    bool is_open_receive = call->is_message && (call->message.is_any_tag || call->message.is_peek);
    if (is_open_receive && group_carries_messages(group)) {
        return dd_error_set(err, DD_INVALID_ARGUMENT,
                            "%s: %s is unsupported, as a carrier moves this group's messages: expected a "
                            "recv with a tag, or a group without a carrier",
                            label, call->message.is_peek ? "a probe" : "any tag");
    }
    dd_status status = dd_group_check_usable_locked(group, label, err);
    if (status == DD_OK && call->is_message && call->is_send && group->members[rank].has_left) {
        status = dd_group_error_about(group, rank, DD_PEER_LOST, "has left the group", err);
        group_note_call(group, label, 0, 0, err);
    }
    return status;
}

/* ---- waiting */

/* Return the result of a finished work. If it has failed, send pending failure notices first,
 * because the caller may exit. */
static dd_status
result_of(dd_group *group, dd_work *work, const dd_wait *wait, dd_error *err)
{
    dd_status status = dd_work_result(work, err);
    if (status != DD_OK && dd_engine_check_fork(group->engine, NULL) == DD_OK) {
        dd_wait_will_block(wait); /* call on_block: sending notices may take long */
        dd_engine_lock(group->engine);
        dd_engine_finish_notices_locked(group->engine);
        dd_engine_unlock(group->engine);
    }
    return status;
}

dd_status
dd_group_wait(dd_group *group, dd_work *work, const dd_wait *wait, dd_error *err)
{
    if (!dd_work_is_done(work)) {
        dd_wait_will_block(wait);
        dd_status status = dd_engine_check_fork(group->engine, err);
        if (status == DD_OK) {
            status = dd_engine_wait(group->engine, &work->is_done, wait, err);
        }
        if (status == DD_OP_TIMED_OUT) {
            return dd_error_set(err, status,
                                "Operation timed out! %s on " GROUP_FORMAT
                                " is still under way after %.3g s of waiting",
                                work->label, GROUP_ARGS(group), dd_wait_elapsed_s(wait));
        }
        if (status != DD_OK) {
            return status;
        }
    }
    return result_of(group, work, wait, err);
}

/* Take the lock. Return true if it was free: the call may then end before wait->on_block is due. */
static bool
try_lock_first(const group_call *call, const dd_wait *wait)
{
    dd_group *group = call->group;
    if (call->is_quick && dd_engine_try_lock(group->engine)) {
        if (group->cause.code == DD_OK) {
            return true;
        }
        dd_engine_unlock(group->engine); /* call on_block first: the report may take long */
    }
    dd_wait_will_block(wait);
    dd_engine_lock(group->engine);
    return false;
}

/* ---- starting */

static dd_status
check_startable_locked(const group_call *call, const dd_group *group, dd_error *err)
{
    const dd_work *work = &call->work;
    if (call->prepared_form == NULL) {
        return DD_OK; /* a one-shot call is started only by its creator */
    }
    if (call->group != group) {
        return dd_error_set(
            err, DD_INVALID_ARGUMENT,
            "%s: belongs to another group than the first of these calls: start each group's calls separately",
            work->label);
    }
    if (call->is_checked) {
        return dd_error_set(err, DD_INVALID_ARGUMENT,
                            "%s: appears twice among the calls to start, expected once", work->label);
    }
    if (!dd_work_is_done(work)) {
        return dd_error_set(err, DD_INVALID_ARGUMENT,
                            "%s #%llu is still running: wait for it before you start it again", work->label,
                            (unsigned long long)work->sequence);
    }
    return DD_OK;
}

static dd_status
check_all_locked(group_call *const *calls, size_t ncalls, dd_error *err)
{
    dd_status status = call_check_locked(calls[0], err);
    size_t nchosen = 0;
    while (nchosen < ncalls && status == DD_OK) {
        status = check_startable_locked(calls[nchosen], calls[0]->group, err);
        if (status == DD_OK) {
            calls[nchosen++]->is_checked = true;
        }
    }
    while (nchosen > 0) {
        calls[--nchosen]->is_checked = false;
    }
    return status;
}

/* Poll for the end of a call before it is watched. */
static void
poll_call_locked(group_call *call, bool is_hasty, const dd_wait *wait)
{
    dd_engine *engine = call->group->engine;
    if (is_hasty) {
        group_poll_call_locked(call, true);
        if (dd_work_is_done(&call->work)) {
            return;
        }
        dd_engine_unlock(engine);
        dd_wait_will_block(wait);
        dd_engine_lock(engine);
    }
    group_poll_call_locked(call, false);
}

dd_status
group_start_calls(group_call *const *calls, size_t ncalls, bool is_patient, const dd_wait *wait,
                  dd_error *err)
{
    dd_group *group = calls[0]->group;
    dd_status status = dd_engine_check_fork(group->engine, err);
    if (status != DD_OK) {
        return status;
    }
    bool is_hasty = try_lock_first(calls[0], wait);
    status = check_all_locked(calls, ncalls, err);
    for (size_t i = 0; i < ncalls && status == DD_OK; i++) {
        group_call *call = calls[i];
        if (call->work.destroy != NULL) {
            dd_work_renew(&call->work);
            call->record = DD_NO_RECORD;
            call->needs_record = true;
        }
        group_post_locked(call);
        if (is_patient) {
            poll_call_locked(call, is_hasty, wait);
        }
        group_watch_locked(call);
        if (group->cause.code != DD_OK && !dd_work_is_done(&call->work)) {
            group_complete_locked(call, &group->cause); /* an earlier call failed the group */
            group_update_task_locked(group);
        }
    }
    /* A message to this rank itself has also ended its other side, whose owner must be notified. */
    bool is_own = status == DD_OK && calls[0]->is_message && dd_work_is_done(&calls[0]->work) &&
                  calls[0]->work.source_rank == group->rank;
    dd_engine_unlock(group->engine);
    if (is_own) {
        dd_engine_kick(group->engine);
    }
    return status;
}

/* ---- calls on the stack of their caller */

/* Run a call on its caller's stack. An interrupt fails the group, so that the call has ended when
 * this returns. */
static dd_status
run_call(group_call *call, const dd_wait *wait, dd_error *err)
{
    dd_group *group = call->group;
    dd_work *work = &call->work;
    dd_status status = group_start_calls(&call, 1, true, wait, err);
    if (status != DD_OK) {
        return status;
    }
    dd_wait until_done = dd_wait_without_deadline(wait); /* the group's task ends it on time */
    status = dd_group_wait(group, work, &until_done, err);
    if (!dd_work_is_done(work)) {
        char reason[96];
        bool is_monitored = call->is_message && call->message.channel == GROUP_MONITOR_CHANNEL;
        snprintf(reason, sizeof reason, "interrupted in %s",
                 is_monitored ? "monitored_barrier" : work->label);
        dd_group_abort(group, reason);
        until_done = dd_wait_after(DD_NEVER_NS);
        dd_error end = {.keeps_memory = false};
        dd_status ignored = dd_group_wait(group, work, &until_done, &end);
        (void)ignored;
        if (err != NULL) {
            err->keeps_memory = end.keeps_memory; /* true if the library may still use the blocks */
        }
    }
    return status;
}

dd_status
dd_group_collective_and_wait(dd_group *group, const dd_coll_args *args, const dd_call_options *options,
                             const dd_wait *wait, dd_error *err)
{
    group_call call;
    dd_status status = init_collective(&call, group, args, options, err);
    if (status == DD_OK) {
        call.limit_ns = wait->deadline_ns;
        status = run_call(&call, wait, err);
    }
    return status;
}

dd_status
dd_group_exchange(dd_group *group, const void *own, size_t nbytes, void *all, const dd_wait *wait,
                  dd_error *err)
{
    size_t nranks = (size_t)group->size;
    dd_block input = {.data = (void *)(uintptr_t)own, .nbytes = nbytes};
    dd_block *outputs = dd_mem_alloc_array(nranks, sizeof *outputs);
    if (outputs == NULL) {
        return dd_error_no_memory(err, nranks * sizeof *outputs);
    }
    for (size_t rank = 0; rank < nranks; rank++) {
        outputs[rank] = (dd_block){.data = (char *)all + rank * nbytes, .nbytes = nbytes};
    }
    dd_coll_args args = {.coll = DD_COLL_ALL_GATHER,
                         .reduction = {.dtype = DD_DTYPE_UINT8},
                         .inputs = &input,
                         .outputs = outputs};
    dd_call_options options = {.timeout_ns = -1};
    dd_status status = dd_group_collective_and_wait(group, &args, &options, wait, err);
    dd_mem_free(outputs);
    return status;
}

static dd_p2p_result
result_of_message(const dd_work *work)
{
    return (dd_p2p_result){.source = work->source_rank, .tag = work->tag, .nbytes = work->nbytes};
}

dd_status
dd_group_p2p_and_wait(dd_group *group, const dd_p2p *p2p, const dd_call_options *options,
                      dd_p2p_result *result, const dd_wait *wait, dd_error *err)
{
    group_call call;
    init_message(&call, group, p2p, options);
    dd_status status = run_call(&call, wait, err);
    if (status == DD_OK) {
        *result = result_of_message(&call.work);
    }
    return status;
}

dd_status
dd_group_probe(dd_group *group, const dd_p2p *p2p, bool *is_found, dd_p2p_result *result, dd_error *err)
{
    group_call call;
    group_call *calls[] = {&call};
    const dd_call_options options = {.timeout_ns = -1};
    const dd_wait no_limit = {.deadline_ns = DD_NEVER_NS};
    init_message(&call, group, p2p, &options);
    *is_found = false;
    dd_status status = group_start_calls(calls, 1, true, &no_limit, err);
    if (status != DD_OK) {
        return status;
    }
    if (!dd_work_is_done(&call.work)) { /* the start has polled only shared memory */
        dd_engine_lock(group->engine);
        dd_engine_receive_locked(group->engine);
        dd_engine_unlock(group->engine);
    }
    *is_found = !dd_group_withdraw(group, &call.work);
    if (!*is_found) {
        return DD_OK;
    }
    *result = result_of_message(&call.work);
    return dd_work_result(&call.work, err);
}

bool
dd_group_withdraw(dd_group *group, dd_work *work)
{
    dd_error cause;
    group_call *call = DD_CONTAINER_OF(work, group_call, work);
    bool is_withdrawn = false;
    if (dd_engine_check_fork(group->engine, NULL) != DD_OK) {
        return false;
    }
    dd_error_set(&cause, DD_ABORTED, "cancelled before a message matched it");
    dd_engine_lock(group->engine);
    if (!dd_work_is_done(work) && call->is_message && !call->is_carried) {
        is_withdrawn =
            !dd_context_notify_locked(&call->message) && dd_context_withdraw_locked(&call->message, &cause);
    }
    if (is_withdrawn) {
        dd_engine_prepare_driver_locked(group->engine); /* a driver may wait for the end of this work */
    }
    dd_engine_unlock(group->engine);
    return is_withdrawn;
}

/* ---- asynchronous calls */

static void
on_work_unused(dd_work *work)
{
    group_call_destroy(DD_CONTAINER_OF(work, group_call, work));
}

dd_status
group_create_collective(dd_group *group, const dd_coll_args *args, const dd_call_options *options,
                        group_call **out, dd_error *err)
{
    group_call *call = NULL;
    dd_status status = group_call_create(group->pool, &call, err);
    if (status != DD_OK) {
        return status;
    }
    bool is_root = args->root == group->rank;
    size_t ninputs = (size_t)dd_coll_ninputs(args->coll, is_root, group->size);
    size_t noutputs = (size_t)dd_coll_noutputs(args->coll, is_root, group->size);
    if (ninputs + noutputs > GROUP_INLINE_BLOCKS) {
        call->blocks = dd_mem_alloc_array(ninputs + noutputs, sizeof *call->blocks);
        status = call->blocks != NULL ? DD_OK
                                      : dd_error_no_memory(err, (ninputs + noutputs) * sizeof *call->blocks);
    }
    if (status == DD_OK) {
        status = init_collective(call, group, args, options, err);
    }
    if (status != DD_OK) {
        group_call_destroy(call);
        return status;
    }
    for (size_t i = 0; i < ninputs + noutputs; i++) {
        call->blocks[i] = i < ninputs ? args->inputs[i] : args->outputs[i - ninputs];
    }
    call->work.destroy = on_work_unused;
    call->args.inputs = call->blocks;
    call->args.outputs = call->blocks + ninputs;
    *out = call;
    return DD_OK;
}

/* Start a call from the pool. The pool's reference to the call becomes the caller's. */
static dd_status
start_call(group_call *call, dd_work **work, dd_error *err)
{
    const dd_wait no_limit = {.deadline_ns = DD_NEVER_NS};
    *work = &call->work; /* set *work before the start, because on_done may read it */
    dd_status status = group_start_calls(&call, 1, false, &no_limit, err);
    if (status != DD_OK) {
        *work = NULL;
        dd_work_release(&call->work);
    }
    return status;
}

dd_status
dd_group_collective(dd_group *group, const dd_coll_args *args, const dd_call_options *options, dd_work **work,
                    dd_error *err)
{
    group_call *call = NULL;
    dd_status status = group_create_collective(group, args, options, &call, err);
    return status == DD_OK ? start_call(call, work, err) : status;
}

dd_status
dd_group_p2p(dd_group *group, const dd_p2p *p2p, const dd_call_options *options, dd_work **work,
             dd_error *err)
{
    group_call *call = NULL;
    dd_status status = group_call_create(group->pool, &call, err);
    if (status == DD_OK) {
        init_message(call, group, p2p, options);
        call->work.destroy = on_work_unused;
        status = start_call(call, work, err);
    }
    return status;
}
