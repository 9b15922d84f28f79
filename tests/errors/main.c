/* Run programs of a few ranks in which a system call fails, one in each run: every call that can
 * fail, at every place where the programs make it, with every errno in its manual page.
 * docs/contributing/failing-calls.md describes the checks.
 *
 *     errors [--share N] [--jobs N] [--programs shm,tcp] [--calls mmap,sendmsg] [--errors EMFILE,24] [--at N] [--victim RANK] [--verbose]
 *
 * --share 20 makes every 20th run, --at N only runs with the N-th call of each kind. The exit
 * status is 1 if a promise was broken. */
#include "faults/faults.h"
#include "table.h"
#include "verdict.h"

#include <execinfo.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define JOBS_MAX 16
#define RUNS_MAX ((size_t)400000)
/* For calls that a program repeats: the first ones, and a sample of later ones. */
#define FIRST_CALLS 40
#define LATER_CALLS 20
#define LIMIT_NS (4 * DD_NS_PER_S)
/* Each group waits ten seconds for a rank that cannot pass descriptors, and its host then uses
 * messages. Ranks try for half a minute to connect to a rank that cannot accept connections. */
#define LONG_LIMIT_NS (35 * DD_NS_PER_S)
#define COMPLAINTS_SHOWN 400

typedef struct settings {
    long share;
    int njobs;
    const char *programs; /* separated by commas; NULL: all */
    const char *calls;
    const char *errors;
    long at;    /* -1: all */
    int victim; /* -1: first and last */
    bool is_verbose;
    int slow;
} settings;

/* Outcomes of runs by kind of call, in shared memory. */
typedef struct tally {
    atomic_long outcomes[DD_SYS_CALL_COUNT][OUTCOME_COUNT];
    atomic_long nlasting;
    atomic_long next;
    atomic_long ncomplaints;
} tally;

static bool
is_listed(const char *list, const char *name)
{
    size_t len = strlen(name);
    for (const char *at = list; at != NULL && *at != '\0';) {
        size_t part = strcspn(at, ",");
        if (part == len && strncmp(at, name, len) == 0) {
            return true;
        }
        at += part + (at[part] == ',' ? 1 : 0);
    }
    return list == NULL;
}

/* ---- selection of runs */

typedef struct plan {
    trial *trials;
    size_t count;
} plan;

/* Return true if the server cannot accept connections: its clients then retry until their timeouts,
 * because the failure may be temporary. */
static bool
is_awaited(const trial *trial_spec)
{
    bool is_servers = trial_spec->program->has_own_store && trial_spec->victim == 0;
    return is_servers && trial_spec->fault.is_lasting &&
           (trial_spec->fault.call == DD_SYS_accept4 || trial_spec->fault.call == DD_SYS_epoll_ctl);
}

/* Exclude writes of programs that do not write files: they only ring bells, and that cannot
 * fail. */
static bool
is_possible(const trial *trial_spec)
{
    return (trial_spec->fault.call != DD_SYS_write || trial_spec->program->writes_files) &&
           !is_awaited(trial_spec);
}

static void
plan_errors(plan *all, const settings *set, trial trial_spec)
{
    const int *errors = errors_of(trial_spec.fault.call);
    for (int i = 0; errors[i] != 0; i++) {
        trial_spec.fault.error_number = errors[i];
        int nkinds = is_error_lasting(trial_spec.fault.call, errors[i]) ? 2 : 1;
        for (int kind = 0; kind < nkinds && is_listed(set->errors, strerrorname_np(errors[i])); kind++) {
            trial_spec.fault.is_lasting = kind == 1;
            if (is_possible(&trial_spec) && all->count < RUNS_MAX) {
                all->trials[all->count++] = trial_spec;
            }
        }
    }
}

static void
plan_calls(plan *all, const settings *set, trial trial_spec, long ncalls)
{
    long stride = ncalls > FIRST_CALLS + LATER_CALLS ? (ncalls - FIRST_CALLS) / LATER_CALLS : 1;
    for (long number = 0; number < ncalls; number += number < FIRST_CALLS ? 1 : stride) {
        trial_spec.fault.number = number;
        if (set->at < 0 || set->at == number) {
            plan_errors(all, set, trial_spec);
        }
    }
}

