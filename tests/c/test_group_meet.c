/* Creation and cleanup of groups: rendezvous, splits, several ranks in a process, no memory. */
#include "check.h"
#include "core/mem.h"
#include "core/system.h"
#include "core/thread.h"
#include "faults/faults.h"
#include "group/internal.h"
#include "group_team.h"
#include "leftovers.h"
#include "store/tcp_store.h"
#include "store_calls.h"
#include "transport/endpoint.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static dd_status
open_named(team_rank *self, const char *name, int rank, int size, int64_t timeout_ns, dd_group **group)
{
    dd_group_options options = team_group_options(name);
    dd_wait wait = dd_wait_after(timeout_ns);
    *group = NULL;
    return dd_group_open(self->engine, self->store, rank, size, &options, group, &wait, check_err());
}

static void
close_group(dd_group *group)
{
    dd_wait wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
    if (group != NULL) {
        CHECK_OK(dd_group_close(group, &wait, check_err()));
    }
    dd_group_release(group);
}

/* ---- rendezvous */

static void
open_invalid_groups(team_rank *self)
{
    dd_group *group = NULL;
    int64_t plenty_ns = 10 * DD_NS_PER_S * check_slow();
    CHECK_STATUS(open_named(self, "w", 2, 2, plenty_ns, &group), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "got rank 2 of 2");
    CHECK_STATUS(open_named(self, "w", -1, 2, plenty_ns, &group), DD_INVALID_ARGUMENT);
    CHECK_STATUS(open_named(self, "w", 0, 0, plenty_ns, &group), DD_INVALID_ARGUMENT);
    dd_group_options options = team_group_options("w");
    dd_wait wait = dd_wait_after(plenty_ns);
    CHECK_STATUS(dd_group_open(self->engine, NULL, 0, 2, &options, &group, &wait, check_err()),
                 DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "needs a store");
    char name[1000];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    CHECK_STATUS(open_named(self, name, 0, 2, plenty_ns, &group), DD_INVALID_ARGUMENT);
    wait = dd_wait_after(plenty_ns);
    CHECK_OK(dd_group_open(self->engine, NULL, 0, 1, &options, &group, &wait, check_err()));
    team_check_sum(group);
    close_group(group);
}

TEST(invalid_groups_are_refused)
{
    team_options options = {.size = 1};
    team_run_apart(&options, open_invalid_groups, NULL);
}

