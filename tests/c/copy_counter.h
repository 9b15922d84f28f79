/* How many bytes the library copies, counted at the doors that copies go through: memcpy, memmove and dd_copy, which the linker leads
 * here (COUNTED_COPIES in the Makefile). Copies of a fixed small size, which compilers write out, are not seen, nor what a
 * reduction writes. */
#ifndef DD_TESTS_COPY_COUNTER_H
#define DD_TESTS_COPY_COUNTER_H

#include <stdbool.h>
#include <stddef.h>

/* False: this build does not count. */
bool copy_counter_works(void);
/* Of all threads, so far; pieces of less than `COPY_COUNTER_LEAST` are left out: they are headers, names and the like. */
size_t copy_counter_nbytes(void);

#define COPY_COUNTER_LEAST 64

#endif
