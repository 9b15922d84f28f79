#include "net/sock.h"

#include "core/fork.h"
#include "core/system.h"

#include <errno.h>
#include <limits.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>

/* Length of a listening socket's queue. The kernel limits it to net.core.somaxconn. */
#define BACKLOG 65535

/* Maximum number of descriptors that connections must leave free for the rest of the process. */
#define SPARED_FDS_MAX 32

/* Times until a vanished host is detected: the idle time, plus an interval for each probe. A link
 * between ranks has shorter times than a client of a store, and also limits unacknowledged bytes:
 * with a resend each second, the kernel ends the connection after about the same time. Kernels
 * before 6.15 limit the age of unacknowledged bytes instead; then a stopped peer counts as lost. */
#define KEEPALIVE_PROBES 3
#define STREAM_IDLE_S 15
#define STREAM_INTERVAL_S 5
#define LINK_IDLE_S 5
#define LINK_INTERVAL_S 2
#define LINK_RESEND_MS 1000
#define LINK_UNACKNOWLEDGED_MS 15000

#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44
#endif

/* Set an option of a socket. Callers that have no alternative ignore a failure. */
static bool
set_option(int fd, int level, int name, int value)
{
    return dd_sys_setsockopt(fd, level, name, &value, sizeof value) == 0;
}

/* Set a TCP socket's options, except the buffer sizes, which the kernel adapts to the path. */
static void
tune_tcp(int fd, int idle_s, int interval_s)
{
    (void)set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    (void)set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    (void)set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, idle_s);
    (void)set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, interval_s);
    (void)set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_PROBES);
}

static void
tune_stream(int fd, int family)
{
    if (family != AF_UNIX) {
        tune_tcp(fd, STREAM_IDLE_S, STREAM_INTERVAL_S);
    }
}

void
dd_sock_tune_link(int fd)
{
    tune_tcp(fd, LINK_IDLE_S, LINK_INTERVAL_S);
    if (!set_option(fd, IPPROTO_TCP, TCP_RTO_MAX_MS, LINK_RESEND_MS)) {
        (void)set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, LINK_UNACKNOWLEDGED_MS);
    }
}

static int
open_stream(int family)
{
    return dd_fork_register(dd_sys_socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

dd_status
dd_sock_listen(const dd_addr *addr, int *fd, dd_error *err)
{
    char text[DD_ADDR_TEXT_MAX];
    int family = addr->storage.ss_family;
    int new_fd = open_stream(family);
    if (new_fd < 0) {
        return dd_error_set_errno(err, DD_NETWORK, errno, "cannot open a socket for %s",
                                  dd_addr_print(addr, text));
    }
    if (family != AF_UNIX) {
        (void)set_option(new_fd, SOL_SOCKET, SO_REUSEADDR, 1);
    }
    if (family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)&addr->storage;
        /* accept IPv4 too, but only if the socket is bound to "::" */
        (void)set_option(new_fd, IPPROTO_IPV6, IPV6_V6ONLY, !IN6_IS_ADDR_UNSPECIFIED(&in6->sin6_addr));
    }
    if (dd_sys_bind(new_fd, (const struct sockaddr *)&addr->storage, addr->len) != 0 ||
        dd_sys_listen(new_fd, BACKLOG) != 0) {
        int sys_errno = errno;
        dd_sock_close(new_fd);
        return dd_error_set_errno(err, DD_NETWORK, sys_errno, "cannot listen on %s",
                                  dd_addr_print(addr, text));
    }
    *fd = new_fd;
    return DD_OK;
}

dd_status
dd_sock_listen_on(int bound_fd, dd_error *err)
{
    int type = 0;
    socklen_t type_len = sizeof type;
    if (dd_sys_getsockopt(bound_fd, SOL_SOCKET, SO_TYPE, &type, &type_len) != 0) {
        return dd_error_set_errno(err, DD_INVALID_ARGUMENT, errno, "listen fd %d is not a socket", bound_fd);
    }
    if (type != SOCK_STREAM) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "listen fd %d is not a stream socket", bound_fd);
    }
    int flags = dd_sys_fcntl(bound_fd, F_GETFL, 0);
    if (flags < 0 || dd_sys_fcntl(bound_fd, F_SETFL, flags | O_NONBLOCK) != 0 ||
        dd_sys_fcntl(bound_fd, F_SETFD, FD_CLOEXEC) != 0 || dd_sys_listen(bound_fd, BACKLOG) != 0) {
        return dd_error_set_errno(err, DD_NETWORK, errno, "cannot listen on fd %d", bound_fd);
    }
    return DD_OK;
}