/* Other programs can write to the store. */
static void
read_malformed_ends(team_rank *self)
{
    static const struct {
        const char *end;
        const char *complaint;
    } cases[] = {
        {"garbage", "got \"garbage\", expected \"ok 2\" and an id"},
        {"ok 3 1\n", "got \"ok 3 1\", expected"},
        {"ok 2 1", "got \"ok 2 1\", expected"},
        {"ok 2 1\n", "the payload of rank 0 is missing"},
        {"ok 2 1\n\377\377\377\377card", "the payload of rank 0 is missing"},
        {"ok 2 1\n\1\1\1", "the payload of rank 0 is missing"},
        {"ok 2 1\n\1\1\1cards", "the payload of rank 0 is missing"},
        {"failed", "got \"failed\", expected"},
        {"failed 14 1 7\nhost", "got \"failed 14 1 7\", expected"},
        {"failed 0 1 7\nhost\ntext", "got \"failed 0 1 7\", expected"},
        {"failed 999 1 7\nhost\ntext", "got \"failed 999 1 7\", expected"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char name[16];
        char key[64];
        snprintf(name, sizeof name, "end-%zu", i);
        snprintf(key, sizeof key, "dldist/%s/0/end", name);
        dd_wait wait = dd_wait_after(DD_NS_PER_S * check_slow());
        CHECK_OK(dd_store_set(self->store, dd_bytes_of_string(key), dd_bytes_of_string(cases[i].end), &wait,
                              check_err()));
        dd_group *group = NULL;
        CHECK_STATUS(open_named(self, name, 0, 2, DD_NS_PER_S * check_slow(), &group), DD_STORE);
        CHECK_CONTAINS(check_message(), cases[i].complaint);
    }
}

TEST(a_malformed_result_of_a_rendezvous_is_refused)
{
    team_options options = {.size = 1};
    team_run_apart(&options, read_malformed_ends, NULL);
}

/* Rank 1 meets the other ranks, reports that it has lost rank 2, and exits. Rank 0 may never have
 * had a link to it. */
static void
end_for_a_reason(team_rank *self)
{
    dd_wait wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
    if (self->rank == 0) {
        dd_group *group = NULL;
        dd_group_options options = team_group_options("reason");
        dd_error error;
        CHECK(dd_group_open(self->engine, self->store, 0, 3, &options, &group, &wait, &error) ==
              DD_PEER_LOST);
        CHECK_CONTAINS(error.message, "cannot connect the ranks: lost rank 2, which had died");
        CHECK_INT(error.blamed.rank, 2);
        team_rendezvous(self, "through");
        return;
    }
    dd_connect_options connect = team_connect_options(self->options->is_shm_disabled);
    dd_engine *engine = NULL;
    group_meeting meeting = {0};
    REQUIRE_OK(dd_engine_open(&connect, &engine, check_err()));
    dd_bytes name = dd_bytes_of_string("reason");
    CHECK_OK(group_meet(engine, self->store, self->rank, 3, name, &meeting, &wait, check_err()));
    if (self->rank == 1) {
        dd_error error;
        dd_error first;
        dd_error_set(&error, DD_PEER_LOST, "lost rank 2, which had died");
        dd_error_blame(&error, 2, "somewhere", 77);
        dd_meeting_post(self->store, name, meeting.end.generation, &error, &first);
        CHECK_INT(first.blamed.rank, 2);
        group_meeting_fini(&meeting);
        dd_engine_release(engine);
        team_rendezvous(self, "through");
        return;
    }
    team_rendezvous(self, "through");
    group_meeting_fini(&meeting);
    dd_engine_release(engine);
}

TEST(a_rank_that_exits_while_a_group_is_created_is_reported_with_its_reason)
{
    team_options options = {.size = 3};
    team_run_apart(&options, end_for_a_reason, NULL);
    options.is_shm_disabled = true;
    team_run_apart(&options, end_for_a_reason, NULL);
}

static void
miss_one_rank(team_rank *self)
{
    dd_group *group = NULL;
    if (self->rank != 1) {
        CHECK_STATUS(open_named(self, "absent", self->rank, 3, DD_NS_PER_S, &group), DD_OP_TIMED_OUT);
        CHECK_CONTAINS(check_message(), "group \"absent\": rank");
        CHECK_CONTAINS(check_message(), "2 of 3 have joined: 0 (");
        CHECK_CONTAINS(check_message(), "pid ");
        CHECK_CONTAINS(check_message(), "missing: 1");
    }
    team_rendezvous(self, "missed");
    /* The name can be used again. */
    for (int i = 0; i < 3; i++) {
        if (CHECK_OK(open_named(self, "absent", self->rank, 3, 10 * DD_NS_PER_S * check_slow(), &group))) {
            team_check_sum(group);
        }
        close_group(group);
    }
    /* And for another number of ranks. */
    if (self->rank < 2 &&
        CHECK_OK(open_named(self, "absent", self->rank, 2, 10 * DD_NS_PER_S * check_slow(), &group))) {
        team_check_sum(group);
        close_group(group);
    }
}

TEST(absent_ranks_are_named_and_the_groups_name_can_be_used_again)
{
    team_options options = {.size = 3};
    team_run_apart(&options, miss_one_rank, NULL);
}

typedef struct lone_open {
    team_rank *self;
    int rank;
    dd_group *group;
    dd_status status;
    pthread_t thread;
} lone_open;

static void *
open_one(void *arg)
{
    lone_open *one = arg;
    one->status = open_named(one->self, "crowd", one->rank, 5, 10 * DD_NS_PER_S * check_slow(), &one->group);
    CHECK_OK(one->status);
    if (one->group != NULL) {
        for (int i = 0; i < 20; i++) {
            team_check_sum(one->group);
        }
    }
    close_group(one->group);
    return NULL;
}

/* Ranks 0 to 2 of five share the engine of the first process; ranks 3 and 4 are in the second. */
static void
join_with_many(team_rank *self)
{
    lone_open ones[3];
    int first = self->rank == 0 ? 0 : 3;
    int count = self->rank == 0 ? 3 : 2;
    for (int i = 0; i < count; i++) {
        ones[i] = (lone_open){.self = self, .rank = first + i};
        CHECK_OK(dd_thread_start(&ones[i].thread, "one", open_one, &ones[i], check_err()));
    }
    for (int i = 0; i < count; i++) {
        pthread_join(ones[i].thread, NULL);
    }
}

TEST(several_ranks_of_one_process_may_share_one_engine)
{
    team_options options = {.size = 2};
    for (int i = 0; i < 2; i++) {
        options.is_shm_disabled = i == 1;
        team_run_apart(&options, join_with_many, NULL);
    }
}

static void
meet_many(team_rank *self)
{
    CHECK(team_check_sum(self->group));
}

/* The store does not pass this many payloads to every rank: one rank of the host reads them, and
 * passes them to the others. */
TEST(ranks_of_a_large_host_pass_the_addresses_of_all_ranks_to_each_other)
{
    team_options options = {.size = 150};
    struct rlimit limit;
    REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = limit.rlim_max < 4096 ? limit.rlim_max : 4096;
    if (limit.rlim_cur == 4096 && CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0)) {
        team_run(&options, meet_many, NULL);
    }
}

