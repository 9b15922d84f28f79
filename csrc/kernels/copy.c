#include "kernels/copy.h"

#include "core/cpu.h"

#include <string.h>

#if defined(__x86_64__)

/* Below this, the microcode's start costs more than it saves. */
#define STRING_COPY_MIN_BYTES 2048

void
dd_copy(void *dst, const void *src, size_t nbytes)
{
    if (nbytes >= STRING_COPY_MIN_BYTES && (dd_cpu_features() & DD_CPU_STRING_COPY) != 0) {
        __asm__ volatile("rep movsb" : "+D"(dst), "+S"(src), "+c"(nbytes) : : "memory");
    } else if (nbytes > 0) {
        memcpy(dst, src, nbytes);
    }
}

#else

void
dd_copy(void *dst, const void *src, size_t nbytes)
{
    if (nbytes > 0) {
        memcpy(dst, src, nbytes);
    }
}

#endif
