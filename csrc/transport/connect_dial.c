/* The dialler's side of handshakes. The addresses of a peer race: the first address that connects
 * gets the hello, and connections to other addresses wait for the result. */
#include "transport/connect_internal.h"

#include "core/fork.h"
#include "core/log.h"
#include "core/mem.h"
#include "net/sock.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Pause before the next address is tried if no address has connected yet. */
#define STAGGER_NS (100 * DD_NS_PER_MS)
/* Timeout for a listener that accepts but does not answer, if there are other addresses to try. */
#define SILENCE_NS (3 * DD_NS_PER_S)
/* Limits of retries after a rejection. A listener that is flooded or lacks descriptors may close a
 * connection before it reads the hello. If the lack of descriptors lasts, the listener reports that
 * itself. If the connection was closed for another reason, all retries fail. */
#define REJECTED_TRIES 50
#define REJECTED_PAUSE_NS (20 * DD_NS_PER_MS)
/* Pause before the second try of a peer that refuses at all addresses: another rank may report
 * why. */
#define REFUSED_PAUSE_NS (100 * DD_NS_PER_MS)
/* Pause before the next try while the queue of the peer's Unix socket is full. */
#define QUEUE_PAUSE_NS (2 * DD_NS_PER_MS)
/* First and longest pause after BUSY. Each pause is twice the previous one. */
#define BUSY_FIRST_NS (2 * DD_NS_PER_MS)
#define BUSY_LAST_NS (100 * DD_NS_PER_MS)
/* Timeout for the shared memory offer of a process of the same user, which has usually arrived. */
#define OFFER_TIMEOUT_NS DD_NS_PER_S

typedef enum dial_step {
    DIAL_NAPPING, /* pausing before the next attempt */
    DIAL_RACING,  /* connecting; no address has connected yet */
    DIAL_ANSWER,  /* an address has connected; its answer to the hello is awaited */
    DIAL_RESULT,  /* the listener's result is awaited */
    DIAL_OFFER,   /* the listener's offer of shared memory is awaited */
    DIAL_ENDED,   /* the dial has ended, and the owner is notified */
} dial_step;

typedef struct racer {
    const dd_addr *addr;
    int fd; /* socket; -1 if not begun, or if dropped from the race */
    bool is_started;
    size_t polled; /* index of fd in connector->pollfds; set by connect_poll */
} racer;

struct connect_dial {
    dd_list link; /* link in connector->queue or connector->dials */
    /* all fields up to `wait` are const after init */
    dd_connector *connector;
    dd_endpoint endpoint;
    dd_addr unix_addr; /* the peer's Unix socket; its len is 0 if it is not tried */
    dd_addr_list addrs;
    int lane;
    uint64_t number; /* number that the owner gave this dial */
    dd_wait wait;    /* start and deadline of the dial */
    /* this field and all below are used only by the connector's thread */
    dial_step step;
    int64_t step_until_ns; /* end of DIAL_NAPPING, or time by which `active` must answer */
    int64_t pause_ns;      /* the last pause after BUSY; 0 before the first BUSY */
    int ntries;
    bool was_refused; /* true if all addresses refused in an earlier race */
    bool was_silent;  /* true if an address was dropped because it did not answer */
    bool was_rejected;
    racer racers[CONNECT_RACERS_MAX];
    size_t count;
    size_t nstarted;
    size_t nunderway;
    int64_t next_start_ns;
    racer *active;
    connect_hello hello;
    dd_noise noise; /* key exchange, from a sealed hello until its answer */
    dd_seal *seal;  /* encrypts the connection from the hello's answer on; or NULL */
    connect_answer answer;
    uint8_t received[CONNECT_ANSWER_BYTES];
    size_t nreceived;
    dd_error why; /* failures of all addresses so far; code is DD_OK if there are none */
};

static bool
has_unix(const connect_dial *self)
{
    return self->unix_addr.len > 0;
}

static bool
is_unix(const racer *one)
{
    return one->addr->storage.ss_family == AF_UNIX;
}

/* ---- ending a dial */

