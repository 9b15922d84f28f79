/* Messages by blocking calls: their cost, and that they delay no other caller. */
#include "check.h"
#include "core/mem.h"
#include "faults/faults.h"
#include "group_team.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

/* Called before the calls below wait; NULL if there is none. */
static void (*on_lock_release)(void *ctx);
static void *on_lock_release_ctx;

static dd_status
run(dd_group *group, bool is_send, void *data, size_t nbytes, int rank, const dd_call_options *options)
{
    dd_block block = {.data = data, .nbytes = nbytes};
    dd_wait wait = dd_wait_after(DD_NEVER_NS);
    wait.on_block = on_lock_release;
    wait.ctx = on_lock_release_ctx;
    int source = -1;
    if (is_send) {
        return team_send_and_wait(group, block, rank, 5, options, &wait, check_err());
    }
    dd_status status = team_recv_and_wait(group, block, rank, 5, options, &source, &wait, check_err());
    CHECK(status != DD_OK || rank == DD_ANY_RANK || source == rank);
    return status;
}

/* Both ends in one thread, which has the groups of both ranks: a message is always sent before it
 * is received. */
typedef struct both_ends {
    dd_group *groups[2];
    void (*body)(struct both_ends *self);
} both_ends;

static void
share_ends(team_rank *self)
{
    both_ends *ends = self->arg;
    ends->groups[self->rank] = self->group;
    team_rendezvous(self, "known");
    if (self->rank == 0) {
        ends->body(ends);
    }
    team_rendezvous(self, "done");
}

static void
run_both_ends(void (*body)(both_ends *self), bool is_shm_disabled)
{
    both_ends ends = {.body = body};
    team_options options = {.size = 2, .is_shm_disabled = is_shm_disabled};
    team_run(&options, share_ends, &ends);
}

static bool
pass_round_trip(both_ends *ends)
{
    for (int from = 0; from < 2; from++) {
        uint64_t out = 42;
        uint64_t in = 0;
        if (!CHECK_OK(run(ends->groups[from], true, &out, sizeof out, 1 - from, &team_no_options)) ||
            !CHECK_OK(run(ends->groups[1 - from], false, &in, sizeof in, from, &team_no_options)) ||
            !CHECK_INT(in, 42)) {
            return false;
        }
    }
    return true;
}

/* ---- cost */

#define NWARM 200
#define NCOUNTED 1000
/* The engine's thread may run on a machine that preempts this thread. */
#define NTOLERATED (NCOUNTED / 20)

static void
count_allocations(both_ends *ends)
{
    for (int i = 0; i < NWARM; i++) {
        REQUIRE(pass_round_trip(ends));
    }
    (void)dd_mem_fail_after(-1);
    for (int i = 0; i < NCOUNTED; i++) {
        REQUIRE(pass_round_trip(ends));
    }
    CHECK(dd_mem_fail_after(-1) <= NTOLERATED);
}

