/* The start of a call: check it, connect ranks, take `launch`, number the work, enqueue. */
#include "nccl/call/internal.h"

#include "core/lock.h"

static int64_t
deadline_of(int64_t start_ns, int64_t timeout_ns)
{
    return timeout_ns < DD_NEVER_NS - start_ns ? start_ns + timeout_ns : DD_NEVER_NS;
}

/* Enter the call in the recorder, under the lock that numbers works, so that the numbers match. */
static void
begin_record_locked(nccl_launch *launch)
{
    dd_nccl_group *group = launch->group;
    dd_record_call *call = launch->call->record;
    if (call == NULL || group->recorder_group == NULL) {
        return;
    }
    call->created_ns = launch->work->base.base.start_ns;
    call->timeout_ns = launch->work->timeout_ns;
    launch->work->record = dd_recorder_begin(group->recorder_group, call);
}

/* Assign the work's number and deadline, and add the work to the list that the watchdog checks. */
static dd_status
work_begin(nccl_launch *launch)
{
    dd_nccl_group *group = launch->group;
    nccl_work *work = launch->work;
    dd_lock_take(&group->lock);
    dd_status status = nccl_group_check_locked(group, launch->err);
    if (status != DD_OK) {
        dd_lock_release(&group->lock);
        return status;
    }
    work->number = work->is_message ? ++group->nmessages : ++group->ncollectives;
    work->base.base.sequence = work->is_message ? 0 : work->number;
    work->ephemeral_ns = group->ephemeral_free_ns;
    group->ephemeral_free_ns = 0;
    work->timeout_ns = deadline_of(group->ephemeral_ns, work->timeout_ns);
    begin_record_locked(launch);
    if (!work->is_captured) {
        atomic_store_explicit(&work->is_device_done, false, memory_order_relaxed);
        dd_work_acquire(&work->base.base);
        dd_list_push_back(&launch->channel->works, &work->link);
        group->launching = work;
        dd_timer_start(&group->deadlines, &work->late,
                       deadline_of(work->base.base.start_ns, work->timeout_ns));
    }
    dd_lock_release(&group->lock);
    if (!work->is_captured) {
        nccl_watchdog_kick(group->watchdog);
    }
    return DD_OK;
}

/* Withdraw a failed call's work; if NCCL was not called, also the work's number and record. */
static void
withdraw_locked(nccl_launch *launch)
{
    dd_nccl_group *group = launch->group;
    nccl_work *work = launch->work;
    dd_list_remove(&work->link);
    dd_timer_clear(&work->late);
    group->ephemeral_free_ns += work->ephemeral_ns;
    if (!launch->is_posted) {
        group->nmessages -= work->is_message;
        group->ncollectives -= !work->is_message;
    }
    if (work->record == DD_NO_RECORD || group->recorder == NULL) {
        return;
    }
    if (launch->is_posted) {
        dd_recorder_end(group->recorder, work->record, dd_clock_now_ns(), launch->err);
    } else {
        dd_recorder_withdraw(group->recorder, work->record);
    }
}

/* Mark the work as launched; after a failure or an estimate, withdraw it instead. */
static dd_status
work_finish(nccl_launch *launch, dd_status status)
{
    dd_nccl_group *group = launch->group;
    nccl_work *work = launch->work;
    dd_lock_take(&group->lock);
    group->launching = NULL;
    if (group->cause.code != DD_OK && !work->is_captured) {
        nccl_work_describe(work, &group->cause, launch->err);
        status = group->cause.code;
        launch->is_posted = true;
    } else if (status == DD_OK && launch->estimate == NULL) {
        atomic_store_explicit(&work->is_launched, true, memory_order_release);
    }
    bool has_failed = group->cause.code != DD_OK;
    bool is_withdrawn = status != DD_OK || launch->estimate != NULL;
    if (is_withdrawn) {
        withdraw_locked(launch);
    }
    dd_lock_release(&group->lock);
    if (!is_withdrawn) {
        return status;
    }
    if (launch->is_posted && !has_failed) {
        /* Other ranks depend on this call, which this rank cannot complete: so fail the group. */
        dd_error cause = *launch->err;
        char call[128];
        size_t len = nccl_work_print(work, call);
        call[len - 1] = '\0';
        dd_error_prepend(&cause, "%s", call);
        nccl_work_describe(work, launch->err, launch->err);
        nccl_origin origin = nccl_work_origin(work);
        origin.call_len += 1; /* also counts ": ", which replaces the last space */
        nccl_group_end(group, &cause, &origin, NCCL_END_FAILED);
    }
    if (!work->is_captured) {
        dd_work_release(&work->base.base);
    }
    return status;
}