/* End the handshake with the active address, and wipe its keys. */
static void
end_handshake(connect_dial *self)
{
    self->active = NULL;
    dd_noise_wipe(&self->noise);
    dd_seal_destroy(self->seal);
    self->seal = NULL;
}

static void
stop_racing(connect_dial *self)
{
    for (size_t i = 0; i < self->count; i++) {
        dd_sock_close(self->racers[i].fd);
        self->racers[i].fd = -1;
    }
    self->nunderway = 0;
    end_handshake(self);
}

static void
nap(connect_dial *self, int64_t duration_ns)
{
    stop_racing(self);
    self->step = DIAL_NAPPING;
    self->step_until_ns = dd_deadline_after(duration_ns);
}

/* Return true if the endpoint belongs to another host and has only loopback addresses. */
static bool
is_out_of_reach(const connect_dial *self)
{
    const dd_addr_list *addrs = &self->addrs;
    bool is_loopback =
        addrs->count > 0 && !dd_endpoint_is_same_host(&self->endpoint, self->connector->endpoint);
    for (size_t i = 0; i < addrs->count; i++) {
        is_loopback = is_loopback && dd_addr_is_loopback(&addrs->items[i]);
    }
    return is_loopback;
}

static void
dial_fail(connect_dial *self, const dd_error *why)
{
    const dd_connect_handler *handler = &self->connector->handler;
    dd_error err = *why;
    char peer_name[96];
    stop_racing(self);
    self->step = DIAL_ENDED;
    if (is_out_of_reach(self)) {
        dd_error_prepend(
            &err,
            "only reachable on its own host, because its store is at a loopback address; give all ranks the "
            "store's network address, or set DLDIST_SOCKET_IFNAME there");
    }
    dd_error_prepend(&err, "cannot connect to %s", dd_endpoint_print(&self->endpoint, peer_name));
    dd_error_blame(&err, -1, self->endpoint.host, self->endpoint.pid);
    handler->on_dial_failed(handler->ctx, &self->endpoint.uid, self->lane, self->number, &err);
}

static void
end_with_link(connect_dial *self, dd_link *link)
{
    const dd_connect_handler *handler = &self->connector->handler;
    self->active->fd = -1; /* the link now owns the socket */
    self->seal = NULL;     /* the link now owns the seal */
    stop_racing(self);
    self->step = DIAL_ENDED;
    handler->on_dialled(handler->ctx, &self->endpoint.uid, self->lane, self->number, link);
}

/* Query whether the owner still wants lane 0. If not, end the dial and return false. */
static bool
dial_is_wanted(connect_dial *self, bool is_busy)
{
    const dd_connect_handler *handler = &self->connector->handler;
    if (self->lane != 0 || handler->wants_dial(handler->ctx, &self->endpoint.uid, self->number, is_busy)) {
        return true;
    }
    stop_racing(self);
    self->step = DIAL_ENDED;
    return false;
}

static void
retry_after_busy(connect_dial *self)
{
    if (!dial_is_wanted(self, true)) {
        return;
    }
    self->pause_ns = self->pause_ns == 0 ? BUSY_FIRST_NS : self->pause_ns * 2;
    self->pause_ns = self->pause_ns < BUSY_LAST_NS ? self->pause_ns : BUSY_LAST_NS;
    nap(self, self->pause_ns);
}

/* ---- the race of addresses */

/* Add an address's failure to self->why. A peer's reply determines the code rather than a timeout.
 * The error counts as this process's own only if all addresses failed because of this process. */
static void
dial_note_failure(connect_dial *self, const racer *one, const dd_error *why)
{
    char text[DD_ADDR_TEXT_MAX];
    dd_error all = *why;
    dd_addr_print(one->addr, text);
    if (self->why.code == DD_OK) {
        snprintf(all.message, sizeof all.message, "%.200s: %.300s", text, why->message);
    } else {
        snprintf(all.message, sizeof all.message, "%.600s; %.100s: %.250s", self->why.message, text,
                 why->message);
        bool was_own = dd_error_is_local(&self->why);
        bool is_more_specific = self->why.code != DD_NETWORK && self->why.code != DD_NETWORK_TIMED_OUT;
        if (is_more_specific && !(was_own && why->code == DD_OUT_OF_MEMORY)) {
            all.code = self->why.code;
        }
        if (!was_own) {
            all.sys_errno = self->why.sys_errno;
        }
    }
    self->why = all;
}

