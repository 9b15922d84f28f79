/* The listener's side of handshakes. Any process that can reach the port can connect. Therefore
 * connections that are not links yet use no thread and few descriptors, and a peer's data is not
 * trusted before its proof of the secret (if there is no secret, there is no proof). */
#include "transport/connect_internal.h"

#include "core/log.h"
#include "core/mem.h"
#include "net/sock.h"

#include <string.h>

/* Time within which a dialler continues the handshake, unless its CPU is overloaded. */
#define GRACE_NS DD_NS_PER_S
/* Timeout for the one-byte answer of a process of the same user, which has usually arrived. */
#define TAKEN_TIMEOUT_NS DD_NS_PER_S

/* ---- removing connections */

static void
remove_incoming(dd_connector *self, connect_incoming *incoming)
{
    if (incoming->link != NULL) {
        dd_link_close(incoming->link);
    } else {
        dd_sock_close(incoming->fd);
    }
    dd_seal_destroy(incoming->seal);
    dd_admission_end(&self->admission, &incoming->admission);
    dd_list_remove(&incoming->node);
    dd_mem_free(incoming);
}

static void
reject_incoming(dd_connector *self, connect_incoming *incoming, const char *why)
{
    char from[DD_ADDR_TEXT_MAX];
    dd_addr addr = dd_sock_peer_addr(incoming->fd);
    DD_LOG(DD_LOG_INFO, "connection from %s rejected: %s", dd_addr_print(&addr, from), why);
    if (incoming->step == INCOMING_TAKING) {
        self->handler.on_accept_failed(self->handler.ctx, &incoming->hello.from);
    }
    remove_incoming(self, incoming);
}

/* ---- steps of a handshake */

static void
continue_step(dd_connector *self, connect_incoming *incoming, incoming_step step)
{
    dd_admission_continue(&self->admission, &incoming->admission, self->options.timeout_ns);
    incoming->step = step;
    incoming->nreceived = 0;
}

static connect_result
choose_result(const dd_connector *self, const connect_incoming *incoming)
{
    const connect_hello *hello = &incoming->hello;
    bool has_secret = self->options.secret.len > 0;
    if (hello->version != DD_ENDPOINT_VERSION) {
        return CONNECT_OTHER_VERSION;
    }
    if (memcmp(&hello->to, &self->uid, sizeof hello->to) != 0 ||
        memcmp(&hello->from, &self->uid, sizeof hello->from) == 0) {
        return CONNECT_OTHER_PROCESS;
    }
    if (has_secret != hello->has_secret) {
        return has_secret ? CONNECT_SECRET_WANTED : CONNECT_NO_SECRET;
    }
    if (connect_is_sealed(self, incoming->is_unix) != hello->is_sealed) {
        return hello->is_sealed ? CONNECT_NO_ENCRYPTION : CONNECT_ENCRYPTION_WANTED;
    }
    if (hello->is_sealed && !dd_seal_knows(hello->cipher)) {
        return CONNECT_NO_CIPHER;
    }
    if (hello->lane >= (uint32_t)self->options.nlanes || (incoming->is_unix && hello->lane != 0)) {
        return CONNECT_NO_SUCH_LANE;
    }
    return CONNECT_GO_ON;
}

static dd_status
send_result(const connect_incoming *incoming, connect_result result, dd_error *err)
{
    const uint8_t byte = (uint8_t)result;
    return connect_send(incoming->fd, incoming->seal, &byte, 1, err);
}

static void
accept_hand_over(dd_connector *self, connect_incoming *incoming)
{
    dd_link *link = incoming->link;
    incoming->link = NULL;
    incoming->fd = -1;
    self->handler.on_accepted(self->handler.ctx, &incoming->hello.from, (int)incoming->hello.lane, link);
}

/* Accept a peer, which must have been authenticated if there is a secret. Sets *is_done to true if
 * the connection needs no further step. */
