#include "transport/connect_internal.h"

#include "core/fork.h"
#include "core/lock.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/system.h"
#include "core/thread.h"
#include "net/sock.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Somebody who has said hello and nothing else for so long makes room when others have to wait. */
#define SHY_NS DD_NS_PER_S
#define NAP_MS 50
#define ACCEPTS_PER_LOOK 64
/* That no connection could be accepted: it does not pass by itself. Those who are turned away try for longer (TURNED_AWAY_TRIES), so
 * that this process can say what is wrong before they take it for lost. */
#define DEAF_NS (500 * DD_NS_PER_MS)

/* ---- the books */

static bool
is_called_off(void *ctx)
{
    const connect_job *job = ctx;
    return atomic_load_explicit(&job->is_called_off, memory_order_relaxed);
}

dd_wait
connect_job_wait(connect_job *job)
{
    return (dd_wait){.start_ns = job->start_ns,
                     .deadline_ns = job->deadline_ns,
                     .is_interrupted = is_called_off,
                     .ctx = job};
}

static bool
is_same_uid(const dd_uid *a, const dd_uid *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

/* A job about the first link to that peer, from `position` on. */
static connect_job *
find_job_locked(dd_list *list, const dd_list *position, const dd_uid *peer)
{
    for (const dd_list *at = position->next; at != list; at = at->next) {
        connect_job *job = DD_CONTAINER_OF(at, connect_job, link);
        if (job->lane == 0 && is_same_uid(&job->peer, peer)) {
            return job;
        }
    }
    return NULL;
}

#define FOR_EACH_JOB_LOCKED(job, list, peer)                                           \
    for (connect_job * (job) = find_job_locked((list), (list), (peer)); (job) != NULL; \
         (job) = find_job_locked((list), &(job)->link, (peer)))

static bool
is_claimed_locked(dd_connector *self, const dd_uid *peer)
{
    FOR_EACH_JOB_LOCKED(job, &self->jobs, peer)
    {
        if (job->stage == CONNECT_CLAIMED) {
            return true;
        }
    }
    return false;
}

bool
connect_claim(connect_job *job, const dd_uid *peer)
{
    dd_connector *self = job->connector;
    bool is_ours_first = memcmp(&self->uid, peer, sizeof *peer) < 0;
    bool is_free = true;
    dd_lock_take(&self->mu);
    FOR_EACH_JOB_LOCKED(other, &self->jobs, peer)
    {
        /* The peer, if its uid is the larger one, would not take our dial while its own is under way. */
        is_free =
            is_free && other->stage != CONNECT_CLAIMED && !(other->stage == CONNECT_DIALING && is_ours_first);
    }
    if (is_free) {
        job->peer = *peer;
        job->lane = 0;
        job->stage = CONNECT_CLAIMED;
    }
    dd_lock_release(&self->mu);
    return is_free;
}

static void
answer_dials_locked(dd_list *list, const dd_uid *peer)
{
    FOR_EACH_JOB_LOCKED(job, list, peer)
    {
        if (job->is_dial) {
            job->is_answered = true;
            atomic_store_explicit(&job->is_called_off, true, memory_order_relaxed);
        }
    }
}

void
connect_settle_accept(connect_job *job, bool is_linked)
{
    dd_connector *self = job->connector;
    dd_lock_take(&self->mu);
    job->stage = CONNECT_WAITING;
    if (is_linked) {
        answer_dials_locked(&self->jobs, &job->peer);
        answer_dials_locked(&self->dials.queue, &job->peer);
    }
    job->lane = -1;
    dd_cond_broadcast(&self->cond);
    dd_lock_release(&self->mu);
}

/* Whether the dial still has something to do; meanwhile nobody else's claim is pending. */
static bool
outwait_claim_locked(connect_job *job)
{
    dd_connector *self = job->connector;
    while (job->lane == 0 && !self->is_closing && !job->is_answered && is_claimed_locked(self, &job->peer)) {
        dd_cond_wait(&self->cond, &self->mu);
    }
    return !self->is_closing && !job->is_answered;
}

bool
connect_begin_dial(connect_job *job)
{
    dd_connector *self = job->connector;
    dd_lock_take(&self->mu);
    bool is_wanted = outwait_claim_locked(job);
    job->stage = CONNECT_DIALING;
    dd_lock_release(&self->mu);
    return is_wanted;
}

bool
connect_settle_dial(connect_job *job)
{
    dd_connector *self = job->connector;
    dd_lock_take(&self->mu);
    bool is_wanted = outwait_claim_locked(job);
    dd_lock_release(&self->mu);
    return is_wanted;
}

bool
connect_sleep_busy(connect_job *job, int64_t duration_ns)
{
    dd_connector *self = job->connector;
    dd_wait nap = dd_wait_after(duration_ns);
    if (nap.deadline_ns > job->deadline_ns) {
        nap.deadline_ns = job->deadline_ns;
    }
    dd_lock_take(&self->mu);
    while (!self->is_closing && !job->is_answered && !dd_wait_is_over(&nap)) {
        dd_cond_wait_slice(&self->cond, &self->mu, &nap);
    }
    bool is_wanted = !self->is_closing && !job->is_answered;
    dd_lock_release(&self->mu);
    return is_wanted;
}

/* ---- threads */

void
connect_wake_listener(const dd_connector *self)
{
    const uint64_t one = 1;
    /* Fails only when the counter is full, and then it is awake. */
    (void)!dd_sys_write(self->wake_fd, &one, sizeof one);
}

static connect_pool *
pool_of(const connect_job *job)
{
    return job->is_dial ? &job->connector->dials : &job->connector->accepts;
}

static connect_job *
take_queued_locked(dd_connector *self, connect_pool *pool)
{
    if (dd_list_is_empty(&pool->queue) || self->is_closing) {
        return NULL;
    }
    connect_job *job = DD_CONTAINER_OF(pool->queue.next, connect_job, link);
    dd_list_remove(&job->link);
    dd_list_push_back(&self->jobs, &job->link);
    pool->has_moved = true;
    return job;
}

/* After a job, which is freed. NULL: there are no others, and the thread has left, so that close may free
 * the connector. Each thread joins the one that ended before it: there is never more than one to be joined. */
static connect_job *
go_on(connect_job *job)
{
    dd_connector *self = job->connector;
    connect_pool *pool = pool_of(job);
    pthread_t previous;
    bool has_previous = false;
    dd_lock_take(&self->mu);
    dd_list_remove(&job->link);
    if (!job->is_dial && self->naccepted-- == CONNECT_ACCEPTS_MAX) {
        connect_wake_listener(self);
    }
    connect_job *next = take_queued_locked(self, pool);
    if (next == NULL) {
        previous = self->finished;
        has_previous = self->has_finished;
        self->finished = dd_thread_self();
        self->has_finished = true;
        pool->nthreads--;
    }
    dd_cond_broadcast(&self->cond);
    dd_lock_release(&self->mu);
    dd_mem_free(job);
    if (has_previous) {
        dd_thread_join(previous);
    }
    return next;
}

static void *
worker_main(void *arg)
{
    for (connect_job *job = arg; job != NULL; job = go_on(job)) {
        if (job->is_dial) {
            connect_dial_run(job);
        } else {
            connect_accept_run(job);
        }
    }
    return NULL;
}

/* Starts a thread with a job that is in no list. */
static dd_status
start_worker_locked(connect_job *job, dd_error *err)
{
    pthread_t thread;
    dd_list_push_back(&job->connector->jobs, &job->link);
    dd_status status =
        dd_thread_start(&thread, job->is_dial ? "dd-dial" : "dd-accept", worker_main, job, err);
    if (status == DD_OK) {
        pool_of(job)->nthreads++;
    } else {
        dd_list_remove(&job->link);
    }
    return status;
}

static dd_status
submit_locked(connect_job *job, dd_error *err)
{
    connect_pool *pool = pool_of(job);
    if (pool->nthreads == 0) {
        return start_worker_locked(job, err);
    }
    if (dd_list_is_empty(&pool->queue)) {
        pool->has_moved = true;
        connect_wake_listener(job->connector); /* who looks whether the queue moves */
    }
    dd_list_push_back(&pool->queue, &job->link);
    return DD_OK;
}

static connect_job *
create_job(dd_connector *self, bool is_dial, int64_t deadline_ns)
{
    connect_job *job = dd_mem_zalloc(sizeof *job);
    if (job != NULL) {
        *job = (connect_job){.connector = self,
                             .is_dial = is_dial,
                             .start_ns = dd_clock_now_ns(),
                             .deadline_ns = deadline_ns,
                             .fd = -1,
                             .lane = -1};
        atomic_init(&job->is_called_off, false);
        dd_list_init(&job->link);
    }
    return job;
}

dd_status
dd_connector_dial(dd_connector *self, const dd_card *peer, int lane, int64_t deadline_ns, dd_error *err)
{
    if (self->generation != dd_fork_generation()) {
        return dd_error_set(err, DD_FORKED, "cannot dial in a forked child");
    }
    if (lane < 0 || lane >= self->options.nlanes) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "cannot dial lane %d of %d", lane,
                            self->options.nlanes);
    }
    connect_job *job = create_job(self, true, deadline_ns);
    if (job == NULL) {
        return dd_error_no_memory(err, sizeof *job);
    }
    job->card = *peer;
    job->peer = peer->uid;
    job->lane = lane;
    dd_status status = DD_OK;
    dd_lock_take(&self->mu);
    if (self->is_closing) {
        status = dd_error_set(err, DD_CLOSED, "cannot dial: the connector is closed");
    } else {
        status = submit_locked(job, err);
    }
    dd_lock_release(&self->mu);
    if (status != DD_OK) {
        dd_mem_free(job);
    }
    return status;
}

