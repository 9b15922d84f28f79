#include "collective/arena_internal.h"
#include "core/fork.h"
#include "core/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define ARENA_MAGIC UINT64_C(0x616e657261646464) /* "dddarena" */
#define ARENA_VERSION 2
#define ARENA_HEADER_BYTES ((size_t)4096)
#define ARENA_TOTAL_BYTES ((size_t)1 << 20) /* all of it, and less */
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

_Static_assert(sizeof(arena_record) == ARENA_SPACING, "a record is two lines");
_Static_assert(sizeof(dd_signature) == 24, "a signature is three words");
_Static_assert(sizeof(arena_shared) <= ARENA_HEADER_BYTES, "the header has its pages");

static size_t
round_up(size_t value, size_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

static size_t
control_nbytes(int nranks)
{
    size_t tables = 2 * ARENA_NTABLES * (size_t)nranks * sizeof(uint64_t);
    return round_up(sizeof(arena_control) + tables, ARENA_SPACING);
}

static size_t
buffer_nbytes(int nranks)
{
    size_t left =
        ARENA_TOTAL_BYTES - ARENA_HEADER_BYTES - ARENA_LINE - (size_t)nranks * control_nbytes(nranks);
    size_t each = left / (size_t)nranks / ARENA_NBUFFERS;
    return each / ARENA_SPACING * ARENA_SPACING;
}

static size_t
slot_nbytes(int nranks)
{
    return control_nbytes(nranks) + ARENA_NBUFFERS * buffer_nbytes(nranks);
}

size_t
dd_arena_nbytes(int nranks)
{
    return ARENA_HEADER_BYTES + (size_t)nranks * slot_nbytes(nranks);
}

static uint64_t
bits_of(int nranks)
{
    return nranks == 64 ? UINT64_MAX : (UINT64_C(1) << nranks) - 1;
}

static dd_status
write_shape(int fd, int nranks, dd_error *err)
{
    arena_shared shared = {
        .magic = ARENA_MAGIC,
        .version = ARENA_VERSION,
        .nranks = (uint32_t)nranks,
        .nbytes = dd_arena_nbytes(nranks),
        .unregistered = nranks > 1 ? bits_of(nranks) : 0, /* alone there is nobody to sleep */
    };
    bool is_written = ftruncate(fd, (off_t)dd_arena_nbytes(nranks)) == 0 &&
                      pwrite(fd, &shared, sizeof(shared), 0) == (ssize_t)sizeof(shared) &&
                      fcntl(fd, F_ADD_SEALS, SEALS) == 0;
    if (!is_written) {
        return dd_error_set_errno(err, DD_SYSTEM, errno, "cannot make an arena of %zu bytes",
                                  dd_arena_nbytes(nranks));
    }
    return DD_OK;
}

dd_status
dd_arena_create(int nranks, int *fd, dd_error *err)
{
    if (nranks < 1 || nranks > DD_ARENA_MAX_RANKS) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "cannot make an arena of %d ranks, only of 1 to %d",
                            nranks, DD_ARENA_MAX_RANKS);
    }
    int new_fd = dd_fork_own(memfd_create("dldist-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (new_fd < 0) {
        return dd_error_set_errno(err, DD_SYSTEM, errno, "cannot create an arena");
    }
    dd_status status = write_shape(new_fd, nranks, err);
    if (status != DD_OK) {
        dd_fork_close(new_fd);
        return status;
    }
    *fd = new_fd;
    return DD_OK;
}