static void *
open_one_of_two(void *arg)
{
    lone_open *one = arg;
    CHECK_OK(open_named(one->self, "twice", one->rank, 2, 10 * DD_NS_PER_S * check_slow(), &one->group));
    return NULL;
}

/* Ranks that meet at a loopback address are on this machine: the second engine listens on loopback,
 * like the first. */
static void
join_with_one_engine(team_rank *self)
{
    dd_store *store = NULL;
    dd_engine *engine = NULL;
    dd_blob published = {0};
    dd_endpoint endpoint;
    dd_addr_list addrs;
    dd_wait wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
    dd_tcp_server *server = NULL;
    dd_tcp_server_options serve = {.host = "127.0.0.1",
                                   .listen_fd = -1,
                                   .handshake_timeout_ns = 5 * DD_NS_PER_S * check_slow(),
                                   .limits = DD_TCP_LIMITS_DEFAULT};
    dd_connect_options connect = team_connect_options(true);
    connect.ifnames = "";
    REQUIRE_OK(dd_tcp_server_open(&server, &serve, &wait, check_err()));
    dd_tcp_store_options options = {.host = "127.0.0.1",
                                    .port = dd_tcp_server_port(server),
                                    .timeout_ns = 10 * DD_NS_PER_S * check_slow(),
                                    .world_size = -1};
    REQUIRE_OK(dd_tcp_store_open(&store, &options, &wait, check_err()));
    REQUIRE_OK(dd_engine_open(&connect, &engine, check_err()));
    team_rank home = *self;
    home.engine = engine;
    home.store = store;
    lone_open ones[2] = {{.self = &home, .rank = 0}, {.self = &home, .rank = 1}};
    for (int i = 0; i < 2; i++) {
        CHECK_OK(dd_thread_start(&ones[i].thread, "one", open_one_of_two, &ones[i], check_err()));
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(ones[i].thread, NULL);
    }
    CHECK_OK(
        dd_store_get(store, dd_bytes_of_string("dldist/twice/0/again/1"), &published, &wait, check_err()));
    REQUIRE_OK(dd_endpoint_decode(dd_blob_view(&published), &endpoint, &addrs, check_err()));
    CHECK_INT(addrs.count, 1);
    CHECK(dd_addr_is_loopback(&addrs.items[0]));
    dd_blob_fini(&published);
    for (int i = 0; i < 2; i++) {
        close_group(ones[i].group);
    }
    dd_engine_release(engine);
    dd_store_release(store);
    dd_tcp_server_release(server);
}

TEST(a_second_engine_of_a_process_listens_at_the_same_address_as_the_first)
{
    team_options options = {.size = 1};
    team_run_apart(&options, join_with_one_engine, NULL);
}

static void
await_first(team_rank *self, int generation)
{
    char text[64];
    snprintf(text, sizeof text, "dldist/w/%d/rank/0", generation);
    dd_wait wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
    dd_bytes key = dd_bytes_of_string(text);
    CHECK_OK(dd_store_wait(self->store, &key, 1, &wait, check_err()));
}

/* Rank 1 joins as rank 0 too. */
static void
join_as_rank_0(team_rank *self)
{
    dd_group *group = NULL;
    int64_t plenty_ns = 60 * DD_NS_PER_S * check_slow();
    if (self->rank == 1) {
        await_first(self, 0);
    }
    dd_error error;
    dd_group_options options = team_group_options("w");
    dd_wait wait = dd_wait_after(plenty_ns);
    CHECK_STATUS(dd_group_open(self->engine, self->store, 0, 2, &options, &group, &wait, &error),
                 DD_MISMATCH);
    CHECK_CONTAINS(error.message, "group \"w\" (rank 0 of 2): rank 0 was started twice: got (");
    CHECK_CONTAINS(error.message, "), expected one process for each rank");
    CHECK_INT(error.blamed.rank, 0);
    CHECK(dd_wait_elapsed_s(&wait) < 20 * check_slow());
    team_rendezvous(self, "refused");
    /* The name can be used again. */
    if (CHECK_OK(open_named(self, "w", self->rank, 2, plenty_ns, &group))) {
        team_check_sum(group);
    }
    close_group(group);
}

TEST(a_rank_that_joins_twice_is_reported_to_all_ranks)
{
    team_options options = {.size = 2};
    team_run_apart(&options, join_as_rank_0, NULL);
}

