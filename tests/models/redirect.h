/* Included first in the code under check. It redirects functions that copy memory, because the
 * compiler does not instrument them. */
#ifndef DD_TESTS_MODELS_REDIRECT_H
#define DD_TESTS_MODELS_REDIRECT_H

#include <string.h>

void *checker_memmove(void *dst, const void *src, size_t nbytes);
void *checker_memset(void *dst, int byte, size_t nbytes);
int checker_memcmp(const void *a, const void *b, size_t nbytes);

#undef memcpy
#undef memmove
#undef memset
#undef memcmp
#define memcpy checker_memmove
#define memmove checker_memmove
#define memset checker_memset
#define memcmp checker_memcmp

#endif