/* ---- the listener's thread */

/* Takes its fd. */
static void
start_accept(dd_connector *self, const connect_guest *guest)
{
    dd_error err = {0};
    connect_job *job = create_job(self, false, dd_deadline_after(self->options.timeout_ns));
    dd_status status = job != NULL ? DD_OK : dd_error_no_memory(&err, sizeof *job);
    if (status == DD_OK) {
        job->fd = guest->fd;
        job->is_unix = guest->is_unix;
        memcpy(job->hello, guest->hello, sizeof job->hello);
        dd_lock_take(&self->mu);
        status = submit_locked(job, &err);
        self->naccepted += status == DD_OK ? 1 : 0;
        dd_lock_release(&self->mu);
    }
    if (status != DD_OK) {
        DD_LOG(DD_LOG_INFO, "cannot look after a connection: %s", err.message);
        dd_sock_close(guest->fd);
        dd_mem_free(job);
    }
}

static void
call_off_the_shy(dd_connector *self)
{
    dd_lock_take(&self->mu);
    for (dd_list *at = self->jobs.next; at != &self->jobs; at = at->next) {
        connect_job *job = DD_CONTAINER_OF(at, connect_job, link);
        if (!job->is_dial && job->stage == CONNECT_WAITING && !is_called_off(job) &&
            dd_clock_now_ns() - job->start_ns > SHY_NS) {
            atomic_store_explicit(&job->is_called_off, true, memory_order_relaxed);
        }
    }
    dd_lock_release(&self->mu);
}

