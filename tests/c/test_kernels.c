/* Reductions. The scalar kernels are compared with a second, slow implementation in doubles; the
 * other instruction sets must equal the scalar kernels bit for bit. */
#include "check.h"
#include "core/clock.h"
#include "core/cpu.h"
#include "faults/faults.h"
#include "kernels/copy_trial.h"
#include "kernels/reduce.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SRCS 16
#define MAX_COUNT 320
#define MARGIN 64 /* bytes around an output that must not change */
#define SLACK 32  /* for misalignment */
#define BUFFER_NBYTES (MAX_COUNT * DD_DTYPE_MAX_SIZE + 2 * MARGIN + SLACK)
#define STAGE_COUNT ((int)DD_STAGE_LAST + 1)
#define ISA_COUNT ((int)DD_ISA_NEON + 1)

static uint64_t random_state = 7;

static uint64_t
random_word(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* ---- slow floats */

typedef struct layout {
    int exponent_bits, mantissa_bits;
    uint64_t max_finite; /* code of the largest number */
    uint64_t overflow;   /* the next code after the largest number */
    uint64_t nan;
} layout;

/* Return the layout of a float, or of one part of a complex number. */
static layout
layout_of(dd_dtype dtype)
{
    if (dtype == DD_DTYPE_FLOAT16) {
        return (layout){5, 10, 0x7bff, 0x7c00, 0x7e00};
    }
    if (dtype == DD_DTYPE_BFLOAT16) {
        return (layout){8, 7, 0x7f7f, 0x7f80, 0x7fc0};
    }
    if (dtype == DD_DTYPE_FLOAT8_E4M3FN) {
        return (layout){4, 3, 0x7e, 0x7f, 0x7f};
    }
    if (dtype == DD_DTYPE_FLOAT8_E5M2) {
        return (layout){5, 2, 0x7b, 0x7c, 0x7e};
    }
    if (dtype == DD_DTYPE_FLOAT32 || dtype == DD_DTYPE_COMPLEX64) {
        return (layout){8, 23, 0x7f7fffff, 0x7f800000, 0x7fc00000};
    }
    return (layout){11, 52, 0x7fefffffffffffff, 0x7ff0000000000000, 0x7ff8000000000000};
}

static double
decode(dd_dtype dtype, uint64_t code)
{
    layout l = layout_of(dtype);
    uint64_t magnitude = code & ((UINT64_C(1) << (l.exponent_bits + l.mantissa_bits)) - 1);
    int bias = (1 << (l.exponent_bits - 1)) - 1;
    int exponent = (int)(magnitude >> l.mantissa_bits);
    uint64_t mantissa = magnitude & ((UINT64_C(1) << l.mantissa_bits) - 1);
    bool is_negative = code >> (l.exponent_bits + l.mantissa_bits) != 0;
    double x;
    if (magnitude > l.max_finite) {
        x = magnitude == l.overflow && l.overflow != l.nan ? (double)INFINITY : (double)NAN;
    } else if (exponent == 0) {
        x = ldexp((double)mantissa, 1 - bias - l.mantissa_bits);
    } else {
        x = ldexp((double)(mantissa | UINT64_C(1) << l.mantissa_bits), exponent - bias - l.mantissa_bits);
    }
    return is_negative ? -x : x;
}

static uint64_t
encode(dd_dtype dtype, double x)
{
    layout l = layout_of(dtype);
    int bias = (1 << (l.exponent_bits - 1)) - 1;
    uint64_t sign = signbit(x) ? UINT64_C(1) << (l.exponent_bits + l.mantissa_bits) : 0;
    if (isnan(x)) {
        return l.nan;
    }
    if (x == 0 || isinf(x)) {
        return sign | (x == 0 ? 0 : l.overflow);
    }
    int exponent;
    (void)frexp(x, &exponent);
    exponent = exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
    /* In units of the last place; 2^mantissa_bits or more make a normal number. */
    uint64_t units = (uint64_t)nearbyint(ldexp(fabs(x), l.mantissa_bits - exponent));
    uint64_t code = units + ((uint64_t)(exponent + bias - 1) << l.mantissa_bits);
    return sign | (code > l.max_finite ? l.overflow : code);
}

static uint64_t
read_code(const void *at, size_t size)
{
    uint64_t code = 0;
    memcpy(&code, at, size);
    return code;
}

/* ---- slow reductions */

static double
rounded(dd_dtype accumulator, double x)
{
    bool is_float = accumulator == DD_DTYPE_FLOAT32 || accumulator == DD_DTYPE_COMPLEX64;
    return is_float ? (double)(float)x : x;
}

static double
lesser(double a, double b)
{
    if (isnan(a) || isnan(b)) {
        return (double)NAN;
    }
    if (a == 0 && b == 0) {
        return signbit(a) || signbit(b) ? -0.0 : 0.0;
    }
    return a < b ? a : b;
}

/* For real numbers im is 0 and unused. */
typedef struct number {
    double re, im;
} number;

static number
combine_floats(dd_dtype acc, dd_redop op, number a, number b)
{
    bool is_complex = dd_dtype_kind_of(acc) == DD_KIND_COMPLEX;
    if (op == DD_REDOP_MIN) {
        return (number){lesser(a.re, b.re), 0};
    }
    if (op == DD_REDOP_MAX) {
        return (number){-lesser(-a.re, -b.re), 0};
    }
    if (op == DD_REDOP_PRODUCT && !is_complex) {
        return (number){rounded(acc, a.re * b.re), 0};
    }
    if (op == DD_REDOP_PRODUCT) {
        volatile double rr = rounded(acc, a.re * b.re), ii = rounded(acc, a.im * b.im);
        volatile double ri = rounded(acc, a.re * b.im), ir = rounded(acc, a.im * b.re);
        return (number){rounded(acc, rr - ii), rounded(acc, ri + ir)};
    }
    return (number){rounded(acc, a.re + b.re), rounded(acc, a.im + b.im)};
}

static number
read_number(dd_dtype dtype, const void *src, size_t i)
{
    size_t size = dd_dtype_size(dtype);
    const char *at = (const char *)src + i * size;
    if (dd_dtype_kind_of(dtype) == DD_KIND_COMPLEX) {
        return (number){decode(dtype, read_code(at, size / 2)),
                        decode(dtype, read_code(at + size / 2, size / 2))};
    }
    return (number){decode(dtype, read_code(at, size)), 0};
}

static void
write_number(dd_dtype dtype, void *out, size_t i, number x)
{
    bool is_complex = dd_dtype_kind_of(dtype) == DD_KIND_COMPLEX;
    size_t size = dd_dtype_size(dtype) / (is_complex ? 2 : 1);
    uint64_t codes[2] = {encode(dtype, x.re), encode(dtype, x.im)};
    char *at = (char *)out + i * dd_dtype_size(dtype);
    memcpy(at, &codes[0], size);
    if (is_complex) {
        memcpy(at + size, &codes[1], size);
    }
}

typedef struct stage_types {
    dd_dtype from, to;
    bool takes_inputs, gives_results;
} stage_types;

static stage_types
types_of(dd_dtype dtype, dd_stage stage)
{
    dd_dtype acc = dd_reduce_accumulator(dtype);
    stage_types types = {.takes_inputs = stage == DD_STAGE_WHOLE || stage == DD_STAGE_FIRST,
                         .gives_results = stage == DD_STAGE_WHOLE || stage == DD_STAGE_LAST};
    types.from = types.takes_inputs ? dtype : acc;
    types.to = types.gives_results ? dtype : acc;
    return types;
}

static void
reduce_floats(const dd_reduction *r, stage_types types, void *out, const void *const *srcs, size_t nsrcs,
              size_t i)
{
    dd_dtype acc = dd_reduce_accumulator(r->dtype);
    number sum = {0, 0};
    for (size_t k = 0; k < nsrcs; k++) {
        number x = read_number(types.from, srcs[k], i);
        if (r->op == DD_REDOP_PREMUL_SUM && types.takes_inputs) {
            double factor = rounded(acc, r->factor);
            x = (number){rounded(acc, x.re * factor), rounded(acc, x.im * factor)};
        }
        sum = k == 0 ? x : combine_floats(acc, r->op, sum, x);
    }
    if (r->op == DD_REDOP_AVG && types.gives_results) {
        sum = (number){rounded(acc, sum.re / r->divisor), rounded(acc, sum.im / r->divisor)};
    }
    write_number(types.to, out, i, sum);
}

/* Return the low bits, interpreted as the type. */
static __int128
wrapped(dd_dtype dtype, __int128 x)
{
    int nbits = 8 * (int)dd_dtype_size(dtype);
    __int128 modulus = (__int128)1 << nbits;
    __int128 low = x & (modulus - 1);
    return dd_dtype_kind_of(dtype) == DD_KIND_INT && low >= modulus / 2 ? low - modulus : low;
}

static __int128
combine_integers(dd_redop op, __int128 a, __int128 b)
{
    switch (op) {
    case DD_REDOP_PRODUCT:
        return (__int128)((unsigned __int128)a * (unsigned __int128)b);
    case DD_REDOP_MIN:
        return a < b ? a : b;
    case DD_REDOP_MAX:
        return a > b ? a : b;
    case DD_REDOP_BAND:
        return a & b;
    case DD_REDOP_BOR:
        return a | b;
    case DD_REDOP_BXOR:
        return a ^ b;
    case DD_REDOP_SUM:
    case DD_REDOP_AVG:
    case DD_REDOP_PREMUL_SUM:
        break;
    }
    return a + b;
}

static void
reduce_integers(const dd_reduction *r, stage_types types, void *out, const void *const *srcs, size_t nsrcs,
                size_t i)
{
    size_t size = dd_dtype_size(r->dtype);
    __int128 sum = 0;
    for (size_t k = 0; k < nsrcs; k++) {
        __int128 x = wrapped(r->dtype, read_code((const char *)srcs[k] + i * size, size));
        if (r->op == DD_REDOP_PREMUL_SUM && types.takes_inputs) {
            x = wrapped(r->dtype, x * (__int128)trunc(r->factor));
        }
        sum = k == 0 ? x : combine_integers(r->op, sum, x);
        sum = r->op == DD_REDOP_AVG ? sum : wrapped(r->dtype, sum);
    }
    if (r->op == DD_REDOP_AVG && types.gives_results) {
        sum /= r->divisor;
    }
    uint64_t code = (uint64_t)sum;
    memcpy((char *)out + i * size, &code, size);
}

static void
reduce_truths(const dd_reduction *r, void *out, const void *const *srcs, size_t nsrcs, size_t i)
{
    size_t ntrue = 0;
    for (size_t k = 0; k < nsrcs; k++) {
        ntrue += ((const uint8_t *)srcs[k])[i] != 0;
    }
    bool is_all = r->op == DD_REDOP_PRODUCT || r->op == DD_REDOP_MIN || r->op == DD_REDOP_BAND;
    bool truth = is_all ? ntrue == nsrcs : r->op == DD_REDOP_BXOR ? ntrue % 2 == 1 : ntrue > 0;
    ((uint8_t *)out)[i] = truth;
}

static void
reduce_slowly(const dd_reduction *r, dd_stage stage, void *out, const void *const *srcs, size_t nsrcs,
              size_t count)
{
    stage_types types = types_of(r->dtype, stage);
    dd_dtype_kind kind = dd_dtype_kind_of(r->dtype);
    for (size_t i = 0; i < count; i++) {
        if (kind == DD_KIND_BOOL) {
            reduce_truths(r, out, srcs, nsrcs, i);
        } else if (kind == DD_KIND_INT || kind == DD_KIND_UINT) {
            reduce_integers(r, types, out, srcs, nsrcs, i);
        } else {
            reduce_floats(r, types, out, srcs, nsrcs, i);
        }
    }
}

/* ---- inputs */

static uint64_t
random_float(dd_dtype dtype)
{
    layout l = layout_of(dtype);
    uint64_t specials[] = {
        0, 1, l.max_finite, l.overflow, l.nan, l.overflow | 1, UINT64_C(1) << l.mantissa_bits};
    uint64_t sign = (random_word() & 1) << (l.exponent_bits + l.mantissa_bits);
    uint64_t choice = random_word() % 32;
    if (choice == 0) {
        return random_word();
    }
    if (choice == 1) {
        return sign | specials[random_word() % (sizeof specials / sizeof specials[0])];
    }
    if (choice == 2) {
        return sign; /* so that zeros of both signs meet */
    }
    uint64_t bias = (UINT64_C(1) << (l.exponent_bits - 1)) - 1;
    uint64_t mantissa = random_word() & ((UINT64_C(1) << l.mantissa_bits) - 1);
    return sign | (bias - 3 + random_word() % 6) << l.mantissa_bits | mantissa;
}

static void
fill_random(dd_dtype dtype, void *out, size_t count)
{
    dd_dtype_kind kind = dd_dtype_kind_of(dtype);
    size_t parts = kind == DD_KIND_COMPLEX ? 2 : 1;
    size_t size = dd_dtype_size(dtype) / parts;
    for (size_t i = 0; i < count * parts; i++) {
        uint64_t code = random_word() >> 7;
        if (kind == DD_KIND_BOOL) {
            code = random_word() % 3 != 0 ? code : 0;
        } else if (kind == DD_KIND_FLOAT || kind == DD_KIND_COMPLEX) {
            code = random_float(dtype);
        }
        memcpy((char *)out + i * size, &code, size);
    }
}

static char pool[MAX_SRCS][BUFFER_NBYTES];

/* ---- the tests */

typedef struct combination {
    dd_reduction reduction;
    dd_stage stage;
    size_t nsrcs;
} combination;

/* Return true if partial results are integers without a dd_dtype. */
static bool
has_wide_integers(const dd_reduction *r)
{
    return dd_reduce_partial_size(r->dtype, r->op) != dd_dtype_size(dd_reduce_accumulator(r->dtype));
}

/* Call `run` for every type, operation and stage, and several numbers of sources. Partial means of
 * integers have a test of their own. */
static void
for_each_combination(void (*run)(const combination *))
{
    static const size_t nsrcs[] = {1, 2, 3, 4, 7, 16};
    for (int dtype = 0; dtype < DD_DTYPE_COUNT; dtype++) {
        for (int op = 0; op < DD_REDOP_COUNT; op++) {
            for (int stage = 0; stage < STAGE_COUNT; stage++) {
                for (size_t n = 0; n < sizeof nsrcs / sizeof nsrcs[0]; n++) {
                    combination c = {
                        {(dd_dtype)dtype, (dd_redop)op, -2.6, 3, false}, (dd_stage)stage, nsrcs[n]};
                    bool is_tested = stage == DD_STAGE_WHOLE || !has_wide_integers(&c.reduction);
                    if (is_tested && dd_reduce_is_supported(c.reduction.dtype, c.reduction.op)) {
                        run(&c);
                    }
                }
            }
        }
    }
}

static void
describe(const combination *c, const char *label, size_t count)
{
    fprintf(stderr, "    %s: %s %s, stage %d, %zu sources, %zu elements\n", label,
            dd_dtype_name(c->reduction.dtype), dd_redop_name(c->reduction.op), (int)c->stage, c->nsrcs,
            count);
}

static void
set_sources(const combination *c, size_t count, size_t misalignment, const void **srcs)
{
    stage_types types = types_of(c->reduction.dtype, c->stage);
    for (size_t k = 0; k < c->nsrcs; k++) {
        char *src = pool[k] + (k + 1) * misalignment % SLACK;
        fill_random(types.from, src, count);
        srcs[k] = src;
    }
}

static const char *const isa_names[ISA_COUNT] = {"scalar", "avx2", "avx512", "neon"};

/* Reduce with this instruction set. Return false if the processor lacks it. */
static bool
reduce_with(dd_isa isa, const dd_reduction *reduction, dd_stage stage, void *out, const void *const *srcs,
            size_t nsrcs, size_t count)
{
    static const unsigned hidden[ISA_COUNT] = {
        [DD_ISA_SCALAR] = DD_CPU_AVX2 | DD_CPU_AVX512 | DD_CPU_NEON, [DD_ISA_AVX2] = DD_CPU_AVX512};
    dd_cpu_hide_features(hidden[isa]);
    bool is_present = dd_reduce_best_isa() == isa;
    if (is_present) {
        dd_reduce(reduction, stage, out, srcs, nsrcs, count);
    }
    dd_cpu_hide_features(0);
    return is_present;
}

static void
check_scalar(const combination *c)
{
    static char out[BUFFER_NBYTES], expected[BUFFER_NBYTES];
    const void *srcs[MAX_SRCS];
    const size_t count = 101;
    set_sources(c, count, 0, srcs);
    reduce_slowly(&c->reduction, c->stage, expected, srcs, c->nsrcs, count);
    CHECK(reduce_with(DD_ISA_SCALAR, &c->reduction, c->stage, out, srcs, c->nsrcs, count));
    size_t nbytes = count * dd_dtype_size(types_of(c->reduction.dtype, c->stage).to);
    if (!CHECK(memcmp(out, expected, nbytes) == 0)) {
        describe(c, "scalar", count);
    }
}

TEST(scalar_reduction_kernels_equal_reference_arithmetic)
{
    for_each_combination(check_scalar);
}

/* Reduce into a separate buffer, whose margins must not change, and, if sizes permit, in place into
 * each source. */
static void
check_isa(const combination *c, dd_isa isa, const void **srcs, size_t count, const char *expected)
{
    static char out[BUFFER_NBYTES], saved[BUFFER_NBYTES];
    stage_types types = types_of(c->reduction.dtype, c->stage);
    size_t nbytes = count * dd_dtype_size(types.to);
    char *offset = out + MARGIN + count % SLACK;
    memset(out, 0x5a, sizeof out);
    memset(saved, 0x5a, MARGIN);
    bool is_right = CHECK(reduce_with(isa, &c->reduction, c->stage, offset, srcs, c->nsrcs, count));
    is_right &= CHECK(memcmp(offset, expected, nbytes) == 0);
    is_right &=
        CHECK(memcmp(offset - MARGIN, saved, MARGIN) == 0 && memcmp(offset + nbytes, saved, MARGIN) == 0);
    if (dd_dtype_size(types.to) <= dd_dtype_size(types.from)) {
        size_t k = count % c->nsrcs;
        char *src = (char *)(uintptr_t)srcs[k];
        size_t src_nbytes = count * dd_dtype_size(types.from);
        memcpy(saved, src, src_nbytes);
        is_right &= CHECK(reduce_with(isa, &c->reduction, c->stage, src, srcs, c->nsrcs, count));
        is_right &= CHECK(memcmp(src, expected, nbytes) == 0);
        memcpy(src, saved, src_nbytes);
    }
    if (!is_right) {
        describe(c, isa_names[isa], count);
    }
}

static void
check_isas(const combination *c)
{
    static const size_t counts[] = {0, 1, 7, 15, 17, 33, 63, 130, 257};
    static char expected[BUFFER_NBYTES];
    const void *srcs[MAX_SRCS];
    for (size_t n = 0; n < sizeof counts / sizeof counts[0]; n++) {
        set_sources(c, counts[n], n % 3 * 5, srcs);
        CHECK(reduce_with(DD_ISA_SCALAR, &c->reduction, c->stage, expected, srcs, c->nsrcs, counts[n]));
        for (int isa = 0; isa < ISA_COUNT; isa++) {
            if (reduce_with((dd_isa)isa, &c->reduction, c->stage, expected, srcs, 1, 0)) {
                check_isa(c, (dd_isa)isa, srcs, counts[n], expected);
            }
        }
    }
}

TEST(reduction_kernels_of_every_instruction_set_equal_the_scalar_ones)
{
    for_each_combination(check_isas);
}

/* Check that every instruction set gives the expected result. */
static void
check_all_isas(const dd_reduction *reduction, dd_stage stage, const void *const *srcs, size_t nsrcs,
               size_t count, const void *expected)
{
    size_t nbytes = count * dd_dtype_size(types_of(reduction->dtype, stage).to);
    char *out = malloc(nbytes);
    REQUIRE(out != NULL);
    for (int isa = 0; isa < ISA_COUNT; isa++) {
        if (reduce_with((dd_isa)isa, reduction, stage, out, srcs, nsrcs, count)) {
            CHECK(memcmp(out, expected, nbytes) == 0);
        }
    }
    free(out);
}

static void
check_conversions(dd_dtype dtype, const float *values, size_t count)
{
    size_t size = dd_dtype_size(dtype);
    char *codes = malloc(count * size);
    REQUIRE(codes != NULL);
    for (size_t i = 0; i < count; i++) {
        uint64_t code = encode(dtype, (double)values[i]);
        memcpy(codes + i * size, &code, size);
    }
    dd_reduction reduction = {.dtype = dtype, .op = DD_REDOP_SUM};
    check_all_isas(&reduction, DD_STAGE_LAST, (const void *[]){values}, 1, count, codes);
    free(codes);
}

static const dd_dtype small_floats[] = {DD_DTYPE_FLOAT16, DD_DTYPE_BFLOAT16, DD_DTYPE_FLOAT8_E4M3FN,
                                        DD_DTYPE_FLOAT8_E5M2};
#define SMALL_FLOAT_COUNT (sizeof small_floats / sizeof small_floats[0])

TEST(every_small_float_is_unchanged_after_conversion_to_float32_and_back)
{
    static float values[65536];
    static char codes[2 * 65536];
    for (size_t t = 0; t < SMALL_FLOAT_COUNT; t++) {
        size_t size = dd_dtype_size(small_floats[t]), count = (size_t)1 << (8 * size);
        for (size_t i = 0; i < count; i++) {
            double x = decode(small_floats[t], i);
            values[i] = isnan(x) ? NAN : (float)x;
            memcpy(codes + i * size, &i, size);
        }
        dd_reduction reduction = {.dtype = small_floats[t], .op = DD_REDOP_SUM};
        check_all_isas(&reduction, DD_STAGE_FIRST, (const void *[]){codes}, 1, count, values);
        check_conversions(small_floats[t], values, count);
    }
}

/* Values around every code and every midpoint between codes, where the rounding changes. */
TEST(float32_is_rounded_to_the_nearest_even_small_float)
{
    static float values[65536 * 6];
    for (size_t t = 0; t < SMALL_FLOAT_COUNT; t++) {
        layout l = layout_of(small_floats[t]);
        size_t count = 0;
        for (uint64_t code = 0; code <= l.max_finite; code++) {
            double x = decode(small_floats[t], code);
            double next = code < l.max_finite ? decode(small_floats[t], code + 1) : x + x / 16;
            float middle = (float)((x + next) / 2);
            float sign = code % 2 != 0 ? -1.0F : 1.0F;
            values[count++] = sign * nextafterf(middle, 0);
            values[count++] = sign * middle;
            values[count++] = sign * nextafterf(middle, INFINITY);
            values[count++] = sign * nextafterf((float)x, INFINITY);
        }
        check_conversions(small_floats[t], values, count);
    }
}

TEST(random_float32_values_are_rounded_alike_by_all_kernels)
{
    static float values[50000];
    for (size_t t = 0; t < SMALL_FLOAT_COUNT; t++) {
        for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
            uint32_t bits = (uint32_t)(random_word() >> 11);
            /* Half of the values are in the range of float16 and float8. */
            bits = i % 2 == 0 ? bits : (bits & 0x87ffffff) | (96 + (uint32_t)random_word() % 48) << 23;
            memcpy(&values[i], &bits, sizeof bits);
        }
        check_conversions(small_floats[t], values, sizeof values / sizeof values[0]);
    }
}

