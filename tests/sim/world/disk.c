/* Files by name, on a disk that all hosts share. There are no directories. */
#include "sim/world/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define NAME_MAX_NBYTES 128

struct sim_node {
    dd_list link; /* world.nodes; in no list if the file has no name */
    int number;
    int nopen;
    char name[NAME_MAX_NBYTES];
    uint8_t *bytes;
    size_t nbytes;
    dd_list locks; /* sim_hold */
};

/* A lock of one byte, owned by one open file. */
typedef struct sim_hold {
    dd_list link;
    const sim_file *file;
    off_t at;
    bool is_exclusive;
} sim_hold;

static sim_node *
find_node(const char *name)
{
    for (dd_list *node = world.nodes.next; node != &world.nodes; node = node->next) {
        sim_node *found = DD_CONTAINER_OF(node, sim_node, link);
        if (strcmp(found->name, name) == 0) {
            return found;
        }
    }
    return NULL;
}

static sim_node *
create_node(const char *name)
{
    sim_node *node = calloc(1, sizeof *node);
    if (node == NULL) {
        abort();
    }
    node->number = ++world.nnodes;
    (void)snprintf(node->name, sizeof node->name, "%s", name);
    dd_list_init(&node->locks);
    dd_list_push_back(&world.nodes, &node->link);
    return node;
}

static void
reap_node(sim_node *node)
{
    if (node->nopen == 0 && dd_list_is_empty(&node->link)) {
        free(node->bytes);
        free(node);
    }
}

sim_file *
sim_disk_open(const char *name, int flags)
{
    sim_node *node = find_node(name);
    if (node == NULL && (flags & O_CREAT) == 0) {
        errno = ENOENT;
        return NULL;
    }
    node = node != NULL ? node : create_node(name);
    sim_file *file = sim_file_create(FILE_DISK);
    file->node = node;
    node->nopen++;
    return file;
}

static void
drop_hold(sim_hold *hold)
{
    dd_list_remove(&hold->link);
    free(hold);
}

void
sim_disk_close(sim_file *file)
{
    sim_node *node = file->node;
    for (dd_list *link = node->locks.next; link != &node->locks;) {
        sim_hold *hold = DD_CONTAINER_OF(link, sim_hold, link);
        link = link->next;
        if (hold->file == file) {
            drop_hold(hold);
        }
    }
    node->nopen--;
    reap_node(node);
}

int
sim_disk_unlink(const char *name)
{
    sim_node *node = find_node(name);
    if (node == NULL) {
        errno = ENOENT;
        return -1;
    }
    dd_list_remove(&node->link);
    reap_node(node);
    return 0;
}

void
sim_disk_clear(void)
{
    while (!dd_list_is_empty(&world.nodes)) {
        (void)sim_disk_unlink(DD_CONTAINER_OF(world.nodes.next, sim_node, link)->name);
    }
}

static void
describe(const sim_node *node, struct stat *info)
{
    *info = (struct stat){.st_dev = 5,
                          .st_ino = (ino_t)node->number,
                          .st_mode = S_IFREG | 0600,
                          .st_nlink = dd_list_is_empty(&node->link) ? 0 : 1,
                          .st_size = (off_t)node->nbytes};
}

int
sim_disk_stat(const char *name, struct stat *info)
{
    const sim_node *node = find_node(name);
    if (node == NULL) {
        errno = ENOENT;
        return -1;
    }
    describe(node, info);
    return 0;
}

int
sim_disk_fstat(const sim_file *file, struct stat *info)
{
    describe(file->node, info);
    return 0;
}

int
sim_disk_truncate(sim_file *file, off_t nbytes)
{
    sim_node *node = file->node;
    uint8_t *bytes = realloc(node->bytes, (size_t)nbytes + 1);
    if (bytes == NULL) {
        abort();
    }
    if ((size_t)nbytes > node->nbytes) {
        memset(bytes + node->nbytes, 0, (size_t)nbytes - node->nbytes);
    }
    node->bytes = bytes;
    node->nbytes = (size_t)nbytes;
    return 0;
}

ssize_t
sim_disk_read(const sim_file *file, void *data, size_t nbytes, off_t at)
{
    const sim_node *node = file->node;
    size_t left = (size_t)at < node->nbytes ? node->nbytes - (size_t)at : 0;
    nbytes = nbytes < left ? nbytes : left;
    if (nbytes > 0) {
        memcpy(data, node->bytes + at, nbytes);
    }
    return (ssize_t)nbytes;
}

ssize_t
sim_disk_write(sim_file *file, const void *data, size_t nbytes, off_t at)
{
    if ((size_t)at + nbytes > file->node->nbytes) {
        (void)sim_disk_truncate(file, at + (off_t)nbytes);
    }
    memcpy(file->node->bytes + at, data, nbytes);
    return (ssize_t)nbytes;
}

/* Lock one byte, as F_OFD_SETLK does. */
int
sim_disk_lock(sim_file *file, const struct flock *lock)
{
    sim_hold *own = NULL;
    for (dd_list *link = file->node->locks.next; link != &file->node->locks; link = link->next) {
        sim_hold *hold = DD_CONTAINER_OF(link, sim_hold, link);
        if (hold->at != lock->l_start) {
            continue;
        }
        if (hold->file == file) {
            own = hold;
        } else if (lock->l_type != F_UNLCK && (hold->is_exclusive || lock->l_type == F_WRLCK)) {
            errno = EAGAIN;
            return -1;
        }
    }
    if (lock->l_type == F_UNLCK) {
        if (own != NULL) {
            drop_hold(own);
        }
        return 0;
    }
    if (own == NULL) {
        own = calloc(1, sizeof *own);
        if (own == NULL) {
            abort();
        }
        own->file = file;
        own->at = lock->l_start;
        dd_list_push_back(&file->node->locks, &own->link);
    }
    own->is_exclusive = lock->l_type == F_WRLCK;
    return 0;
}
