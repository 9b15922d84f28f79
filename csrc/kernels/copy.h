/* Copies into memory that two processes share. Source and destination must not overlap. */
#ifndef DD_KERNELS_COPY_H
#define DD_KERNELS_COPY_H

#include <stddef.h>

/* Copy through the caches of this core. If another core holds the destination's cache lines,
 * ordinary vector stores would fetch those lines first. `rep movsb` does not, and is used if the
 * CPU reports that it is fast. Small copies, and all copies on other machines, use memcpy. */
void dd_copy(void *dst, const void *src, size_t nbytes);

/* Copy past the caches, with streaming stores. This is several times as fast if the data is read
 * next by a core that shares no cache with this core: the reader need not fetch the lines from this
 * core's cache, and this core need not fetch them back. A reader that sees a later release store
 * also sees the copied bytes. On a machine without streaming stores, the same as dd_copy. */
void dd_copy_streaming(void *dst, const void *src, size_t nbytes);

#endif
