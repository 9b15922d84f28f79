#include "collective/arena/board.h"
#include "collective/arena/state.h"
#include "core/fork.h"
#include "core/mem.h"
#include "core/shared_memory.h"
#include "core/system.h"

#include <errno.h>
#include <string.h>

#define ARENA_MAGIC UINT64_C(0x616e657261646464) /* the bytes of "dddarena" */
#define ARENA_VERSION 8
#define ARENA_HEADER_BYTES ((size_t)4096)
#define ARENA_BUFFERS_MIN_BYTES ((size_t)1 << 20) /* for the buffers of all slots together */
#define ARENA_STAGING_MIN_BYTES ((size_t)2 << 20) /* for the staging space of all slots together */

_Static_assert(sizeof(arena_record) == ARENA_SPACING, "a record is two lines");
_Static_assert(sizeof(dd_signature) == 24, "a signature is three words");
_Static_assert(sizeof(arena_shared) <= ARENA_HEADER_BYTES, "the header has its pages");

static size_t
control_nbytes(int nranks)
{
    size_t tables = (ARENA_NRECORDS * ARENA_NTABLES + 1) * (size_t)nranks * sizeof(uint64_t);
    return dd_arena_round_up(sizeof(arena_control) + tables, ARENA_SPACING);
}

/* With few ranks, use larger buffers, so that ranks wait for each other less often. */
static size_t
buffer_nbytes(int nranks)
{
    size_t slot = ARENA_BUFFERS_MIN_BYTES / (size_t)nranks;
    slot = slot < ARENA_CHUNK_BYTES ? ARENA_CHUNK_BYTES : slot;
    return slot / ARENA_NBUFFERS / ARENA_SPACING * ARENA_SPACING;
}

static size_t
staging_nbytes(int nranks)
{
    size_t buffers = ARENA_NBUFFERS * buffer_nbytes(nranks);
    size_t wanted = ARENA_STAGING_MIN_BYTES / (size_t)nranks;
    return wanted > buffers ? wanted : buffers;
}

/* Slots are whole pages: a rank touches its own slot's pages first, when it stages data, so that
 * these pages lie in the rank's NUMA node. */
static size_t
slot_nbytes(int nranks)
{
    return dd_arena_round_up(control_nbytes(nranks) + staging_nbytes(nranks), ARENA_PAGE);
}

static size_t
results_offset(int nranks)
{
    return ARENA_HEADER_BYTES + (size_t)nranks * slot_nbytes(nranks);
}

static size_t
boards_offset(int nranks)
{
    return results_offset(nranks) + (nranks > 1 ? ARENA_RESULTS_SPACE_BYTES : 0);
}

size_t
dd_arena_nbytes(int nranks)
{
    return boards_offset(nranks) + dd_arena_round_up(dd_arena_boards_nbytes(nranks), ARENA_PAGE);
}

static dd_arena_ranks
all_of(int nranks)
{
    dd_arena_ranks ranks = {{0}};
    for (int k = 0; k < nranks; k++) {
        dd_arena_ranks_add(&ranks, k);
    }
    return ranks;
}

static arena_geometry
geometry_of(int nranks)
{
    return (arena_geometry){
        .magic = ARENA_MAGIC,
        .version = ARENA_VERSION,
        .nranks = (uint64_t)nranks,
        .nbytes = dd_arena_nbytes(nranks),
        .nrecords = ARENA_NRECORDS,
        .nbuffers = ARENA_NBUFFERS,
        .buffer_nbytes = buffer_nbytes(nranks),
        .staging_nbytes = staging_nbytes(nranks),
        .spacing = ARENA_SPACING,
        .header_nbytes = sizeof(arena_shared),
        .control_nbytes = sizeof(arena_control),
        .payload_nbytes = ARENA_PAYLOAD_BYTES,
        .chunk_nbytes = ARENA_CHUNK_BYTES,
        .results_nbytes = ARENA_RESULTS_BYTES,
        .results_space_nbytes = ARENA_RESULTS_SPACE_BYTES,
        .boards_nbytes = dd_arena_boards_nbytes(nranks),
        .fold_min_nbytes = dd_arena_fold_min(nranks, false),
        .crowded_fold_min_nbytes = dd_arena_fold_min(nranks, true),
        .claimed_share_nbytes = ARENA_CLAIMED_SHARE_BYTES,
    };
}

dd_status
dd_arena_create(int nranks, bool is_crowded, int *fd, dd_error *err)
{
    if (nranks < 1 || nranks > DD_ARENA_MAX_RANKS) {
        return dd_error_set(err, DD_INVALID_ARGUMENT,
                            "cannot create shared memory for a group: got %d ranks, expected 1 to %d", nranks,
                            DD_ARENA_MAX_RANKS);
    }
    int new_fd = -1;
    dd_status status = dd_shared_memory_create("dldist-arena", dd_arena_nbytes(nranks), &new_fd, err);
    if (status == DD_OK) {
        arena_shared shared = {
            .geometry = geometry_of(nranks),
            .is_crowded = is_crowded,
            .streaming = is_crowded ? 0 : UINT32_MAX,
        };
        dd_arena_ranks unregistered = all_of(nranks > 1 ? nranks : 0); /* one rank never sleeps */
        memcpy(&shared.unregistered, &unregistered, sizeof(unregistered));
        if (dd_sys_pwrite(new_fd, &shared, sizeof(shared), 0) == (ssize_t)sizeof(shared)) {
            *fd = new_fd;
            return DD_OK;
        }
        status = dd_error_set_errno(err, DD_SYSTEM, errno, "write failed");
        dd_fork_close(new_fd);
    }
    dd_error_prepend(err, "cannot create %zu bytes of shared memory", dd_arena_nbytes(nranks));
    return status;
}

