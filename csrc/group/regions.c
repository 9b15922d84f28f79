/* Regions: memory that the ranks of one host share for their data. */
#include "group/internal.h"

#include "core/assert.h"
#include "core/fork.h"
#include "core/mem.h"
#include "core/shared_memory.h"
#include "core/system.h"

#include <errno.h>
#include <string.h>

typedef enum region_use {
    REGION_ARRAY,
    REGION_PAD,
    REGION_ADOPTED, /* memory of another owner, mapped from `fd`, which is kept */
} region_use;

/* The owner's side of a region. Other ranks keep a region mapped until the group is destroyed, so
 * the group keeps a released region, for the next use of its kind that fits. The capacities of
 * arrays are powers of two, and only touched pages cost memory, so there are never many more arrays
 * than were in use at one time, whatever their sizes. Other kinds of regions have exact sizes. */
struct dd_region {
    dd_list link;    /* entry in the group's regions */
    dd_group *group; /* referenced while the region is in use */
    uint32_t id;
    void *data;
    size_t nbytes;   /* bytes that were requested */
    size_t capacity; /* bytes that are mapped */
    size_t dirty;    /* for arrays: leading bytes that may be nonzero; later bytes have no pages */
    region_use use;
    void *adopted_at;      /* the adopted mapping, until dd_region_note_unmapped; or NULL */
    int fd;                /* descriptor, for ranks that request the region; -1 once all have it */
    dd_arena_ranks passed; /* local ranks that have received the descriptor */
    int npassed;
    atomic_uint refs; /* 0 if kept for reuse; must be raised from 0 with the engine's lock */
};

/* A region of another rank: first requested, then mapped here until the group is destroyed. */
typedef struct foreign_region {
    dd_list link;
    int local; /* index of the owner among the local ranks */
    uint32_t id;
    dd_block memory;    /* `data` is NULL until the region is mapped */
    int fd;             /* -1 until received; DD_SOCK_FD_REFUSED if out of descriptors */
    unsigned nrequests; /* number of requests sent to the owner */
    int64_t retry_ns;   /* time of the next request */
} foreign_region;

#define PAGE_BYTES ((size_t)4096)
/* Maximum bytes of pages in a group's unused arrays; other pages return to the system. */
#define UNUSED_MAX_BYTES ((size_t)64 << 20)

