/* Reductions in plain C: vectors of one element, and operations that gain little from vectors. */
#include "kernels/reduce_vector_internal.h"

#define ELEMENT(T, type, fold, k, i) ((lanes_##T)load_##T((const type *)(fold).srcs[k] + (i)))[0]

__extension__ typedef __int128 wide_int;
__extension__ typedef unsigned __int128 wide_uint;

/* AVG of integers in all forms. `acc` is the type of partial sums. `wide` is as large as a sum can be,
 * or larger, and `word` its unsigned type, in which the partial sums of a faulty peer may wrap. */
#define DEFINE_AVERAGE_FORM(T, form, from, to, wide, word, divided_by)             \
    static void kernel_##T##_AVG_##form(const dd_fold *fold, size_t begin)         \
    {                                                                              \
        const dd_fold local = *fold;                                               \
        for (size_t i = begin; i < local.count; i++) {                             \
            word total = 0;                                                        \
            for (size_t k = 0; k < local.nsrcs; k++) {                             \
                from x;                                                            \
                memcpy(&x, (const char *)local.srcs[k] + i * sizeof x, sizeof x);  \
                wide summand = (wide)x;                                            \
                total += (word)summand;                                            \
            }                                                                      \
            to result = (to)((wide)total / (wide)(unsigned)(divided_by));          \
            memcpy((char *)local.out + i * sizeof result, &result, sizeof result); \
        }                                                                          \
    }
#define DEFINE_AVERAGE(T, type, acc, wide, word)                            \
    DEFINE_AVERAGE_FORM(T, ELEMENTS, type, type, wide, word, local.divisor) \
    DEFINE_AVERAGE_FORM(T, WIDEN, type, acc, wide, word, 1)                 \
    DEFINE_AVERAGE_FORM(T, PARTIALS, acc, acc, wide, word, 1)               \
    DEFINE_AVERAGE_FORM(T, ROUND, acc, type, wide, word, local.divisor)
DEFINE_AVERAGE(INT8, int8_t, int32_t, int64_t, uint64_t)
DEFINE_AVERAGE(UINT8, uint8_t, uint32_t, uint64_t, uint64_t)
DEFINE_AVERAGE(INT16, int16_t, int64_t, int64_t, uint64_t)
DEFINE_AVERAGE(UINT16, uint16_t, uint64_t, uint64_t, uint64_t)
DEFINE_AVERAGE(INT32, int32_t, int64_t, int64_t, uint64_t)
DEFINE_AVERAGE(UINT32, uint32_t, uint64_t, uint64_t, uint64_t)
DEFINE_AVERAGE(INT64, int64_t, wide_int, wide_int, wide_uint)
DEFINE_AVERAGE(UINT64, uint64_t, wide_uint, wide_uint, wide_uint)

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

/* NaT, the least integer, is propagated: subtracting 1 makes NaT the greatest number. */
void
dd_kernel_max_of_dates(const dd_fold *fold, size_t begin)
{
    const dd_fold local = *fold;
    for (size_t i = begin; i < local.count; i++) {
        uint64_t greatest = load_INT64((const int64_t *)local.srcs[0] + i)[0] - 1;
        for (size_t k = 1; k < local.nsrcs; k++) {
            uint64_t x = load_INT64((const int64_t *)local.srcs[k] + i)[0] - 1;
            greatest = (int64_t)x > (int64_t)greatest ? x : greatest;
        }
        store_INT64((int64_t *)local.out + i, (value_INT64){greatest + 1});
    }
}

#define ENTRY(T, op, form) [DD_DTYPE_##T][DD_REDOP_##op][DD_FORM_##form] = kernel_##T##_##op##_##form,
dd_kernel_table dd_kernels_scalar = {DD_VECTOR_KERNEL_LIST(ENTRY) DD_SCALAR_KERNEL_LIST(ENTRY)};
