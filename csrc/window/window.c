/* Operations on windows: copies and additions in the memory of direct ranks; calls for far
 * ranks. */
#include "core/system.h"
#include "core/wait_policy.h"
#include "kernels/copy.h"
#include "window/window_internal.h"

#include <string.h>

static const window_op op_put = {
    .label = "put", .missing = "received it", .command = DD_WINDOW_PUT, .needs_open = true};
static const window_op op_get = {
    .label = "get", .missing = "answered", .command = DD_WINDOW_GET, .needs_open = true};
static const window_op op_signal = {.label = "signal",
                                    .missing = "received it",
                                    .command = DD_WINDOW_PUT,
                                    .needs_channel = true,
                                    .needs_open = true};
static const window_op op_alone = {.label = "signal_alone",
                                   .missing = "received the signal",
                                   .word = WINDOW_WORD_ROOM,
                                   .command = DD_WINDOW_SIGNAL_ALONE,
                                   .needs_channel = true,
                                   .needs_open = true};
/* wait_signal works even if the other rank has closed the window: its earlier signals count. */
static const window_op op_wait = {
    .label = "wait_signal", .missing = "signalled", .word = WINDOW_WORD_SIGNAL, .needs_channel = true};
/* A flush is a get of no bytes, which is answered after all earlier commands have been handled. */
static const window_op op_flush = {.label = "flush", .missing = "answered", .command = DD_WINDOW_GET};

/* ---- without a call */

static void
copy(void *dst, const void *src, size_t nbytes)
{
    uintptr_t to = (uintptr_t)dst;
    uintptr_t from = (uintptr_t)src;
    if (to < from + nbytes && from < to + nbytes) {
        memmove(dst, src, nbytes);
    } else {
        dd_copy(dst, src, nbytes);
    }
}

static void
move_direct(dd_window *window, const window_args *args)
{
    const window_member *member = &window->members[args->target.rank];
    if (args->block.nbytes > 0) {
        uint8_t *address = member->data + args->target.offset;
        bool is_get = args->op == &op_get;
        copy(is_get ? args->block.data : address, is_get ? address : args->block.data, args->block.nbytes);
    }
    if (args->channel != DD_NO_CHANNEL) {
        atomic_fetch_add(&member->words[window_word(window, args->channel, window->hub->rank)], 1);
        window_wake(window, args->target.rank);
    }
}

/* Poll for a short time, without the lock. Return true if the signal was taken or added. */
static bool
try_signal_soon(const dd_window *window, const window_args *args)
{
    bool is_crowded = window->hub->task.is_crowded;
    bool is_direct = window->members[args->target.rank].is_direct;
    int npolls = !is_direct ? 0 : is_crowded ? DD_POLLS_OF_WORD_CROWDED : DD_POLLS_OF_WORD;
    while (!window_try_word(window, args)) {
        if (npolls-- == 0) {
            return false;
        }
        if (is_crowded) {
            (void)dd_sys_sched_yield();
        } else {
            dd_spin_pause();
        }
    }
    return true;
}

/* Try to complete the operation without a call. Return true if it is done. */
static bool
try_at_once(dd_window *window, const window_args *args)
{
    if (args->op->word != WINDOW_NO_WORD) {
        return try_signal_soon(window, args);
    }
    if (!window->members[args->target.rank].is_direct) {
        return false;
    }
    move_direct(window, args);
    return true;
}

/* ---- with a call */

static dd_status
make_call(dd_window *window, const window_args *args, int64_t start_ns, int64_t deadline_ns,
          window_call **out, dd_error *err)
{
    bool uses_messages = !window->members[args->target.rank].is_direct;
    bool is_small_put = args->op->command == DD_WINDOW_PUT && args->block.nbytes <= WINDOW_SMALL_NBYTES;
    size_t data_nbytes = uses_messages && is_small_put ? args->block.nbytes : 0;
    window_call *call =
        window_make_call(window->hub, args->target.rank, args->op->label, start_ns, data_nbytes);
    if (call == NULL) {
        return dd_error_no_memory(err, sizeof *call + data_nbytes);
    }
    if (data_nbytes > 0) {
        memcpy(call->bytes, args->block.data, data_nbytes);
    }
    call->args = *args;
    call->window = window;
    call->window_id = window->id;
    call->deadline_ns = deadline_ns;
    call->uses_messages = uses_messages;
    *out = call;
    return DD_OK;
}

static dd_status
start(dd_window *window, const window_args *args, const dd_wait *wait, window_call **call, dd_error *err)
{
    dd_status status = make_call(window, args, wait->start_ns, wait->deadline_ns, call, err);
    if (status == DD_OK && (status = window_begin(*call, err)) != DD_OK) {
        dd_work_release(&(*call)->work);
    }
    return status;
}

static dd_status
window_run(dd_window *window, const window_args *args, const dd_wait *wait, dd_error *err)
{
    window_call *call = NULL;
    dd_status status = window_check(window, args, err);
    if (status != DD_OK || try_at_once(window, args)) {
        return status;
    }
    status = start(window, args, wait, &call, err);
    if (status == DD_OK) {
        status = window_finish(call, wait, err);
        if (status == DD_OK && call->uses_messages) {
            dd_engine_kick(window->hub->engine); /* wake a driver to finish sending */
        }
        dd_work_release(&call->work);
    }
    return window_end_failed(window->hub, args->op->label, status, err);
}