static void
disagree_on_the_size(team_rank *self)
{
    static const int theirs[] = {3, 2147483647};
    dd_group *group = NULL;
    int64_t plenty_ns = 60 * DD_NS_PER_S * check_slow();
    for (int i = 0; i < 2; i++) {
        if (self->rank == 1) {
            await_first(self, i);
        }
        dd_error error;
        dd_group_options options = team_group_options("w");
        dd_wait wait = dd_wait_after(plenty_ns);
        CHECK_STATUS(dd_group_open(self->engine, self->store, self->rank, self->rank == 0 ? 2 : theirs[i],
                                   &options, &group, &wait, &error),
                     DD_MISMATCH);
        char text[128];
        CHECK_CONTAINS(error.message, "group \"w\" (rank ");
        CHECK_CONTAINS(error.message, "): ranks disagree on the number of ranks: rank 0 (");
        CHECK_CONTAINS(error.message, ") has 2, rank 1 (");
        snprintf(text, sizeof text, ") has %d", theirs[i]);
        CHECK_CONTAINS(error.message, text);
        CHECK_INT(error.blamed.rank, 1 - self->rank);
        CHECK(dd_wait_elapsed_s(&wait) < 20 * check_slow());
        team_rendezvous(self, i == 0 ? "one" : "two");
    }
    /* The name can be used again. */
    if (CHECK_OK(open_named(self, "w", self->rank, 2, plenty_ns, &group))) {
        team_check_sum(group);
    }
    close_group(group);
}

TEST(different_group_sizes_are_reported_on_both_ranks)
{
    team_options options = {.size = 2};
    team_run_apart(&options, disagree_on_the_size, NULL);
}

/* ---- splits */

static dd_group *
split(team_rank *self, dd_group *parent, const int *ranks, int count, uint64_t tag)
{
    dd_group *group = NULL;
    dd_group_options options = team_group_options("part");
    dd_wait wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
    (void)self;
    if (CHECK_OK(dd_group_split(parent, ranks, count, tag, &options, &group, &wait, check_err()))) {
        team_check_sum(group);
    }
    return group;
}

/* Rank 2 names a wrong rank; the other ranks wait for it until the timeout. Then all ranks split
 * twice more. */
static void
split_after_a_wrong_call(team_rank *self)
{
    static const int all[] = {0, 1, 2};
    static const int wrong[] = {0, 1, 7};
    dd_group *group = NULL;
    dd_group_options options = team_group_options("part");
    dd_wait wait = dd_wait_after(300 * DD_NS_PER_MS);
    dd_status status = dd_group_split(self->group, self->rank == 2 ? wrong : all, 3, 0, &options, &group,
                                      &wait, check_err());
    CHECK_INT(status, self->rank == 2 ? DD_INVALID_ARGUMENT : DD_OP_TIMED_OUT);
    team_rendezvous(self, "failed");
    uint8_t byte = 0;
    wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
    dd_call_options plain = {.timeout_ns = -1};
    int source;
    /* arrives after rank 0 has notified rank 2 that the first attempt ended */
    if (self->rank == 0) {
        CHECK_OK(team_send_and_wait(self->group, (dd_block){&byte, 1}, 2, 0, &plain, &wait, check_err()));
    } else if (self->rank == 2) {
        CHECK_OK(
            team_recv_and_wait(self->group, (dd_block){&byte, 1}, 0, 0, &plain, &source, &wait, check_err()));
    }
    for (int i = 0; i < 2; i++) {
        group = split(self, self->group, all, 3, 0);
        REQUIRE(group != NULL);
        close_group(group);
    }
}

TEST(a_group_can_be_split_again_after_a_split_with_wrong_arguments)
{
    team_options options = {.size = 3};
    team_run_both(&options, split_after_a_wrong_call, NULL);
}

static void
split_in_many_ways(team_rank *self)
{
    static const int even[] = {0, 2};
    static const int odd[] = {3, 1};
    static const int first[] = {0, 1, 2};
    static const int last[] = {1, 2, 3};
    static const int nested[] = {2, 0};
    bool is_even = self->rank % 2 == 0;
    dd_group *half = split(self, self->group, is_even ? even : odd, 2, 0);
    CHECK_INT(dd_group_rank(half), self->rank == 2 || self->rank == 1 ? 1 : 0);
    dd_group *overlapping[2] = {NULL, NULL};
    dd_group *inner = NULL;
    if (self->rank < 3) {
        overlapping[0] = split(self, self->group, first, 3, 0);
    }
    if (self->rank > 0) {
        overlapping[1] = split(self, self->group, last, 3, 0);
    }
    if (is_even) {
        inner = split(self, overlapping[0] != NULL ? overlapping[0] : half, nested, 2, 0);
        CHECK_INT(dd_group_rank(inner), self->rank == 0 ? 1 : 0);
    }
    int alone[] = {self->rank};
    dd_group *one = split(self, self->group, alone, 1, 0);
    for (int i = 0; i < 10; i++) {
        /* the same ranks again */
        close_group(split(self, self->group, is_even ? even : odd, 2, 0));
    }
    /* All groups work side by side, whichever others have been closed. */
    team_check_sum(self->group);
    team_check_sum(half);
    close_group(one);
    if (inner != NULL) {
        team_check_sum(inner);
    }
    close_group(overlapping[0]);
    close_group(overlapping[1]);
    if (inner != NULL) {
        team_check_sum(inner);
    }
    close_group(inner);
    close_group(half);
    team_check_sum(self->group);
}