/* For types that are their own accumulators, two stages must equal one. */
static void
check_split(const combination *c)
{
    static char whole[BUFFER_NBYTES], partial[BUFFER_NBYTES], result[BUFFER_NBYTES];
    dd_dtype dtype = c->reduction.dtype;
    if (c->stage != DD_STAGE_WHOLE || c->nsrcs != 7 || dd_reduce_accumulator(dtype) != dtype ||
        has_wide_integers(&c->reduction)) {
        return;
    }
    const void *srcs[MAX_SRCS];
    const size_t count = 101;
    set_sources(c, count, 1, srcs);
    dd_reduction scaled = c->reduction;
    if (scaled.op == DD_REDOP_PREMUL_SUM) {
        scaled.factor = 1; /* a later stage takes no inputs */
    }
    dd_reduce(&scaled, DD_STAGE_WHOLE, whole, srcs, 7, count);
    dd_reduce(&scaled, DD_STAGE_FIRST, partial, srcs, 3, count);
    dd_reduce(&scaled, DD_STAGE_MIDDLE, partial, (const void *[]){partial, srcs[3], srcs[4]}, 3, count);
    dd_reduce(&scaled, DD_STAGE_LAST, result, (const void *[]){partial, srcs[5], srcs[6]}, 3, count);
    if (!CHECK(memcmp(whole, result, count * dd_dtype_size(dtype)) == 0)) {
        describe(c, "split", count);
    }
}

