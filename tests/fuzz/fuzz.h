/* Shared code of the fuzz targets: the entry point that engines call, the end of a run that broke a
 * promise, and reading an input as a sequence of choices. */
#ifndef DD_TESTS_FUZZ_FUZZ_H
#define DD_TESTS_FUZZ_FUZZ_H

#include "core/bytes.h"
#include "core/little_endian.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Not assert, which does nothing if NDEBUG is defined. */
#define require(holds) ((holds) ? (void)0 : fuzz_fail(__FILE__, __LINE__, #holds))

_Noreturn static inline void
fuzz_fail(const char *file, int line, const char *label)
{
    fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, label);
    abort();
}

/* Return the lowest free descriptor. It must be the same before and after code that must not leak
 * descriptors. */
static inline int
next_descriptor(void)
{
    int fd = dup(STDERR_FILENO);
    require(fd >= 0 && close(fd) == 0);
    return fd;
}

/* Take the next bytes, at most nbytes. */
static inline dd_bytes
take_bytes(dd_bytes *input, size_t nbytes)
{
    size_t len = nbytes < input->len ? nbytes : input->len;
    dd_bytes taken = dd_bytes_of(input->data, len);
    *input = dd_bytes_after(*input, len);
    return taken;
}

/* Take a little-endian number of nbytes; bytes past the end of the input are zero. */
static inline uint64_t
take_number(dd_bytes *input, size_t nbytes)
{
    dd_bytes taken = take_bytes(input, nbytes);
    return taken.len > 0 ? dd_get_number(taken.data, taken.len) : 0;
}

static inline unsigned
take_byte(dd_bytes *input)
{
    return (unsigned)take_number(input, 1);
}

#endif
