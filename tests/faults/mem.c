/* Allocations that fail on request, and are counted. */

#include "core/mem.h"

#include "faults/fault_count.h"
#include "faults/faults.h"
#include "faults/wrap.h"

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

WRAP(void *, dd_mem_alloc, (size_t nbytes))
{
    return dd_fault_count_is_due(&allocations) ? NULL : count_new(__real_dd_mem_alloc(nbytes));
}

WRAP(void *, dd_mem_zalloc, (size_t nbytes))
{
    return dd_fault_count_is_due(&allocations) ? NULL : count_new(__real_dd_mem_zalloc(nbytes));
}

WRAP(void *, dd_mem_alloc_array, (size_t count, size_t size))
{
    return dd_fault_count_is_due(&allocations) ? NULL : count_new(__real_dd_mem_alloc_array(count, size));
}

WRAP(void *, dd_mem_realloc, (void *ptr, size_t nbytes))
{
    if (dd_fault_count_is_due(&allocations)) {
        return NULL;
    }
    void *block = __real_dd_mem_realloc(ptr, nbytes);
    return ptr == NULL ? count_new(block) : block;
}

WRAP(void, dd_mem_free, (void *ptr))
{
    count_freed(ptr);
    __real_dd_mem_free(ptr);
}

WRAP(void *, dd_mem_map, (size_t nbytes))
{
    return dd_fault_count_is_due(&allocations) ? NULL : count_new(__real_dd_mem_map(nbytes));
}

WRAP(void, dd_mem_unmap, (void *pages, size_t nbytes))
{
    count_freed(pages);
    __real_dd_mem_unmap(pages, nbytes);
}
