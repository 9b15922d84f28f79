/* How a group is closed: its works, then its communicators, then what its devices have left. Also several groups side by side, on
 * threads, of which a watchdog has a limited number. */
#include "nccl/internal.h"

#include "core/lock.h"
#include "core/thread.h"

/* For communicators to end once nothing is under way, where the caller sets no limit. */
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

/* DD_OK when nothing is under way, however it ended. */
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

/* Before: pairs after all ranks, then by their ranks. Ending a communicator may wait for its other ranks, so that all must do it in one
 * order. */
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

static nccl_channel *
next_to_close(dd_nccl_group *group)
{
    nccl_channel *first = NULL;
    dd_lock_take(&group->lock);
    for (nccl_channel *channel = group->channels; channel != NULL; channel = channel->next) {
        if (atomic_load(&channel->comm) != NULL && !channel->is_ending &&
            (first == NULL || is_before(group, channel, first))) {
            first = channel;
        }
    }
    if (first != NULL) {
        first->is_ending = true;
    }
    dd_lock_release(&group->lock);
    return first;
}

/* The channel has been taken by next_to_close. If it fails, the communicator is left to be aborted. */
static dd_status
end_channel(nccl_channel *channel, const dd_wait *wait, dd_error *err)
{
    dd_nccl_comm *comm = atomic_load(&channel->comm);
    dd_status status = dd_nccl_comm_finalize(comm, &channel->group->stop, wait, err);
    if (status == DD_OK) {
        status = dd_nccl_comm_destroy_within(comm, wait, err);
    }
    if (status != DD_OK) {
        dd_lock_take(&channel->group->lock);
        channel->is_ending = false; /* to be aborted */
        dd_lock_release(&channel->group->lock);
    }
    return status;
}

/* The ends of communicators of a group on threads, and their results. */
typedef struct ends {
    atomic_uint refs; /* of the caller, and of each thread */
    dd_nccl_group *group;
    int64_t deadline_ns;  /* const after init */
    unsigned nunfinished; /* the group's lock, with the next two */
    unsigned nfailed;
    dd_error first; /* that has failed */
} ends;

static void
ends_release(ends *all)
{
    if (atomic_fetch_sub_explicit(&all->refs, 1, memory_order_acq_rel) == 1) {
        dd_mem_free(all);
    }
}

static void
ends_note(ends *all, dd_status status, const dd_error *error)
{
    if (status == DD_OK) {
        return;
    }
    dd_lock_take(&all->group->lock);
    if (all->nfailed++ == 0) {
        dd_error_copy(&all->first, error);
    }
    dd_lock_release(&all->group->lock);
}

/* A channel for a thread of its own. */
typedef struct end_aside {
    ends *all; /* a reference */
    nccl_channel *channel;
} end_aside;

static void *
run_end_aside(void *arg)
{
    end_aside *one = arg;
    ends *all = one->all;
    dd_nccl_group *group = all->group;
    dd_nccl_watchdog *watchdog = group->watchdog;
    dd_error error;
    dd_wait wait = dd_wait_after(DD_NEVER_NS);
    wait.deadline_ns = all->deadline_ns;
    ends_note(all, end_channel(one->channel, &wait, &error), &error);
    dd_lock_take(&group->lock);
    all->nunfinished--;
    dd_cond_broadcast(&group->ended);
    dd_lock_release(&group->lock);
    ends_release(all);
    dd_mem_free(one);
    nccl_group_release_internal(group);
    nccl_watchdog_end_end(watchdog);
    return NULL;
}

/* False without memory or a thread: the caller ends it. */
static bool
start_end_aside(ends *all, nccl_channel *channel)
{
    dd_nccl_group *group = all->group;
    if (!nccl_watchdog_begin_end(group->watchdog)) {
        return false;
    }
    pthread_t thread;
    end_aside *one = dd_mem_alloc(sizeof *one);
    if (one != NULL) {
        *one = (end_aside){all, channel};
        atomic_fetch_add_explicit(&all->refs, 1, memory_order_relaxed);
        dd_lock_take(&group->lock);
        all->nunfinished++;
        dd_lock_release(&group->lock);
        nccl_group_acquire_internal(group);
        if (dd_thread_start(&thread, "dldist-close", run_end_aside, one, NULL) == DD_OK) {
            dd_thread_detach(thread);
            return true;
        }
        nccl_group_release_internal(group);
        dd_lock_take(&group->lock);
        all->nunfinished--;
        dd_lock_release(&group->lock);
        ends_release(all);
        dd_mem_free(one);
    }
    nccl_watchdog_end_end(group->watchdog);
    return false;
}