static dd_status
check_geometry(int fd, const arena_geometry *ours, dd_error *err)
{
    static const char *const names[] = {"magic number", "version",           "ranks",
                                        "size",         "records",           "buffers",
                                        "buffer size",  "staging size",      "spacing",
                                        "header",       "control block",     "header payload",
                                        "chunk size",   "results size",      "results space",
                                        "boards size",  "shared fold limit", "claimed fold limit",
                                        "claim share"};
    const size_t count = sizeof(*ours) / sizeof(uint64_t);
    _Static_assert(sizeof(names) / sizeof(names[0]) == sizeof(*ours) / sizeof(uint64_t), "each has a name");
    uint64_t found[sizeof(*ours) / sizeof(uint64_t)];
    uint64_t wanted[sizeof(*ours) / sizeof(uint64_t)];
    size_t nbytes = 0;
    dd_status status = dd_shared_memory_measure(fd, &nbytes, err);
    if (status == DD_SYSTEM) {
        return status;
    }
    ssize_t nread = status == DD_OK ? dd_sys_pread(fd, found, sizeof(found), 0) : 0;
    if (nread < 0) {
        return dd_error_set_errno(err, DD_SYSTEM, errno, "cannot read the header of a group's shared memory");
    }
    if (nread != (ssize_t)sizeof(found)) {
        return dd_error_set(err, DD_PROTOCOL, "descriptor %d is not shared memory of a group of %llu ranks",
                            fd, (unsigned long long)ours->nranks);
    }
    memcpy(wanted, ours, sizeof(wanted));
    for (size_t i = 0; i < count; i++) {
        if (found[i] != wanted[i]) {
            return dd_error_set(
                err, DD_PROTOCOL,
                "descriptor %d is not shared memory of this dldist version: %s: got %llu, expected %llu; use the same version on all ranks of a host",
                fd, names[i], (unsigned long long)found[i], (unsigned long long)wanted[i]);
        }
    }
    if (nbytes != ours->nbytes) {
        return dd_error_set(err, DD_PROTOCOL,
                            "shared memory in descriptor %d has a wrong size: got %zu bytes, expected %llu",
                            fd, nbytes, (unsigned long long)ours->nbytes);
    }
    return DD_OK;
}

static dd_status
map_shared(dd_arena *arena, int fd, dd_error *err)
{
    dd_status status = check_geometry(fd, &arena->geometry, err);
    if (status != DD_OK) {
        return status;
    }
    size_t nbytes = arena->geometry.nbytes;
    void *memory = dd_sys_mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        return dd_error_set_errno(err, DD_SYSTEM, errno, "mmap of %zu bytes of shared memory failed", nbytes);
    }
    /* Unmap the arena in forked children, which must not use it. */
    (void)dd_sys_madvise(memory, nbytes, MADV_DONTFORK);
    arena->memory = memory;
    arena->shared = memory;
    arena->is_crowded = arena->shared->is_crowded != 0;
    return DD_OK;
}

static void
find_slots(dd_arena *arena)
{
    arena->results = arena->memory + results_offset(arena->nranks);
    arena->boards = (arena_board_head *)(void *)(arena->memory + boards_offset(arena->nranks));
    for (int k = 0; k < arena->nranks; k++) {
        uint8_t *start = arena->memory + ARENA_HEADER_BYTES + (size_t)k * slot_nbytes(arena->nranks);
        _Atomic uint64_t *tables = (_Atomic uint64_t *)(void *)(start + sizeof(arena_control));
        arena->slots[k] = (arena_slot){
            .control = (arena_control *)(void *)start,
            .tables = tables,
            .offsets = tables + (size_t)(ARENA_NRECORDS * ARENA_NTABLES * arena->nranks),
            .buffers = start + control_nbytes(arena->nranks),
        };
    }
}

