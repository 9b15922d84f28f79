#include "net/admission.h"

#include "core/clock.h"

#include <errno.h>

#define FIRST_MESSAGE_NS (2 * DD_NS_PER_S)
/* Minimum for the limit of a stage, which otherwise is an eighth of the process's descriptors. */
#define LIMIT_MIN ((size_t)4)

void
dd_admission_init(dd_admission *self, size_t max_peers, int64_t grace_ns, dd_admission_close *close)
{
    *self = (dd_admission){.max_peers = max_peers,
                           .limit = max_peers,
                           .grace_ns = grace_ns,
                           .close = close,
                           .random_state = (uint64_t)dd_clock_now_ns()};
    dd_timer_set_init(&self->timers);
    for (int stage = 0; stage < DD_ADMISSION_STAGES; stage++) {
        dd_list_init(&self->peers[stage]);
    }
}

static void
on_late_peer(dd_timer *timer)
{
    dd_admission_peer *peer = DD_CONTAINER_OF(timer, dd_admission_peer, timer);
    peer->admission->close(peer, peer->stage == DD_ADMISSION_SILENT
                                     ? "no message before the deadline"
                                     : "handshake not finished before the deadline");
}

static void
add_peer(dd_admission *self, dd_admission_peer *peer, dd_admission_stage stage, int64_t timeout_ns)
{
    peer->admission = self;
    peer->stage = stage;
    peer->since_ns = dd_clock_now_ns();
    dd_list_push_back(&self->peers[stage], &peer->link);
    self->npeers[stage]++;
    dd_timer_init(&peer->timer, on_late_peer);
    dd_timer_start(&self->timers, &peer->timer, dd_deadline_from(peer->since_ns, timeout_ns));
}

static size_t
stage_limit(size_t max_peers)
{
    size_t limit = dd_sock_fd_limit() / 8;
    limit = limit < max_peers ? limit : max_peers;
    return limit > LIMIT_MIN ? limit : LIMIT_MIN;
}

void
dd_admission_begin(dd_admission *self, dd_admission_peer *peer, bool is_trusted, int64_t timeout_ns)
{
    self->limit = stage_limit(self->max_peers);
    add_peer(self, peer, is_trusted ? DD_ADMISSION_TRUSTED : DD_ADMISSION_SILENT,
             timeout_ns < FIRST_MESSAGE_NS ? timeout_ns : FIRST_MESSAGE_NS);
}

void
dd_admission_continue(dd_admission *self, dd_admission_peer *peer, int64_t timeout_ns)
{
    bool is_trusted = peer->stage == DD_ADMISSION_TRUSTED;
    dd_admission_end(self, peer);
    add_peer(self, peer, is_trusted ? DD_ADMISSION_TRUSTED : DD_ADMISSION_GREETED, timeout_ns);
}

void
dd_admission_end(dd_admission *self, dd_admission_peer *peer)
{
    if (!dd_list_is_empty(&peer->link)) {
        dd_list_remove(&peer->link);
        dd_timer_clear(&peer->timer);
        self->npeers[peer->stage]--;
    }
}

static dd_admission_peer *
pick_silent(dd_admission *self)
{
    size_t count = self->npeers[DD_ADMISSION_SILENT];
    if (count == 0) {
        return NULL;
    }
    self->random_state = self->random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    dd_list *link = self->peers[DD_ADMISSION_SILENT].next;
    for (size_t index = (size_t)(self->random_state >> 33) % count; index > 0; index--) {
        link = link->next;
    }
    return DD_CONTAINER_OF(link, dd_admission_peer, link);
}

static dd_admission_peer *
pick_greeted(const dd_admission *self)
{
    if (self->npeers[DD_ADMISSION_GREETED] == 0) {
        return NULL;
    }
    dd_admission_peer *oldest =
        DD_CONTAINER_OF(self->peers[DD_ADMISSION_GREETED].next, dd_admission_peer, link);
    return dd_clock_now_ns() - oldest->since_ns > self->grace_ns ? oldest : NULL;
}

static bool
evict_peer(dd_admission *self, dd_admission_peer *peer)
{
    if (peer != NULL) {
        self->close(peer, "evicted: too many unauthenticated connections");
    }
    return peer != NULL;
}

static dd_admission_peer *
pick_surplus(dd_admission *self)
{
    if (self->npeers[DD_ADMISSION_SILENT] > self->limit) {
        return pick_silent(self);
    }
    return self->npeers[DD_ADMISSION_GREETED] > self->limit ? pick_greeted(self) : NULL;
}

bool
dd_admission_evict_surplus(dd_admission *self, bool is_trusted)
{
    while (evict_peer(self, pick_surplus(self))) {
    }
    return is_trusted ? self->npeers[DD_ADMISSION_TRUSTED] < self->limit
                      : self->npeers[DD_ADMISSION_GREETED] <= self->limit;
}

/* Evict a peer, so that its descriptor becomes free. Return false if there is none to evict. */
static bool
evict_for_descriptor(dd_admission *self)
{
    dd_admission_peer *silent = pick_silent(self);
    return evict_peer(self, silent != NULL ? silent : pick_greeted(self));
}

dd_io
dd_admission_accept(dd_admission *self, int listen_fd, int *fd, int *shortage)
{
    dd_io io;
    do {
        io = dd_sock_try_accept(listen_fd, fd);
        *shortage = io == DD_IO_FAILED ? errno : 0;
    } while ((*shortage == EMFILE || *shortage == ENFILE) && evict_for_descriptor(self));
    if (io == DD_IO_OK && dd_sock_is_fd_scarce(*fd) && !evict_for_descriptor(self)) {
        *shortage = EMFILE;
    }
    return io;
}
