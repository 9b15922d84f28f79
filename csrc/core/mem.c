#include "core/mem.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#ifdef DD_FAULTS
#include "core/fault_count.h"

static dd_fault_count allocations = DD_FAULT_COUNT_INITIALIZER;
static atomic_long nblocks;

long
dd_mem_fail_after(long count)
{
    return dd_fault_count_set(&allocations, count);
}

long
dd_mem_count_blocks(void)
{
    return atomic_load(&nblocks);
}

static bool
is_this_one_to_fail(void)
{
    return dd_fault_count_is_due(&allocations);
}

static void *
count_new(void *block)
{
    atomic_fetch_add_explicit(&nblocks, block != NULL ? 1 : 0, memory_order_relaxed);
    return block;
}

static void
count_freed(const void *block)
{
    atomic_fetch_sub_explicit(&nblocks, block != NULL ? 1 : 0, memory_order_relaxed);
}
#else
#define is_this_one_to_fail() 0
#define count_new(block) (block)
#define count_freed(block) ((void)0)
#endif

void *
dd_mem_alloc(size_t nbytes)
{
    return is_this_one_to_fail() ? NULL : count_new(malloc(nbytes > 0 ? nbytes : 1));
}

void *
dd_mem_zalloc(size_t nbytes)
{
    return is_this_one_to_fail() ? NULL : count_new(calloc(1, nbytes > 0 ? nbytes : 1));
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
    if (is_this_one_to_fail()) {
        return NULL;
    }
    void *block = realloc(ptr, nbytes > 0 ? nbytes : 1);
    return ptr == NULL ? count_new(block) : block;
}

void
dd_mem_free(void *ptr)
{
    count_freed(ptr);
    free(ptr);
}

void *
dd_mem_map(size_t nbytes)
{
    void *pages = is_this_one_to_fail()
                      ? MAP_FAILED
                      : mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return pages != MAP_FAILED ? count_new(pages) : NULL;
}

void
dd_mem_unmap(void *pages, size_t nbytes)
{
    if (pages != NULL) {
        count_freed(pages);
        (void)munmap(pages, nbytes);
    }
}

/* That of large pages of x86-64 and of Arm with small ones. */
#define LARGE_PAGE_NBYTES ((uintptr_t)2 << 20)

void
dd_mem_expect_writes(void *at, size_t nbytes)
{
    uintptr_t first = ((uintptr_t)at + LARGE_PAGE_NBYTES - 1) & ~(LARGE_PAGE_NBYTES - 1);
    uintptr_t end = ((uintptr_t)at + nbytes) & ~(LARGE_PAGE_NBYTES - 1);
    if (first < end) {
        /* The system may have none, or not know them. */
        (void)madvise((void *)first, end - first, MADV_HUGEPAGE);
    }
}
