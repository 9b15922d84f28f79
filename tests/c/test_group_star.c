/* The links of a host's ranks, and the events that ranks receive without a link. */
#include "check.h"

#include "group/internal.h"
#include "group_team.h"
#include "insight.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t
count_link_ends(const team_rank *self)
{
    dd_engine_stats stats;
    stats = read_engine_stats(self->engine);
    return stats.nconnections;
}

/* ---- the number of links */

#define NSTAR 8

typedef struct star {
    atomic_uint nends;
} star;

static void
sum_region(team_rank *self, size_t count)
{
    dd_region *region = NULL;
    REQUIRE_OK(dd_group_alloc(self->group, count * sizeof(float), &region, check_err()));
    float *x = dd_region_data(region);
    for (size_t i = 0; i < count; i++) {
        x[i] = 1;
    }
    dd_block block = {.data = x, .nbytes = count * sizeof *x};
    dd_coll_args args = {.coll = DD_COLL_ALL_REDUCE,
                         .reduction = {.dtype = DD_DTYPE_FLOAT32, .op = DD_REDOP_SUM},
                         .inputs = &block,
                         .outputs = &block};
    CHECK_OK(team_call(self, &args));
    CHECK(x[0] == (float)self->size && x[count - 1] == (float)self->size);
    dd_region_release(region);
}

static void
count_links(team_rank *self)
{
    star *all = self->arg;
    static const int even[] = {0, 2, 4, 6};
    CHECK_OK(team_barrier(self->group));
    sum_region(self, 100000);
    if (self->rank % 2 == 0) {
        dd_group *half = NULL;
        dd_group_options options = team_group_options("even");
        dd_wait wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
        REQUIRE_OK(dd_group_split(self->group, even, 4, 0, &options, &half, &wait, check_err()));
        CHECK(team_check_sum(half));
        dd_group_release(half);
    }
    uint64_t nends = count_link_ends(self);
    CHECK_INT(nends, self->rank == 0 ? NSTAR - 1 : 1);
    atomic_fetch_add(&all->nends, (unsigned)nends);
    dd_member_info info;
    dd_group_get_member(self->group, (self->rank + 1) % NSTAR, &info);
    CHECK(strcmp(info.transport, "shared memory") == 0);
    team_rendezvous(self, "counted");
    CHECK_INT(atomic_load(&all->nends), 2 * (NSTAR - 1));
    /* A message creates one more link. */
    uint8_t byte = (uint8_t)self->rank;
    dd_block block = {.data = &byte, .nbytes = 1};
    dd_work *work = NULL;
    if (self->rank == 3) {
        REQUIRE_OK(team_send(self->group, block, 5, 1, &team_no_options, &work, check_err()));
    } else if (self->rank == 5) {
        REQUIRE_OK(team_recv(self->group, block, 3, 1, &team_no_options, &work, check_err()));
    }
    if (work != NULL) {
        CHECK_OK(team_wait(self->group, work));
        CHECK_INT(byte, 3);
        CHECK_INT(count_link_ends(self), 2);
    }
}

TEST(ranks_of_a_host_connect_only_to_its_lowest_rank)
{
    star all = {.nends = 0};
    team_options options = {.size = NSTAR};
    team_run(&options, count_links, &all);
}

/* With one rank per host, all are linked to rank 0, until collectives create more links. */
static void
count_links_of_hosts(team_rank *self)
{
    CHECK_INT(count_link_ends(self), self->rank == 0 ? 3 : 1);
    team_rendezvous(self, "counted");
    CHECK(team_check_sum(self->group));
}

TEST(hosts_connect_only_to_rank_0_before_the_first_collective)
{
    team_options options = {.size = 4, .is_shm_disabled = true};
    team_run(&options, count_links_of_hosts, NULL);
}

/* ---- events without a link, while the lowest rank receives nothing */

