/* The cost of an operation in events that can be counted: system calls, wake-ups, allocations,
 * bytes copied. Times are for benchmarks; counts are the same on every machine, even a busy one.
 *
 * A change that makes an operation cheaper lowers its limits in the tables below. No limit may
 * rise. */
#include "check.h"
#include "collective/run.h"
#include "copy_counter.h"
#include "core/lock.h"
#include "core/mem.h"
#include "faults/faults.h"
#include "group/internal.h"
#include "group_team.h"
#include "syscall_counter.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS_MOST 4
#define NBLOCKS 25
#define NCALLS 8
#define NWAKES 9
#define SMALL 8
#define LARGE ((size_t)256 << 10)

/* The way in which the last rank calls, when all other ranks have started their calls. */
typedef enum call_way {
    WAY_CALL,  /* one blocking call */
    WAY_ASYNC, /* an asynchronous call and a wait */
    WAY_PLAN,  /* a prepared call, started and waited for */
} call_way;

static const char *const way_names[] = {"call", "async", "plan"};

/* The cost of an operation whose resources are all set up: the other ranks start it, the last rank
 * calls, and the other ranks find it complete. The cheapest of several series counts, rounded up:
 * timers sometimes add work of their own, such as a check of the links. */
typedef struct costs {
    int last;   /* system calls of the last rank */
    int other;  /* of each other rank */
    int allocs; /* allocations of each rank */
} costs;

/* ---- a team whose calls are all made by one thread, so that no result depends on scheduling */

typedef struct shared_state shared_state;

typedef struct team_member {
    team_rank *rank;
    char *values; /* inputs, then outputs: a block for each rank */
    dd_block inputs[RANKS_MOST], outputs[RANKS_MOST];
    dd_coll_args args;
    dd_prepared_call *call;
    dd_work *work;
} team_member;

struct shared_state {
    syscall_counter *counter;
    int size;
    team_member members[RANKS_MOST];
    void (*measure)(shared_state *state);
};

static void
gather_team(team_rank *self)
{
    shared_state *state = self->arg;
    state->members[self->rank].rank = self;
    team_rendezvous(self, "all are here");
    if (self->rank == 0) {
        state->measure(state);
    }
    team_rendezvous(self, "all is done");
}

/* Run `body` in a child whose system calls are counted. If ptrace is refused, or sanitizers make
 * their own system calls, print that, and run without counts if there is more to check. */