TEST(reducing_in_several_stages_changes_no_bit_of_the_result)
{
    for_each_combination(check_split);
}

TEST(reductions_of_nan_and_signed_zeros_follow_the_documented_rules)
{
    const float nan = NAN, inf = INFINITY;
    const float a[] = {-0.0F, 0.0F, nan, 1.0F, -inf, inf};
    const float b[] = {0.0F, -0.0F, 1.0F, -nan, inf, nan};
    const float least[] = {-0.0F, -0.0F, nan, nan, -inf, nan};
    const float greatest[] = {0.0F, 0.0F, nan, nan, inf, nan};
    const float sum[] = {0.0F, 0.0F, nan, nan, nan, nan};
    const void *srcs[] = {a, b};
    dd_reduction reduction = {.dtype = DD_DTYPE_FLOAT32, .op = DD_REDOP_MIN};
    check_all_isas(&reduction, DD_STAGE_WHOLE, srcs, 2, 6, least);
    reduction.op = DD_REDOP_MAX;
    check_all_isas(&reduction, DD_STAGE_WHOLE, srcs, 2, 6, greatest);
    reduction.op = DD_REDOP_SUM;
    check_all_isas(&reduction, DD_STAGE_WHOLE, srcs, 2, 6, sum);
}

TEST(integer_sums_wrap_around_and_integer_means_are_truncated)
{
    const int8_t a[] = {100, -100, -3, 127}, b[] = {100, -100, -2, 1};
    const int8_t sum[] = {-56, 56, -5, -128}, average[] = {66, -66, -1, 42};
    const void *srcs[] = {a, b};
    dd_reduction reduction = {.dtype = DD_DTYPE_INT8, .op = DD_REDOP_SUM, .divisor = 3};
    check_all_isas(&reduction, DD_STAGE_WHOLE, srcs, 2, 4, sum);
    reduction.op = DD_REDOP_AVG;
    check_all_isas(&reduction, DD_STAGE_WHOLE, srcs, 2, 4, average);
}

