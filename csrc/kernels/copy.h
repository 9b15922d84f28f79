/* Copies for memory that two processes look at.
 *
 * Ordinary vector stores into lines that another core holds fetch those lines first; `rep movsb` does not,
 * and is the one copy that is good both within a shared cache and across two. Small copies, and machines
 * where it is slow, get memcpy. */
#ifndef DD_KERNELS_COPY_H
#define DD_KERNELS_COPY_H

#include <stddef.h>

/* Non-overlapping. */
void dd_copy(void *dst, const void *src, size_t nbytes);

#endif
