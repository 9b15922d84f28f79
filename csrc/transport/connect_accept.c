/* The listener's side of handshakes. Any process that can reach the port can connect, so
 * connections that are not links yet use no thread and few descriptors. Nothing that a peer sends
 * is trusted before its proof; without a secret there is no proof. */
#include "transport/connect_internal.h"

#include "core/log.h"
#include "core/mem.h"
#include "net/sock.h"

#include <string.h>

/* A dialler answers within this time unless its CPU is overloaded. */
#define GRACE_NS DD_NS_PER_S
/* Limit of waiting for the answer of a process of the same user: one byte, which has arrived. */
#define MOMENT_NS DD_NS_PER_S

/* ---- removal */

static void
remove_guest(dd_connector *self, connect_guest *guest)
{
    if (guest->link != NULL) {
        dd_link_close(guest->link);
    } else {
        dd_sock_close(guest->fd);
    }
    dd_seal_destroy(guest->seal);
    dd_admission_end(&self->admission, &guest->admission);
    dd_list_remove(&guest->node);
    dd_mem_free(guest);
}

static void
turn_out(dd_connector *self, connect_guest *guest, const char *why)
{
    char from[DD_ADDR_TEXT_MAX];
    dd_addr addr = dd_sock_peer_addr(guest->fd);
    DD_LOG(DD_LOG_INFO, "connection from %s came to nothing: %s", dd_addr_print(&addr, from), why);
    if (guest->step == GUEST_TAKING) {
        self->handler.on_accept_failed(self->handler.ctx, &guest->hello.from);
    }
    remove_guest(self, guest);
}

/* ---- steps */

static void
continue_step(dd_connector *self, connect_guest *guest, guest_step step)
{
    dd_admission_continue(&self->admission, &guest->admission, self->options.timeout_ns);
    guest->step = step;
    guest->nheard = 0;
}

static connect_verdict
judge(const dd_connector *self, const connect_guest *guest)
{
    const connect_hello *hello = &guest->hello;
    bool has_secret = self->options.secret.len > 0;
    if (hello->version != DD_CARD_VERSION) {
        return CONNECT_OTHER_VERSION;
    }
    if (memcmp(&hello->to, &self->uid, sizeof hello->to) != 0 ||
        memcmp(&hello->from, &self->uid, sizeof hello->from) == 0) {
        return CONNECT_OTHER_PROCESS;
    }
    if (has_secret != hello->has_secret) {
        return has_secret ? CONNECT_SECRET_WANTED : CONNECT_NO_SECRET;
    }
    if (connect_is_sealed(self, guest->is_unix) != hello->is_sealed) {
        return hello->is_sealed ? CONNECT_NO_ENCRYPTION : CONNECT_ENCRYPTION_WANTED;
    }
    if (hello->is_sealed && !dd_seal_knows(hello->cipher)) {
        return CONNECT_NO_CIPHER;
    }
    if (hello->lane >= (uint32_t)self->options.nlanes || (guest->is_unix && hello->lane != 0)) {
        return CONNECT_NO_SUCH_LANE;
    }
    return CONNECT_GO_ON;
}

static dd_status
say_verdict(const connect_guest *guest, connect_verdict verdict, dd_error *err)
{
    const uint8_t byte = (uint8_t)verdict;
    return connect_say(guest->fd, guest->seal, &byte, 1, err);
}

static void
accept_hand_over(dd_connector *self, connect_guest *guest)
{
    dd_link *link = guest->link;
    guest->link = NULL;
    guest->fd = -1;
    self->handler.on_accepted(self->handler.ctx, &guest->hello.from, (int)guest->hello.lane, link);
}