/* The mean of equal numbers is the number, even if its sum does not fit into the type. */
TEST(integer_means_are_exact_even_if_the_sum_overflows)
{
    static const uint64_t codes[] = {0,
                                     1,
                                     100,
                                     0x7f,
                                     0x80,
                                     0x7fff,
                                     0x8000,
                                     0x7fffffff,
                                     0x80000000,
                                     UINT64_MAX >> 1,
                                     (uint64_t)1 << 63,
                                     UINT64_MAX};
    enum { COUNT = sizeof codes / sizeof codes[0] };
    for (int t = DD_DTYPE_INT8; t <= DD_DTYPE_UINT64; t++) {
        dd_reduction reduction = {.dtype = (dd_dtype)t, .op = DD_REDOP_AVG, .divisor = 5};
        size_t size = dd_dtype_size(reduction.dtype);
        char elements[COUNT * 8], whole[COUNT * 8], result[COUNT * 8];
        char first[COUNT * DD_DTYPE_MAX_SIZE], second[COUNT * DD_DTYPE_MAX_SIZE];
        for (size_t i = 0; i < COUNT; i++) {
            memcpy(elements + i * size, &codes[i], size);
        }
        const void *srcs[] = {elements, elements, elements, elements, elements};
        dd_reduce(&reduction, DD_STAGE_WHOLE, whole, srcs, 5, COUNT);
        CHECK(memcmp(whole, elements, COUNT * size) == 0);
        dd_reduce(&reduction, DD_STAGE_FIRST, first, srcs, 2, COUNT);
        dd_reduce(&reduction, DD_STAGE_FIRST, second, srcs, 1, COUNT);
        const void *partials[] = {first, second};
        dd_reduce(&reduction, DD_STAGE_MIDDLE, first, partials, 2, COUNT);
        dd_reduce(&reduction, DD_STAGE_FIRST, second, srcs, 2, COUNT);
        dd_reduce(&reduction, DD_STAGE_LAST, result, partials, 2, COUNT);
        CHECK(memcmp(result, elements, COUNT * size) == 0);
    }
}

