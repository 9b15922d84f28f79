/* Puts, gets and signals that nobody waits for: copies and additions in memory, or notes. */
#include "core/mem.h"
#include "kernels/copy.h"
#include "window/window_internal.h"

#include <string.h>

/* Small puts are copied and sent in the background up to this many bytes; beyond it they wait until the transport has theirs. */
#define KEPT_MAX ((size_t)1 << 20)

static const window_op op_put = {.what = "put", .lack = "taken it", .needs_open = true};
static const window_op op_get = {.what = "get", .lack = "answered", .needs_open = true};
static const window_op op_signal = {
    .what = "signal", .lack = "taken it", .needs_channel = true, .needs_open = true};

/* What is wanted of a rank. */
typedef struct window_move {
    const window_op *op;
    dd_block block; /* source or target */
    dd_window_place place;
    int channel;
} window_move;

/* Source and target may overlap. */
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
move_direct(dd_window *window, const window_move *move)
{
    uint8_t *there = window->members[move->place.rank].data + move->place.offset;
    if (move->block.nbytes > 0) {
        bool is_get = move->op == &op_get;
        copy(is_get ? move->block.data : there, is_get ? there : move->block.data, move->block.nbytes);
    }
    if (move->channel != DD_NO_CHANNEL) {
        window_signal_direct(window, move->place.rank, move->channel);
    }
}

static void
destroy_call(dd_work *work)
{
    dd_mem_free(work);
}

static dd_status
make_call(const dd_window *window, const window_move *move, const dd_call_options *options, int64_t start_ns,
          window_call **out, dd_error *err)
{
    window_call *call = dd_mem_alloc(sizeof *call);
    if (call == NULL) {
        return dd_error_no_memory(err, sizeof *call);
    }
    window_init_call(call, window, move->op, move->place.rank, start_ns);
    call->channel = move->channel;
    call->work.destroy = destroy_call;
    call->work.on_done = options->on_done;
    call->work.ctx = options->ctx;
    int64_t timeout_ns =
        options->timeout_ns >= 0 ? options->timeout_ns : dd_group_get_timeout_ns(window->hub->group);
    call->deadline_ns = timeout_ns < DD_NEVER_NS - start_ns ? start_ns + timeout_ns : DD_NEVER_NS;
    *out = call;
    return DD_OK;
}

/* *is_done: nothing is left to wait for. */
static dd_status
begin_put_locked(dd_window *window, window_call *call, const window_move *move, bool *is_done, dd_error *err)
{
    uint32_t channel = move->channel == DD_NO_CHANNEL ? DD_WINDOW_NO_CHANNEL : (uint32_t)move->channel;
    window_order order = {.rank = call->rank,
                          .note = {.type = DD_WINDOW_PUT,
                                   .channel = channel,
                                   .window = window->id,
                                   .offset = move->place.offset,
                                   .nbytes = move->block.nbytes},
                          .data = move->block.data};
    *is_done = move->block.nbytes <= WINDOW_SMALL_NBYTES && window->hub->kept_nbytes < KEPT_MAX;
    order.put = *is_done ? NULL : call;
    return window_send_put_locked(window, &order, err);
}

static dd_status
begin_get_locked(dd_window *window, window_call *call, const window_move *move, dd_error *err)
{
    call->target = move->block.data;
    call->note = (dd_window_note){.type = DD_WINDOW_GET,
                                  .window = window->id,
                                  .offset = move->place.offset,
                                  .nbytes = move->block.nbytes};
    return window_ask_for_locked(&window->hub->sources[call->rank], call, err);
}

