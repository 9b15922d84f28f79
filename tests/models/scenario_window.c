/* csrc/window/window.c and window_call.c: signals and data in memory that both ranks map, and ranks
 * that sleep until a signal arrives. The engine is an uncontended lock for each process, and the
 * task of the windows, which is driven as the engine drives it. */
#include "models/checker.h"

#include "core/mem.h"
#include "window/window_internal.h"

#include <string.h>

#define NRANKS 2
#define NCHANNELS 2

/* The memory of a rank. */
typedef struct rank_memory {
    _Alignas(128) uint64_t data[2];
    _Alignas(128) _Atomic uint32_t words[NCHANNELS * NRANKS];
    window_control control;
} rank_memory;

static rank_memory memories[NRANKS];
static dd_window *windows[NRANKS];
static checker_bell bells[NRANKS];
static const window_op op_wait = {
    .label = "wait_signal", .missing = "signalled", .word = WINDOW_WORD_SIGNAL, .needs_channel = true};
static const window_op op_alone = {.label = "signal_alone",
                                   .missing = "taken",
                                   .word = WINDOW_WORD_ROOM,
                                   .needs_channel = true,
                                   .needs_open = true};

/* ---- functions of groups and engines that windows call */

void
dd_engine_lock(dd_engine *engine)
{
    (void)engine;
}

void
dd_engine_unlock(dd_engine *engine)
{
    (void)engine;
}

dd_status
dd_engine_check_fork(const dd_engine *engine, dd_error *err)
{
    (void)engine;
    (void)err;
    return DD_OK;
}

void
dd_engine_add_task_locked(dd_engine *engine, dd_task *task)
{
    (void)engine;
    (void)task;
}

void
dd_engine_remove_task_locked(dd_engine *engine, dd_task *task)
{
    (void)engine;
    (void)task;
}

/* No call of a scenario has a deadline. */
void
dd_engine_start_timer_locked(dd_engine *engine, dd_timer *timer, int64_t at_ns)
{
    (void)engine;
    (void)timer;
    (void)at_ns;
}

void
dd_engine_note_ended_locked(dd_engine *engine)
{
    (void)engine;
}

void
dd_engine_receive_locked(dd_engine *engine)
{
    (void)engine;
}

void
dd_engine_finish_notices_locked(dd_engine *engine)
{
    (void)engine;
}

void
dd_engine_kick(dd_engine *engine)
{
    (void)engine;
}

dd_status
dd_engine_wait(dd_engine *engine, const atomic_bool *is_done, const dd_wait *wait, dd_error *err)
{
    (void)engine;
    (void)is_done;
    (void)wait;
    return dd_error_set(err, DD_SYSTEM, "a scenario does not wait here");
}

void
dd_peer_ring_bell_locked(dd_peer *peer)
{
    checker_ring((checker_bell *)(void *)peer, 1);
}

void
dd_group_update_extension_locked(dd_group *group)
{
    (void)group;
}

bool
dd_group_has_left_locked(const dd_group *group, int rank)
{
    (void)group;
    (void)rank;
    return false;
}

const dd_error *
dd_group_cause_locked(const dd_group *group)
{
    (void)group;
    return NULL;
}

dd_status
dd_group_check_usable_locked(dd_group *group, const char *label, dd_error *err)
{
    (void)group;
    (void)label;
    (void)err;
    return DD_OK;
}

dd_status
dd_group_error_about(const dd_group *group, int rank, dd_status code, const char *label, dd_error *err)
{
    (void)group;
    return dd_error_set(err, code, "rank %d %s", rank, label);
}

dd_bytes
dd_group_name(const dd_group *group)
{
    (void)group;
    return (dd_bytes){0};
}

int64_t
dd_group_get_timeout_ns(dd_group *group)
{
    (void)group;
    return 0;
}

void
dd_context_expect_locked(dd_context *context, int rank, bool is_more)
{
    (void)context;
    (void)rank;
    (void)is_more;
}

dd_status
window_send_call_locked(window_call *call, dd_error *err)
{
    (void)call;
    return dd_error_set(err, DD_SYSTEM, "there are no far ranks");
}

void
window_abandon_message_locked(window_call *call, const dd_error *cause)
{
    (void)call;
    (void)cause;
}

bool
window_copy_wanted_locked(window_hub *hub)
{
    (void)hub;
    return false;
}

/* Same as in window_messages.c, if all targets are direct. */
void
window_on_signal_taken(dd_window *window, int source)
{
    window_wake(window, source);
}

/* ---- setups */

static window_hub *
make_hub(int rank)
{
    window_hub *hub = checker_alloc(sizeof *hub);
    dd_peer **peers = checker_alloc(NRANKS * sizeof *peers);
    for (int k = 0; k < NRANKS; k++) {
        peers[k] = (dd_peer *)(void *)&bells[k];
    }
    hub->rank = rank;
    hub->size = NRANKS;
    hub->extension.peers = peers;
    dd_list_init(&hub->windows);
    dd_list_init(&hub->waiting);
    dd_list_init(&hub->moving);
    hub->task = window_make_task(hub);
    dd_list_init(&hub->task.link);
    return hub;
}