TEST(min_and_max_of_dates_propagate_nat)
{
    const int64_t a[] = {1, INT64_MIN, 5, INT64_MAX, -3}, b[] = {2, 7, INT64_MIN, INT64_MIN + 1, -4};
    const int64_t least[] = {1, INT64_MIN, INT64_MIN, INT64_MIN + 1, -4};
    const int64_t greatest[] = {2, INT64_MIN, INT64_MIN, INT64_MAX, -3};
    const void *srcs[] = {a, b};
    dd_reduction reduction = {.dtype = DD_DTYPE_INT64, .op = DD_REDOP_MIN, .has_nat = true};
    check_all_isas(&reduction, DD_STAGE_WHOLE, srcs, 2, 5, least);
    reduction.op = DD_REDOP_MAX;
    check_all_isas(&reduction, DD_STAGE_WHOLE, srcs, 2, 5, greatest);
}

TEST(a_factor_outside_the_range_of_an_integer_type_is_clamped)
{
    const int64_t one = 1;
    static const struct {
        double factor;
        int64_t product;
    } cases[] = {{2.9, 2},         {-2.9, -2},         {1e300, INT64_MAX}, {-1e300, INT64_MIN},
                 {(double)NAN, 0}, {0x1p62, 1LL << 62}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dd_reduction reduction = {DD_DTYPE_INT64, DD_REDOP_PREMUL_SUM, cases[i].factor, 1, false};
        check_all_isas(&reduction, DD_STAGE_WHOLE, (const void *[]){&one}, 1, 1, &cases[i].product);
    }
}

