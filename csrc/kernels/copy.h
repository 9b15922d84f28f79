/* Copies for memory that two processes share. Source and destination must not overlap. */
#ifndef DD_KERNELS_COPY_H
#define DD_KERNELS_COPY_H

#include <stddef.h>

/* Copy through the caches of this core. Ordinary vector stores to lines that another core holds
 * fetch those lines first; `rep movsb` does not, and is used if the CPU reports that it is fast.
 * Small copies, and all copies on other machines, use memcpy. */
void dd_copy(void *dst, const void *src, size_t nbytes);

/* Copy past the caches. Several times as fast if a core that shares no cache with this one reads
 * next: it need not fetch the lines from this core's cache, nor this core fetch them back. A reader
 * that sees a later release store sees the bytes. Without such stores, the same as dd_copy. */
void dd_copy_streaming(void *dst, const void *src, size_t nbytes);

#endif
