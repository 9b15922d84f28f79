/* Sockets: Unix sockets within a host, and TCP over a network with latency, which holds up data on
 * a cut path and does not report a host that has disappeared. */
#include "sim/world/internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#define STREAM_ROOM ((size_t)200 << 10)   /* bytes sent and not yet read */
#define WINDOW_NBYTES ((size_t)128 << 10) /* of these, bytes that have left the sender */
#define SHORT_SEND_MIN \
    ((size_t)1024)       /* kernels accept a part of a small piece only if other data is queued */
#define DATAGRAMS_MAX 10 /* in a queue, as net.unix.max_dgram_qlen */
#define SYN_TRIES 6
#define RESEND_NS (200 * DD_NS_PER_MS)
#define NS_PER_KIB 800 /* 1.25 GB/s */

/* A piece of a stream, or a datagram. */
typedef struct sim_piece {
    dd_list link;
    int64_t arrives_ns; /* DD_NEVER_NS while a cut holds it up */
    size_t nbytes, ntaken;
    sim_file *passed; /* the file of a passed descriptor, or NULL */
    long long pid;    /* of the sender */
    uint8_t bytes[];
} sim_piece;

typedef enum sim_socket_state {
    SOCKET_NEW,
    SOCKET_LISTENING,
    SOCKET_CONNECTING,
    SOCKET_CONNECTED,
    SOCKET_CLOSED,
} sim_socket_state;

typedef struct sim_socket {
    int host;
    int family;
    int type;
    sim_socket_state state;
    bool is_bound;
    struct sockaddr_storage local, remote;
    socklen_t local_len, remote_len;
    int error; /* SO_ERROR */
    int remote_host;
    long long remote_pid;
    bool wants_credentials;
    /* listening */
    dd_list pending; /* sim_pending */
    int npending, backlog;
    /* connecting */
    int ntries;
    /* connected */
    sim_file *other; /* NULL if the other end is closed or its host is off */
    bool was_reset;  /* the reset was reported */
    dd_list pieces;  /* in transit to this socket, or arrived */
    size_t nqueued;
    int64_t last_arrival_ns;
    int64_t end_ns;   /* arrival of the peer's end of stream; DD_NEVER_NS if unknown */
    int64_t reset_ns; /* arrival of the peer's reset; DD_NEVER_NS if unknown */
    bool is_end_held; /* a cut holds up the end of stream */
    bool is_reset_held;
    int64_t held_since_ns; /* send time of the oldest data held up by a cut; 0 if there is none */
    bool is_kept_alive;
    int keepalive_s, user_timeout_ms; /* 0: off */
} sim_socket;

/* A connection in a listener's queue that has not been accepted. */
typedef struct sim_pending {
    dd_list link;
    sim_file *file;
} sim_pending;

static sim_file *
create_socket(int host, int family, int type)
{
    sim_file *file = sim_file_create(FILE_SOCKET);
    sim_socket *self = calloc(1, sizeof *self);
    if (self == NULL) {
        abort();
    }
    self->host = self->remote_host = host;
    self->family = family;
    self->type = type;
    self->end_ns = self->reset_ns = DD_NEVER_NS;
    dd_list_init(&self->pending);
    dd_list_init(&self->pieces);
    file->socket = self;
    return file;
}

sim_file *
sim_socket_create(int family, int type)
{
    if (family != AF_UNIX && family != AF_INET) {
        errno = EAFNOSUPPORT;
        return NULL;
    }
    return create_socket(sim_self()->host, family, type & (SOCK_STREAM | SOCK_DGRAM));
}

static bool
is_unix(const sim_socket *self)
{
    return self->family == AF_UNIX;
}

/* ---- the network */

bool
sim_is_cut(int from, int to)
{
    return world.is_off[from] || world.is_off[to] || (from != to && world.paths[from][to].is_cut);
}

/* The maximum delay of a packet, as if it was lost once and sent again. */
#define LATE_NS (200 * DD_NS_PER_MS)

static int64_t
latency(int from, int to)
{
    int64_t usual_ns = world.paths[from][to].latency_ns;
    int64_t taken_ns = sim_around(usual_ns);
    return taken_ns < usual_ns + LATE_NS ? taken_ns : usual_ns + LATE_NS;
}

static void
notify_event(void *subject, int64_t word)
{
    (void)word;
    sim_file_notify(subject);
    sim_file_release(subject);
}

