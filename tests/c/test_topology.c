#include "check.h"
#include "collective/topology.h"
#include "core/mem.h"
#include "faults/faults.h"

static void
check_row(const int *actual, const int *expected, int count)
{
    for (int i = 0; i < count; i++) {
        CHECK_INT(actual[i], expected[i]);
    }
}

TEST(hosts_are_numbered_by_their_lowest_ranks)
{
    static const int host_of[] = {5, 2, 5, 0, 2, 5};
    dd_topology topology;
    REQUIRE_OK(dd_topology_init(&topology, 4, 6, host_of, check_err()));
    CHECK_INT(topology.rank, 4);
    CHECK_INT(topology.nranks, 6);
    CHECK_INT(topology.nhosts, 3);
    CHECK_INT(topology.host, 1);
    CHECK_INT(topology.local, 1);
    CHECK_INT(topology.nlocal, 2);
    CHECK_INT(topology.min_nlocal, 1);
    CHECK_INT(topology.max_nlocal, 3);
    check_row(topology.host_of, (const int[]){0, 1, 0, 2, 1, 0}, 6);
    check_row(topology.local_of, (const int[]){0, 0, 1, 0, 1, 2}, 6);
    check_row(topology.nlocal_of, (const int[]){3, 2, 1}, 3);
    check_row(topology.local_ranks, (const int[]){1, 4}, 2);
    dd_topology_fini(&topology);
}

TEST(a_rank_is_found_by_its_host_and_its_index_on_the_host)
{
    static const int host_of[] = {0, 1, 1, 0, 1};
    dd_topology topology;
    REQUIRE_OK(dd_topology_init(&topology, 0, 5, host_of, check_err()));
    CHECK_INT(dd_topology_rank_at(&topology, 0, 0), 0);
    CHECK_INT(dd_topology_rank_at(&topology, 0, 1), 3);
    CHECK_INT(dd_topology_rank_at(&topology, 0, 2), -1);
    CHECK_INT(dd_topology_rank_at(&topology, 1, 2), 4);
    CHECK_INT(dd_topology_rank_at(&topology, 1, 3), -1);
    CHECK_INT(dd_topology_rank_at(&topology, 2, 0), -1);
    CHECK_INT(dd_topology_rank_at(&topology, -1, 0), -1);
    CHECK_INT(dd_topology_rank_at(&topology, 0, -1), -1);
    dd_topology_fini(&topology);
}

TEST(a_single_rank_counts_as_one_host)
{
    static const int host_of[] = {0};
    dd_topology topology;
    REQUIRE_OK(dd_topology_init(&topology, 0, 1, host_of, check_err()));
    CHECK_INT(topology.nhosts, 1);
    CHECK_INT(topology.nlocal, 1);
    CHECK_INT(topology.local_ranks[0], 0);
    dd_topology_fini(&topology);
    dd_topology_fini(&topology);
}

TEST(invalid_ranks_are_refused)
{
    static const int host_of[] = {0, 0};
    dd_topology topology;
    CHECK_STATUS(dd_topology_init(&topology, 2, 2, host_of, check_err()), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "invalid rank: got 2");
    CHECK_STATUS(dd_topology_init(&topology, -1, 2, host_of, check_err()), DD_INVALID_ARGUMENT);
    CHECK_STATUS(dd_topology_init(&topology, 0, 0, host_of, check_err()), DD_INVALID_ARGUMENT);
}

TEST(creating_a_topology_leaks_nothing_when_allocations_fail)
{
    static const int host_of[] = {0, 1, 0};
    dd_topology topology = {0};
    dd_status status = DD_OUT_OF_MEMORY;
    int nfailures = 0;
    for (; status == DD_OUT_OF_MEMORY && nfailures < 10; nfailures++) {
        (void)dd_mem_fail_after(nfailures);
        status = dd_topology_init(&topology, 1, 3, host_of, NULL);
        (void)dd_mem_fail_after(-1);
    }
    CHECK_INT(status, DD_OK);
    CHECK_INT(nfailures, 2);
    dd_topology_fini(&topology);
}
