/* All allocations of the library. Tests wrap these functions to make the N-th allocation fail (tests/faults/). */
#ifndef DD_CORE_MEM_H
#define DD_CORE_MEM_H

#include <stddef.h>

/* NULL without memory, or if count * size overflows. A size of 0 gives a valid pointer. */
void *dd_mem_alloc(size_t nbytes);
void *dd_mem_zalloc(size_t nbytes);
void *dd_mem_alloc_array(size_t count, size_t size);
/* On failure the old block is unchanged. */
void *dd_mem_realloc(void *ptr, size_t nbytes);
void dd_mem_free(void *ptr);

/* Allocate zeroed pages, which cost nothing until they are touched: for large tables that most
 * processes hardly use. Memory from the heap may have been in use, and would be cleared. */
void *dd_mem_map(size_t nbytes);
void dd_mem_unmap(void *pages, size_t nbytes); /* may be NULL */

/* Announce writes to memory of another owner, perhaps for the first time. From some megabytes on,
 * this requests large pages, since a fault for each small page takes longer than the writes. */
void dd_mem_expect_writes(void *at, size_t nbytes);

#endif