static size_t
round_up_to_pages(size_t nbytes)
{
    return nbytes == 0 ? PAGE_BYTES : (nbytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

static dd_status
map_new_memory(size_t nbytes, void **data, int *fd, dd_error *err)
{
    dd_status status = dd_shared_memory_create("dldist-region", nbytes, fd, err);
    if (status == DD_OK) {
        *data = dd_sys_mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
        if (*data == MAP_FAILED) {
            status = dd_error_set_errno(err, errno == ENOMEM ? DD_OUT_OF_MEMORY : DD_SYSTEM, errno,
                                        "mmap failed; memory is short, or limited");
            dd_fork_close(*fd);
        }
    }
    if (status != DD_OK) {
        dd_error_prepend(err, "cannot create a shared array of %zu bytes", nbytes);
    }
    return status;
}

static size_t
capacity_for(size_t nbytes, region_use use)
{
    size_t capacity = round_up_to_pages(nbytes);
    bool is_exact = use != REGION_ARRAY || capacity > SIZE_MAX / 4; /* do not overflow */
    for (size_t power = PAGE_BYTES; !is_exact; power *= 2) {
        if (power >= capacity) {
            return power;
        }
    }
    return capacity;
}

static dd_region *
find_free_locked(dd_group *group, size_t capacity, region_use use)
{
    dd_region *best = NULL;
    for (dd_list *node = group->regions.next; node != &group->regions; node = node->next) {
        dd_region *region = DD_CONTAINER_OF(node, dd_region, link);
        bool is_free = atomic_load(&region->refs) == 0 && region->adopted_at == NULL && region->use == use;
        bool fits = use == REGION_ARRAY ? region->capacity >= capacity : region->capacity == capacity;
        if (is_free && fits && (best == NULL || region->capacity < best->capacity)) {
            best = region;
        }
    }
    return best;
}

/* Register the region in the arena with its requested size, not its capacity: an output that ends
 * where the region ends can then be written in place, up to its last, partial page. */
static dd_status
register_in_arena_locked(dd_group *group, const dd_region *region, size_t nbytes, dd_error *err)
{
    if (group->arena == NULL) {
        return DD_OK;
    }
    int self = group->topology.local_of[group->rank];
    dd_arena_remove_region(group->arena, self, region->id);
    return dd_arena_add_region(group->arena, self, region->id, region->data, nbytes, err);
}

/* Close the descriptor once all local ranks have it, because each maps a region only once. Adopted
 * regions keep their descriptor. */
static void
close_if_passed(dd_region *region)
{
    const dd_group *group = region->group;
    int nothers = group->arena != NULL ? group->topology.nlocal - 1 : 0;
    if (region->npassed >= nothers && region->use != REGION_ADOPTED) {
        dd_fork_close(region->fd);
        region->fd = -1;
    }
}

void
group_pass_region_locked(dd_group *group, int rank, uint32_t id)
{
    int local = group->topology.local_of[rank];
    for (dd_list *node = group->regions.next; node != &group->regions; node = node->next) {
        dd_region *region = DD_CONTAINER_OF(node, dd_region, link);
        if (region->id != id || region->fd < 0) {
            continue;
        }
        if (dd_context_pass_fd_locked(group->context, rank, id, region->fd) &&
            !dd_arena_ranks_have(&region->passed, local)) {
            dd_arena_ranks_add(&region->passed, local);
            region->npassed++;
            close_if_passed(region);
        }
        return;
    }
}

static dd_status
make_region_locked(dd_group *group, size_t capacity, region_use use, dd_region **out, dd_error *err)
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
    atomic_init(&region->refs, 0);
    region->group = group;
    region->capacity = capacity;
    region->use = use;
    region->id = ++group->nregions;
    region->fd = fd;
    close_if_passed(region);
    dd_list_push_back(&group->regions, &region->link);
    *out = region;
    return DD_OK;
}

/* Zero the requested bytes. Call without the lock, because this may take long; only the caller uses
 * the region. */
static void
clean(dd_region *region, size_t nbytes)
{
    if (region->use == REGION_PAD) {
        memset(region->data, 0, region->capacity);
    } else if (region->use == REGION_ARRAY) {
        memset(region->data, 0, region->dirty < nbytes ? region->dirty : nbytes);
        atomic_fetch_sub(&region->group->unused_nbytes, region->dirty);
        region->dirty = region->dirty < nbytes ? nbytes : region->dirty;
    }
}

/* Take the lock at a moment when no thread moves data through the arena. If a thread does, recall
 * it, which takes about 100 us. */
static void
lock_unmoved(dd_group *group)
{
    dd_engine_lock(group->engine);
    while (dd_run_is_moving_locked(group->run)) {
        dd_run_recall_locked(group->run);
        dd_engine_unlock(group->engine);
        dd_sys_sched_yield();
        dd_engine_lock(group->engine);
    }
}

static dd_status
alloc(dd_group *group, size_t nbytes, region_use use, dd_region **region, dd_error *err)
{
    if (nbytes > SIZE_MAX - PAGE_BYTES) {
        return dd_error_no_memory(err, nbytes);
    }
    size_t capacity = capacity_for(nbytes, use);
    dd_status status = dd_engine_check_fork(group->engine, err);
    if (status != DD_OK) {
        return status;
    }
    dd_region *found = NULL;
    lock_unmoved(group);
    status = dd_group_check_usable_locked(group, "alloc", err);
    if (status == DD_OK) {
        found = find_free_locked(group, capacity, use);
        if (found == NULL) {
            status = make_region_locked(group, capacity, use, &found, err);
        }
    }
    if (status == DD_OK) {
        status = register_in_arena_locked(group, found, nbytes, err);
    }
    if (status == DD_OK) {
        atomic_store(&found->refs, 1);
        found->nbytes = nbytes;
        atomic_fetch_add_explicit(&group->refs, 1, memory_order_relaxed);
        *region = found;
    }
    dd_engine_unlock(group->engine);
    if (status == DD_OK) {
        clean(found, round_up_to_pages(nbytes));
    }
    return status;
}

dd_status
dd_group_alloc(dd_group *group, size_t nbytes, dd_region **region, dd_error *err)
{
    return alloc(group, nbytes, REGION_ARRAY, region, err);
}

dd_status
dd_group_alloc_pad(dd_group *group, size_t nbytes, dd_region **region, dd_error *err)
{
    return alloc(group, nbytes, REGION_PAD, region, err);
}

/* Replace the mapping at `at` with a second mapping of the region, and `fd` with its descriptor. */
static dd_status
remap_at(const dd_region *region, void *at, int fd, dd_error *err)
{
    int access = PROT_READ | PROT_WRITE;
    void *second = dd_sys_mmap(NULL, region->capacity, access, MAP_SHARED | MAP_POPULATE, region->fd, 0);
    if (second != MAP_FAILED && dd_sys_dup3(region->fd, fd, O_CLOEXEC) >= 0 &&
        dd_sys_mremap(second, region->capacity, region->capacity, MREMAP_MAYMOVE | MREMAP_FIXED, at) !=
            MAP_FAILED) {
        return DD_OK;
    }
    dd_status status = dd_error_set_errno(err, DD_SYSTEM, errno,
                                          "cannot map a shared array of %zu bytes at %p", region->nbytes, at);
    if (second != MAP_FAILED) {
        dd_sys_munmap(second, region->capacity);
    }
    return status;
}

dd_status
dd_group_adopt(dd_group *group, void *at, size_t nbytes, int fd, dd_region **region, dd_error *err)
{
    if ((uintptr_t)at % PAGE_BYTES != 0 || nbytes == 0) {
        return dd_error_set(
            err, DD_INVALID_ARGUMENT,
            "invalid mapping: got %zu bytes at %p, expected at least 1 byte at the start of a page", nbytes,
            at);
    }
    dd_region *adopting = NULL;
    dd_status status = alloc(group, nbytes, REGION_ADOPTED, &adopting, err);
    if (status != DD_OK) {
        return status;
    }
    memcpy(adopting->data, at, nbytes);
    status = remap_at(adopting, at, fd, err);
    if (status != DD_OK) {
        (void)group_release_region(adopting);
        /* The caller holds another reference, so this is not the last one. */
        atomic_fetch_sub_explicit(&group->refs, 1, memory_order_relaxed);
        return status;
    }
    adopting->adopted_at = at;
    *region = adopting;
    return DD_OK;
}

void
dd_region_note_unmapped(dd_region *region)
{
    region->adopted_at = NULL;
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

dd_group *
dd_region_group(const dd_region *region)
{
    return region->group;
}

uint32_t
dd_region_id(const dd_region *region)
{
    return region->id;
}

static bool
has_bytes(const dd_region *region, const void *data, size_t nbytes)
{
    /* An address before the region wraps around to a huge offset. */
    uintptr_t offset = (uintptr_t)data - (uintptr_t)region->data;
    return atomic_load(&region->refs) > 0 && offset <= region->nbytes && nbytes <= region->nbytes - offset;
}

dd_region *
dd_group_find_region(dd_group *group, const void *data, size_t nbytes)
{
    dd_region *found = NULL;
    if (dd_engine_check_fork(group->engine, NULL) != DD_OK) {
        return NULL;
    }
    dd_engine_lock(group->engine);
    for (dd_list *node = group->regions.next; node != &group->regions && found == NULL; node = node->next) {
        dd_region *region = DD_CONTAINER_OF(node, dd_region, link);
        found = has_bytes(region, data, nbytes) ? region : NULL;
    }
    dd_engine_unlock(group->engine);
    return found;
}

dd_region *
dd_region_acquire(dd_region *region)
{
    atomic_fetch_add(&region->refs, 1);
    return region;
}

/* Prepare to drop the last reference: return the region's pages to the system, unless they are kept
 * for the next array. In a forked child, leave the pages, because they belong to the parent. */
static void
keep_for_reuse(dd_region *region)
{
    dd_group *group = region->group;
    if (dd_engine_check_fork(group->engine, NULL) != DD_OK) {
        return;
    }
    if (region->use == REGION_ADOPTED && region->adopted_at == NULL) {
        (void)dd_sys_madvise(region->data, region->capacity, MADV_REMOVE);
    } else if (region->use == REGION_ARRAY &&
               atomic_fetch_add(&group->unused_nbytes, region->dirty) + region->dirty > UNUSED_MAX_BYTES &&
               dd_sys_madvise(region->data, region->capacity, MADV_REMOVE) == 0) {
        atomic_fetch_sub(&group->unused_nbytes, region->dirty);
        region->dirty = 0;
    }
}

void
group_clear_unused_regions_locked(dd_group *group)
{
    for (dd_list *node = group->regions.next; node != &group->regions; node = node->next) {
        dd_region *region = DD_CONTAINER_OF(node, dd_region, link);
        bool is_unused = region->use == REGION_ARRAY && atomic_load(&region->refs) == 0 && region->dirty > 0;
        if (is_unused && dd_sys_madvise(region->data, region->capacity, MADV_REMOVE) == 0) {
            atomic_fetch_sub(&group->unused_nbytes, region->dirty);
            region->dirty = 0;
        }
    }
}

size_t
group_regions_nbytes_locked(const dd_group *group)
{
    size_t nbytes = 0;
    for (const dd_list *node = group->regions.next; node != &group->regions; node = node->next) {
        const dd_region *region = DD_CONTAINER_OF(node, dd_region, link);
        nbytes += atomic_load(&region->refs) > 0 ? region->nbytes : 0;
    }
    return nbytes;
}

/* Drop one reference, unless it is the only one. Return true if it was dropped. */
static bool
release_shared(dd_region *region)
{
    unsigned refs = atomic_load(&region->refs);
    while (refs > 1) {
        if (atomic_compare_exchange_weak(&region->refs, &refs, refs - 1)) {
            return true;
        }
    }
    return false;
}

/* Only a holder can acquire a reference, so the last holder stays so during keep_for_reuse. */
bool
group_release_region(dd_region *region)
{
    if (release_shared(region)) {
        return false;
    }
    keep_for_reuse(region);
    atomic_store(&region->refs, 0);
    return true;
}

/* ---- after a failure */

static dd_status
make_private(uint8_t *at, size_t nbytes, dd_error *err)
{
    void *own = dd_sys_mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (own != MAP_FAILED) {
        memcpy(own, at, nbytes);
        if (dd_sys_mremap(own, nbytes, nbytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) != MAP_FAILED) {
            return DD_OK;
        }
    }
    dd_status status = dd_error_set_errno(err, DD_SYSTEM, errno,
                                          "cannot replace %zu shared bytes by a private copy", nbytes);
    if (own != MAP_FAILED) {
        dd_sys_munmap(own, nbytes);
    }
    return status;
}

/* Ranks that write to the block cannot be stopped: a rank may be suspended in the middle of its
 * copy, or receive the failure late. So replace the block's pages, with their contents; later
 * writes go to the old pages, which are no longer read. The block is an output of a collective in
 * place: this process has not changed it until now, and it shares no page with other data
 * (arena/regions.c). */
dd_status
group_take_back_locked(dd_group *group, dd_block block, dd_error *err)
{
    for (dd_list *node = group->regions.next; node != &group->regions; node = node->next) {
        const dd_region *region = DD_CONTAINER_OF(node, dd_region, link);
        size_t offset = (size_t)((uintptr_t)block.data - (uintptr_t)region->data);
        if (offset < region->capacity) {
            uint8_t *base = region->adopted_at != NULL ? region->adopted_at : region->data;
            return make_private(base + offset, round_up_to_pages(block.nbytes), err);
        }
    }
    return dd_error_set(err, DD_INTERNAL, "%zu bytes at %p are not in a region of this group", block.nbytes,
                        block.data);
}

/* ---- regions of other ranks */

#define REQUEST_RETRY_NS (4 * DD_NS_PER_MS)
#define REQUEST_RETRY_MAX_SHIFT 6

static foreign_region *
find_foreign(dd_group *group, int local, uint32_t id)
{
    for (dd_list *node = group->foreign.next; node != &group->foreign; node = node->next) {
        foreign_region *foreign = DD_CONTAINER_OF(node, foreign_region, link);
        if (foreign->local == local && foreign->id == id) {
            return foreign;
        }
    }
    return NULL;
}

static void
destroy_foreign(dd_group *group, foreign_region *foreign, bool is_forked)
{
    group->nwanted -= foreign->memory.data == NULL;
    dd_list_remove(&foreign->link);
    if (foreign->memory.data != NULL) {
        dd_sys_munmap(foreign->memory.data, foreign->memory.nbytes);
    }
    if (!is_forked) { /* in a forked child, this number may be another file's */
        dd_sock_close(foreign->fd);
    }
    dd_mem_free(foreign);
}

static int64_t
next_request_ns(const dd_group *group)
{
    int64_t earliest_ns = DD_NEVER_NS;
    const dd_list *all = &group->foreign;
    for (const dd_list *node = all->next; group->nwanted > 0 && node != all; node = node->next) {
        const foreign_region *foreign = DD_CONTAINER_OF(node, const foreign_region, link);
        bool is_awaited = foreign->memory.data == NULL && foreign->fd == -1;
        earliest_ns = is_awaited && foreign->retry_ns < earliest_ns ? foreign->retry_ns : earliest_ns;
    }
    return earliest_ns;
}

void
group_start_region_timer_locked(dd_group *group)
{
    bool has_task = !dd_list_is_empty(&group->task.link);
    dd_engine_start_timer_locked(group->engine, &group->region_timer,
                                 has_task ? next_request_ns(group) : DD_NEVER_NS);
}

static foreign_region *
want_foreign(dd_group *group, int local, uint32_t id)
{
    foreign_region *foreign = find_foreign(group, local, id);
    if (foreign == NULL && (foreign = dd_mem_zalloc(sizeof *foreign)) != NULL) {
        foreign->local = local;
        foreign->id = id;
        foreign->fd = -1;
        group->nwanted++;
        dd_list_push_back(&group->foreign, &foreign->link);
    }
    return foreign;
}

/* Request a region from its owner, unless the last request is recent. */
void
group_want_region(void *ctx, int local, uint32_t id)
{
    dd_group *group = ctx;
    foreign_region *foreign = want_foreign(group, local, id);
    int64_t now_ns = dd_clock_now_ns();
    if (foreign == NULL || foreign->memory.data != NULL || foreign->fd != -1 || now_ns < foreign->retry_ns ||
        group->context == NULL) {
        return; /* nothing to request now; if memory was short, the next poll retries */
    }
    unsigned shift =
        foreign->nrequests < REQUEST_RETRY_MAX_SHIFT ? foreign->nrequests : REQUEST_RETRY_MAX_SHIFT;
    foreign->nrequests++;
    foreign->retry_ns = now_ns + (REQUEST_RETRY_NS << shift);
    (void)dd_context_want_fd_locked(group->context, group->topology.local_ranks[local], id);
    group_start_region_timer_locked(group);
}

bool
group_take_region_locked(dd_group *group, int rank, uint32_t id, int fd)
{
    dd_assert_holds(ENGINE);
    foreign_region *foreign = find_foreign(group, group->topology.local_of[rank], id);
    if (foreign == NULL || foreign->fd != -1 || foreign->memory.data != NULL) {
        return false;
    }
    foreign->fd = fd;
    return true;
}

/* Map a descriptor that a peer has sent, and check that the file cannot shrink. */
static dd_status
map_descriptor(uint32_t id, int fd, dd_block *memory, dd_error *err)
{
    size_t nbytes = 0;
    if (fd == DD_SOCK_FD_REFUSED) {
        return dd_error_set_errno(err, DD_SYSTEM, EMFILE,
                                  "cannot receive shared array %u of another rank of this host", id);
    }
    dd_status status = dd_shared_memory_measure(fd, &nbytes, err);
    if (status != DD_OK) {
        dd_error_prepend(err, "shared array %u of another rank", id);
        return status;
    }
    void *data = dd_sys_mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) {
        return dd_error_set_errno(err, DD_SYSTEM, errno, "mmap of array %u (%zu bytes) failed", id, nbytes);
    }
    *memory = (dd_block){.data = data, .nbytes = nbytes};
    return DD_OK;
}

static dd_status
map_foreign(dd_group *group, foreign_region *foreign, dd_error *err)
{
    dd_block memory;
    dd_status status = map_descriptor(foreign->id, foreign->fd, &memory, err);
    if (status == DD_OK) {
        status =
            dd_arena_add_region(group->arena, foreign->local, foreign->id, memory.data, memory.nbytes, err);
        if (status != DD_OK) {
            dd_sys_munmap(memory.data, memory.nbytes);
        }
    }
    if (status != DD_OK) {
        destroy_foreign(group, foreign, false);
        return status;
    }
    group->nwanted--;
    foreign->memory = memory;
    dd_sock_close(foreign->fd);
    foreign->fd = -1;
    return DD_OK;
}

dd_status
dd_group_map_region_locked(dd_group *group, int rank, uint32_t id, dd_block *memory, dd_error *err)
{
    int local = group->topology.local_of[rank];
    foreign_region *foreign = find_foreign(group, local, id);
    bool is_mapped = foreign != NULL && foreign->memory.data != NULL;
    *memory = (dd_block){.data = NULL};
    if (!is_mapped && dd_run_is_moving_locked(group->run)) {
        return DD_OK; /* the arena is in use: report the region as not arrived */
    }
    if (!is_mapped) {
        group_want_region(group, local, id);
        foreign = find_foreign(group, local, id);
        if (foreign == NULL || foreign->fd == -1) {
            return DD_OK;
        }
        dd_status status = map_foreign(group, foreign, err);
        if (status != DD_OK) {
            return status;
        }
    }
    *memory = foreign->memory;
    return DD_OK;
}

bool
group_map_wanted_locked(dd_group *group, dd_error *error)
{
    dd_assert_holds(ENGINE);
    bool has_arrived = false;
    if (group->nwanted == 0 || dd_run_is_moving_locked(group->run)) {
        return false;
    }
    for (dd_list *node = group->foreign.next, *next; node != &group->foreign; node = next) {
        next = node->next;
        foreign_region *foreign = DD_CONTAINER_OF(node, foreign_region, link);
        group_want_region(group, foreign->local, foreign->id);
        if (foreign->fd != -1) {
            has_arrived = true;
            if (map_foreign(group, foreign, error) != DD_OK) {
                return true;
            }
        }
    }
    return dd_context_check_datagrams_locked(group->context, error) != DD_OK || has_arrived;
}

void
group_destroy_regions(dd_group *group)
{
    bool is_forked = dd_engine_check_fork(group->engine, NULL) != DD_OK;
    while (!dd_list_is_empty(&group->regions)) {
        dd_region *region = DD_CONTAINER_OF(group->regions.next, dd_region, link);
        dd_list_remove(&region->link);
        dd_sys_munmap(region->data, region->capacity);
        if (!is_forked) { /* a forked child has closed it, and may have reused the number */
            dd_fork_close(region->fd);
        }
        dd_mem_free(region);
    }
    while (!dd_list_is_empty(&group->foreign)) {
        destroy_foreign(group, DD_CONTAINER_OF(group->foreign.next, foreign_region, link), is_forked);
    }
}