TEST(small_blocking_messages_allocate_no_memory)
{
    run_both_ends(count_allocations, false);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

/* A thread whose system calls for sending, receiving, waiting and sleeping are counted, and then
 * made. They have at most five arguments; the sixth marks calls that the filter lets pass. */
#define FILTER_TOKEN 0x64643270

static _Thread_local volatile sig_atomic_t ncalls;

static void
on_system_call(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    ucontext_t *user = context;
    ncalls++;
#if defined(__x86_64__)
    greg_t *regs = user->uc_mcontext.gregs;
    long result = syscall(info->si_syscall, regs[REG_RDI], regs[REG_RSI], regs[REG_RDX], regs[REG_R10],
                          regs[REG_R8], FILTER_TOKEN);
    regs[REG_RAX] = result < 0 ? -errno : result;
#elif defined(__aarch64__)
    unsigned long long *regs = user->uc_mcontext.regs;
    long result = syscall(info->si_syscall, regs[0], regs[1], regs[2], regs[3], regs[4], FILTER_TOKEN);
    regs[0] = (unsigned long long)(result < 0 ? -errno : result);
#endif
}

static bool
count_system_calls(void)
{
    static const int counted[] = {__NR_read,    __NR_write,       __NR_sendto,      __NR_sendmsg,
                                  __NR_recvmsg, __NR_epoll_pwait, __NR_sched_yield, __NR_clock_nanosleep};
    enum { COUNT = sizeof counted / sizeof counted[0] };
    struct sock_filter filter[2 * COUNT + 4];
    size_t n = 0;
    filter[n++] =
        (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[5]));
    filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, FILTER_TOKEN, 2 * COUNT + 1, 0);
    filter[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int i = 0; i < COUNT; i++) {
        filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)counted[i], 0, 1);
        filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP);
    }
    filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {.len = (unsigned short)n, .filter = filter};
    struct sigaction action = {.sa_sigaction = on_system_call, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigset_t signals; /* blocked in the library's threads */
    sigemptyset(&signals);
    sigaddset(&signals, SIGSYS);
    return pthread_sigmask(SIG_UNBLOCK, &signals, NULL) == 0 && sigaction(SIGSYS, &action, NULL) == 0 &&
           prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static void *
pass_and_count(void *arg)
{
    both_ends *ends = arg;
    for (int i = 0; i < NWARM; i++) {
        if (!pass_round_trip(ends)) {
            return NULL;
        }
    }
    if (!count_system_calls()) {
        return NULL; /* not supported on this system */
    }
    ncalls = 0;
    (void)!write(STDERR_FILENO, "", 0);
    CHECK_INT(ncalls, 1);
    ncalls = 0;
    for (int i = 0; i < NCOUNTED && pass_round_trip(ends); i++) {
    }
    CHECK(ncalls <= NTOLERATED);
    return NULL;
}

static void
pass_in_a_thread(both_ends *ends)
{
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, pass_and_count, ends) == 0);
    pthread_join(thread, NULL);
}

TEST(small_blocking_messages_make_no_system_calls)
{
    run_both_ends(pass_in_a_thread, false);
}

#endif

/* ---- delayed callers */

static void
count_wait(void *ctx)
{
    ++*(int *)ctx;
}

static void
count_waits(both_ends *ends)
{
    int nwaits = 0;
    dd_call_options options = {.timeout_ns = 20 * DD_NS_PER_MS};
    on_lock_release = count_wait;
    on_lock_release_ctx = &nwaits;
    uint64_t in = 0;
    uint64_t out = 7;
    CHECK_STATUS(run(ends->groups[0], false, &in, sizeof in, 1, &options), DD_OP_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "timed out after 0.");
    CHECK_CONTAINS(check_message(), "has not sent (tag 5)");
    CHECK(nwaits > 0);
    CHECK_STATUS(run(ends->groups[0], false, &in, sizeof in, DD_ANY_RANK, &options), DD_OP_TIMED_OUT);
    /* Another thread may briefly hold the lock. */
    int nquick = 0;
    for (int i = 0; i < 100; i++) {
        nwaits = 0;
        options.timeout_ns = -1;
        CHECK_OK(run(ends->groups[1], true, &out, sizeof out, 0, &options));
        CHECK_OK(run(ends->groups[0], false, &in, sizeof in, i % 2 == 0 ? 1 : DD_ANY_RANK, &options));
        nquick += nwaits == 0;
    }
    CHECK(nquick > 0);
}

TEST(a_blocking_receive_does_not_wait_if_its_message_has_arrived)
{
    run_both_ends(count_waits, false);
}

static void
close_group(void *ctx)
{
    both_ends *ends = ctx;
    dd_group *group = ends->groups[0];
    if (group != NULL) {
        ends->groups[0] = NULL;
        dd_wait wait = dd_wait_after(20 * DD_NS_PER_MS);
        CHECK_STATUS(dd_group_close(group, &wait, check_err()), DD_OP_TIMED_OUT);
        CHECK_CONTAINS(check_message(), "closed with operations under way");
    }
}

static void
close_meanwhile(both_ends *ends)
{
    on_lock_release = close_group;
    on_lock_release_ctx = ends;
    uint64_t in = 0;
    CHECK_STATUS(run(ends->groups[0], false, &in, sizeof in, 1, &team_no_options), DD_CLOSED);
}

TEST(a_blocking_receive_fails_if_the_group_is_closed_just_before_it_waits)
{
    run_both_ends(close_meanwhile, false);
}