static void
run_counted(int (*body)(void *arg), void *arg, syscall_counter **counter, bool has_more)
{
    const char *refusal = "sanitizers make some of their own";
    int status = 0;
    void *shared = mmap(NULL, sizeof **counter, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(shared != MAP_FAILED);
    *counter = shared;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    refusal = syscall_counter_run(*counter, body, arg, &status) ? NULL : strerror(errno);
#endif
    if (refusal != NULL) {
        printf("    skipped: system calls cannot be counted: %s\n", refusal);
        *counter = NULL;
        status = has_more ? body(arg) : 0;
    }
    CHECK_INT(status, 0);
    munmap(shared, sizeof **counter);
}

static int
leave(void)
{
    fflush(NULL);
    return check_failures() > 0 ? 1 : 0;
}

static int
run_team_of(void *arg)
{
    shared_state *state = arg;
    alarm((unsigned)(CHECK_TIMEOUT_S * check_slow()));
    team_run(&(team_options){.size = state->size}, gather_team, state);
    return leave();
}

static void
count_team(shared_state *state)
{
    run_counted(run_team_of, state, &state->counter, true);
}

/* Return the system calls of this thread; 0 if they are not counted. */
static long
nsyscalls(const shared_state *state)
{
    if (state->counter == NULL) {
        return 0;
    }
    static _Thread_local const counted_thread *mine;
    if (mine == NULL) {
        mine = syscall_counter_find(state->counter, (pid_t)syscall(SYS_gettid));
    }
    return mine != NULL ? atomic_load(&mine->ncalls) : -1;
}

static void
fill_blocks(dd_block *blocks, char *values, int count, size_t nbytes)
{
    for (int i = 0; i < count; i++) {
        blocks[i] = (dd_block){.data = values + (size_t)i * nbytes, .nbytes = nbytes};
    }
}

/* Every block has `nbytes`, and the last rank is not a root. In place if the Python call is. */
static bool
member_init(team_member *self, dd_coll coll, size_t nbytes)
{
    bool is_root = self->rank->rank == 0;
    int size = self->rank->size;
    self->values = calloc(2 * (size_t)size, nbytes);
    if (!CHECK(self->values != NULL)) {
        return false;
    }
    fill_blocks(self->inputs, self->values, dd_coll_ninputs(coll, is_root, size), nbytes);
    fill_blocks(self->outputs, self->values + (size_t)size * nbytes, dd_coll_noutputs(coll, is_root, size),
                nbytes);
    if (dd_coll_is_array(coll)) {
        fill_blocks(self->inputs, self->values, 1, nbytes);
        fill_blocks(self->outputs, self->values, 1, nbytes);
    }
    self->args = (dd_coll_args){.coll = coll,
                                .reduction = {.dtype = DD_DTYPE_FLOAT32, .op = DD_REDOP_SUM},
                                .inputs = self->inputs,
                                .outputs = self->outputs};
    return CHECK_OK(
        dd_group_prepare_call(self->rank->group, &self->args, &team_no_options, &self->call, check_err()));
}

static void
member_fini(team_member *self)
{
    CHECK(!dd_prepared_destroy(self->call, NULL, NULL));
    free(self->values);
}

static void
begin(team_member *self, call_way how)
{
    if (how == WAY_ASYNC) {
        CHECK_OK(
            dd_group_collective(self->rank->group, &self->args, &team_no_options, &self->work, check_err()));
    } else {
        CHECK_OK(team_start(self->call));
    }
}

static void
end(team_member *self, call_way how)
{
    dd_wait wait = dd_wait_after(60 * DD_NS_PER_S);
    if (how == WAY_ASYNC) {
        CHECK_OK(team_wait(self->rank->group, self->work));
    } else {
        CHECK_OK(dd_prepared_wait(self->call, &wait, check_err()));
    }
}

static void
call(team_member *self, call_way how)
{
    if (how == WAY_CALL) {
        CHECK_OK(team_call(self->rank, &self->args));
    } else {
        begin(self, how);
        end(self, how);
    }
}

/* Run one operation: all ranks but the last start it, the last rank calls it, the other ranks
 * complete it. */
static void
operate(shared_state *state, call_way how, long *nlast, long *nothers)
{
    int last = state->size - 1;
    long before = nsyscalls(state);
    for (int rank = 0; rank < last; rank++) {
        begin(&state->members[rank], how);
    }
    long between = nsyscalls(state);
    call(&state->members[last], how);
    long after = nsyscalls(state);
    for (int rank = 0; rank < last; rank++) {
        end(&state->members[rank], how);
    }
    *nlast += after - between;
    *nothers += between - before + nsyscalls(state) - after;
}

static int
rounded_up(long total, long parts)
{
    return (int)((total + parts - 1) / parts);
}

static void
keep_least(costs *least, costs found)
{
    least->last = found.last < least->last ? found.last : least->last;
    least->other = found.other < least->other ? found.other : least->other;
    least->allocs = found.allocs < least->allocs ? found.allocs : least->allocs;
}

static const costs nothing_yet = {.last = 1 << 30, .other = 1 << 30, .allocs = 1 << 30};

/* Print all figures if DLDIST_TEST_COUNTS is set, else only those that exceed a limit. */
static void
check_costs(const char *label, const char *how, int size, costs found, costs most)
{
    bool is_met = found.last <= most.last && found.other <= most.other && found.allocs <= most.allocs;
    if (getenv("DLDIST_TEST_COUNTS") != NULL || !is_met) {
        printf(
            "    %-26s %-5s %d ranks: system calls of the last rank %d, of each other %d; allocations %d; at most %d, "
            "%d; %d\n",
            label, how, size, found.last, found.other, found.allocs, most.last, most.other, most.allocs);
    }
    CHECK(is_met);
}

static int
make_ten_calls(void *arg)
{
    shared_state *state = arg;
    long before = nsyscalls(state);
    for (int i = 0; i < 10; i++) {
        (void)getppid();
    }
    CHECK_INT(nsyscalls(state) - before, 10);
    return leave();
}

TEST(the_counter_of_system_calls_counts_all_calls)
{
    shared_state state = {0};
    run_counted(make_ten_calls, &state, &state.counter, false);
}

/* ---- collectives of 8 bytes a rank */

static costs
count_collective(shared_state *state, call_way how)
{
    costs found = nothing_yet;
    for (int block = 0; block < NBLOCKS; block++) {
        long last = 0;
        long others = 0;
        (void)dd_mem_fail_after(-1);
        for (int i = 0; i < NCALLS; i++) {
            operate(state, how, &last, &others);
        }
        keep_least(&found, (costs){.last = rounded_up(last, NCALLS),
                                   .other = rounded_up(others, NCALLS * (state->size - 1)),
                                   .allocs = rounded_up(dd_mem_fail_after(-1), NCALLS * state->size)});
    }
    return found;
}

static const costs collective_limits[3]; /* by way: all limits are 0 */

static void
measure_collectives(shared_state *state)
{
    for (int coll = 0; coll < DD_COLL_COUNT; coll++) {
        for (int rank = 0; rank < state->size; rank++) {
            if (!member_init(&state->members[rank], (dd_coll)coll, SMALL)) {
                return;
            }
        }
        for (int how = 0; how < 3; how++) {
            costs found = count_collective(state, (call_way)how);
            check_costs(dd_coll_name((dd_coll)coll), way_names[how], state->size, found,
                        collective_limits[how]);
        }
        for (int rank = 0; rank < state->size; rank++) {
            member_fini(&state->members[rank]);
        }
    }
}

TEST(collectives_of_two_ranks_make_few_system_calls_and_allocations)
{
    count_team(&(shared_state){.size = 2, .measure = measure_collectives});
}

TEST(collectives_of_four_ranks_make_few_system_calls_and_allocations)
{
    count_team(&(shared_state){.size = 4, .measure = measure_collectives});
}

/* ---- messages of 8 bytes */

typedef struct message_ends {
    dd_work *send, *recv;
    double out, in;
} message_ends;

static void
begin_send(shared_state *state, message_ends *ends)
{
    dd_block block = {.data = &ends->out, .nbytes = sizeof ends->out};
    CHECK_OK(
        team_send(state->members[0].rank->group, block, 1, 0, &team_no_options, &ends->send, check_err()));
}

static void
begin_recv(shared_state *state, message_ends *ends)
{
    dd_block block = {.data = &ends->in, .nbytes = sizeof ends->in};
    CHECK_OK(
        team_recv(state->members[1].rank->group, block, 0, 0, &team_no_options, &ends->recv, check_err()));
}

static void
end_send(shared_state *state, message_ends *ends)
{
    CHECK_OK(team_wait(state->members[0].rank->group, ends->send));
}

static void
end_recv(shared_state *state, message_ends *ends)
{
    CHECK_OK(team_wait(state->members[1].rank->group, ends->recv));
}

/* The second side starts after the first, and completes first. */
static costs
count_messages(shared_state *state, void (*const steps[4])(shared_state *state, message_ends *ends))
{
    costs found = nothing_yet;
    for (int block = 0; block < NBLOCKS; block++) {
        long counts[2] = {0, 0};
        (void)dd_mem_fail_after(-1);
        for (int i = 0; i < NCALLS; i++) {
            message_ends ends = {.out = i};
            for (int step = 0; step < 4; step++) {
                long before = nsyscalls(state);
                steps[step](state, &ends);
                counts[step == 1 || step == 2] += nsyscalls(state) - before;
            }
            CHECK(ends.in == i);
        }
        keep_least(&found, (costs){.last = rounded_up(counts[1], NCALLS),
                                   .other = rounded_up(counts[0], NCALLS),
                                   .allocs = rounded_up(dd_mem_fail_after(-1), NCALLS * 2)});
    }
    return found;
}

static const costs sent_before_limit = {0, 0, 1};
static const costs awaited_limit = {0, 0, 1};

static void
measure_messages(shared_state *state)
{
    check_costs(
        "message, sent before", "", 2,
        count_messages(state, (void (*const[])(shared_state *, message_ends *)){begin_send, begin_recv,
                                                                                end_recv, end_send}),
        sent_before_limit);
    check_costs(
        "message, waited for", "", 2,
        count_messages(state, (void (*const[])(shared_state *, message_ends *)){begin_recv, begin_send,
                                                                                end_send, end_recv}),
        awaited_limit);
}

TEST(messages_make_few_system_calls_and_allocations)
{
    count_team(&(shared_state){.size = 2, .measure = measure_messages});
}

/* ---- locks of a large collective, whose data is moved without holding the engine's lock */

#define NLARGE 50
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) /* ranks are too slow to poll */
#define LARGE_ROUNDS_MOST 1
#else
#define LARGE_ROUNDS_MOST 40
#endif
#define LARGE_LOCKS_MOST 4

