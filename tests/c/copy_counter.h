/* Count the bytes that the library copies with memcpy, memmove and dd_copy, which the linker
 * redirects to this module (COUNTED_COPIES in the Makefile). Does not count copies of a small fixed
 * size, which compilers inline, or the output of a reduction. */
#ifndef DD_TESTS_COPY_COUNTER_H
#define DD_TESTS_COPY_COUNTER_H

#include <stdbool.h>
#include <stddef.h>

/* Return false if this build does not count. */
bool copy_counter_works(void);
/* Return the bytes copied by all threads so far. Copies of less than `COPY_COUNTER_LEAST` bytes
 * (headers, names) are not counted. */
size_t copy_counter_nbytes(void);

#define COPY_COUNTER_LEAST 64

#endif
