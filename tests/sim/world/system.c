/* The functions of csrc/core/system.h, fork.h and fence.h in the simulated world. */
#include "core/system.h"

#include "core/fence.h"
#include "core/fork.h"
#include "sim/world/internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Begin a system call: perhaps switch to another thread, and run a pending fault. */
static void
enter(const char *name, int64_t subject)
{
    sim_process *process = sim_self();
    process->ncalls++;
    sim_trace(name, subject, process->ncalls);
    sim_step(sim_around(world.options.call_cost_ns));
    sim_check_faults(process);
}

/* Begin a system call on a descriptor. Return NULL and set EBADF if it is invalid. */
static sim_file *
enter_file(const char *name, int fd)
{
    enter(name, fd);
    return sim_fd_get(fd);
}

static sim_file *
enter_kind(const char *name, int fd, sim_file_kind kind)
{
    sim_file *file = enter_file(name, fd);
    if (file != NULL && file->kind != kind) {
        errno = kind == FILE_SOCKET ? ENOTSOCK : EINVAL;
        return NULL;
    }
    return file;
}

static int64_t
leave(int64_t result)
{
    sim_trace("=", result, result < 0 ? errno : 0);
    return result;
}

static int
leave_int(int result)
{
    return (int)leave(result);
}

/* Fail a call that is not simulated. */
static int
refuse(const char *name, int error)
{
    enter(name, 0);
    errno = error;
    return leave_int(-1);
}

static int
install(sim_file *file)
{
    if (file == NULL) {
        return -1;
    }
    int fd = sim_fd_install(sim_self(), file);
    if (fd < 0) {
        int reason = errno;
        sim_file_release(file);
        errno = reason;
    }
    return fd;
}

/* ---- files by name: the files that describe the host */

static sim_file *
open_text(const char *text)
{
    sim_file *file = sim_file_create(FILE_TEXT);
    file->text = text;
    return file;
}

int
dd_sys_open(const char *path, int flags, mode_t mode)
{
    static const char *const boot_ids[SIM_HOSTS_MAX] = {"boot 0", "boot 1", "boot 2", "boot 3",
                                                        "boot 4", "boot 5", "boot 6", "boot 7"};
    (void)mode;
    enter("open", 0);
    bool is_boot_id = strcmp(path, "/proc/sys/kernel/random/boot_id") == 0;
    return leave_int(
        install(is_boot_id ? open_text(boot_ids[sim_self()->host]) : sim_disk_open(path, flags)));
}

int
dd_sys_stat(const char *path, struct stat *info)
{
    enter("stat", 0);
    if (strcmp(path, "/proc/self/ns/net") != 0) {
        return leave_int(sim_disk_stat(path, info));
    }
    *info = (struct stat){.st_dev = 4, .st_ino = (ino_t)(4026531840 + sim_self()->host)};
    return leave_int(0);
}

int
dd_sys_lstat(const char *path, struct stat *info)
{
    (void)path;
    (void)info;
    return refuse("lstat", ENOENT);
}

int
dd_sys_mkdir(const char *path, mode_t mode)
{
    (void)path;
    (void)mode;
    return refuse("mkdir", EROFS);
}

int
dd_sys_mkfifo(const char *path, mode_t mode)
{
    (void)path;
    (void)mode;
    return refuse("mkfifo", EROFS);
}

int
dd_sys_mkostemp(char *name, int flags)
{
    (void)name;
    (void)flags;
    return refuse("mkostemp", EROFS);
}

int
dd_sys_rename(const char *from, const char *to)
{
    (void)from;
    (void)to;
    return refuse("rename", EROFS);
}

int
dd_sys_unlink(const char *path)
{
    enter("unlink", 0);
    return leave_int(sim_disk_unlink(path));
}

int
dd_sys_lock_file(int fd, int command, struct flock *lock)
{
    (void)command;
    sim_file *file = enter_kind("lock_file", fd, FILE_DISK);
    return leave_int(file != NULL ? sim_disk_lock(file, lock) : -1);
}

char *
dd_sys_getcwd(char *path, size_t nbytes)
{
    enter("getcwd", 0);
    (void)snprintf(path, nbytes, "/");
    return path;
}

/* ---- descriptors */

int
dd_sys_close(int fd)
{
    sim_file *file = enter_file("close", fd);
    if (file == NULL) {
        return leave_int(-1);
    }
    sim_self()->fds[fd] = NULL;
    sim_file_drop_fd(file);
    return leave_int(0);
}

