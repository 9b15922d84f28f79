/* Closing groups: first all works, then communicators in parallel, then devices. */
#include "nccl/lifecycle/internal.h"

#include "core/lock.h"
#include "core/thread.h"

/* Time for communicators to end after the works, if the caller sets no deadline. */
#define COMMS_END_NS (10 * DD_NS_PER_S)

/* ---- works */

static nccl_work *
first_work(dd_nccl_group *group)
{
    nccl_work *work = NULL;
    dd_lock_take(&group->lock);
    for (nccl_channel *channel = group->channels; channel != NULL && work == NULL; channel = channel->next) {
        if (!dd_list_is_empty(&channel->works)) {
            work = DD_CONTAINER_OF(channel->works.next, nccl_work, link);
            dd_work_acquire(&work->base.base);
        }
    }
    dd_lock_release(&group->lock);
    return work;
}

/* Wait until no work is under way. DD_OK even if works have failed. */
static dd_status
wait_for_works(dd_nccl_group *group, const dd_wait *wait, dd_error *err)
{
    for (;;) {
        nccl_work *work = first_work(group);
        if (work == NULL) {
            return DD_OK;
        }
        dd_status status = nccl_work_await(work, wait, err);
        dd_work_release(&work->base.base);
        if (status != DD_OK) {
            return status;
        }
    }
}

dd_status
dd_nccl_group_wait_works(dd_nccl_group *group, const dd_wait *wait, dd_error *err)
{
    dd_status status = nccl_group_check_fork(group, err);
    if (status == DD_OK) {
        status = wait_for_works(group, wait, err);
    }
    return status == DD_OK ? dd_nccl_group_check(group, err) : status;
}

/* Return true if `a` must close before `b`: all-rank channels first, then pairs by rank. The order
 * must be the same on all ranks, because ending a communicator may wait for its other ranks. */
static bool
is_before(const dd_nccl_group *group, const nccl_channel *a, const nccl_channel *b)
{
    bool is_a_all = a->peer == NCCL_ALL_RANKS;
    bool is_b_all = b->peer == NCCL_ALL_RANKS;
    if (is_a_all != is_b_all) {
        return is_a_all;
    }
    if (a->peer == b->peer) {
        return a->use < b->use;
    }
    int a_low = a->peer < group->rank ? a->peer : group->rank;
    int b_low = b->peer < group->rank ? b->peer : group->rank;
    return a_low != b_low ? a_low < b_low : a->peer < b->peer;
}

static bool
needs_close_locked(const nccl_channel *channel)
{
    return atomic_load(&channel->comm) != NULL && !channel->is_ending && !channel->has_failed_to_close;
}

static size_t
count_to_close(dd_nccl_group *group)
{
    size_t count = 0;
    dd_lock_take(&group->lock);
    for (nccl_channel *channel = group->channels; channel != NULL; channel = channel->next) {
        count += needs_close_locked(channel);
    }
    dd_lock_release(&group->lock);
    return count;
}

/* ---- threads that close; a watchdog has at most DD_NCCL_ENDERS_MAX */

/* Base struct of a job that several threads share. */
typedef struct close_job {
    atomic_uint refs; /* references: one for each thread, one for the thread that starts them */
    dd_nccl_watchdog *watchdog;
    void (*run)(struct close_job *job); /* performs parts of the job until no part is left */
    void (*destroy)(struct close_job *job);
} close_job;

static void
close_job_release(close_job *job)
{
    if (atomic_fetch_sub_explicit(&job->refs, 1, memory_order_acq_rel) == 1) {
        job->destroy(job);
    }
}

static void *
close_job_thread(void *arg)
{
    close_job *job = arg;
    dd_nccl_watchdog *watchdog = job->watchdog;
    job->run(job);
    close_job_release(job);
    nccl_watchdog_end_end(watchdog);
    return NULL;
}

/* Start up to n threads for the job; fewer if the limit is reached or a thread cannot start. */
static void
close_job_start(close_job *job, size_t n)
{
    for (size_t i = 0; i < n && nccl_watchdog_begin_end(job->watchdog); i++) {
        pthread_t thread;
        atomic_fetch_add_explicit(&job->refs, 1, memory_order_relaxed);
        if (dd_thread_start(&thread, "dldist-close", close_job_thread, job, NULL) != DD_OK) {
            close_job_release(job);
            nccl_watchdog_end_end(job->watchdog);
            return;
        }
        dd_thread_detach(thread);
    }
}

