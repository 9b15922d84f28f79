/* docs/dtypes.md is what this writes: DLDIST_UPDATE_DOCS=1 make test-c TESTS=kernels_doc */
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
    "Written by `tests/c/test_kernels_doc.c` from the library itself; a test fails when it is out of date.\n"
    "\n"
    "Operations that only move data take every type. The reductions:\n"
    "\n";

static const char rules[] =
    "\n"
    "Where the accumulator is another type, sums are kept in it and rounded once, to nearest even, when the\n"
    "result is given. Everywhere else each step rounds as the type does.\n"
    "\n"
    "- The order of the sources decides the bits of a result, and nothing else: not the instruction set,\n"
    "  and not how the work was split. Products and sums are never fused.\n"
    "- **Integers** wrap around. AVG divides the wrapped sum and truncates toward zero. PREMUL_SUM\n"
    "  truncates its factor toward zero.\n"
    "- **bool** is a truth value: any nonzero byte is true, results are 0 or 1. SUM and MAX are \"or\",\n"
    "  PRODUCT and MIN are \"and\".\n"
    "- **NaN** in a source makes the result NaN, with MIN and MAX too. A NaN that is a result is always the\n"
    "  same one: quiet, positive, without a payload (0x7fc00000 in float32).\n"
    "- **Zeros**: for MIN and MAX -0 is less than +0.\n"
    "- **Overflow** in rounding gives infinity, and in float8_e4m3fn, which has none, NaN.\n"
    "- **Complex** products are (ac - bd) + (ad + bc)i, without the repairs for infinities that C's own\n"
    "  have.\n";

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

TEST(page_of_types_is_up_to_date)
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
