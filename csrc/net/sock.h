/* Stream sockets that never block. Every descriptor is non-blocking and close-on-exec, and
 * registered so that it is closed in a forked child (core/fork.h). */
#ifndef DD_NET_SOCK_H
#define DD_NET_SOCK_H

#include "core/status.h"
#include "core/wait.h"
#include "net/addr.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>

/* The result of a try_ function. */
typedef enum dd_io {
    DD_IO_OK,
    DD_IO_AGAIN,  /* would block */
    DD_IO_CLOSED, /* the peer closed or reset the connection */
    DD_IO_FAILED, /* errno is set */
    DD_IO_FORGED, /* only sealed streams (net/seal.h): the bytes are not those that the peer sent */
} dd_io;

/* Listen on addr; a port of 0 means any. DD_NETWORK names the address. */
dd_status dd_sock_listen(const dd_addr *addr, int *fd, dd_error *err) DD_MUST_CHECK;

/* Listen on a bound stream socket, which the caller owns and must register (dd_fork_register). */
dd_status dd_sock_listen_on(int bound_fd, dd_error *err) DD_MUST_CHECK;

/* Try once to connect, until the deadline. DD_NETWORK (sys_errno has the reason, such as
 * ECONNREFUSED) or DD_NETWORK_TIMED_OUT. */
dd_status dd_sock_connect(const dd_addr *addr, int *fd, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* The same as dd_sock_connect, without waiting: once the socket is writable, dd_sock_end_connect
 * returns the result. A Unix socket fails with EAGAIN if the listener's queue is full. */
dd_status dd_sock_begin_connect(const dd_addr *addr, int *fd, dd_error *err) DD_MUST_CHECK;
dd_status dd_sock_end_connect(int fd, dd_error *err) DD_MUST_CHECK;

/* Accept a connection. *fd is set on DD_IO_OK. */
dd_io dd_sock_try_accept(int listen_fd, int *fd);

/* Return the current limit for descriptors of the process (RLIMIT_NOFILE). */
size_t dd_sock_fd_limit(void);
/* Return true if an accepted connection has one of the last descriptors, which the rest of the
 * process may need: remote connections must not keep the process from opening a file. */
bool dd_sock_is_fd_scarce(int fd);

/* Return true if the process at the other end of a Unix socket had this user when it connected. */
bool dd_sock_is_same_user(int fd);

/* Tune a connected TCP socket for a link between ranks: a vanished host is detected after about 15
 * seconds, with or without unacknowledged bytes. */
void dd_sock_tune_link(int fd);

void dd_sock_close(int fd); /* may be -1 */

/* Move as many bytes as possible, at least one on DD_IO_OK. */
dd_io dd_sock_try_send(int fd, const void *data, size_t len, size_t *moved);
dd_io dd_sock_try_send_parts(int fd, const struct iovec *parts, int nparts, size_t *moved);
dd_io dd_sock_try_recv(int fd, void *data, size_t len, size_t *moved);

/* The same as dd_sock_try_send and dd_sock_try_recv, over a Unix socket and with a descriptor
 * beside the bytes; dldist passes all descriptors between processes this way.
 *
 * Sending: `to` is NULL on a connected socket; passed_fd is -1 for none, and the caller keeps it.
 * Receiving: *passed_fd is the receiver's copy, close-on-exec and registered; -1 if none was sent,
 * DD_SOCK_FD_REFUSED if this process had none left. is_same_user is NULL, or the socket must have
 * SO_PASSCRED: it is set to true if the sender has this user. DD_IO_CLOSED may also be an empty
 * datagram, which may carry a descriptor. */
#define DD_SOCK_FD_REFUSED (-2)
dd_io dd_sock_try_send_fd(int fd, const dd_addr *to, const void *data, size_t len, int passed_fd,
                          size_t *moved);
dd_io dd_sock_try_recv_fd(int fd, void *data, size_t len, int *passed_fd, bool *is_same_user, size_t *moved);

/* Sleep until the socket has one of `events` (POLLIN, POLLOUT) or an error. DD_NETWORK_TIMED_OUT at
 * the deadline, DD_INTERRUPTED if the caller interrupts. */
dd_status dd_sock_wait(int fd, short events, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* Return true if the address is this machine's (or this container's). Sends no packet. */
bool dd_sock_is_own_addr(const dd_addr *addr);

dd_status dd_sock_find_port(int fd, uint16_t *port, dd_error *err) DD_MUST_CHECK;

/* Return the local or the peer's address; of length 0 if the socket has none. */
dd_addr dd_sock_local_addr(int fd);
dd_addr dd_sock_peer_addr(int fd);

#endif