/* Complete a captured work: its CUDA graph may execute it later, any number of times. */
static void
complete_captured(nccl_work *work)
{
    dd_nccl_group *group = work->group;
    if (work->record != DD_NO_RECORD && group->recorder != NULL) {
        int64_t now_ns = dd_clock_now_ns();
        dd_recorder_start(group->recorder, work->record, now_ns);
        dd_recorder_end(group->recorder, work->record, now_ns, NULL);
    }
    (void)dd_work_complete(&work->base.base, NULL);
}

/* If calls are faster than the watchdog's checks, complete works here, to reuse their memory. */
static void
poll_if_needed(const nccl_launch *launch)
{
    bool is_busy;
    atomic_bool *needs_poll = &launch->group->needs_poll;
    if (!launch->is_capturing && atomic_load_explicit(needs_poll, memory_order_relaxed)) {
        atomic_store_explicit(needs_poll, false, memory_order_relaxed);
        (void)nccl_channel_poll(launch->channel, &is_busy);
    }
}

static dd_status
start_in_turn(nccl_launch *launch)
{
    dd_cuda_guard guard;
    nccl_nan_poll(launch->group);
    dd_status status = atomic_load_explicit(&launch->group->stop, memory_order_relaxed)
                           ? dd_nccl_group_check(launch->group, launch->err)
                           : DD_OK;
    if (status == DD_OK) {
        status = nccl_enter(launch->group, launch->channel->device, &guard, launch->err);
    }
    if (status != DD_OK) {
        return status;
    }
    status = nccl_launch_find_capture(launch);
    if (status == DD_OK) {
        status = nccl_window_check_open(launch);
    }
    if (status == DD_OK) {
        poll_if_needed(launch);
        status = nccl_work_create(launch->channel, launch->call, launch->wait->start_ns, launch->is_capturing,
                                  &launch->work, launch->err);
    }
    bool has_begun = false;
    if (status == DD_OK) {
        status = work_begin(launch);
        has_begun = status == DD_OK;
    }
    if (has_begun) {
        status = nccl_launch_run(launch);
    }
    dd_cuda_leave(&guard);
    if (has_begun) {
        status = work_finish(launch, status);
    }
    if ((status != DD_OK || launch->estimate != NULL) && launch->work != NULL) {
        dd_work_release(&launch->work->base.base);
    }
    return status;
}

/* Free the scratch memory of a call that was not run. */
static void
launch_withdraw(nccl_launch *launch)
{
    dd_nccl_group *group = launch->group;
    const dd_nccl_call *call = launch->call;
    for (size_t i = 0; i < call->nscratch && !launch->is_run; i++) {
        dd_nccl_group_free_scratch(group, call->device, call->scratch[i]);
    }
}

static dd_status
check_and_connect(nccl_launch *launch)
{
    dd_status status = nccl_check_call(launch->group, launch->call, launch->err);
    if (status != DD_OK) {
        dd_error_prepend(launch->err, "%s", launch->call->label);
        return status;
    }
    return nccl_channel_for(launch->group, launch->call, launch->wait, &launch->channel, launch->err);
}

