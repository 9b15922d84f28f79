/* Stream sockets that never block. Every descriptor is non-blocking and close-on-exec, and is
 * registered so that a forked child closes it (core/fork.h). */
#ifndef DD_NET_SOCK_H
#define DD_NET_SOCK_H

#include "core/status.h"
#include "core/wait.h"
#include "net/addr.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>

/* The result of a function that never blocks. */
typedef enum dd_io {
    DD_IO_OK,
    DD_IO_AGAIN,  /* no progress is possible now: the call would block */
    DD_IO_CLOSED, /* the peer closed or reset the connection */
    DD_IO_FAILED, /* the call failed, and errno is set */
    DD_IO_FORGED, /* bytes failed authentication; only for sealed streams (net/seal.h) */
} dd_io;

/* Listen on `addr`, whose port may be 0 for any free port. DD_NETWORK names the address. */
dd_status dd_sock_listen(const dd_addr *addr, int *fd, dd_error *err) DD_MUST_CHECK;

/* Listen on a bound stream socket, which the caller keeps, and must register (core/fork.h). */
dd_status dd_sock_listen_on(int bound_fd, dd_error *err) DD_MUST_CHECK;

/* Try once to connect, until the deadline. On failure return DD_NETWORK (its sys_errno is the
 * reason, such as ECONNREFUSED) or DD_NETWORK_TIMED_OUT. */
dd_status dd_sock_connect(const dd_addr *addr, int *fd, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* Begin to connect, without waiting. Once the socket is writable, call dd_sock_end_connect for the
 * result. A Unix socket fails with EAGAIN if the listener's queue is full. */
dd_status dd_sock_begin_connect(const dd_addr *addr, int *fd, dd_error *err) DD_MUST_CHECK;
dd_status dd_sock_end_connect(int fd, dd_error *err) DD_MUST_CHECK;

/* Accept a connection. *fd is set only on DD_IO_OK. */
dd_io dd_sock_try_accept(int listen_fd, int *fd);

/* Return the process's current limit of open descriptors (RLIMIT_NOFILE). */
size_t dd_sock_fd_limit(void);
/* Return true if `fd` is one of the last descriptors that the process may open. The caller must not
 * keep it for a remote connection, because the rest of the process may need it to open a file. */
bool dd_sock_is_fd_scarce(int fd);

/* Return true if the peer of a Unix socket was a process of this user when it connected. */
bool dd_sock_is_same_user(int fd);
/* Return true if the peer of a TCP connection is an open socket of this user and network namespace,
 * according to the kernel. */
bool dd_sock_is_tcp_of_same_user(int fd);

/* Tune a connected TCP socket for a link between ranks: a host that vanishes is detected after
 * about 15 seconds, with or without unacknowledged bytes. */
void dd_sock_tune_link(int fd);

void dd_sock_close(int fd); /* no effect if `fd` is -1 */

/* Send or receive as many bytes as possible without blocking, at least one on DD_IO_OK. */
dd_io dd_sock_try_send(int fd, const void *data, size_t len, size_t *moved);
dd_io dd_sock_try_send_parts(int fd, const struct iovec *parts, int nparts, size_t *moved);
dd_io dd_sock_try_recv(int fd, void *data, size_t len, size_t *moved);

/* Send or receive bytes, and optionally a descriptor, over a Unix socket, as dd_sock_try_send and
 * dd_sock_try_recv do. All descriptors that dldist passes between processes are sent this way.
 *
 * Sending: `to` must be NULL on a connected socket. passed_fd is -1 for no descriptor; the caller
 * keeps the descriptor. Receiving: *passed_fd is the receiver's copy, close-on-exec and registered;
 * -1 if none was sent; DD_SOCK_FD_REFUSED if this process had no descriptor left. If is_same_user
 * is not NULL, the socket must have SO_PASSCRED; *is_same_user is set to true if the sender belongs
 * to this user. DD_IO_CLOSED may also mean an empty datagram, which may carry a descriptor. */
#define DD_SOCK_FD_REFUSED (-2)
dd_io dd_sock_try_send_fd(int fd, const dd_addr *to, const void *data, size_t len, int passed_fd,
                          size_t *moved);
dd_io dd_sock_try_recv_fd(int fd, void *data, size_t len, int *passed_fd, bool *is_same_user, size_t *moved);

/* Sleep until the socket has one of `events` (POLLIN, POLLOUT) or an error. Return
 * DD_NETWORK_TIMED_OUT at the deadline, DD_INTERRUPTED if the caller interrupts the wait. */
dd_status dd_sock_wait(int fd, short events, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* Return true if the address belongs to this machine (or to this container). No packet is sent. */
bool dd_sock_is_own_addr(const dd_addr *addr);

dd_status dd_sock_find_port(int fd, uint16_t *port, dd_error *err) DD_MUST_CHECK;

/* Return the address of the local end, or of the peer. Its length is 0 if the socket has none. */
dd_addr dd_sock_local_addr(int fd);
dd_addr dd_sock_peer_addr(int fd);

#endif