static void
drop_racer(connect_dial *self, racer *one, const dd_error *why)
{
    dial_note_failure(self, one, why);
    if (self->active == one) {
        connect_note_shortage(self->connector, why);
    }
    if (one->fd >= 0) {
        dd_sock_close(one->fd);
        one->fd = -1;
        self->nunderway--;
    }
    end_handshake(self);
    self->step = DIAL_RACING;
    bool is_final = why->code == DD_AUTH || why->code == DD_OUT_OF_MEMORY || dd_wait_has_expired(&self->wait);
    if (is_unix(one) && self->count > 1 && !is_final) {
        char peer_name[96];
        DD_LOG(DD_LOG_INFO, "no shared memory with %s on this host, using TCP: %s",
               dd_endpoint_print(&self->endpoint, peer_name), why->message);
    }
    if (why->code == DD_OUT_OF_MEMORY || (is_unix(one) && why->code == DD_AUTH)) {
        dial_fail(self, &self->why); /* no other address can succeed */
    } else if (self->nunderway == 0) {
        self->next_start_ns = 0;
    }
}

static void
start_racer(connect_dial *self, racer *one)
{
    dd_error why = {0};
    self->next_start_ns = is_unix(one) ? DD_NEVER_NS : dd_deadline_after(STAGGER_NS);
    dd_status status = dd_sock_begin_connect(one->addr, &one->fd, &why);
    if (status != DD_OK && is_unix(one) && why.sys_errno == EAGAIN) {
        self->next_start_ns = dd_deadline_after(QUEUE_PAUSE_NS);
        return;
    }
    one->is_started = true;
    self->nstarted++;
    self->nunderway += status == DD_OK ? 1 : 0;
    if (status == DD_OK && !is_unix(one)) {
        status = connect_set_congestion(self->connector, one->fd, &why);
    }
    if (status != DD_OK) {
        drop_racer(self, one, &why);
    }
}

/* Begin to try all addresses, the Unix socket first. */
static void
begin_race(connect_dial *self)
{
    const dd_addr_list *addrs = &self->addrs;
    self->step = DIAL_RACING;
    self->count = 0;
    self->nstarted = 0;
    self->next_start_ns = 0;
    self->was_silent = false;
    self->was_rejected = false;
    self->why = (dd_error){0};
    if (has_unix(self)) {
        self->racers[self->count++] = (racer){.addr = &self->unix_addr, .fd = -1};
    }
    for (size_t i = 0; i < addrs->count; i++) {
        self->racers[self->count++] = (racer){.addr = &addrs->items[i], .fd = -1};
    }
}

static void
end_race(connect_dial *self)
{
    if (self->count == 0) {
        (void)dd_error_set(&self->why, DD_NETWORK, "the peer has published no address");
        dial_fail(self, &self->why);
    } else if (self->was_rejected && ++self->ntries < REJECTED_TRIES) {
        nap(self, REJECTED_PAUSE_NS);
    } else if (self->was_silent) {
        nap(self, 0);
    } else if (self->why.code == DD_NETWORK && !dd_error_is_local(&self->why) && !self->was_refused) {
        self->was_refused = true;
        nap(self, REFUSED_PAUSE_NS);
    } else {
        dial_fail(self, &self->why);
    }
}

