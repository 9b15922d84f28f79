#include "nccl/watchdog.h"

#include "core/fork.h"
#include "core/lock.h"
#include "core/thread.h"
#include "nccl/lifecycle/internal.h"

#include <time.h>

#define DEFAULT_INTERVAL_NS (20 * DD_NS_PER_MS)
#define HURRY_NS DD_NS_PER_MS
#define DEFAULT_ABORT_TIMEOUT_NS DD_NS_PER_S
#define COMMS_NS DD_NS_PER_S /* interval between checks of communicators if no work is under way */
/* Time without works after which the thread sleeps; long, as waking it takes longer than a call. */
#define IDLE_STOP_NS (2 * DD_NS_PER_S)
#define JOIN_NS (2 * DD_NS_PER_S)

static void
note(dd_nccl_watchdog *watchdog, const char *activity)
{
    atomic_store_explicit(&watchdog->activity, activity, memory_order_relaxed);
}

/* ---- checking a group */

static nccl_progress
check_watched_group(dd_nccl_watchdog *watchdog, dd_nccl_group *group, bool checks_comms, bool *is_busy)
{
    dd_lock_take(&group->lock);
    nccl_channel *channel = group->channels;
    dd_lock_release(&group->lock);
    note(watchdog, "cuEventQuery");
    bool is_group_busy = false;
    for (; channel != NULL; channel = channel->next) {
        if (nccl_channel_poll(channel, &is_group_busy) == NCCL_NO_MORE) {
            return NCCL_NO_MORE;
        }
    }
    note(watchdog, "");
    nccl_nan_poll(group);
    nccl_group_check_deadlines(group, dd_clock_now_ns());
    if (is_group_busy || checks_comms) {
        note(watchdog, "ncclCommGetAsyncError");
        nccl_group_check_comms(group);
        note(watchdog, "");
    }
    *is_busy |= is_group_busy;
    return NCCL_ENDED;
}

/* End all groups without a report, because the driver is shutting down. The thread then ends. */
static void
end_groups(dd_nccl_watchdog *watchdog)
{
    dd_error cause;
    dd_error_set(&cause, DD_CLOSED, "the CUDA driver is shutting down");
    dd_lock_take(&watchdog->lock);
    watchdog->is_ended = true;
    for (size_t i = watchdog->ngroups; i > 0; i--) {
        dd_nccl_group *group = nccl_watchdog_next_group_locked(watchdog);
        dd_lock_release(&watchdog->lock);
        if (group == NULL) {
            return;
        }
        nccl_group_end(group, &cause, NULL, NCCL_END_DRIVER_GONE);
        nccl_group_release_internal(group);
        dd_lock_take(&watchdog->lock);
    }
    dd_lock_release(&watchdog->lock);
}

/* Check all groups. Sets *is_busy if a work is under way. The caller must not hold the lock. */
static nccl_progress
watchdog_check_groups(dd_nccl_watchdog *watchdog, bool *is_busy)
{
    int64_t now_ns = dd_clock_now_ns();
    bool checks_comms = now_ns - watchdog->comms_ns >= COMMS_NS;
    if (checks_comms) {
        watchdog->comms_ns = now_ns;
    }
    *is_busy = false;
    dd_lock_take(&watchdog->lock);
    size_t ngroups = watchdog->ngroups;
    dd_lock_release(&watchdog->lock);
    for (size_t i = 0; i < ngroups; i++) {
        dd_lock_take(&watchdog->lock);
        dd_nccl_group *group = nccl_watchdog_next_group_locked(watchdog);
        dd_lock_release(&watchdog->lock);
        if (group == NULL) {
            break;
        }
        nccl_progress progress = check_watched_group(watchdog, group, checks_comms, is_busy);
        nccl_group_release_internal(group);
        if (progress == NCCL_NO_MORE) {
            end_groups(watchdog);
            return NCCL_NO_MORE;
        }
    }
    atomic_fetch_add_explicit(&watchdog->npolls, 1, memory_order_relaxed);
    return NCCL_ENDED;
}