int
dd_sys_fcntl(int fd, int command, long value)
{
    sim_file *file = enter_file("fcntl", fd);
    bool is_of_seals = command == F_ADD_SEALS || command == F_GET_SEALS;
    if (file != NULL && is_of_seals && file->kind != FILE_MEMORY) {
        errno = EINVAL;
        file = NULL;
    }
    if (file == NULL) {
        return leave_int(-1);
    }
    if (command == F_ADD_SEALS) {
        file->seals |= (int)value;
    }
    return leave_int(command == F_GET_SEALS ? file->seals : 0);
}

int
dd_sys_dup3(int from, int to, int flags)
{
    (void)flags;
    sim_file *file = enter_file("dup3", from);
    if (file == NULL || to < 0 || to >= SIM_FDS_MAX) {
        errno = EBADF;
        return leave_int(-1);
    }
    sim_file *old = sim_self()->fds[to];
    sim_self()->fds[to] = sim_file_acquire(file);
    file->nfds++;
    if (old != NULL) {
        sim_file_drop_fd(old);
    }
    return leave_int(to);
}

int
dd_sys_eventfd(unsigned count, int flags)
{
    (void)flags;
    enter("eventfd", 0);
    sim_file *file = sim_file_create(FILE_EVENT);
    file->count = count;
    return leave_int(install(file));
}

static ssize_t
read_event(sim_file *file, void *data)
{
    if (file->count == 0) {
        errno = EAGAIN;
        return -1;
    }
    memcpy(data, &file->count, sizeof file->count);
    file->count = 0;
    return sizeof file->count;
}

static ssize_t
read_text(sim_file *file, void *data, size_t nbytes)
{
    size_t len = strlen(file->text) - file->at;
    len = len < nbytes ? len : nbytes;
    memcpy(data, file->text + file->at, len);
    file->at += len;
    return (ssize_t)len;
}

ssize_t
dd_sys_read(int fd, void *data, size_t nbytes)
{
    sim_file *file = enter_file("read", fd);
    if (file != NULL && file->kind == FILE_EVENT) {
        return leave(read_event(file, data));
    }
    if (file != NULL && file->kind == FILE_TEXT) {
        return leave(read_text(file, data, nbytes));
    }
    errno = file == NULL ? EBADF : EINVAL;
    return leave(-1);
}

ssize_t
dd_sys_write(int fd, const void *data, size_t nbytes)
{
    sim_file *file = enter_kind("write", fd, FILE_EVENT);
    if (file == NULL) {
        return leave(-1);
    }
    uint64_t count;
    memcpy(&count, data, sizeof count);
    file->count += count;
    sim_file_notify(file);
    return leave((ssize_t)nbytes);
}

/* ---- memory */

int
dd_sys_memfd_create(const char *name, unsigned flags)
{
    (void)flags;
    enter("memfd_create", 0);
    sim_file *file = sim_file_create(FILE_MEMORY);
    file->memory_fd = memfd_create(name, MFD_CLOEXEC);
    if (file->memory_fd < 0) {
        perror("sim: memfd_create");
        abort();
    }
    return leave_int(install(file));
}

/* Begin a call on a memory or disk file. Return NULL and set EINVAL for other files. */
static sim_file *
enter_content(const char *name, int fd)
{
    sim_file *file = enter_file(name, fd);
    if (file != NULL && file->kind != FILE_MEMORY && file->kind != FILE_DISK) {
        errno = EINVAL;
        return NULL;
    }
    return file;
}

int
dd_sys_ftruncate(int fd, off_t nbytes)
{
    sim_file *file = enter_content("ftruncate", fd);
    if (file != NULL && sim_self()->nallocations_to_fail > 0) {
        sim_self()->nallocations_to_fail--;
        errno = ENOMEM;
        return leave_int(-1);
    }
    return leave_int(file == NULL              ? -1
                     : file->kind == FILE_DISK ? sim_disk_truncate(file, nbytes)
                                               : ftruncate(file->memory_fd, nbytes));
}

int
dd_sys_fstat(int fd, struct stat *info)
{
    const sim_file *file = enter_content("fstat", fd);
    return leave_int(file == NULL              ? -1
                     : file->kind == FILE_DISK ? sim_disk_fstat(file, info)
                                               : fstat(file->memory_fd, info));
}

ssize_t
dd_sys_pread(int fd, void *data, size_t nbytes, off_t at)
{
    const sim_file *file = enter_content("pread", fd);
    return leave(file == NULL              ? -1
                 : file->kind == FILE_DISK ? sim_disk_read(file, data, nbytes, at)
                                           : pread(file->memory_fd, data, nbytes, at));
}

