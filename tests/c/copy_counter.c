#include "copy_counter.h"

#include <stdatomic.h>

#ifdef DD_COUNTS_COPIES

static atomic_size_t copied;
static _Thread_local bool is_inside; /* inside dd_copy, which may call memcpy */

void *__real_memcpy(void *dst, const void *src, size_t nbytes);
void *__real_memmove(void *dst, const void *src, size_t nbytes);
void __real_dd_copy(void *dst, const void *src, size_t nbytes);
void *__wrap_memcpy(void *dst, const void *src, size_t nbytes);
void *__wrap_memmove(void *dst, const void *src, size_t nbytes);
void __wrap_dd_copy(void *dst, const void *src, size_t nbytes);

static void
note(size_t nbytes)
{
    if (nbytes >= COPY_COUNTER_LEAST && !is_inside) {
        atomic_fetch_add_explicit(&copied, nbytes, memory_order_relaxed);
    }
}

void *
__wrap_memcpy(void *dst, const void *src, size_t nbytes)
{
    note(nbytes);
    return __real_memcpy(dst, src, nbytes);
}

void *
__wrap_memmove(void *dst, const void *src, size_t nbytes)
{
    note(nbytes);
    return __real_memmove(dst, src, nbytes);
}

void
__wrap_dd_copy(void *dst, const void *src, size_t nbytes)
{
    note(nbytes);
    is_inside = true;
    __real_dd_copy(dst, src, nbytes);
    is_inside = false;
}

bool
copy_counter_works(void)
{
    return true;
}

size_t
copy_counter_nbytes(void)
{
    return atomic_load(&copied);
}

#else

bool
copy_counter_works(void)
{
    return false;
}

size_t
copy_counter_nbytes(void)
{
    return 0;
}

#endif
