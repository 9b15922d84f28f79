/* Detection of load buffering: a load that returns a value which depends on a later store of its
 * own thread. Compilers and Arm let stores pass earlier loads. The memory model does not produce
 * such runs, so this file searches all runs for accesses that could lead to one.
 *
 * Load buffering needs a ring: a thread loads x and later stores y, another loads that value of y
 * and later stores z, and so on, until one stores the value of x that was loaded. If each store
 * waited for its load, no store could be the first. So at least one pair is *open*: its load is not
 * an acquire, its store is not a release, and there is no fence between them. (On Arm a store also
 * waits for loads that it depends on; the search does not rely on that.) A scenario has no load
 * buffering if none of its open pairs is in a ring.
 *
 * Runs without load buffering suffice for the search. Proof: take the first load, in the order of
 * execution on a machine, that closes a ring. Stores that were executed before earlier loads of
 * their threads do not depend on the values of these loads. So the execution up to that load is a
 * run in which those loads return older values, and that run has the same pairs.
 *
 * The search combines the pairs of all runs of a scenario.
 *   - It excludes accesses that are not atomic, and variables whose accesses are all ordered by
 *     other variables. Such a value travels with a release that an acquire reads, so a ring through
 *     it has no open pair there.
 *   - A pair with one variable cannot open a ring: all threads see the stores of a variable in one
 *     order, and a load cannot read a store that follows its thread's next store.
 *   - The search does not rely on the order that membarrier imposes on other threads.
 *
 * A run ends when it reaches a known state. The accesses of its threads up to there are the same as
 * in the run that continued from that state: they follow from the values that the threads have read
 * since the start of the run, or since they last forgot (checker_forget). In every run, loads
 * before a thread forgets are treated as preceding all of its stores afterwards. */
#include "models/memory_internal.h"

#include <stdlib.h>
#include <string.h>

#define MAX_ACCESSES 2048 /* of each kind, by code address and variable */
#define NWORDS (MAX_ACCESSES / 64)

typedef uint64_t access_set[NWORDS];

/* A code address and a variable. */
typedef struct access {
    const void *site; /* NULL for an access by the kernel */
    uintptr_t address;
} access;

typedef struct access_table {
    access of[MAX_ACCESSES];
    int by_hash[4 * MAX_ACCESSES]; /* index + 1; 0 if empty */
    int count;
} access_table;

static access_table loads;
static access_table stores;

/* For each store of a thread, the loads that precede it in any run. */
static access_set before[CHECKER_MAX_THREADS][MAX_ACCESSES];
static access_set open_before[CHECKER_MAX_THREADS][MAX_ACCESSES];

/* The accesses of a thread since the run began, or since it last forgot. */
typedef struct thread_part {
    access_set loaded;
    /* a subset of loaded: a store that is not a release does not wait for these loads */
    access_set open;
    bool has_forgotten;
    bool has_fenced;
} thread_part;

static thread_part parts[CHECKER_MAX_THREADS];

/* In all runs: the loads of a thread before it forgot, and its stores afterwards. */
typedef struct forgotten_part {
    access_set loaded;
    access_set open;
    access_set stored;
    access_set stored_open; /* a subset of stored: not releases, and no fence precedes them */
} forgotten_part;

static forgotten_part forgotten[CHECKER_MAX_THREADS];

static bool
is_in(const access_set set, int at)
{
    return (set[at / 64] >> at % 64 & 1) != 0;
}

static void
add(access_set set, int at)
{
    set[at / 64] |= UINT64_C(1) << at % 64;
}

static void
add_all(access_set set, const access_set others)
{
    for (int i = 0; i < NWORDS; i++) {
        set[i] |= others[i];
    }
}

static int
find_access(access_table *table, const void *site, uintptr_t address)
{
    uint64_t hash = memory_mix(address, (uintptr_t)site);
    size_t at = (size_t)hash & (4 * MAX_ACCESSES - 1);
    while (table->by_hash[at] != 0 && (table->of[table->by_hash[at] - 1].site != site ||
                                       table->of[table->by_hash[at] - 1].address != address)) {
        at = (at + 1) & (4 * MAX_ACCESSES - 1);
    }
    if (table->by_hash[at] == 0) {
        if (table->count == MAX_ACCESSES) {
            explore_fail("the scenario has too many atomic accesses");
        }
        table->of[table->count++] = (access){site, address};
        table->by_hash[at] = table->count;
    }
    return table->by_hash[at] - 1;
}

void
buffering_begin_scenario(void)
{
    memset(&loads, 0, sizeof loads);
    memset(&stores, 0, sizeof stores);
    memset(before, 0, sizeof before);
    memset(open_before, 0, sizeof open_before);
    memset(forgotten, 0, sizeof forgotten);
}