TEST(groups_created_by_a_split_work)
{
    team_options options = {.size = 4};
    team_run_both(&options, split_in_many_ways, NULL);
    options.single_ranks = 4;
    team_run(&options, split_in_many_ways, NULL);
}

static bool
has_left(void *ctx)
{
    dd_group *group = ctx;
    return group->members[1].has_left;
}

static bool
is_never_interrupted(void *ctx)
{
    (void)ctx;
    return false;
}

/* A rank may complete the split, and leave the parent, while another rank still waits for the last
 * message of its leader. */
static void
leave_after_a_split(team_rank *self)
{
    static const int all[] = {0, 1, 2};
    dd_group *part = split(self, self->group, all, 3, 0);
    dd_wait wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
    team_rendezvous(self, "split");
    if (self->rank == 1) {
        CHECK_OK(dd_group_close(self->group, &wait, check_err()));
    } else {
        group_setup setup = {.parent = self->group, .parent_ranks = all};
        CHECK_OK(dd_group_await(self->group, has_left, self->group, &wait, check_err()));
        dd_wait moment = dd_wait_after(50 * DD_NS_PER_MS);
        CHECK_STATUS(group_await_others(part, &setup, is_never_interrupted, NULL, &moment, check_err()),
                     DD_OP_TIMED_OUT);
        part->members[1].has_voted = false; /* so that its leader waits for it */
        moment = dd_wait_after(50 * DD_NS_PER_MS);
        CHECK_STATUS(group_await_others(part, &setup, is_never_interrupted, NULL, &moment, check_err()),
                     self->rank == 0 ? DD_PEER_LOST : DD_OP_TIMED_OUT);
    }
    team_rendezvous(self, "left");
    close_group(part);
}

TEST(a_rank_may_leave_the_parent_as_soon_as_its_own_split_returns)
{
    team_options options = {.size = 3};
    team_run(&options, leave_after_a_split, NULL);
}

static void
split_wrongly(team_rank *self)
{
    static const int both[] = {0, 1};
    static const int twice[] = {0, 0};
    static const int beyond[] = {0, 2};
    int other[] = {1 - self->rank};
    dd_group *group = NULL;
    dd_group_options options = team_group_options("part");
    dd_wait wait = dd_wait_after(100 * DD_NS_PER_MS);
    CHECK_STATUS(dd_group_split(self->group, twice, 2, 0, &options, &group, &wait, check_err()),
                 DD_INVALID_ARGUMENT);
    CHECK_STATUS(dd_group_split(self->group, beyond, 2, 0, &options, &group, &wait, check_err()),
                 DD_INVALID_ARGUMENT);
    CHECK_STATUS(dd_group_split(self->group, other, 1, 0, &options, &group, &wait, check_err()),
                 DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "is not one of the 1 ranks");
    CHECK_STATUS(dd_group_split(self->group, both, 0, 0, &options, &group, &wait, check_err()),
                 DD_INVALID_ARGUMENT);
    if (self->rank == 0) {
        CHECK_STATUS(dd_group_split(self->group, both, 2, 0, &options, &group, &wait, check_err()),
                     DD_OP_TIMED_OUT);
        CHECK_CONTAINS(check_message(), "group \"part\" (rank 0 of 2): cannot connect the ranks: timed out");
        CHECK_CONTAINS(check_message(), "rank 1 (");
    }
    team_rendezvous(self, "split");
    close_group(split(self, self->group, both, 2, 1)); /* with another tag */
    team_check_sum(self->group);
}

TEST(failed_splits_leave_the_parent_usable)
{
    team_options options = {.size = 2};
    team_run_both(&options, split_wrongly, NULL);
}

/* ---- many groups of one engine, used from many threads */

typedef struct split_thread {
    team_rank *self;
    uint64_t tag;
    pthread_t thread;
} split_thread;

