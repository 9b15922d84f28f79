/* The exploration: decisions, and the runs that make them. A state consists of the values that
 * every thread has read (which determine its place in the code) and the memory. Two runs that reach
 * the same state continue alike, so only the first continues. */
#include "models/checker_internal.h"
#include "models/standins.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucontext.h>

#define STACK_NBYTES ((size_t)256 << 10)
#define MAX_DECISIONS 100000
#define FIRST_STATES ((size_t)1 << 16)

typedef struct fiber {
    jmp_buf place;
    bool is_started;
    bool is_done;
    bool (*may_go_on)(const void *arg); /* NULL: the thread may continue */
    const void *arg;
    uint64_t seen; /* hash of all values that it has read */
} fiber;

typedef struct decision {
    int noptions;
    int taken;
} decision;

typedef enum run_end {
    RUN_ENDED = 1,
    RUN_PRUNED,
    RUN_FAILED,
    RUN_RESTART,
} run_end;

static const scenario *current;
static fiber fibers[CHECKER_MAX_THREADS];
static _Alignas(64) char stacks[CHECKER_MAX_THREADS][STACK_NBYTES];
int checker_running = -1;
static bool is_tracing;
static bool is_in_setup;
static jmp_buf around;
static ucontext_t starter;

static decision decisions[MAX_DECISIONS];
static size_t ndecisions;
static size_t next_decision;

static uint64_t *states; /* a hash table */
static size_t states_capacity;
static uint64_t nstates;

static char failure[512];

const scenario *
explore_current(void)
{
    return current;
}

bool
explore_is_tracing(void)
{
    return is_tracing;
}

bool
explore_is_on_stack(const void *at)
{
    const char *byte = at;
    return byte >= stacks[0] && byte < stacks[0] + sizeof stacks;
}

void
explore_trace(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("    %d: ", checker_running);
    vprintf(format, args);
    printf("\n");
    va_end(args);
}

_Noreturn static void
leave(run_end end)
{
    _longjmp(around, end);
}

void
explore_prune(void)
{
    leave(RUN_PRUNED);
}

void
explore_restart(void)
{
    leave(RUN_RESTART);
}

void
explore_fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int used = checker_running < 0 ? 0 : snprintf(failure, sizeof failure, "thread %d: ", checker_running);
    (void)vsnprintf(failure + used, sizeof failure - (size_t)used, format, args);
    va_end(args);
    if (is_in_setup) {
        (void)fprintf(stderr, "%s: setup: %s\n", current->name, failure);
        abort();
    }
    leave(RUN_FAILED);
}

void
checker_require(bool holds, const char *file, int line, const char *text)
{
    if (!holds) {
        explore_fail("%s:%d: %s", file, line, text);
    }
}

/* ---- states */

static uint64_t
mix(uint64_t hash, uint64_t value)
{
    hash ^= value + UINT64_C(0x9E3779B97F4A7C15) + (hash << 6) + (hash >> 2);
    hash *= UINT64_C(0xBF58476D1CE4E5B9);
    return hash ^ hash >> 29;
}

void
explore_note_seen(uint64_t value)
{
    fibers[checker_running].seen = mix(fibers[checker_running].seen, value);
}

void
explore_forget_seen(uint64_t hash)
{
    fibers[checker_running].seen = hash;
}

static void
forget_states(void)
{
    if (states == NULL) {
        states_capacity = FIRST_STATES;
        states = malloc(states_capacity * sizeof *states);
    }
    memset(states, 0, states_capacity * sizeof *states);
    nstates = 0;
}

static bool
insert_state(uint64_t *table, size_t capacity, uint64_t hash)
{
    size_t at = (size_t)hash & (capacity - 1);
    while (table[at] != 0 && table[at] != hash) {
        at = (at + 1) & (capacity - 1);
    }
    bool is_new = table[at] == 0;
    table[at] = hash;
    return is_new;
}

static void
grow_states(void)
{
    size_t capacity = 4 * states_capacity;
    uint64_t *table = calloc(capacity, sizeof *table);
    for (size_t i = 0; i < states_capacity; i++) {
        if (states[i] != 0) {
            (void)insert_state(table, capacity, states[i]);
        }
    }
    free(states);
    states = table;
    states_capacity = capacity;
}

static bool
is_state_new(void)
{
    unsigned live = 0;
    uint64_t hash = 0;
    for (int i = 0; i < current->nthreads; i++) {
        live |= fibers[i].is_done ? 0 : 1u << i;
        bool has_no_future = fibers[i].is_done && current->finish == NULL;
        hash = mix(hash, has_no_future ? 0 : fibers[i].seen);
    }
    hash = mix(hash, memory_hash(live));
    bool is_new = insert_state(states, states_capacity, hash != 0 ? hash : 1);
    nstates += is_new;
    if (nstates > states_capacity / 2) {
        grow_states();
    }
    return is_new;
}

/* ---- decisions */