static void
notify_at(sim_file *file, int64_t at_ns)
{
    if (at_ns <= world.now_ns) {
        sim_file_notify(file);
    } else if (at_ns != DD_NEVER_NS) {
        sim_plan(at_ns, notify_event, sim_file_acquire(file), 0);
    }
}

/* Return the arrival time of bytes sent to `to` now, after everything sent before. */
static int64_t
arrival(sim_socket *from, sim_socket *to, size_t nbytes)
{
    if (sim_is_cut(from->host, to->host)) {
        return DD_NEVER_NS;
    }
    int64_t at_ns =
        is_unix(to) ? world.now_ns
                    : world.now_ns + latency(from->host, to->host) + (int64_t)(nbytes / 1024) * NS_PER_KIB;
    to->last_arrival_ns = at_ns > to->last_arrival_ns ? at_ns : to->last_arrival_ns;
    return to->last_arrival_ns;
}

static void
send_end(sim_socket *from, sim_file *to)
{
    int64_t at_ns = arrival(from, to->socket, 0);
    to->socket->is_end_held = at_ns == DD_NEVER_NS;
    to->socket->end_ns = at_ns;
    notify_at(to, at_ns);
}

static void
send_reset(sim_socket *from, sim_file *to)
{
    if (to->socket->reset_ns <= world.now_ns) {
        return; /* its kernel has aborted the connection and drops late data */
    }
    int64_t at_ns = arrival(from, to->socket, 0);
    to->socket->is_reset_held = at_ns == DD_NEVER_NS;
    to->socket->reset_ns = at_ns;
    notify_at(to, at_ns);
}

/* Abort a connection that has received no reply for too long, as a kernel does. */
static void
reset_event(void *subject, int64_t since_ns)
{
    sim_file *file = subject;
    sim_socket *self = file->socket;
    bool is_held = self->held_since_ns == since_ns || since_ns == 0;
    bool is_cut = sim_is_cut(self->remote_host, self->host) || sim_is_cut(self->host, self->remote_host);
    if (self->state == SOCKET_CONNECTED && is_held && is_cut) {
        self->error = ETIMEDOUT;
        self->reset_ns = world.now_ns;
        self->is_reset_held = false;
        sim_file_notify(file);
    }
    sim_file_release(file);
}

static void
note_held(sim_file *file)
{
    sim_socket *self = file->socket;
    if (self->held_since_ns == 0) {
        self->held_since_ns = world.now_ns;
        if (self->user_timeout_ms > 0) {
            sim_plan(world.now_ns + self->user_timeout_ms * DD_NS_PER_MS, reset_event, sim_file_acquire(file),
                     self->held_since_ns);
        }
    }
}

void
sim_network_note_cut(void)
{
    for (dd_list *node = world.files.next; node != &world.files; node = node->next) {
        sim_file *file = DD_CONTAINER_OF(node, sim_file, link);
        sim_socket *self = file->kind == FILE_SOCKET ? file->socket : NULL;
        if (self != NULL && self->state == SOCKET_CONNECTED && self->is_kept_alive &&
            (sim_is_cut(self->host, self->remote_host) || sim_is_cut(self->remote_host, self->host))) {
            sim_plan(world.now_ns + self->keepalive_s * DD_NS_PER_S, reset_event, sim_file_acquire(file), 0);
        }
    }
}

/* Deliver the data to `file` that a cut held up, as a retransmission. */
static void
resume(sim_file *file)
{
    sim_socket *self = file->socket;
    int64_t at_ns =
        world.now_ns + (int64_t)sim_below((uint64_t)RESEND_NS) + latency(self->remote_host, self->host);
    bool is_any = self->is_end_held || self->is_reset_held;
    for (dd_list *node = self->pieces.next; node != &self->pieces; node = node->next) {
        sim_piece *piece = DD_CONTAINER_OF(node, sim_piece, link);
        if (piece->arrives_ns == DD_NEVER_NS) {
            piece->arrives_ns = at_ns;
            is_any = true;
        }
    }
    if (!is_any) {
        return;
    }
    self->last_arrival_ns = at_ns > self->last_arrival_ns ? at_ns : self->last_arrival_ns;
    self->end_ns = self->is_end_held ? at_ns : self->end_ns;
    self->reset_ns = self->is_reset_held ? at_ns : self->reset_ns;
    self->is_end_held = self->is_reset_held = false;
    if (self->other != NULL) {
        self->other->socket->held_since_ns = 0;
    }
    notify_at(file, at_ns);
}