ssize_t
dd_sys_pwrite(int fd, const void *data, size_t nbytes, off_t at)
{
    sim_self()->nsends++;
    sim_file *file = enter_content("pwrite", fd);
    return leave(file == NULL              ? -1
                 : file->kind == FILE_DISK ? sim_disk_write(file, data, nbytes, at)
                                           : pwrite(file->memory_fd, data, nbytes, at));
}

/* Record new memory and return it, or MAP_FAILED with errno set. */
static void *
note_new(void *memory, size_t nbytes)
{
    if (memory != MAP_FAILED && !sim_note_mapping(sim_self(), memory, nbytes)) {
        (void)munmap(memory, nbytes);
        errno = ENOMEM;
        memory = MAP_FAILED;
    }
    (void)leave(memory != MAP_FAILED ? 0 : -1);
    return memory;
}

void *
dd_sys_mmap(void *at, size_t nbytes, int access, int flags, int fd, off_t from)
{
    sim_process *process = sim_self();
    int real_fd = -1;
    enter("mmap", fd);
    if (fd >= 0) {
        const sim_file *file = sim_fd_get(fd);
        if (file == NULL || file->kind != FILE_MEMORY) {
            errno = file == NULL ? EBADF : ENODEV;
            return note_new(MAP_FAILED, nbytes);
        }
        real_fd = file->memory_fd;
    }
    if (process->nallocations_to_fail > 0) {
        process->nallocations_to_fail--;
        errno = ENOMEM;
        return note_new(MAP_FAILED, nbytes);
    }
    return note_new(mmap(at, nbytes, access, flags, real_fd, from), nbytes);
}

void *
dd_sys_mremap(void *old, size_t old_nbytes, size_t nbytes, int flags, void *at)
{
    (void)old;
    (void)old_nbytes;
    (void)nbytes;
    (void)flags;
    (void)at;
    (void)refuse("mremap", ENOMEM); /* adopting memory is not simulated */
    return MAP_FAILED;
}

int
dd_sys_madvise(void *at, size_t nbytes, int advice)
{
    enter("madvise", advice);
    return leave_int(advice == MADV_REMOVE ? madvise(at, nbytes, advice) : 0);
}

int
dd_sys_munmap(void *at, size_t nbytes)
{
    enter("munmap", 0);
    sim_unmap(sim_self(), at, nbytes);
    return leave_int(0);
}

/* ---- sockets */

int
dd_sys_socket(int family, int type, int protocol)
{
    (void)protocol;
    enter("socket", family);
    return leave_int(install(sim_socket_create(family, type)));
}

int
dd_sys_bind(int fd, const struct sockaddr *addr, socklen_t len)
{
    sim_file *file = enter_kind("bind", fd, FILE_SOCKET);
    return leave_int(file != NULL ? sim_socket_bind(file, addr, len) : -1);
}

int
dd_sys_listen(int fd, int backlog)
{
    sim_file *file = enter_kind("listen", fd, FILE_SOCKET);
    return leave_int(file != NULL ? sim_socket_listen(file, backlog) : -1);
}

/* If there is no free descriptor, the connection stays in the queue. */
int
dd_sys_accept4(int fd, struct sockaddr *peer, socklen_t *len, int flags)
{
    (void)flags;
    sim_file *file = enter_kind("accept4", fd, FILE_SOCKET);
    int free_fd = 3;
    while (free_fd < sim_self()->fd_limit && sim_self()->fds[free_fd] != NULL) {
        free_fd++;
    }
    if (file != NULL && free_fd >= sim_self()->fd_limit) {
        errno = EMFILE;
        file = NULL;
    }
    sim_file *accepted = file != NULL ? sim_socket_accept(file) : NULL;
    if (accepted == NULL) {
        return leave_int(-1);
    }
    (void)sim_socket_get_name(accepted, true, peer, len);
    return leave_int(install(accepted));
}

int
dd_sys_connect(int fd, const struct sockaddr *addr, socklen_t len)
{
    sim_file *file = enter_kind("connect", fd, FILE_SOCKET);
    return leave_int(file != NULL ? sim_socket_connect(file, addr, len) : -1);
}

static ssize_t
send_message(const char *name, int fd, const struct msghdr *message)
{
    sim_self()->nsends++;
    sim_file *file = enter_kind(name, fd, FILE_SOCKET);
    return leave(file != NULL ? sim_socket_send(file, message) : -1);
}

static ssize_t
recv_message(const char *name, int fd, struct msghdr *message)
{
    sim_file *file = enter_kind(name, fd, FILE_SOCKET);
    return leave(file != NULL ? sim_socket_recv(file, message) : -1);
}

ssize_t
dd_sys_send(int fd, const void *data, size_t nbytes, int flags)
{
    return dd_sys_sendto(fd, data, nbytes, flags, NULL, 0);
}

