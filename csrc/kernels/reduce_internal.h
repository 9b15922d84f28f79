/* Declarations that the instruction sets share: the list of kernels, and the type of a set's table.
 *
 * Each instruction set defines these functions for each type T: load_T and store_T (between memory
 * and values), scale_T (applies PREMUL_SUM's factor), combine_T (reduces two values), finish_T
 * (applies AVG's divisor and makes NaNs canonical). A form applies these functions to whole arrays;
 * a kernel is a form for one operation.
 *
 * reduce_vector_internal.h has the code of all sets. Each set includes it, with vectors as long as
 * the set's registers, and leaves the elements after the last whole vector to a narrower set. The
 * narrowest set is reduce_scalar.c, whose vectors have one element. */
#ifndef DD_KERNELS_REDUCE_INTERNAL_H
#define DD_KERNELS_REDUCE_INTERNAL_H

#include "core/dtype.h"
#include "kernels/reduce.h"

#include <stddef.h>
#include <stdint.h>

/* Inline the function at all optimisation levels, so that the compiler evaluates constant arguments
 * and the code does not branch on them at run time. */
#define DD_KERNEL_INLINE static inline __attribute__((always_inline))

/* Types that a kernel reads and writes. Types without a separate accumulator have only ELEMENTS. */
typedef enum dd_kernel_form {
    DD_FORM_ELEMENTS, /* reads elements, writes elements */
    DD_FORM_WIDEN,    /* reads elements, writes accumulators */
    DD_FORM_ROUND,    /* reads accumulators, writes elements */
    DD_FORM_PARTIALS, /* reads and writes accumulators: only AVG of integers */
} dd_kernel_form;

#define DD_FORM_COUNT ((int)DD_FORM_PARTIALS + 1)

/* The arguments of dd_reduce as kernels use them, and the factor as an integer. */
typedef struct dd_fold {
    const void *const *srcs;
    size_t nsrcs;
    void *out;
    size_t count;
    double factor;
    uint64_t integer_factor; /* `factor` as an integer, modulo 2^64 */
    int divisor;
} dd_fold;

/* Reduce the elements from index `begin` to the end of the arrays. */
typedef void dd_kernel(const dd_fold *fold, size_t begin);

/* Kernels of an instruction set, by dd_dtype, dd_redop and dd_kernel_form; NULL if none. */
typedef dd_kernel *const dd_kernel_table[DD_DTYPE_COUNT][DD_REDOP_COUNT][DD_FORM_COUNT];

extern dd_kernel_table dd_kernels_scalar;
extern dd_kernel_table dd_kernels_avx2;
extern dd_kernel_table dd_kernels_avx512;
extern dd_kernel_table dd_kernels_neon;

dd_kernel dd_kernel_max_of_dates;

/* M(X, T, type, unsigned type of the same size) */
#define DD_INTEGER_LIST(M, X)        \
    M(X, INT8, int8_t, uint8_t)      \
    M(X, UINT8, uint8_t, uint8_t)    \
    M(X, INT16, int16_t, uint16_t)   \
    M(X, UINT16, uint16_t, uint16_t) \
    M(X, INT32, int32_t, uint32_t)   \
    M(X, UINT32, uint32_t, uint32_t) \
    M(X, INT64, int64_t, uint64_t)   \
    M(X, UINT64, uint64_t, uint64_t)

/* X(T, exponent bits, mantissa bits, lowest code that is not a finite number, bits of a code) */
#define DD_SMALL_FLOAT_LIST(X)      \
    X(FLOAT16, 5, 10, 0x7c00, 16)   \
    X(FLOAT8_E4M3FN, 4, 3, 0x7f, 8) \
    X(FLOAT8_E5M2, 5, 2, 0x7c, 8)

/* X(T, form, accumulator, type read, type written). The form ELEMENTS of BFLOAT16 is missing,
 * because the scalar set and the vector sets define it differently. */