static void
call_barrier(team_rank *self, int64_t timeout_ns, dd_work **work)
{
    dd_coll_args args = {.coll = DD_COLL_BARRIER};
    dd_call_options options = {.timeout_ns = timeout_ns};
    REQUIRE_OK(dd_group_collective(self->group, &args, &options, work, check_err()));
}

static void
hold_engine_until_reported(team_rank *self)
{
    dd_engine_lock(self->engine);
    team_rendezvous(self, "deaf");
    team_rendezvous(self, "notified");
    dd_engine_unlock(self->engine);
}

static void
receive_abort(team_rank *self)
{
    CHECK_OK(team_barrier(self->group));
    if (self->rank == 0) {
        hold_engine_until_reported(self);
    } else if (self->rank == 1) {
        team_rendezvous(self, "deaf");
        dd_group_abort(self->group, "it is no use");
        team_rendezvous(self, "notified");
    } else {
        dd_work *work = NULL;
        call_barrier(self, -1, &work);
        team_rendezvous(self, "deaf");
        CHECK_STATUS(team_wait(self->group, work), DD_ABORTED);
        CHECK_CONTAINS(check_message(), "rank 1 (");
        CHECK_CONTAINS(check_message(), "aborted the group: it is no use");
        CHECK_INT(count_link_ends(self), 1);
        team_rendezvous(self, "notified");
    }
    CHECK_STATUS(team_barrier(self->group), DD_ABORTED);
}

TEST(an_abort_arrives_even_if_the_lowest_rank_does_not_respond)
{
    team_options options = {.size = 4};
    team_run(&options, receive_abort, NULL);
}

static void
receive_goodbye(team_rank *self)
{
    dd_wait wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
    CHECK_OK(team_barrier(self->group));
    if (self->rank == 0) {
        hold_engine_until_reported(self);
    } else if (self->rank == 1) {
        team_rendezvous(self, "deaf");
        CHECK_OK(dd_group_close(self->group, &wait, check_err()));
        team_rendezvous(self, "notified");
    } else {
        dd_work *work = NULL;
        call_barrier(self, -1, &work);
        team_rendezvous(self, "deaf");
        CHECK_STATUS(team_wait(self->group, work), DD_PEER_LOST);
        CHECK_CONTAINS(check_message(), "rank 1 (");
        CHECK_CONTAINS(check_message(), "has left the group");
        team_rendezvous(self, "notified");
    }
}

TEST(a_rank_that_leaves_is_noticed_by_ranks_without_a_connection_to_it)
{
    team_options options = {.size = 4};
    team_run(&options, receive_goodbye, NULL);
}

/* Receive while the sender leaves: whichever happens first, the receive must end, and data sent
 * before must arrive. */
static void
receive_from_leaving_rank(team_rank *self)
{
    uint8_t byte = 7;
    dd_block block = {.data = &byte, .nbytes = 1};
    dd_wait wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
    team_rendezvous(self, "begin");
    if (self->rank == 1) {
        dd_work *work = NULL;
        if (*(bool *)self->arg) {
            REQUIRE_OK(team_send(self->group, block, 2, 1, &team_no_options, &work, check_err()));
            CHECK_OK(team_wait(self->group, work));
        }
        CHECK_OK(dd_group_close(self->group, &wait, check_err()));
    } else if (self->rank == 2) {
        dd_work *first = NULL;
        dd_work *second = NULL;
        REQUIRE_OK(team_recv(self->group, block, 1, 1, &team_no_options, &first, check_err()));
        REQUIRE_OK(team_recv(self->group, block, 1, 2, &team_no_options, &second, check_err()));
        CHECK_STATUS(team_wait(self->group, first), *(bool *)self->arg ? DD_OK : DD_PEER_LOST);
        CHECK_STATUS(team_wait(self->group, second), DD_PEER_LOST);
        CHECK_CONTAINS(check_message(), "rank 1 (");
        CHECK_CONTAINS(check_message(), "the group"); /* rank 1 has left or closed the group */
    }
    team_rendezvous(self, "end");
}

