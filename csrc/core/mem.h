/* All heap allocations of the library. Tests make the N-th allocation fail (tests/faults/). */
#ifndef DD_CORE_MEM_H
#define DD_CORE_MEM_H

#include <stddef.h>

/* Allocate memory. Return NULL if there is none or if count * size overflows; for size 0, return a
 * valid pointer. */
void *dd_mem_alloc(size_t nbytes);
void *dd_mem_zalloc(size_t nbytes);
void *dd_mem_alloc_array(size_t count, size_t size);
/* Change the size of a block, as realloc does. On failure the old block stays valid. */
void *dd_mem_realloc(void *ptr, size_t nbytes);
void dd_mem_free(void *ptr);

/* Allocate zeroed pages, which use no memory until they are touched. For large tables that most
 * processes hardly touch: the heap might return used memory, which it would have to clear. */
void *dd_mem_map(size_t nbytes);
void dd_mem_unmap(void *pages, size_t nbytes); /* no effect if `pages` is NULL */

/* Announce writes to memory that another component may have allocated. For some megabytes or more
 * this requests large pages: faults on all small pages would take longer than the writes. */
void dd_mem_expect_writes(void *at, size_t nbytes);

#endif
