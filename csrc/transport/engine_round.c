/* One round of driving: lanes, tasks, timers, and peers that are lost. */
#include "transport/engine_internal.h"

#include "core/assert.h"
#include "core/system.h"

/* Number of rounds of driving between two calls of epoll_wait. */
#define ROUNDS_PER_EPOLL_SHM 256u
#define ROUNDS_PER_EPOLL_TCP 8u
/* Maximum number of sockets that are read without waiting for an event from epoll. */
#define TCP_DIRECT_MAX 8u
#define EVENTS_MAX 32

/* ---- tasks */

void
dd_engine_add_task_locked(dd_engine *engine, dd_task *task)
{
    dd_assert_holds(ENGINE);
    dd_list_push_back(&engine->tasks, &task->link);
    engine_wake_driver(engine);
}

void
dd_engine_remove_task_locked(dd_engine *engine, dd_task *task)
{
    dd_assert_holds(ENGINE);
    if (task->link.next == NULL || dd_list_is_empty(&task->link)) {
        return;
    }
    if (engine->next_task == &task->link) {
        engine->next_task = task->link.next;
    }
    dd_list_remove(&task->link);
}

static bool
progress_tasks(dd_engine *engine)
{
    bool is_progress = false;
    bool is_crowded = false;
    bool is_outnumbered = false;
    engine->next_task = engine->tasks.next;
    while (engine->next_task != &engine->tasks) {
        dd_task *task = DD_CONTAINER_OF(engine->next_task, dd_task, link);
        engine->next_task = task->link.next;
        is_crowded = is_crowded || task->is_crowded;
        is_outnumbered = is_outnumbered || task->is_outnumbered;
        is_progress = task->progress(task) || is_progress;
    }
    engine->is_crowded = is_crowded;
    engine->is_outnumbered = is_outnumbered;
    return is_progress;
}

/* ---- farewells: reporting the reason to a peer that broke the protocol */

/* Maximum time that the link of a peer that broke the protocol stays open while the peer does not
 * read the reason; and the interval of checking whether it has. */
#define FAREWELL_NS (200 * DD_NS_PER_MS)
#define FAREWELL_CHECK_NS (1 * DD_NS_PER_MS)

/* Return true if all data posted to the peer has left this process or, with `is_sure`, has arrived
 * at the peer's host. */
static bool
has_sent_all(const dd_peer *peer, bool is_sure)
{
    dd_link *stream = peer->lanes[0]->stream;
    return !peer_has_queued(peer) && stream->ops->has_left(stream, is_sure);
}

static void
start_farewell_timer(dd_peer *peer)
{
    dd_engine_start_timer_locked(peer->engine, &peer->timer, dd_deadline_after(FAREWELL_CHECK_NS));
}

/* Close the link of a peer that broke the protocol once it has the reason. If the link were closed
 * earlier, with unread input, the connection would be reset, and the reset could overtake it. */
static void
on_farewell_due(dd_timer *timer)
{
    dd_peer *peer = DD_CONTAINER_OF(timer, dd_peer, timer);
    if (dd_clock_now_ns() < peer->farewell_until_ns && !has_sent_all(peer, true)) {
        start_farewell_timer(peer);
        return;
    }
    peer->farewell_until_ns = 0;
    dd_list_push_back(&peer->engine->breaking, &peer->breaking);
}

/* Begin to send a breaking peer the reason (a farewell). Returns false if there is nothing to wait
 * for: the peer needs no reason, cannot receive it, or already has it. */
static bool
begin_farewell(dd_peer *peer)
{
    dd_engine *engine = peer->engine;
    bool is_due = peer->farewell_until_ns == DD_NEVER_NS;
    peer->farewell_until_ns = 0;
    if (!is_due || peer->state != PEER_CONNECTED || peer->is_self || peer->lanes[0]->is_output_dead) {
        return false;
    }
    for (dd_list *node = engine->context_list.next; node != &engine->context_list; node = node->next) {
        context_post_farewell(DD_CONTAINER_OF(node, dd_context, link), peer);
    }
    if (has_sent_all(peer, true)) {
        return false;
    }
    peer->farewell_until_ns = dd_deadline_after(FAREWELL_NS);
    peer->timer.on_due = on_farewell_due;
    start_farewell_timer(peer);
    return true;
}

