#include "kernels/reduce.h"

#include "core/cpu.h"
#include "kernels/reduce_internal.h"

#include <math.h>

typedef dd_kernel *const (*kernel_rows)[DD_REDOP_COUNT][DD_FORM_COUNT];

/* The kernels of each instruction set; NULL for an instruction set of another architecture. */
static const struct isa_info {
    kernel_rows kernels;
    unsigned feature; /* the CPU features that the instruction set requires, or 0 */
} isas[] = {
    [DD_ISA_SCALAR] = {dd_kernels_scalar, 0},
#if defined(__x86_64__)
    [DD_ISA_AVX2] = {dd_kernels_avx2, DD_CPU_AVX2},
    [DD_ISA_AVX512] = {dd_kernels_avx512, DD_CPU_AVX512},
#else
    [DD_ISA_AVX2] = {NULL, 0},
    [DD_ISA_AVX512] = {NULL, 0},
#endif
#if defined(__aarch64__)
    [DD_ISA_NEON] = {dd_kernels_neon, DD_CPU_NEON},
#else
    [DD_ISA_NEON] = {NULL, 0},
#endif
};

static const char *const redop_names[DD_REDOP_COUNT] = {
#define REDOP_NAME(name, text) [DD_REDOP_##name] = text,
    DD_REDOP_LIST(REDOP_NAME)
#undef REDOP_NAME
};

const char *
dd_redop_name(dd_redop op)
{
    return (unsigned)op < (unsigned)DD_REDOP_COUNT ? redop_names[op] : "unknown operation";
}

bool
dd_reduce_is_supported(dd_dtype dtype, dd_redop op)
{
    return dd_kernels_scalar[dtype][op][DD_FORM_ELEMENTS] != NULL;
}

dd_dtype
dd_reduce_accumulator(dd_dtype dtype)
{
    bool is_own = dd_kernels_scalar[dtype][DD_REDOP_SUM][DD_FORM_WIDEN] == NULL;
    return is_own ? dtype : DD_DTYPE_FLOAT32;
}

bool
dd_reduce_is_exact_mean(dd_dtype dtype, dd_redop op)
{
    return dd_kernels_scalar[dtype][op][DD_FORM_PARTIALS] != NULL;
}

size_t
dd_reduce_partial_size(dd_dtype dtype, dd_redop op)
{
    size_t size = dd_dtype_size(dtype);
    if (dd_reduce_is_exact_mean(dtype, op)) {
        return size == 1 ? 4 : size == 8 ? 16 : 8;
    }
    return dd_dtype_size(dd_reduce_accumulator(dtype));
}

static bool
has_isa(dd_isa isa)
{
    unsigned feature = isas[isa].feature;
    return isas[isa].kernels != NULL && (dd_cpu_features() & feature) == feature;
}

dd_isa
dd_reduce_best_isa(void)
{
    static const dd_isa by_width[] = {DD_ISA_AVX512, DD_ISA_AVX2, DD_ISA_NEON};
    for (size_t i = 0; i < sizeof by_width / sizeof by_width[0]; i++) {
        if (has_isa(by_width[i])) {
            return by_width[i];
        }
    }
    return DD_ISA_SCALAR;
}

/* Return the kernel for a stage. AVG is a plain sum except in a stage that gives results;
 * PREMUL_SUM is a plain sum except in a stage that takes inputs. */
static dd_kernel *
find_kernel(kernel_rows kernels, const dd_reduction *reduction, dd_stage stage)
{
    bool takes_inputs = stage == DD_STAGE_WHOLE || stage == DD_STAGE_FIRST;
    bool has_results = stage == DD_STAGE_WHOLE || stage == DD_STAGE_LAST;
    dd_dtype dtype = reduction->dtype;
    dd_redop op = reduction->op;
    if (dd_reduce_is_exact_mean(dtype, op)) {
        return dd_kernels_scalar[dtype][op][takes_inputs  ? has_results ? DD_FORM_ELEMENTS : DD_FORM_WIDEN
                                            : has_results ? DD_FORM_ROUND
                                                          : DD_FORM_PARTIALS];
    }
    if (reduction->has_nat && op == DD_REDOP_MAX) {
        return dd_kernel_max_of_dates;
    }
    if ((op == DD_REDOP_AVG && !has_results) || (op == DD_REDOP_PREMUL_SUM && !takes_inputs)) {
        op = DD_REDOP_SUM;
    }
    dd_kernel_form form = DD_FORM_ELEMENTS;
    if (dd_reduce_accumulator(dtype) != dtype) {
        if (!takes_inputs && !has_results) {
            dtype = dd_reduce_accumulator(dtype);
        } else if (!has_results) {
            form = DD_FORM_WIDEN;
        } else if (!takes_inputs) {
            form = DD_FORM_ROUND;
        }
    }
    dd_kernel *kernel = kernels[dtype][op][form];
    return kernel != NULL ? kernel : dd_kernels_scalar[dtype][op][form];
}

/* Convert a factor to an integer: truncate toward zero, and clamp to int64. NaN becomes 0. */
static uint64_t
integer_factor(double factor)
{
    if (isnan(factor)) {
        return 0;
    }
    if (factor >= 0x1p63) {
        return INT64_MAX;
    }
    return (uint64_t)(factor <= -0x1p63 ? INT64_MIN : (int64_t)factor);
}

void
dd_reduce(const dd_reduction *reduction, dd_stage stage, void *out, const void *const *srcs, size_t nsrcs,
          size_t count)
{
    dd_fold task = {
        .srcs = srcs,
        .nsrcs = nsrcs,
        .out = out,
        .count = count,
        .factor = reduction->factor,
        .divisor = reduction->divisor,
    };
    if (reduction->op == DD_REDOP_PREMUL_SUM) {
        task.integer_factor = integer_factor(reduction->factor);
    }
    find_kernel(isas[dd_reduce_best_isa()].kernels, reduction, stage)(&task, 0);
}