typedef struct large_calls {
    size_t nbytes;
    atomic_ulong least[RANKS_MOST]; /* the lowest number of locks that the rank took in one call */
} large_calls;

static unsigned long
most_of_ranks(const large_calls *calls)
{
    unsigned long most = 0;
    for (int rank = 0; rank < RANKS_MOST; rank++) {
        unsigned long least = atomic_load(&calls->least[rank]);
        most = least > most ? least : most;
    }
    return most;
}

/* The cheapest call counts: in other calls a rank is late or a thread is preempted, so that ranks
 * sleep and are woken. A busy machine needs more calls to reach the minimum. */
static void
count_locks_of_rank(team_rank *self)
{
    large_calls *calls = self->arg;
    team_member member = {.rank = self};
    REQUIRE(member_init(&member, DD_COLL_ALL_REDUCE, calls->nbytes));
    bool is_met = false;
    for (int round = 0; round < LARGE_ROUNDS_MOST && !is_met; round++) {
        for (int i = 0; i < NLARGE; i++) {
            unsigned long before = dd_lock_ntaken();
            CHECK_OK(team_call(self, &member.args));
            unsigned long nlocks = dd_lock_ntaken() - before;
            unsigned long least = atomic_load(&calls->least[self->rank]);
            atomic_store(&calls->least[self->rank], nlocks < least ? nlocks : least);
        }
        team_rendezvous(self, "after a round");
        is_met = most_of_ranks(calls) <= LARGE_LOCKS_MOST;
        team_rendezvous(self, "all have looked");
    }
    member_fini(&member);
    team_rendezvous(self, "all is done");
}

