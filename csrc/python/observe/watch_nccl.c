/* NCCL groups in the monitor: a failure on one rank is reported to the other ranks, and fails the
 * group there. */
#include "core/mem.h"
#include "core/thread.h"
#include "python/nccl/nccl.h"
#include "python/observe/watch.h"

typedef struct failure {
    dd_nccl_group *group; /* owned reference to the core's group */
    dd_error cause;
} failure;

static void *
run_failure(void *arg)
{
    failure *report = arg;
    dd_nccl_group_fail(report->group, &report->cause);
    dd_nccl_group_release(report->group);
    dd_mem_free(report);
    return NULL;
}

/* Fail the group on a new thread, because releasing the events of completed works may hang in the
 * driver. */
static void
member_fail_nccl(void *ctx, const dd_error *cause)
{
    pthread_t thread;
    failure *report = dd_mem_alloc(sizeof *report);
    if (report == NULL) {
        dd_nccl_group_fail(ctx, cause);
        return;
    }
    *report = (failure){.group = dd_nccl_group_acquire(ctx), .cause = *cause};
    if (dd_thread_start(&thread, "dldist-fail", run_failure, report, NULL) == DD_OK) {
        pthread_detach(thread);
    } else {
        run_failure(report);
    }
}

static void
member_release_nccl(void *ctx)
{
    dd_nccl_group_release(ctx);
}

static uint64_t
count_beats(void *ctx)
{
    return dd_nccl_watchdog_heartbeat(ctx);
}

static const char *
name_activity(void *ctx)
{
    return dd_nccl_watchdog_activity(ctx);
}

int
py_watch_add_nccl(py_group *self)
{
    py_nccl_core *core = self->nccl;
    if (self->size < 2) {
        return 0;
    }
    const dd_monitor_member member = {.is_device = true,
                                      .fail = member_fail_nccl,
                                      .release = member_release_nccl,
                                      .ctx = dd_nccl_group_acquire(core->group)};
    uint64_t id = 0;
    if (py_watch_add(self, &member, &id) < 0) {
        return -1;
    }
    atomic_store(&core->watch_id, id);
    dd_monitor_heartbeat heartbeat = {
        .count = count_beats, .activity = name_activity, .ctx = self->state->nccl->watchdog};
    py_watch_heartbeat(self->state, &heartbeat);
    return 0;
}

void
py_watch_remove_nccl(py_group *self)
{
    py_watch_remove(self->state, atomic_exchange(&self->nccl->watch_id, 0));
}
