/* Waiting for peers while a group is being created, and has no run to carry out collectives. */
#include "group/internal.h"

typedef struct awaiting {
    dd_task task; /* in the engine until is_ready has returned true */
    dd_engine *engine;
    bool (*is_ready)(void *ctx);
    void *ctx;
    atomic_bool is_done;
} awaiting;

static bool
check_awaited(awaiting *self)
{
    if (!self->is_ready(self->ctx)) {
        return false;
    }
    dd_engine_remove_task_locked(self->engine, &self->task);
    atomic_store_explicit(&self->is_done, true, memory_order_release);
    dd_engine_note_ended_locked(self->engine);
    return true;
}

static bool
await_on_round(dd_task *task)
{
    return check_awaited(DD_CONTAINER_OF(task, awaiting, task));
}

/* Let the driver sleep, unless is_ready has become true while another thread had the lock. */
static bool
await_fall_asleep(dd_task *task)
{
    awaiting *self = DD_CONTAINER_OF(task, awaiting, task);
    return !self->is_ready(self->ctx);
}

dd_status
dd_group_await(dd_group *group, bool (*is_ready)(void *ctx), void *ctx, const dd_wait *wait, dd_error *err)
{
    awaiting self = {
        .task = {.progress = await_on_round,
                 .fall_asleep = await_fall_asleep,
                 .is_crowded = true, /* yield: the threads that create links need the cores */
                 .is_outnumbered = group->is_crowded},
        .engine = group->engine,
        .is_ready = is_ready,
        .ctx = ctx,
    };
    dd_status status = dd_engine_check_fork(group->engine, err);
    if (status != DD_OK) {
        return status;
    }
    dd_list_init(&self.task.link);
    dd_engine_lock(group->engine);
    dd_engine_add_task_locked(group->engine, &self.task);
    (void)check_awaited(&self);
    dd_engine_unlock(group->engine);
    status = dd_engine_wait(group->engine, &self.is_done, wait, err);
    dd_engine_lock(group->engine);
    dd_engine_remove_task_locked(group->engine, &self.task);
    dd_engine_unlock(group->engine);
    return status;
}
