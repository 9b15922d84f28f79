/* Conversions between floating-point types. */
#include "check.h"
#include "kernels/convert.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#define COUNT ((size_t)2500) /* more than two pieces, and not a whole number of them */

static const dd_dtype floats[] = {
    DD_DTYPE_FLOAT16,     DD_DTYPE_BFLOAT16, DD_DTYPE_FLOAT8_E4M3FN,
    DD_DTYPE_FLOAT8_E5M2, DD_DTYPE_FLOAT32,  DD_DTYPE_FLOAT64,
};
#define NFLOATS (sizeof floats / sizeof floats[0])

TEST(conversions_keep_values_that_both_types_represent)
{
    static double numbers[COUNT], back[COUNT], from_memory[COUNT], to_memory[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        numbers[i] = (double)(i % 5) * (i % 2 == 0 ? 1 : -1);
    }
    for (size_t f = 0; f < NFLOATS; f++) {
        for (size_t t = 0; t < NFLOATS; t++) {
            CHECK(dd_convert_is_supported(floats[t], floats[f]));
            dd_convert(floats[f], from_memory, DD_DTYPE_FLOAT64, numbers, COUNT);
            dd_convert(floats[t], to_memory, floats[f], from_memory, COUNT);
            dd_convert(DD_DTYPE_FLOAT64, back, floats[t], to_memory, COUNT);
            CHECK(memcmp(back, numbers, sizeof numbers) == 0);
        }
    }
}

TEST(conversions_to_smaller_floats_round_to_nearest_even)
{
    const float wide[] = {1.0F + 0x1p-11F, 1.0F + 0x3p-11F, 65519.0F, 65520.0F, 0x1p-25F, -0.0F};
    const uint16_t expected[] = {0x3c00, 0x3c02, 0x7bff, 0x7c00, 0x0000, 0x8000};
    uint16_t narrow[6];
    dd_convert(DD_DTYPE_FLOAT16, narrow, DD_DTYPE_FLOAT32, wide, 6);
    CHECK(memcmp(narrow, expected, sizeof expected) == 0);

    const float to_bfloat[] = {1.0F + 0x1p-8F, 1.0F + 0x3p-8F};
    const uint16_t bfloats[] = {0x3f80, 0x3f82};
    dd_convert(DD_DTYPE_BFLOAT16, narrow, DD_DTYPE_FLOAT32, to_bfloat, 2);
    CHECK(memcmp(narrow, bfloats, sizeof bfloats) == 0);
}

TEST(conversions_preserve_nan_and_infinity)
{
    const double wide[] = {(double)NAN, -(double)NAN, (double)INFINITY, -(double)INFINITY, 1e300};
    float single[5];
    dd_convert(DD_DTYPE_FLOAT32, single, DD_DTYPE_FLOAT64, wide, 5);
    CHECK(isnan(single[0]) && isnan(single[1]) && isinf(single[2]) && single[3] < 0 && isinf(single[4]));
    double back[5];
    uint16_t half[5];
    dd_convert(DD_DTYPE_FLOAT16, half, DD_DTYPE_FLOAT32, single, 5);
    dd_convert(DD_DTYPE_FLOAT64, back, DD_DTYPE_FLOAT16, half, 5);
    CHECK(isnan(back[0]) && isnan(back[1]) && isinf(back[2]) && isinf(back[3]) && back[3] < 0);
}

TEST(only_floats_are_converted)
{
    CHECK(!dd_convert_is_supported(DD_DTYPE_FLOAT32, DD_DTYPE_INT32));
    CHECK(!dd_convert_is_supported(DD_DTYPE_COMPLEX64, DD_DTYPE_FLOAT32));
    CHECK(!dd_convert_is_supported(DD_DTYPE_FLOAT16, DD_DTYPE_BOOL));
}
