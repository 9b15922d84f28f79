/* Windows of an NCCL group, and one-sided operations, with the stubs. */
#include "check.h"
#include "nccl/window.h"
#include "nccl_rig.h"

#include <string.h>

#define COUNT 16

typedef struct opened {
    int32_t *data;
    dd_nccl_group_window *window;
} opened;

static int32_t *
allocate(const nccl_rig_rank *self)
{
    void *data = NULL;
    CHECK_INT(self->rig->lib->api.ncclMemAlloc(&data, COUNT * sizeof(int32_t)), DD_NCCL_SUCCESS);
    memset(data, 0, COUNT * sizeof(int32_t));
    return data;
}

static dd_nccl_window_spec
spec_of(const nccl_rig_rank *self, int32_t *data)
{
    return (dd_nccl_window_spec){
        .device = self->rank, .data = data, .nbytes = COUNT * sizeof *data, .dtype = DD_DTYPE_INT32};
}

static opened
open_window(const nccl_rig_rank *self)
{
    opened made = {.data = allocate(self)};
    dd_nccl_window_spec spec = spec_of(self, made.data);
    dd_wait wait = nccl_rig_patience();
    CHECK_OK(dd_nccl_group_window_open(self->group, &spec, &made.window, &wait, check_err()));
    return made;
}

static void
close_window(const nccl_rig_rank *self, const opened *made)
{
    dd_wait wait = nccl_rig_patience();
    CHECK_OK(dd_nccl_group_window_close(made->window, &wait, check_err()));
    CHECK(!dd_nccl_group_window_is_open(made->window));
    dd_nccl_group_window_release(made->window);
    CHECK_INT(self->rig->lib->api.ncclMemFree(made->data), DD_NCCL_SUCCESS);
}

static dd_nccl_op
put_of(const opened *made, int peer)
{
    return (dd_nccl_op){.kind = DD_NCCL_OP_PUT,
                        .block = {made->data, sizeof(int32_t)},
                        .dtype = DD_DTYPE_INT32,
                        .peer = peer,
                        .window = made->window,
                        .offset = sizeof(int32_t)};
}

static dd_nccl_op
wait_of(const opened *made, int peer, int count)
{
    return (dd_nccl_op){.kind = DD_NCCL_OP_WAIT_SIGNAL, .peer = peer, .window = made->window, .count = count};
}

static void
ring_body(nccl_rig_rank *self)
{
    if (!dd_nccl_has(self->rig->lib, DD_NCCL_CAN_PUT_SIGNAL)) {
        return;
    }
    opened made = open_window(self);
    int before = (self->rank + self->size - 1) % self->size;
    made.data[0] = self->rank + 1;
    dd_nccl_op ops[] = {put_of(&made, (self->rank + 1) % self->size), wait_of(&made, before, 1)};
    for (int i = 0; i < 2; i++) {
        dd_nccl_call call = nccl_rig_call(self, i == 0 ? "put" : "wait_signal", &ops[i], 1);
        CHECK_OK(nccl_rig_do(self, &call, check_err()));
    }
    CHECK_INT(made.data[1], before + 1);
    nccl_rig_meet(self); /* no rank puts again before all have checked */
    /* Both operations in one group. */
    made.data[0] += 10;
    dd_nccl_call call = nccl_rig_call(self, "batch", ops, 2);
    CHECK_OK(nccl_rig_do(self, &call, check_err()));
    CHECK_INT(made.data[1], before + 11);
    close_window(self, &made);
}

TEST(puts_of_each_rank_to_the_next_one_arrive)
{
    nccl_rig_run_all(ring_body, NULL);
}

static void
refusals_body(nccl_rig_rank *self)
{
    opened made = open_window(self);
    opened gone = open_window(self);
    dd_nccl_op op = put_of(&made, 1 - self->rank);
    op.offset = COUNT * sizeof(int32_t);
    dd_nccl_call call = nccl_rig_call(self, "put", &op, 1);
    CHECK_INT(nccl_rig_do(self, &call, check_err()), DD_INVALID_ARGUMENT);
    op = put_of(&made, 1 - self->rank);
    int32_t *other = allocate(self);
    op.block.data = other;
    CHECK_INT(nccl_rig_do(self, &call, check_err()), DD_INVALID_ARGUMENT);
    op = put_of(&made, 1 - self->rank);
    op.block.data = gone.data; /* belongs to another window, which is open */
    CHECK_OK(nccl_rig_do(self, &call, check_err()));
    dd_nccl_group_window_acquire(gone.window);
    close_window(self, &gone);
    CHECK_INT(nccl_rig_do(self, &call, check_err()), DD_INVALID_ARGUMENT);
    op = wait_of(&gone, 1 - self->rank, 1);
    CHECK_INT(nccl_rig_do(self, &call, check_err()), DD_CLOSED);
    dd_wait wait = nccl_rig_patience();
    CHECK_OK(dd_nccl_group_window_close(gone.window, &wait, check_err()));
    dd_nccl_group_window_release(gone.window);

    /* If one rank cannot take part, or calls with other arguments, all ranks receive the error and
     * stay usable. */
    dd_nccl_window_spec spec = spec_of(self, other);
    dd_nccl_group_window *none = NULL;
    spec.obstacle = self->rank == 1 ? DD_OUT_OF_MEMORY : DD_OK;
    wait = nccl_rig_patience();
    CHECK_INT(dd_nccl_group_window_open(self->group, &spec, &none, &wait, check_err()), DD_OUT_OF_MEMORY);
    spec = spec_of(self, other);
    spec.nbytes -= (size_t)self->rank;
    CHECK_INT(dd_nccl_group_window_open(self->group, &spec, &none, &wait, check_err()), DD_MISMATCH);
    CHECK(none == NULL);
    int32_t *plain = nccl_rig_alloc(self, COUNT * sizeof *plain);
    spec = spec_of(self, self->rank == 1 ? plain : other);
    CHECK_INT(dd_nccl_group_window_open(self->group, &spec, &none, &wait, check_err()), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(),
                   self->rank == 1 ? "it must be from ncclMemAlloc" : "rank 1 cannot open its part");
    CHECK_INT(self->rig->nccl_stub.calls("ncclCommWindowRegister"), 2 * self->size);
    nccl_rig_free(self, plain);
    op = wait_of(&made, 1 - self->rank, 1);
    CHECK_OK(nccl_rig_do(self, &call, check_err()));
    CHECK_INT(self->rig->lib->api.ncclMemFree(other), DD_NCCL_SUCCESS);
    close_window(self, &made);
}

