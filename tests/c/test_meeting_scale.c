/* What a start costs where there are many ranks: see meeting_sim.h, and benchmarks/simulate_meeting.c for more of it. */
#include "check.h"
#include "meeting_sim.h"

#define NHOSTS 8
#define CARD_NBYTES 128 /* at most, of a process with an address */
#define LINES_NBYTES 1024

static bool
run(int nranks, bool is_by_keys, meeting_sim_bill *bill)
{
    meeting_sim_shape shape = {.nranks = nranks, .nhosts = NHOSTS, .is_by_keys = is_by_keys};
    return meeting_sim_run(&shape, bill);
}

/* Requests: the same for each rank, whatever their number. Bytes: what is another process's own for each of them, a card for each
 * host, and a constant. */
static void
check_growth(bool is_by_keys, uint64_t most, uint64_t most_of_last, uint64_t nlast_bytes)
{
    static const int SIZES[] = {64, 256};
    for (int i = 0; i < 2; i++) {
        meeting_sim_bill bill;
        uint64_t size = (uint64_t)SIZES[i];
        REQUIRE(run(SIZES[i], is_by_keys, &bill));
        CHECK_INT(bill.store.nrequests, (size - 1) * most + most_of_last);
        CHECK(bill.most_of_a_rank.nrequests <= (most > most_of_last ? most : most_of_last));
        CHECK(bill.most_of_a_rank.nbytes <= LINES_NBYTES + size * (32 + nlast_bytes) + NHOSTS * CARD_NBYTES);
        CHECK(bill.store.nbytes <=
              size * (LINES_NBYTES + size * 32 + NHOSTS * CARD_NBYTES) + size * nlast_bytes);
    }
}

TEST(what_a_meeting_costs)
{
    check_growth(false, 2, 1, 0);
}

/* The last one that comes reads what each has published. */
TEST(what_a_meeting_by_keys_costs)
{
    check_growth(true, 5, 7, 2 * CARD_NBYTES);
}

TEST(which_links_a_start_takes)
{
    meeting_sim_bill bill;
    REQUIRE(run(256, false, &bill));
    int nlocal = 256 / NHOSTS;
    const meeting_sim_links *first = bill.of_rank_0;
    const meeting_sim_links *last = bill.of_last;
    for (int step = MEETING_SIM_MET; step <= MEETING_SIM_ALL_REDUCE_64_MIB; step++) {
        CHECK_INT(first[step].nnear, nlocal - 1); /* its host */
        CHECK_INT(first[step].nfar, NHOSTS - 1);  /* the other hosts' leaders */
        CHECK_INT(last[step].nnear, 1);           /* its leader */
    }
    CHECK_INT(last[MEETING_SIM_MET].nfar, 0);
    CHECK_INT(last[MEETING_SIM_ALL_REDUCE_8_B].nfar, 0); /* too little to share out */
    CHECK(last[MEETING_SIM_ALL_REDUCE_64_MIB].nfar <= NHOSTS - 1);
    CHECK(last[MEETING_SIM_ALL_TO_ALL_8_B].nfar <= 2 * 8); /* steps of doubling distance */
    CHECK_INT(last[MEETING_SIM_ALL_TO_ALL_64_KIB].nfar, 256 - nlocal);
}

TEST(memory_for_a_rank_that_one_never_talks_to)
{
    meeting_sim_bill bill;
    REQUIRE(run(256, false, &bill));
    CHECK(bill.nbytes_for_another < 3000);
}