/* ---- the thread */

static void
sleep_locked(dd_nccl_watchdog *watchdog, int64_t duration_ns)
{
    int64_t until_ns = dd_deadline_after(duration_ns);
    struct timespec until = {until_ns / DD_NS_PER_S, until_ns % DD_NS_PER_S};
    dd_cond_wait_until(&watchdog->wake, &watchdog->lock, &until);
}

/* Sleep, after a long time without works. A thread that starts a work after is_asleep is set wakes
 * the watchdog; the check between setting is_asleep and sleeping finds earlier works. */
static nccl_progress
watchdog_sleep(dd_nccl_watchdog *watchdog)
{
    dd_lock_take(&watchdog->lock);
    atomic_store(&watchdog->is_asleep, true);
    dd_lock_release(&watchdog->lock);
    bool is_busy;
    nccl_progress progress = watchdog_check_groups(watchdog, &is_busy);
    dd_lock_take(&watchdog->lock);
    if (progress != NCCL_NO_MORE && !is_busy && !watchdog->is_stopping && atomic_load(&watchdog->is_asleep)) {
        sleep_locked(watchdog, watchdog->ngroups > 0 ? COMMS_NS : DD_NEVER_NS / 4);
    }
    atomic_store(&watchdog->is_asleep, false);
    dd_lock_release(&watchdog->lock);
    return progress;
}

static void
watchdog_nap(dd_nccl_watchdog *watchdog)
{
    bool is_hurried = atomic_load(&watchdog->is_hurried);
    int64_t interval_ns = watchdog->options.interval_ns;
    dd_lock_take(&watchdog->lock);
    if (!watchdog->is_stopping) {
        sleep_locked(watchdog, is_hurried && interval_ns > HURRY_NS ? HURRY_NS : interval_ns);
    }
    dd_lock_release(&watchdog->lock);
}

static bool
watchdog_is_stopping(dd_nccl_watchdog *watchdog)
{
    dd_lock_take(&watchdog->lock);
    bool is = watchdog->is_stopping;
    dd_lock_release(&watchdog->lock);
    return is;
}

static void *
run_watchdog(void *arg)
{
    dd_nccl_watchdog *watchdog = arg;
    (void)dd_cuda_relax_capture(watchdog->cuda);
    watchdog->busy_ns = dd_clock_now_ns();
    while (!watchdog_is_stopping(watchdog)) {
        bool is_busy;
        if (watchdog_check_groups(watchdog, &is_busy) == NCCL_NO_MORE) {
            break;
        }
        int64_t now_ns = dd_clock_now_ns();
        if (is_busy) {
            watchdog->busy_ns = now_ns;
        } else {
            atomic_store(&watchdog->is_hurried, false);
        }
        if (now_ns - watchdog->busy_ns < IDLE_STOP_NS) {
            watchdog_nap(watchdog);
        } else if (watchdog_sleep(watchdog) == NCCL_NO_MORE) {
            break;
        }
    }
    note(watchdog, "");
    dd_lock_take(&watchdog->lock);
    watchdog->has_ended = true;
    dd_cond_broadcast(&watchdog->wake);
    dd_lock_release(&watchdog->lock);
    return NULL;
}

/* ---- interface */

