/* The thread of a oneCCL communicator, and the process's turn to use oneCCL. */
#include "core/list.h"
#include "core/mem.h"
#include "xccl/xccl_internal.h"

/* interval between attempts to take the turn; polled because releasing the turn wakes no thread */
#define TURN_NAP_NS DD_NS_PER_MS

/* ---- turns */

/* true while a thread of the process holds the turn */
static atomic_bool is_turn_taken; /* a lock: taken with acquire, released with release */

bool
xccl_try_turn(void)
{
    return !atomic_exchange_explicit(&is_turn_taken, true, memory_order_acquire);
}

void
xccl_end_turn(void)
{
    atomic_store_explicit(&is_turn_taken, false, memory_order_release);
}

dd_status
xccl_await_turn(const dd_wait *wait, dd_error *err)
{
    if (dd_wait_has_expired(wait)) {
        return dd_error_set(
            err, DD_OP_TIMED_OUT,
            "oneCCL creates one communicator at a time: this process, or another rank's, was busy with "
            "another one for %.3g s",
            dd_wait_elapsed_s(wait));
    }
    return dd_wait_sleep(wait, TURN_NAP_NS, err);
}

dd_status
xccl_take_turn(const dd_wait *wait, dd_error *err)
{
    dd_status status = DD_OK;
    while (status == DD_OK && !xccl_try_turn()) {
        status = xccl_await_turn(wait, err);
    }
    return status;
}

/* ---- jobs */

static xccl_job
read_job(const xccl_carrier *self)
{
    return (xccl_job)atomic_load_explicit(&self->job, memory_order_acquire);
}

bool
xccl_is_idle(const xccl_carrier *self)
{
    return read_job(self) == XCCL_IDLE;
}

static void
set_job_locked(xccl_carrier *self, xccl_job job)
{
    atomic_store_explicit(&self->job, job, memory_order_release);
    dd_cond_broadcast(&self->changed);
}

void
xccl_post(xccl_carrier *self, xccl_job job)
{
    dd_lock_take(&self->mu);
    if (job == XCCL_GET_ID || job == XCCL_JOIN || job == XCCL_END) {
        self->has_turn = true;
    }
    set_job_locked(self, job);
    dd_lock_release(&self->mu);
}

/* Wait for the end of the job, at most a slice of `wait`; then check if the group has failed. */
static dd_status
await_job_end(xccl_carrier *self, dd_group *group, const dd_wait *wait, dd_error *err)
{
    dd_lock_take(&self->mu);
    dd_status status =
        xccl_is_idle(self) ? DD_OK : dd_cond_wait_checked(&self->changed, &self->mu, wait, err);
    dd_lock_release(&self->mu);
    return status == DD_OK ? dd_group_check(group, err) : status;
}

static const char *
job_name(xccl_job job)
{
    return job == XCCL_GET_ID ? "onecclGetUniqueId" : "onecclCommInitRank";
}

dd_status
xccl_do(xccl_carrier *self, xccl_job job, dd_group *group, const dd_wait *wait, dd_error *err)
{
    dd_status status = DD_OK;
    xccl_post(self, job);
    while (!xccl_is_idle(self) && status == DD_OK) {
        status = await_job_end(self, group, wait, err);
    }
    if (xccl_is_idle(self)) {
        return self->status == DD_OK ? DD_OK : dd_error_copy(err, &self->error);
    }
    if (status == DD_TIMED_OUT) {
        status = dd_error_set(err, DD_OP_TIMED_OUT, "%s of rank %d of %d did not return within %.3g s",
                              job_name(job), self->rank, self->nranks, dd_wait_elapsed_s(wait));
    }
    return status;
}

/* ---- the thread's functions */

static xccl_job
await_job(xccl_carrier *self)
{
    while (xccl_is_idle(self) && dd_spin_may_continue(&self->spin)) {
    }
    dd_lock_take(&self->mu);
    while (xccl_is_idle(self)) {
        dd_cond_wait(&self->changed, &self->mu);
    }
    dd_lock_release(&self->mu);
    dd_spin_end_wait(&self->spin);
    return read_job(self);
}

static void
end_turn(xccl_carrier *self)
{
    if (self->has_turn) {
        self->has_turn = false;
        xccl_end_turn();
    }
}

static dd_status
run_with_turn(xccl_carrier *self, xccl_job job, dd_error *err)
{
    const xccl_api *api = &self->library->api;
    xccl_result result =
        job == XCCL_GET_ID ? api->onecclGetUniqueId(&self->id)
                           : api->onecclCommInitRank(&self->comm, (size_t)self->nranks, self->id, self->rank);
    end_turn(self);
    return xccl_check(self, result, job_name(job), err);
}

/* Set the thread idle after `job`; but if the caller posted XCCL_ABANDON since, keep that job. */
static void
end_job(xccl_carrier *self, xccl_job job)
{
    dd_lock_take(&self->mu);
    if (read_job(self) == job) {
        set_job_locked(self, XCCL_IDLE);
    }
    dd_lock_release(&self->mu);
}

static void
run_thread(dd_background_task *task)
{
    xccl_carrier *self = DD_CONTAINER_OF(task, xccl_carrier, thread);
    xccl_job job = await_job(self);
    while (job != XCCL_ABANDON && job != XCCL_END) {
        self->status = job == XCCL_CALL ? xccl_call(self, &self->call, &self->error)
                                        : run_with_turn(self, job, &self->error);
        end_job(self, job);
        job = await_job(self);
    }
    if (job == XCCL_END) {
        (void)self->library->api.onecclCommDestroy(self->comm);
    }
    end_turn(self); /* a job that XCCL_ABANDON replaced has not released its turn */
}

static void
xccl_free_carrier(dd_background_task *task)
{
    xccl_carrier *self = DD_CONTAINER_OF(task, xccl_carrier, thread);
    dd_lock_fini(&self->mu);
    dd_cond_fini(&self->changed);
    dd_mem_free(self->counts);
    dd_mem_free(self);
}

dd_status
xccl_create(const xccl_library *library, const dd_group *group, xccl_carrier **carrier, dd_error *err)
{
    int nranks = dd_group_size(group);
    xccl_carrier *self = dd_mem_zalloc(sizeof *self);
    size_t *counts = dd_mem_alloc_array(2 * (size_t)nranks, sizeof *counts);
    if (self == NULL || counts == NULL) {
        dd_mem_free(self);
        dd_mem_free(counts);
        return dd_error_no_memory(err, sizeof *self + 2 * (size_t)nranks * sizeof *counts);
    }
    self->library = library;
    self->rank = dd_group_rank(group);
    self->nranks = nranks;
    self->counts = counts;
    self->spin = dd_spin_create(DD_POLL_THREAD_NS);
    atomic_init(&self->job, XCCL_IDLE);
    dd_lock_init(&self->mu, DD_LOCK_BACKGROUND_TASK);
    dd_cond_init(&self->changed);
    self->thread = (dd_background_task){.run = run_thread, .free = xccl_free_carrier};
    dd_status status = dd_background_task_start(&self->thread, "dldist-xccl", err);
    if (status == DD_OK) {
        *carrier = self;
    }
    return status;
}