static void *
work_in_split(void *arg)
{
    split_thread *one = arg;
    int ranks[] = {0, 1, 2};
    for (int round = 0; round < 3; round++) {
        dd_group *group = split(one->self, one->self->group, ranks, 3, one->tag);
        if (group == NULL) {
            break;
        }
        int64_t data[50][30];
        dd_work *works[50];
        for (int i = 0; i < 50; i++) {
            for (int k = 0; k < 30; k++) {
                data[i][k] = (int64_t)one->tag * 100 + i + k + one->self->rank;
            }
            dd_block block = {.data = data[i], .nbytes = sizeof data[i]};
            dd_coll_args args = {.coll = DD_COLL_ALL_REDUCE,
                                 .reduction = {.dtype = DD_DTYPE_INT64, .op = DD_REDOP_SUM},
                                 .inputs = &block,
                                 .outputs = &block};
            works[i] = NULL;
            CHECK_OK(dd_group_collective(group, &args, &team_no_options, &works[i], check_err()));
        }
        for (int i = 0; i < 50; i++) {
            CHECK_OK(team_wait(group, works[i]));
            CHECK_INT(data[i][29], 3 * ((int64_t)one->tag * 100 + i + 29) + 3);
        }
        for (int i = 0; i < 20; i++) {
            team_check_sum(group);
        }
        close_group(group);
    }
    return NULL;
}

static void
work_in_many_groups(team_rank *self)
{
    split_thread threads[4];
    for (uint64_t i = 0; i < 4; i++) {
        threads[i] = (split_thread){.self = self, .tag = i + 1};
        CHECK_OK(dd_thread_start(&threads[i].thread, "split", work_in_split, &threads[i], check_err()));
    }
    for (int i = 0; i < 50; i++) {
        team_check_sum(self->group);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i].thread, NULL);
    }
}

TEST(several_threads_may_use_different_groups_at_the_same_time)
{
    team_options options = {.size = 3};
    team_run_both(&options, work_in_many_groups, NULL);
}

/* ---- leaks */

typedef struct leftovers {
    int nfds;
    int nthreads;
    int nmappings;
} leftovers;

static leftovers
count_leftovers(void)
{
    return (leftovers){
        .nfds = count_fds(), .nthreads = count_threads(), .nmappings = count_shared_mappings()};
}

/* Check for leaks. A close returns early, and the resources may be released a little later. */
static void
check_leftovers(leftovers before)
{
    leftovers now = count_leftovers();
    for (int i = 0; i < 1000 && (now.nfds > before.nfds || now.nthreads > before.nthreads ||
                                 now.nmappings > before.nmappings);
         i++) {
        dd_wait wait = dd_wait_after(10 * DD_NS_PER_MS);
        CHECK_OK(dd_wait_sleep(&wait, 10 * DD_NS_PER_MS, check_err()));
        now = count_leftovers();
    }
    CHECK_INT(now.nfds > before.nfds ? now.nfds : before.nfds, before.nfds);
    CHECK_INT(now.nthreads > before.nthreads ? now.nthreads : before.nthreads, before.nthreads);
    CHECK_INT(now.nmappings > before.nmappings ? now.nmappings : before.nmappings, before.nmappings);
}

static void
use_regions(dd_group *group)
{
    dd_region *regions[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        REQUIRE_OK(dd_group_alloc(group, (size_t)100000 * (size_t)(i + 1), &regions[i], check_err()));
    }
    CHECK_INT(*(char *)dd_region_data(regions[0]), 0);
    dd_block block = {.data = dd_region_data(regions[0]),
                      .nbytes = 100000}; /* the other region is never announced */
    dd_coll_args args = {.coll = DD_COLL_ALL_REDUCE,
                         .reduction = {.dtype = DD_DTYPE_UINT8, .op = DD_REDOP_SUM},
                         .inputs = &block,
                         .outputs = &block};
    memset(block.data, 1, block.nbytes);
    dd_wait wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
    CHECK_OK(dd_group_collective_and_wait(group, &args, &team_no_options, &wait, check_err()));
    CHECK_INT(*(char *)block.data, dd_group_size(group));
    dd_region_release(regions[0]);
    dd_region_release(regions[1]);
}

static void
make_and_close(team_rank *self)
{
    static const int both[] = {0, 1};
    leftovers before = {0};
    for (int i = 0; i < 200; i++) {
        dd_group *group = i % 2 == 0 ? split(self, self->group, both, 2, 0) : NULL;
        if (group == NULL) {
            CHECK_OK(open_named(self, "again", self->rank, 2, 10 * DD_NS_PER_S * check_slow(), &group));
        }
        if (i % 10 == 3 && group != NULL) {
            use_regions(group);
        }
        close_group(group);
        if (i == 19) { /* all resources that are created once exist by now */
            team_rendezvous(self, "warm");
            before = count_leftovers();
            team_rendezvous(self, "counted");
        }
    }
    team_rendezvous(self, "done");
    check_leftovers(before);
    team_rendezvous(self, "checked");
}