TEST(a_receive_fails_if_its_source_rank_leaves)
{
    for (int i = 0; i < 8; i++) {
        bool sends = i % 2 == 0;
        team_options options = {.size = 3};
        team_run(&options, receive_from_leaving_rank, &sends);
    }
}

/* ---- the position of a rank that does not answer */

static void
check_unresponsive(team_rank *self)
{
    CHECK_OK(team_barrier(self->group));
    CHECK_OK(team_barrier(self->group));
    if (self->rank == 0) {
        hold_engine_until_reported(self);
        return;
    }
    dd_work *work = NULL;
    team_rendezvous(self, "deaf");
    if (self->rank == 1) {
        call_barrier(self, 50 * DD_NS_PER_MS, &work);
        CHECK_STATUS(team_wait(self->group, work), DD_OP_TIMED_OUT);
        CHECK_CONTAINS(check_message(), "ranks 0, 2 have not arrived; 0 (");
        CHECK_CONTAINS(check_message(), ") does not answer and was done with #2 barrier; 2 (");
        CHECK_CONTAINS(check_message(), ") is done with #2 barrier");
    }
    team_rendezvous(self, "notified");
}

TEST(a_timeout_names_missing_ranks_that_do_not_answer_queries)
{
    team_options options = {.size = 3};
    team_run(&options, check_unresponsive, NULL);
}

/* ---- a process that dies while the lowest rank, which should notice, is stopped */

#define NMORTALS 4

typedef struct mortals {
    char path[64];
    pid_t pids[NMORTALS]; /* processes of ranks 0 and 2 */
} mortals;

static pid_t
start_member(const mortals *shared, int rank)
{
    pid_t pid = fork();
    if (pid == 0) {
        team_process self;
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* while stopped, it would outlive the test */
        if (team_process_open(shared->path, rank, NMORTALS, false, &self)) {
            if (rank == 0) {
                kill(getpid(), SIGSTOP);
            }
            pause();
        }
        _exit(1);
    }
    return pid;
}

static void
outlive(team_rank *self)
{
    const mortals *shared = self->arg;
    int rank = 2 * self->rank + 1;
    team_process own;
    REQUIRE(team_process_open(shared->path, rank, NMORTALS, false, &own));
    if (self->rank == 0) {
        int how = 0;
        CHECK(waitpid(shared->pids[0], &how, WUNTRACED) == shared->pids[0] && WIFSTOPPED(how));
    }
    team_rendezvous(self, "stopped");
    if (self->rank == 0) {
        kill(shared->pids[2], SIGKILL);
    }
    int64_t start_ns = dd_clock_now_ns();
    CHECK_STATUS(team_barrier(own.group), DD_PEER_LOST);
    CHECK(dd_clock_now_ns() - start_ns < 3 * DD_NS_PER_S * check_slow());
    char text[64];
    snprintf(text, sizeof text, "pid %lld", (long long)shared->pids[2]);
    CHECK_CONTAINS(check_message(), "lost rank 2 (");
    CHECK_CONTAINS(check_message(), text);
    team_rendezvous(self, "notified");
    team_process_close(&own);
}

TEST(a_killed_process_is_noticed_even_if_the_lowest_rank_is_stopped)
{
    mortals shared = {.path = "/tmp/dldist-star-XXXXXX"};
    int fd = mkstemp(shared.path);
    REQUIRE(fd >= 0);
    close(fd);
    shared.pids[0] = start_member(&shared, 0);
    shared.pids[2] = start_member(&shared, 2);
    team_options options = {.size = 2};
    team_run_apart(&options, outlive, &shared);
    for (int rank = 0; rank <= 2; rank += 2) {
        kill(shared.pids[rank], SIGKILL);
        waitpid(shared.pids[rank], NULL, 0);
    }
    unlink(shared.path);
}