static void
open_windows(void)
{
    memset(memories, 0, sizeof memories);
    memset(bells, 0, sizeof bells);
    for (int rank = 0; rank < NRANKS; rank++) {
        checker_allocate_for(rank);
        dd_window *window = checker_alloc(sizeof *window + NRANKS * sizeof(window_member));
        window->hub = make_hub(rank);
        window->nchannels = NCHANNELS;
        window->id = 1;
        dd_list_push_back(&window->hub->windows, &window->link);
        for (int k = 0; k < NRANKS; k++) {
            window->members[k] = (window_member){.data = (uint8_t *)memories[k].data,
                                                 .nbytes = sizeof memories[k].data,
                                                 .words = memories[k].words,
                                                 .control = &memories[k].control,
                                                 .is_direct = true};
        }
        windows[rank] = window;
    }
    checker_allocate_for(-1);
}

/* ---- ranks */

/* Wait as a caller does: try once, then start a call that the engine drives. */
static void
wait_for_word(int self, const window_op *op)
{
    dd_window *window = windows[self];
    dd_error err;
    window_args args = {.op = op, .target = {.rank = 1 - self}};
    if (window_try_word(window, &args)) {
        return;
    }
    window_call *call = window_make_call(window->hub, 1 - self, op->label, 0, 0);
    call->args = args;
    call->window = window;
    REQUIRE(window_begin(call, &err) == DD_OK);
    dd_task *task = &window->hub->task;
    while (!dd_work_is_done(&call->work)) {
        if (!task->progress(task) && task->fall_asleep(task)) {
            checker_sleep(&bells[self]);
            (void)checker_take_rings(&bells[self]);
        }
    }
    REQUIRE(dd_work_result(&call->work, &err) == DD_OK);
}

static void
take_signal(int self)
{
    wait_for_word(self, &op_wait);
    window_on_signal_taken(windows[self], 1 - self);
}

static void
put(int self, uint64_t value)
{
    dd_error err;
    dd_block block = {&value, sizeof value};
    REQUIRE(dd_window_put(windows[self], block, (dd_window_target){.rank = 1 - self}, 0, NULL, &err) ==
            DD_OK);
}

/* ---- scenarios */

static void
put_and_take(int self)
{
    if (self == 0) {
        put(0, 5);
        return;
    }
    take_signal(1);
    REQUIRE(memories[1].data[0] == 5);
}

SCENARIO(window_put, .label = "a put with its signal, and a rank that sleeps until it arrives", .nthreads = 2,
         .setup = open_windows, .thread = put_and_take)

/* The next put overwrites the data of the last one. */
static void
answer(int self, uint64_t ntimes)
{
    for (uint64_t i = 1; i <= ntimes; i++) {
        checker_forget(i);
        if (self == 0) {
            put(0, i);
            take_signal(0);
        } else {
            take_signal(1);
            REQUIRE(memories[1].data[0] == i);
            put(1, i);
        }
    }
}

static void
answer_once(int self)
{
    answer(self, 1);
}

static void
answer_twice(int self)
{
    answer(self, 2);
}

SCENARIO(window_answers, .label = "a put and its answer, both sleep", .nthreads = 2, .setup = open_windows,
         .thread = answer_once)
SCENARIO(window_answers_twice, .label = "two of them, one after the other", .nthreads = 2,
         .setup = open_windows, .thread = answer_twice)

static void
signal_alone(int self)
{
    for (uint64_t i = 0; i < 2; i++) {
        checker_forget(i);
        if (self == 0) {
            wait_for_word(0, &op_alone);
            window_wake(windows[0], 1);
        } else {
            take_signal(1);
        }
    }
}

SCENARIO(window_alone, .label = "signals that wait until the last is taken", .nthreads = 2,
         .setup = open_windows, .thread = signal_alone)

static void
close_or_signal(int self)
{
    dd_window *window = windows[self];
    if (self == 0) {
        atomic_store(&window->members[0].control->is_closed, 1);
        window_wake(window, 1);
        return;
    }
    dd_error err;
    window_call *call = window_make_call(window->hub, 0, "wait_signal", 0, 0);
    call->args = (window_args){.op = &op_wait, .target = {.rank = 0}};
    call->window = window;
    REQUIRE(window_begin(call, &err) == DD_OK);
    dd_task *task = &window->hub->task;
    while (!dd_work_is_done(&call->work)) {
        if (!task->progress(task) && task->fall_asleep(task)) {
            checker_sleep(&bells[1]);
            (void)checker_take_rings(&bells[1]);
        }
    }
}

SCENARIO(window_closes, .label = "a rank that closes, and one that waits for it", .nthreads = 2,
         .setup = open_windows, .thread = close_or_signal)
