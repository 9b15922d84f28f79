#include "runner.h"

#include "core/clock.h"
#include "net/crypto.h"
#include "ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LIMIT_NS (400 * DD_NS_PER_S)
#define LIMIT_STEPS INT64_C(400000000)
#define LIMIT_CPU_S 60 /* CPU time, because the machine may be busy */
#define SEEDS_PER_CHILD 500

void
run_here(const run_spec *spec, bool is_by_sends, run_result *result)
{
    scenario which;
    scenario_make(&which, spec->seed, spec->fault_kinds);
    scenario_apply(&which, &spec->edit);
    which.world.is_traced = spec->is_traced;
    sim_begin(&which.world);
    (void)!dd_crypto_load(NULL); /* once per program, independent of the seed */
    ranks_spawn(&which);
    for (int i = 0; i < which.nfaults; i++) {
        sim_plan_fault(&which.faults[i]);
    }
    sim_outcome outcome = sim_run(LIMIT_NS, LIMIT_STEPS);
    *result = (run_result){.digest = sim_digest(), .nsteps = sim_nsteps(), .now_ns = sim_now_ns()};
    verdict_find(&which, outcome, spec->is_strict, result->verdict);
    for (int i = 0; i < which.nfaults; i++) {
        result->nfaults += sim_has_happened(i);
    }
    if (spec->is_traced || (is_by_sends && result->verdict[0] != '\0')) {
        printf("seed %llu: %s\n", (unsigned long long)spec->seed,
               result->verdict[0] != '\0' ? result->verdict : "all is well");
        scenario_print(&which);
        printf("  %lld steps, %.6f s, digest %016llx\n", (long long)result->nsteps,
               (double)result->now_ns / 1e9, (unsigned long long)result->digest);
        if (outcome != SIM_ALL_ENDED) {
            sim_print_threads();
        }
    }
    sim_end();
}

/* ---- children, which return their results in memory shared with the parent */

typedef struct child_board {
    uint64_t seed; /* the seed that is running */
    run_result result;
    run_summary summary;
} child_board;

static void
limit_seconds(void)
{
    struct itimerval limit = {.it_value.tv_sec = LIMIT_CPU_S};
    (void)setitimer(ITIMER_PROF, &limit, NULL);
}

static child_board *
map_board(void)
{
    child_board *board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED) {
        perror("sim: mmap");
        exit(2);
    }
    return board;
}

/* Fork a child. Return 0 in the child. */
static pid_t
begin_child(void)
{
    (void)fflush(stdout);
    pid_t pid = fork();
    if (pid < 0) {
        perror("sim: fork");
        exit(2);
    }
    return pid;
}

static void
end_child(void)
{
    (void)fflush(stdout);
    _exit(0);
}

/* Wait for the child. Set text to "" if it exited normally. */
static void
await_child(pid_t pid, char text[VERDICT_MAX])
{
    int status = 0;
    text[0] = '\0';
    if (waitpid(pid, &status, 0) == pid && WIFSIGNALED(status)) {
        (void)snprintf(text, VERDICT_MAX, "%s",
                       WTERMSIG(status) == SIGPROF ? "it runs without calling the simulator"
                                                   : strsignal(WTERMSIG(status)));
    } else if (WEXITSTATUS(status) != 0) {
        (void)snprintf(text, VERDICT_MAX, "exit status %d", WEXITSTATUS(status));
    }
}

void
run_apart(const run_spec *spec, run_result *result)
{
    child_board *board = map_board();
    pid_t pid = begin_child();
    if (pid == 0) {
        limit_seconds();
        run_here(spec, false, &board->result);
        end_child();
    }
    char crash[VERDICT_MAX];
    await_child(pid, crash);
    *result = board->result;
    if (crash[0] != '\0') {
        memcpy(result->verdict, crash, sizeof crash);
    }
    (void)munmap(board, sizeof *board);
}

/* The C library's clock, under the name that the linker gives it with --wrap. */
int __real_clock_gettime(clockid_t clock, struct timespec *now);

static double
real_seconds(void)
{
    struct timespec now;
    (void)__real_clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void
note_failure(run_summary *summary, uint64_t seed)
{
    if (summary->nfailed < sizeof summary->failed / sizeof summary->failed[0]) {
        summary->failed[summary->nfailed] = seed;
    }
    summary->nfailed++;
}

static void
check_replay(const run_spec *spec, run_result *result)
{
    run_result again;
    run_apart(spec, &again);
    if (again.digest != result->digest && result->verdict[0] == '\0') {
        (void)snprintf(result->verdict, VERDICT_MAX, "digest %016llx, and %016llx in a process of its own",
                       (unsigned long long)result->digest, (unsigned long long)again.digest);
        printf("seed %llu: %s\n", (unsigned long long)spec->seed, result->verdict);
    }
}

static void
run_some(const run_batch *batch, child_board *board, uint64_t first, uint64_t end, double until_s)
{
    run_summary *summary = &board->summary;
    for (uint64_t seed = first; seed < end && (until_s == 0 || real_seconds() < until_s); seed++) {
        run_spec spec = {.seed = seed, .fault_kinds = batch->fault_kinds, .is_strict = batch->is_strict};
        run_result result;
        board->seed = seed;
        limit_seconds();
        run_here(&spec, true, &result);
        if (batch->is_replayed) {
            check_replay(&spec, &result);
        }
        summary->nseeds++;
        summary->nsteps += (uint64_t)result.nsteps;
        summary->nfaults += (uint64_t)result.nfaults;
        summary->simulated_s += (double)result.now_ns / 1e9;
        if (result.verdict[0] != '\0') {
            note_failure(summary, seed);
        }
    }
}

void
run_many(const run_batch *batch, run_summary *summary)
{
    child_board *board = map_board();
    double began_s = real_seconds();
    double until_s = batch->seconds > 0 ? began_s + batch->seconds : 0;
    uint64_t end = batch->nseeds > 0 ? batch->first_seed + batch->nseeds : UINT64_MAX;
    uint64_t seed = batch->first_seed;
    while (seed < end && (until_s == 0 || real_seconds() < until_s)) {
        uint64_t last = end - seed < SEEDS_PER_CHILD ? end : seed + SEEDS_PER_CHILD;
        pid_t pid = begin_child();
        if (pid == 0) {
            run_some(batch, board, seed, last, until_s);
            end_child();
        }
        char crash[VERDICT_MAX];
        await_child(pid, crash);
        if (crash[0] != '\0') {
            printf("seed %llu: %s\n", (unsigned long long)board->seed, crash);
            board->summary.nseeds++;
            note_failure(&board->summary, board->seed);
            last = board->seed + 1;
        }
        seed = last;
    }
    *summary = board->summary;
    summary->seconds = real_seconds() - began_s;
    (void)munmap(board, sizeof *board);
}
