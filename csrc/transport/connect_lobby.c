/* The lobby: connections that have not said hello yet. Anybody who can reach the port can make them, so
 * they cost no thread, and few descriptors. All of it belongs to the listener's thread. */
#include "transport/connect_internal.h"

#include "core/log.h"
#include "net/sock.h"

#include <string.h>

/* A dialler says hello at once. */
#define FIRST_WORD_NS (2 * DD_NS_PER_S)

static void
close_guest(connect_lobby *self, size_t index, const char *why)
{
    connect_guest *guest = &self->guests[index];
    char from[DD_ADDR_TEXT_MAX];
    dd_addr addr = dd_sock_peer_addr(guest->fd);
    DD_LOG(DD_LOG_INFO, "connection from %s came to nothing: %s", dd_addr_print(&addr, from), why);
    dd_sock_close(guest->fd);
    *guest = self->guests[--self->count];
}

static bool
has_said_hello(const connect_guest *guest)
{
    return guest->nbytes == CONNECT_HELLO_BYTES;
}

/* Whether it stays. */
static bool
hear_guest(connect_lobby *self, size_t index)
{
    connect_guest *guest = &self->guests[index];
    if (has_said_hello(guest)) {
        return true;
    }
    size_t moved = 0;
    dd_io io = dd_sock_try_recv(guest->fd, guest->hello + guest->nbytes, CONNECT_HELLO_BYTES - guest->nbytes,
                                &moved);
    if (io == DD_IO_AGAIN) {
        return true;
    }
    guest->nbytes += moved;
    if (io == DD_IO_OK && connect_is_hello_so_far(guest->hello, guest->nbytes)) {
        return true;
    }
    close_guest(self, index, io == DD_IO_OK ? "it is not of our kind" : "it was closed before it said hello");
    return false;
}

/* Any of those that may be closed. If it were the oldest, a flood would be sure to push out a dialler that
 * takes longer than the flood needs to go round. Connections over the Unix socket are of our own user. */
static bool
find_dispensable(const connect_lobby *self, size_t *index)
{
    for (size_t i = 0; i < self->count; i++) {
        *index = ((size_t)(self->dice >> 33) + i) % self->count;
        if (!self->guests[*index].is_unix && !has_said_hello(&self->guests[*index])) {
            return true;
        }
    }
    return false;
}

void
connect_lobby_init(connect_lobby *self)
{
    self->count = 0;
    self->dice = (uint64_t)dd_clock_now_ns();
}

void
connect_lobby_fini(connect_lobby *self)
{
    while (self->count > 0) {
        dd_sock_close(self->guests[--self->count].fd);
    }
}

bool
connect_lobby_has_room(const connect_lobby *self)
{
    size_t index;
    return self->count < CONNECT_LOBBY_MAX || find_dispensable(self, &index);
}

bool
connect_lobby_evict(connect_lobby *self)
{
    size_t index;
    bool is_found = find_dispensable(self, &index);
    if (is_found) {
        close_guest(self, index, "it makes room for others, as it has not said hello");
        self->dice = self->dice * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    }
    return is_found;
}

void
connect_lobby_add(connect_lobby *self, int fd, int64_t timeout_ns)
{
    if (self->count == CONNECT_LOBBY_MAX && !connect_lobby_evict(self)) {
        dd_sock_close(fd);
        return;
    }
    connect_guest *guest = &self->guests[self->count++];
    *guest = (connect_guest){
        .fd = fd,
        .is_unix = dd_sock_local_addr(fd).storage.ss_family == AF_UNIX,
        .until_ns = dd_deadline_after(timeout_ns < FIRST_WORD_NS ? timeout_ns : FIRST_WORD_NS),
    };
    if (guest->is_unix && !dd_sock_is_same_user(fd)) {
        close_guest(self, self->count - 1, "it is of another user");
        return;
    }
    (void)hear_guest(self, self->count - 1);
}

nfds_t
connect_lobby_poll(const connect_lobby *self, struct pollfd *pollfds, int *timeout_ms)
{
    for (size_t i = 0; i < self->count; i++) {
        const connect_guest *guest = &self->guests[i];
        /* poll passes over what is negative. */
        pollfds[i] = (struct pollfd){.fd = has_said_hello(guest) ? -1 : guest->fd, .events = POLLIN};
        int64_t left_ms = dd_deadline_left_ns(guest->until_ns) / DD_NS_PER_MS + 1;
        if (!has_said_hello(guest) && (*timeout_ms < 0 || left_ms < *timeout_ms)) {
            *timeout_ms = (int)left_ms;
        }
    }
    return (nfds_t)self->count;
}

void
connect_lobby_hear(connect_lobby *self, const struct pollfd *pollfds)
{
    /* From the back: the one that takes the place of one that goes has been looked at. */
    for (size_t i = self->count; i-- > 0;) {
        bool stays = pollfds[i].revents == 0 || hear_guest(self, i);
        if (stays && !has_said_hello(&self->guests[i]) &&
            dd_deadline_left_ns(self->guests[i].until_ns) == 0) {
            close_guest(self, i, "it has not said hello in time");
        }
    }
}

bool
connect_lobby_take(connect_lobby *self, connect_guest *guest)
{
    for (size_t i = 0; i < self->count; i++) {
        if (has_said_hello(&self->guests[i])) {
            *guest = self->guests[i];
            self->guests[i] = self->guests[--self->count];
            return true;
        }
    }
    return false;
}