#define DD_FORM_LIST(X)                \
    DD_OWN_FORM(X, BOOL)               \
    DD_INTEGER_LIST(DD_OWN_FORM, X)    \
    DD_OWN_FORM(X, FLOAT32)            \
    DD_OWN_FORM(X, FLOAT64)            \
    DD_OWN_FORM(X, COMPLEX64)          \
    DD_OWN_FORM(X, COMPLEX128)         \
    DD_ROUNDED_FORMS(X, FLOAT16)       \
    DD_ACCUMULATOR_FORMS(X, BFLOAT16)  \
    DD_ROUNDED_FORMS(X, FLOAT8_E4M3FN) \
    DD_ROUNDED_FORMS(X, FLOAT8_E5M2)
#define DD_OWN_FORM(X, T, ...) X(T, ELEMENTS, T, T, T)
#define DD_ROUNDED_FORMS(X, T)    \
    X(T, ELEMENTS, FLOAT32, T, T) \
    DD_ACCUMULATOR_FORMS(X, T)
#define DD_ACCUMULATOR_FORMS(X, T)   \
    X(T, WIDEN, FLOAT32, T, FLOAT32) \
    X(T, ROUND, FLOAT32, FLOAT32, T)

/* X(T, op, form): kernels. The first list has the kernels that every instruction set defines; the
 * second list has the kernels that gain little from vectors, which only the scalar set defines. */
#define DD_VECTOR_KERNEL_LIST(X)           \
    DD_TRUTH_KERNELS(X, BOOL)              \
    DD_INTEGER_LIST(DD_INTEGER_KERNELS, X) \
    DD_FLOAT_KERNELS(X, FLOAT32)           \
    DD_FLOAT_KERNELS(X, FLOAT64)           \
    DD_SUM_KERNELS(X, COMPLEX64)           \
    DD_SUM_KERNELS(X, COMPLEX128)          \
    DD_ROUNDED_KERNELS(X, FLOAT16)         \
    DD_ROUNDED_KERNELS(X, BFLOAT16)        \
    DD_ROUNDED_KERNELS(X, FLOAT8_E4M3FN)   \
    DD_ROUNDED_KERNELS(X, FLOAT8_E5M2)
#define DD_SCALAR_KERNEL_LIST(X)      \
    DD_INTEGER_LIST(DD_AVG_KERNEL, X) \
    X(COMPLEX64, PRODUCT, ELEMENTS)   \
    X(COMPLEX128, PRODUCT, ELEMENTS)

#define DD_AVG_KERNEL(X, T, ...) X(T, AVG, ELEMENTS) X(T, AVG, WIDEN) X(T, AVG, PARTIALS) X(T, AVG, ROUND)
#define DD_BIT_KERNELS(X, T) X(T, BAND, ELEMENTS) X(T, BOR, ELEMENTS) X(T, BXOR, ELEMENTS)
#define DD_PLAIN_KERNELS(X, T, form) X(T, SUM, form) X(T, PRODUCT, form) X(T, MIN, form) X(T, MAX, form)
#define DD_TRUTH_KERNELS(X, T) DD_PLAIN_KERNELS(X, T, ELEMENTS) DD_BIT_KERNELS(X, T)
#define DD_INTEGER_KERNELS(X, T, ...) \
    DD_PLAIN_KERNELS(X, T, ELEMENTS) DD_BIT_KERNELS(X, T) X(T, PREMUL_SUM, ELEMENTS)
#define DD_FLOAT_KERNELS(X, T) DD_PLAIN_KERNELS(X, T, ELEMENTS) X(T, AVG, ELEMENTS) X(T, PREMUL_SUM, ELEMENTS)
#define DD_SUM_KERNELS(X, T) X(T, SUM, ELEMENTS) X(T, AVG, ELEMENTS) X(T, PREMUL_SUM, ELEMENTS)
#define DD_ROUNDED_KERNELS(X, T) \
    DD_FLOAT_KERNELS(X, T)       \
    DD_PLAIN_KERNELS(X, T, WIDEN) X(T, PREMUL_SUM, WIDEN) DD_PLAIN_KERNELS(X, T, ROUND) X(T, AVG, ROUND)

#endif
