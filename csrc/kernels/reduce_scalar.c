/* Reductions in plain C: vectors of one element, and operations that gain little from vectors. */
#include "kernels/reduce_vector_internal.h"

#define ELEMENT(T, type, fold, k, i) ((lanes_##T)load_##T((const type *)(fold).srcs[k] + (i)))[0]

/* AVG of integers: the sum wraps around in the type, and the division is signed if the type is. */
#define DEFINE_AVERAGE(X, T, type, word, wide)                               \
    static void kernel_##T##_AVG_ELEMENTS(const dd_fold *fold, size_t begin) \
    {                                                                        \
        const dd_fold local = *fold;                                         \
        for (size_t i = begin; i < local.count; i++) {                       \
            uint64_t sum = 0;                                                \
            for (size_t k = 0; k < local.nsrcs; k++) {                       \
                sum += (uint64_t)ELEMENT(T, type, local, k, i);              \
            }                                                                \
            wide mean = (wide)(type)sum / (wide)local.divisor;               \
            store_##T((type *)local.out + i, (value_##T){(word)mean});       \
        }                                                                    \
    }
DD_INTEGER_LIST(DEFINE_AVERAGE, )

#define DEFINE_COMPLEX_PRODUCT(T, part, type)                                                             \
    static void kernel_##T##_PRODUCT_ELEMENTS(const dd_fold *fold, size_t begin)                          \
    {                                                                                                     \
        const dd_fold local = *fold;                                                                      \
        for (size_t i = 2 * begin; i < 2 * local.count; i += 2) {                                         \
            type re = ELEMENT(part, type, local, 0, i);                                                   \
            type im = ELEMENT(part, type, local, 0, i + 1);                                               \
            for (size_t k = 1; k < local.nsrcs; k++) {                                                    \
                type other_re = ELEMENT(part, type, local, k, i);                                         \
                type other_im = ELEMENT(part, type, local, k, i + 1);                                     \
                type old_re = re;                                                                         \
                re = old_re * other_re - im * other_im;                                                   \
                im = old_re * other_im + im * other_re;                                                   \
            }                                                                                             \
            type *out = (type *)local.out + i;                                                            \
            store_##part(out, finish_##part(&local, DD_REDOP_PRODUCT, (value_##part)(lanes_##part){re})); \
            store_##part(out + 1,                                                                         \
                         finish_##part(&local, DD_REDOP_PRODUCT, (value_##part)(lanes_##part){im}));      \
        }                                                                                                 \
    }
DEFINE_COMPLEX_PRODUCT(COMPLEX64, FLOAT32, float)
DEFINE_COMPLEX_PRODUCT(COMPLEX128, FLOAT64, double)

#define ENTRY(T, op, form) [DD_DTYPE_##T][DD_REDOP_##op][DD_FORM_##form] = kernel_##T##_##op##_##form,
dd_kernel_table dd_kernels_scalar = {DD_VECTOR_KERNEL_LIST(ENTRY) DD_SCALAR_KERNEL_LIST(ENTRY)};
