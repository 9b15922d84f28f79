#include "core/mem.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#ifdef DD_FAULTS
#include <stdatomic.h>
#include <stdbool.h>

/* How many were made, in the lower half, and the number of the one to fail, in the upper: other threads allocate while both are set. */
static atomic_uint_fast64_t allocations = (uint64_t)UINT32_MAX << 32;

long
dd_mem_fail_after(long count)
{
    return (long)(uint32_t)atomic_exchange(&allocations, (uint64_t)(uint32_t)count << 32);
}

static bool
is_this_one_to_fail(void)
{
    uint64_t before = atomic_fetch_add(&allocations, 1);
    return (uint32_t)before == before >> 32;
}
#else
#define is_this_one_to_fail() 0
#endif

void *
dd_mem_alloc(size_t nbytes)
{
    return is_this_one_to_fail() ? NULL : malloc(nbytes > 0 ? nbytes : 1);
}

void *
dd_mem_zalloc(size_t nbytes)
{
    return is_this_one_to_fail() ? NULL : calloc(1, nbytes > 0 ? nbytes : 1);
}

void *
dd_mem_alloc_array(size_t count, size_t size)
{
    if (size != 0 && count > SIZE_MAX / size) {
        return NULL;
    }
    return dd_mem_alloc(count * size);
}

void *
dd_mem_realloc(void *ptr, size_t nbytes)
{
    return is_this_one_to_fail() ? NULL : realloc(ptr, nbytes > 0 ? nbytes : 1);
}

void
dd_mem_free(void *ptr)
{
    free(ptr);
}

void *
dd_mem_map(size_t nbytes)
{
    void *pages = is_this_one_to_fail()
                      ? MAP_FAILED
                      : mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return pages != MAP_FAILED ? pages : NULL;
}

void
dd_mem_unmap(void *pages, size_t nbytes)
{
    if (pages != NULL) {
        (void)munmap(pages, nbytes);
    }
}
