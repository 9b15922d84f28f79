/* Reductions with the subsets F, BW, DQ and VL of AVX-512. */
#if defined(__x86_64__)

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kernels/reduce_internal.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))), \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl")
#endif

#define VECTOR_NBYTES 64
#define VECTOR_REST dd_kernels_avx2
#define VECTOR_LOAD_CODES(at, nbits) load_##nbits(at)
#define VECTOR_STORE_CODES(at, nbits, x) store_##nbits(at, (__m512i)(x))
#define VECTOR_LOAD_FLOAT16(at) _mm512_cvtph_ps(_mm256_loadu_si256(at))
/* The mask selects all lanes. The intrinsic without a mask is a macro at -O0, where gcc warns. */
#define VECTOR_STORE_FLOAT16(at, x) \
    _mm256_storeu_si256(at, _mm512_maskz_cvtps_ph(0xffff, (__m512)(x), _MM_FROUND_TO_NEAREST_INT))

DD_KERNEL_INLINE __m512i
load_16(const void *at)
{
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(at));
}

DD_KERNEL_INLINE __m512i
load_8(const void *at)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(at));
}

DD_KERNEL_INLINE void
store_16(void *at, __m512i words)
{
    _mm256_storeu_si256(at, _mm512_cvtepi32_epi16(words));
}

DD_KERNEL_INLINE void
store_8(void *at, __m512i words)
{
    _mm_storeu_si128(at, _mm512_cvtepi32_epi8(words));
}

#include "kernels/reduce_vector_internal.h"

#define ENTRY(T, op, form) [DD_DTYPE_##T][DD_REDOP_##op][DD_FORM_##form] = kernel_##T##_##op##_##form,
dd_kernel_table dd_kernels_avx512 = {DD_VECTOR_KERNEL_LIST(ENTRY)};

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
