/* Reductions with AVX2 and F16C. */
#if defined(__x86_64__)

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kernels/reduce_internal.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,f16c")
#endif

#define VECTOR_NBYTES 32
#define VECTOR_REST dd_kernels_scalar
#define VECTOR_LOAD_CODES(at, nbits) load_##nbits(at)
#define VECTOR_STORE_CODES(at, nbits, x) store_##nbits(at, (__m256i)(x))
#define VECTOR_LOAD_FLOAT16(at) _mm256_cvtph_ps(_mm_loadu_si128(at))
#define VECTOR_STORE_FLOAT16(at, x) \
    _mm_storeu_si128(at, _mm256_cvtps_ph((__m256)(x), _MM_FROUND_TO_NEAREST_INT))

DD_KERNEL_INLINE __m256i
load_16(const void *at)
{
    return _mm256_cvtepu16_epi32(_mm_loadu_si128(at));
}

DD_KERNEL_INLINE __m256i
load_8(const void *at)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(at));
}

/* The pack instructions work on each 128-bit half separately, so the halves must be joined. */
DD_KERNEL_INLINE void
store_16(void *at, __m256i words)
{
    __m256i packed = _mm256_packus_epi32(words, words);
    _mm_storeu_si128(at, _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
}

DD_KERNEL_INLINE void
store_8(void *at, __m256i words)
{
    __m256i halves = _mm256_packus_epi32(words, words);
    __m256i packed = _mm256_packus_epi16(halves, halves);
    __m128i low = _mm256_castsi256_si128(packed);
    __m128i high = _mm256_extracti128_si256(packed, 1);
    _mm_storel_epi64(at, _mm_unpacklo_epi32(low, high));
}

#include "kernels/reduce_vector_internal.h"

#define ENTRY(T, op, form) [DD_DTYPE_##T][DD_REDOP_##op][DD_FORM_##form] = kernel_##T##_##op##_##form,
dd_kernel_table dd_kernels_avx2 = {DD_VECTOR_KERNEL_LIST(ENTRY)};

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
