#include "check.h"

#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static check_test *first_test;
static check_test **last_link = &first_test;
static atomic_int failures;
static _Thread_local dd_error thread_error;

void
check_register(check_test *test)
{
    *last_link = test;
    last_link = &test->next;
}

/* In one write, so that threads do not mix their lines. */
static bool __attribute__((format(printf, 3, 4))) fail(const char *file, int line, const char *format, ...)
{
    char text[2048];
    int used = snprintf(text, sizeof text, "    %s:%d: ", file, line);
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text + used, sizeof text - (size_t)used, format, args);
    va_end(args);
    fprintf(stderr, "%s\n", text);
    atomic_fetch_add(&failures, 1);
    return false;
}

bool
check_that(bool holds, const char *file, int line, const char *text)
{
    return holds || fail(file, line, "failed: %s", text);
}

bool
check_status(dd_status actual, dd_status expected, const char *file, int line, const char *text)
{
    return actual == expected || fail(file, line, "%s: %s, not %s: \"%s\"", text, dd_status_name(actual),
                                      dd_status_name(expected), actual == DD_OK ? "" : thread_error.message);
}

bool
check_int(long long actual, long long expected, const char *file, int line, const char *text)
{
    return actual == expected || fail(file, line, "%s: %lld, not %lld", text, actual, expected);
}

bool
check_bytes(dd_bytes actual, dd_bytes expected, const char *file, int line, const char *text)
{
    char shown[2][160];
    return dd_bytes_equal(actual, expected) ||
           fail(file, line, "%s: \"%s\" (%zu bytes), not \"%s\" (%zu bytes)", text,
                dd_bytes_print(actual, shown[0], sizeof shown[0]), actual.len,
                dd_bytes_print(expected, shown[1], sizeof shown[1]), expected.len);
}

bool
check_contains(const char *text, const char *part, bool is_wanted, const char *file, int line)
{
    return (strstr(text, part) != NULL) == is_wanted ||
           fail(file, line, "\"%s\" %s \"%s\"", text, is_wanted ? "lacks" : "contains", part);
}

dd_error *
check_err(void)
{
    thread_error = (dd_error){.code = DD_OK};
    return &thread_error;
}

const char *
check_message(void)
{
    return thread_error.message;
}

int
check_failures(void)
{
    return atomic_load(&failures);
}

int
check_slow(void)
{
    const char *text = getenv("DLDIST_TEST_SLOW");
    int factor = text != NULL ? atoi(text) : 1;
    return factor > 1 ? factor : 1;
}

/* exit and not _exit: the leak sanitizer looks then, and its verdict is the exit status. */
static _Noreturn void
run_in_child(const check_test *test)
{
    alarm((unsigned)(CHECK_TIMEOUT_S * check_slow()));
    test->run(test->arg);
    exit(check_failures() > 0 ? 1 : 0);
}

static bool
run_forked(const check_test *test)
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        run_in_child(test);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid) {
        perror("fork");
        return false;
    }
    if (WIFSIGNALED(status)) {
        int signal_number = WTERMSIG(status);
        fprintf(stderr, "    %s\n",
                signal_number == SIGALRM ? "did not end in time" : strsignal(signal_number));
        return false;
    }
    if (WEXITSTATUS(status) > 1) {
        fprintf(stderr, "    exit status %d\n", WEXITSTATUS(status));
    }
    return WEXITSTATUS(status) == 0;
}

static bool
run_here(const check_test *test)
{
    int before = check_failures();
    test->run(test->arg);
    return check_failures() == before;
}

/* "tests/c/test_map.c" is shown as "map". */
static void
full_name(const check_test *test, char *out, size_t out_size)
{
    const char *slash = strrchr(test->file, '/');
    const char *base = slash != NULL ? slash + 1 : test->file;
    base += strncmp(base, "test_", 5) == 0 ? 5 : 0;
    (void)snprintf(out, out_size, "%.*s/%s", (int)strcspn(base, "."), base, test->name);
}

static bool
is_selected(const char *name, int nparts, char **parts)
{
    for (int i = 0; i < nparts; i++) {
        if (strstr(name, parts[i]) != NULL) {
            return true;
        }
    }
    return nparts == 0;
}

/* Weak: a benchmark that checks has one of its own. */
__attribute__((weak)) int
main(int argc, char **argv)
{
    int npassed = 0;
    int nfailed = 0;
    setvbuf(stdout, NULL, _IONBF, 0);
    for (const check_test *test = first_test; test != NULL; test = test->next) {
        char name[256];
        full_name(test, name, sizeof name);
        if (!is_selected(name, argc - 1, argv + 1)) {
            continue;
        }
        bool is_passed = getenv("DLDIST_TEST_NOFORK") != NULL ? run_here(test) : run_forked(test);
        printf("%s %s\n", is_passed ? "ok  " : "FAIL", name);
        npassed += is_passed ? 1 : 0;
        nfailed += is_passed ? 0 : 1;
    }
    printf("%d passed, %d failed\n", npassed, nfailed);
    return nfailed > 0 ? 1 : 0;
}