static void
check_large_locks(size_t nbytes)
{
    large_calls calls = {.nbytes = nbytes};
    for (int rank = 0; rank < RANKS_MOST; rank++) {
        atomic_init(&calls.least[rank], ULONG_MAX);
    }
    team_run(&(team_options){.size = RANKS_MOST}, count_locks_of_rank, &calls);
    unsigned long most = most_of_ranks(&calls);
    if (getenv("DLDIST_TEST_COUNTS") != NULL || most > LARGE_LOCKS_MOST) {
        printf("    all_reduce of %zu KiB, %d ranks: %lu locks; at most %d\n", nbytes >> 10, RANKS_MOST, most,
               LARGE_LOCKS_MOST);
    }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    CHECK(most <= LARGE_LOCKS_MOST);
#endif
}

TEST(the_locks_taken_by_a_large_collective_do_not_depend_on_its_size)
{
    check_large_locks((size_t)256 << 10);
    check_large_locks((size_t)2 << 20);
}

/* ---- locks of a rank that polls for other ranks */

#define NPOLLS 100
#define MOVES_MOST 10000
/* More bytes than fit into the slot of a root that only sends, or of a rank that only sends to
 * it. */
#define POLLED ((size_t)1 << 20)

/* Progress the run until it is blocked. Returns with the engine's lock held. The engine's thread
 * may move the data first. */