/* ---- timers */

int64_t
engine_run_timers(dd_engine *engine, int64_t now_ns)
{
    dd_timer_set_run(&engine->timers, now_ns);
    return dd_timer_set_next_ns(&engine->timers);
}

/* ---- polling and events */

static bool
poll_shm_lanes(dd_engine *engine)
{
    bool is_progress = false;
    for (dd_list *node = engine->shm_lanes.next; node != &engine->shm_lanes; node = node->next) {
        dd_lane *lane = DD_CONTAINER_OF(node, dd_lane, link);
        if (!lane->is_ended) {
            is_progress = lane_receive(lane) || is_progress;
        }
        if (lane_has_output(lane)) {
            is_progress = lane_pump(lane) || is_progress;
        }
    }
    return is_progress;
}

/* Poll only sockets that expect data, and only if there are few: each poll is a system call. */
static bool
poll_tcp_lanes(dd_engine *engine)
{
    bool is_progress = false;
    bool is_direct = engine->ntcp_lanes <= TCP_DIRECT_MAX;
    for (dd_list *node = engine->tcp_lanes.next; node != &engine->tcp_lanes; node = node->next) {
        dd_lane *lane = DD_CONTAINER_OF(node, dd_lane, link);
        const dd_peer *peer = lane->peer;
        bool is_expected = peer->nexpected + engine->nany > 0 || !dd_list_is_empty(&peer->receiving) ||
                           !dd_list_is_empty(&peer->awaiting);
        bool is_due = (is_expected && is_direct) || lane->is_blocked || lane->stream->has_input;
        if (is_due && !lane->is_ended) {
            is_progress = lane_receive(lane) || is_progress;
        }
        if (lane_has_output(lane)) {
            is_progress = lane_pump(lane) || is_progress;
        }
    }
    return is_progress;
}

static void
round_watch(dd_lane *lane, uint32_t events)
{
    if (lane->watched != events) {
        struct epoll_event event = {.events = events, .data.ptr = lane};
        int rc = dd_sys_epoll_ctl(lane->peer->engine->epoll_fd, EPOLL_CTL_MOD, lane->stream->fd, &event);
        lane->watched = rc == 0 ? events : lane->watched; /* if it failed, a later call retries */
    }
}

/* Break a lane whose socket has failed, or has ended with all data in the rings read. */
static void
on_stream_end(dd_lane *lane, dd_io io)
{
    lane_break_for_io(lane, io, "cannot receive");
    round_watch(lane, 0);
}

static bool
on_lane_event(dd_lane *lane, uint32_t events)
{
    bool is_progress = false;
    if (lane->is_ended) {
        round_watch(lane, 0);
        return false;
    }
    dd_io io =
        events & (EPOLLIN | EPOLLHUP | EPOLLERR) ? lane->stream->ops->on_event(lane->stream) : DD_IO_OK;
    if (io == DD_IO_CLOSED || io == DD_IO_FAILED) {
        on_stream_end(lane, io);
        return true;
    }
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
        is_progress = lane_receive(lane);
    }
    if (lane_has_output(lane)) {
        is_progress = lane_pump(lane) || is_progress;
    } else if (events & EPOLLOUT) {
        round_watch(lane, EPOLLIN);
    }
    return is_progress;
}

void
engine_drain_wake_fd(dd_engine *engine)
{
    uint64_t count;
    if (engine->nsleeping == 0) {
        (void)!dd_sys_read(engine->wake_fd, &count, sizeof count);
    }
}

bool
engine_handle_events(dd_engine *engine, const struct epoll_event *events, int nevents)
{
    bool is_progress = false;
    for (int i = 0; i < nevents; i++) {
        if (events[i].data.ptr == NULL) {
            engine_drain_wake_fd(engine);
        } else if (events[i].data.ptr == &engine->bell_fd) {
            engine_answer_bell(engine);
            is_progress = true;
        } else {
            is_progress = on_lane_event(events[i].data.ptr, events[i].events) || is_progress;
        }
    }
    return is_progress;
}

