/* NCCL calls that may connect ranks, and so wait for other ranks on the host. They run on a
 * separate thread, so that the caller can be interrupted. */
#include "nccl/call/internal.h"

/* Return the number of bits of a size: NCCL may change the algorithm at powers of two. */
static unsigned
size_class(size_t nbytes)
{
    unsigned class = 0;
    while (nbytes > 0) {
        class ++;
        nbytes >>= 1;
    }
    return class;
}

static size_t
connected_size(const dd_nccl_group *group, const dd_nccl_op *op)
{
    if (op->kind != DD_NCCL_OP_COLL) {
        return op->block.nbytes;
    }
    const dd_coll_args *args = &op->args;
    bool is_root = args->root == group->rank;
    if (dd_coll_ninputs(args->coll, is_root, group->size) > 0) {
        return args->inputs[0].nbytes;
    }
    return dd_coll_noutputs(args->coll, is_root, group->size) > 0 ? args->outputs[0].nbytes : 0;
}

/* Return a call's bit, by its kind, peer and size; different calls may share a bit. */
static unsigned
connected_bit(const dd_nccl_group *group, const dd_nccl_op *op)
{
    bool is_coll = op->kind == DD_NCCL_OP_COLL;
    unsigned kind = is_coll ? (unsigned)op->args.coll : (unsigned)DD_COLL_COUNT + (unsigned)op->kind;
    unsigned peer = is_coll ? 0 : (unsigned)op->peer;
    return ((kind * 31 + peer) * 67 + size_class(connected_size(group, op))) % NCCL_CONNECTED_BITS;
}

bool
nccl_may_connect(nccl_launch *launch)
{
    nccl_channel *channel = launch->channel;
    if (!channel->is_blocking || launch->group->size == 1 || launch->is_capturing ||
        launch->estimate != NULL || launch->wait->is_interrupted == NULL) {
        return false;
    }
    bool is_new = false;
    for (size_t i = 0; i < launch->call->nops; i++) {
        unsigned bit = connected_bit(launch->group, &launch->call->ops[i]);
        uint64_t mask = UINT64_C(1) << bit % 64;
        is_new = is_new || (channel->connected[bit / 64] & mask) == 0;
        channel->connected[bit / 64] |= mask;
    }
    return is_new;
}

typedef struct thread_launch {
    nccl_launch *launch;
    dd_status (*post)(nccl_launch *launch);
    dd_lock mu;
    pthread_cond_t ended;
    bool is_ended;    /* guarded by mu; the call has returned */
    dd_status status; /* result of the call; owned by the thread until is_ended */
} thread_launch;

static dd_status
enter_and_post(nccl_launch *launch, dd_status (*post)(nccl_launch *launch))
{
    dd_cuda_guard guard;
    dd_status status = nccl_enter(launch->group, launch->channel->device, &guard, launch->err);
    if (status == DD_OK) {
        status = post(launch);
        dd_cuda_leave(&guard);
    }
    return status;
}

static void *
run_on_thread(void *arg)
{
    thread_launch *self = arg;
    self->status = enter_and_post(self->launch, self->post);
    dd_lock_take(&self->mu);
    self->is_ended = true;
    dd_cond_broadcast(&self->ended);
    dd_lock_release(&self->mu);
    return NULL;
}

/* Fail the group, to end NCCL's wait: other ranks depend on the call, so it cannot be withdrawn. */
static void
end_group(const nccl_launch *launch)
{
    dd_error cause;
    char call[128];
    (void)nccl_work_print(launch->work, call);
    dd_error_set(&cause, DD_ABORTED, "%swas interrupted while NCCL connected the ranks", call);
    nccl_origin origin = nccl_work_origin(launch->work);
    nccl_group_end(launch->group, &cause, &origin, NCCL_END_ABORTED);
}

/* Wait for the thread; return true if the caller is interrupted first. Ignores the deadline: the
 * thread uses the caller's arguments, and the watchdog fails the group, which ends the call. */
static bool
is_interrupted_before_end(thread_launch *self)
{
    dd_status status = DD_OK;
    dd_wait wait = dd_wait_without_deadline(self->launch->wait);
    dd_lock_take(&self->mu);
    while (!self->is_ended && status == DD_OK) {
        status = dd_cond_wait_checked(&self->ended, &self->mu, &wait, NULL);
    }
    bool is_interrupted = !self->is_ended;
    dd_lock_release(&self->mu);
    return is_interrupted;
}

dd_status
nccl_post_on_thread(nccl_launch *launch, dd_status (*post)(nccl_launch *launch))
{
    pthread_t thread;
    thread_launch self = {.launch = launch, .post = post};
    dd_lock_init(&self.mu, DD_LOCK_NCCL_TASK);
    dd_cond_init(&self.ended);
    if (dd_thread_start(&thread, "dld-nccl-call", run_on_thread, &self, NULL) == DD_OK) {
        if (is_interrupted_before_end(&self)) {
            end_group(launch);
        }
        dd_thread_join(thread);
    } else {
        self.status = post(launch);
    }
    dd_cond_fini(&self.ended);
    dd_lock_fini(&self.mu);
    return self.status;
}