dd_status
dd_sock_begin_connect(const dd_addr *addr, int *fd, dd_error *err)
{
    int new_fd = open_stream(addr->storage.ss_family);
    if (new_fd < 0) {
        return dd_error_set_errno(err, DD_NETWORK, errno, "cannot open a socket");
    }
    if (dd_sys_connect(new_fd, (const struct sockaddr *)&addr->storage, addr->len) != 0 &&
        errno != EINPROGRESS && errno != EINTR) {
        int sys_errno = errno;
        dd_sock_close(new_fd);
        return dd_error_set_errno(err, DD_NETWORK, sys_errno, "connection failed");
    }
    tune_stream(new_fd, addr->storage.ss_family);
    *fd = new_fd;
    return DD_OK;
}

dd_status
dd_sock_end_connect(int fd, dd_error *err)
{
    int reason = 0;
    socklen_t reason_len = sizeof reason;
    if (dd_sys_getsockopt(fd, SOL_SOCKET, SO_ERROR, &reason, &reason_len) != 0) {
        reason = errno;
    }
    return reason == 0 ? DD_OK : dd_error_set_errno(err, DD_NETWORK, reason, "connection failed");
}

dd_status
dd_sock_connect(const dd_addr *addr, int *fd, const dd_wait *wait, dd_error *err)
{
    char text[DD_ADDR_TEXT_MAX];
    int new_fd = -1;
    dd_status status = dd_sock_begin_connect(addr, &new_fd, err);
    if (status == DD_OK) {
        status = dd_sock_wait(new_fd, POLLOUT, wait, err);
    }
    if (status == DD_OK) {
        status = dd_sock_end_connect(new_fd, err);
    }
    if (status != DD_OK) {
        dd_sock_close(new_fd);
        dd_error_prepend(err, "connect to %s", dd_addr_print(addr, text));
        return status;
    }
    *fd = new_fd;
    return DD_OK;
}

dd_io
dd_sock_try_accept(int listen_fd, int *fd)
{
    struct sockaddr_storage peer = {0};
    socklen_t peer_len = sizeof peer;
    int new_fd = dd_sys_accept4(listen_fd, (struct sockaddr *)&peer, &peer_len, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (new_fd >= 0) {
        dd_fork_register(new_fd);
        tune_stream(new_fd, peer.ss_family);
        *fd = new_fd;
        return DD_IO_OK;
    }
    switch (errno) {
    case EAGAIN:
    case EINTR:
    case ECONNABORTED: /* one connection was closed; the next event reports others */
        return DD_IO_AGAIN;
    default:
        return DD_IO_FAILED;
    }
}

size_t
dd_sock_fd_limit(void)
{
    struct rlimit limit;
    return dd_sys_get_file_limit(&limit) == 0 && limit.rlim_cur < INT_MAX ? (size_t)limit.rlim_cur : INT_MAX;
}

bool
dd_sock_is_fd_scarce(int fd)
{
    /* The kernel assigns the lowest free number: a number near the limit means few are left. */
    size_t limit = dd_sock_fd_limit();
    size_t spared = limit / 16 < SPARED_FDS_MAX ? limit / 16 : SPARED_FDS_MAX;
    return (size_t)fd >= limit - spared;
}

bool
dd_sock_is_same_user(int fd)
{
    struct ucred cred = {0};
    socklen_t len = sizeof cred;
    return dd_sys_getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) == 0 && cred.uid == dd_sys_geteuid();
}

/* Write an IP address as the kernel's socket diagnostics expect it, and return the port. */
static __be16
put_diag_address(const dd_addr *addr, __be32 out[4])
{
    const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)&addr->storage;
    bool is_v6 = in6->sin6_family == AF_INET6;
    const void *address =
        is_v6 ? (const void *)&in6->sin6_addr : &((const struct sockaddr_in *)in6)->sin_addr;
    memcpy(out, address, is_v6 ? sizeof(struct in6_addr) : sizeof(struct in_addr));
    return htons(dd_addr_port(addr));
}