TEST(dtypes_and_reductions_have_names_and_reject_unknown_numbers)
{
    CHECK(strcmp(dd_dtype_name(DD_DTYPE_FLOAT8_E5M2), "float8_e5m2") == 0);
    CHECK(strcmp(dd_dtype_name((dd_dtype)200), "unknown dtype") == 0);
    CHECK(dd_dtype_is_valid(0) && dd_dtype_is_valid(16) && !dd_dtype_is_valid(17) && !dd_dtype_is_valid(255));
    CHECK(strcmp(dd_redop_name(DD_REDOP_PREMUL_SUM), "PREMUL_SUM") == 0);
    CHECK(strcmp(dd_redop_name((dd_redop)99), "unknown operation") == 0);
    CHECK(dd_dtype_size(DD_DTYPE_COMPLEX128) == DD_DTYPE_MAX_SIZE);
    CHECK(dd_reduce_accumulator(DD_DTYPE_BFLOAT16) == DD_DTYPE_FLOAT32);
    CHECK(dd_reduce_accumulator(DD_DTYPE_INT8) == DD_DTYPE_INT8);
    CHECK_INT(dd_reduce_partial_size(DD_DTYPE_INT8, DD_REDOP_AVG), 4);
    CHECK_INT(dd_reduce_partial_size(DD_DTYPE_UINT64, DD_REDOP_AVG), 16);
    CHECK_INT(dd_reduce_partial_size(DD_DTYPE_UINT64, DD_REDOP_SUM), 8);
    dd_reduction reduction = {.dtype = DD_DTYPE_INT8, .op = DD_REDOP_SUM};
    const void *srcs[] = {pool[0]};
    CHECK(reduce_with(dd_reduce_best_isa(), &reduction, DD_STAGE_WHOLE, pool[1], srcs, 1, 10));
    CHECK(!reduce_with(DD_ISA_NEON, &reduction, DD_STAGE_WHOLE, pool[1], srcs, 1, 10) ||
          !reduce_with(DD_ISA_AVX2, &reduction, DD_STAGE_WHOLE, pool[1], srcs, 1, 10));
}