TEST(creating_and_closing_groups_leaks_nothing)
{
    team_options options = {.size = 2};
    team_run_both(&options, make_and_close, NULL);
}

/* Share a region when the other rank has already left. */
static void
share_too_late(team_rank *self)
{
    static const int both[] = {0, 1};
    team_rendezvous(self, "before");
    leftovers before = count_leftovers();
    team_rendezvous(self, "counted");
    dd_group *group = split(self, self->group, both, 2, 0);
    dd_region *region = NULL;
    if (self->rank == 0) {
        close_group(group);
    }
    team_rendezvous(self, "left");
    if (self->rank == 1) {
        CHECK_OK(dd_group_alloc(group, 100, &region, check_err()));
        dd_region_release(region);
        close_group(group);
    }
    team_rendezvous(self, "done");
    /* a descriptor in transit is not counted anywhere */
    dd_wait wait = dd_wait_after(50 * DD_NS_PER_MS);
    CHECK_OK(dd_wait_sleep(&wait, 50 * DD_NS_PER_MS, check_err()));
    check_leftovers(before);
    team_rendezvous(self, "checked");
}

TEST(a_descriptor_sent_to_a_rank_that_has_left_is_closed)
{
    team_options options = {.size = 2};
    team_run(&options, share_too_late, NULL);
}

static void
find_regions(team_rank *self)
{
    dd_region *regions[2] = {NULL, NULL};
    uint8_t *data[2];
    for (int i = 0; i < 2; i++) {
        REQUIRE_OK(dd_group_alloc(self->group, 5000, &regions[i], check_err()));
        data[i] = dd_region_data(regions[i]);
        CHECK(dd_group_find_region(self->group, data[i], 5000) == regions[i]);
        CHECK(dd_group_find_region(self->group, data[i] + 100, 4900) == regions[i]);
        CHECK(dd_group_find_region(self->group, data[i] + 5000, 0) == regions[i]);
        CHECK(dd_group_find_region(self->group, data[i] + 100, 4901) == NULL);
        CHECK(dd_group_find_region(self->group, data[i], SIZE_MAX) == NULL);
    }
    CHECK(dd_group_find_region(self->group, &self, sizeof self) == NULL);
    dd_region_release(regions[0]);
    CHECK(dd_group_find_region(self->group, data[0], 1) == NULL);
    CHECK(dd_group_find_region(self->group, data[1], 1) == regions[1]);
    dd_region_release(regions[1]);
    team_rendezvous(self, "found");
}

TEST(a_shared_array_is_found_by_any_address_inside_it)
{
    team_options options = {.size = 2};
    team_run_both(&options, find_regions, NULL);
}

static void
only_sum(team_rank *self)
{
    team_check_sum(self->group);
}

TEST(creating_and_closing_engines_leaks_nothing)
{
    team_options options = {.size = 2};
    team_run_both(&options, only_sum, NULL);
    leftovers before = count_leftovers();
    for (int i = 0; i < 25; i++) {
        team_run_both(&options, only_sum, NULL);
    }
    check_leftovers(before);
}

/* ---- failures of any allocation, or any system call, of any thread */

static void
expect_clean(dd_status status, const dd_error *error)
{
    CHECK(status == DD_OK || (status == error->code && error->message[0] != '\0'));
}

/* Let `number` calls succeed and the next one fail; -1 for no failure. */
typedef struct shortage {
    void (*fail_after)(long number);
    long number;
    atomic_bool is_over;
} shortage;

static void
fail_allocation(long number)
{
    (void)dd_mem_fail_after(number);
}

static void
fail_system_call(long number)
{
    static const int errors[] = {EMFILE, ENOMEM, EIO, ECONNRESET, EACCES};
    (void)dd_sys_fail_after(number, errors[number < 0 ? 0 : number / 7 % 5]);
}

