/* Reductions with the vector extensions of gcc and clang. The file of an instruction set enables
 * the set, defines the macros below, includes this header, and puts the kernels into a table. Plain
 * C is one of the sets: its vectors have one element. */
#ifndef DD_KERNELS_REDUCE_VECTOR_INTERNAL_H
#define DD_KERNELS_REDUCE_VECTOR_INTERNAL_H

/* Macros that the including file must define:
 *
 *     VECTOR_NBYTES      size of a register in bytes; if not defined, a vector has one element
 *     VECTOR_REST        table of the kernels for fewer elements than a vector
 *
 * and, if the set has instructions for them:
 *
 *     VECTOR_LOAD_CODES(address, nbits), VECTOR_STORE_CODES(address, nbits, x)   see load_codes_16
 *     VECTOR_LOAD_FLOAT16(address), VECTOR_STORE_FLOAT16(address, x)   to and from float32 */
#ifdef VECTOR_NBYTES
#define VECTOR_NBYTES_FOR(size) VECTOR_NBYTES /* size in bytes of a vector of such elements */
#define VECTOR_IS_ONE false
#else
#define VECTOR_NBYTES_FOR(size) (size)
#define VECTOR_IS_ONE true
#define VECTOR_REST dd_kernels_scalar /* never used, because a vector has one element */
#endif

#include "kernels/reduce_internal.h"

#include <stdint.h>
#include <string.h>

/* Disable fused multiply-adds: they round once, not twice, so instruction sets would differ. */
#if defined(__clang__)
#pragma clang fp contract(off)
#else
#pragma GCC optimize("fp-contract=off")
#endif

#define INLINE DD_KERNEL_INLINE
#define VECTOR_OF(type, nbytes) type __attribute__((vector_size(nbytes)))
#define UNALIGNED __attribute__((aligned(1), may_alias))
#define SELECT(mask, a, b) (((a) & (mask)) | ((b) & ~(mask)))

enum {
#define ELEMENT_SIZE(T, text, size, kind) SIZE_##T = size,
    DD_DTYPE_LIST(ELEMENT_SIZE)
#undef ELEMENT_SIZE
};

