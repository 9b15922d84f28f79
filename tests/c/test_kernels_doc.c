/* Writes docs/dtypes.md: DLDIST_UPDATE_DOCS=1 make test-c TESTS=kernels_doc */
#include "check.h"
#include "kernels/reduce.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE_PATH "docs/dtypes.md" /* from the root of the repository, where tests run */

static const char introduction[] =
    "# Data types and reductions\n"
    "\n"
    "`tests/c/test_kernels_doc.c` writes this page from the library's tables. A test fails if the page\n"
    "is outdated.\n"
    "\n"
    "Operations that only move data take every type. The table lists the reductions:\n"
    "\n";

static const char rules[] =
    "\n"
    "If the accumulator has another type, sums are computed in that type and rounded once to the\n"
    "result's type, to nearest even. Otherwise each step rounds in the type itself.\n"
    "\n"
    "- Only the order of the sources determines the bits of a result. The instruction set and the\n"
    "  distribution of the work have no effect. Products and sums are never fused.\n"
    "- **Integers** wrap around, except with AVG: its result is the exact mean, truncated toward zero,\n"
    "  as `numpy.mean(...).astype(dtype)`. Messages with partial sums of integers are twice as large,\n"
    "  and four times for integers of 8 and 16 bits. NCCL groups divide the sum that has wrapped.\n"
    "  torch's Gloo has no AVG. PREMUL_SUM truncates its factor toward zero.\n"
    "- **bool** is a truth value: any nonzero byte is true, results are 0 or 1. SUM and MAX are \"or\",\n"
    "  PRODUCT and MIN are \"and\".\n"
    "- **NaN** in a source makes the result NaN, also with MIN and MAX. A NaN result always has the same\n"
    "  bits: quiet, positive, without a payload (0x7fc00000 in float32).\n"
    "- **Zeros**: for MIN and MAX, -0 is less than +0.\n"
    "- **Overflow** in rounding results in infinity, and in NaN for float8_e4m3fn, which has no infinity.\n"
    "- **Complex** products are (ac - bd) + (ad + bc)i, without the special cases for infinities of C's\n"
    "  multiplication.\n"
    "\n"
    "## Other dtypes of NumPy\n"
    "\n"
    "NumPy arrays of these dtypes can be moved: broadcast, gathered, scattered, exchanged, sent and\n"
    "received, by calls that fill arrays and by functions of `dldist.functional`, in groups on the\n"
    "CPU. All ranks must pass the same dtype: `datetime64[s]` does not match `datetime64[ms]`, and\n"
    "`>i4` does not match `int32`. In messages, a receive as uint8 takes the bytes of every dtype.\n"
    "\n"
    "| dtype | reductions | alternative |\n"
    "| --- | --- | --- |\n"
    "| datetime64, timedelta64 | MIN, MAX; NaT if a rank has NaT, as `numpy.minimum` and `maximum` | `x.view(\"int64\")` |\n"
    "| structured | - | one field at a time: `x[\"name\"]`; two fields: \"minloc\" and \"maxloc\" of [dldist.functional](functional.md#reductions) |\n"
    "| the other byte order, such as `>f8` | - | `x.astype(x.dtype.newbyteorder(\"=\"))` |\n"
    "| strings of fixed length, `S` and `U` | - | [objects](objects.md) |\n"
    "| long double, and dtypes of ml_dtypes that the first table lacks | - | `x.astype(\"float64\")` |\n"
    "\n"
    "Arrays of Python objects, and strings of variable length (`StringDType`), are refused: send\n"
    "[objects](objects.md). Masked arrays are refused, because the mask would be lost: pass\n"
    "`x.filled(0)`, or `x.data` and `x.mask` in two calls.\n";

typedef struct page_text {
    char text[8192];
    size_t len;
} page_text;

static void __attribute__((format(printf, 2, 3))) add(page_text *page, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int added = vsnprintf(page->text + page->len, sizeof page->text - page->len, format, args);
    va_end(args);
    REQUIRE(added >= 0 && page->len + (size_t)added < sizeof page->text);
    page->len += (size_t)added;
}

static void
add_table(page_text *page)
{
    add(page, "| type | bytes | accumulator |");
    for (int op = 0; op < DD_REDOP_COUNT; op++) {
        add(page, " %s |", dd_redop_name((dd_redop)op));
    }
    add(page, "\n| --- | --- | --- |");
    for (int op = 0; op < DD_REDOP_COUNT; op++) {
        add(page, " --- |");
    }
    for (int dtype = 0; dtype < DD_DTYPE_COUNT; dtype++) {
        dd_dtype accumulator = dd_reduce_accumulator((dd_dtype)dtype);
        add(page, "\n| %s | %zu | %s |", dd_dtype_name((dd_dtype)dtype), dd_dtype_size((dd_dtype)dtype),
            (int)accumulator == dtype ? "itself" : dd_dtype_name(accumulator));
        for (int op = 0; op < DD_REDOP_COUNT; op++) {
            add(page, " %s |", dd_reduce_is_supported((dd_dtype)dtype, (dd_redop)op) ? "yes" : "-");
        }
    }
    add(page, "\n");
}

TEST(the_documentation_page_of_dtypes_is_up_to_date)
{
    static page_text page;
    static char found[sizeof page.text];
    add(&page, "%s", introduction);
    add_table(&page);
    add(&page, "%s", rules);
    if (getenv("DLDIST_UPDATE_DOCS") != NULL) {
        FILE *file = fopen(PAGE_PATH, "w");
        REQUIRE(file != NULL);
        CHECK(fputs(page.text, file) >= 0);
        CHECK(fclose(file) == 0);
    }
    FILE *file = fopen(PAGE_PATH, "r");
    REQUIRE(file != NULL);
    size_t len = fread(found, 1, sizeof found - 1, file);
    CHECK(fclose(file) == 0);
    if (!CHECK(len == page.len && strcmp(found, page.text) == 0)) {
        fprintf(stderr,
                "    " PAGE_PATH " is out of date: DLDIST_UPDATE_DOCS=1 make test-c TESTS=kernels_doc\n");
    }
}
