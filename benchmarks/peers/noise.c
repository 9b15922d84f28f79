/* Background load for benchmarks/collectives.py --noise:
 *
 *     noise KIND CPU...
 *
 * KIND is `1of10` (1 ms of every 10 on each CPU), `4of20`, `busy1`, `busy2`, `busy4` (1, 2 or 4
 * endless loops per CPU) or `short-lived` (consecutive processes that do nothing, one at a time per
 * CPU). Prints "ready" once all run. Exits at the end of its standard input, and so with its
 * parent, or after an hour; its processes exit with it. */
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    MOST_SECONDS = 3600,
    MS = 1000000,
};

typedef struct noise_kind {
    const char *name;
    int64_t on_ns, period_ns; /* busy for on_ns of every period_ns; always if equal */
    int nloops;               /* per CPU; 0 for short-lived processes */
} noise_kind;

static const noise_kind kinds[] = {
    {"1of10", 1 * MS, 10 * MS, 1}, {"4of20", 4 * MS, 20 * MS, 1}, {"busy1", MS, MS, 1},
    {"busy2", MS, MS, 2},          {"busy4", MS, MS, 4},          {"short-lived", 0, 0, 0},
};

static int64_t
now_ns(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void
pin(int cpu)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
}

static void
take_cpu(const noise_kind *kind, int cpu)
{
    struct timespec rest = {.tv_nsec = kind->period_ns - kind->on_ns};

    pin(cpu);
    for (;;) {
        int64_t until = now_ns() + kind->on_ns;
        while (now_ns() < until) {
        }
        if (rest.tv_nsec > 0) {
            nanosleep(&rest, NULL);
        }
    }
}

/* Starts programs that load their libraries and exit, one after another. */
static void
start_short_lived(void)
{
    for (;;) {
        pid_t pid = fork();
        if (pid == 0) {
            execl("/bin/true", "true", (char *)NULL);
            _exit(1);
        }
        if (pid < 0 || waitpid(pid, NULL, 0) != pid) {
            usleep(1000);
        }
    }
}

static void
start_process(const noise_kind *kind, int cpu)
{
    pid_t parent = getpid();
    pid_t pid = fork();

    if (pid < 0) {
        perror("fork");
        exit(1);
    }
    if (pid > 0) {
        return;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) { /* the parent exited before prctl() */
        _exit(1);
    }
    close(STDIN_FILENO);
    if (kind->nloops > 0) {
        take_cpu(kind, cpu);
    } else {
        start_short_lived();
    }
}

static const noise_kind *
find_kind(const char *name)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(kinds[i].name, name) == 0) {
            return &kinds[i];
        }
    }
    return NULL;
}

int
main(int argc, char **argv)
{
    const noise_kind *kind = argc > 2 ? find_kind(argv[1]) : NULL;
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};

    if (kind == NULL) {
        fprintf(stderr, "usage: noise 1of10|4of20|busy1|busy2|busy4|short-lived CPU...\n");
        return 2;
    }
    for (int i = 2; i < argc; i++) {
        for (int loop = 0; loop == 0 || loop < kind->nloops; loop++) {
            start_process(kind, atoi(argv[i]));
        }
    }
    puts("ready");
    fflush(stdout);
    poll(&input, 1, MOST_SECONDS * 1000);
    return 0;
}
