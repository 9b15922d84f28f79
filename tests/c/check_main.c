#include "check.h"

#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_JOBS 64

static check_test *first_test;
static check_test **last_link = &first_test;
static atomic_int failures;
static int counts[2]; /* failed tests, passed tests */
static _Thread_local dd_error thread_error;

void
check_register(check_test *test)
{
    *last_link = test;
    last_link = &test->next;
}

/* Print in one write, so that threads do not mix their lines. Return false. */
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

/* A test in its own process. Output of parallel tests is held until the test ends. */
typedef struct {
    const check_test *test;
    pid_t pid;
    int output; /* -1 if the test writes directly to our output */
} running_test;

/* Use exit, not _exit: the leak sanitizer runs in exit and sets the exit status. */
static _Noreturn void
run_in_child(const check_test *test, int output)
{
    if (output >= 0 && (dup2(output, STDOUT_FILENO) < 0 || dup2(output, STDERR_FILENO) < 0)) {
        _exit(2);
    }
    alarm((unsigned)(CHECK_TIMEOUT_S * check_slow()));
    test->run(test->arg);
    exit(check_failures() > 0 ? 1 : 0);
}

static void
start(running_test *slot, const check_test *test, bool is_beside_others)
{
    slot->test = test;
    slot->output = is_beside_others ? memfd_create("output of a test", MFD_CLOEXEC) : -1;
    slot->pid = fork();
    if (slot->pid == 0) {
        run_in_child(test, slot->output);
    }
    if (slot->pid < 0 || (is_beside_others && slot->output < 0)) {
        perror("starting a test");
        exit(2);
    }
}

static void
show_output(int output)
{
    char part[4096];
    ssize_t got;
    off_t at = 0;
    while ((got = pread(output, part, sizeof part, at)) > 0) {
        (void)fwrite(part, 1, (size_t)got, stdout);
        at += got;
    }
    (void)close(output);
}

static bool
is_passed(int status)
{
    if (WIFSIGNALED(status)) {
        int signal_number = WTERMSIG(status);
        printf("    %s\n", signal_number == SIGALRM ? "did not end in time" : strsignal(signal_number));
        return false;
    }
    if (WEXITSTATUS(status) > 1) {
        printf("    exit status %d\n", WEXITSTATUS(status));
    }
    return WEXITSTATUS(status) == 0;
}

/* Show "tests/c/test_map.c" as "map". */
static void
full_name(const check_test *test, char *out, size_t out_size)
{
    const char *slash = strrchr(test->file, '/');
    const char *base = slash != NULL ? slash + 1 : test->file;
    base += strncmp(base, "test_", 5) == 0 ? 5 : 0;
    (void)snprintf(out, out_size, "%.*s/%s", (int)strcspn(base, "."), base, test->name);
}

/* Return true if the name has a given part (or none is given), and no part given with a minus. */
static bool
is_selected(const char *name, int nparts, char **parts)
{
    bool is_named = false;
    bool is_any_wanted = true;
    for (int i = 0; i < nparts; i++) {
        if (parts[i][0] == '-' && strstr(name, parts[i] + 1) != NULL) {
            return false;
        }
        is_any_wanted = is_any_wanted && parts[i][0] == '-';
        is_named = is_named || (parts[i][0] != '-' && strstr(name, parts[i]) != NULL);
    }
    return is_named || is_any_wanted;
}

static void
report(const check_test *test, bool has_passed)
{
    char name[256];
    full_name(test, name, sizeof name);
    printf("%s %s\n", has_passed ? "ok  " : "FAIL", name);
    counts[has_passed]++;
}

/* Wait for one test to end, and return its free slot. */
static running_test *
await_one(running_test *running, int njobs)
{
    int status = 0;
    pid_t pid = waitpid(-1, &status, 0);
    for (int i = 0; i < njobs; i++) {
        if (pid > 0 && running[i].pid == pid) {
            if (running[i].output >= 0) {
                show_output(running[i].output);
            }
            report(running[i].test, is_passed(status));
            running[i].pid = 0;
            return &running[i];
        }
    }
    perror("waiting for a test");
    exit(2);
}

static const check_test *
next_selected(const check_test *test, int nparts, char **parts)
{
    char name[256];
    for (; test != NULL; test = test->next) {
        full_name(test, name, sizeof name);
        if (is_selected(name, nparts, parts)) {
            break;
        }
    }
    return test;
}

static void
run_here(const check_test *test)
{
    int before = check_failures();
    test->run(test->arg);
    report(test, check_failures() == before);
}

static int
jobs(void)
{
    const char *text = getenv("DLDIST_TEST_JOBS");
    int wanted = text != NULL ? atoi(text) : 1;
    return wanted < 1 ? 1 : wanted < MAX_JOBS ? wanted : MAX_JOBS;
}

/* Weak: a benchmark that uses checks defines its own main. */
__attribute__((weak)) int
main(int argc, char **argv)
{
    running_test running[MAX_JOBS] = {{0}};
    int njobs = jobs();
    int nrunning = 0;
    setvbuf(stdout, NULL, _IONBF, 0);
    const check_test *test = next_selected(first_test, argc - 1, argv + 1);
    for (; test != NULL; test = next_selected(test->next, argc - 1, argv + 1)) {
        if (getenv("DLDIST_TEST_NOFORK") != NULL) {
            run_here(test);
            continue;
        }
        running_test *slot = nrunning < njobs ? &running[nrunning++] : await_one(running, njobs);
        start(slot, test, njobs > 1);
    }
    for (; nrunning > 0; nrunning--) {
        (void)await_one(running, njobs);
    }
    printf("%d passed, %d failed\n", counts[true], counts[false]);
    return counts[false] > 0 ? 1 : 0;
}