/* More threads for a queue that has not moved since the last look. */
static void
help_stuck_locked(connect_pool *pool, int nthreads_max)
{
    int nwanted = pool->has_moved ? 0 : pool->nthreads;
    pool->has_moved = false;
    for (; nwanted > 0 && pool->nthreads < nthreads_max && !dd_list_is_empty(&pool->queue); nwanted--) {
        connect_job *job = DD_CONTAINER_OF(pool->queue.next, connect_job, link);
        dd_list_remove(&job->link);
        if (start_worker_locked(job, NULL) != DD_OK) {
            /* Those that there are get to it. */
            dd_list_insert_before(pool->queue.next, &job->link);
            return;
        }
    }
}

/* Whether the listener goes on, and how long it may sleep: where something is queued, until the moment of
 * its next look. */
static bool
look_at_books(dd_connector *self, int64_t *look_ns, int *timeout_ms)
{
    dd_lock_take(&self->mu);
    bool goes_on = !self->is_closing;
    bool is_queued = !dd_list_is_empty(&self->dials.queue) || !dd_list_is_empty(&self->accepts.queue);
    if (!is_queued) {
        *look_ns = DD_NEVER_NS;
    } else if (*look_ns == DD_NEVER_NS) {
        *look_ns = dd_deadline_after(CONNECT_STUCK_NS);
    } else if (goes_on && dd_deadline_left_ns(*look_ns) == 0) {
        help_stuck_locked(&self->dials, CONNECT_DIALS_MAX);
        help_stuck_locked(&self->accepts, CONNECT_ACCEPTS_MAX);
        *look_ns = dd_deadline_after(CONNECT_STUCK_NS);
    }
    *timeout_ms = is_queued ? (int)(CONNECT_STUCK_NS / DD_NS_PER_MS) : -1;
    dd_lock_release(&self->mu);
    return goes_on;
}

