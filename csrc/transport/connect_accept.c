/* The listener's side of hand-shakes. Anybody who can reach the port can connect, so connections that are not links yet
 * cost no thread, and few descriptors. Everything said is a stranger's word until his proof is there, and without a
 * secret for good. */
#include "transport/connect_internal.h"

#include "core/log.h"
#include "net/auth.h"
#include "net/sock.h"

#include <string.h>

/* A dialler says hello at once. */
#define FIRST_WORD_NS (2 * DD_NS_PER_S)
/* A connection that has said hello and nothing else for so long makes room when others have to wait. */
#define SHY_NS DD_NS_PER_S
/* How often to look whether somebody has become shy, when there is no room. */
#define FULL_NAP_NS (50 * DD_NS_PER_MS)
/* The answer of a process of our own user is one byte, and it is there. */
#define MOMENT_NS DD_NS_PER_S

/* ---- who stays */

static void
remove_guest(dd_connector *self, connect_guest *guest)
{
    if (guest->link != NULL) {
        dd_link_close(guest->link);
    } else {
        dd_sock_close(guest->fd);
    }
    dd_seal_destroy(guest->seal);
    *guest = self->guests[--self->nguests];
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

/* Connections over the Unix socket are of our own user. */
static bool
is_dispensable(const connect_guest *guest)
{
    return !guest->is_unix && (guest->step == GUEST_HELLO || dd_clock_now_ns() - guest->since_ns > SHY_NS);
}

/* Any of those that may be closed. If it were the oldest, a flood would be sure to push out a dialler that
 * takes longer than the flood needs to go round. */
static bool
find_dispensable(const dd_connector *self, size_t *index)
{
    for (size_t i = 0; i < self->nguests; i++) {
        *index = ((size_t)(self->dice >> 33) + i) % self->nguests;
        if (is_dispensable(&self->guests[*index])) {
            return true;
        }
    }
    return false;
}

bool
connect_has_room(const dd_connector *self)
{
    size_t index;
    return self->nguests < CONNECT_GUESTS_MAX || find_dispensable(self, &index);
}

bool
connect_evict(dd_connector *self)
{
    size_t index;
    bool is_found = find_dispensable(self, &index);
    if (is_found) {
        turn_out(self, &self->guests[index], "it makes room for others, as it says nothing");
        self->dice = self->dice * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    }
    return is_found;
}

/* ---- what is said */

static void
begin_step(connect_guest *guest, guest_step step, int64_t timeout_ns)
{
    guest->step = step;
    guest->since_ns = dd_clock_now_ns();
    guest->until_ns = dd_deadline_after(timeout_ns);
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
hand_over(dd_connector *self, connect_guest *guest)
{
    dd_link *link = guest->link;
    guest->link = NULL;
    guest->fd = -1;
    self->handler.on_accepted(self->handler.ctx, &guest->hello.from, (int)guest->hello.lane, link);
}

/* The other side is known, as far as it can be. *is_over: there is nothing more to say to it. */
static dd_status
welcome(dd_connector *self, connect_guest *guest, bool *is_over, dd_error *err)
{
    const dd_connect_handler *handler = &self->handler;
    bool is_first = guest->hello.lane == 0;
    *is_over = true;
    if (is_first && !handler->may_accept(handler->ctx, &guest->hello.from)) {
        return say_verdict(guest, CONNECT_BUSY, err);
    }
    /* Over TCP the verdict makes the link: the dialler goes on when it has heard it. */
    dd_status status = guest->is_unix ? DD_OK : dd_link_open_tcp(guest->fd, guest->seal, &guest->link, err);
    if (status == DD_OK) {
        status = say_verdict(guest, CONNECT_OK, err);
    }
    if (guest->link != NULL) {
        guest->seal = NULL; /* the link's */
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
        begin_step(guest, GUEST_TAKING, self->options.timeout_ns);
        *is_over = false;
    } else {
        hand_over(self, guest);
    }
    return DD_OK;
}

/* Completes an answer that goes on: with our proof, or our part of the keys. */
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
        connect_prove(secret, CONNECT_LISTENER, &guest->hello, answer->nonce, answer->proof);
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
        /* The answer goes before what is sealed. */
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
    begin_step(guest, GUEST_PROOF, self->options.timeout_ns);
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

/* What it has sealed proves that it knows the secret. */
static bool
is_proof(const dd_connector *self, const connect_guest *guest)
{
    return guest->seal != NULL || connect_check_proof(self->options.secret, CONNECT_DIALER, &guest->hello,
                                                      guest->nonce, guest->proof);
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
        hand_over(self, guest);
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

void
connect_add_guest(dd_connector *self, int fd, bool is_unix)
{
    if (self->nguests == CONNECT_GUESTS_MAX && !connect_evict(self)) {
        dd_sock_close(fd);
        return;
    }
    int64_t timeout_ns = self->options.timeout_ns;
    connect_guest *guest = &self->guests[self->nguests++];
    *guest = (connect_guest){.fd = fd, .is_unix = is_unix};
    begin_step(guest, GUEST_HELLO, timeout_ns < FIRST_WORD_NS ? timeout_ns : FIRST_WORD_NS);
    if (guest->is_unix && !dd_sock_is_same_user(fd)) {
        turn_out(self, guest, "it is of another user");
    } else {
        hear_guest(self, guest);
    }
}

void
connect_poll_guests(dd_connector *self)
{
    for (size_t i = 0; i < self->nguests; i++) {
        connect_poll(self, self->guests[i].fd, POLLIN, &self->guests[i].polled);
        connect_sleep_until(self, self->guests[i].until_ns);
    }
    if (!connect_has_room(self)) {
        connect_sleep_until(self, dd_deadline_after(FULL_NAP_NS));
    }
}

void
connect_hear_guests(dd_connector *self)
{
    static const char *const late[] = {[GUEST_HELLO] = "it has not said hello in time",
                                       [GUEST_PROOF] = "it has not shown its proof in time",
                                       [GUEST_TAKING] = "it has not taken its memory in time"};
    /* From the back: the one that takes the place of one that goes has had its turn. */
    for (size_t i = self->nguests; i-- > 0;) {
        connect_guest *guest = &self->guests[i];
        if (connect_is_ready(self, &guest->polled)) {
            hear_guest(self, guest);
        } else if (dd_deadline_left_ns(guest->until_ns) == 0) {
            turn_out(self, guest, late[guest->step]);
        }
    }
}

void
connect_close_guests(dd_connector *self)
{
    while (self->nguests > 0) {
        remove_guest(self, &self->guests[0]);
    }
}
