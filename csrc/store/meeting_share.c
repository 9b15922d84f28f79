/* The cards of many ranks, which are a value of their own in the store: they come to each host once.
 *
 * Of the ranks of a host, the first that listens at a socket that is named after the meeting and the host gets them from the
 * store, and hands them on to the others as memory. If it ends, or is slow, another one takes its place. A rank that waits for
 * it in vain gets the cards from the store, so this only saves bytes. */
#include "store/meeting_internal.h"

#include "core/fork.h"
#include "core/mem.h"
#include "core/shared_memory.h"
#include "core/system.h"
#include "net/sha256.h"
#include "net/sock.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#define ANSWER_NS (5 * DD_NS_PER_S)   /* of the store, which has them */
#define FOLLOW_NS (2 * DD_NS_PER_S)   /* with the rank that hands them on */
#define SERVE_NS (250 * DD_NS_PER_MS) /* with the next that wants them */
#define TRY_AGAIN_NS (1 * DD_NS_PER_MS)

typedef struct card_share {
    const meeting_call *call;
    size_t nbytes; /* of the cards */
    uint8_t host[DD_MEETING_HOST_BYTES];
    dd_addr addr;
    int listener; /* this rank hands them on; -1: it does not */
} card_share;

static dd_status
fetch(const card_share *self, dd_blob *cards, dd_error *err)
{
    const meeting_place *place = &self->call->place;
    dd_wait moment = *place->wait;
    int64_t least_ns = dd_deadline_after(ANSWER_NS);
    moment.deadline_ns = moment.deadline_ns < least_ns ? least_ns : moment.deadline_ns;
    dd_status status = dd_store_get(place->store, meeting_key(place, "cards"), cards, &moment, err);
    if (status == DD_OK && cards->len != self->nbytes) {
        return dd_error_set(err, DD_STORE, "the store has %zu bytes where %zu bytes of cards should be",
                            cards->len, self->nbytes);
    }
    return status;
}

/* ---- from another rank */

static dd_status
read_memory(int fd, size_t nbytes, dd_blob *cards, dd_error *err)
{
    size_t found = 0;
    dd_status status = dd_shared_memory_measure(fd, &found, err);
    if (status == DD_OK && found != nbytes) {
        status = dd_error_set(err, DD_PROTOCOL, "what has come is no memory of %zu bytes", nbytes);
    }
    if (status == DD_OK) {
        status = dd_blob_reserve(cards, nbytes, err);
    }
    if (status == DD_OK && dd_sys_pread(fd, cards->data, nbytes, 0) != (ssize_t)nbytes) {
        return dd_error_set_errno(err, DD_SYSTEM, errno, "cannot read the cards");
    }
    cards->len = status == DD_OK ? nbytes : 0;
    return status;
}

static dd_status
follow(const card_share *self, dd_blob *cards, const dd_wait *wait, dd_error *err)
{
    int fd = -1;
    int memory = -1;
    uint8_t byte;
    size_t moved = 0;
    dd_status status = dd_sock_connect(&self->addr, &fd, wait, err);
    if (status == DD_OK && !dd_sock_is_same_user(fd)) {
        status = dd_error_set(err, DD_NETWORK, "it is of another user");
    }
    if (status == DD_OK) {
        status = dd_sock_wait(fd, POLLIN, wait, err);
    }
    if (status == DD_OK && (dd_sock_try_recv_fd(fd, &byte, 1, &memory, &moved) != DD_IO_OK || memory < 0)) {
        status = dd_error_set(err, DD_NETWORK, "it has ended");
    }
    if (status == DD_OK) {
        status = read_memory(memory, self->nbytes, cards, err);
    }
    dd_sock_close(memory >= 0 ? memory : -1);
    dd_sock_close(fd);
    return status;
}

/* Ends with the cards, or with this rank as the one that hands them on, or with neither: then it is on its own.
 * Fails with DD_INTERRUPTED alone. */
static dd_status
lead_or_follow(card_share *self, dd_blob *cards, dd_error *err)
{
    dd_wait patience = dd_wait_at_most(self->call->place.wait, FOLLOW_NS);
    dd_error why = {.code = DD_OK};
    for (;;) {
        if (dd_sock_listen(&self->addr, &self->listener, &why) == DD_OK) {
            return DD_OK;
        }
        if (why.sys_errno != EADDRINUSE || follow(self, cards, &patience, &why) == DD_OK) {
            return DD_OK;
        }
        if (why.code == DD_INTERRUPTED || dd_wait_sleep(&patience, TRY_AGAIN_NS, &why) == DD_INTERRUPTED) {
            return dd_error_copy(err, &why);
        }
        if (dd_wait_is_over(&patience)) {
            return DD_OK;
        }
    }
}