static dd_status
accept_peer(dd_connector *self, connect_incoming *incoming, bool *is_done, dd_error *err)
{
    const dd_connect_handler *handler = &self->handler;
    bool is_first = incoming->hello.lane == 0;
    *is_done = true;
    if (is_first && !handler->may_accept(handler->ctx, &incoming->hello.from)) {
        return send_result(incoming, CONNECT_BUSY, err);
    }
    /* Over TCP, open the link before sending the result: the dialler uses the link immediately. */
    dd_status status =
        incoming->is_unix ? DD_OK : dd_link_open_tcp(incoming->fd, incoming->seal, &incoming->link, err);
    if (status == DD_OK) {
        status = send_result(incoming, CONNECT_OK, err);
    }
    if (incoming->link != NULL) {
        incoming->seal = NULL; /* the link now owns the seal */
    }
    if (status == DD_OK && incoming->is_unix) {
        status = dd_link_offer_shm(incoming->fd, self->options.ring_nbytes, &incoming->link, err);
    }
    if (status != DD_OK) {
        if (is_first) {
            handler->on_accept_failed(handler->ctx, &incoming->hello.from);
        }
        return status;
    }
    if (incoming->is_unix) {
        continue_step(self, incoming, INCOMING_TAKING);
        *is_done = false;
    } else {
        accept_hand_over(self, incoming);
    }
    return DD_OK;
}

/* Complete an answer with result GO_ON: add this side's proof, or its part of the key exchange. */
static dd_status
complete_answer(const dd_connector *self, connect_incoming *incoming, connect_answer *answer,
                uint8_t bytes[CONNECT_ANSWER_BYTES], dd_error *err)
{
    dd_bytes secret = self->options.secret;
    if (incoming->hello.is_sealed) {
        connect_answer_write(answer, bytes);
        return connect_seal_answer(secret, &incoming->hello, bytes, &incoming->seal, err);
    }
    dd_status status = DD_OK;
    if (secret.len > 0) {
        status = dd_auth_random(answer->nonce, sizeof answer->nonce, err);
        dd_auth_prove(secret, DD_AUTH_LINK_LISTENER, connect_hello_opening(&incoming->hello), answer->nonce,
                      answer->proof);
        memcpy(incoming->nonce, answer->nonce, sizeof incoming->nonce);
    }
    connect_answer_write(answer, bytes);
    return status;
}

static dd_status
answer_hello(dd_connector *self, connect_incoming *incoming, bool *is_done, dd_error *err)
{
    if (!connect_hello_read(&incoming->hello)) {
        return dd_error_set(err, DD_PROTOCOL, "not a dldist connection");
    }
    uint8_t bytes[CONNECT_ANSWER_BYTES];
    connect_answer answer = {.result = choose_result(self, incoming)};
    connect_answer_write(&answer, bytes);
    bool goes_on = answer.result == CONNECT_GO_ON;
    dd_status status = goes_on ? complete_answer(self, incoming, &answer, bytes, err) : DD_OK;
    if (status == DD_AUTH) {
        answer.result = CONNECT_DENIED;
        connect_answer_write(&answer, bytes);
    }
    if (status == DD_OK || status == DD_AUTH) {
        /* Send the answer without the seal, since an answer is never encrypted. */
        dd_status sent = connect_send(incoming->fd, NULL, bytes, sizeof bytes, status == DD_OK ? err : NULL);
        status = status == DD_OK ? sent : status;
    }
    if (status != DD_OK) {
        return status;
    }
    if (!goes_on) {
        return connect_explain(answer.result, CONNECT_LISTENER, incoming->hello.version, err);
    }
    if (self->options.secret.len == 0) {
        return accept_peer(self, incoming, is_done, err);
    }
    continue_step(self, incoming, INCOMING_PROOF);
    return DD_OK;
}

static dd_status
receive_hello(dd_connector *self, connect_incoming *incoming, bool *is_done, dd_error *err)
{
    bool is_whole = false;
    size_t nbytes =
        incoming->nreceived < CONNECT_HELLO_BYTES ? CONNECT_HELLO_BYTES : CONNECT_SEALED_HELLO_BYTES;
    dd_status status = connect_receive(incoming->fd, NULL, incoming->hello.bytes, nbytes,
                                       &incoming->nreceived, &is_whole, err);
    if (status == DD_OK && !connect_is_hello_so_far(incoming->hello.bytes, incoming->nreceived)) {
        return dd_error_set(err, DD_PROTOCOL, "not a dldist connection");
    }
    if (status != DD_OK || !is_whole) {
        return status;
    }
    return incoming->nreceived < connect_hello_nbytes(&incoming->hello)
               ? receive_hello(self, incoming, is_done, err)
               : answer_hello(self, incoming, is_done, err);
}

/* Return true if the peer has proved that it knows the secret. A valid seal is also a proof. */
static bool
is_proof(const dd_connector *self, const connect_incoming *incoming)
{
    return incoming->seal != NULL ||
           dd_auth_check(self->options.secret, DD_AUTH_LINK_DIALER, connect_hello_opening(&incoming->hello),
                         incoming->nonce, dd_bytes_of(incoming->proof, sizeof incoming->proof));
}