/* Accept a peer that is authenticated, if there is a secret. *is_over: the handshake is done. */
static dd_status
welcome(dd_connector *self, connect_guest *guest, bool *is_over, dd_error *err)
{
    const dd_connect_handler *handler = &self->handler;
    bool is_first = guest->hello.lane == 0;
    *is_over = true;
    if (is_first && !handler->may_accept(handler->ctx, &guest->hello.from)) {
        return say_verdict(guest, CONNECT_BUSY, err);
    }
    /* Over TCP the verdict makes the link: the dialler uses it once it has the verdict. */
    dd_status status = guest->is_unix ? DD_OK : dd_link_open_tcp(guest->fd, guest->seal, &guest->link, err);
    if (status == DD_OK) {
        status = say_verdict(guest, CONNECT_OK, err);
    }
    if (guest->link != NULL) {
        guest->seal = NULL; /* now owned by the link */
    }
    if (status == DD_OK && guest->is_unix) {
        status = dd_link_offer_shm(guest->fd, self->options.ring_nbytes, &guest->link, err);
    }
    if (status != DD_OK) {
        if (is_first) {
            handler->on_accept_failed(handler->ctx, &guest->hello.from);
        }
        return status;
    }
    if (guest->is_unix) {
        continue_step(self, guest, GUEST_TAKING);
        *is_over = false;
    } else {
        accept_hand_over(self, guest);
    }
    return DD_OK;
}

/* Add this side's proof, or its part of the keys, to an answer whose verdict is GO_ON. */
static dd_status
complete_answer(const dd_connector *self, connect_guest *guest, connect_answer *answer,
                uint8_t bytes[CONNECT_ANSWER_BYTES], dd_error *err)
{
    dd_bytes secret = self->options.secret;
    if (guest->hello.is_sealed) {
        connect_answer_write(answer, bytes);
        return connect_seal_answer(secret, &guest->hello, bytes, &guest->seal, err);
    }
    dd_status status = DD_OK;
    if (secret.len > 0) {
        status = dd_auth_random(answer->nonce, sizeof answer->nonce, err);
        dd_auth_prove(secret, DD_AUTH_LINK_LISTENER, connect_hello_opening(&guest->hello), answer->nonce,
                      answer->proof);
        memcpy(guest->nonce, answer->nonce, sizeof guest->nonce);
    }
    connect_answer_write(answer, bytes);
    return status;
}

static dd_status
answer_hello(dd_connector *self, connect_guest *guest, bool *is_over, dd_error *err)
{
    if (!connect_hello_read(&guest->hello)) {
        return dd_error_set(err, DD_PROTOCOL, "it is not of our kind");
    }
    uint8_t bytes[CONNECT_ANSWER_BYTES];
    connect_answer answer = {.verdict = judge(self, guest)};
    connect_answer_write(&answer, bytes);
    bool goes_on = answer.verdict == CONNECT_GO_ON;
    dd_status status = goes_on ? complete_answer(self, guest, &answer, bytes, err) : DD_OK;
    if (status == DD_AUTH) {
        answer.verdict = CONNECT_DENIED;
        connect_answer_write(&answer, bytes);
    }
    if (status == DD_OK || status == DD_AUTH) {
        /* The answer itself is not sealed. */
        dd_status said = connect_say(guest->fd, NULL, bytes, sizeof bytes, status == DD_OK ? err : NULL);
        status = status == DD_OK ? said : status;
    }
    if (status != DD_OK) {
        return status;
    }
    if (!goes_on) {
        return connect_explain(answer.verdict, CONNECT_LISTENER, guest->hello.version, err);
    }
    if (self->options.secret.len == 0) {
        return welcome(self, guest, is_over, err);
    }
    continue_step(self, guest, GUEST_PROOF);
    return DD_OK;
}

static dd_status
hear_hello(dd_connector *self, connect_guest *guest, bool *is_over, dd_error *err)
{
    bool is_whole = false;
    size_t nbytes = guest->nheard < CONNECT_HELLO_BYTES ? CONNECT_HELLO_BYTES : CONNECT_SEALED_HELLO_BYTES;
    dd_status status =
        connect_hear(guest->fd, NULL, guest->hello.bytes, nbytes, &guest->nheard, &is_whole, err);
    if (status == DD_OK && !connect_is_hello_so_far(guest->hello.bytes, guest->nheard)) {
        return dd_error_set(err, DD_PROTOCOL, "it is not of our kind");
    }
    if (status != DD_OK || !is_whole) {
        return status;
    }
    return guest->nheard < connect_hello_nbytes(&guest->hello) ? hear_hello(self, guest, is_over, err)
                                                               : answer_hello(self, guest, is_over, err);
}

/* A valid seal proves that the peer knows the secret. */
static bool
is_proof(const dd_connector *self, const connect_guest *guest)
{
    return guest->seal != NULL ||
           dd_auth_check(self->options.secret, DD_AUTH_LINK_DIALER, connect_hello_opening(&guest->hello),
                         guest->nonce, dd_bytes_of(guest->proof, sizeof guest->proof));
}