/* ---- to the others */

static int
count_others(const card_share *self, const dd_meeting_end *end)
{
    const dd_meeting *meeting = self->call->meeting;
    uint8_t host[DD_MEETING_HOST_BYTES];
    int count = 0;
    for (int rank = 0; rank < meeting->size; rank++) {
        count += rank != meeting->rank && meeting->kind->find_host(end->cards[rank], host) &&
                 memcmp(host, self->host, sizeof host) == 0;
    }
    return count;
}

static dd_status
make_memory(const dd_blob *cards, int *fd, dd_error *err)
{
    dd_status status = dd_shared_memory_create("dldist-cards", cards->len, fd, err);
    if (status == DD_OK && dd_sys_pwrite(*fd, cards->data, cards->len, 0) != (ssize_t)cards->len) {
        dd_fork_close(*fd);
        *fd = -1;
        return dd_error_set_errno(err, DD_SYSTEM, errno, "cannot write to it");
    }
    return status;
}

/* Until all have them, or nobody has come for a while. Fails with DD_INTERRUPTED alone. */
static dd_status
serve(const card_share *self, const dd_blob *cards, const dd_meeting_end *end, dd_error *err)
{
    int memory = -1;
    dd_error why = {.code = DD_OK};
    int nleft = count_others(self, end);
    dd_status status = nleft > 0 ? make_memory(cards, &memory, &why) : DD_OK;
    while (status == DD_OK && nleft > 0) {
        dd_wait patience = dd_wait_at_most(self->call->place.wait, SERVE_NS);
        int fd = -1;
        status = dd_sock_wait(self->listener, POLLIN, &patience, &why);
        while (status == DD_OK && nleft > 0 && dd_sock_try_accept(self->listener, &fd) == DD_IO_OK) {
            size_t moved = 0;
            nleft -= dd_sock_is_same_user(fd) && dd_sock_try_send_fd(fd, "", 1, memory, &moved) == DD_IO_OK;
            dd_sock_close(fd);
        }
    }
    if (memory >= 0) {
        dd_fork_close(memory);
    }
    return status == DD_INTERRUPTED ? dd_error_copy(err, &why) : DD_OK;
}

/* ---- both */

dd_addr
meeting_share_addr(const uint8_t host[DD_MEETING_HOST_BYTES], uint64_t id)
{
    uint8_t digest[DD_SHA256_BYTES];
    uint64_t words[2];
    char name[64];
    dd_sha256 sha;
    dd_sha256_init(&sha);
    dd_sha256_update(&sha, dd_bytes_of(host, DD_MEETING_HOST_BYTES));
    dd_sha256_update(&sha, dd_bytes_of(&id, sizeof id));
    dd_sha256_final(&sha, digest);
    memcpy(words, digest, sizeof words);
    snprintf(name, sizeof name, "dldist-cards-%016llx%016llx", (unsigned long long)words[0],
             (unsigned long long)words[1]);
    return dd_addr_unix_abstract(name);
}

dd_status
meeting_take_cards(const meeting_call *call, size_t nbytes, dd_meeting_end *end, dd_error *err)
{
    const dd_meeting *meeting = call->meeting;
    card_share self = {.call = call, .nbytes = nbytes, .listener = -1};
    dd_blob cards = {0};
    dd_status status = DD_OK;
    if (meeting->kind->find_host != NULL && meeting->kind->find_host(meeting->card, self.host)) {
        self.addr = meeting_share_addr(self.host, end->id);
        status = lead_or_follow(&self, &cards, err);
    }
    if (status == DD_OK && cards.len == 0) {
        status = fetch(&self, &cards, err);
    }
    if (status == DD_OK) {
        status = meeting_find_cards(meeting->size, dd_blob_view(&cards), end, err);
    }
    if (status == DD_OK && self.listener >= 0) {
        status = serve(&self, &cards, end, err);
    }
    dd_sock_close(self.listener);
    dd_blob_fini(&cards);
    if (status != DD_OK) {
        dd_meeting_end_fini(end);
    }
    return status;
}
