/* Descriptors: the descriptor table, the files, and polling. */
#include "sim/world/internal.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

sim_file *
sim_file_create(sim_file_kind kind)
{
    sim_file *file = calloc(1, sizeof *file);
    if (file == NULL) {
        abort();
    }
    file->kind = kind;
    file->nrefs = 1;
    file->memory_fd = -1;
    file->owner = world.running != NULL ? sim_self() : NULL;
    dd_list_init(&file->watches);
    dd_list_push_back(&world.files, &file->link);
    return file;
}

sim_file *
sim_file_acquire(sim_file *file)
{
    file->nrefs++;
    return file;
}

void
sim_file_release(sim_file *file)
{
    if (--file->nrefs > 0) {
        return;
    }
    dd_list_remove(&file->link);
    if (file->kind == FILE_MEMORY) {
        (void)close(file->memory_fd);
    } else if (file->kind == FILE_SOCKET) {
        sim_socket_free(file);
    }
    free(file);
}

void
sim_file_drop_fd(sim_file *file)
{
    if (--file->nfds == 0) {
        sim_file_forget_watches(file);
        if (file->kind == FILE_SOCKET) {
            sim_socket_close(file, file->owner != NULL && world.is_off[file->owner->host]);
        } else if (file->kind == FILE_DISK) {
            sim_disk_close(file);
        }
    }
    sim_file_release(file);
}

int
sim_fd_install(sim_process *process, sim_file *file)
{
    for (int fd = 3; fd < process->fd_limit; fd++) {
        if (process->fds[fd] == NULL) {
            process->fds[fd] = file;
            file->nfds++;
            return fd;
        }
    }
    errno = EMFILE;
    return -1;
}

sim_file *
sim_fd_get(int fd)
{
    sim_file *file = fd >= 0 && fd < SIM_FDS_MAX ? sim_self()->fds[fd] : NULL;
    if (file == NULL) {
        errno = EBADF;
    }
    return file;
}

short
sim_file_readiness(const sim_file *file)
{
    switch (file->kind) {
    case FILE_EVENT:
        return (short)(POLLOUT | (file->count > 0 ? POLLIN : 0));
    case FILE_SOCKET:
        return sim_socket_readiness(file);
    case FILE_MEMORY:
    case FILE_TEXT:
    case FILE_DISK:
        return POLLIN | POLLOUT;
    case FILE_EPOLL:
        break;
    }
    return 0;
}

void
sim_file_notify(sim_file *file)
{
    if (file->owner != NULL) {
        sim_wake_pollers(file->owner);
    }
}

/* ---- epoll */

typedef struct sim_watch {
    dd_list link;
    sim_file *file; /* closing this file removes the watch */
    struct epoll_event event;
} sim_watch;

static sim_watch *
find_watch(sim_file *epoll, const sim_file *file)
{
    for (dd_list *node = epoll->watches.next; node != &epoll->watches; node = node->next) {
        sim_watch *watch = DD_CONTAINER_OF(node, sim_watch, link);
        if (watch->file == file) {
            return watch;
        }
    }
    return NULL;
}

static void
drop_watch(sim_watch *watch)
{
    dd_list_remove(&watch->link);
    free(watch);
}

void
sim_file_forget_watches(sim_file *file)
{
    while (!dd_list_is_empty(&file->watches)) {
        drop_watch(DD_CONTAINER_OF(file->watches.next, sim_watch, link));
    }
    for (dd_list *node = world.files.next; node != &world.files; node = node->next) {
        sim_file *epoll = DD_CONTAINER_OF(node, sim_file, link);
        sim_watch *watch = epoll->kind == FILE_EPOLL ? find_watch(epoll, file) : NULL;
        if (watch != NULL) {
            drop_watch(watch);
        }
    }
}

int
sim_epoll_control(sim_file *epoll, int operation, sim_file *file, const struct epoll_event *event)
{
    sim_watch *watch = find_watch(epoll, file);
    if ((operation == EPOLL_CTL_ADD) == (watch != NULL)) {
        errno = watch != NULL ? EEXIST : ENOENT;
        return -1;
    }
    if (operation == EPOLL_CTL_DEL) {
        drop_watch(watch);
        return 0;
    }
    if (watch == NULL) {
        watch = calloc(1, sizeof *watch);
        if (watch == NULL) {
            abort();
        }
        watch->file = file;
        dd_list_push_back(&epoll->watches, &watch->link);
    }
    watch->event = *event;
    sim_wake_pollers(sim_self());
    return 0;
}

static int
collect(const sim_file *epoll, struct epoll_event *events, int capacity)
{
    int count = 0;
    for (dd_list *node = epoll->watches.next; node != &epoll->watches && count < capacity;
         node = node->next) {
        const sim_watch *watch = DD_CONTAINER_OF(node, sim_watch, link);
        uint32_t ready =
            (uint32_t)sim_file_readiness(watch->file) & (watch->event.events | EPOLLERR | EPOLLHUP);
        if (ready != 0) {
            events[count++] = (struct epoll_event){.events = ready, .data = watch->event.data};
        }
    }
    /* Report files that are ready at the same time in random order. */
    for (int i = count; i > 1; i--) {
        int other = (int)sim_below((uint64_t)i);
        struct epoll_event moved = events[i - 1];
        events[i - 1] = events[other];
        events[other] = moved;
    }
    return count;
}

int
sim_epoll_wait(sim_file *epoll, struct epoll_event *events, int capacity, int64_t until_ns)
{
    int count = collect(epoll, events, capacity);
    while (count == 0 && until_ns > world.now_ns) {
        bool was_woken = sim_block(&sim_polling, until_ns, "epoll_wait");
        count = collect(epoll, events, capacity);
        if (!was_woken) {
            break;
        }
    }
    return count;
}

/* ---- poll */

static int
look_at_all(struct pollfd *fds, size_t count)
{
    int nready = 0;
    for (size_t i = 0; i < count; i++) {
        const sim_file *file = fds[i].fd >= 0 && fds[i].fd < SIM_FDS_MAX ? sim_self()->fds[fds[i].fd] : NULL;
        fds[i].revents = fds[i].fd < 0 ? 0
                         : file == NULL
                             ? (short)POLLNVAL
                             : (short)(sim_file_readiness(file) & (fds[i].events | POLLERR | POLLHUP));
        nready += fds[i].revents != 0;
    }
    return nready;
}

int
sim_poll(struct pollfd *fds, size_t count, int64_t until_ns)
{
    int nready = look_at_all(fds, count);
    while (nready == 0 && until_ns > world.now_ns) {
        bool was_woken = sim_block(&sim_polling, until_ns, "poll");
        nready = look_at_all(fds, count);
        if (!was_woken) {
            break;
        }
    }
    return nready;
}
