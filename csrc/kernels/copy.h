/* Copies for memory that two processes look at. Blocks do not overlap. */
#ifndef DD_KERNELS_COPY_H
#define DD_KERNELS_COPY_H

#include <stddef.h>

/* Through the caches of this core. Ordinary vector stores into lines that another core holds fetch those
 * lines first; `rep movsb` does not, and serves where the machine says that it is fast. Small copies, and
 * other machines, get memcpy. */
void dd_copy(void *dst, const void *src, size_t nbytes);

/* Past the caches. For what a core reads next that shares no cache with this one, several times as fast: such
 * a core would fetch each line from this core's cache, and this core fetch it back for the next write. What
 * is written is there for a reader that sees a later release. Where there are no such stores it is dd_copy. */
void dd_copy_streaming(void *dst, const void *src, size_t nbytes);

#endif
