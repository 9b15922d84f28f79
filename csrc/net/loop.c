#include "net/loop.h"

#include "core/clock.h"
#include "core/fork.h"
#include "core/system.h"

#include <errno.h>

static void
on_wake(dd_handler *handler, uint32_t events)
{
    (void)events;
    DD_CONTAINER_OF(handler, dd_loop, wake)->is_stopping = true;
}

dd_status
dd_loop_init(dd_loop *loop, dd_error *err)
{
    *loop = (dd_loop){.epoll_fd = -1, .wake_fd = -1};
    dd_list_init(&loop->timers);
    loop->epoll_fd = dd_fork_own(dd_sys_epoll_create1(EPOLL_CLOEXEC));
    loop->wake_fd = dd_fork_own(dd_sys_eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (loop->epoll_fd < 0 || loop->wake_fd < 0) {
        dd_status status = dd_error_set_errno(err, DD_SYSTEM, errno, "cannot create an event loop");
        dd_loop_fini(loop);
        return status;
    }
    loop->wake = (dd_handler){.fd = loop->wake_fd, .on_event = on_wake};
    dd_status status = dd_loop_add(loop, &loop->wake, EPOLLIN, err);
    if (status != DD_OK) {
        dd_loop_fini(loop);
    }
    return status;
}

void
dd_loop_fini(dd_loop *loop)
{
    dd_fork_close(loop->wake_fd);
    dd_fork_close(loop->epoll_fd);
    loop->wake_fd = -1;
    loop->epoll_fd = -1;
}

static int
timeout_until_timer_ms(const dd_loop *loop)
{
    if (dd_list_is_empty(&loop->timers)) {
        return -1;
    }
    const dd_timer *first = DD_CONTAINER_OF(loop->timers.next, dd_timer, link);
    int64_t left_ms = (dd_deadline_left_ns(first->deadline_ns) + DD_NS_PER_MS - 1) / DD_NS_PER_MS;
    return left_ms < 60000 ? (int)left_ms : 60000;
}

static void
expire_timers(dd_loop *loop)
{
    while (!dd_list_is_empty(&loop->timers)) {
        dd_timer *first = DD_CONTAINER_OF(loop->timers.next, dd_timer, link);
        if (dd_deadline_left_ns(first->deadline_ns) > 0) {
            return;
        }
        dd_loop_stop_timer(first);
        first->on_expiry(first);
    }
}

/* After a round without input: whether to look again before sleeping. */
static bool
is_spinning(dd_loop *loop)
{
    int64_t now_ns = dd_clock_now_ns();
    if (loop->idle_since_ns == 0) {
        loop->idle_since_ns = now_ns;
    }
    return now_ns - loop->idle_since_ns < loop->spin.budget_ns;
}

static void
deliver_events(dd_loop *loop)
{
    for (loop->next_event = 0; loop->next_event < loop->nevents;) {
        struct epoll_event *event = &loop->events[loop->next_event++];
        dd_handler *handler = event->data.ptr;
        if (handler != NULL) {
            handler->on_event(handler, event->events);
        }
    }
}

void
dd_loop_run(dd_loop *loop)
{
    bool is_awake = true;
    while (!loop->is_stopping) {
        int count = dd_sys_epoll_wait(loop->epoll_fd, loop->events, DD_LOOP_BATCH,
                                      is_awake ? 0 : timeout_until_timer_ms(loop));
        loop->nevents = count > 0 ? count : 0;
        loop->next_event = 0;
        bool is_input = loop->nevents > 0;
        deliver_events(loop);
        expire_timers(loop);
        if (is_input && loop->idle_since_ns != 0) {
            dd_spin_note_wait(&loop->spin, dd_clock_now_ns() - loop->idle_since_ns);
            loop->idle_since_ns = 0;
        }
        is_awake = is_input || is_spinning(loop);
        if (is_awake && !is_input) {
            (void)dd_sys_sched_yield(); /* clients may need this core */
        }
    }
}

void
dd_loop_stop(dd_loop *loop)
{
    uint64_t one = 1;
    /* Can only fail when the counter is full, and then the loop is awake anyway. */
    (void)!dd_sys_write(loop->wake_fd, &one, sizeof one);
}

dd_status
dd_loop_add(dd_loop *loop, dd_handler *handler, uint32_t events, dd_error *err)
{
    struct epoll_event event = {.events = events, .data.ptr = handler};
    if (dd_sys_epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, handler->fd, &event) != 0) {
        return dd_error_set_errno(err, DD_SYSTEM, errno, "cannot watch fd %d", handler->fd);
    }
    return DD_OK;
}

void
dd_loop_modify(dd_loop *loop, dd_handler *handler, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = handler};
    (void)dd_sys_epoll_ctl(loop->epoll_fd, EPOLL_CTL_MOD, handler->fd, &event);
}

void
dd_loop_remove(dd_loop *loop, dd_handler *handler)
{
    (void)dd_sys_epoll_ctl(loop->epoll_fd, EPOLL_CTL_DEL, handler->fd, NULL);
    for (int i = loop->next_event; i < loop->nevents; i++) {
        if (loop->events[i].data.ptr == handler) {
            loop->events[i].data.ptr = NULL;
        }
    }
}

void
dd_loop_start_timer(dd_loop *loop, dd_timer *timer, int64_t deadline_ns)
{
    dd_loop_stop_timer(timer);
    timer->deadline_ns = deadline_ns;
    /* From the back: new deadlines are mostly the latest. */
    dd_list *position = &loop->timers;
    while (position->prev != &loop->timers &&
           DD_CONTAINER_OF(position->prev, dd_timer, link)->deadline_ns > deadline_ns) {
        position = position->prev;
    }
    dd_list_insert_before(position, &timer->link);
}

void
dd_loop_stop_timer(dd_timer *timer)
{
    if (timer->link.next != NULL) {
        dd_list_remove(&timer->link);
    }
}
