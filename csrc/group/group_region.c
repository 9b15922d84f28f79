/* Memory that ranks of one host share for their data. */
#include "group/group_internal.h"

#include "core/fork.h"
#include "core/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* The owner's side. It goes back to its group when it is released, for the next of its size: the others keep theirs mapped. */
struct dd_region {
    dd_list link;    /* in the group's regions */
    dd_group *group; /* counted while in use */
    uint32_t id;
    void *data;
    size_t nbytes;   /* asked for */
    size_t capacity; /* mapped */
    bool is_in_use;
};

/* Another rank's, mapped here. */
typedef struct mapped_region {
    dd_list link;
    void *data;
    size_t nbytes;
} mapped_region;

#define PAGE_BYTES 4096

static dd_status
map_new_memory(size_t nbytes, void **data, int *fd, dd_error *err)
{
    *fd = dd_fork_own(memfd_create("dldist-region", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (*fd < 0) {
        return dd_error_set_errno(err, DD_SYSTEM, errno, "cannot make a region of %zu bytes", nbytes);
    }
    if (ftruncate(*fd, (off_t)nbytes) == 0 &&
        fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
        *data = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
        if (*data != MAP_FAILED) {
            return DD_OK;
        }
    }
    int sys_errno = errno;
    dd_fork_close(*fd);
    return dd_error_set_errno(err, sys_errno == ENOMEM ? DD_OUT_OF_MEMORY : DD_SYSTEM, sys_errno,
                              "cannot make a region of %zu bytes", nbytes);
}

/* Hands it to the ranks of this host. */
static dd_status
share_region(dd_group *group, uint32_t id, int fd, dd_error *err)
{
    dd_status status = DD_OK;
    for (int local = 0; local < group->topology.nlocal && status == DD_OK; local++) {
        int rank = group->topology.local_ranks[local];
        if (rank != group->rank) {
            dd_passed_fd passed = {.key = {group->id, id}, .fd = fd};
            status = dd_peer_send_fd_locked(group->peers[rank], &passed, err);
        }
    }
    return status;
}

static dd_region *
find_free_locked(dd_group *group, size_t capacity)
{
    for (dd_list *node = group->regions.next; node != &group->regions; node = node->next) {
        dd_region *region = DD_CONTAINER_OF(node, dd_region, link);
        if (!region->is_in_use && region->capacity == capacity) {
            return region;
        }
    }
    return NULL;
}

static dd_status
make_region_locked(dd_group *group, size_t capacity, dd_region **out, dd_error *err)
{
    dd_region *region = dd_mem_zalloc(sizeof *region);
    if (region == NULL) {
        return dd_error_no_memory(err, sizeof *region);
    }
    int fd = -1;
    dd_status status = map_new_memory(capacity, &region->data, &fd, err);
    if (status != DD_OK) {
        dd_mem_free(region);
        return status;
    }
    region->group = group;
    region->capacity = capacity;
    region->id = ++group->nregions;
    if (group->arena != NULL) {
        status = share_region(group, region->id, fd, err);
        if (status == DD_OK) {
            status = dd_arena_add_region(group->arena, group->topology.local_of[group->rank], region->id,
                                         region->data, capacity, err);
        }
    }
    dd_fork_close(fd);
    if (status != DD_OK) {
        munmap(region->data, capacity);
        dd_mem_free(region);
        return status;
    }
    dd_list_push_back(&group->regions, &region->link);
    *out = region;
    return DD_OK;
}

dd_status
dd_group_alloc(dd_group *group, size_t nbytes, dd_region **region, dd_error *err)
{
    if (nbytes > SIZE_MAX - PAGE_BYTES) {
        return dd_error_no_memory(err, nbytes);
    }
    size_t capacity = nbytes == 0 ? PAGE_BYTES : (nbytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    dd_status status = dd_engine_check_fork(group->engine, err);
    if (status != DD_OK) {
        return status;
    }
    dd_region *found = NULL;
    dd_engine_lock(group->engine);
    status = group_check_usable_locked(group, "alloc", err);
    if (status == DD_OK) {
        found = find_free_locked(group, capacity);
        if (found == NULL) {
            status = make_region_locked(group, capacity, &found, err);
        } else {
            memset(found->data, 0, capacity);
        }
    }
    if (status == DD_OK) {
        found->is_in_use = true;
        found->nbytes = nbytes;
        dd_group_acquire(group);
        *region = found;
    }
    dd_engine_unlock(group->engine);
    return status;
}

void *
dd_region_data(const dd_region *region)
{
    return region->data;
}

size_t
dd_region_nbytes(const dd_region *region)
{
    return region->nbytes;
}

void
dd_region_release(dd_region *region)
{
    if (region == NULL) {
        return;
    }
    dd_group *group = region->group;
    if (dd_engine_check_fork(group->engine, NULL) == DD_OK) {
        dd_engine_lock(group->engine);
        region->is_in_use = false;
        dd_engine_unlock(group->engine);
    }
    dd_group_release(group); /* the last lets its regions go */
}

/* ---- those of the others */

void
group_want_region(void *ctx, int local, uint32_t id)
{
    dd_group *group = ctx;
    for (dd_list *node = group->wanted.next; node != &group->wanted; node = node->next) {
        const wanted_region *wanted = DD_CONTAINER_OF(node, wanted_region, link);
        if (wanted->local == local && wanted->id == id) {
            return;
        }
    }
    wanted_region *wanted = dd_mem_alloc(sizeof *wanted);
    if (wanted != NULL) { /* else we are asked again */
        wanted->local = local;
        wanted->id = id;
        dd_list_push_back(&group->wanted, &wanted->link);
    }
}

/* The descriptor is a peer's: the file must not be able to shrink under us. */
static dd_status
map_region(dd_group *group, const wanted_region *wanted, int fd, dd_error *err)
{
    struct stat stat;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &stat) != 0 || stat.st_size <= 0) {
        return dd_error_set(err, DD_PROTOCOL, "what came as region %u is no sealed memory", wanted->id);
    }
    mapped_region *mapped = dd_mem_zalloc(sizeof *mapped);
    if (mapped == NULL) {
        return dd_error_no_memory(err, sizeof *mapped);
    }
    mapped->nbytes = (size_t)stat.st_size;
    mapped->data = mmap(NULL, mapped->nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    dd_status status = mapped->data == MAP_FAILED
                           ? dd_error_set_errno(err, DD_SYSTEM, errno, "cannot map region %u of %zu bytes",
                                                wanted->id, mapped->nbytes)
                           : DD_OK;
    if (status == DD_OK) {
        status =
            dd_arena_add_region(group->arena, wanted->local, wanted->id, mapped->data, mapped->nbytes, err);
        if (status != DD_OK) {
            munmap(mapped->data, mapped->nbytes);
        }
    }
    if (status != DD_OK) {
        dd_mem_free(mapped);
        return status;
    }
    dd_list_push_back(&group->mapped, &mapped->link);
    return DD_OK;
}

void
group_map_wanted_locked(dd_group *group)
{
    for (dd_list *node = group->wanted.next, *next; node != &group->wanted; node = next) {
        next = node->next;
        wanted_region *wanted = DD_CONTAINER_OF(node, wanted_region, link);
        int rank = group->topology.local_ranks[wanted->local];
        uint64_t key[2] = {group->id, wanted->id};
        int fd = dd_peer_take_fd_locked(group->peers[rank], key);
        if (fd < 0) {
            continue;
        }
        dd_error error;
        dd_status status = map_region(group, wanted, fd, &error);
        dd_sock_close(fd);
        dd_list_remove(&wanted->link);
        dd_mem_free(wanted);
        if (status != DD_OK) {
            group_fail_locked(group, &error, true, DD_ANY_RANK);
            return; /* failing may have ended everything here */
        }
    }
}

void
group_drop_regions(dd_group *group)
{
    while (!dd_list_is_empty(&group->regions)) {
        dd_region *region = DD_CONTAINER_OF(group->regions.next, dd_region, link);
        dd_list_remove(&region->link);
        munmap(region->data, region->capacity);
        dd_mem_free(region);
    }
    while (!dd_list_is_empty(&group->mapped)) {
        mapped_region *mapped = DD_CONTAINER_OF(group->mapped.next, mapped_region, link);
        dd_list_remove(&mapped->link);
        munmap(mapped->data, mapped->nbytes);
        dd_mem_free(mapped);
    }
    while (!dd_list_is_empty(&group->wanted)) {
        wanted_region *wanted = DD_CONTAINER_OF(group->wanted.next, wanted_region, link);
        dd_list_remove(&wanted->link);
        dd_mem_free(wanted);
    }
}