static void
nap_until_woken(const dd_connector *self, struct pollfd *pollfds, nfds_t count, int timeout_ms)
{
    if (dd_sys_poll(pollfds, count, timeout_ms) > 0 && pollfds[0].revents != 0) {
        uint64_t nwakes;
        (void)!dd_sys_read(self->wake_fd, &nwakes, sizeof nwakes);
    }
}

static void
note_accepting(dd_connector *self, int sys_errno)
{
    if (sys_errno != 0 && atomic_load_explicit(&self->accept_errno, memory_order_relaxed) == 0) {
        atomic_store_explicit(&self->failing_since_ns, dd_clock_now_ns(), memory_order_relaxed);
    }
    atomic_store_explicit(&self->accept_errno, sys_errno, memory_order_release);
    self->failed_ns = sys_errno != 0 ? dd_clock_now_ns() : self->failed_ns;
}

/* Nobody is there to be accepted now; somebody who was turned away comes again. */
static void
note_quiet(dd_connector *self)
{
    if (dd_clock_now_ns() - self->failed_ns > DEAF_NS) {
        note_accepting(self, 0);
    }
}

dd_status
dd_connector_check(dd_connector *self, dd_error *err)
{
    int sys_errno = atomic_load_explicit(&self->accept_errno, memory_order_acquire);
    int64_t failing_ns =
        dd_clock_now_ns() - (int64_t)atomic_load_explicit(&self->failing_since_ns, memory_order_relaxed);
    if (sys_errno == 0 || failing_ns < DEAF_NS) {
        return DD_OK;
    }
    return dd_error_set_errno(err, DD_SYSTEM, sys_errno, "cannot accept the connections of other ranks");
}

/* False: out of descriptors. */
static bool
accept_from(dd_connector *self, int listen_fd)
{
    for (int i = 0; i < ACCEPTS_PER_LOOK && connect_lobby_has_room(&self->lobby); i++) {
        int fd = -1;
        dd_io io = dd_sock_try_accept(listen_fd, &fd);
        if (io == DD_IO_AGAIN) {
            note_quiet(self);
            return true;
        }
        int sys_errno = io == DD_IO_OK ? EMFILE : errno;
        bool is_scarce = io != DD_IO_OK || dd_sock_is_fd_scarce(fd);
        if (is_scarce && !connect_lobby_evict(&self->lobby)) {
            note_accepting(self, sys_errno);
            DD_LOG(DD_LOG_INFO,
                   "cannot accept a connection: this process may have %zu open files (ulimit -n)",
                   dd_sock_fd_limit());
            dd_sock_close(fd);
            return false;
        }
        if (io == DD_IO_OK) {
            note_accepting(self, 0);
            connect_lobby_add(&self->lobby, fd, self->options.timeout_ns);
        }
    }
    return true;
}