/* Wait until all threads are done, soon after their deadline at the latest. DD_INTERRUPTED leaves them. */
static dd_status
ends_await(ends *all, const dd_wait *wait, dd_error *err)
{
    dd_nccl_group *group = all->group;
    dd_status status = DD_OK;
    dd_lock_take(&group->lock);
    while (all->nunfinished > 0 && status == DD_OK) {
        dd_wait nap = dd_wait_at_most(wait, DD_WAIT_SLICE_NS);
        dd_cond_wait_slice(&group->ended, &group->lock, &nap);
        dd_lock_release(&group->lock);
        status = dd_wait_check(wait, err);
        dd_lock_take(&group->lock);
    }
    if (status == DD_OK && all->nfailed > 0) {
        status = dd_error_copy(err, &all->first);
        if (all->nfailed > 1) {
            dd_error_prepend(err, "%u communicators have not ended well, the first of them", all->nfailed);
        }
    }
    dd_lock_release(&group->lock);
    return status;
}

/* Side by side, because NCCL takes half a second for each: the last one here, the others on threads, as long as there are any. */
static dd_status
end_channels(ends *all, const dd_wait *wait, dd_error *err)
{
    nccl_channel *channel = next_to_close(all->group);
    while (channel != NULL) {
        nccl_channel *next = next_to_close(all->group);
        dd_error error;
        if (next == NULL || !start_end_aside(all, channel)) {
            ends_note(all, end_channel(channel, wait, &error), &error);
        }
        channel = next;
    }
    return ends_await(all, wait, err);
}