/* ---- closing a group's communicators */

typedef struct comms_job {
    close_job base;       /* must be first, for casts */
    dd_nccl_group *group; /* owned internal reference */
    int64_t deadline_ns;  /* const after init */
    /* Number of channels being closed. Guarded by the group's lock, like the fields below. */
    unsigned nunfinished;
    unsigned nfailed;
    dd_error first; /* error of the first channel that failed to close */
} comms_job;

static void
comms_job_destroy(close_job *base)
{
    comms_job *job = (comms_job *)base;
    nccl_group_release_internal(job->group);
    dd_mem_free(job);
}

/* Take the next channel to close; NULL if none is left. */
static nccl_channel *
comms_job_take(comms_job *job)
{
    dd_nccl_group *group = job->group;
    nccl_channel *first = NULL;
    dd_lock_take(&group->lock);
    for (nccl_channel *channel = group->channels; channel != NULL; channel = channel->next) {
        if (needs_close_locked(channel) && (first == NULL || is_before(group, channel, first))) {
            first = channel;
        }
    }
    if (first != NULL) {
        first->is_ending = true;
        job->nunfinished++;
    }
    dd_lock_release(&group->lock);
    return first;
}

/* Close a channel that comms_job_take returned. If this fails, mark the channel to be aborted. */
static void
comms_job_close(comms_job *job, nccl_channel *channel, const dd_wait *wait)
{
    dd_error error;
    dd_nccl_comm *comm = atomic_load(&channel->comm);
    dd_status status = dd_nccl_comm_finalize(comm, &job->group->stop, wait, &error);
    if (status == DD_OK) {
        status = dd_nccl_comm_destroy_within(comm, wait, &error);
    }
    dd_lock_take(&job->group->lock);
    job->nunfinished--;
    if (status != DD_OK) {
        channel->is_ending = false;
        channel->has_failed_to_close = true;
        if (job->nfailed++ == 0) {
            dd_error_copy(&job->first, &error);
        }
    }
    dd_cond_broadcast(&job->group->ended);
    dd_lock_release(&job->group->lock);
}

static void
comms_job_run(comms_job *job, const dd_wait *wait)
{
    nccl_channel *channel;
    while ((channel = comms_job_take(job)) != NULL) {
        comms_job_close(job, channel, wait);
    }
}

static void
comms_job_run_in_background(close_job *base)
{
    comms_job *job = (comms_job *)base;
    dd_wait wait = dd_wait_after(DD_NEVER_NS);
    wait.deadline_ns = job->deadline_ns;
    comms_job_run(job, &wait);
}

/* Wait for the threads, which end soon after the deadline. DD_INTERRUPTED leaves them running. */
static dd_status
comms_job_await(comms_job *job, const dd_wait *wait, dd_error *err)
{
    dd_nccl_group *group = job->group;
    dd_wait endless = *wait;
    endless.deadline_ns = DD_NEVER_NS; /* the threads observe the deadline; only wait for them */
    dd_status status = DD_OK;
    dd_lock_take(&group->lock);
    while (job->nunfinished > 0 && status == DD_OK) {
        status = dd_cond_wait_checked(&group->ended, &group->lock, &endless, err);
    }
    if (status == DD_OK && job->nfailed > 0) {
        status = dd_error_copy(err, &job->first);
        if (job->nfailed > 1) {
            dd_error_prepend(err, "%u communicators failed to close, the first of them", job->nfailed);
        }
    }
    dd_lock_release(&group->lock);
    return status;
}