dd_status
dd_nccl_watchdog_create(const dd_cuda *cuda, const dd_nccl_watchdog_options *options, dd_nccl_watchdog **out,
                        dd_error *err)
{
    dd_nccl_watchdog *watchdog = dd_mem_zalloc(sizeof *watchdog);
    if (watchdog == NULL) {
        return dd_error_no_memory(err, sizeof *watchdog);
    }
    watchdog->cuda = cuda;
    watchdog->options = *options;
    if (options->interval_ns <= 0) {
        watchdog->options.interval_ns = DEFAULT_INTERVAL_NS;
    }
    if (options->abort_timeout_ns <= 0) {
        watchdog->options.abort_timeout_ns = DEFAULT_ABORT_TIMEOUT_NS;
    }
    watchdog->generation = dd_fork_generation();
    atomic_init(&watchdog->activity, "");
    atomic_init(&watchdog->npolls, 1);
    atomic_init(&watchdog->is_asleep, false);
    atomic_init(&watchdog->is_hurried, false);
    dd_lock_init(&watchdog->lock, DD_LOCK_NCCL_WATCHDOG);
    dd_cond_init(&watchdog->wake);
    dd_list_init(&watchdog->groups);
    *out = watchdog;
    return DD_OK;
}

/* Wait for the watchdog's thread and the threads that abort. False if one hangs in NCCL or CUDA. */
static bool
await_threads(dd_nccl_watchdog *watchdog)
{
    dd_wait wait = dd_wait_after(JOIN_NS);
    bool is_done = false;
    dd_lock_take(&watchdog->lock);
    for (;;) {
        is_done = watchdog->naborts == 0 && watchdog->has_ended == watchdog->is_started;
        if (is_done || dd_wait_has_expired(&wait)) {
            break;
        }
        dd_cond_wait_slice(&watchdog->wake, &watchdog->lock, &wait);
    }
    dd_lock_release(&watchdog->lock);
    return is_done;
}

void
dd_nccl_watchdog_destroy(dd_nccl_watchdog *watchdog)
{
    if (watchdog == NULL || watchdog->generation != dd_fork_generation()) {
        return;
    }
    dd_lock_take(&watchdog->lock);
    watchdog->is_stopping = true;
    bool is_started = watchdog->is_started;
    dd_cond_broadcast(&watchdog->wake);
    dd_lock_release(&watchdog->lock);
    if (!await_threads(watchdog)) {
        if (is_started) {
            dd_thread_detach(watchdog->thread);
        }
        return; /* the remaining threads use the watchdog, so leak it */
    }
    if (is_started) {
        dd_thread_join(watchdog->thread);
    }
    dd_cond_fini(&watchdog->wake);
    dd_lock_fini(&watchdog->lock);
    dd_mem_free(watchdog);
}

dd_status
nccl_watchdog_add(dd_nccl_watchdog *watchdog, dd_nccl_group *group, dd_error *err)
{
    if (watchdog->generation != dd_fork_generation()) {
        return dd_error_set(err, DD_FORKED,
                            "the watchdog of NCCL groups belongs to the process before the fork");
    }
    dd_lock_take(&watchdog->lock);
    dd_status status = DD_OK;
    if (!watchdog->is_started) {
        status = dd_thread_start(&watchdog->thread, "dldist-nccl", run_watchdog, watchdog, err);
        watchdog->is_started = status == DD_OK;
    }
    if (status == DD_OK) {
        dd_list_push_back(&watchdog->groups, &group->link);
        watchdog->ngroups++;
        atomic_store(&watchdog->is_asleep, false);
        dd_cond_broadcast(&watchdog->wake);
    }
    dd_lock_release(&watchdog->lock);
    return status;
}

uint64_t
dd_nccl_watchdog_heartbeat(const dd_nccl_watchdog *watchdog)
{
    return atomic_load(&watchdog->is_asleep) ? 0
                                             : atomic_load_explicit(&watchdog->npolls, memory_order_relaxed);
}

const char *
dd_nccl_watchdog_activity(const dd_nccl_watchdog *watchdog)
{
    return atomic_load_explicit(&watchdog->activity, memory_order_relaxed);
}

void
dd_nccl_watchdog_hurry(dd_nccl_watchdog *watchdog)
{
    if (atomic_exchange(&watchdog->is_hurried, true)) {
        return;
    }
    dd_lock_take(&watchdog->lock);
    dd_cond_broadcast(&watchdog->wake);
    dd_lock_release(&watchdog->lock);
}
