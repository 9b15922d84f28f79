/* Stream sockets that never block: every descriptor is non-blocking and close-on-exec, and registered so that a
 * forked child does not keep it (core/fork.h). */
#ifndef DD_NET_SOCK_H
#define DD_NET_SOCK_H

#include "core/status.h"
#include "core/wait.h"
#include "net/addr.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>

/* What a try_ function came to. */
typedef enum dd_io {
    DD_IO_OK,
    DD_IO_AGAIN,  /* would block */
    DD_IO_CLOSED, /* the peer closed or reset the connection */
    DD_IO_FAILED, /* errno tells */
    DD_IO_FORGED, /* of sealed streams (net/seal.h): what has come is not what the peer has sent */
} dd_io;

/* Listens on addr, with the port asked for or any if it is 0. DD_NETWORK names the address. */
dd_status dd_sock_listen(const dd_addr *addr, int *fd, dd_error *err) DD_MUST_CHECK;

/* Listens on a bound stream socket. It stays the caller's, to be registered if it is kept. */
dd_status dd_sock_listen_on(int bound_fd, dd_error *err) DD_MUST_CHECK;

/* One attempt to connect, until the deadline. DD_NETWORK (sys_errno tells, ECONNREFUSED among them) or
 * DD_NETWORK_TIMED_OUT. */
dd_status dd_sock_connect(const dd_addr *addr, int *fd, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* The same without waiting: the socket is writable when the attempt is over, and then dd_sock_end_connect tells what it
 * has come to. A Unix socket whose queue of connections is full fails with EAGAIN. */
dd_status dd_sock_begin_connect(const dd_addr *addr, int *fd, dd_error *err) DD_MUST_CHECK;
dd_status dd_sock_end_connect(int fd, dd_error *err) DD_MUST_CHECK;

/* The next connection of a listening socket; *fd is set on DD_IO_OK. */
dd_io dd_sock_try_accept(int listen_fd, int *fd);

/* How many descriptors the process may have now (RLIMIT_NOFILE). */
size_t dd_sock_fd_limit(void);
/* Whether an accepted connection has one of the last descriptors, which the rest of the process may need:
 * connections that others open must not keep the process from opening a file. */
bool dd_sock_is_fd_scarce(int fd);

/* Whether the process at the other end of a Unix socket was of our user when it connected. */
bool dd_sock_is_same_user(int fd);

/* Set a connected TCP socket up for a link between ranks: a vanished host is noticed after about a quarter of a minute, whether the
 * connection is idle or has bytes under way. */
void dd_sock_tune_link(int fd);

void dd_sock_close(int fd); /* -1 is fine */

/* Moves what it can, at least one byte on DD_IO_OK. */
dd_io dd_sock_try_send(int fd, const void *data, size_t len, size_t *moved);
dd_io dd_sock_try_send_parts(int fd, const struct iovec *parts, int nparts, size_t *moved);
dd_io dd_sock_try_recv(int fd, void *data, size_t len, size_t *moved);

/* The same over a Unix socket, with a descriptor beside the bytes; all descriptors that dldist passes between processes go this way.
 *
 * Sending: `to` is NULL on a connected socket; passed_fd is -1 to send no descriptor, and stays the caller's.
 * Receiving: *passed_fd is the receiver's copy, close-on-exec and registered; -1 if none was sent, DD_SOCK_FD_REFUSED if this process had
 * no room for it. is_same_user is NULL, or the socket must have SO_PASSCRED: it is set to true if the sender is of this user. DD_IO_CLOSED
 * also means an empty datagram, which may carry a descriptor. */
#define DD_SOCK_FD_REFUSED (-2)
dd_io dd_sock_try_send_fd(int fd, const dd_addr *to, const void *data, size_t len, int passed_fd,
                          size_t *moved);
dd_io dd_sock_try_recv_fd(int fd, void *data, size_t len, int *passed_fd, bool *is_same_user, size_t *moved);

/* Sleeps until the socket has one of `events` (POLLIN, POLLOUT) or an error; DD_NETWORK_TIMED_OUT at the deadline,
 * DD_INTERRUPTED when the caller wants out. */
dd_status dd_sock_wait(int fd, short events, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* Whether a packet to the address would not leave this machine's network (nor this container's). Sends
 * nothing. */
bool dd_sock_is_own_addr(const dd_addr *addr);

/* The port of a bound socket. */
dd_status dd_sock_find_port(int fd, uint16_t *port, dd_error *err) DD_MUST_CHECK;

/* Own and other end; an address of length 0 when the socket has none. */
dd_addr dd_sock_local_addr(int fd);
dd_addr dd_sock_peer_addr(int fd);

#endif