static dd_status
receive_proof(dd_connector *self, connect_incoming *incoming, bool *is_done, dd_error *err)
{
    bool is_whole = false;
    size_t nbytes = incoming->seal != NULL ? CONNECT_SEALED_PROOF_BYTES : sizeof incoming->proof;
    dd_status status = connect_receive(incoming->fd, incoming->seal, incoming->proof, nbytes,
                                       &incoming->nreceived, &is_whole, err);
    if (status != DD_OK || !is_whole) {
        return status;
    }
    if (!is_proof(self, incoming)) {
        (void)!send_result(incoming, CONNECT_DENIED, NULL);
        return connect_explain(CONNECT_DENIED, CONNECT_LISTENER, incoming->hello.version, err);
    }
    return accept_peer(self, incoming, is_done, err);
}

static dd_status
receive_taken(dd_connector *self, connect_incoming *incoming, bool *is_done, dd_error *err)
{
    dd_wait wait = dd_wait_after(TAKEN_TIMEOUT_NS);
    dd_status status = dd_link_receive_taken(incoming->link, &wait, err);
    if (status == DD_OK) {
        *is_done = true;
        accept_hand_over(self, incoming);
    }
    return status;
}

static void
advance_incoming(dd_connector *self, connect_incoming *incoming)
{
    static dd_status (*const steps[])(dd_connector *, connect_incoming *, bool *,
                                      dd_error *) = {[INCOMING_HELLO] = receive_hello,
                                                     [INCOMING_PROOF] = receive_proof,
                                                     [INCOMING_TAKING] = receive_taken};
    dd_error err = {0};
    bool is_done = false;
    if (steps[incoming->step](self, incoming, &is_done, &err) != DD_OK) {
        connect_note_shortage(self, &err);
        reject_incoming(self, incoming, err.message);
    } else if (is_done) {
        remove_incoming(self, incoming);
    }
}

/* ---- functions for the connector's loop */

static void
close_evicted(dd_admission_peer *peer, const char *why)
{
    connect_incoming *incoming = DD_CONTAINER_OF(peer, connect_incoming, admission);
    reject_incoming(incoming->connector, incoming, why);
}

void
connect_init_incoming(dd_connector *self)
{
    dd_list_init(&self->incoming_all);
    dd_admission_init(&self->admission, CONNECT_STAGE_MAX, GRACE_NS, close_evicted);
}

void
connect_add_incoming(dd_connector *self, int fd, bool is_unix)
{
    connect_incoming *incoming = dd_mem_zalloc(sizeof *incoming);
    if (incoming == NULL) {
        dd_error err;
        (void)dd_error_no_memory(&err, sizeof *incoming);
        connect_note_shortage(self, &err);
        dd_sock_close(fd);
        return;
    }
    *incoming = (connect_incoming){.connector = self, .fd = fd, .is_unix = is_unix};
    dd_list_push_back(&self->incoming_all, &incoming->node);
    dd_admission_begin(&self->admission, &incoming->admission, is_unix, self->options.timeout_ns);
    if (is_unix && !dd_sock_is_same_user(fd)) {
        reject_incoming(self, incoming, "the process belongs to another user");
    } else {
        advance_incoming(self, incoming);
    }
}

void
connect_poll_incoming(dd_connector *self)
{
    for (dd_list *node = self->incoming_all.next; node != &self->incoming_all; node = node->next) {
        connect_incoming *incoming = DD_CONTAINER_OF(node, connect_incoming, node);
        connect_poll(self, incoming->fd, POLLIN, &incoming->polled);
    }
    connect_sleep_until(self, dd_timer_set_next_ns(&self->admission.timers));
}

void
connect_advance_incoming(dd_connector *self)
{
    for (dd_list *node = self->incoming_all.next, *next; node != &self->incoming_all; node = next) {
        connect_incoming *incoming = DD_CONTAINER_OF(node, connect_incoming, node);
        next = node->next;
        if (connect_is_ready(self, &incoming->polled)) {
            advance_incoming(self, incoming);
        }
    }
    dd_timer_set_run(&self->admission.timers, dd_clock_now_ns());
}

void
connect_close_incoming(dd_connector *self)
{
    while (!dd_list_is_empty(&self->incoming_all)) {
        remove_incoming(self, DD_CONTAINER_OF(self->incoming_all.next, connect_incoming, node));
    }
}