/* Fail a dial whose deadline has passed. */
static void
dial_time_out(connect_dial *self)
{
    double waited_s = dd_wait_elapsed_s(&self->wait);
    dd_error why = {0};
    if (self->pause_ns > 0 && self->why.code == DD_OK) {
        (void)dd_error_set(&why, DD_NETWORK_TIMED_OUT,
                           "the peer was busy with another connection to this process for %.3f s", waited_s);
        dial_fail(self, &why);
        return;
    }
    for (size_t i = 0; i < self->count; i++) {
        if (self->racers[i].fd >= 0) {
            (void)dd_error_set(&why, DD_NETWORK_TIMED_OUT, "no answer for %.3f s", waited_s);
            dial_note_failure(self, &self->racers[i], &why);
        }
    }
    if (self->why.code == DD_OK) {
        (void)dd_error_set(&self->why, DD_NETWORK_TIMED_OUT,
                           "not tried within %.3f s, because other connections came first", waited_s);
    }
    dial_fail(self, &self->why);
}

/* ---- the handshake */

static dd_status
dial_send_hello(connect_dial *self, const racer *one, dd_error *err)
{
    const dd_connector *connector = self->connector;
    if (is_unix(one) && !dd_sock_is_same_user(one->fd)) {
        return dd_error_set(err, DD_NETWORK, "the process belongs to another user");
    }
    self->hello = (connect_hello){.from = connector->uid,
                                  .to = self->endpoint.uid,
                                  .lane = (uint32_t)self->lane,
                                  .has_secret = connector->options.secret.len > 0,
                                  .is_sealed = connect_is_sealed(connector, is_unix(one))};
    dd_status status = self->hello.is_sealed ? connect_seal_begin(&self->noise, &self->hello, err)
                                             : connect_hello_write(&self->hello, err);
    if (status == DD_OK) {
        status = connect_send(one->fd, NULL, self->hello.bytes, connect_hello_nbytes(&self->hello), err);
        self->was_rejected = self->was_rejected || status != DD_OK;
    }
    return status;
}

static void
begin_handshake(connect_dial *self, racer *one)
{
    dd_error why = {0};
    dd_status status = dd_sock_end_connect(one->fd, &why);
    if (status == DD_OK && !dial_is_wanted(self, false)) {
        return;
    }
    if (status == DD_OK) {
        status = dial_send_hello(self, one, &why);
    }
    if (status != DD_OK) {
        drop_racer(self, one, &why);
        return;
    }
    bool is_alone = self->nunderway == 1 && self->nstarted == self->count;
    self->active = one;
    self->step = DIAL_ANSWER;
    self->nreceived = 0;
    self->step_until_ns = is_alone || is_unix(one) ? DD_NEVER_NS : dd_deadline_after(SILENCE_NS);
}

static dd_status
dial_prove(connect_dial *self, dd_error *err)
{
    dd_bytes secret = self->connector->options.secret;
    const connect_answer *answer = &self->answer;
    if (self->hello.is_sealed) {
        const uint8_t byte[CONNECT_SEALED_PROOF_BYTES] = {0};
        dd_status status = connect_seal_finish(&self->noise, secret, self->received, &self->seal, err);
        return status == DD_OK ? connect_send(self->active->fd, self->seal, byte, sizeof byte, err) : status;
    }
    dd_bytes opening = connect_hello_opening(&self->hello);
    if (!dd_auth_check(secret, DD_AUTH_LINK_LISTENER, opening, answer->nonce,
                       dd_bytes_of(answer->proof, sizeof answer->proof))) {
        return connect_explain(CONNECT_DENIED, CONNECT_DIALER, answer->version, err);
    }
    uint8_t proof[DD_SHA256_BYTES];
    dd_auth_prove(secret, DD_AUTH_LINK_DIALER, opening, answer->nonce, proof);
    return connect_send(self->active->fd, NULL, proof, sizeof proof, err);
}

static dd_status
receive_answer(connect_dial *self, dd_error *err)
{
    connect_answer *answer = &self->answer;
    bool is_whole = false;
    dd_status status = connect_receive(self->active->fd, NULL, self->received, CONNECT_ANSWER_BYTES,
                                       &self->nreceived, &is_whole, err);
    self->was_rejected = self->was_rejected || status != DD_OK;
    if (status != DD_OK || !is_whole) {
        return status;
    }
    if (!connect_answer_read(self->received, answer)) {
        return dd_error_set(err, DD_PROTOCOL,
                            "handshake failed: not a dldist process; another program may use this address");
    }
    if (answer->version != DD_ENDPOINT_VERSION || answer->result != CONNECT_GO_ON) {
        return connect_explain(answer->version != DD_ENDPOINT_VERSION ? CONNECT_OTHER_VERSION
                                                                      : answer->result,
                               CONNECT_DIALER, answer->version, err);
    }
    self->step = DIAL_RESULT;
    self->nreceived = 0;
    return self->hello.has_secret ? dial_prove(self, err) : DD_OK;
}

