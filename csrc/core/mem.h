/* All allocations of the library. Tests wrap these functions to make the N-th allocation fail (tests/faults/). */
#ifndef DD_CORE_MEM_H
#define DD_CORE_MEM_H

#include <stddef.h>

/* NULL when there is no memory or count * size overflows. A size of 0 gives a pointer that can be freed. */
void *dd_mem_alloc(size_t nbytes);
void *dd_mem_zalloc(size_t nbytes);
void *dd_mem_alloc_array(size_t count, size_t size);
/* On failure the old block stays as it is. */
void *dd_mem_realloc(void *ptr, size_t nbytes);
void dd_mem_free(void *ptr);

/* Zeroed pages of their own, which cost nothing until they are touched: for large tables of which most processes use little. What
 * the heap gives instead may have been in use, and is then cleared. */
void *dd_mem_map(size_t nbytes);
void dd_mem_unmap(void *pages, size_t nbytes); /* NULL is fine */

/* Memory of somebody else that is about to be written, perhaps for the first time: from some megabytes on, the system is asked for large
 * pages, since a fault for each small one takes longer than the writing. */
void dd_mem_expect_writes(void *at, size_t nbytes);

#endif
