/* All system calls of the library for files, memory, sockets and the process. (Clocks, threads,
 * locks and the heap have other headers here.) Other folders must not call the system
 * (tools/check_system.py). Each function calls the C library's function of the same name, and fails
 * in the same way. Tests wrap the functions to make the N-th call fail (tests/faults/). */
#ifndef DD_CORE_SYSTEM_H
#define DD_CORE_SYSTEM_H

#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

/* X(result, name, parameters, arguments): calls that may fail; they return -1 and set errno. */
#define DD_SYSTEM_CALLS(X)                                                                                   \
    /* descriptors */                                                                                        \
    X(int, open, (const char *path, int flags, mode_t mode), (path, flags, mode))                            \
    X(int, fcntl, (int fd, int command, long value), (fd, command, value))                                   \
    X(int, dup3, (int from, int to, int flags), (from, to, flags))                                           \
    X(int, eventfd, (unsigned count, int flags), (count, flags))                                             \
    X(ssize_t, read, (int fd, void *data, size_t nbytes), (fd, data, nbytes))                                \
    X(ssize_t, write, (int fd, const void *data, size_t nbytes), (fd, data, nbytes))                         \
    X(ssize_t, pread, (int fd, void *data, size_t nbytes, off_t at), (fd, data, nbytes, at))                 \
    X(ssize_t, pwrite, (int fd, const void *data, size_t nbytes, off_t at), (fd, data, nbytes, at))          \
    X(int, ftruncate, (int fd, off_t nbytes), (fd, nbytes))                                                  \
    X(int, fstat, (int fd, struct stat *info), (fd, info))                                                   \
    /* files by name */                                                                                      \
    X(int, stat, (const char *path, struct stat *info), (path, info))                                        \
    X(int, lstat, (const char *path, struct stat *info), (path, info))                                       \
    X(int, mkdir, (const char *path, mode_t mode), (path, mode))                                             \
    X(int, mkfifo, (const char *path, mode_t mode), (path, mode))                                            \
    X(int, mkostemp, (char *name, int flags), (name, flags))                                                 \
    X(int, rename, (const char *from, const char *to), (from, to))                                           \
    X(int, unlink, (const char *path), (path))                                                               \
    /* memory */                                                                                             \
    X(int, memfd_create, (const char *name, unsigned flags), (name, flags))                                  \
    X(void *, mmap, (void *at, size_t nbytes, int access, int flags, int fd, off_t from),                    \
      (at, nbytes, access, flags, fd, from))                                                                 \
    X(void *, mremap, (void *old, size_t old_nbytes, size_t nbytes, int flags, void *at),                    \
      (old, old_nbytes, nbytes, flags, at))                                                                  \
    X(int, madvise, (void *at, size_t nbytes, int advice), (at, nbytes, advice))                             \
    /* sockets */                                                                                            \
    X(int, socket, (int family, int type, int protocol), (family, type, protocol))                           \
    X(int, bind, (int fd, const struct sockaddr *addr, socklen_t len), (fd, addr, len))                      \
    X(int, listen, (int fd, int backlog), (fd, backlog))                                                     \
    X(int, accept4, (int fd, struct sockaddr *peer, socklen_t *len, int flags), (fd, peer, len, flags))      \
    X(int, connect, (int fd, const struct sockaddr *addr, socklen_t len), (fd, addr, len))                   \
    X(ssize_t, send, (int fd, const void *data, size_t nbytes, int flags), (fd, data, nbytes, flags))        \
    X(ssize_t, recv, (int fd, void *data, size_t nbytes, int flags), (fd, data, nbytes, flags))              \
    X(ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags))             \
    X(ssize_t, recvmsg, (int fd, struct msghdr *message, int flags), (fd, message, flags))                   \
    X(ssize_t, sendto,                                                                                       \
      (int fd, const void *data, size_t nbytes, int flags, const struct sockaddr *addr, socklen_t len),      \
      (fd, data, nbytes, flags, addr, len))                                                                  \
    X(int, getsockopt, (int fd, int level, int name, void *value, socklen_t *len),                           \
      (fd, level, name, value, len))                                                                         \
    X(int, setsockopt, (int fd, int level, int name, const void *value, socklen_t len),                      \
      (fd, level, name, value, len))                                                                         \
    X(int, getsockname, (int fd, struct sockaddr *addr, socklen_t *len), (fd, addr, len))                    \
    X(int, getpeername, (int fd, struct sockaddr *addr, socklen_t *len), (fd, addr, len))                    \
    X(int, ioctl, (int fd, unsigned long request, int *value),                                               \
      (fd, request, value)) /* only for requests that write one int to *value */                             \
    X(int, getifaddrs, (struct ifaddrs * *all), (all))                                                       \
    /* waiting */                                                                                            \
    X(int, poll, (struct pollfd * fds, nfds_t count, int timeout_ms), (fds, count, timeout_ms))              \
    X(int, ppoll, (struct pollfd * fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask), \
      (fds, count, timeout, mask))                                                                           \
    X(int, epoll_create1, (int flags), (flags))                                                              \
    X(int, epoll_ctl, (int epoll_fd, int operation, int fd, struct epoll_event *event),                      \
      (epoll_fd, operation, fd, event))                                                                      \
    X(int, epoll_wait, (int epoll_fd, struct epoll_event *events, int capacity, int timeout_ms),             \
      (epoll_fd, events, capacity, timeout_ms))                                                              \
    /* the process and its host */                                                                           \
    X(int, gethostname, (char *name, size_t nbytes), (name, nbytes))                                         \
    X(ssize_t, getrandom, (void *data, size_t nbytes, unsigned flags), (data, nbytes, flags))

/* X(result, name, parameters, arguments): calls that cannot fail, or that need no check. */
#define DD_SYSTEM_SURE_CALLS(X)                                                                   \
    X(int, close, (int fd), (fd))                                                                 \
    X(int, munmap, (void *at, size_t nbytes), (at, nbytes))                                       \
    X(void, freeaddrinfo, (struct addrinfo * found), (found))                                     \
    X(void, freeifaddrs, (struct ifaddrs * all), (all))                                           \
    X(int, nanosleep, (const struct timespec *duration, struct timespec *left), (duration, left)) \
    X(int, sched_yield, (void), ())                                                               \
    X(int, sched_getcpu, (void), ())                                                              \
    X(pid_t, getpid, (void), ())                                                                  \
    X(uid_t, geteuid, (void), ())                                                                 \
    X(char *, getenv, (const char *name), (name))

#define X(result, name, parameters, arguments) result dd_sys_##name parameters;
DD_SYSTEM_CALLS(X)
DD_SYSTEM_SURE_CALLS(X)
#undef X

/* Calls that do not report failures by -1 and errno, or that need another signature. */
int dd_sys_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                       struct addrinfo **found);
char *dd_sys_getcwd(char *path, size_t nbytes);
/* `command` must be F_OFD_SETLK or another lock command */
int dd_sys_lock_file(int fd, int command, struct flock *lock);
int dd_sys_get_file_limit(struct rlimit *limit); /* gets the limit of open files, RLIMIT_NOFILE */

#endif