ssize_t
dd_sys_sendto(int fd, const void *data, size_t nbytes, int flags, const struct sockaddr *addr, socklen_t len)
{
    (void)flags;
    struct iovec part = {.iov_base = (void *)(uintptr_t)data, .iov_len = nbytes};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_name = (void *)(uintptr_t)addr, .msg_namelen = len};
    return send_message("send", fd, &message);
}

ssize_t
dd_sys_recv(int fd, void *data, size_t nbytes, int flags)
{
    (void)flags;
    struct iovec part = {.iov_base = data, .iov_len = nbytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    return recv_message("recv", fd, &message);
}

ssize_t
dd_sys_sendmsg(int fd, const struct msghdr *message, int flags)
{
    (void)flags;
    return send_message("sendmsg", fd, message);
}

ssize_t
dd_sys_recvmsg(int fd, struct msghdr *message, int flags)
{
    (void)flags;
    return recv_message("recvmsg", fd, message);
}

int
dd_sys_getsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
    sim_file *file = enter_kind("getsockopt", fd, FILE_SOCKET);
    return leave_int(file != NULL ? sim_socket_get_option(file, level, name, value, len) : -1);
}

int
dd_sys_setsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
    sim_file *file = enter_kind("setsockopt", fd, FILE_SOCKET);
    return leave_int(file != NULL ? sim_socket_set_option(file, level, name, value, len) : -1);
}

int
dd_sys_getsockname(int fd, struct sockaddr *addr, socklen_t *len)
{
    const sim_file *file = enter_kind("getsockname", fd, FILE_SOCKET);
    return leave_int(file != NULL ? sim_socket_get_name(file, false, addr, len) : -1);
}

int
dd_sys_getpeername(int fd, struct sockaddr *addr, socklen_t *len)
{
    const sim_file *file = enter_kind("getpeername", fd, FILE_SOCKET);
    return leave_int(file != NULL ? sim_socket_get_name(file, true, addr, len) : -1);
}

int
dd_sys_ioctl(int fd, unsigned long request, int *value)
{
    const sim_file *file = enter_kind("ioctl", fd, FILE_SOCKET);
    if (file == NULL) {
        return leave_int(-1);
    }
    *value = sim_socket_count_queued(file, request == SIOCOUTQNSD);
    return leave_int(0);
}

/* ---- waiting */

/* Return true if the call is interrupted. Calls that do not block never are. */
static bool
is_interrupted(void)
{
    bool is_due = sim_one_in(world.options.interrupts_every);
    if (is_due) {
        errno = EINTR;
    }
    return is_due;
}

static int64_t
until_ms(int timeout_ms)
{
    return timeout_ms < 0 ? DD_NEVER_NS : world.now_ns + timeout_ms * DD_NS_PER_MS;
}

int
dd_sys_poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
    enter("poll", (int64_t)count);
    return leave_int(sim_poll(fds, count, until_ms(timeout_ms)));
}

int
dd_sys_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask)
{
    (void)mask;
    enter("ppoll", (int64_t)count);
    int64_t until_ns = timeout == NULL
                           ? DD_NEVER_NS
                           : world.now_ns + (int64_t)timeout->tv_sec * DD_NS_PER_S + timeout->tv_nsec;
    return leave_int(is_interrupted() ? -1 : sim_poll(fds, count, until_ns));
}

int
dd_sys_epoll_create1(int flags)
{
    (void)flags;
    enter("epoll_create1", 0);
    return leave_int(install(sim_file_create(FILE_EPOLL)));
}

int
dd_sys_epoll_ctl(int epoll_fd, int operation, int fd, struct epoll_event *event)
{
    sim_file *epoll = enter_kind("epoll_ctl", epoll_fd, FILE_EPOLL);
    sim_file *file = sim_fd_get(fd);
    return leave_int(epoll != NULL && file != NULL ? sim_epoll_control(epoll, operation, file, event) : -1);
}

int
dd_sys_epoll_wait(int epoll_fd, struct epoll_event *events, int capacity, int timeout_ms)
{
    sim_file *epoll = enter_kind("epoll_wait", epoll_fd, FILE_EPOLL);
    if (epoll == NULL || is_interrupted()) {
        return leave_int(-1);
    }
    return leave_int(sim_epoll_wait(epoll, events, capacity, until_ms(timeout_ms)));
}

int
dd_sys_nanosleep(const struct timespec *duration, struct timespec *left)
{
    (void)left;
    enter("nanosleep", duration->tv_nsec);
    sim_sleep((int64_t)duration->tv_sec * DD_NS_PER_S + duration->tv_nsec);
    return leave_int(0);
}

