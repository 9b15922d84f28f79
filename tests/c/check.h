/* The test harness. A test is a function. Each test runs in its own child process, with an alarm:
 *
 *     TEST(sum_wraps_around) {
 *         CHECK(1 + 1 == 2);
 *         CHECK_STATUS(dd_blob_append(&blob, "x", 1, check_err()), DD_OK);
 *     }
 *
 * CHECK counts a failure and continues; it works in any thread. REQUIRE returns from the function.
 * Arguments of the binary select tests by parts of their names ("file/test"); an argument that
 * starts with a minus ("-file/") excludes tests.
 *
 * DLDIST_TEST_SLOW=<factor> multiplies the alarm and every time that uses check_slow().
 * DLDIST_TEST_JOBS=<number> runs this many tests in parallel. DLDIST_TEST_NOFORK=1 runs all tests
 * in one process, for a debugger. */
#ifndef DD_TESTS_CHECK_H
#define DD_TESTS_CHECK_H

#include "core/bytes.h"
#include "core/status.h"

#include <stdbool.h>

#define CHECK_TIMEOUT_S 10

typedef struct check_test {
    const char *file; /* __FILE__, or the name to show instead */
    const char *name;
    void (*run)(const void *arg);
    const void *arg;
    struct check_test *next; /* used by the harness */
} check_test;

/* Add a test. The caller keeps it, and must never free it. Call before main. */
void check_register(check_test *test);

#define TEST(test_name)                                                                           \
    static void test_##test_name(const void *check_arg);                                          \
    __attribute__((constructor)) static void register_##test_name(void)                           \
    {                                                                                             \
        static check_test test = {.file = __FILE__, .name = #test_name, .run = test_##test_name}; \
        check_register(&test);                                                                    \
    }                                                                                             \
    static void test_##test_name(const void *check_arg __attribute__((unused)))

/* All of these return true if the check holds. */
#define CHECK(condition) check_that((condition), __FILE__, __LINE__, #condition)
#define CHECK_STATUS(call, expected) check_status((call), (expected), __FILE__, __LINE__, #call)
#define CHECK_OK(call) CHECK_STATUS(call, DD_OK)
#define CHECK_INT(actual, expected) \
    check_int((long long)(actual), (long long)(expected), __FILE__, __LINE__, #actual)
#define CHECK_BYTES(actual, expected) check_bytes((actual), (expected), __FILE__, __LINE__, #actual)
/* The expected bytes are a string literal, which may contain zeros. */
#define CHECK_TEXT(actual, literal) CHECK_BYTES((actual), BYTES(literal))
#define CHECK_CONTAINS(text, part) check_contains((text), (part), true, __FILE__, __LINE__)
#define CHECK_LACKS(text, part) check_contains((text), (part), false, __FILE__, __LINE__)
#define REQUIRE(condition)       \
    do {                         \
        if (!CHECK(condition)) { \
            return;              \
        }                        \
    } while (0)
#define REQUIRE_OK(call)       \
    do {                       \
        if (!CHECK_OK(call)) { \
            return;            \
        }                      \
    } while (0)

#define BYTES(literal) dd_bytes_of("" literal, sizeof(literal) - 1)

/* Return this thread's error, cleared by each call of this function. For calls inside CHECK_STATUS,
 * which prints the error. */
dd_error *check_err(void);
/* Return the message of this thread's error. */
const char *check_message(void);

/* Return the factor of DLDIST_TEST_SLOW, at least 1. */
int check_slow(void);

/* Return the number of failures so far in this process. A child that a test forks must exit with
 * _exit(check_failures() > 0). */
int check_failures(void);

bool check_that(bool holds, const char *file, int line, const char *text);
bool check_status(dd_status actual, dd_status expected, const char *file, int line, const char *text);
bool check_int(long long actual, long long expected, const char *file, int line, const char *text);
bool check_bytes(dd_bytes actual, dd_bytes expected, const char *file, int line, const char *text);
bool check_contains(const char *text, const char *part, bool is_wanted, const char *file, int line);

#endif