/* Numbers of rounds that suffice for all connections, and for a full ring or socket in use. */
#define RECEIVE_EVENTS_ROUNDS 64
#define RECEIVE_LANE_ROUNDS 4

static void
receive_all(dd_engine *engine)
{
    dd_list *lists[] = {&engine->shm_lanes, &engine->tcp_lanes};
    for (int i = 0; i < 2; i++) {
        for (dd_list *node = lists[i]->next; node != lists[i]; node = node->next) {
            dd_lane *lane = DD_CONTAINER_OF(node, dd_lane, link);
            for (int round = 0; round < RECEIVE_LANE_ROUNDS && !lane->is_ended && lane_receive(lane);
                 round++) {
            }
        }
    }
}

void
dd_engine_read_links_locked(dd_engine *engine)
{
    if (!engine->is_reading_links) {
        engine->is_reading_links = true;
        (void)self_deliver(engine);
        receive_all(engine);
        engine->is_reading_links = false;
    }
}

void
engine_receive_all(dd_engine *engine)
{
    struct epoll_event events[EVENTS_MAX];
    int nevents = EVENTS_MAX;
    for (int round = 0; round < RECEIVE_EVENTS_ROUNDS && nevents == EVENTS_MAX; round++) {
        nevents = dd_sys_epoll_wait(engine->epoll_fd, events, EVENTS_MAX, 0);
        (void)engine_handle_events(engine, events, nevents);
    }
    receive_all(engine);
    engine_notify_rung(engine); /* a process may write to shared memory and end without a ring */
}

/* ---- peers that are lost */

static void
lose_peer(dd_peer *peer)
{
    dd_engine *engine = peer->engine;
    /* Handle frames that the peer sent before its end. Read lane 0 last: a farewell on lane 0 was
     * sent after the data on the other lanes. */
    for (int i = peer->nlanes - 1; i >= 0; i--) {
        for (int rounds = 0; rounds < 64 && !peer->lanes[i]->is_ended && lane_receive(peer->lanes[i]);
             rounds++) {
        }
    }
    peer->is_breaking = false;
    peer->state = PEER_LOST;
    dd_timer_clear(&peer->timer);
    peer->timer.on_due = peer_on_timer;
    engine_destroy_unfinished(engine, &peer->early);
    for (dd_list *node = engine->context_list.next; node != &engine->context_list; node = node->next) {
        dd_context *context = DD_CONTAINER_OF(node, dd_context, link);
        for (int rank = 0; rank < context->nranks; rank++) {
            if (context->ranks[rank].peer == peer) {
                engine_destroy_unfinished(engine, &context->ranks[rank].held);
            }
        }
    }
    dd_list *lists[] = {&peer->awaiting, &peer->sending, &peer->flushing, &peer->receiving};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        while (!dd_list_is_empty(lists[i])) {
            message_fail_lost(DD_CONTAINER_OF(lists[i]->next, dd_message, link));
        }
    }
    peer_discard_output(peer);
    peer_destroy_lanes(peer);
    for (dd_list *node = engine->context_list.next; node != &engine->context_list;) {
        dd_context *context = DD_CONTAINER_OF(node, dd_context, link);
        node = node->next;
        context_on_peer_lost(context, peer);
    }
    peer_reap(peer);
}

/* Return the breaking peer that must be lost first. If a peer left because another peer was lost,
 * the lost peer comes first, even in groups where no rank has reported it. */
static dd_peer *
first_lost(const dd_engine *engine)
{
    for (dd_list *node = engine->breaking.next; node != &engine->breaking; node = node->next) {
        dd_peer *peer = DD_CONTAINER_OF(node, dd_peer, breaking);
        if (peer->is_reported_lost) {
            return peer;
        }
    }
    return DD_CONTAINER_OF(engine->breaking.next, dd_peer, breaking);
}

