/* Reductions of arrays, element by element: the arithmetic of the collectives.
 *
 * One call reduces ("folds") any number of sources in one pass, in the given order: ((s0 + s1) +
 * s2) + ... Only this order determines the bits of the result: all instruction sets give the same.
 *
 * Floats of 16 and 8 bits are accumulated in float32 and rounded once, at the end. For AVG, integers
 * are accumulated in integers that are wide enough for every sum. Stages of a split reduction pass on
 * partial results in the accumulation type, of dd_reduce_partial_size bytes:
 *
 *     DD_STAGE_WHOLE   elements    -> elements       the whole reduction in one call
 *     DD_STAGE_FIRST   elements    -> accumulators   takes inputs (PREMUL_SUM multiplies here)
 *     DD_STAGE_MIDDLE  accumulators -> accumulators
 *     DD_STAGE_LAST    accumulators -> elements      gives the result (AVG divides and rounds here)
 *
 * For types that are their own accumulators, splitting into stages does not change the result.
 *
 * Semantics: integers wrap around, except in AVG, which truncates the exact mean toward zero; bool is reduced as a
 * truth value (SUM and MAX are "or", PRODUCT and MIN are "and"; any nonzero byte is true, results
 * are 0 or 1); MIN and MAX give NaN if any source is NaN; float8_e4m3fn overflows to NaN,
 * float8_e5m2 to infinity; rounding is to nearest even.
 *
 * Every NaN in a result is the same quiet, positive NaN without payload: processors differ in which
 * of two NaNs they keep. For MIN and MAX, -0 is less than +0, so their order does not matter. */
#ifndef DD_KERNELS_REDUCE_H
#define DD_KERNELS_REDUCE_H

#include "core/dtype.h"

#include <stdbool.h>
#include <stddef.h>

/* X(name, text). The order is torch.distributed's and part of the wire format: never change it. */
#define DD_REDOP_LIST(X)  \
    X(SUM, "SUM")         \
    X(AVG, "AVG")         \
    X(PRODUCT, "PRODUCT") \
    X(MIN, "MIN")         \
    X(MAX, "MAX")         \
    X(BAND, "BAND")       \
    X(BOR, "BOR")         \
    X(BXOR, "BXOR")       \
    X(PREMUL_SUM, "PREMUL_SUM")

typedef enum dd_redop {
#define DD_REDOP_ENUM(name, text) DD_REDOP_##name,
    DD_REDOP_LIST(DD_REDOP_ENUM)
#undef DD_REDOP_ENUM
} dd_redop;

#define DD_REDOP_COUNT ((int)DD_REDOP_PREMUL_SUM + 1)

const char *dd_redop_name(dd_redop op); /* never NULL; "unknown operation" for an invalid number */

/* Return true if the operation is defined for the type. AVG and PREMUL_SUM are not defined for
 * bool, MIN and MAX not for complex; BAND, BOR and BXOR are defined only for bool and integers. */
bool dd_reduce_is_supported(dd_dtype dtype, dd_redop op);

/* Return the accumulation type: float32 for floats of 16 and 8 bits, else the type itself. AVG of
 * integers has wider integers, of up to 128 bits, which have no dd_dtype. */
dd_dtype dd_reduce_accumulator(dd_dtype dtype);
/* Return true for AVG of integers, whose partial results are wider than the accumulation type. */
bool dd_reduce_is_exact_mean(dd_dtype dtype, dd_redop op);
/* Return the size in bytes of a partial result. */
size_t dd_reduce_partial_size(dd_dtype dtype, dd_redop op);

typedef struct dd_reduction {
    dd_dtype dtype; /* type of the elements */
    dd_redop op;    /* operation of the reduction; must be supported for dtype */
    /* Factor for PREMUL_SUM, which multiplies each input in the accumulation type. For integers the
     * factor is truncated toward zero and clamped to int64. */
    double factor;
    int divisor; /* divisor of AVG: the number of ranks */
    /* True for INT64 that are NumPy's dates or differences: MIN and MAX are NaT, the least integer, if
     * a source is. */
    bool has_nat;
} dd_reduction;

typedef enum dd_stage {
    DD_STAGE_WHOLE,
    DD_STAGE_FIRST,
    DD_STAGE_MIDDLE,
    DD_STAGE_LAST,
} dd_stage;

/* Set out[i] to the reduction of srcs[0][i] ... srcs[nsrcs - 1][i] for `count` elements; nsrcs must
 * be at least 1. If the elements of `out` are not larger than those of the sources, `out` may be
 * one of the sources; otherwise it must not overlap them. Pointers need no alignment. */
void dd_reduce(const dd_reduction *reduction, dd_stage stage, void *out, const void *const *srcs,
               size_t nsrcs, size_t count);

/* Instruction sets. dd_reduce uses the best one that the machine has. */
typedef enum dd_isa {
    DD_ISA_SCALAR,
    DD_ISA_AVX2,
    DD_ISA_AVX512,
    DD_ISA_NEON,
} dd_isa;

dd_isa dd_reduce_best_isa(void);

#endif