/* Close communicators in parallel, on this and other threads: NCCL needs half a second for each. */
static dd_status
close_comms(dd_nccl_group *group, const dd_wait *wait, dd_error *err)
{
    dd_wait limited = wait->deadline_ns == DD_NEVER_NS ? dd_wait_at_most(wait, COMMS_END_NS) : *wait;
    comms_job *job = dd_mem_zalloc(sizeof *job);
    if (job == NULL) {
        return dd_error_no_memory(err, sizeof *job);
    }
    job->base.watchdog = group->watchdog;
    job->base.run = comms_job_run_in_background;
    job->base.destroy = comms_job_destroy;
    atomic_init(&job->base.refs, 1);
    job->group = nccl_group_acquire_internal(group);
    job->deadline_ns = limited.deadline_ns;
    size_t ncomms = count_to_close(group);
    close_job_start(&job->base, ncomms > 0 ? ncomms - 1 : 0);
    comms_job_run(job, &limited);
    dd_status status = comms_job_await(job, &limited, err);
    close_job_release(&job->base);
    if (status != DD_OK) {
        dd_error_prepend(
            err, status == DD_OP_TIMED_OUT
                     ? "closing the group: its operations are done, but a CUDA graph may still hold some"
                     : "closing the group");
    }
    return status;
}

static void
close_devices(dd_nccl_group *group)
{
    for (int number = 0; number < group->cuda->ndevices; number++) {
        nccl_device *device = atomic_load(&group->devices[number]);
        if (device != NULL) {
            nccl_device_close(group, device);
        }
    }
}

/* Abort the communicators, wait up to abort_timeout_ns, then close the devices. */
static void
close_failed(dd_nccl_group *group, const dd_wait *wait)
{
    nccl_group_start_abort(group);
    dd_wait limited = dd_wait_at_most(wait, nccl_watchdog_abort_timeout_ns(group->watchdog));
    if (nccl_group_wait_for_abort(group, &limited, NULL) == DD_OK &&
        nccl_group_enter_launch(group, &limited, NULL) == DD_OK) {
        close_devices(group);
        nccl_group_leave_launch(group);
    }
}

/* Close a group. DD_OK with *has_failed set if the group fails or is aborted before the end. */
static dd_status
close_by_watchdog(dd_nccl_group *group, const dd_wait *wait, bool *has_failed, dd_error *err)
{
    dd_status status = wait_for_works(group, wait, err);
    if (status != DD_OK) {
        dd_error_prepend(err, "closing the group");
    } else {
        nccl_nan_poll(group);
    }
    if (status == DD_OK && !atomic_load(&group->stop)) {
        status = close_comms(group, wait, err);
    }
    *has_failed = atomic_load(&group->stop);
    if (*has_failed) {
        return status == DD_INTERRUPTED ? status : DD_OK;
    }
    if (status == DD_OK) {
        close_devices(group);
    }
    return status;
}

/* Close a group, or clean up if it has failed. The caller must have set is_closed. */
static dd_status
close_group(dd_nccl_group *group, const dd_wait *wait, dd_error *err)
{
    dd_lock_take(&group->lock);
    bool has_failed = group->cause.code != DD_OK;
    dd_lock_release(&group->lock);
    dd_status status = DD_OK;
    if (!has_failed) {
        status = nccl_group_enter_launch(group, wait, err);
        if (status == DD_OK) {
            status = close_by_watchdog(group, wait, &has_failed, err);
            nccl_group_leave_launch(group);
        }
        if (status != DD_OK) {
            nccl_group_end(group, err, NULL, NCCL_END_FAILED);
            has_failed = true;
        }
    }
    if (has_failed) {
        close_failed(group, wait);
    }
    dd_lock_take(&group->lock);
    group->is_close_done = true;
    if (status == DD_OK && group->is_unreported) {
        status = group->cause.code;
        nccl_group_describe_cause_locked(group, err);
        dd_error_prepend(err, "closing the group");
    }
    group->is_unreported = false;
    dd_lock_release(&group->lock);
    nccl_watchdog_remove(group->watchdog, group);
    return status;
}

/* ---- closing several groups in the background */

/* Groups to close. Each thread takes the next group, until there are no more. */
typedef struct groups_job {
    close_job base; /* must be first, for casts */
    atomic_size_t next;
    size_t n;
    dd_nccl_group *groups[]; /* owned internal references */
} groups_job;

static void
groups_job_destroy(close_job *base)
{
    groups_job *job = (groups_job *)base;
    for (size_t i = 0; i < job->n; i++) {
        nccl_group_release_internal(job->groups[i]);
    }
    dd_mem_free(job);
}