static dd_status
post(dd_window *window, const window_args *args, const dd_call_options *options, dd_work **work,
     dd_error *err)
{
    window_call *call = NULL;
    int64_t start_ns = dd_clock_now_ns();
    int64_t timeout_ns =
        options->timeout_ns >= 0 ? options->timeout_ns : dd_group_get_timeout_ns(window->hub->group);
    int64_t deadline_ns = timeout_ns < DD_NEVER_NS - start_ns ? start_ns + timeout_ns : DD_NEVER_NS;
    dd_status status = window_check(window, args, err);
    if (status == DD_OK) {
        status = make_call(window, args, start_ns, deadline_ns, &call, err);
    }
    if (status != DD_OK) {
        return status;
    }
    call->work.on_done = options->on_done;
    call->work.ctx = options->ctx;
    if (try_at_once(window, args)) {
        (void)dd_work_complete(&call->work, NULL);
    } else {
        status = window_begin(call, err);
    }
    if (status == DD_OK) {
        *work = &call->work;
    } else {
        dd_work_release(&call->work);
    }
    return status;
}

dd_status
dd_window_put(dd_window *window, dd_block source, dd_window_target to, int channel, const dd_wait *wait,
              dd_error *err)
{
    return window_run(window, &(window_args){&op_put, source, to, channel}, wait, err);
}

dd_status
dd_window_get(dd_window *window, dd_block target, dd_window_target from, const dd_wait *wait, dd_error *err)
{
    return window_run(window, &(window_args){&op_get, target, from, DD_NO_CHANNEL}, wait, err);
}

dd_status
dd_window_post_put(dd_window *window, dd_block source, dd_window_target to, int channel,
                   const dd_call_options *options, dd_work **work, dd_error *err)
{
    return post(window, &(window_args){&op_put, source, to, channel}, options, work, err);
}

dd_status
dd_window_post_get(dd_window *window, dd_block target, dd_window_target from, const dd_call_options *options,
                   dd_work **work, dd_error *err)
{
    return post(window, &(window_args){&op_get, target, from, DD_NO_CHANNEL}, options, work, err);
}

static window_args
about_signal(const window_op *op, int rank, int channel)
{
    return (window_args){.op = op, .target = {.rank = rank}, .channel = channel};
}

dd_status
dd_window_signal(dd_window *window, int rank, int channel, const dd_wait *wait, dd_error *err)
{
    window_args args = about_signal(&op_signal, rank, channel);
    return window_run(window, &args, wait, err);
}

dd_status
dd_window_signal_alone(dd_window *window, int rank, int channel, const dd_wait *wait, dd_error *err)
{
    window_args args = about_signal(&op_alone, rank, channel);
    dd_status status = window_run(window, &args, wait, err);
    if (status == DD_OK && window->members[rank].is_direct) {
        window_wake(window, rank);
    }
    return status;
}

dd_status
dd_window_wait_signal(dd_window *window, int rank, int channel, const dd_wait *wait, dd_error *err)
{
    window_args args = about_signal(&op_wait, rank, channel);
    dd_status status = window_run(window, &args, wait, err);
    if (status == DD_OK) {
        window_on_signal_taken(window, rank);
    }
    return status;
}

/* ---- operations on all ranks */

static bool
window_is_in_place(const dd_window *window, int rank)
{
    dd_engine_lock(window->hub->engine);
    bool is_all = window->members[rank].nputs == window->members[rank].ninplace;
    dd_engine_unlock(window->hub->engine);
    return is_all;
}

dd_status
dd_window_flush(dd_window *window, const dd_wait *wait, dd_error *err)
{
    window_hub *hub = window->hub;
    window_args args = about_signal(&op_flush, hub->rank, DD_NO_CHANNEL);
    dd_status status = window_check(window, &args, err);
    if (status != DD_OK || !window->needs_messages) {
        return status;
    }
    window_call *calls = NULL; /* start the flushes of all ranks before waiting for one */
    for (int rank = 0; rank < hub->size && status == DD_OK; rank++) {
        window_call *call = NULL;
        args.target.rank = rank;
        if (!window_is_in_place(window, rank) && (status = start(window, &args, wait, &call, err)) == DD_OK) {
            call->next = calls;
            calls = call;
        }
    }
    for (window_call *call = calls; call != NULL; call = calls) {
        calls = call->next;
        if (status == DD_OK) {
            status = window_finish(call, wait, err);
        } else {
            window_abandon(call);
        }
        dd_work_release(&call->work);
    }
    return window_end_failed(hub, op_flush.label, status, err);
}

dd_status
dd_window_barrier(dd_window *window, int channel, const dd_wait *wait, dd_error *err)
{
    int size = window->hub->size;
    int rank = window->hub->rank;
    dd_status status = window->needs_messages ? dd_window_flush(window, wait, err) : DD_OK;
    for (int step = 0; step < size && status == DD_OK; step++) {
        status = dd_window_signal_alone(window, (rank + step) % size, channel, wait, err);
    }
    for (int step = 0; step < size && status == DD_OK; step++) {
        status = dd_window_wait_signal(window, (rank + size - step) % size, channel, wait, err);
    }
    return status;
}