TEST(the_number_of_usable_cpus_respects_the_cgroup_quota)
{
    CHECK(dd_cpu_usable_count() >= 1);
    CHECK_INT(dd_cpu_parse_quota("max 100000\n"), 0);
    CHECK_INT(dd_cpu_parse_quota("150000 100000\n"), 2);
    CHECK_INT(dd_cpu_parse_quota("200000 100000\n"), 2);
    CHECK_INT(dd_cpu_parse_quota("1000 100000\n"), 1);
    CHECK_INT(dd_cpu_parse_quota("100000"), 0);
    CHECK_INT(dd_cpu_parse_quota("100000 0"), 0);
    CHECK_INT(dd_cpu_parse_quota(""), 0);
    CHECK_INT(dd_cpu_parse_quota("9223372036854775807 1"), 0);
}

/* Run a whole trial in which each way of copying has a fixed cost, except for one copy. Return the
 * way that it finds faster. */
static bool
try_both_ways(dd_copy_trial *trial, int64_t cost, int64_t cost_past, int64_t best, int64_t *now_ns)
{
    const int nbefore = 4;
    bool is_past = false;
    dd_copy_trial_choose(trial, nbefore, *now_ns);
    CHECK(trial->is_open);
    for (int i = 1; trial->is_open; i++) {
        bool was_past = dd_copy_trial_is_past(trial);
        CHECK(was_past == (i > 7));
        int64_t this_cost = i % 7 == nbefore ? 0 : i % 7 == 6 ? best : was_past ? cost_past : cost;
        CHECK(dd_copy_trial_note(trial, this_cost, ++*now_ns, &is_past) == (i == 14));
    }
    return is_past;
}

TEST(cached_and_uncached_copies_are_timed_again_at_intervals)
{
    dd_copy_trial trial = {.is_open = false};
    int64_t now_ns = 1;
    CHECK(!try_both_ways(&trial, 10, 20, 30, &now_ns)); /* earlier copies do not count */
    dd_copy_trial_choose(&trial, 4, now_ns + 99 * DD_NS_PER_MS);
    CHECK(!trial.is_open);
    now_ns += 100 * DD_NS_PER_MS;
    CHECK(try_both_ways(&trial, 20, 10, 30, &now_ns));
    now_ns = trial.next_ns;
    dd_copy_trial_choose(&trial, 4, now_ns);
    CHECK(!dd_copy_trial_note(&trial, 1, now_ns, &(bool){false}) && trial.ntaken == 1);
    now_ns += 101 * DD_NS_PER_MS; /* without copies for this long, the trial restarts */
    CHECK(!try_both_ways(&trial, 10, 20, 5, &now_ns) && trial.begin_ns > DD_NS_PER_MS);
}