static dd_status
receive_result(connect_dial *self, dd_error *err)
{
    bool is_whole = false;
    dd_link *link = NULL;
    dd_status status =
        connect_receive(self->active->fd, self->seal, self->received, 1, &self->nreceived, &is_whole, err);
    if (status != DD_OK || !is_whole) {
        return status;
    }
    if (self->received[0] == CONNECT_BUSY) {
        retry_after_busy(self);
    } else if (self->received[0] != CONNECT_OK) {
        status =
            connect_explain((connect_result)self->received[0], CONNECT_DIALER, self->answer.version, err);
    } else if (is_unix(self->active)) {
        self->step = DIAL_OFFER;
    } else {
        status = dd_link_open_tcp(self->active->fd, self->seal, &link, err);
    }
    if (link != NULL) {
        end_with_link(self, link);
    }
    return status;
}

static dd_status
take_offer(connect_dial *self, dd_error *err)
{
    dd_link *link = NULL;
    dd_wait moment = dd_wait_at_most(&self->wait, OFFER_TIMEOUT_NS);
    dd_status status = dd_link_take_shm(self->active->fd, &link, &moment, err);
    if (status == DD_OK) {
        end_with_link(self, link);
    }
    return status;
}

static void
advance_handshake(connect_dial *self)
{
    dd_error why = {0};
    dd_status status = DD_OK;
    if (connect_is_ready(self->connector, &self->active->polled)) {
        /* Handle several messages, since the next one may have arrived already. */
        status = self->step == DIAL_ANSWER ? receive_answer(self, &why) : DD_OK;
        if (status == DD_OK && self->step == DIAL_RESULT) {
            status = receive_result(self, &why);
        } else if (status == DD_OK && self->step == DIAL_OFFER) {
            status = take_offer(self, &why);
        }
    } else if (dd_deadline_left_ns(self->step_until_ns) == 0) {
        self->was_silent = true;
        status = dd_error_set(&why, DD_NETWORK_TIMED_OUT, "no handshake reply for %.3f s",
                              (double)SILENCE_NS / DD_NS_PER_S);
    }
    if (status != DD_OK) {
        drop_racer(self, self->active, &why);
    }
}

/* ---- functions for the connector's loop */

static bool
is_in_handshake(const connect_dial *self)
{
    return self->step == DIAL_ANSWER || self->step == DIAL_RESULT || self->step == DIAL_OFFER;
}

static void
race(connect_dial *self)
{
    for (size_t i = 0; i < self->count && self->step == DIAL_RACING; i++) {
        if (self->racers[i].fd >= 0 && connect_is_ready(self->connector, &self->racers[i].polled)) {
            begin_handshake(self, &self->racers[i]);
        }
    }
    for (size_t i = 0; i < self->count && self->step == DIAL_RACING; i++) {
        if (!self->racers[i].is_started && dd_deadline_left_ns(self->next_start_ns) == 0) {
            start_racer(self, &self->racers[i]);
        }
    }
    if (self->step == DIAL_RACING && self->nunderway == 0 && self->nstarted == self->count) {
        end_race(self);
    }
}

static void
dial_run(connect_dial *self)
{
    if (dd_wait_has_expired(&self->wait)) {
        dial_time_out(self);
        return;
    }
    if (self->step == DIAL_NAPPING && dd_deadline_left_ns(self->step_until_ns) == 0) {
        begin_race(self);
    }
    if (is_in_handshake(self)) {
        advance_handshake(self);
    }
    if (self->step == DIAL_RACING) {
        race(self);
    }
}