static void
move_until_blocked(const team_member *self)
{
    dd_engine *engine = self->rank->engine;
    dd_run *run = self->rank->group->run;
    dd_engine_lock(engine);
    for (int i = 0; i < MOVES_MOST && (dd_run_progress_locked(run) || dd_run_is_moving_locked(run)); i++) {
        dd_engine_prepare_driver_locked(engine);
        dd_engine_unlock(engine);
        usleep(100);
        dd_engine_lock(engine);
    }
    CHECK(!dd_work_is_done(self->work) && !dd_run_is_moving_locked(run));
}

/* Poll while no other rank has called the collective. */
static void
poll_while_blocked(team_member *self, dd_coll coll)
{
    begin(self, WAY_ASYNC);
    move_until_blocked(self);
    unsigned long before = dd_lock_ntaken();
    for (int i = 0; i < NPOLLS; i++) {
        CHECK(!dd_run_progress_locked(self->rank->group->run));
    }
    unsigned long nlocks = dd_lock_ntaken() - before;
    dd_engine_prepare_driver_locked(self->rank->engine);
    dd_engine_unlock(self->rank->engine);
    if (getenv("DLDIST_TEST_COUNTS") != NULL || nlocks > 0) {
        printf("    %-14s of %zu KiB, polled %d times: %lu locks; at most 0\n", dd_coll_name(coll),
               POLLED >> 10, NPOLLS, nlocks);
    }
    CHECK_INT(nlocks, 0);
}

static void
measure_polls(shared_state *state)
{
    int last = state->size - 1;
    for (int coll = DD_COLL_BARRIER + 1; coll < DD_COLL_COUNT; coll++) {
        for (int rank = 0; rank <= last; rank++) {
            REQUIRE(member_init(&state->members[rank], (dd_coll)coll, POLLED));
        }
        poll_while_blocked(&state->members[last], (dd_coll)coll);
        for (int rank = 0; rank < last; rank++) {
            begin(&state->members[rank], WAY_ASYNC);
        }
        for (int rank = 0; rank <= last; rank++) {
            end(&state->members[rank], WAY_ASYNC);
            member_fini(&state->members[rank]);
        }
    }
}

TEST(polling_a_collective_that_waits_for_other_ranks_takes_no_lock)
{
    for (int size = 2; size <= RANKS_MOST; size++) {
        shared_state state = {.size = size, .measure = measure_polls};
        team_run(&(team_options){.size = size}, gather_team, &state);
    }
}

/* ---- wake-ups: all other ranks are asleep when the last rank calls */

typedef struct sleeper {
    atomic_long tid;
    atomic_int go; /* number of barriers to run */
} sleeper;

typedef struct wake_state {
    syscall_counter *counter;
    int size;
    sleeper sleepers[RANKS_MOST];
    const char *label;
    void (*sleep)(team_rank *self); /* the call in which the other ranks wait */
    void (*wake)(team_rank *self);  /* the call that ends the wait */
    int most;
} wake_state;

static bool
is_asleep_in(long number)
{
    return number == SYS_futex || number == SYS_epoll_wait || number == SYS_epoll_pwait ||
           number == SYS_poll || number == SYS_ppoll;
}

/* Return true if every other thread of the process is asleep, each in its call. */
static bool
are_asleep(const wake_state *state)
{
    for (int rank = 0; rank + 1 < state->size; rank++) {
        pid_t tid = (pid_t)atomic_load(&state->sleepers[rank].tid);
        const counted_thread *thread = syscall_counter_find(state->counter, tid);
        if (thread == NULL || !is_asleep_in(atomic_load(&thread->current))) {
            return false;
        }
    }
    return true;
}

static int
compare_longs(const void *left, const void *right)
{
    return (*(const long *)left > *(const long *)right) - (*(const long *)left < *(const long *)right);
}