static bool
has_room(dd_connector *self)
{
    dd_lock_take(&self->mu);
    bool is_so = self->naccepted < CONNECT_ACCEPTS_MAX;
    dd_lock_release(&self->mu);
    return is_so;
}

/* Those that have said hello, as far as there is room for hand-shakes. */
static void
start_accepts(dd_connector *self)
{
    connect_guest guest;
    while (has_room(self) && connect_lobby_take(&self->lobby, &guest)) {
        start_accept(self, &guest);
    }
}

static void *
listener_main(void *arg)
{
    dd_connector *self = arg;
    struct pollfd pollfds[1 + CONNECT_LISTEN_MAX + 1 + CONNECT_LOBBY_MAX] = {
        {.fd = self->wake_fd, .events = POLLIN}};
    int64_t look_ns = DD_NEVER_NS;
    int timeout_ms = -1;
    bool is_failing = false;
    while (look_at_books(self, &look_ns, &timeout_ms)) {
        start_accepts(self);
        bool is_full = !has_room(self);
        if (is_full) {
            call_off_the_shy(self);
        }
        if ((is_full || is_failing) && timeout_ms < 0) {
            timeout_ms = NAP_MS;
        }
        bool is_open = !is_failing && connect_lobby_has_room(&self->lobby);
        int fds[CONNECT_LISTEN_MAX + 1];
        size_t nlisten = connect_take_listeners(self, fds);
        for (size_t i = 0; i < nlisten; i++) {
            pollfds[1 + i] = (struct pollfd){.fd = is_open ? fds[i] : -1, .events = POLLIN};
        }
        struct pollfd *guests = pollfds + 1 + nlisten;
        nfds_t nguests = connect_lobby_poll(&self->lobby, guests, &timeout_ms);
        nap_until_woken(self, pollfds, (nfds_t)(1 + nlisten) + nguests, timeout_ms);
        connect_lobby_hear(&self->lobby, guests);
        is_failing = false;
        for (size_t i = 0; i < nlisten; i++) {
            if (pollfds[1 + i].revents != 0) {
                is_failing = !accept_from(self, fds[i]) || is_failing;
            }
        }
    }
    return NULL;
}

/* ---- life */

static void
free_connector(dd_connector *self)
{
    dd_blob_fini(&self->secret);
    dd_blob_fini(&self->ifnames);
    dd_mem_free(self);
}

static dd_status
check_options(const dd_connect_options *options, dd_error *err)
{
    if (options->first_port > options->last_port || (options->first_port == 0 && options->last_port != 0)) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "ports from %u to %u are no range", options->first_port,
                            options->last_port);
    }
    if (options->nlanes < 1) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "%d connections a peer are too few", options->nlanes);
    }
    return DD_OK;
}