void
sim_network_resume(void)
{
    for (dd_list *node = world.files.next; node != &world.files; node = node->next) {
        sim_file *file = DD_CONTAINER_OF(node, sim_file, link);
        if (file->kind == FILE_SOCKET && file->socket->state == SOCKET_CONNECTED &&
            !sim_is_cut(file->socket->remote_host, file->socket->host)) {
            resume(file);
        }
    }
}

/* ---- addresses */

static bool
is_any_address(const struct sockaddr_in *in)
{
    return in->sin_addr.s_addr == htonl(INADDR_ANY);
}

static bool
is_loopback(const struct sockaddr_in *in)
{
    return ntohl(in->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

static uint32_t
address_of_host(int host)
{
    return htonl(UINT32_C(0x0a000001) + (uint32_t)host);
}

/* Return the host that `from` reaches at the address, or -1. */
static int
host_at(const struct sockaddr_in *in, int from)
{
    if (is_loopback(in) || is_any_address(in)) {
        return from;
    }
    for (int host = 0; host < world.options.nhosts; host++) {
        if (in->sin_addr.s_addr == address_of_host(host)) {
            return host;
        }
    }
    return -1;
}

static const struct sockaddr_in *
inet_of(const struct sockaddr_storage *addr)
{
    return (const struct sockaddr_in *)(const void *)addr;
}

static bool
is_same_name(const sim_socket *self, const void *addr, socklen_t len)
{
    return self->is_bound && self->local_len == len && memcmp(&self->local, addr, len) == 0;
}

static bool
is_same_port(const sim_socket *self, const struct sockaddr_in *in)
{
    const struct sockaddr_in *own = inet_of(&self->local);
    return self->is_bound && own->sin_port == in->sin_port &&
           (is_any_address(own) || is_any_address(in) || own->sin_addr.s_addr == in->sin_addr.s_addr);
}

/* Return the socket that is bound to the name or address on the host. */
static sim_file *
find_bound(int host, int type, const struct sockaddr_storage *addr, socklen_t len)
{
    for (dd_list *node = world.files.next; node != &world.files; node = node->next) {
        sim_file *file = DD_CONTAINER_OF(node, sim_file, link);
        sim_socket *self = file->kind == FILE_SOCKET ? file->socket : NULL;
        if (self == NULL || self->host != host || self->type != type || self->family != addr->ss_family ||
            self->state == SOCKET_CLOSED || self->state == SOCKET_CONNECTED) {
            continue;
        }
        if (is_unix(self) ? is_same_name(self, addr, len) : is_same_port(self, inet_of(addr))) {
            return file;
        }
    }
    return NULL;
}

static struct sockaddr_storage
storage_of(const struct sockaddr *addr, socklen_t len)
{
    struct sockaddr_storage storage = {0};
    memcpy(&storage, addr, len < sizeof storage ? len : sizeof storage);
    return storage;
}

static void
pick_port(sim_socket *self)
{
    struct sockaddr_in *in = (struct sockaddr_in *)(void *)&self->local;
    if (in->sin_port == 0) {
        in->sin_port = htons((uint16_t)world.next_port[self->host]);
        world.next_port[self->host] =
            world.next_port[self->host] == 60999 ? 32768 : world.next_port[self->host] + 1;
    }
}

int
sim_socket_bind(sim_file *file, const struct sockaddr *addr, socklen_t len)
{
    sim_socket *self = file->socket;
    struct sockaddr_storage name = storage_of(addr, len);
    if (!is_unix(self) && host_at(inet_of(&name), self->host) != self->host) {
        errno = EADDRNOTAVAIL;
        return -1;
    }
    bool is_chosen = is_unix(self) || inet_of(&name)->sin_port != 0;
    if (is_chosen && find_bound(self->host, self->type, &name, len) != NULL) {
        errno = EADDRINUSE;
        return -1;
    }
    self->local = name;
    self->local_len = len;
    self->is_bound = true;
    if (!is_unix(self)) {
        pick_port(self);
    }
    return 0;
}

int
sim_socket_get_name(const sim_file *file, bool is_of_peer, struct sockaddr *addr, socklen_t *len)
{
    const sim_socket *self = file->socket;
    if (is_of_peer && self->state != SOCKET_CONNECTED) {
        errno = ENOTCONN;
        return -1;
    }
    socklen_t own_len = is_of_peer ? self->remote_len : self->local_len;
    struct sockaddr_storage name = is_of_peer ? self->remote : self->local;
    if (own_len == 0) {
        name = (struct sockaddr_storage){.ss_family = (sa_family_t)self->family};
        own_len = is_unix(self) ? sizeof(sa_family_t) : sizeof(struct sockaddr_in);
    }
    memcpy(addr, &name, own_len < *len ? own_len : *len);
    *len = own_len;
    return 0;
}

/* ---- connecting */

int
sim_socket_listen(sim_file *file, int backlog)
{
    sim_socket *self = file->socket;
    self->state = SOCKET_LISTENING;
    self->backlog = backlog < world.options.backlog_max ? backlog : world.options.backlog_max;
    return 0;
}

/* Establish the connection: create its other end and add it to the listener's queue, which has
 * space. */
static void
establish(sim_file *file, sim_file *listener)
{
    sim_socket *self = file->socket;
    sim_file *child = create_socket(listener->socket->host, self->family, SOCK_STREAM);
    child->owner = listener->owner;
    child->nfds = 1; /* the queue's reference, until accepted */
    sim_socket *other = child->socket;
    other->state = self->state = SOCKET_CONNECTED;
    other->local = self->remote;
    other->local_len = self->remote_len;
    other->remote = self->local;
    other->remote_len = self->local_len;
    other->remote_host = self->host;
    self->remote_host = other->host;
    other->remote_pid = file->owner->pid;
    self->remote_pid = listener->owner->pid;
    other->other = file;
    self->other = child;
    sim_pending *pending = calloc(1, sizeof *pending);
    if (pending == NULL) {
        abort();
    }
    pending->file = child;
    dd_list_push_back(&listener->socket->pending, &pending->link);
    listener->socket->npending++;
    sim_file_notify(listener);
}

static bool
is_full(const sim_socket *listener)
{
    return listener->npending > listener->backlog;
}

static void
fail_connect(sim_file *file, int error)
{
    file->socket->state = SOCKET_NEW;
    file->socket->error = error;
    sim_file_notify(file);
}

/* A SYN arrives, or is lost and sent again. */
static void
syn_event(void *subject, int64_t word)
{
    (void)word;
    sim_file *file = subject;
    sim_socket *self = file->socket;
    int host = self->state == SOCKET_CONNECTING ? host_at(inet_of(&self->remote), self->host) : -1;
    if (self->state != SOCKET_CONNECTING) {
        sim_file_release(file);
        return;
    }
    bool is_lost = host < 0 || sim_is_cut(self->host, host) || sim_is_cut(host, self->host);
    sim_file *listener = is_lost ? NULL : find_bound(host, SOCK_STREAM, &self->remote, self->remote_len);
    bool is_refused = !is_lost && (listener == NULL || listener->socket->state != SOCKET_LISTENING);
    if (is_refused) {
        fail_connect(file, ECONNREFUSED);
    } else if (is_lost || is_full(listener->socket)) {
        if (++self->ntries > SYN_TRIES) {
            fail_connect(file, ETIMEDOUT);
        } else {
            sim_plan(world.now_ns + (DD_NS_PER_S << self->ntries) / 2, syn_event, sim_file_acquire(file), 0);
        }
    } else {
        establish(file, listener);
        sim_file_notify(file);
    }
    sim_file_release(file);
}

static int
connect_inet(sim_file *file)
{
    sim_socket *self = file->socket;
    struct sockaddr_in *own = (struct sockaddr_in *)(void *)&self->local;
    int host = host_at(inet_of(&self->remote), self->host);
    if (!self->is_bound) {
        own->sin_family = AF_INET;
        own->sin_addr.s_addr = is_loopback(inet_of(&self->remote)) ? inet_of(&self->remote)->sin_addr.s_addr
                                                                   : address_of_host(self->host);
        self->local_len = sizeof *own;
        pick_port(self);
    }
    if (self->type == SOCK_DGRAM) {
        return 0; /* only for its own address */
    }
    self->state = SOCKET_CONNECTING;
    int64_t round_ns = host >= 0 ? latency(self->host, host) + latency(host, self->host) : 0;
    sim_plan(world.now_ns + round_ns, syn_event, sim_file_acquire(file), 0);
    errno = EINPROGRESS;
    return -1;
}

static int
connect_unix(sim_file *file)
{
    sim_socket *self = file->socket;
    sim_file *bound = find_bound(self->host, self->type, &self->remote, self->remote_len);
    if (bound == NULL || (self->type == SOCK_STREAM && bound->socket->state != SOCKET_LISTENING)) {
        errno = ECONNREFUSED;
        return -1;
    }
    if (self->type == SOCK_STREAM && is_full(bound->socket)) {
        errno = EAGAIN;
        return -1;
    }
    if (self->type == SOCK_STREAM) {
        establish(file, bound);
    }
    return 0;
}

int
sim_socket_connect(sim_file *file, const struct sockaddr *addr, socklen_t len)
{
    sim_socket *self = file->socket;
    if (self->state != SOCKET_NEW) {
        errno = self->state == SOCKET_CONNECTING ? EALREADY : EISCONN;
        return -1;
    }
    self->remote = storage_of(addr, len);
    self->remote_len = len;
    return is_unix(self) ? connect_unix(file) : connect_inet(file);
}

sim_file *
sim_socket_accept(sim_file *file)
{
    sim_socket *self = file->socket;
    if (dd_list_is_empty(&self->pending)) {
        errno = EAGAIN;
        return NULL;
    }
    sim_pending *pending = DD_CONTAINER_OF(self->pending.next, sim_pending, link);
    sim_file *child = pending->file;
    dd_list_remove(&pending->link);
    self->npending--;
    free(pending);
    child->owner = sim_self();
    child->nfds = 0;
    return child;
}

/* ---- sending */

static bool
has_arrived(int64_t at_ns)
{
    return at_ns <= world.now_ns;
}

static size_t
count_bytes(const struct msghdr *message)
{
    size_t total = 0;
    for (size_t i = 0; i < message->msg_iovlen; i++) {
        total += message->msg_iov[i].iov_len;
    }
    return total;
}

static void
gather(uint8_t *out, size_t nbytes, const struct msghdr *message)
{
    for (size_t i = 0; i < message->msg_iovlen && nbytes > 0; i++) {
        size_t len = message->msg_iov[i].iov_len < nbytes ? message->msg_iov[i].iov_len : nbytes;
        if (len > 0) {
            memcpy(out, message->msg_iov[i].iov_base, len);
        }
        out += len;
        nbytes -= len;
    }
}

/* Find the file of the descriptor that the message passes. Return false and set EBADF if there is
 * none. */
static bool
find_passed(const struct msghdr *message, sim_file **passed)
{
    *passed = NULL;
    if (message->msg_control == NULL || message->msg_controllen == 0) {
        return true;
    }
    struct cmsghdr *header = CMSG_FIRSTHDR(message);
    if (header != NULL && header->cmsg_type == SCM_RIGHTS) {
        int fd;
        memcpy(&fd, CMSG_DATA(header), sizeof fd);
        *passed = sim_fd_get(fd);
        return *passed != NULL;
    }
    return true;
}

static void
queue_piece(sim_socket *from, sim_file *to, const struct msghdr *message, size_t nbytes, sim_file *passed)
{
    sim_piece *piece = malloc(sizeof *piece + nbytes);
    if (piece == NULL) {
        abort();
    }
    *piece = (sim_piece){.nbytes = nbytes, .pid = sim_self()->pid};
    piece->arrives_ns = arrival(from, to->socket, nbytes);
    gather(piece->bytes, nbytes, message);
    if (sim_self()->is_to_flip && from->type == SOCK_STREAM && !is_unix(from) && nbytes > 0) {
        sim_self()->is_to_flip = false;
        piece->bytes[sim_below(nbytes)] ^= (uint8_t)(1U << sim_below(8));
    }
    if (passed != NULL) {
        piece->passed = sim_file_acquire(passed);
        passed->nfds++;
    }
    dd_list_push_back(&to->socket->pieces, &piece->link);
    to->socket->nqueued += nbytes;
    notify_at(to, piece->arrives_ns);
}

static void
free_piece(sim_piece *piece)
{
    dd_list_remove(&piece->link);
    if (piece->passed != NULL) {
        sim_file_drop_fd(piece->passed);
    }
    free(piece);
}

static ssize_t
send_datagram(sim_socket *self, const struct msghdr *message, sim_file *passed)
{
    struct sockaddr_storage name = storage_of(message->msg_name, message->msg_namelen);
    sim_file *to = find_bound(self->host, SOCK_DGRAM, &name, message->msg_namelen);
    if (to == NULL) {
        errno = ECONNREFUSED;
        return -1;
    }
    int count = 0;
    for (dd_list *node = to->socket->pieces.next; node != &to->socket->pieces; node = node->next) {
        count++;
    }
    if (count > DATAGRAMS_MAX) {
        errno = EAGAIN;
        return -1;
    }
    size_t nbytes = count_bytes(message);
    queue_piece(self, to, message, nbytes, passed);
    return (ssize_t)nbytes;
}

/* Report the error of a broken connection once. */
static bool
take_error(sim_socket *self)
{
    if (has_arrived(self->reset_ns) && !self->was_reset) {
        self->was_reset = true;
        errno = self->error != 0 ? self->error : ECONNRESET;
        self->error = 0;
        return true;
    }
    return false;
}

static bool
may_send(sim_socket *self)
{
    if (self->state != SOCKET_CONNECTED) {
        errno = self->error != 0 ? self->error : self->state == SOCKET_CONNECTING ? EAGAIN : EPIPE;
        return false;
    }
    if (take_error(self)) {
        return false;
    }
    bool is_over = self->was_reset || (is_unix(self) && self->other == NULL);
    errno = EPIPE;
    return !is_over;
}

ssize_t
sim_socket_send(sim_file *file, const struct msghdr *message)
{
    sim_socket *self = file->socket;
    sim_file *passed;
    if (!find_passed(message, &passed)) {
        return -1;
    }
    if (self->type == SOCK_DGRAM) {
        return send_datagram(self, message, passed);
    }
    if (!may_send(self)) {
        return -1;
    }
    size_t nbytes = count_bytes(message);
    if (self->other == NULL) {
        /* The peer has closed the connection, which resets it; or its host is off. */
        if (!sim_is_cut(self->host, self->remote_host) && self->reset_ns == DD_NEVER_NS) {
            int64_t at_ns = world.now_ns + latency(self->host, self->remote_host) +
                            latency(self->remote_host, self->host);
            /* The reset arrives after everything in transit from the peer. */
            self->reset_ns = at_ns > self->last_arrival_ns ? at_ns : self->last_arrival_ns;
            notify_at(file, self->reset_ns);
        } else {
            note_held(file);
        }
        return (ssize_t)nbytes;
    }
    size_t used = self->other->socket->nqueued;
    size_t room = used < STREAM_ROOM ? STREAM_ROOM - used : 0;
    if (room == 0) {
        errno = EAGAIN;
        return -1;
    }
    nbytes = nbytes < room ? nbytes : room;
    bool may_be_short = passed == NULL && (nbytes > SHORT_SEND_MIN || used > 0);
    if (may_be_short && nbytes > 1 && sim_one_in(world.options.interrupts_every)) {
        nbytes = 1 + (size_t)sim_below(nbytes);
    }
    queue_piece(self, self->other, message, nbytes, passed);
    if (sim_is_cut(self->host, self->remote_host)) {
        note_held(file);
    }
    return (ssize_t)nbytes;
}

/* ---- reading */

static size_t
scatter(struct msghdr *message, size_t done, const uint8_t *bytes, size_t nbytes)
{
    size_t at = 0;
    size_t moved = 0;
    for (size_t i = 0; i < message->msg_iovlen && moved < nbytes; i++) {
        struct iovec part = message->msg_iov[i];
        if (done < at + part.iov_len) {
            size_t skip = done > at ? done - at : 0;
            size_t len = part.iov_len - skip < nbytes - moved ? part.iov_len - skip : nbytes - moved;
            memcpy((uint8_t *)part.iov_base + skip, bytes + moved, len);
            moved += len;
            done += len;
        }
        at += part.iov_len;
    }
    return moved;
}

/* Write one control message. Return false if there is no space. */
static bool
put_control(struct msghdr *message, size_t *used, int type, const void *data, size_t nbytes)
{
    if (message->msg_control == NULL || *used + CMSG_LEN(nbytes) > message->msg_controllen) {
        message->msg_flags |= MSG_CTRUNC;
        return false;
    }
    struct cmsghdr *header = (struct cmsghdr *)(void *)((uint8_t *)message->msg_control + *used);
    *header = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = type, .cmsg_len = CMSG_LEN(nbytes)};
    memcpy(CMSG_DATA(header), data, nbytes);
    size_t space = CMSG_SPACE(nbytes);
    *used += space < message->msg_controllen - *used ? space : message->msg_controllen - *used;
    return true;
}

/* Take the passed descriptor. Close it if there is no space for it, or no free number. */
static void
take_control(const sim_socket *self, struct msghdr *message, sim_piece *piece)
{
    size_t used = 0;
    message->msg_flags = 0;
    if (self->wants_credentials) {
        struct ucred credentials = {.pid = (pid_t)piece->pid, .uid = 1000, .gid = 1000};
        (void)put_control(message, &used, SCM_CREDENTIALS, &credentials, sizeof credentials);
    }
    if (piece->passed != NULL) {
        sim_file *passed = piece->passed;
        piece->passed = NULL;
        int fd = message->msg_control != NULL ? sim_fd_install(sim_self(), sim_file_acquire(passed)) : -1;
        if (fd < 0) {
            message->msg_flags |= MSG_CTRUNC;
            sim_file_release(passed);
        } else {
            (void)put_control(message, &used, SCM_RIGHTS, &fd, sizeof fd);
        }
        sim_file_drop_fd(passed);
    }
    message->msg_controllen = used;
}

static sim_piece *
first_piece(const sim_socket *self)
{
    sim_piece *piece =
        dd_list_is_empty(&self->pieces) ? NULL : DD_CONTAINER_OF(self->pieces.next, sim_piece, link);
    return piece != NULL && has_arrived(piece->arrives_ns) ? piece : NULL;
}

/* Return the result of a read without data. */
static ssize_t
recv_end(sim_socket *self)
{
    if (self->state != SOCKET_CONNECTED) {
        errno = self->type == SOCK_DGRAM || self->state == SOCKET_CONNECTING ? EAGAIN
                : self->error != 0                                           ? self->error
                                                                             : ENOTCONN;
        return -1;
    }
    if (take_error(self)) {
        return -1;
    }
    errno = EAGAIN;
    return self->was_reset || has_arrived(self->end_ns) ? 0 : -1;
}

ssize_t
sim_socket_recv(sim_file *file, struct msghdr *message)
{
    sim_socket *self = file->socket;
    size_t wanted = count_bytes(message);
    size_t done = 0;
    size_t room = message->msg_controllen;
    message->msg_flags = 0;
    message->msg_controllen = 0;
    if (wanted > 1 && self->type == SOCK_STREAM && sim_one_in(world.options.interrupts_every)) {
        wanted = 1 + (size_t)sim_below(wanted);
    }
    for (sim_piece *piece = first_piece(self); piece != NULL && done < wanted; piece = first_piece(self)) {
        if (done > 0 && piece->passed != NULL) {
            break;
        }
        if (done == 0) {
            message->msg_controllen = room;
            take_control(self, message, piece);
        }
        size_t len =
            piece->nbytes - piece->ntaken < wanted - done ? piece->nbytes - piece->ntaken : wanted - done;
        done += scatter(message, done, piece->bytes + piece->ntaken, len);
        piece->ntaken += len;
        self->nqueued -= len;
        if (self->type == SOCK_DGRAM) {
            self->nqueued -= piece->nbytes - piece->ntaken;
            free_piece(piece);
            return (ssize_t)done;
        }
        if (piece->ntaken == piece->nbytes) {
            free_piece(piece);
        }
    }
    if (done == 0) {
        return recv_end(self);
    }
    if (self->other != NULL) {
        notify_at(self->other,
                  is_unix(self) ? world.now_ns : world.now_ns + latency(self->host, self->remote_host));
    }
    return (ssize_t)done;
}

/* ---- state queries */

short
sim_socket_readiness(const sim_file *file)
{
    const sim_socket *self = file->socket;
    if (self->type == SOCK_DGRAM) {
        return (short)(POLLOUT | (first_piece(self) != NULL ? POLLIN : 0));
    }
    switch (self->state) {
    case SOCKET_LISTENING:
        return dd_list_is_empty(&self->pending) ? 0 : POLLIN;
    case SOCKET_CONNECTING:
        return 0;
    case SOCKET_NEW:
    case SOCKET_CLOSED:
        return (short)(POLLOUT | POLLHUP | (self->error != 0 ? POLLERR | POLLIN : 0));
    case SOCKET_CONNECTED:
        break;
    }
    bool is_reset = has_arrived(self->reset_ns);
    bool has_ended = has_arrived(self->end_ns);
    bool has_room = self->other == NULL || self->other->socket->nqueued < STREAM_ROOM * 2 / 3;
    short ready = (short)((first_piece(self) != NULL || has_ended || is_reset ? POLLIN : 0) |
                          (has_room || is_reset ? POLLOUT : 0));
    if (has_ended) {
        ready |= POLLRDHUP;
    }
    if (is_reset || (has_ended && is_unix(self))) {
        ready |= POLLHUP;
    }
    if (is_reset && !self->was_reset) {
        ready |= POLLERR;
    }
    return ready;
}

static size_t
smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* At most a window of unread bytes is with the other end; the rest has not been sent. */
int
sim_socket_count_queued(const sim_file *file, bool is_unsent)
{
    const sim_socket *self = file->socket;
    if (self->other == NULL) {
        return self->held_since_ns != 0 ? 1 : 0;
    }
    const sim_socket *to = self->other->socket;
    size_t unsent = to->nqueued > WINDOW_NBYTES ? to->nqueued - WINDOW_NBYTES : 0;
    size_t on_the_way = 0;
    for (dd_list *node = to->pieces.next; node != &to->pieces; node = node->next) {
        const sim_piece *piece = DD_CONTAINER_OF(node, sim_piece, link);
        on_the_way += has_arrived(piece->arrives_ns) ? 0 : piece->nbytes;
    }
    return (int)(is_unsent ? unsent : on_the_way + smaller(unsent, to->nqueued - on_the_way));
}

static void
describe(const sim_file *file, struct tcp_info *info)
{
    const sim_socket *self = file->socket;
    *info = (struct tcp_info){0};
    if (self->held_since_ns != 0) {
        int64_t nresends = (world.now_ns - self->held_since_ns) / (2 * RESEND_NS);
        info->tcpi_retransmits = (uint8_t)(nresends < 15 ? nresends : 15);
        info->tcpi_unacked = 1;
    }
}

int
sim_socket_get_option(sim_file *file, int level, int name, void *value, socklen_t *len)
{
    sim_socket *self = file->socket;
    int number = 0;
    if (level == SOL_SOCKET && name == SO_PEERCRED) {
        struct ucred credentials = {.pid = (pid_t)self->remote_pid, .uid = 1000, .gid = 1000};
        memcpy(value, &credentials, sizeof credentials);
        return 0;
    }
    if (level == IPPROTO_TCP && name == TCP_INFO) {
        struct tcp_info info;
        describe(file, &info);
        memcpy(value, &info, smaller(*len, sizeof info));
        return 0;
    }
    if (level == SOL_SOCKET && name == SO_ERROR) {
        number = self->error;
        if (number == 0 && has_arrived(self->reset_ns) && !self->was_reset) {
            self->was_reset = true;
            number = ECONNRESET;
        }
        self->error = 0;
    } else if (level == SOL_SOCKET && name == SO_TYPE) {
        number = self->type;
    } else {
        errno = ENOPROTOOPT;
        return -1;
    }
    memcpy(value, &number, sizeof number);
    return 0;
}

int
sim_socket_set_option(sim_file *file, int level, int name, const void *value, socklen_t len)
{
    sim_socket *self = file->socket;
    int number = 0;
    memcpy(&number, value, smaller(len, sizeof number));
    if (level == SOL_SOCKET) {
        self->wants_credentials = name == SO_PASSCRED ? number != 0 : self->wants_credentials;
        self->is_kept_alive = name == SO_KEEPALIVE ? number != 0 : self->is_kept_alive;
    } else if (level == IPPROTO_TCP && name == TCP_KEEPIDLE) {
        self->keepalive_s = number + number / 2 + 1; /* including the probes, approximately */
    } else if (level == IPPROTO_TCP && name == TCP_USER_TIMEOUT) {
        self->user_timeout_ms = number;
    } else if (level == IPPROTO_TCP && name != TCP_NODELAY && name != TCP_KEEPINTVL && name != TCP_KEEPCNT) {
        errno = ENOPROTOOPT;
        return -1;
    }
    return 0;
}

/* ---- closing */

static void
close_pending(sim_socket *self)
{
    while (!dd_list_is_empty(&self->pending)) {
        sim_pending *pending = DD_CONTAINER_OF(self->pending.next, sim_pending, link);
        sim_file *child = pending->file;
        dd_list_remove(&pending->link);
        free(pending);
        if (child->socket->other != NULL) {
            send_reset(child->socket, child->socket->other);
            child->socket->other->socket->other = NULL;
            child->socket->other = NULL;
        }
        sim_file_drop_fd(child);
    }
}

void
sim_socket_close(sim_file *file, bool is_silent)
{
    sim_socket *self = file->socket;
    close_pending(self);
    if (self->other != NULL) {
        bool has_unread = !dd_list_is_empty(&self->pieces);
        if (!is_silent && has_unread) {
            send_reset(self, self->other);
        }
        if (!is_silent) {
            send_end(self, self->other);
        }
        self->other->socket->other = NULL;
        self->other = NULL;
    }
    self->state = SOCKET_CLOSED;
    self->is_bound = false;
}

void
sim_socket_free(sim_file *file)
{
    sim_socket *self = file->socket;
    while (!dd_list_is_empty(&self->pieces)) {
        free_piece(DD_CONTAINER_OF(self->pieces.next, sim_piece, link));
    }
    free(self);
}