/* value_T is a vector of unsigned words; lanes_T is the same vector as elements of type T. */
#define DEFINE_LOAD_STORE(T, type, word)                            \
    typedef VECTOR_OF(word, VECTOR_NBYTES_FOR(SIZE_##T)) value_##T; \
    typedef VECTOR_OF(type, VECTOR_NBYTES_FOR(SIZE_##T)) lanes_##T; \
    typedef value_##T UNALIGNED memory_##T;                         \
    INLINE value_##T load_##T(const void *at)                       \
    {                                                               \
        return *(const memory_##T *)at;                             \
    }                                                               \
    INLINE void store_##T(void *at, value_##T x)                    \
    {                                                               \
        *(memory_##T *)at = x;                                      \
    }

/* ---- integers and truth values */

#define DEFINE_INTEGER(X, T, type, word)                                                       \
    DEFINE_LOAD_STORE(T, type, word)                                                           \
    INLINE value_##T scale_##T(const dd_fold *fold, dd_redop op, value_##T x)                  \
    {                                                                                          \
        return op == DD_REDOP_PREMUL_SUM ? x * (word)fold->integer_factor : x;                 \
    }                                                                                          \
    INLINE value_##T combine_##T(dd_redop op, value_##T a, value_##T b)                        \
    {                                                                                          \
        return op == DD_REDOP_PRODUCT ? a * b                                                  \
               : op == DD_REDOP_MIN   ? SELECT((value_##T)((lanes_##T)a < (lanes_##T)b), a, b) \
               : op == DD_REDOP_MAX   ? SELECT((value_##T)((lanes_##T)a > (lanes_##T)b), a, b) \
               : op == DD_REDOP_BAND  ? (a & b)                                                \
               : op == DD_REDOP_BOR   ? (a | b)                                                \
               : op == DD_REDOP_BXOR  ? (a ^ b)                                                \
                                      : a + b;                                                  \
    }                                                                                          \
    INLINE value_##T finish_##T(const dd_fold *fold, dd_redop op, value_##T x)                 \
    {                                                                                          \
        (void)fold;                                                                            \
        (void)op;                                                                              \
        return x;                                                                              \
    }

DD_INTEGER_LIST(DEFINE_INTEGER, )

DEFINE_LOAD_STORE(BOOL, uint8_t, uint8_t)

INLINE value_BOOL
scale_BOOL(const dd_fold *fold, dd_redop op, value_BOOL x)
{
    (void)fold;
    (void)op;
    return (value_BOOL)(x != 0) & 1;
}

INLINE value_BOOL
combine_BOOL(dd_redop op, value_BOOL a, value_BOOL b)
{
    bool is_and = op == DD_REDOP_PRODUCT || op == DD_REDOP_MIN || op == DD_REDOP_BAND;
    return is_and ? a & b : op == DD_REDOP_BXOR ? a ^ b : a | b;
}

#define finish_BOOL finish_UINT8

/* ---- floats */

/* lesser_T: equal values are or'ed, which gives -0 if one is -0; a NaN and a number are also or'ed,
 * which gives a NaN. greater_T: equal values are and'ed, which gives -0 if both are -0; with a NaN,
 * all bits are set, which is a NaN. finish_T replaces every NaN by the canonical one. */
#define DEFINE_FLOAT(T, type, word, nan_bits)                                                        \
    DEFINE_LOAD_STORE(T, type, word)                                                                 \
    INLINE value_##T scale_##T(const dd_fold *fold, dd_redop op, value_##T x)                        \
    {                                                                                                \
        return op == DD_REDOP_PREMUL_SUM ? (value_##T)((lanes_##T)x * (type)fold->factor) : x;       \
    }                                                                                                \
    INLINE value_##T lesser_##T(value_##T a, value_##T b)                                            \
    {                                                                                                \
        value_##T is_greater = (value_##T)((lanes_##T)a > (lanes_##T)b);                             \
        value_##T is_less = (value_##T)((lanes_##T)a < (lanes_##T)b);                                \
        return (a & ~is_greater) | (b & ~is_less);                                                   \
    }                                                                                                \
    INLINE value_##T greater_##T(value_##T a, value_##T b)                                           \
    {                                                                                                \
        value_##T is_at_least = (value_##T)((lanes_##T)a >= (lanes_##T)b);                           \
        value_##T is_at_most = (value_##T)((lanes_##T)a <= (lanes_##T)b);                            \
        return (a | ~is_at_least) & (b | ~is_at_most);                                               \
    }                                                                                                \
    INLINE value_##T combine_##T(dd_redop op, value_##T a, value_##T b)                              \
    {                                                                                                \
        return op == DD_REDOP_PRODUCT ? (value_##T)((lanes_##T)a * (lanes_##T)b)                     \
               : op == DD_REDOP_MIN   ? lesser_##T(a, b)                                             \
               : op == DD_REDOP_MAX   ? greater_##T(a, b)                                            \
                                      : (value_##T)((lanes_##T)a + (lanes_##T)b);                      \
    }                                                                                                \
    INLINE value_##T finish_##T(const dd_fold *fold, dd_redop op, value_##T x)                       \
    {                                                                                                \
        value_##T result = op == DD_REDOP_AVG ? (value_##T)((lanes_##T)x / (type)fold->divisor) : x; \
        value_##T is_number = (value_##T)((lanes_##T)result == (lanes_##T)result);                   \
        return SELECT(is_number, result, (value_##T){0} + (nan_bits));                               \
    }

DEFINE_FLOAT(FLOAT32, float, uint32_t, 0x7fc00000)
DEFINE_FLOAT(FLOAT64, double, uint64_t, 0x7ff8000000000000)
/* Complex numbers are added as pairs of floats: real and imaginary parts separately. */
DEFINE_FLOAT(COMPLEX64, float, uint32_t, 0x7fc00000)
DEFINE_FLOAT(COMPLEX128, double, uint64_t, 0x7ff8000000000000)

/* ---- floats of 16 and 8 bits, whose values are vectors of float32. Their magnitudes,
 * as integers, are below 2^31, so they are compared as signed integers, for which
 * processors have instructions. */

typedef value_FLOAT32 vec;
typedef lanes_FLOAT32 float_vec;
typedef VECTOR_OF(int32_t, VECTOR_NBYTES_FOR(4)) signed_vec;

/* Load or store as many codes (numbers of 16 or 8 bits) as a vector has float32 elements. In the
 * vector, each code occupies the lower bits of a 32-bit word. */
#ifdef VECTOR_LOAD_CODES
#define DEFINE_CODES(nbits, type)                    \
    INLINE vec load_codes_##nbits(const void *at)    \
    {                                                \
        return (vec)VECTOR_LOAD_CODES(at, nbits);    \
    }                                                \
    INLINE void store_codes_##nbits(void *at, vec x) \
    {                                                \
        VECTOR_STORE_CODES(at, nbits, x);            \
    }
#else
#define DEFINE_CODES(nbits, type)                                                \
    typedef VECTOR_OF(type, VECTOR_NBYTES_FOR(4) * nbits / 32) codes_##nbits;    \
    typedef codes_##nbits UNALIGNED memory_codes_##nbits;                        \
    INLINE vec load_codes_##nbits(const void *at)                                \
    {                                                                            \
        return __builtin_convertvector(*(const memory_codes_##nbits *)at, vec);  \
    }                                                                            \
    INLINE void store_codes_##nbits(void *at, vec x)                             \
    {                                                                            \
        *(memory_codes_##nbits *)at = __builtin_convertvector(x, codes_##nbits); \
    }
#endif
DEFINE_CODES(16, uint16_t)
DEFINE_CODES(8, uint8_t)

INLINE vec
is_below(vec magnitude, uint32_t limit)
{
    return (vec)((signed_vec)magnitude < (int32_t)limit);
}

/* Convert codes to float32: shift sign, exponent and mantissa into place. Codes from `special` on
 * are infinity and NaN. Subnormals are converted as if normal, minus the implicit leading 1. */
INLINE vec
widen(vec code, int exponent_bits, int mantissa_bits, uint32_t special)
{
    const uint32_t bias = (1U << (exponent_bits - 1)) - 1;
    const uint32_t least_normal = (128 - bias) << 23;
    vec sign = (code >> (exponent_bits + mantissa_bits)) << 31;
    vec magnitude = code & ((1U << (exponent_bits + mantissa_bits)) - 1);
    vec shifted = magnitude << (23 - mantissa_bits);
    vec normal = shifted + ((127 - bias) << 23);
    vec with_leading_one = shifted + least_normal;
    vec leading_one = (vec){0} + least_normal;
    vec subnormal = (vec)((float_vec)with_leading_one - (float_vec)leading_one);
    vec x = SELECT(is_below(magnitude, 1U << mantissa_bits), subnormal, normal);
    return x | sign | (~is_below(magnitude, special) & 0x7f800000);
}

/* Convert float32 to codes: round to nearest, ties to even. Values beyond the largest finite number
 * become `special`: infinity or, if the type has none, NaN. Adding `ruler` rounds subnormals: its
 * last bit has the value of the smallest one. NaN must have finish_FLOAT32's form. */
INLINE vec
narrow(vec x, int exponent_bits, int mantissa_bits, uint32_t special)
{
    const uint32_t bias = (1U << (exponent_bits - 1)) - 1;
    const int shift = 23 - mantissa_bits;
    vec sign = (x >> 31) << (exponent_bits + mantissa_bits);
    vec magnitude = x & 0x7fffffff;
    vec ruler = (vec){0} + ((127 + 24 - bias - (uint32_t)mantissa_bits) << 23);
    vec subnormal = (vec)((float_vec)magnitude + (float_vec)ruler) - ruler;
    vec rounded = magnitude + ((1U << (shift - 1)) - 1) + ((magnitude >> shift) & 1);
    vec normal = (rounded - ((127 - bias) << 23)) >> shift;
    vec code = SELECT(is_below(magnitude, (128 - bias) << 23), subnormal, normal);
    code = SELECT(is_below(code, special), code, (vec){0} + special);
    return code | sign | (~is_below(magnitude, 0x7f800001) & (1U << (mantissa_bits - 1)));
}

#define DEFINE_SMALL_FLOAT(T, exponent_bits, mantissa_bits, special, nbits)          \
    INLINE vec load_##T(const void *at)                                              \
    {                                                                                \
        return widen(load_codes_##nbits(at), exponent_bits, mantissa_bits, special); \
    }                                                                                \
    INLINE void store_##T(void *at, vec x)                                           \
    {                                                                                \
        store_codes_##nbits(at, narrow(x, exponent_bits, mantissa_bits, special));   \
    }
DD_SMALL_FLOAT_LIST(DEFINE_SMALL_FLOAT)

/* If the instruction set converts float16 itself, these macros replace the functions above. */
#ifdef VECTOR_LOAD_FLOAT16
#define load_FLOAT16(at) ((vec)VECTOR_LOAD_FLOAT16(at))
#define store_FLOAT16(at, x) VECTOR_STORE_FLOAT16(at, x)
#endif

/* A bfloat16 is the upper half of a float32. */
INLINE vec
load_BFLOAT16(const void *at)
{
    return load_codes_16(at) << 16;
}

/* Round a float32 to its upper half. A NaN must come from finish_FLOAT32: it then stays a NaN. */
INLINE vec
round_to_upper_half(vec x)
{
    return x + 0x7fff + ((x >> 16) & 1);
}

INLINE void
store_BFLOAT16(void *at, vec x)
{
    store_codes_16(at, round_to_upper_half(x) >> 16);
}

/* A vector of bfloat16 in memory serves as two vectors of float32: for the odd elements, the lower
 * half of each word is cleared; for the even elements, the word is shifted by half. If the results
 * are also bfloat16, the elements need not be reordered. */
#ifdef VECTOR_NBYTES
typedef struct value_BFLOAT16_PAIR {
    vec even, odd;
} value_BFLOAT16_PAIR;

INLINE value_BFLOAT16_PAIR
load_BFLOAT16_PAIR(const void *at)
{
    vec x = load_FLOAT32(at);
    return (value_BFLOAT16_PAIR){x << 16, x & 0xffff0000};
}

INLINE void
store_BFLOAT16_PAIR(void *at, value_BFLOAT16_PAIR x)
{
    store_FLOAT32(at, (round_to_upper_half(x.even) >> 16) | (round_to_upper_half(x.odd) & 0xffff0000));
}

INLINE value_BFLOAT16_PAIR
scale_BFLOAT16_PAIR(const dd_fold *fold, dd_redop op, value_BFLOAT16_PAIR x)
{
    return (value_BFLOAT16_PAIR){scale_FLOAT32(fold, op, x.even), scale_FLOAT32(fold, op, x.odd)};
}

INLINE value_BFLOAT16_PAIR
combine_BFLOAT16_PAIR(dd_redop op, value_BFLOAT16_PAIR a, value_BFLOAT16_PAIR b)
{
    return (value_BFLOAT16_PAIR){combine_FLOAT32(op, a.even, b.even), combine_FLOAT32(op, a.odd, b.odd)};
}

INLINE value_BFLOAT16_PAIR
finish_BFLOAT16_PAIR(const dd_fold *fold, dd_redop op, value_BFLOAT16_PAIR x)
{
    return (value_BFLOAT16_PAIR){finish_FLOAT32(fold, op, x.even), finish_FLOAT32(fold, op, x.odd)};
}
#endif

/* ---- whole arrays */

/* Types whose loops are unrolled. Floats of 8 bits would gain nothing: conversion dominates. */
enum {
#define IS_UNROLLED(T, text, size, kind) \
    IS_UNROLLED_##T = !VECTOR_IS_ONE && (size > 1 || DD_KIND_##kind != DD_KIND_FLOAT),
    DD_DTYPE_LIST(IS_UNROLLED)
#undef IS_UNROLLED
};

/* take_T_form: load a vector of source k at element i. give_T_form: store a vector of results.
 * fold_T_form: reduce all whole vectors from `begin` on; return the first element that is left.
 *
 * Four vectors are reduced at a time, so that operations overlap, then one at a time. All sources
 * of a position are read before the output is written, because it may be one of them. */
#define DEFINE_FORM(T, form, acc, from, to)                                                    \
    INLINE value_##acc take_##T##_##form(const dd_fold *fold, dd_redop op, size_t k, size_t i) \
    {                                                                                          \
        const void *at = (const char *)fold->srcs[k] + i * SIZE_##from;                        \
        return scale_##acc(fold, op, load_##from(at));                                         \
    }                                                                                          \
    INLINE void give_##T##_##form(const dd_fold *fold, dd_redop op, size_t i, value_##acc x)   \
    {                                                                                          \
        void *at = (char *)fold->out + i * SIZE_##to;                                          \
        store_##to(at, finish_##acc(fold, op, x));                                             \
    }                                                                                          \
    INLINE size_t fold_##T##_##form(const dd_fold *fold, dd_redop op, size_t begin)            \
    {                                                                                          \
        const size_t lanes = VECTOR_NBYTES_FOR(SIZE_##acc) / SIZE_##acc;                       \
        size_t i = begin;                                                                      \
        for (; IS_UNROLLED_##T && fold->count - i >= 4 * lanes; i += 4 * lanes) {              \
            value_##acc x0 = take_##T##_##form(fold, op, 0, i);                                \
            value_##acc x1 = take_##T##_##form(fold, op, 0, i + lanes);                        \
            value_##acc x2 = take_##T##_##form(fold, op, 0, i + 2 * lanes);                    \
            value_##acc x3 = take_##T##_##form(fold, op, 0, i + 3 * lanes);                    \
            for (size_t k = 1; k < fold->nsrcs; k++) {                                         \
                x0 = combine_##acc(op, x0, take_##T##_##form(fold, op, k, i));                 \
                x1 = combine_##acc(op, x1, take_##T##_##form(fold, op, k, i + lanes));         \
                x2 = combine_##acc(op, x2, take_##T##_##form(fold, op, k, i + 2 * lanes));     \
                x3 = combine_##acc(op, x3, take_##T##_##form(fold, op, k, i + 3 * lanes));     \
            }                                                                                  \
            give_##T##_##form(fold, op, i, x0);                                                \
            give_##T##_##form(fold, op, i + lanes, x1);                                        \
            give_##T##_##form(fold, op, i + 2 * lanes, x2);                                    \
            give_##T##_##form(fold, op, i + 3 * lanes, x3);                                    \
        }                                                                                      \
        for (; fold->count - i >= lanes; i += lanes) {                                         \
            value_##acc x = take_##T##_##form(fold, op, 0, i);                                 \
            for (size_t k = 1; k < fold->nsrcs; k++) {                                         \
                x = combine_##acc(op, x, take_##T##_##form(fold, op, k, i));                   \
            }                                                                                  \
            give_##T##_##form(fold, op, i, x);                                                 \
        }                                                                                      \
        return i;                                                                              \
    }
DD_FORM_LIST(DEFINE_FORM)
#ifdef VECTOR_NBYTES
enum { SIZE_BFLOAT16_PAIR = SIZE_BFLOAT16 }; /* half a pair's size: gives twice as many lanes */
DEFINE_FORM(BFLOAT16, ELEMENTS, BFLOAT16_PAIR, BFLOAT16_PAIR, BFLOAT16_PAIR)
#else
DEFINE_FORM(BFLOAT16, ELEMENTS, FLOAT32, BFLOAT16, BFLOAT16)
#endif

/* Local copies of the arguments cannot overlap the output, so the compiler keeps them in registers.
 * Two sources, the most common case, get a separate loop, which has no inner loop. */
#define DEFINE_KERNEL(T, op, form)                                               \
    static void kernel_##T##_##op##_##form(const dd_fold *fold, size_t begin)    \
    {                                                                            \
        dd_fold local = *fold;                                                   \
        size_t end;                                                              \
        if (IS_UNROLLED_##T && local.nsrcs == 2) {                               \
            const void *const pair[2] = {local.srcs[0], local.srcs[1]};          \
            local.srcs = pair;                                                   \
            local.nsrcs = 2;                                                     \
            end = fold_##T##_##form(&local, DD_REDOP_##op, begin);               \
        } else {                                                                 \
            end = fold_##T##_##form(&local, DD_REDOP_##op, begin);               \
        }                                                                        \
        if (!VECTOR_IS_ONE && end < fold->count) {                               \
            VECTOR_REST[DD_DTYPE_##T][DD_REDOP_##op][DD_FORM_##form](fold, end); \
        }                                                                        \
    }
DD_VECTOR_KERNEL_LIST(DEFINE_KERNEL)

#endif