static dd_status
map_shared(dd_arena *arena, int fd, dd_error *err)
{
    struct stat info;
    bool is_sized =
        fstat(fd, &info) == 0 && info.st_size == (off_t)arena->nbytes && fcntl(fd, F_GET_SEALS) == SEALS;
    if (!is_sized) {
        return dd_error_set(err, DD_PROTOCOL, "descriptor %d is not a sealed arena of %d ranks and %zu bytes",
                            fd, arena->nranks, arena->nbytes);
    }
    void *memory = mmap(NULL, arena->nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        return dd_error_set_errno(err, DD_SYSTEM, errno, "cannot map an arena of %zu bytes", arena->nbytes);
    }
    /* A forked child has no business in it. */
    (void)madvise(memory, arena->nbytes, MADV_DONTFORK);
    arena->memory = memory;
    arena->shared = memory;
    uint64_t magic = arena->shared->magic;
    uint32_t version = arena->shared->version;
    uint32_t nranks = arena->shared->nranks;
    if (magic != ARENA_MAGIC || version != ARENA_VERSION || nranks != (uint32_t)arena->nranks) {
        return dd_error_set(err, DD_PROTOCOL,
                            "descriptor %d is not an arena of version %d for %d ranks: it says %#llx, %u, %u",
                            fd, ARENA_VERSION, arena->nranks, (unsigned long long)magic, version, nranks);
    }
    return DD_OK;
}

static void
find_slots(dd_arena *arena)
{
    arena->buffer_nbytes = buffer_nbytes(arena->nranks);
    for (int k = 0; k < arena->nranks; k++) {
        uint8_t *start = arena->memory + ARENA_HEADER_BYTES + (size_t)k * slot_nbytes(arena->nranks);
        arena->slots[k] = (arena_slot){
            .control = (arena_control *)(void *)start,
            .tables = (_Atomic uint64_t *)(void *)(start + sizeof(arena_control)),
            .buffers = start + control_nbytes(arena->nranks),
        };
    }
}

static dd_status
allocate(int nranks, int rank, dd_arena **arena, dd_error *err)
{
    if (nranks < 1 || nranks > DD_ARENA_MAX_RANKS || rank < 0 || rank >= nranks) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "cannot attach to an arena as rank %d of %d", rank,
                            nranks);
    }
    size_t count = (size_t)nranks;
    dd_arena *new_arena = dd_mem_zalloc(sizeof(*new_arena));
    if (new_arena == NULL) {
        return dd_error_no_memory(err, sizeof(*new_arena));
    }
    new_arena->generation = dd_fork_generation();
    new_arena->nranks = nranks;
    new_arena->rank = rank;
    new_arena->nbytes = dd_arena_nbytes(nranks);
    new_arena->all_ranks = bits_of(nranks);
    new_arena->slots = dd_mem_alloc_array(count, sizeof(*new_arena->slots));
    new_arena->peers = dd_mem_alloc_array(count, sizeof(*new_arena->peers));
    new_arena->sources = dd_mem_alloc_array(count, sizeof(*new_arena->sources));
    if (new_arena->slots == NULL || new_arena->peers == NULL || new_arena->sources == NULL) {
        dd_arena_close(new_arena);
        return dd_error_no_memory(err, count * (sizeof(*new_arena->slots) + sizeof(*new_arena->peers)));
    }
    *arena = new_arena;
    return DD_OK;
}

static void
take_seat(dd_arena *arena)
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
    take_seat(new_arena);
    *arena = new_arena;
    return DD_OK;
}

dd_status
dd_arena_join(dd_arena *mapped, int rank, dd_arena **arena, dd_error *err)
{
    dd_status status = allocate(mapped->nranks, rank, arena, err);
    if (status == DD_OK) {
        (*arena)->memory = mapped->memory;
        (*arena)->shared = mapped->shared;
        (*arena)->is_borrowed = true;
        take_seat(*arena);
    }
    return status;
}

void
dd_arena_close(dd_arena *arena)
{
    if (arena == NULL) {
        return;
    }
    /* In a forked child it is not mapped, and something else may be in its place. */
    bool is_mapped = arena->memory != NULL && arena->generation == dd_fork_generation();
    if (is_mapped && !arena->is_borrowed) {
        (void)munmap(arena->memory, arena->nbytes);
    }
    dd_mem_free(arena->slots);
    dd_mem_free(arena->peers);
    dd_mem_free((void *)arena->sources);
    dd_mem_free(arena->regions);
    dd_mem_free(arena);
}

dd_arena_culprit
dd_arena_get_culprit(const dd_arena *arena)
{
    return arena->culprit;
}