/* ---- all sizes, and failures */

static void
pass_around(team_rank *self)
{
    static const size_t sizes[] = {0, 8, 1024, 32768, 32769, 65537, 1500000};
    int next = (self->rank + 1) % self->size;
    int previous = (self->rank + self->size - 1) % self->size;
    for (int round = 0; round < 40 && check_failures() == 0; round++) {
        size_t nbytes = sizes[(size_t)round % (sizeof sizes / sizeof sizes[0])];
        if (self->size == 1 && nbytes > 1024) {
            continue; /* a large message waits for its receiver */
        }
        uint8_t *out = malloc(nbytes + 1);
        uint8_t *in = calloc(nbytes + 1, 1);
        memset(out, self->rank + round, nbytes);
        int from = round % 2 == 0 ? previous : DD_ANY_RANK;
        bool is_first = self->rank == 0;
        CHECK_OK(run(self->group, is_first, is_first ? out : in, nbytes, is_first ? next : from,
                     &team_no_options));
        CHECK_OK(run(self->group, !is_first, is_first ? in : out, nbytes, is_first ? from : next,
                     &team_no_options));
        for (size_t i = 0; i < nbytes; i++) {
            REQUIRE(in[i] == (uint8_t)(previous + round));
        }
        free(out);
        free(in);
    }
}

TEST(blocking_messages_of_all_sizes_arrive)
{
    for (int size = 1; size <= 3; size++) {
        team_options options = {.size = size};
        team_run_both(&options, pass_around, NULL);
    }
}

static bool
is_interrupted(void *ctx)
{
    (void)ctx;
    return true;
}

static void
interrupt(team_rank *self)
{
    if (self->rank == 0) {
        uint64_t in = 0;
        int source = -1;
        dd_block block = {.data = &in, .nbytes = sizeof in};
        dd_wait wait = {.deadline_ns = DD_NEVER_NS, .is_interrupted = is_interrupted};
        CHECK_STATUS(
            team_recv_and_wait(self->group, block, 1, 5, &team_no_options, &source, &wait, check_err()),
            DD_INTERRUPTED);
        CHECK_STATUS(dd_group_check(self->group, check_err()), DD_ABORTED);
        CHECK_CONTAINS(check_message(), "interrupted in recv");
    }
    team_rendezvous(self, "interrupted");
}

TEST(an_interrupted_blocking_receive_aborts_the_group)
{
    team_options options = {.size = 2};
    team_run_both(&options, interrupt, NULL);
}

/* ---- other peers */

/* A caller whose messages from one peer are always available must still progress messages from
 * other peers. */
static void
pass_during_large_message(team_rank *self)
{
    size_t nbytes = 6000000;
    uint8_t *large = calloc(nbytes, 1);
    dd_block block = {.data = large, .nbytes = nbytes};
    dd_work *work = NULL;
    uint64_t note = 0;
    if (self->rank == 2) {
        memset(large, 9, nbytes);
        REQUIRE_OK(team_send(self->group, block, 0, 6, &team_no_options, &work, check_err()));
        CHECK_OK(team_wait(self->group, work));
    } else if (self->rank == 0) {
        REQUIRE_OK(team_recv(self->group, block, 2, 6, &team_no_options, &work, check_err()));
        bool is_over = false;
        for (uint64_t i = 0; !is_over && check_failures() == 0; i++) {
            is_over = dd_work_is_done(work);
            note = is_over ? 1 : 0;
            CHECK_OK(run(self->group, true, &note, sizeof note, 1, &team_no_options));
            CHECK_OK(run(self->group, false, &note, sizeof note, 1, &team_no_options));
        }
        CHECK_OK(team_wait(self->group, work));
        CHECK_INT(large[nbytes - 1], 9);
    } else {
        while (note == 0 && check_failures() == 0) {
            CHECK_OK(run(self->group, false, &note, sizeof note, 0, &team_no_options));
            CHECK_OK(run(self->group, true, &note, sizeof note, 0, &team_no_options));
        }
    }
    free(large);
}

TEST(a_stream_of_small_messages_does_not_hold_up_a_large_one)
{
    team_options options = {.size = 3};
    team_run_both(&options, pass_during_large_message, NULL);
}