/* Run the program without a fault to count the calls of each rank. This run must pass. */
static bool
plan_program(plan *all, const settings *set, trial_place *place, const test_program *program)
{
    trial_result result;
    trial trial_spec = {.program = program, .fault = {.number = -1}};
    trial_run(place, &trial_spec, LIMIT_NS * set->slow, &result);
    verdict v = judge(&trial_spec, &result);
    if (v.outcome != OUTCOME_UNREACHED) {
        printf("%s, without any failure: %s\n", program->name, v.complaint);
        return false;
    }
    for (int victim = 0; victim<program->size; victim += program->size> 1 ? program->size - 1 : 1) {
        trial_spec.victim = victim;
        for (int call = 0; call < DD_SYS_CALL_COUNT; call++) {
            trial_spec.fault.call = (dd_sys_call)call;
            if (is_listed(set->calls, dd_sys_call_name(trial_spec.fault.call)) &&
                (set->victim < 0 || set->victim == victim)) {
                plan_calls(all, set, trial_spec, result.board.ranks[victim].ncalls[call]);
            }
        }
    }
    return true;
}

static bool
make_plan(plan *all, const settings *set)
{
    trial_place place;
    bool is_well = trial_place_init(&place, 0);
    for (int i = 0; i < nprograms && is_well; i++) {
        if (is_listed(set->programs, programs[i].name)) {
            is_well = plan_program(all, set, &place, &programs[i]);
        }
    }
    trial_place_fini(&place);
    return is_well;
}

/* ---- execution of runs */

static void
show_trace(const rank_report *report)
{
    extern const char __executable_start;
    char command[1024] = "";
    size_t used =
        (size_t)snprintf(command, sizeof command, "addr2line -s -f -p -e /proc/%d/exe", (int)getpid());
    for (int i = 2; i < report->trace_depth && used < sizeof command - 32; i++) {
        used += (size_t)snprintf(command + used, sizeof command - used, " %zx",
                                 (size_t)((const char *)report->trace[i] - &__executable_start - 1));
    }
    FILE *lines = report->trace_depth > 2 ? popen(command, "r") : NULL;
    char line[256];
    while (lines != NULL && fgets(line, sizeof line, lines) != NULL) {
        if (strchr(line, '?') == NULL) {
            printf("        %s", line);
        }
    }
    if (lines != NULL) {
        (void)pclose(lines);
    }
}

static void
show(const trial *trial_spec, const trial_result *result, const verdict *v)
{
    printf("%s: %s %ld of rank %d fails%s with %s: %s%s\n", trial_spec->program->name,
           dd_sys_call_name(trial_spec->fault.call), trial_spec->fault.number, trial_spec->victim,
           trial_spec->fault.is_lasting ? ", and all later ones," : "",
           strerrorname_np(trial_spec->fault.error_number), v->outcome == OUTCOME_WRONG ? "" : "fine",
           v->complaint);
    for (int rank = 0; rank < trial_spec->program->size; rank++) {
        const rank_report *report = &result->board.ranks[rank];
        printf("    rank %d, %.0f ms: %s: %s\n", rank, (double)report->elapsed_ns * 1e-6,
               report->step != NULL ? report->step : "?",
               report->error.code != DD_OK ? report->error.message : "(no error)");
    }
    show_trace(&result->board.ranks[trial_spec->victim]);
}

static int64_t
limit_of(const trial *trial_spec)
{
    bool is_unresponsive =
        trial_spec->fault.call == DD_SYS_sendmsg || trial_spec->fault.call == DD_SYS_accept4;
    return trial_spec->fault.is_lasting && is_unresponsive ? LONG_LIMIT_NS : LIMIT_NS;
}

static void
run_one(trial_place *place, const settings *set, const trial *trial_spec, tally *counts)
{
    trial_result result;
    trial_run(place, trial_spec, limit_of(trial_spec) * set->slow, &result);
    verdict v = judge(trial_spec, &result);
    atomic_fetch_add(&counts->outcomes[trial_spec->fault.call][v.outcome], 1);
    bool is_wrong = v.outcome == OUTCOME_WRONG;
    if ((is_wrong && atomic_fetch_add(&counts->ncomplaints, 1) < COMPLAINTS_SHOWN) || set->is_verbose) {
        show(trial_spec, &result, &v);
    }
}

/* Run the remaining trials one after the other. */
static int
work_through(const plan *all, const settings *set, tally *counts, int id)
{
    trial_place place;
    static char buffer[1 << 16];
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    if (!trial_place_init(&place, id)) {
        return 2;
    }
    for (;;) {
        long next = atomic_fetch_add(&counts->next, set->share);
        if ((size_t)next >= all->count) {
            break;
        }
        run_one(&place, set, &all->trials[next], counts);
        (void)fflush(stdout);
    }
    trial_place_fini(&place);
    return 0;
}

