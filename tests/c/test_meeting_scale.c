/* The cost of starting many ranks: see meeting_sim.h, and benchmarks/simulate_meeting.c. */
#include "check.h"
#include "meeting_sim.h"

#define NHOSTS 8
#define PAYLOAD_NBYTES 128 /* upper limit, for a process with one address */
#define LINES_NBYTES 1024

static bool
run(int nranks, bool is_by_keys, meeting_sim_bill *bill)
{
    meeting_sim_shape shape = {.nranks = nranks, .nhosts = NHOSTS, .is_by_keys = is_by_keys};
    return meeting_sim_run(&shape, bill);
}

/* Check the requests, whose number per rank is constant, and the bytes of a rank: a part for each
 * process, a payload for each host, and a constant. */
static void
check_growth(int size, bool is_by_keys, uint64_t most, uint64_t most_of_last)
{
    meeting_sim_bill bill;
    uint64_t count = (uint64_t)size;
    uint64_t npayloads = count * 32 + NHOSTS * PAYLOAD_NBYTES;
    uint64_t nlast = is_by_keys ? 3 * count * PAYLOAD_NBYTES : 0;
    REQUIRE(run(size, is_by_keys, &bill));
    CHECK_INT(bill.store.nrequests, (count - 1) * most + most_of_last);
    CHECK_INT(bill.most_of_a_rank.nrequests, most > most_of_last ? most : most_of_last);
    CHECK(bill.most_of_a_rank.nbytes <= LINES_NBYTES + npayloads + nlast);
    CHECK(bill.store.nbytes <= count * (LINES_NBYTES + npayloads) + nlast);
}

TEST(store_requests_per_rank_do_not_grow_with_the_number_of_ranks)
{
    check_growth(64, false, 2, 1);
    check_growth(256, false, 2, 1);
    check_growth(512, false, 2, 1);
}

/* The last rank to join reads the payloads of all ranks. */
TEST(store_requests_per_rank_by_plain_keys_do_not_grow_with_the_ranks)
{
    check_growth(64, true, 5, 7);
    check_growth(256, true, 5, 7);
}

TEST(each_kind_of_collective_opens_only_the_connections_that_it_needs)
{
    meeting_sim_bill bill;
    REQUIRE(run(256, false, &bill));
    int nlocal = 256 / NHOSTS;
    const meeting_sim_links *first = bill.of_rank_0;
    const meeting_sim_links *last = bill.of_last;
    for (int step = MEETING_SIM_DONE; step <= MEETING_SIM_ALL_REDUCE_64_MIB; step++) {
        CHECK_INT(first[step].nnear, nlocal - 1); /* the ranks of its host */
        CHECK_INT(first[step].nfar, NHOSTS - 1);  /* the leaders of the other hosts */
        CHECK_INT(last[step].nnear, 1);           /* its leader */
    }
    CHECK_INT(last[MEETING_SIM_DONE].nfar, 0);
    CHECK_INT(last[MEETING_SIM_ALL_REDUCE_8_B].nfar, 0); /* too small to split */
    CHECK(last[MEETING_SIM_ALL_REDUCE_64_MIB].nfar <= NHOSTS - 1);
    CHECK(last[MEETING_SIM_ALL_TO_ALL_8_B].nfar <= 2 * 8); /* steps of doubling distance */
    CHECK_INT(last[MEETING_SIM_ALL_TO_ALL_64_KIB].nfar, 256 - nlocal);
}

TEST(another_rank_without_messages_uses_less_than_1000_bytes)
{
    meeting_sim_bill bill;
    REQUIRE(run(256, false, &bill));
    CHECK(bill.nbytes_for_another < 1000);
}