static dd_status
create_connector(const dd_connect_options *options, const dd_connect_handler *handler, dd_connector **out,
                 dd_error *err)
{
    dd_connector *self = dd_mem_zalloc(sizeof *self);
    if (self == NULL) {
        return dd_error_no_memory(err, sizeof *self);
    }
    dd_status status = dd_blob_assign(&self->secret, options->secret, err);
    if (status == DD_OK) {
        status = dd_blob_append(&self->ifnames, options->ifnames, strlen(options->ifnames) + 1, err);
    }
    if (status != DD_OK) {
        free_connector(self);
        return status;
    }
    self->options = *options;
    self->options.secret = dd_blob_view(&self->secret);
    snprintf(self->congestion, sizeof self->congestion, "%s", options->congestion);
    self->options.congestion = self->congestion;
    self->options.ifnames = (const char *)self->ifnames.data;
    self->unix_fd = -1;
    self->wants_ports = true;
    self->handler = *handler;
    self->generation = dd_fork_generation();
    self->wake_fd = -1;
    connect_lobby_init(&self->lobby);
    dd_lock_init(&self->mu, DD_LOCK_CONNECTOR);
    dd_cond_init(&self->cond);
    dd_list_init(&self->jobs);
    dd_list_init(&self->dials.queue);
    dd_list_init(&self->accepts.queue);
    *out = self;
    return DD_OK;
}

static void
destroy_connector(dd_connector *self)
{
    connect_close_ports(&self->ports);
    dd_sock_close(self->unix_fd);
    connect_lobby_fini(&self->lobby);
    dd_sock_close(self->wake_fd);
    dd_lock_fini(&self->mu);
    dd_cond_fini(&self->cond);
    free_connector(self);
}

dd_status
dd_connector_open(const dd_connect_options *options, dd_card *card, const dd_addr *first,
                  const dd_connect_handler *handler, dd_connector **connector, dd_error *err)
{
    dd_connector *self = NULL;
    dd_status status = check_options(options, err);
    if (status == DD_OK) {
        status = create_connector(options, handler, &self, err);
    }
    if (status != DD_OK) {
        return status;
    }
    self->uid = card->uid;
    self->card = card;
    self->wake_fd = dd_fork_own(dd_sys_eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (self->wake_fd < 0) {
        status = dd_error_set_errno(err, DD_SYSTEM, errno, "cannot make an eventfd");
    }
    if (status == DD_OK) {
        status = connect_listen_tcp(self, first, &self->ports, &card->addrs, err);
    }
    if (status == DD_OK) {
        connect_listen_unix(self, card);
        status = dd_thread_start(&self->listener, "dd-listen", listener_main, self, err);
    }
    if (status != DD_OK) {
        destroy_connector(self);
        return status;
    }
    *connector = self;
    return DD_OK;
}

static void
drop_queued_locked(connect_pool *pool)
{
    while (!dd_list_is_empty(&pool->queue)) {
        connect_job *job = DD_CONTAINER_OF(pool->queue.next, connect_job, link);
        dd_list_remove(&job->link);
        dd_sock_close(job->fd);
        dd_mem_free(job);
    }
}

static void
call_off_all_locked(dd_connector *self)
{
    for (dd_list *at = self->jobs.next; at != &self->jobs; at = at->next) {
        connect_job *job = DD_CONTAINER_OF(at, connect_job, link);
        atomic_store_explicit(&job->is_called_off, true, memory_order_relaxed);
    }
    drop_queued_locked(&self->dials);
    drop_queued_locked(&self->accepts);
    dd_cond_broadcast(&self->cond);
}

void
dd_connector_close(dd_connector *self)
{
    if (self == NULL) {
        return;
    }
    if (self->generation != dd_fork_generation()) {
        /* The books may have been open when the process forked: what is in them is left where it is. */
        free_connector(self);
        return;
    }
    dd_lock_take(&self->mu);
    self->is_closing = true;
    call_off_all_locked(self);
    dd_lock_release(&self->mu);
    connect_wake_listener(self);
    dd_thread_join(self->listener);
    dd_lock_take(&self->mu);
    call_off_all_locked(self); /* those that came in meanwhile */
    while (self->dials.nthreads > 0 || self->accepts.nthreads > 0) {
        dd_cond_wait(&self->cond, &self->mu);
    }
    dd_lock_release(&self->mu);
    if (self->has_finished) {
        dd_thread_join(self->finished);
    }
    destroy_connector(self);
}
