#include "transport/link.h"

#include "core/fork.h"
#include "core/list.h"
#include "core/mem.h"
#include "core/system.h"

#include <errno.h>
#include <limits.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>

/* A host that vanished without a word is noticed after about a quarter of a minute, whether the connection
 * is idle (keepalive) or has bytes under way. For the latter, sending again at least once a second makes
 * the kernel's number of attempts last that long. Kernels before 6.15 do not know how to, and get a limit
 * for the bytes themselves; there a peer that answers but has not read for so long, being stopped, is
 * taken for lost as well. */
#define KEEPALIVE_IDLE_S 5
#define KEEPALIVE_INTERVAL_S 2
#define KEEPALIVE_PROBES 3
#define RESEND_MS 1000
#define USER_TIMEOUT_MS 15000

#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44
#endif

typedef struct tcp_stream {
    dd_link base;
    dd_seal *seal; /* NULL: in the clear */
} tcp_stream;

static tcp_stream *
stream_of(dd_link *link)
{
    return DD_CONTAINER_OF(link, tcp_stream, base);
}

static dd_io
classify(ssize_t rc)
{
    if (rc >= 0) {
        return DD_IO_OK;
    }
    switch (errno) {
    case EAGAIN:
    case EINTR:
        return DD_IO_AGAIN;
    case ECONNRESET:
    case EPIPE:
        return DD_IO_CLOSED;
    default:
        return DD_IO_FAILED;
    }
}

static dd_io
tcp_try_send(dd_link *link, const struct iovec *parts, int nparts, size_t *moved)
{
    struct msghdr message = {
        .msg_iov = (struct iovec *)(uintptr_t)parts,
        .msg_iovlen = (size_t)(nparts < IOV_MAX ? nparts : IOV_MAX),
    };
    ssize_t rc = dd_sys_sendmsg(link->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    dd_io io = classify(rc);
    if (io == DD_IO_OK) {
        *moved = (size_t)rc;
    }
    return io;
}

/* If a process ends with something unread, or something comes when it has ended, its connection is reset, and
 * what waits for the receiver's window, or has to be sent again, is lost. */
static bool
tcp_has_left(dd_link *link, bool is_sure)
{
    int nbytes = 0;
    return dd_sys_ioctl(link->fd, is_sure ? SIOCOUTQ : SIOCOUTQNSD, &nbytes) != 0 || nbytes == 0;
}

/* Lost in the network, or dropped by this host's own interface: then nothing is on its way, although the
 * receiver has room, and the congestion state says that a packet could not be handed over. */
static size_t
tcp_count_lost(dd_link *link, unsigned *nresends)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof info;
    int queued = 0;
    int unsent = 0;
    *nresends = 0;
    if (dd_sys_getsockopt(link->fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0 ||
        dd_sys_ioctl(link->fd, SIOCOUTQ, &queued) != 0 || dd_sys_ioctl(link->fd, SIOCOUTQNSD, &unsent) != 0) {
        return 0;
    }
    bool is_stuck_here = info.tcpi_ca_state == TCP_CA_CWR && info.tcpi_unacked == 0 && unsent > 0;
    if (info.tcpi_retransmits < 2) {
        return is_stuck_here ? (size_t)unsent : 0;
    }
    *nresends = info.tcpi_retransmits;
    return queued > unsent ? (size_t)(queued - unsent) : 0;
}

static dd_io
tcp_try_recv(dd_link *link, void *data, size_t nbytes, size_t *moved)
{
    return dd_sock_try_recv(link->fd, data, nbytes, moved);
}

static dd_io
sealed_try_send(dd_link *link, const struct iovec *parts, int nparts, size_t *moved)
{
    return dd_seal_try_send(stream_of(link)->seal, link->fd, parts, nparts, moved);
}

static dd_io
sealed_try_recv(dd_link *link, void *data, size_t nbytes, size_t *moved)
{
    dd_seal *seal = stream_of(link)->seal;
    dd_io io = dd_seal_try_recv(seal, link->fd, data, nbytes, moved);
    link->has_input = dd_seal_has_input(seal);
    return io;
}

static dd_io
tcp_on_event(dd_link *link)
{
    (void)link;
    return DD_IO_OK;
}

static bool
tcp_fall_asleep(dd_link *link, bool wants_room)
{
    (void)wants_room;
    return !link->has_input;
}

static void
tcp_destroy(dd_link *link)
{
    if (link->generation == dd_fork_generation()) {
        dd_sock_close(link->fd);
    }
    dd_seal_destroy(stream_of(link)->seal);
    dd_mem_free(stream_of(link));
}

static const dd_link_ops tcp_ops = {
    .name = "TCP",
    .try_send = tcp_try_send,
    .has_left = tcp_has_left,
    .count_lost = tcp_count_lost,
    .try_recv = tcp_try_recv,
    .on_event = tcp_on_event,
    .fall_asleep = tcp_fall_asleep,
    .destroy = tcp_destroy,
};

static const dd_link_ops sealed_ops = {
    .name = "encrypted TCP",
    .try_send = sealed_try_send,
    .has_left = tcp_has_left,
    .count_lost = tcp_count_lost,
    .try_recv = sealed_try_recv,
    .on_event = tcp_on_event,
    .fall_asleep = tcp_fall_asleep,
    .destroy = tcp_destroy,
};

/* None of these is worth failing for, and a socket pair has none of them. */
static bool
set_option(int fd, int level, int name, int value)
{
    return dd_sys_setsockopt(fd, level, name, &value, sizeof value) == 0;
}

/* The buffers are left to the kernel, which fits them to the path. */
static void
tune(int fd)
{
    (void)set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    (void)set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    (void)set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S);
    (void)set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S);
    (void)set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_PROBES);
    if (!set_option(fd, IPPROTO_TCP, TCP_RTO_MAX_MS, RESEND_MS)) {
        (void)set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, USER_TIMEOUT_MS);
    }
}

dd_status
dd_link_open_tcp(int fd, dd_seal *seal, dd_link **link, dd_error *err)
{
    tcp_stream *self = dd_mem_zalloc(sizeof *self);
    if (self == NULL) {
        return dd_error_no_memory(err, sizeof *self);
    }
    tune(fd);
    self->base = (dd_link){.ops = seal != NULL ? &sealed_ops : &tcp_ops,
                           .fd = fd,
                           .has_input = seal != NULL && dd_seal_has_input(seal),
                           .generation = dd_fork_generation()};
    self->seal = seal;
    *link = &self->base;
    return DD_OK;
}