bool
dd_sock_is_tcp_of_same_user(int fd)
{
    dd_addr local = dd_sock_local_addr(fd);
    dd_addr peer = dd_sock_peer_addr(fd);
    struct {
        struct nlmsghdr head;
        union {
            struct inet_diag_req_v2 query;
            struct inet_diag_msg answer;
        };
    } message = {.head = {.nlmsg_type = SOCK_DIAG_BY_FAMILY, .nlmsg_flags = NLM_F_REQUEST}};
    message.head.nlmsg_len = NLMSG_LENGTH(sizeof message.query);
    message.query.sdiag_family = (uint8_t)peer.storage.ss_family;
    message.query.sdiag_protocol = IPPROTO_TCP;
    memset(message.query.id.idiag_cookie, 0xff, sizeof message.query.id.idiag_cookie); /* any socket */
    /* The query names the peer's socket: its local address is this connection's peer address. */
    message.query.id.idiag_sport = put_diag_address(&peer, message.query.id.idiag_src);
    message.query.id.idiag_dport = put_diag_address(&local, message.query.id.idiag_dst);
    int diag = dd_fork_register(dd_sys_socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
    /* The kernel answers before send returns. recv cuts the answer's attributes off. */
    bool is_answered = diag >= 0 && dd_sys_send(diag, &message, message.head.nlmsg_len, 0) > 0 &&
                       dd_sys_recv(diag, &message, sizeof message, MSG_DONTWAIT) == sizeof message &&
                       message.head.nlmsg_type == SOCK_DIAG_BY_FAMILY;
    dd_sock_close(diag);
    /* For a socket that no process has open, the kernel reports user 0 and inode 0. */
    return is_answered && message.answer.idiag_state == TCP_ESTABLISHED && message.answer.idiag_inode != 0 &&
           message.answer.idiag_uid == dd_sys_geteuid();
}

void
dd_sock_close(int fd)
{
    dd_fork_close(fd);
}

static dd_io
classify(ssize_t rc, size_t *moved)
{
    if (rc > 0) {
        *moved = (size_t)rc;
        return DD_IO_OK;
    }
    if (rc == 0) {
        return DD_IO_CLOSED;
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

dd_io
dd_sock_try_send(int fd, const void *data, size_t len, size_t *moved)
{
    return classify(dd_sys_send(fd, data, len, MSG_NOSIGNAL | MSG_DONTWAIT), moved);
}

dd_io
dd_sock_try_send_parts(int fd, const struct iovec *parts, int nparts, size_t *moved)
{
    struct msghdr message = {
        .msg_iov = (struct iovec *)(uintptr_t)parts,
        .msg_iovlen = (size_t)(nparts < IOV_MAX ? nparts : IOV_MAX),
    };
    return classify(dd_sys_sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT), moved);
}

dd_io
dd_sock_try_recv(int fd, void *data, size_t len, size_t *moved)
{
    return classify(dd_sys_recv(fd, data, len, MSG_DONTWAIT), moved);
}

/* Space for the sender's credentials and one descriptor, aligned as the kernel requires. */
typedef union fd_control {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(sizeof(int))];
} fd_control;

dd_io
dd_sock_try_send_fd(int fd, const dd_addr *to, const void *data, size_t len, int passed_fd, size_t *moved)
{
    fd_control control = {0};
    struct iovec part = {.iov_base = (void *)(uintptr_t)data, .iov_len = len};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (to != NULL) {
        message.msg_name = (void *)(uintptr_t)&to->storage;
        message.msg_namelen = to->len;
    }
    if (passed_fd >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(sizeof passed_fd);
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(sizeof passed_fd);
        memcpy(CMSG_DATA(&control.header), &passed_fd, sizeof passed_fd);
    }
    return classify(dd_sys_sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT), moved);
}