int
explore_choose(int n)
{
    if (n <= 1) {
        return 0;
    }
    if (next_decision < ndecisions) {
        if (decisions[next_decision].noptions != n) {
            fprintf(stderr, "%s: the same decisions lead elsewhere\n", current->name);
            abort();
        }
        return decisions[next_decision++].taken;
    }
    if (ndecisions == MAX_DECISIONS) {
        explore_fail("a run does not end");
    }
    decisions[ndecisions++] = (decision){.noptions = n};
    next_decision = ndecisions;
    return 0;
}

/* Change the last decision that has another alternative. Return false if there is none. */
static bool
decide_otherwise(void)
{
    while (ndecisions > 0 && decisions[ndecisions - 1].taken + 1 == decisions[ndecisions - 1].noptions) {
        ndecisions--;
    }
    if (ndecisions == 0) {
        return false;
    }
    decisions[ndecisions - 1].taken++;
    return true;
}

/* ---- fibers */

static void run_fiber(void);

static void
resume(int target)
{
    checker_running = target;
    if (fibers[target].is_started) {
        _longjmp(fibers[target].place, 1);
    }
    fibers[target].is_started = true;
    (void)getcontext(&starter);
    starter.uc_stack.ss_sp = stacks[target];
    starter.uc_stack.ss_size = STACK_NBYTES;
    starter.uc_link = NULL;
    makecontext(&starter, run_fiber, 0);
    (void)setcontext(&starter);
}

/* Every thread runs to its first decision before any decision is made. */
static int
find_unstarted(void)
{
    for (int i = 0; i < current->nthreads; i++) {
        if (!fibers[i].is_started) {
            return i;
        }
    }
    return -1;
}

static int
choose_thread(void)
{
    int ready[CHECKER_MAX_THREADS];
    int nready = 0;
    int nleft = 0;
    for (int i = 0; i < current->nthreads; i++) {
        const fiber *each = &fibers[i];
        nleft += !each->is_done;
        if (!each->is_done && (each->may_go_on == NULL || each->may_go_on(each->arg))) {
            ready[nready++] = i;
        }
    }
    if (nleft == 0) {
        leave(RUN_ENDED);
    }
    if (nready == 0) {
        checker_running = -1;
        explore_fail("all %d threads that are left wait for each other", nleft);
    }
    if (!is_tracing && next_decision == ndecisions && !is_state_new()) {
        leave(RUN_PRUNED);
    }
    return ready[explore_choose(nready)];
}

static void
go_on(void)
{
    int target = find_unstarted();
    target = target >= 0 ? target : choose_thread();
    if (target == checker_running && !fibers[checker_running].is_done) {
        return;
    }
    if (!fibers[checker_running].is_done && _setjmp(fibers[checker_running].place) != 0) {
        return;
    }
    resume(target);
}

static void
run_fiber(void)
{
    current->thread(checker_running);
    fibers[checker_running].is_done = true;
    go_on();
}

void
explore_yield(bool (*may_go_on)(const void *arg), const void *arg)
{
    fibers[checker_running].may_go_on = may_go_on;
    fibers[checker_running].arg = arg;
    go_on();
    explore_note_seen(1); /* its place in the code */
    memory_note_turn();
}

/* ---- runs */

static run_end
run_once(void)
{
    memory_begin_run();
    buffering_begin_run();
    standins_begin_run();
    memset(fibers, 0, sizeof fibers);
    next_decision = 0;
    int end = _setjmp(around);
    if (end == 0) {
        resume(0);
    }
    checker_running = -1;
    if (end == RUN_ENDED && current->finish != NULL) {
        end = _setjmp(around);
        if (end == 0) {
            current->finish();
            end = RUN_ENDED;
        }
    }
    memory_end_run();
    return (run_end)end;
}

/* Return CPU time, because other programs may share the processor. */
static double
now_s(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void
explore_scenario(const scenario *which, uint64_t max_runs, bool with_trace, explore_result *result)
{
    double began_s = now_s();
    memset(result, 0, sizeof *result);
    current = which;
    memory_begin_scenario();
    buffering_begin_scenario();
    standins_begin_scenario();
    is_in_setup = true;
    if (which->setup != NULL) {
        which->setup();
    }
    is_in_setup = false;
    standins_end_setup();
    free(states); /* the states of the last scenario, which may be many */
    states = NULL;
    forget_states();
    ndecisions = 0;
    bool goes_on = true;
    while (goes_on) {
        run_end end = run_once();
        result->nruns++;
        goes_on = end != RUN_FAILED;
        if (end == RUN_FAILED) {
            result->end = EXPLORE_FAILED;
            memcpy(result->failure, failure, sizeof failure);
        } else if (end == RUN_RESTART) {
            forget_states();
            ndecisions = 0;
        } else if (result->nruns == max_runs) {
            result->end = EXPLORE_CUT;
            goes_on = false;
        } else {
            goes_on = decide_otherwise();
        }
    }
    result->nstates = nstates;
    if (result->end == EXPLORE_FAILED && with_trace) {
        is_tracing = true;
        printf("  %s, this way:\n", which->name);
        (void)run_once();
        is_tracing = false;
        printf("    %s\n", result->failure);
    }
    result->seconds = now_s() - began_s;
}
