#include "transport/link.h"

#include "core/fork.h"
#include "core/list.h"
#include "core/mem.h"
#include "core/system.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>

typedef struct tcp_stream {
    dd_link base;
    dd_seal *seal; /* NULL if the link is not encrypted */
} tcp_stream;

static tcp_stream *
stream_of(dd_link *link)
{
    return DD_CONTAINER_OF(link, tcp_stream, base);
}

static dd_io
tcp_try_send(dd_link *link, const struct iovec *parts, int nparts, size_t *moved)
{
    return dd_sock_try_send_parts(link->fd, parts, nparts, moved);
}

/* Check for unsent data; with `is_sure`, also for data that is not acknowledged. If a process ends
 * with unread input, or receives input after its end, its connection is reset, and data that waits
 * for the receiver's window or must be resent is lost. */
static bool
tcp_has_left(dd_link *link, bool is_sure)
{
    int nbytes = 0;
    return dd_sys_ioctl(link->fd, is_sure ? SIOCOUTQ : SIOCOUTQNSD, &nbytes) != 0 || nbytes == 0;
}

/* Count data that the network loses, or that this host's interface drops. In the second case,
 * nothing is in flight although the receiver has room, and the congestion state CWR shows that
 * passing data to the interface failed. */
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
link_tcp_destroy(dd_link *link)
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
    .destroy = link_tcp_destroy,
};

static const dd_link_ops sealed_ops = {
    .name = "encrypted TCP",
    .try_send = sealed_try_send,
    .has_left = tcp_has_left,
    .count_lost = tcp_count_lost,
    .try_recv = sealed_try_recv,
    .on_event = tcp_on_event,
    .fall_asleep = tcp_fall_asleep,
    .destroy = link_tcp_destroy,
};

dd_status
dd_link_open_tcp(int fd, dd_seal *seal, dd_link **link, dd_error *err)
{
    tcp_stream *self = dd_mem_zalloc(sizeof *self);
    if (self == NULL) {
        return dd_error_no_memory(err, sizeof *self);
    }
    dd_sock_tune_link(fd);
    self->base = (dd_link){.ops = seal != NULL ? &sealed_ops : &tcp_ops,
                           .fd = fd,
                           .has_input = seal != NULL && dd_seal_has_input(seal),
                           .generation = dd_fork_generation()};
    self->seal = seal;
    *link = &self->base;
    return DD_OK;
}