void
buffering_begin_run(void)
{
    memset(parts, 0, sizeof parts);
}

void
buffering_note_load(uintptr_t address, const void *site, memory_order_ order)
{
    thread_part *self = &parts[checker_self()];
    int load = find_access(&loads, site, address);
    add(self->loaded, load);
    if (!memory_is_acquire(order)) {
        add(self->open, load);
    }
}

void
buffering_note_store(uintptr_t address, const void *site, memory_order_ order)
{
    int thread = checker_self();
    const thread_part *self = &parts[thread];
    bool is_release = memory_is_release(order);
    int store = find_access(&stores, site, address);
    add_all(before[thread][store], self->loaded);
    if (!is_release) {
        add_all(open_before[thread][store], self->open);
    }
    if (self->has_forgotten) {
        add(forgotten[thread].stored, store);
    }
    if (self->has_forgotten && !self->has_fenced && !is_release) {
        add(forgotten[thread].stored_open, store);
    }
}

void
buffering_note_fence(memory_order_ order)
{
    thread_part *self = &parts[checker_self()];
    if (memory_is_acquire(order) || memory_is_release(order)) {
        memset(self->open, 0, sizeof self->open);
        self->has_fenced = true;
    }
}

void
buffering_forget(void)
{
    thread_part *self = &parts[checker_self()];
    add_all(forgotten[checker_self()].loaded, self->loaded);
    add_all(forgotten[checker_self()].open, self->open);
    memset(self, 0, sizeof *self);
    self->has_forgotten = true;
}

/* ---- rings */

#define MAX_VARIABLES MAX_LOCATIONS

static uintptr_t variables[MAX_VARIABLES];
static int nvariables;
/* leads[thread][loaded][stored] */
static bool leads[CHECKER_MAX_THREADS][MAX_VARIABLES][MAX_VARIABLES];

static int
find_variable(uintptr_t address)
{
    int at = 0;
    while (at < nvariables && variables[at] != address) {
        at++;
    }
    if (at == nvariables) {
        variables[nvariables++] = address;
    }
    return at;
}

static void
for_each_pair(access_set of[CHECKER_MAX_THREADS][MAX_ACCESSES], void (*see)(int thread, int load, int store))
{
    for (int thread = 0; thread < CHECKER_MAX_THREADS; thread++) {
        for (int store = 0; store < stores.count; store++) {
            for (int load = 0; load < loads.count; load++) {
                if (is_in(of[thread][store], load)) {
                    see(thread, load, store);
                }
            }
        }
    }
}

static void
note_lead(int thread, int load, int store)
{
    leads[thread][find_variable(loads.of[load].address)][find_variable(stores.of[store].address)] = true;
}

static void
find_leads(void)
{
    for (int thread = 0; thread < CHECKER_MAX_THREADS; thread++) {
        for (int store = 0; store < stores.count; store++) {
            if (is_in(forgotten[thread].stored, store)) {
                add_all(before[thread][store], forgotten[thread].loaded);
            }
            if (is_in(forgotten[thread].stored_open, store)) {
                add_all(open_before[thread][store], forgotten[thread].open);
            }
        }
    }
    nvariables = 0;
    memset(leads, 0, sizeof leads);
    for_each_pair(before, note_lead);
}

static bool is_reached[CHECKER_MAX_THREADS][MAX_VARIABLES];

/* Mark all threads and variables that can depend on a store of this variable by this thread. */
static void
reach_from(int thread, int variable)
{
    for (int other = 0; other < CHECKER_MAX_THREADS; other++) {
        for (int next = 0; other != thread && next < nvariables; next++) {
            if (leads[other][variable][next] && !is_reached[other][next]) {
                is_reached[other][next] = true;
                reach_from(other, next);
            }
        }
    }
}

static bool
is_in_ring(int thread, int load, int store)
{
    int from = find_variable(loads.of[load].address);
    int to = find_variable(stores.of[store].address);
    bool is_ring = false;
    memset(is_reached, 0, sizeof is_reached);
    reach_from(thread, to);
    for (int other = 0; from != to && other < CHECKER_MAX_THREADS; other++) {
        is_ring = is_ring || (other != thread && is_reached[other][from]);
    }
    return is_ring;
}

static bool is_telling;
static int nopen;

static void
note_ring(int thread, int load, int store)
{
    if (is_in_ring(thread, load, store)) {
        nopen++;
    }
    if (is_in_ring(thread, load, store) && is_telling) {
        printf("  load buffering: thread %d: %s may see a result of ", thread,
               weaken_describe(loads.of[load].site));
        printf("%s\n", weaken_describe(stores.of[store].site));
    }
}

int
buffering_count_open(bool is_verbose)
{
    is_telling = is_verbose;
    nopen = 0;
    find_leads();
    for_each_pair(open_before, note_ring);
    return nopen;
}