static dd_status
hear_proof(dd_connector *self, connect_guest *guest, bool *is_over, dd_error *err)
{
    bool is_whole = false;
    size_t nbytes = guest->seal != NULL ? CONNECT_SEALED_PROOF_BYTES : sizeof guest->proof;
    dd_status status =
        connect_hear(guest->fd, guest->seal, guest->proof, nbytes, &guest->nheard, &is_whole, err);
    if (status != DD_OK || !is_whole) {
        return status;
    }
    if (!is_proof(self, guest)) {
        (void)!say_verdict(guest, CONNECT_DENIED, NULL);
        return connect_explain(CONNECT_DENIED, CONNECT_LISTENER, guest->hello.version, err);
    }
    return welcome(self, guest, is_over, err);
}

static dd_status
hear_taken(dd_connector *self, connect_guest *guest, bool *is_over, dd_error *err)
{
    dd_wait wait = dd_wait_after(MOMENT_NS);
    dd_status status = dd_link_hear_taken(guest->link, &wait, err);
    if (status == DD_OK) {
        *is_over = true;
        accept_hand_over(self, guest);
    }
    return status;
}

static void
hear_guest(dd_connector *self, connect_guest *guest)
{
    static dd_status (*const steps[])(dd_connector *, connect_guest *, bool *, dd_error *) = {
        [GUEST_HELLO] = hear_hello, [GUEST_PROOF] = hear_proof, [GUEST_TAKING] = hear_taken};
    dd_error err = {0};
    bool is_over = false;
    if (steps[guest->step](self, guest, &is_over, &err) != DD_OK) {
        connect_note_shortage(self, &err);
        turn_out(self, guest, err.message);
    } else if (is_over) {
        remove_guest(self, guest);
    }
}

/* ---- for the loop */

static void
close_unauthenticated_guest(dd_admission_peer *peer, const char *why)
{
    connect_guest *guest = DD_CONTAINER_OF(peer, connect_guest, admission);
    turn_out(guest->connector, guest, why);
}

void
connect_init_guests(dd_connector *self)
{
    dd_list_init(&self->guests);
    dd_admission_init(&self->admission, CONNECT_STAGE_MAX, GRACE_NS, close_unauthenticated_guest);
}

void
connect_add_guest(dd_connector *self, int fd, bool is_unix)
{
    connect_guest *guest = dd_mem_zalloc(sizeof *guest);
    if (guest == NULL) {
        dd_error err;
        (void)dd_error_no_memory(&err, sizeof *guest);
        connect_note_shortage(self, &err);
        dd_sock_close(fd);
        return;
    }
    *guest = (connect_guest){.connector = self, .fd = fd, .is_unix = is_unix};
    dd_list_push_back(&self->guests, &guest->node);
    dd_admission_begin(&self->admission, &guest->admission, is_unix, self->options.timeout_ns);
    if (is_unix && !dd_sock_is_same_user(fd)) {
        turn_out(self, guest, "it is of another user");
    } else {
        hear_guest(self, guest);
    }
}

void
connect_poll_guests(dd_connector *self)
{
    for (dd_list *node = self->guests.next; node != &self->guests; node = node->next) {
        connect_guest *guest = DD_CONTAINER_OF(node, connect_guest, node);
        connect_poll(self, guest->fd, POLLIN, &guest->polled);
    }
    connect_sleep_until(self, dd_timer_set_next_ns(&self->admission.timers));
}

void
connect_hear_guests(dd_connector *self)
{
    for (dd_list *node = self->guests.next, *next; node != &self->guests; node = next) {
        connect_guest *guest = DD_CONTAINER_OF(node, connect_guest, node);
        next = node->next;
        if (connect_is_ready(self, &guest->polled)) {
            hear_guest(self, guest);
        }
    }
    dd_timer_set_run(&self->admission.timers, dd_clock_now_ns());
}

void
connect_close_guests(dd_connector *self)
{
    while (!dd_list_is_empty(&self->guests)) {
        remove_guest(self, DD_CONTAINER_OF(self->guests.next, connect_guest, node));
    }
}