static void
take_control(struct msghdr *message, int *passed_fd, bool *is_same_user)
{
    *passed_fd = (message->msg_flags & MSG_CTRUNC) != 0 ? DD_SOCK_FD_REFUSED : -1;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header != NULL;
         header = CMSG_NXTHDR(message, header)) {
        if (header->cmsg_level != SOL_SOCKET) {
            continue;
        }
        if (header->cmsg_type == SCM_RIGHTS && header->cmsg_len == CMSG_LEN(sizeof *passed_fd)) {
            memcpy(passed_fd, CMSG_DATA(header), sizeof *passed_fd);
            (void)dd_fork_register(*passed_fd);
        } else if (header->cmsg_type == SCM_CREDENTIALS && is_same_user != NULL) {
            struct ucred credentials;
            memcpy(&credentials, CMSG_DATA(header), sizeof credentials);
            *is_same_user = credentials.uid == dd_sys_geteuid();
        }
    }
}

dd_io
dd_sock_try_recv_fd(int fd, void *data, size_t len, int *passed_fd, bool *is_same_user, size_t *moved)
{
    fd_control control = {0};
    struct iovec part = {.iov_base = data, .iov_len = len};
    /* The credentials come first. The space after them must have the exact size of one descriptor,
     * without padding for a second one: the kernel closes descriptors that do not fit. */
    size_t before = is_same_user != NULL ? CMSG_SPACE(sizeof(struct ucred)) : 0;
    struct msghdr message = {
        .msg_iov = &part,
        .msg_iovlen = 1,
        .msg_control = control.bytes,
        .msg_controllen = before + CMSG_LEN(sizeof *passed_fd),
    };
    *passed_fd = -1;
    ssize_t rc = dd_sys_recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    dd_io io = classify(rc, moved);
    if (rc >= 0) {
        take_control(&message, passed_fd, is_same_user);
    }
    return io;
}

dd_status
dd_sock_wait(int fd, short events, const dd_wait *wait, dd_error *err)
{
    for (;;) {
        int64_t slice_ns = dd_wait_slice_ns(wait);
        struct timespec slice = {slice_ns / DD_NS_PER_S, slice_ns % DD_NS_PER_S};
        struct pollfd pollfd = {.fd = fd, .events = events};
        int rc = dd_sys_ppoll(&pollfd, 1, &slice, NULL);
        if (rc > 0) {
            return DD_OK;
        }
        if (rc < 0 && errno != EINTR) {
            return dd_error_set_errno(err, DD_SYSTEM, errno, "poll failed");
        }
        dd_status status = dd_wait_check(wait, err);
        if (status != DD_OK) {
            return status;
        }
        if (dd_wait_has_expired(wait)) {
            return dd_error_set(err, DD_NETWORK_TIMED_OUT, "timed out after %.3f s", dd_wait_elapsed_s(wait));
        }
    }
}

dd_addr
dd_sock_local_addr(int fd)
{
    dd_addr addr = {.len = sizeof addr.storage};
    if (dd_sys_getsockname(fd, (struct sockaddr *)&addr.storage, &addr.len) != 0) {
        addr.len = 0;
    }
    return addr;
}

dd_status
dd_sock_find_port(int fd, uint16_t *port, dd_error *err)
{
    dd_addr bound = dd_sock_local_addr(fd);
    if (bound.len == 0) {
        return dd_error_set_errno(err, DD_NETWORK, errno, "cannot read the port of a socket");
    }
    *port = dd_addr_port(&bound);
    return DD_OK;
}

dd_addr
dd_sock_peer_addr(int fd)
{
    dd_addr addr = {.len = sizeof addr.storage};
    if (dd_sys_getpeername(fd, (struct sockaddr *)&addr.storage, &addr.len) != 0) {
        addr.len = 0;
    }
    return addr;
}

bool
dd_sock_is_own_addr(const dd_addr *addr)
{
    if (dd_addr_is_loopback(addr)) {
        return true;
    }
    /* A packet to an address of this machine has that address as its source, too. */
    int fd = dd_sys_socket(addr->storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool is_routed = fd >= 0 && dd_sys_connect(fd, (const struct sockaddr *)&addr->storage, addr->len) == 0;
    dd_addr source = is_routed ? dd_sock_local_addr(fd) : (dd_addr){.len = 0};
    if (fd >= 0) {
        dd_sys_close(fd);
    }
    dd_addr_set_port(&source, dd_addr_port(addr));
    return is_routed && source.len == addr->len && memcmp(&source.storage, &addr->storage, addr->len) == 0;
}