void
connect_run_dials(dd_connector *self)
{
    dd_lock_take(&self->mu);
    while (!dd_list_is_empty(&self->queue) && self->ndials < CONNECT_DIALS_MAX) {
        connect_dial *dial = DD_CONTAINER_OF(self->queue.next, connect_dial, link);
        dd_list_remove(&dial->link);
        dd_list_push_back(&self->dials, &dial->link);
        self->ndials++;
    }
    dd_lock_release(&self->mu);
    for (dd_list *at = self->dials.next; at != &self->dials;) {
        connect_dial *dial = DD_CONTAINER_OF(at, connect_dial, link);
        at = at->next;
        dial_run(dial);
        if (dial->step == DIAL_ENDED) {
            dd_list_remove(&dial->link);
            dd_mem_free(dial);
            self->ndials--;
        }
    }
}

static void
poll_dial(connect_dial *self)
{
    connect_sleep_until(self->connector, self->wait.deadline_ns);
    if (self->step != DIAL_RACING) {
        connect_sleep_until(self->connector, self->step_until_ns);
    } else if (self->nstarted < self->count) {
        connect_sleep_until(self->connector, self->next_start_ns);
    }
    for (size_t i = 0; i < self->count; i++) {
        racer *one = &self->racers[i];
        if (one == self->active) {
            connect_poll(self->connector, one->fd, POLLIN, &one->polled);
        } else if (one->fd >= 0 && self->active == NULL) {
            connect_poll(self->connector, one->fd, POLLOUT, &one->polled);
        } else {
            one->polled = 0;
        }
    }
}

void
connect_poll_dials(dd_connector *self)
{
    for (dd_list *at = self->dials.next; at != &self->dials; at = at->next) {
        poll_dial(DD_CONTAINER_OF(at, connect_dial, link));
    }
    /* Do not sleep if a queued dial can begin now. */
    dd_lock_take(&self->mu);
    bool can_begin = !dd_list_is_empty(&self->queue) && self->ndials < CONNECT_DIALS_MAX;
    dd_lock_release(&self->mu);
    if (can_begin) {
        connect_sleep_until(self, 0);
    }
}

static void
destroy_dials(dd_list *list)
{
    while (!dd_list_is_empty(list)) {
        connect_dial *dial = DD_CONTAINER_OF(list->next, connect_dial, link);
        stop_racing(dial);
        dd_list_remove(&dial->link);
        dd_mem_free(dial);
    }
}

void
connect_destroy_dials(dd_connector *self)
{
    destroy_dials(&self->dials);
    destroy_dials(&self->queue);
}

dd_status
dd_connector_dial(dd_connector *self, const dd_endpoint *peer, const dd_addr_list *addrs, int lane,
                  uint64_t number, int64_t deadline_ns, dd_error *err)
{
    if (self->generation != dd_fork_generation()) {
        return dd_error_set(err, DD_FORKED, "cannot connect in a forked child");
    }
    if (lane < 0 || lane >= self->options.nlanes) {
        return dd_error_set(err, DD_INVALID_ARGUMENT,
                            "cannot open connection %d to a peer, expected less than %d", lane,
                            self->options.nlanes);
    }
    connect_dial *dial = dd_mem_zalloc(sizeof *dial);
    if (dial == NULL) {
        return dd_error_no_memory(err, sizeof *dial);
    }
    dial->connector = self;
    dial->endpoint = *peer;
    dial->addrs = *addrs;
    dial->lane = lane;
    dial->number = number;
    dial->wait = (dd_wait){.start_ns = dd_clock_now_ns(), .deadline_ns = deadline_ns};
    if (lane == 0 && !self->options.is_shm_disabled && peer->has_unix &&
        dd_endpoint_is_same_host(peer, self->endpoint)) {
        dial->unix_addr = dd_endpoint_unix_addr(peer);
    }
    dd_lock_take(&self->mu);
    dd_list_push_back(&self->queue, &dial->link);
    dd_lock_release(&self->mu);
    connect_wake(self);
    return DD_OK;
}