int
dd_sys_sched_yield(void)
{
    sim_step(world.options.call_cost_ns);
    sim_yield();
    return 0;
}

/* ---- the process state of core/fork.h and core/fence.h; simulated processes do not fork */

uint64_t
dd_fork_generation(void)
{
    return 0;
}

int
dd_fork_register(int fd)
{
    return fd;
}

void
dd_fork_close(int fd)
{
    if (fd >= 0) {
        (void)dd_sys_close(fd);
    }
}

void
dd_fence_register(void)
{
    sim_step(sim_around(20 * DD_NS_PER_MS));
    sim_self()->is_fenced = true;
}

bool
dd_fence_is_registered(void)
{
    return sim_self()->is_fenced;
}

bool
dd_fence_all(void)
{
    sim_step(world.options.call_cost_ns);
    return true;
}

/* ---- the process and its host */

int
dd_sys_sched_getcpu(void)
{
    return world.running->number % world.options.ncpus;
}

pid_t
dd_sys_getpid(void)
{
    return (pid_t)sim_self()->pid;
}

uid_t
dd_sys_geteuid(void)
{
    return 1000;
}

int
dd_sys_get_file_limit(struct rlimit *limit)
{
    limit->rlim_cur = limit->rlim_max = (rlim_t)sim_self()->fd_limit;
    return 0;
}

int
dd_sys_gethostname(char *name, size_t nbytes)
{
    enter("gethostname", 0);
    (void)snprintf(name, nbytes, "node-%d", sim_self()->host);
    return leave_int(0);
}

ssize_t
dd_sys_getrandom(void *data, size_t nbytes, unsigned flags)
{
    (void)flags;
    enter("getrandom", (int64_t)nbytes);
    for (size_t i = 0; i < nbytes; i++) {
        ((uint8_t *)data)[i] = (uint8_t)sim_random();
    }
    return leave((ssize_t)nbytes);
}

/* ---- names and interfaces */

static struct sockaddr_in
address(uint32_t number, uint16_t port)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(number)};
}

typedef struct sim_addrinfo {
    struct addrinfo info; /* must be the first member */
    struct sockaddr_in addr;
} sim_addrinfo;

/* Resolve numeric addresses, and host names as returned by gethostname. */
int
dd_sys_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **found)
{
    enter("getaddrinfo", 0);
    struct in_addr number = {0};
    unsigned node = 0;
    bool is_passive = host == NULL || *host == '\0';
    if (!is_passive && inet_pton(AF_INET, host, &number) != 1) {
        bool is_name = (hints->ai_flags & AI_NUMERICHOST) == 0 && sscanf(host, "node-%u", &node) == 1;
        if (!is_name) {
            return EAI_NONAME;
        }
        number.s_addr = htonl(UINT32_C(0x0a000001) + node);
    }
    sim_addrinfo *made = calloc(1, sizeof *made);
    if (made == NULL) {
        abort();
    }
    made->addr = address(ntohl(number.s_addr), (uint16_t)strtoul(port, NULL, 10));
    made->info = (struct addrinfo){.ai_family = AF_INET,
                                   .ai_socktype = SOCK_STREAM,
                                   .ai_addr = (struct sockaddr *)(void *)&made->addr,
                                   .ai_addrlen = sizeof made->addr};
    *found = &made->info;
    return 0;
}

void
dd_sys_freeaddrinfo(struct addrinfo *found)
{
    free(found);
}

typedef struct sim_interface {
    struct ifaddrs item;
    struct sockaddr_in addr;
} sim_interface;

int
dd_sys_getifaddrs(struct ifaddrs **all)
{
    enter("getifaddrs", 0);
    sim_interface *both = calloc(2, sizeof *both);
    if (both == NULL) {
        abort();
    }
    static char loopback[] = "lo";
    static char ethernet[] = "eth0";
    both[0].addr = address(INADDR_LOOPBACK, 0);
    both[1].addr = address(UINT32_C(0x0a000001) + (uint32_t)sim_self()->host, 0);
    for (int i = 0; i < 2; i++) {
        both[i].item = (struct ifaddrs){.ifa_next = i == 0 ? &both[1].item : NULL,
                                        .ifa_name = i == 0 ? loopback : ethernet,
                                        .ifa_flags = IFF_UP | (i == 0 ? (unsigned)IFF_LOOPBACK : 0),
                                        .ifa_addr = (struct sockaddr *)(void *)&both[i].addr};
    }
    *all = &both[0].item;
    return leave_int(0);
}

void
dd_sys_freeifaddrs(struct ifaddrs *all)
{
    free(all);
}