static void
close_in_background(dd_nccl_group *group)
{
    dd_lock_take(&group->lock);
    bool was_closed = group->is_closed;
    if (!was_closed) {
        group->is_closed = true;
        group->background_close = NCCL_CLOSE_RUNNING;
    }
    dd_lock_release(&group->lock);
    if (was_closed) {
        return;
    }
    dd_error error;
    dd_wait wait = dd_wait_after(DD_NEVER_NS);
    dd_status status = close_group(group, &wait, &error);
    dd_lock_take(&group->lock);
    if (status != DD_OK) {
        dd_error_copy(&group->background_close_error, &error);
    }
    group->background_close = NCCL_CLOSE_DONE;
    dd_cond_broadcast(&group->ended);
    dd_lock_release(&group->lock);
}

static void
groups_job_run(close_job *base)
{
    groups_job *job = (groups_job *)base;
    for (size_t i; (i = atomic_fetch_add(&job->next, 1)) < job->n;) {
        close_in_background(job->groups[i]);
    }
}

void
dd_nccl_groups_post_close(dd_nccl_group *const *groups, size_t n)
{
    groups_job *job = n > 1 ? dd_mem_zalloc(sizeof *job + n * sizeof(dd_nccl_group *)) : NULL;
    if (job == NULL) {
        return;
    }
    job->base.watchdog = groups[0]->watchdog;
    job->base.run = groups_job_run;
    job->base.destroy = groups_job_destroy;
    atomic_init(&job->base.refs, 1);
    atomic_init(&job->next, 0);
    for (size_t i = 0; i < n; i++) {
        if (nccl_group_check_fork(groups[i], NULL) == DD_OK) {
            job->groups[job->n++] = nccl_group_acquire_internal(groups[i]);
        }
    }
    close_job_start(&job->base, job->n);
    close_job_release(&job->base);
}

/* Wait for the thread that closes the group; return its error. Fail the group if the wait fails. */
static dd_status
await_background_close(dd_nccl_group *group, const dd_wait *wait, dd_error *err)
{
    dd_status status = DD_OK;
    dd_lock_take(&group->lock);
    while (group->background_close == NCCL_CLOSE_RUNNING && status == DD_OK) {
        status = dd_cond_wait_checked(&group->ended, &group->lock, wait, err);
    }
    bool has_ended = group->background_close == NCCL_CLOSE_DONE;
    if (has_ended) {
        status = group->background_close_error.code == DD_OK
                     ? DD_OK
                     : dd_error_copy(err, &group->background_close_error);
        group->background_close_error.code = DD_OK;
    } else if (status == DD_TIMED_OUT) {
        status = dd_error_set(err, DD_OP_TIMED_OUT, "closing the group did not finish within %.3f s",
                              dd_wait_elapsed_s(wait));
    }
    dd_lock_release(&group->lock);
    if (!has_ended && status != DD_OK) {
        nccl_group_end(group, err, NULL, NCCL_END_FAILED);
    }
    return status;
}

dd_status
dd_nccl_group_close(dd_nccl_group *group, const dd_wait *wait, dd_error *err)
{
    dd_error error;
    err = err != NULL ? err : &error;
    dd_status status = nccl_group_check_fork(group, err);
    if (status != DD_OK) {
        return status;
    }
    dd_lock_take(&group->lock);
    bool was_closed = group->is_closed;
    group->is_closed = true;
    dd_lock_release(&group->lock);
    return was_closed ? await_background_close(group, wait, err) : close_group(group, wait, err);
}

/* ---- release */

void
dd_nccl_group_release(dd_nccl_group *group)
{
    if (group == NULL || atomic_fetch_sub_explicit(&group->users, 1, memory_order_acq_rel) != 1 ||
        nccl_group_check_fork(group, NULL) != DD_OK) {
        return;
    }
    dd_error cause;
    dd_error_set(&cause, DD_ABORTED, "the group was released without being closed");
    nccl_watchdog_remove(group->watchdog, group);
    nccl_group_end(group, &cause, NULL, NCCL_END_RELEASED);
    nccl_group_start_abort(group);
    /* No rendezvous can follow, so release the store now, on the caller's thread. */
    dd_store_release(group->store);
    group->store = NULL;
    /* Detach the recorder: it may end before works and aborts do, and no work is left to record. */
    dd_lock_take(&group->lock);
    dd_recorder_group *recorder_group = group->recorder_group;
    group->recorder_group = NULL;
    group->recorder = NULL;
    dd_lock_release(&group->lock);
    dd_recorder_group_release(recorder_group);
    nccl_group_release_internal(group);
}