static dd_status
allocate(int nranks, int rank, dd_arena **arena, dd_error *err)
{
    if (nranks < 1 || nranks > DD_ARENA_MAX_RANKS || rank < 0 || rank >= nranks) {
        return dd_error_set(err, DD_INVALID_ARGUMENT,
                            "cannot attach shared memory: invalid rank: %d of %d ranks", rank, nranks);
    }
    size_t count = (size_t)nranks;
    dd_arena *new_arena = dd_mem_zalloc(sizeof(*new_arena));
    if (new_arena == NULL) {
        return dd_error_no_memory(err, sizeof(*new_arena));
    }
    new_arena->generation = dd_fork_generation();
    new_arena->nranks = nranks;
    new_arena->rank = rank;
    new_arena->geometry = geometry_of(nranks);
    new_arena->all_ranks = new_arena->unverified = all_of(nranks);
    new_arena->nwords = (nranks + 63) / 64;
    new_arena->slots = dd_mem_alloc_array(count, sizeof(*new_arena->slots));
    new_arena->peers = dd_mem_alloc_array(count, sizeof(*new_arena->peers));
    new_arena->block_infos = dd_mem_alloc_array(2 * count, sizeof(*new_arena->block_infos));
    new_arena->sources = dd_mem_alloc_array(count, sizeof(*new_arena->sources));
    if (new_arena->slots == NULL || new_arena->peers == NULL || new_arena->block_infos == NULL ||
        new_arena->sources == NULL) {
        dd_arena_close(new_arena);
        return dd_error_no_memory(err, count * (sizeof(*new_arena->slots) + sizeof(*new_arena->peers)));
    }
    *arena = new_arena;
    return DD_OK;
}

static void
attach_rank(dd_arena *arena)
{
    find_slots(arena);
    dd_arena_note_registered(arena);
}

dd_status
dd_arena_attach(int fd, int nranks, int rank, dd_arena **arena, dd_error *err)
{
    dd_arena *new_arena = NULL;
    dd_status status = allocate(nranks, rank, &new_arena, err);
    if (status != DD_OK) {
        return status;
    }
    status = map_shared(new_arena, fd, err);
    if (status != DD_OK) {
        dd_arena_close(new_arena);
        return status;
    }
    attach_rank(new_arena);
    dd_arena_await_posts(new_arena);
    *arena = new_arena;
    return DD_OK;
}

void
dd_arena_add_cpus(dd_arena *arena)
{
    dd_cpu_set own_cpus = dd_cpu_own_set();
    for (int i = 0; i < DD_CPU_SET_MAX / 64; i++) {
        atomic_fetch_or(&arena->shared->cpus[i], own_cpus.words[i]);
    }
}

bool
dd_arena_is_crowded(dd_arena *arena)
{
    int ncpus = 0;
    for (int i = 0; i < DD_CPU_SET_MAX / 64; i++) {
        for (uint64_t left = atomic_load(&arena->shared->cpus[i]); left != 0; left &= left - 1) {
            ncpus++;
        }
    }
    arena->is_crowded = arena->shared->is_crowded != 0 || (ncpus > 0 && arena->nranks > ncpus);
    return arena->is_crowded;
}

dd_status
dd_arena_join(dd_arena *mapped, int rank, dd_arena **arena, dd_error *err)
{
    dd_status status = allocate(mapped->nranks, rank, arena, err);
    if (status == DD_OK) {
        (*arena)->memory = mapped->memory;
        (*arena)->shared = mapped->shared;
        (*arena)->is_crowded = mapped->is_crowded;
        (*arena)->is_borrowed = true;
        attach_rank(*arena);
    }
    return status;
}

void
dd_arena_close(dd_arena *arena)
{
    if (arena == NULL) {
        return;
    }
    /* In a forked child, this address is unmapped or belongs to another mapping. */
    bool is_mapped = arena->memory != NULL && arena->generation == dd_fork_generation();
    if (is_mapped && !arena->is_borrowed) {
        (void)dd_sys_munmap(arena->memory, arena->geometry.nbytes);
    }
    dd_mem_free(arena->slots);
    dd_mem_free(arena->peers);
    dd_mem_free(arena->block_infos);
    dd_mem_free((void *)arena->sources);
    dd_mem_free(arena->regions);
    dd_mem_free(arena);
}

/* Return the pages that lie entirely within the data of this rank's slot. */
static dd_block
own_data(const dd_arena *arena)
{
    uint8_t *start = arena->memory + ARENA_HEADER_BYTES + (size_t)arena->rank * slot_nbytes(arena->nranks);
    size_t skipped = dd_arena_round_up(control_nbytes(arena->nranks), ARENA_PAGE);
    return (dd_block){.data = start + skipped, .nbytes = slot_nbytes(arena->nranks) - skipped};
}

static dd_block
own_results(const dd_arena *arena)
{
    bool is_first = arena->rank == 0 && arena->nranks > 1;
    return (dd_block){.data = arena->results, .nbytes = is_first ? ARENA_RESULTS_SPACE_BYTES : 0};
}

size_t
dd_arena_data_nbytes(const dd_arena *arena)
{
    return own_data(arena).nbytes + own_results(arena).nbytes;
}

dd_status
dd_arena_release_memory(dd_arena *arena, dd_error *err)
{
    dd_block parts[] = {own_data(arena), own_results(arena)};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (parts[i].nbytes > 0 && dd_sys_madvise(parts[i].data, parts[i].nbytes, MADV_REMOVE) != 0) {
            return dd_error_set_errno(err, DD_SYSTEM, errno, "cannot release %zu bytes of shared memory",
                                      parts[i].nbytes);
        }
    }
    return DD_OK;
}

dd_arena_mismatch
dd_arena_get_mismatch(const dd_arena *arena)
{
    return arena->mismatch;
}