/* The median counts: a sleeping thread sometimes wakes briefly to check the clock. */
static void
wake_the_others(team_rank *self, wake_state *state)
{
    const counted_thread *mine = syscall_counter_find(state->counter, (pid_t)syscall(SYS_gettid));
    long nwakes[NWAKES];
    REQUIRE(mine != NULL);
    for (int round = 0; round < NWAKES; round++) {
        for (int rank = 0; rank + 1 < state->size; rank++) {
            atomic_fetch_add(&state->sleepers[rank].go, 1);
        }
        usleep(1000);
        while (!are_asleep(state)) {
            usleep(1000);
        }
        long before = atomic_load(&mine->nwakes);
        state->wake(self);
        nwakes[round] = atomic_load(&mine->nwakes) - before;
    }
    qsort(nwakes, NWAKES, sizeof nwakes[0], compare_longs);
    long median = nwakes[NWAKES / 2];
    if (getenv("DLDIST_TEST_COUNTS") != NULL || median > state->most) {
        printf("    %s of %d ranks, all others asleep: the last wakes %ld times; at most %d\n", state->label,
               state->size, median, state->most);
    }
    CHECK(median <= state->most);
}

static void
sleep_or_wake(team_rank *self)
{
    wake_state *state = self->arg;
    sleeper *own = &state->sleepers[self->rank];
    atomic_store(&own->tid, syscall(SYS_gettid));
    team_rendezvous(self, "all are here");
    if (self->rank == self->size - 1) {
        wake_the_others(self, state);
        return;
    }
    for (int round = 0; round < NWAKES; round++) {
        while (atomic_load(&own->go) <= round) {
            usleep(1000);
        }
        state->sleep(self);
    }
}

static int
run_sleepers(void *arg)
{
    wake_state *state = arg;
    alarm((unsigned)(CHECK_TIMEOUT_S * check_slow()));
    team_run(&(team_options){.size = state->size}, sleep_or_wake, state);
    return leave();
}

static void
count_wakes(wake_state state)
{
    run_counted(run_sleepers, &state, &state.counter, false);
}

static void
meet_in_barrier(team_rank *self)
{
    CHECK_OK(team_barrier(self->group));
}

static void
send_double(team_rank *self)
{
    double value = 1;
    dd_block block = {.data = &value, .nbytes = sizeof value};
    dd_work *work = NULL;
    REQUIRE_OK(team_send(self->group, block, 0, 0, &team_no_options, &work, check_err()));
    CHECK_OK(team_wait(self->group, work));
}

static void
receive_double(team_rank *self)
{
    double value = 0;
    dd_block block = {.data = &value, .nbytes = sizeof value};
    dd_work *work = NULL;
    REQUIRE_OK(team_recv(self->group, block, 1, 0, &team_no_options, &work, check_err()));
    CHECK_OK(team_wait(self->group, work));
    CHECK(value == 1);
}

TEST(a_barrier_wakes_each_rank_at_most_once)
{
    wake_state barrier = {.label = "barrier", .sleep = meet_in_barrier, .wake = meet_in_barrier};
    barrier.size = 2;
    barrier.most = 1;
    count_wakes(barrier);
    barrier.size = 4;
    barrier.most = 3;
    count_wakes(barrier);
}

TEST(a_message_wakes_its_receiver_at_most_once)
{
    count_wakes(
        (wake_state){.size = 2, .label = "message", .sleep = receive_double, .wake = send_double, .most = 1});
}

/* ---- ways of waiting */

#define WAIT_US 200000
/* Sleeps that do not count: the engine's thread may hold the lock when the call starts. A wait that
 * sleeps does so at least four times, once per slice. */
#define MEETS_OF_A_LOCK 3

typedef struct waiting_state {
    syscall_counter *counter;
    dd_spin_policy policy;
    atomic_bool has_begun;
} waiting_state;

