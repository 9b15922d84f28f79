/* One epoll loop: the handlers and timers of one thread.
 *
 * Everything here belongs to the thread that runs the loop, and to its creator before it runs; only dd_loop_stop may
 * be called from another thread. A callback may add and remove any handler, itself included, and free what it has
 * removed: an event that was already fetched for a removed handler is not delivered. */
#ifndef DD_NET_LOOP_H
#define DD_NET_LOOP_H

#include "core/list.h"
#include "core/spin.h"
#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

#define DD_LOOP_BATCH 128

typedef struct dd_handler dd_handler;
struct dd_handler {
    int fd;
    void (*on_event)(dd_handler *handler, uint32_t events); /* EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP */
};

typedef struct dd_loop dd_loop;

typedef struct dd_timer dd_timer;
struct dd_timer {
    void (*on_expiry)(dd_timer *timer); /* the timer is stopped when this runs */
    int64_t deadline_ns;
    dd_list link;
};

struct dd_loop {
    int epoll_fd;
    int wake_fd;           /* eventfd: dd_loop_stop writes it */
    dd_spin spin;          /* for polling without sleeping after the last input; zeroed: sleeps at once */
    int64_t idle_since_ns; /* loop only: 0 while there is input */
    dd_list timers;        /* loop only; ordered by deadline */
    struct epoll_event events[DD_LOOP_BATCH]; /* loop only: the batch being delivered */
    int nevents;
    int next_event;
    dd_handler wake;
    bool is_stopping;
};

dd_status dd_loop_init(dd_loop *loop, dd_error *err) DD_MUST_CHECK;
void dd_loop_fini(dd_loop *loop);

/* Delivers events until dd_loop_stop. */
void dd_loop_run(dd_loop *loop);
void dd_loop_stop(dd_loop *loop);

/* Level-triggered. handler->fd stays the caller's. */
dd_status dd_loop_add(dd_loop *loop, dd_handler *handler, uint32_t events, dd_error *err) DD_MUST_CHECK;
void dd_loop_modify(dd_loop *loop, dd_handler *handler, uint32_t events);
void dd_loop_remove(dd_loop *loop, dd_handler *handler);

/* Zero-initialised timers may be stopped; a running one is moved. */
void dd_loop_start_timer(dd_loop *loop, dd_timer *timer, int64_t deadline_ns);
void dd_loop_stop_timer(dd_timer *timer);

#endif