/* By a note. The caller has one reference to the call; the hub has another one while it is under way. */
static dd_status
begin_move(dd_window *window, window_call *call, const window_move *move, dd_error *err)
{
    window_hub *hub = window->hub;
    bool is_done = false;
    dd_engine_lock(hub->engine);
    dd_status status = window_check_locked(window, move->op, call->rank, err);
    if (status == DD_OK) {
        status = move->op == &op_get ? begin_get_locked(window, call, move, err)
                                     : begin_put_locked(window, call, move, &is_done, err);
        if (status != DD_OK) {
            window_describe(hub, move->op->what, window->id, err);
        }
    }
    if (status == DD_OK && !is_done) {
        (void)dd_work_acquire(&call->work);
        window_enter_locked(call);
    } else if (status == DD_OK) {
        (void)dd_work_complete(&call->work, NULL);
    }
    dd_engine_unlock(hub->engine);
    return status;
}

static dd_status
run_move(dd_window *window, const window_move *move, const dd_wait *wait, dd_error *err)
{
    static const dd_call_options by_the_wait = {.timeout_ns = INT64_MAX};
    window_call *call = NULL;
    dd_status status = window_check(window, move->op, move->place, move->block.nbytes, move->channel, err);
    if (status == DD_OK && window->members[move->place.rank].is_direct) {
        move_direct(window, move);
        return DD_OK;
    }
    if (status == DD_OK) {
        status = make_call(window, move, &by_the_wait, wait->start_ns, &call, err);
    }
    if (status != DD_OK) {
        return status;
    }
    call->deadline_ns = wait->deadline_ns;
    status = begin_move(window, call, move, err);
    if (status == DD_OK && dd_work_is_done(&call->work)) {
        dd_engine_kick(window->hub->engine); /* it may still be on its way */
    } else if (status == DD_OK) {
        status = window_finish(call, wait, err);
    }
    dd_work_release(&call->work);
    return window_conclude(window->hub, move->op->what, status, err);
}

static dd_status
post_move(dd_window *window, const window_move *move, const dd_call_options *options, dd_work **work,
          dd_error *err)
{
    window_call *call = NULL;
    dd_status status = window_check(window, move->op, move->place, move->block.nbytes, move->channel, err);
    if (status == DD_OK) {
        status = make_call(window, move, options, dd_clock_now_ns(), &call, err);
    }
    if (status == DD_OK && window->members[move->place.rank].is_direct) {
        move_direct(window, move);
        (void)dd_work_complete(&call->work, NULL);
    } else if (status == DD_OK) {
        status = begin_move(window, call, move, err);
    }
    if (status == DD_OK) {
        *work = &call->work;
    } else if (call != NULL) {
        dd_work_release(&call->work);
    }
    return status;
}

dd_status
dd_window_put(dd_window *window, dd_block source, dd_window_place to, int channel, const dd_wait *wait,
              dd_error *err)
{
    window_move move = {.op = &op_put, .block = source, .place = to, .channel = channel};
    return run_move(window, &move, wait, err);
}

dd_status
dd_window_get(dd_window *window, dd_block target, dd_window_place from, const dd_wait *wait, dd_error *err)
{
    window_move move = {.op = &op_get, .block = target, .place = from, .channel = DD_NO_CHANNEL};
    return run_move(window, &move, wait, err);
}

dd_status
dd_window_post_put(dd_window *window, dd_block source, dd_window_place to, int channel,
                   const dd_call_options *options, dd_work **work, dd_error *err)
{
    window_move move = {.op = &op_put, .block = source, .place = to, .channel = channel};
    return post_move(window, &move, options, work, err);
}

dd_status
dd_window_post_get(dd_window *window, dd_block target, dd_window_place from, const dd_call_options *options,
                   dd_work **work, dd_error *err)
{
    window_move move = {.op = &op_get, .block = target, .place = from, .channel = DD_NO_CHANNEL};
    return post_move(window, &move, options, work, err);
}

dd_status
dd_window_signal(dd_window *window, int rank, int channel, const dd_wait *wait, dd_error *err)
{
    window_move move = {.op = &op_signal, .place = {.rank = rank}, .channel = channel};
    return run_move(window, &move, wait, err);
}