/* Count the sleeps and yields of rank 0, which waits in an all_reduce for rank 1, which is late. */
static void
wait_for_late(team_rank *self)
{
    waiting_state *state = self->arg;
    if (self->rank == 1) {
        while (!atomic_load(&state->has_begun)) {
            usleep(1000);
        }
        usleep(WAIT_US);
        CHECK(team_check_sum(self->group));
        return;
    }
    const counted_thread *mine = syscall_counter_find(state->counter, (pid_t)syscall(SYS_gettid));
    REQUIRE(mine != NULL);
    long nsleeps = atomic_load(&mine->nsleeps);
    long nyields = atomic_load(&mine->nyields);
    atomic_store(&state->has_begun, true);
    CHECK(team_check_sum(self->group));
    nsleeps = atomic_load(&mine->nsleeps) - nsleeps;
    nyields = atomic_load(&mine->nyields) - nyields;
    if (getenv("DLDIST_TEST_COUNTS") != NULL) {
        printf("    an all_reduce that waits, policy %d: %ld sleeps, %ld yields\n", state->policy, nsleeps,
               nyields);
    }
    CHECK((nsleeps <= MEETS_OF_A_LOCK) == (state->policy == DD_SPIN_POLL));
    if (state->policy == DD_SPIN_SLEEP) {
        CHECK(nyields <= MEETS_OF_A_LOCK);
    }
}

static int
run_waiting(void *arg)
{
    waiting_state *state = arg;
    alarm((unsigned)(CHECK_TIMEOUT_S * check_slow()));
    team_run(&(team_options){.size = 2, .waiting = state->policy}, wait_for_late, state);
    return leave();
}

TEST(each_policy_of_waiting_makes_few_system_calls)
{
    static const dd_spin_policy policies[] = {DD_SPIN_ADAPTIVE, DD_SPIN_POLL, DD_SPIN_SLEEP};
    for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++) {
        waiting_state state = {.policy = policies[i]};
        run_counted(run_waiting, &state, &state.counter, false);
    }
}

/* ---- bytes copied by all ranks of an operation, in blocks. The output of a reduction does not
 * count. The few hundred bytes that ranks store for each call do. */

#define KEPT_BLOCKS 0.01

static const double copy_limits[] = {
    [DD_COLL_BARRIER] = 0,    [DD_COLL_BROADCAST] = 2, [DD_COLL_REDUCE] = 1,     [DD_COLL_ALL_REDUCE] = 3,
    [DD_COLL_GATHER] = 3,     [DD_COLL_SCATTER] = 3,   [DD_COLL_ALL_GATHER] = 6, [DD_COLL_REDUCE_SCATTER] = 2,
    [DD_COLL_ALL_TO_ALL] = 6, [DD_COLL_SCAN] = 1,      [DD_COLL_EXSCAN] = 1,
};
DD_COLL_CHECK_TABLE(copy_limits);

static void
count_copies(team_rank *self)
{
    team_member member = {.rank = self};
    for (int coll = 0; coll < DD_COLL_COUNT; coll++) {
        double most = copy_limits[coll];
        char name[64];
        REQUIRE(member_init(&member, (dd_coll)coll, LARGE));
        CHECK_OK(team_call(self, &member.args));
        snprintf(name, sizeof name, "before %d", coll);
        team_rendezvous(self, name);
        size_t before = copy_counter_nbytes();
        snprintf(name, sizeof name, "begin %d", coll);
        team_rendezvous(self, name);
        CHECK_OK(team_call(self, &member.args));
        snprintf(name, sizeof name, "end %d", coll);
        team_rendezvous(self, name);
        double found = (double)(copy_counter_nbytes() - before) / (double)LARGE;
        snprintf(name, sizeof name, "after %d", coll);
        team_rendezvous(self, name);
        member_fini(&member);
        if (self->rank == 0 && (getenv("DLDIST_TEST_COUNTS") != NULL || found > most + KEPT_BLOCKS)) {
            printf("    %-14s %d ranks, %zu KiB: %.3f blocks are copied; at most %.3f\n",
                   dd_coll_name((dd_coll)coll), self->size, LARGE >> 10, found, most);
        }
        CHECK(found <= most + KEPT_BLOCKS);
    }
}

TEST(collectives_of_two_ranks_copy_each_byte_a_limited_number_of_times)
{
    if (!copy_counter_works()) {
        printf("    skipped: this build does not count copies\n");
        return;
    }
    team_run(&(team_options){.size = 2}, count_copies, NULL);
}
