/* Reductions in plain C, one element at a time: what every other instruction set has to equal bit for bit. */
#include "kernels/reduce_internal.h"

#include <math.h>
#include <string.h>

/* A product and a sum that are fused into one instruction round once instead of twice. */
#if defined(__clang__)
#pragma clang fp contract(off)
#else
#pragma GCC optimize("fp-contract=off")
#endif

#define INLINE DD_KERNEL_INLINE

/* ---- memory and values */

#define DEFINE_LOAD_STORE(T, type, value)                                         \
    typedef value value_##T;                                                      \
    INLINE value_##T load_##T(const void *src, size_t i)                          \
    {                                                                             \
        type element;                                                             \
        memcpy(&element, (const char *)src + i * sizeof element, sizeof element); \
        return (value_##T)element;                                                \
    }                                                                             \
    INLINE void store_##T(void *out, size_t i, value_##T x)                       \
    {                                                                             \
        type element = (type)x;                                                   \
        memcpy((char *)out + i * sizeof element, &element, sizeof element);       \
    }

static inline uint32_t
bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float
float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

INLINE float
widen(uint32_t code, int exponent_bits, int mantissa_bits, uint32_t special)
{
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const float smallest = float_of((uint32_t)(127 + 1 - bias - mantissa_bits) << 23);
    uint32_t sign = (code >> (exponent_bits + mantissa_bits)) << 31;
    uint32_t magnitude = code & ((1U << (exponent_bits + mantissa_bits)) - 1);
    uint32_t shifted = magnitude << (23 - mantissa_bits);
    if (magnitude >= special) {
        return float_of(sign | shifted | 0x7f800000);
    }
    if (magnitude >> mantissa_bits == 0) {
        return float_of(sign | bits_of((float)magnitude * smallest));
    }
    return float_of(sign | (shifted + ((uint32_t)(127 - bias) << 23)));
}

/* To nearest, ties to even. Past the largest finite number comes `special`: infinity or, for want of one,
 * NaN. */
INLINE uint32_t
narrow(float x, int exponent_bits, int mantissa_bits, uint32_t special)
{
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int shift = 23 - mantissa_bits;
    const uint32_t least_normal = (uint32_t)(128 - bias) << 23;
    uint32_t sign = (bits_of(x) >> 31) << (exponent_bits + mantissa_bits);
    uint32_t magnitude = bits_of(x) & 0x7fffffff;
    uint32_t code;
    if (magnitude > 0x7f800000) {
        return sign | special | 1U << (mantissa_bits - 1);
    }
    if (magnitude < least_normal) {
        /* The last bit of this sum is worth the smallest subnormal: the addition rounds. */
        const float ruler = float_of((uint32_t)(127 + 24 - bias - mantissa_bits) << 23);
        code = bits_of(float_of(magnitude) + ruler) - bits_of(ruler);
    } else {
        uint32_t is_odd = (magnitude >> shift) & 1;
        uint32_t rounded = magnitude + ((1U << (shift - 1)) - 1) + is_odd;
        code = (rounded - ((uint32_t)(127 - bias) << 23)) >> shift;
    }
    return sign | (code < special ? code : special);
}

#define DEFINE_SMALL_FLOAT(T, exponent_bits, mantissa_bits, special, nbits)                       \
    INLINE float load_##T(const void *src, size_t i)                                              \
    {                                                                                             \
        uint##nbits##_t code;                                                                     \
        memcpy(&code, (const char *)src + i * sizeof code, sizeof code);                          \
        return widen(code, exponent_bits, mantissa_bits, special);                                \
    }                                                                                             \
    INLINE void store_##T(void *out, size_t i, float x)                                           \
    {                                                                                             \
        uint##nbits##_t code = (uint##nbits##_t)narrow(x, exponent_bits, mantissa_bits, special); \
        memcpy((char *)out + i * sizeof code, &code, sizeof code);                                \
    }
DD_SMALL_FLOAT_LIST(DEFINE_SMALL_FLOAT)

/* The upper half of a float32. */
INLINE float
load_BFLOAT16(const void *src, size_t i)
{
    uint16_t code;
    memcpy(&code, (const char *)src + i * sizeof code, sizeof code);
    return float_of((uint32_t)code << 16);
}

/* A NaN is the one of finish_FLOAT32, which this rounding leaves a NaN. */
INLINE void
store_BFLOAT16(void *out, size_t i, float x)
{
    uint32_t bits = bits_of(x);
    uint16_t code = (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    memcpy((char *)out + i * sizeof code, &code, sizeof code);
}

/* ---- integers and truth values */

/* In 64 bits, of which the lower ones are right whatever is above. */
#define DEFINE_INTEGER(X, T, type, wrapping, value)                                             \
    DEFINE_LOAD_STORE(T, type, value)                                                           \
    INLINE value_##T scale_##T(const dd_fold *fold, dd_redop op, value_##T x)                   \
    {                                                                                           \
        return op == DD_REDOP_PREMUL_SUM ? (value_##T)((uint64_t)x * fold->integer_factor) : x; \
    }                                                                                           \
    INLINE value_##T combine_##T(dd_redop op, value_##T a, value_##T b)                         \
    {                                                                                           \
        return op == DD_REDOP_PRODUCT ? (value_##T)((uint64_t)a * (uint64_t)b)                  \
               : op == DD_REDOP_MIN   ? (b < a ? b : a)                                         \
               : op == DD_REDOP_MAX   ? (b > a ? b : a)                                         \
               : op == DD_REDOP_BAND  ? (a & b)                                                 \
               : op == DD_REDOP_BOR   ? (a | b)                                                 \
               : op == DD_REDOP_BXOR  ? (a ^ b)                                                 \
                                      : (value_##T)((uint64_t)a + (uint64_t)b);                  \
    }                                                                                           \
    INLINE value_##T finish_##T(const dd_fold *fold, dd_redop op, value_##T x)                  \
    {                                                                                           \
        return op == DD_REDOP_AVG ? (value_##T)(type)x / (value_##T)fold->divisor : x;          \
    }

DD_INTEGER_LIST(DEFINE_INTEGER, )

DEFINE_LOAD_STORE(BOOL, uint8_t, uint8_t)

INLINE uint8_t
scale_BOOL(const dd_fold *fold, dd_redop op, uint8_t x)
{
    (void)fold;
    (void)op;
    return x != 0;
}

INLINE uint8_t
combine_BOOL(dd_redop op, uint8_t a, uint8_t b)
{
    bool is_and = op == DD_REDOP_PRODUCT || op == DD_REDOP_MIN || op == DD_REDOP_BAND;
    return is_and ? a & b : op == DD_REDOP_BXOR ? a ^ b : a | b;
}

INLINE uint8_t
finish_BOOL(const dd_fold *fold, dd_redop op, uint8_t x)
{
    (void)fold;
    (void)op;
    return x;
}

/* ---- floats */

#define DEFINE_FLOAT(T, type)                                           \
    DEFINE_LOAD_STORE(T, type, type)                                    \
    INLINE type scale_##T(const dd_fold *fold, dd_redop op, type x)     \
    {                                                                   \
        return op == DD_REDOP_PREMUL_SUM ? x * (type)fold->factor : x;  \
    }                                                                   \
    INLINE type lesser_##T(type a, type b)                              \
    {                                                                   \
        if (isnan(a) || isnan(b)) {                                     \
            return (type)NAN;                                           \
        }                                                               \
        return a < b || (a == b && signbit(a)) ? a : b;                 \
    }                                                                   \
    INLINE type combine_##T(dd_redop op, type a, type b)                \
    {                                                                   \
        return op == DD_REDOP_PRODUCT ? a * b                           \
               : op == DD_REDOP_MIN   ? lesser_##T(a, b)                \
               : op == DD_REDOP_MAX   ? -lesser_##T(-a, -b)             \
                                      : a + b;                            \
    }                                                                   \
    INLINE type finish_##T(const dd_fold *fold, dd_redop op, type x)    \
    {                                                                   \
        type result = op == DD_REDOP_AVG ? x / (type)fold->divisor : x; \
        return isnan(result) ? (type)NAN : result;                      \
    }

DEFINE_FLOAT(FLOAT32, float)
DEFINE_FLOAT(FLOAT64, double)

#define DEFINE_COMPLEX(T, part)                                                           \
    typedef struct value_##T {                                                            \
        value_##part re;                                                                  \
        value_##part im;                                                                  \
    } value_##T;                                                                          \
    INLINE value_##T load_##T(const void *src, size_t i)                                  \
    {                                                                                     \
        return (value_##T){load_##part(src, 2 * i), load_##part(src, 2 * i + 1)};         \
    }                                                                                     \
    INLINE void store_##T(void *out, size_t i, value_##T x)                               \
    {                                                                                     \
        store_##part(out, 2 * i, x.re);                                                   \
        store_##part(out, 2 * i + 1, x.im);                                               \
    }                                                                                     \
    INLINE value_##T scale_##T(const dd_fold *fold, dd_redop op, value_##T x)             \
    {                                                                                     \
        return (value_##T){scale_##part(fold, op, x.re), scale_##part(fold, op, x.im)};   \
    }                                                                                     \
    INLINE value_##T combine_##T(dd_redop op, value_##T a, value_##T b)                   \
    {                                                                                     \
        if (op == DD_REDOP_PRODUCT) {                                                     \
            return (value_##T){a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};     \
        }                                                                                 \
        return (value_##T){a.re + b.re, a.im + b.im};                                     \
    }                                                                                     \
    INLINE value_##T finish_##T(const dd_fold *fold, dd_redop op, value_##T x)            \
    {                                                                                     \
        return (value_##T){finish_##part(fold, op, x.re), finish_##part(fold, op, x.im)}; \
    }

DEFINE_COMPLEX(COMPLEX64, FLOAT32)
DEFINE_COMPLEX(COMPLEX128, FLOAT64)

/* ---- whole arrays */

#define DEFINE_FORM(T, form, acc, from, to)                                                     \
    INLINE void fold_##T##_##form(const dd_fold *fold, dd_redop op, size_t begin)               \
    {                                                                                           \
        for (size_t i = begin; i < fold->count; i++) {                                          \
            value_##acc x = scale_##acc(fold, op, load_##from(fold->srcs[0], i));               \
            for (size_t k = 1; k < fold->nsrcs; k++) {                                          \
                x = combine_##acc(op, x, scale_##acc(fold, op, load_##from(fold->srcs[k], i))); \
            }                                                                                   \
            store_##to(fold->out, i, finish_##acc(fold, op, x));                                \
        }                                                                                       \
    }
DD_FORM_LIST(DEFINE_FORM)
DEFINE_FORM(BFLOAT16, ELEMENTS, FLOAT32, BFLOAT16, BFLOAT16)

#define DEFINE_KERNEL(T, op, form)                                            \
    static void kernel_##T##_##op##_##form(const dd_fold *fold, size_t begin) \
    {                                                                         \
        const dd_fold local = *fold;                                          \
        fold_##T##_##form(&local, DD_REDOP_##op, begin);                      \
    }
DD_VECTOR_KERNEL_LIST(DEFINE_KERNEL)
DD_SCALAR_KERNEL_LIST(DEFINE_KERNEL)

#define ENTRY(T, op, form) [DD_DTYPE_##T][DD_REDOP_##op][DD_FORM_##form] = kernel_##T##_##op##_##form,
dd_kernel_table dd_kernels_scalar = {DD_VECTOR_KERNEL_LIST(ENTRY) DD_SCALAR_KERNEL_LIST(ENTRY)};