static bool
run_all(const plan *all, const settings *set, tally *counts)
{
    bool is_well = true;
    pid_t pids[JOBS_MAX];
    (void)fflush(NULL);
    for (int i = 0; i < set->njobs; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            _exit(work_through(all, set, counts, i + 1));
        }
    }
    for (int i = 0; i < set->njobs; i++) {
        int status = 0;
        is_well = waitpid(pids[i], &status, 0) == pids[i] && status == 0 && is_well;
    }
    return is_well;
}

/* ---- results */

static void
print_row(const char *name, int nerrors, const long *outcomes)
{
    long nruns = 0;
    for (int i = 0; i < OUTCOME_COUNT; i++) {
        nruns += outcomes[i];
    }
    printf("%-15s %6d %8ld %9ld %9ld %9ld %9ld %9ld %9ld\n", name, nerrors, nruns, outcomes[OUTCOME_SURVIVED],
           outcomes[OUTCOME_LOCAL], outcomes[OUTCOME_REPORTED], outcomes[OUTCOME_ALONE],
           outcomes[OUTCOME_UNREACHED], outcomes[OUTCOME_WRONG]);
}

static long
print_summary(tally *counts, double seconds)
{
    long sums[OUTCOME_COUNT] = {0};
    int nerrors_in_all = 0;
    printf("%-15s %6s %8s %9s %9s %9s %9s %9s %9s\n", "call", "errnos", "runs", "survived", "local",
           "reported", "alone", "unreached", "wrong");
    for (int call = 0; call < DD_SYS_CALL_COUNT; call++) {
        long outcomes[OUTCOME_COUNT];
        long nruns = 0;
        int nerrors = 0;
        for (int i = 0; i < OUTCOME_COUNT; i++) {
            outcomes[i] = atomic_load(&counts->outcomes[call][i]);
            nruns += outcomes[i];
            sums[i] += outcomes[i];
        }
        while (errors_of((dd_sys_call)call)[nerrors] != 0) {
            nerrors++;
        }
        if (nruns > 0) {
            print_row(dd_sys_call_name((dd_sys_call)call), nerrors, outcomes);
            nerrors_in_all += nerrors;
        }
    }
    print_row("all", nerrors_in_all, sums);
    printf("in %.0f s\n", seconds);
    return sums[OUTCOME_WRONG];
}

static bool
read_settings(int argc, char **argv, settings *set)
{
    static const struct option options[] = {
        {"share", required_argument, NULL, 's'},
        {"jobs", required_argument, NULL, 'j'},
        {"programs", required_argument, NULL, 'p'},
        {"calls", required_argument, NULL, 'c'},
        {"errors", required_argument, NULL, 'e'},
        {"at", required_argument, NULL, 'a'},
        {"victim", required_argument, NULL, 'v'},
        {"verbose", no_argument, NULL, 'V'},
        {NULL, 0, NULL, 0},
    };
    const char *slow = getenv("DLDIST_TEST_SLOW");
    *set = (settings){.share = 1, .njobs = 4, .at = -1, .victim = -1, .slow = slow != NULL ? atoi(slow) : 1};
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (option) {
        case 's':
            set->share = atol(optarg);
            break;
        case 'j':
            set->njobs = atoi(optarg);
            break;
        case 'p':
            set->programs = optarg;
            break;
        case 'c':
            set->calls = optarg;
            break;
        case 'e':
            set->errors = optarg;
            break;
        case 'a':
            set->at = atol(optarg);
            break;
        case 'v':
            set->victim = atoi(optarg);
            break;
        case 'V':
            set->is_verbose = true;
            break;
        default:
            return false;
        }
    }
    return optind == argc && set->share > 0 && set->njobs > 0 && set->njobs <= JOBS_MAX && set->slow > 0;
}

int
main(int argc, char **argv)
{
    settings set;
    if (!read_settings(argc, argv, &set)) {
        fprintf(stderr, "what that means: see the top of tests/errors/main.c\n");
        return 2;
    }
    plan all = {.trials = calloc(RUNS_MAX, sizeof(trial))};
    tally *counts = mmap(NULL, sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all.trials == NULL || counts == MAP_FAILED) {
        perror("memory");
        return 2;
    }
    int64_t start_ns = dd_clock_now_ns();
    void *warm[1];
    (void)backtrace(warm, 1); /* loads a library at the first call */
    bool is_well = make_plan(&all, &set) && run_all(&all, &set, counts);
    long nwrong = print_summary(counts, (double)(dd_clock_now_ns() - start_ns) * 1e-9);
    free(all.trials);
    return is_well && nwrong == 0 ? 0 : 1;
}