/* Every rank tries to open a group. */
static void
open_in_need(team_rank *self)
{
    shortage *lack = self->arg;
    char name[32];
    snprintf(name, sizeof name, "poor%ld", lack->number);
    team_rendezvous(self, name);
    if (self->rank == 0) {
        lack->fail_after(lack->number);
    }
    dd_group *group = NULL;
    dd_group_options options = team_group_options(name);
    options.timeout_ns = 120 * DD_NS_PER_MS;
    dd_wait wait = dd_wait_after(120 * DD_NS_PER_MS * check_slow());
    dd_error error = {.code = DD_OK};
    dd_status status =
        dd_group_open(self->engine, self->store, self->rank, self->size, &options, &group, &wait, &error);
    expect_clean(status, &error);
    if (group != NULL) {
        float x[3000] = {1};
        dd_block blocks[2] = {{x, 4000}, {x + 1500, 4000}};
        dd_coll_args args = {.coll = DD_COLL_ALL_TO_ALL,
                             .reduction = {.dtype = DD_DTYPE_FLOAT32},
                             .inputs = blocks,
                             .outputs = blocks};
        dd_block outputs[2] = {{malloc(4000), 4000}, {malloc(4000), 4000}};
        args.outputs = outputs;
        expect_clean(dd_group_collective_and_wait(group, &args, &team_no_options, &wait, &error), &error);
        dd_work *works[3] = {NULL, NULL, NULL};
        dd_block in = {x + 10, 8};
        int other = 1 - self->rank;
        expect_clean(dd_group_collective(group, &args, &team_no_options, &works[0], &error), &error);
        expect_clean(team_send(group, blocks[0], other, 1, &team_no_options, &works[1], &error), &error);
        expect_clean(team_recv(group, in, DD_ANY_RANK, 2, &team_no_options, &works[2], &error), &error);
        dd_region *region = NULL;
        expect_clean(dd_group_alloc(group, 20000, &region, &error), &error);
        for (int i = 0; i < 2; i++) {
            if (works[i] != NULL) {
                dd_wait moment = dd_wait_after(50 * DD_NS_PER_MS);
                expect_clean(dd_group_wait(group, works[i], &moment, &error), &error);
            }
        }
        dd_group *part = NULL;
        static const int both[] = {0, 1};
        dd_wait moment = dd_wait_after(100 * DD_NS_PER_MS);
        expect_clean(dd_group_split(group, both, 2, 0, &options, &part, &moment, &error), &error);
        dd_group_release(part);
        dd_region_release(region);
        wait = dd_wait_after(0);
        expect_clean(dd_group_close(group, &wait, &error), &error);
        for (int i = 0; i < 3; i++) {
            CHECK(works[i] == NULL || dd_work_is_done(works[i]));
            dd_work_release(works[i]);
        }
        dd_group_release(group);
        free(outputs[0].data);
        free(outputs[1].data);
    }
    if (self->rank == 0) {
        lack->fail_after(-1);
        atomic_store(&lack->is_over, true);
    }
    /* Wait until no call fails any longer: waking a thread that must end never fails. Do not wait
     * in the store, whose barrier could be the call that fails. */
    while (!atomic_load(&lack->is_over)) {
        sched_yield();
    }
}

static void
run_in_need(bool is_shm_disabled, void (*fail_after)(long number), long first)
{
    team_options first_team = {.size = 2, .is_shm_disabled = is_shm_disabled};
    /* sanitizers start a thread when the test starts its first one */
    team_run(&first_team, only_sum, NULL);
    leftovers before = count_leftovers();
    dd_wait limit = dd_wait_after(2 * DD_NS_PER_S * check_slow());
    for (long number = first; number < 400 && !dd_wait_has_expired(&limit); number += 7) {
        team_options options = {.size = 2, .is_shm_disabled = is_shm_disabled};
        shortage lack = {.fail_after = fail_after, .number = number};
        team_run_apart(&options, open_in_need, &lack);
        fail_after(-1);
    }
    check_leftovers(before);
}

TEST(failed_allocations_while_opening_over_shared_memory_leak_nothing)
{
    run_in_need(false, fail_allocation, 0);
}

TEST(later_failed_allocations_while_opening_over_shared_memory_leak_nothing)
{
    run_in_need(false, fail_allocation, 121);
}

TEST(failed_allocations_while_opening_over_tcp_leak_nothing)
{
    run_in_need(true, fail_allocation, 1);
}

TEST(later_failed_allocations_while_opening_over_tcp_leak_nothing)
{
    run_in_need(true, fail_allocation, 122);
}

TEST(failed_system_calls_while_opening_over_shared_memory_leak_nothing)
{
    run_in_need(false, fail_system_call, 0);
}

TEST(later_failed_system_calls_while_opening_over_shared_memory_leak_nothing)
{
    run_in_need(false, fail_system_call, 97);
}

TEST(last_failed_system_calls_while_opening_over_shared_memory_leak_nothing)
{
    run_in_need(false, fail_system_call, 203);
}

TEST(failed_system_calls_while_opening_over_tcp_leak_nothing)
{
    run_in_need(true, fail_system_call, 0);
}

TEST(later_failed_system_calls_while_opening_over_tcp_leak_nothing)
{
    run_in_need(true, fail_system_call, 97);
}

TEST(last_failed_system_calls_while_opening_over_tcp_leak_nothing)
{
    run_in_need(true, fail_system_call, 203);
}
