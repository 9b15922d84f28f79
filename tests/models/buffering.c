/* Load buffering: a load that returns what follows from a later store of its own thread. Compilers and Arm let stores pass loads that come
 * before them. The model of memory does not; so all runs are looked through for what could become of it.
 *
 * It takes a ring: a thread loads x and later stores y, another loads that value of y and later stores z, and so on, until one stores the value of x
 * that was loaded. If each store waited for its load, none of them could be the first. So at least one pair is *open*: its load is no
 * acquire, its store no release, and there is no fence between them. (On Arm a store also waits for loads that it depends
 * on. That is not relied on.) A scenario has no load buffering if none of its open pairs is in a ring.
 *
 * Why it is enough to look at runs, which have no such ring: take the first load, in the order in which a machine does things, that closes one. Stores
 * that have been done before loads of their threads do not depend on what these return. So what has been done until then
 * is a run, in which those loads have returned older values: it has the same pairs.
 *
 * The pairs of a scenario are all put together, whatever runs they are of.
 *   - Accesses that are not atomic are left out, and so are variables whose accesses are all ordered by others. With such a value goes a release
 *     that an acquire has seen, and the ring that takes this way has no open pair there.
 *   - A pair of one variable opens no ring: the stores of a variable are in one order for all, and a load sees nothing that comes in it after its
 *     thread's next store.
 *   - That membarrier orders what other threads do, is not relied on.
 *
 * A run ends where a state is known. What its threads have accessed by then, is the same as in the run that has gone on from there: it
 * follows from what they have seen since the run began, or since they last forgot it (checker_forget). What a thread has loaded when it
 * forgets is taken as being before all that it stores after it has forgotten, in any run. */
#include "models/memory_internal.h"

#include <stdlib.h>
#include <string.h>

#define MAX_ACCESSES 2048 /* of each kind, by place and variable */
#define NWORDS (MAX_ACCESSES / 64)

typedef uint64_t access_set[NWORDS];

/* Where in the code, and of which variable. */
typedef struct access {
    const void *site; /* NULL: by the kernel */
    uintptr_t address;
} access;

typedef struct access_table {
    access of[MAX_ACCESSES];
    int by_hash[4 * MAX_ACCESSES]; /* one more than the number; 0: none */
    int count;
} access_table;

static access_table loads;
static access_table stores;

/* For each store of a thread, what it has loaded before, in any run. */
static access_set before[CHECKER_MAX_THREADS][MAX_ACCESSES];
static access_set open_before[CHECKER_MAX_THREADS][MAX_ACCESSES];

/* What a thread has done since the run began, or since it last forgot. */
typedef struct thread_part {
    access_set loaded;
    access_set open; /* of them: a store that is no release does not wait for these */
    bool has_forgotten;
    bool has_fenced;
} thread_part;

static thread_part parts[CHECKER_MAX_THREADS];

/* Of all runs: what a thread had loaded when it forgot, and what it has stored when it had forgotten. */
typedef struct forgotten_part {
    access_set loaded;
    access_set open;
    access_set stored;
    access_set stored_open; /* of them: no releases, and no fence has come before */
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
/* Which a thread stores after it has loaded one. */
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

/* From a store of the variable by that thread on: others see it. */
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
        printf("  load buffering: thread %d: %s may see what comes of ", thread,
               weaken_describe(loads.of[load].site));
        printf("%s\n", weaken_describe(stores.of[store].site));
    }
}

int
buffering_count_open(bool is_told)
{
    is_telling = is_told;
    nopen = 0;
    find_leads();
    for_each_pair(open_before, note_ring);
    return nopen;
}
