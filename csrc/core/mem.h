/* The one door to the heap, so that tests can make the N-th allocation fail. */
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

#ifdef DD_FAULTS
/* Lets `count` more allocations of this process succeed and fails the one after; -1 turns it off.
 * Returns how many allocations were made since the last call. Exists in test builds only. */
long dd_mem_fail_after(long count);
/* How many blocks, and pieces of mapped pages, have not been freed. In test builds only. */
long dd_mem_count_blocks(void);
#endif

#endif
