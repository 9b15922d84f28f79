#include "kernels/copy.h"

#include "core/cpu.h"

#include <stdint.h>
#include <string.h>

/* Size of a cache line in bytes. Streaming stores must fill whole lines, or memory is read. */
#define LINE ((size_t)64)

#if defined(__x86_64__)

#include <immintrin.h>

/* Size in bytes below which the startup cost of `rep movsb` exceeds its gain. */
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

static void
stream_lines_sse2(uint8_t *dst, const uint8_t *src, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i += 16) {
        _mm_stream_si128((__m128i *)(void *)(dst + i),
                         _mm_loadu_si128((const __m128i *)(const void *)(src + i)));
    }
}

/* Copy whole lines with AVX2, which is twice as fast as SSE2 up to 16 KiB. For larger copies the
 * memory is the limit, so wider registers gain nothing. */
__attribute__((target("avx2"))) static void
stream_lines_avx2(uint8_t *dst, const uint8_t *src, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i += LINE) {
        __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)(src + i));
        __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)(src + i + 32));
        _mm256_stream_si256((__m256i *)(void *)(dst + i), low);
        _mm256_stream_si256((__m256i *)(void *)(dst + i + 32), high);
    }
}

static void
stream_lines(uint8_t *dst, const uint8_t *src, size_t nbytes)
{
    if ((dd_cpu_features() & DD_CPU_AVX2) != 0) {
        stream_lines_avx2(dst, src, nbytes);
    } else {
        stream_lines_sse2(dst, src, nbytes);
    }
    _mm_sfence(); /* order the streaming stores before all later stores */
}

#else

void
dd_copy(void *dst, const void *src, size_t nbytes)
{
    if (nbytes > 0) {
        memcpy(dst, src, nbytes);
    }
}

#if defined(__aarch64__)

static void
stream_lines(uint8_t *dst, const uint8_t *src, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i += LINE) {
        __asm__ volatile("ldp q0, q1, [%1]\n\t"
                         "ldp q2, q3, [%1, #32]\n\t"
                         "stnp q0, q1, [%0]\n\t"
                         "stnp q2, q3, [%0, #32]"
                         :
                         : "r"(dst + i), "r"(src + i)
                         : "v0", "v1", "v2", "v3", "memory");
    }
}

#else

static void
stream_lines(uint8_t *dst, const uint8_t *src, size_t nbytes)
{
    dd_copy(dst, src, nbytes);
}

#endif
#endif

void
dd_copy_streaming(void *dst, const void *src, size_t nbytes)
{
    uint8_t *to = dst;
    const uint8_t *from = src;
    size_t head = -(uintptr_t)to % LINE;
    if (nbytes < head + LINE) {
        dd_copy(dst, src, nbytes);
        return;
    }
    size_t nfull = (nbytes - head) / LINE * LINE;
    dd_copy(to, from, head);
    stream_lines(to + head, from + head, nfull);
    dd_copy(to + head + nfull, from + head + nfull, nbytes - head - nfull);
}