dd_status
dd_nccl_group_start(dd_nccl_group *group, const dd_nccl_call *call, dd_nccl_work **work, const dd_wait *wait,
                    dd_error *err)
{
    dd_error error;
    nccl_launch launch = {.group = group, .call = call, .wait = wait, .err = err != NULL ? err : &error};
    dd_status status = nccl_group_check_fork(group, launch.err);
    if (status != DD_OK) {
        return status;
    }
    status = check_and_connect(&launch);
    if (status == DD_OK) {
        status = nccl_group_enter_launch(group, wait, launch.err);
    }
    if (status == DD_OK) {
        status = start_in_turn(&launch);
        nccl_group_leave_launch(group);
    }
    if (status != DD_OK) {
        launch_withdraw(&launch);
        return status;
    }
    if (launch.is_capturing) {
        complete_captured(launch.work);
    }
    *work = &launch.work->base;
    return DD_OK;
}

/* ---- estimates */

dd_status
dd_nccl_op_check_estimate(const dd_nccl_op *op, dd_error *err)
{
    dd_status status = op->kind == DD_NCCL_OP_COLL ? nccl_check_kind(op->args.coll, err) : DD_OK;
    return status == DD_OK && nccl_may_have_messages(op)
               ? dd_error_set(
                     err, DD_NOT_SUPPORTED,
                     "NCCL cannot estimate messages, or gather, scatter and all_to_all, which use them")
               : status;
}

void
dd_nccl_group_note_estimated(dd_nccl_group *group, dd_record_call *record)
{
    dd_lock_take(&group->lock);
    group->ncollectives++;
    if (record != NULL && group->recorder_group != NULL) {
        record->created_ns = dd_clock_now_ns();
        record->timeout_ns = dd_nccl_group_get_timeout_ns(group);
        uint64_t number = dd_recorder_begin(group->recorder_group, record);
        dd_recorder_start(group->recorder, number, record->created_ns);
        dd_recorder_end(group->recorder, number, record->created_ns, NULL);
    }
    dd_lock_release(&group->lock);
}

static dd_status
check_estimates(const nccl_launch *launch)
{
    dd_status status = dd_nccl_need(launch->group->lib, DD_NCCL_CAN_GROUP_SIMULATE, launch->err);
    for (size_t i = 0; i < launch->call->nops && status == DD_OK; i++) {
        status = dd_nccl_op_check_estimate(&launch->call->ops[i], launch->err);
    }
    return status;
}

/* Reject a nonblocking communicator: NCCL's own thread executes the calls instead of estimating. */
static dd_status
check_blocking(const nccl_launch *launch)
{
    return launch->channel->is_blocking
               ? DD_OK
               : dd_error_set(
                     launch->err, DD_NOT_SUPPORTED,
                     "estimates need a blocking communicator (NCCLConfig.blocking = 1): on others, NCCL %s "
                     "executes the calls",
                     launch->group->lib->version_text);
}

dd_status
dd_nccl_group_estimate(dd_nccl_group *group, const dd_nccl_call *call, float *microseconds,
                       const dd_wait *wait, dd_error *err)
{
    dd_error error;
    float estimate = DD_NCCL_NO_ESTIMATE;
    nccl_launch launch = {
        .group = group, .call = call, .wait = wait, .err = err != NULL ? err : &error, .estimate = &estimate};
    dd_status status = nccl_group_check_fork(group, launch.err);
    if (status != DD_OK) {
        return status;
    }
    status = check_estimates(&launch);
    if (status == DD_OK) {
        status = check_and_connect(&launch);
    }
    if (status == DD_OK) {
        status = check_blocking(&launch);
    }
    bool is_queried = status == DD_OK && group->size > 1; /* NCCL would execute a single rank's */
    if (is_queried) {
        status = nccl_group_enter_launch(group, wait, launch.err);
    }
    if (is_queried && status == DD_OK) {
        status = start_in_turn(&launch);
        nccl_group_leave_launch(group);
    }
    launch_withdraw(&launch);
    if (status == DD_OK) {
        *microseconds = estimate;
    }
    return status;
}
