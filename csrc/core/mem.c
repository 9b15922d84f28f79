#include "core/mem.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

void *
dd_mem_alloc(size_t nbytes)
{
    return malloc(nbytes > 0 ? nbytes : 1);
}

void *
dd_mem_zalloc(size_t nbytes)
{
    return calloc(1, nbytes > 0 ? nbytes : 1);
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
    return realloc(ptr, nbytes > 0 ? nbytes : 1);
}

void
dd_mem_free(void *ptr)
{
    free(ptr);
}

void *
dd_mem_map(size_t nbytes)
{
    void *pages = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return pages != MAP_FAILED ? pages : NULL;
}

void
dd_mem_unmap(void *pages, size_t nbytes)
{
    if (pages != NULL) {
        (void)munmap(pages, nbytes);
    }
}

/* Size in bytes of a large page on x86-64, and on Arm with small pages of 4 KiB. */
#define LARGE_PAGE_NBYTES ((uintptr_t)2 << 20)

void
dd_mem_expect_writes(void *at, size_t nbytes)
{
    uintptr_t first = ((uintptr_t)at + LARGE_PAGE_NBYTES - 1) & ~(LARGE_PAGE_NBYTES - 1);
    uintptr_t end = ((uintptr_t)at + nbytes) & ~(LARGE_PAGE_NBYTES - 1);
    if (first < end) {
        /* Ignore failure: the system may lack large pages, or may not support them. */
        (void)madvise((void *)first, end - first, MADV_HUGEPAGE);
    }
}
