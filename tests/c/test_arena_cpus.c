/* CPU placement: ranks that are bound, ranks that share a CPU. */
#include "check.h"
#include "collective/arena/arena.h"
#include "core/cpu.h"
#include "core/fork.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#define NTRIES 100

static bool
open_pair(dd_arena **pair)
{
    int fd = -1;
    bool is_ok = CHECK_OK(dd_arena_create(2, false, &fd, check_err()));
    for (int k = 0; k < 2 && is_ok; k++) {
        is_ok = CHECK_OK(dd_arena_attach(fd, 2, k, &pair[k], check_err()));
    }
    dd_fork_close(fd);
    return is_ok;
}

static void
close_pair(dd_arena **pair)
{
    dd_arena_close(pair[0]);
    dd_arena_close(pair[1]);
}

static void
bind_to(const int *cpus, int ncpus)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = 0; i < ncpus; i++) {
        CPU_SET((size_t)cpus[i], &set);
    }
    CHECK_INT(sched_setaffinity(0, sizeof set, &set), 0);
}

/* Find two CPUs that this thread may use, and bind the thread to them. Print a note and return
 * false if there is only one. */
static bool
take_two_cpus(int *cpus)
{
    dd_cpu_set own = dd_cpu_own_set();
    int nfound = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE && nfound < 2; cpu++) {
        if ((own.words[cpu / 64] >> cpu % 64 & 1) != 0) {
            cpus[nfound++] = cpu;
        }
    }
    if (nfound < 2) {
        printf("    skipped: this machine has one CPU\n");
        return false;
    }
    bind_to(cpus, 2);
    return true;
}

TEST(only_ranks_bound_to_the_same_cpu_count_as_sharing_a_cpu)
{
    int cpus[2];
    dd_arena *apart[2];
    dd_arena *together[2];
    if (!take_two_cpus(cpus) || !open_pair(apart) || !open_pair(together)) {
        return;
    }
    for (int k = 0; k < 2; k++) {
        bind_to(&cpus[k], 1);
        dd_arena_add_cpus(apart[k]);
        bind_to(&cpus[0], 1);
        dd_arena_add_cpus(together[k]);
    }
    for (int k = 0; k < 2; k++) {
        CHECK(!dd_arena_is_crowded(apart[k]));
        CHECK(dd_arena_is_crowded(together[k]));
    }
    bind_to(cpus, 2);
    close_pair(apart);
    close_pair(together);
}

static bool
is_affinity_of(const int *cpus, int ncpus)
{
    dd_cpu_set wanted = {{0}};
    for (int i = 0; i < ncpus; i++) {
        wanted.words[cpus[i] / 64] |= UINT64_C(1) << cpus[i] % 64;
    }
    dd_cpu_set own = dd_cpu_own_set();
    return memcmp(&own, &wanted, sizeof own) == 0;
}

/* Both ranks are on the first CPU, and this thread may run on either CPU; only the kernel decides
 * which. Return false if the kernel moved the thread before the call. */
static bool
yields_where_it_runs(const int *cpus)
{
    dd_arena *pair[2];
    if (!open_pair(pair)) {
        return true;
    }
    bind_to(&cpus[0], 1);
    dd_arena_note_cpu(pair[1]);
    bind_to(cpus, 2);
    bool must_make_way = dd_arena_must_yield_to(pair[0], 1);
    CHECK(is_affinity_of(cpus, 2));
    close_pair(pair);
    return must_make_way;
}

TEST(a_waiting_rank_yields_to_another_rank_on_the_same_cpu)
{
    int cpus[2];
    if (!take_two_cpus(cpus)) {
        return;
    }
    int ntries = 0;
    while (ntries < NTRIES && !yields_where_it_runs(cpus)) {
        ntries++;
    }
    CHECK(ntries < NTRIES);
}

TEST(a_waiting_rank_yields_only_to_a_rank_last_seen_on_the_same_cpu)
{
    int cpus[2];
    dd_arena *pair[2];
    if (!take_two_cpus(cpus) || !open_pair(pair)) {
        return;
    }
    bind_to(&cpus[1], 1);
    dd_arena_note_cpu(pair[0]);
    CHECK(!dd_arena_must_yield_to(pair[0], 1));
    dd_arena_note_cpu(pair[1]);
    CHECK(dd_arena_must_yield_to(pair[0], 1));
    bind_to(&cpus[0], 1);
    CHECK(!dd_arena_must_yield_to(pair[0], 1));
    bind_to(cpus, 2);
    close_pair(pair);
}