/* Open a window of the same group on another of the rank's devices. */
static opened
open_window_on(const nccl_rig_rank *self, int device)
{
    opened made = {.data = NULL};
    dd_cuda_guard guard;
    CHECK_OK(dd_cuda_enter(self->rig->cuda, device, &guard, check_err()));
    made.data = allocate(self);
    dd_nccl_window_spec spec = spec_of(self, made.data);
    spec.device = device;
    dd_wait wait = nccl_rig_patience();
    CHECK_OK(dd_nccl_group_window_open(self->group, &spec, &made.window, &wait, check_err()));
    dd_cuda_leave(&guard);
    return made;
}

static void
devices_body(nccl_rig_rank *self)
{
    int other = self->size + self->rank;
    int peer = 1 - self->rank;
    opened here = open_window(self);
    opened there = open_window_on(self, other);
    dd_nccl_op op = put_of(&here, peer);
    op.block.data = there.data;
    dd_nccl_call call = nccl_rig_call(self, "put", &op, 1);
    CHECK_INT(nccl_rig_do(self, &call, check_err()), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "put: NCCL needs a tensor that is in a window of this group");
    op = put_of(&there, peer); /* a window of the other device, in a call on this device */
    CHECK_INT(nccl_rig_do(self, &call, check_err()), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "put: the window belongs to another group or device");
    /* On the other device the call succeeds. */
    there.data[0] = self->rank + 1;
    call.device = other;
    call.nstreams = 0;
    CHECK_OK(nccl_rig_do(self, &call, check_err()));
    op = wait_of(&there, peer, 1);
    CHECK_OK(nccl_rig_do(self, &call, check_err()));
    CHECK_INT(there.data[1], peer + 1);
    close_window(self, &there);
    close_window(self, &here);
}

TEST(invalid_windows_and_puts_are_refused)
{
    nccl_rig_run(&(nccl_rig_options){.size = 2}, refusals_body, NULL);
    nccl_rig_run(&(nccl_rig_options){.size = 2}, devices_body, NULL);
}

/* The group ends first, during a wait; the window, and the objects that hold it, end later. */
static void
abort_body(nccl_rig_rank *self)
{
    opened made = open_window(self);
    dd_nccl_op op = wait_of(&made, 1 - self->rank, 1);
    dd_nccl_call call = nccl_rig_call(self, "wait_signal", &op, 1);
    dd_nccl_work *work = NULL;
    CHECK_OK(nccl_rig_start(self, &call, &work, check_err()));
    dd_wait wait = nccl_rig_patience();
    CHECK_OK(dd_nccl_group_abort(self->group, "enough", &wait, check_err()));
    CHECK_INT(nccl_rig_wait(work, check_err()), DD_ABORTED);
    dd_work_release(&work->base);
    close_window(self, &made);
}

TEST(an_abort_ends_a_wait_for_a_signal)
{
    nccl_rig_run(&(nccl_rig_options){.size = 2, .is_not_closed = true}, abort_body, NULL);
    nccl_rig_run(&(nccl_rig_options){.size = 2, .is_not_closed = true, .is_nonblocking = true}, abort_body,
                 NULL);
}

static void
too_old_body(nccl_rig_rank *self)
{
    int32_t *data = allocate(self);
    dd_nccl_window_spec spec = spec_of(self, data);
    dd_nccl_group_window *none = NULL;
    dd_wait wait = nccl_rig_patience();
    dd_error err;
    CHECK_INT(dd_nccl_group_window_open(self->group, &spec, &none, &wait, &err), DD_NOT_SUPPORTED);
    CHECK_CONTAINS(err.message, "2.29.2");
    CHECK_INT(self->rig->lib->api.ncclMemFree(data), DD_NCCL_SUCCESS);
}

TEST(windows_are_refused_if_nccl_is_too_old)
{
    nccl_rig_run(&(nccl_rig_options){.size = 2, .version = "2.28.7"}, too_old_body, NULL);
}