static dd_status
close_comms(dd_nccl_group *group, const dd_wait *wait, dd_error *err)
{
    dd_wait limited = wait->deadline_ns == DD_NEVER_NS ? dd_wait_at_most(wait, COMMS_END_NS) : *wait;
    ends *all = dd_mem_zalloc(sizeof *all);
    if (all == NULL) {
        return dd_error_no_memory(err, sizeof *all);
    }
    atomic_init(&all->refs, 1);
    all->group = group;
    all->deadline_ns = limited.deadline_ns;
    dd_status status = end_channels(all, &limited, err);
    ends_release(all);
    if (status != DD_OK) {
        dd_error_prepend(err,
                         status == DD_OP_TIMED_OUT
                             ? "closing the group: its operations have ended, but a CUDA graph that holds "
                               "some may be running or alive"
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

/* Wait for the aborts of a failed group, for as long as is reasonable. */
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

/* DD_OK with *has_failed if the group fails or is aborted before the end. */
static dd_status
close_in_turn(dd_nccl_group *group, const dd_wait *wait, bool *has_failed, dd_error *err)
{
    dd_status status = wait_for_works(group, wait, err);
    if (status != DD_OK) {
        dd_error_prepend(err, "closing the group");
    } else {
        nccl_nan_look(group);
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

/* The caller has set is_closed. */
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
            status = close_in_turn(group, wait, &has_failed, err);
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
    group->is_over = true;
    if (status == DD_OK && group->is_unheard) {
        status = group->cause.code;
        nccl_group_describe_cause_locked(group, err);
        dd_error_prepend(err, "closing the group");
    }
    group->is_unheard = false;
    dd_lock_release(&group->lock);
    nccl_watchdog_remove(group->watchdog, group);
    return status;
}

/* ---- several groups */

/* Groups for threads to close. Each thread takes the next one, until there are no more. */
typedef struct closing {
    atomic_uint refs; /* one for each thread, and for the thread that starts them */
    atomic_size_t next;
    size_t n;
    dd_nccl_watchdog *watchdog;
    dd_nccl_group *groups[]; /* internal references */
} closing;

static void
closing_release(closing *all)
{
    if (atomic_fetch_sub_explicit(&all->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    for (size_t i = 0; i < all->n; i++) {
        nccl_group_release_internal(all->groups[i]);
    }
    dd_mem_free(all);
}

static void
close_aside(dd_nccl_group *group)
{
    dd_lock_take(&group->lock);
    bool was_closed = group->is_closed;
    if (!was_closed) {
        group->is_closed = true;
        group->aside = NCCL_CLOSING_ASIDE;
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
        dd_error_copy(&group->aside_error, &error);
    }
    group->aside = NCCL_CLOSED_ASIDE;
    dd_cond_broadcast(&group->ended);
    dd_lock_release(&group->lock);
}

static void *
run_closing(void *arg)
{
    closing *all = arg;
    dd_nccl_watchdog *watchdog = all->watchdog;
    for (size_t i; (i = atomic_fetch_add(&all->next, 1)) < all->n;) {
        close_aside(all->groups[i]);
    }
    closing_release(all);
    nccl_watchdog_end_end(watchdog);
    return NULL;
}

void
dd_nccl_groups_post_close(dd_nccl_group *const *groups, size_t n)
{
    closing *all = n > 1 ? dd_mem_zalloc(sizeof *all + n * sizeof(dd_nccl_group *)) : NULL;
    if (all == NULL) {
        return;
    }
    atomic_init(&all->refs, 1);
    atomic_init(&all->next, 0);
    all->watchdog = groups[0]->watchdog;
    for (size_t i = 0; i < n; i++) {
        if (nccl_group_check_fork(groups[i], NULL) == DD_OK) {
            all->groups[all->n++] = nccl_group_acquire_internal(groups[i]);
        }
    }
    for (size_t i = 0; i < all->n && nccl_watchdog_begin_end(all->watchdog); i++) {
        pthread_t thread;
        atomic_fetch_add_explicit(&all->refs, 1, memory_order_relaxed);
        if (dd_thread_start(&thread, "dldist-close", run_closing, all, NULL) != DD_OK) {
            closing_release(all);
            nccl_watchdog_end_end(all->watchdog);
            break;
        }
        dd_thread_detach(thread);
    }
    closing_release(all);
}

/* Wait for a thread that closes the group, and take its error. A caller that does not wait long enough fails the group. */
static dd_status
await_aside(dd_nccl_group *group, const dd_wait *wait, dd_error *err)
{
    dd_status status = DD_OK;
    dd_lock_take(&group->lock);
    while (group->aside == NCCL_CLOSING_ASIDE && status == DD_OK) {
        dd_cond_wait_slice(&group->ended, &group->lock, wait);
        dd_lock_release(&group->lock);
        status = dd_wait_is_over(wait)
                     ? dd_error_set(err, DD_OP_TIMED_OUT, "closing the group: it has not ended within %.3f s",
                                    dd_wait_elapsed_s(wait))
                     : dd_wait_check(wait, err);
        dd_lock_take(&group->lock);
    }
    bool has_ended = group->aside == NCCL_CLOSED_ASIDE;
    if (has_ended && group->aside_error.code != DD_OK) {
        status = dd_error_copy(err, &group->aside_error);
        group->aside_error.code = DD_OK;
    } else if (has_ended) {
        status = DD_OK;
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
    return was_closed ? await_aside(group, wait, err) : close_group(group, wait, err);
}

/* ---- without a close */

void
dd_nccl_group_release(dd_nccl_group *group)
{
    if (group == NULL || atomic_fetch_sub_explicit(&group->users, 1, memory_order_acq_rel) != 1 ||
        nccl_group_check_fork(group, NULL) != DD_OK) {
        return;
    }
    dd_error cause;
    dd_error_set(&cause, DD_ABORTED, "the group was let go without being closed");
    nccl_watchdog_remove(group->watchdog, group);
    nccl_group_end(group, &cause, NULL, NCCL_END_LET_GO);
    nccl_group_start_abort(group);
    dd_store_release(
        group->store); /* nobody meets any more, and what a store ends with is nothing for other threads */
    group->store = NULL;
    /* Nothing is under way any more that could be told of, and the recorder may end before works and aborts do. */
    dd_lock_take(&group->lock);
    dd_recorder_group *recorder_group = group->recorder_group;
    group->recorder_group = NULL;
    group->recorder = NULL;
    dd_lock_release(&group->lock);
    dd_recorder_group_release(recorder_group);
    nccl_group_release_internal(group);
}