void
engine_end_broken_peers(dd_engine *engine)
{
    if (dd_list_is_empty(&engine->breaking)) {
        return;
    }
    /* Read all input first, since it may have reports: a peer may have left because another peer
     * was lost, and reported that before; and running ranks may have reported it too. */
    engine_receive_all(engine);
    while (!dd_list_is_empty(&engine->breaking)) {
        dd_peer *peer = first_lost(engine);
        dd_list_remove(&peer->breaking);
        if (!begin_farewell(peer)) {
            lose_peer(peer);
        }
    }
}

/* ---- failure notices to peers */

static bool
is_notified(const dd_peer *peer)
{
    if (peer->state != PEER_CONNECTED) {
        /* If a link is being created, the notice must wait for the link. */
        return peer->state != PEER_DIALLING && peer->state != PEER_ACCEPTING;
    }
    return has_sent_all(peer, false);
}

bool
engine_is_notifying(dd_engine *engine)
{
    bool is_any = false;
    for (dd_map_node *node = dd_map_next(&engine->peers, NULL); node != NULL;
         node = dd_map_next(&engine->peers, node)) {
        dd_peer *peer = DD_CONTAINER_OF(node, dd_peer, node);
        peer->has_notice_pending = peer->has_notice_pending && !is_notified(peer);
        is_any = is_any || peer->has_notice_pending;
    }
    return is_any;
}

/* ---- one complete round */

static bool
poll_epoll(dd_engine *engine)
{
    bool has_others = !dd_list_is_empty(&engine->shm_lanes) || !dd_list_is_empty(&engine->tasks);
    unsigned period = engine->ntcp_lanes > TCP_DIRECT_MAX ? (has_others ? ROUNDS_PER_EPOLL_TCP : 1)
                      : has_others                        ? ROUNDS_PER_EPOLL_SHM
                                                          : ROUNDS_PER_EPOLL_TCP;
    if (++engine->nrounds % period != 0) {
        return false;
    }
    struct epoll_event events[EVENTS_MAX];
    return engine_handle_events(engine, events, dd_sys_epoll_wait(engine->epoll_fd, events, EVENTS_MAX, 0));
}

bool
engine_run_round(dd_engine *engine)
{
    bool is_progress = !dd_list_is_empty(&engine->done) || !dd_list_is_empty(&engine->breaking);
    if (!dd_list_is_empty(&engine->self->out)) {
        is_progress = self_deliver(engine);
    }
    is_progress = poll_shm_lanes(engine) || is_progress;
    is_progress = poll_tcp_lanes(engine) || is_progress;
    is_progress = poll_epoll(engine) || is_progress;
    if (engine->has_rung) {
        engine_notify_rung(engine);
        is_progress = true;
    }
    engine_end_broken_peers(engine);
    /* Notify owners before the tasks run: tasks decide about ranks that have left, and the last
     * messages of such ranks must have been handled first. */
    engine_notify_done(engine);
    if (!dd_list_is_empty(&engine->tasks)) {
        is_progress = progress_tasks(engine) || is_progress;
        engine_notify_done(engine);
    }
    return is_progress;
}

bool
engine_fall_asleep(dd_engine *engine)
{
    if (!dd_list_is_empty(&engine->done) || !dd_list_is_empty(&engine->breaking) ||
        !dd_list_is_empty(&engine->self->out)) {
        return false;
    }
    if (engine->has_postponed) {
        engine->has_postponed = false;
        return false;
    }
    dd_list *lists[] = {&engine->shm_lanes, &engine->tcp_lanes};
    for (int i = 0; i < 2; i++) {
        for (dd_list *node = lists[i]->next; node != lists[i]; node = node->next) {
            dd_lane *lane = DD_CONTAINER_OF(node, dd_lane, link);
            if (lane->is_ended) {
                continue;
            }
            bool wants_room = lane_has_output(lane) && !lane->is_output_dead;
            round_watch(lane, EPOLLIN | (wants_room && !lane->stream->is_shared_memory ? EPOLLOUT : 0u));
            if (!lane->stream->ops->fall_asleep(lane->stream, wants_room)) {
                return false;
            }
        }
    }
    for (dd_list *node = engine->tasks.next; node != &engine->tasks; node = node->next) {
        dd_task *task = DD_CONTAINER_OF(node, dd_task, link);
        if (!task->fall_asleep(task)) {
            return false;
        }
    }
    return true;
}
