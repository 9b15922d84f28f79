#include "check.h"
#include "core/mem.h"
#include "faults/faults.h"
#include "plan_sim.h"

#include <stdlib.h>
#include <string.h>

static unsigned
next(unsigned *random)
{
    *random = *random * 1664525u + 1013904223u;
    return *random >> 10;
}

static const dd_reduction reductions[] = {
    {.dtype = DD_DTYPE_FLOAT32, .op = DD_REDOP_SUM},
    {.dtype = DD_DTYPE_BFLOAT16, .op = DD_REDOP_SUM},
    {.dtype = DD_DTYPE_FLOAT32, .op = DD_REDOP_PREMUL_SUM, .factor = 0.3},
    {.dtype = DD_DTYPE_FLOAT8_E4M3FN, .op = DD_REDOP_AVG},
    {.dtype = DD_DTYPE_INT32, .op = DD_REDOP_AVG},
    {.dtype = DD_DTYPE_BOOL, .op = DD_REDOP_PRODUCT},
    {.dtype = DD_DTYPE_UINT8, .op = DD_REDOP_SUM},
    {.dtype = DD_DTYPE_BFLOAT16, .op = DD_REDOP_AVG},
    {.dtype = DD_DTYPE_FLOAT64, .op = DD_REDOP_MAX},
    {.dtype = DD_DTYPE_COMPLEX128, .op = DD_REDOP_SUM},
};

static sim_case
random_case(const dd_algorithm *algorithm, int nranks, unsigned *random)
{
    size_t n = (size_t)nranks;
    size_t counts[] = {0, 1, n - 1, n, n + 1, 97, 1009, 16 * n};
    size_t segments[] = {64, 192, 1024, 1 << 20};
    sim_case sim = {.algorithm = algorithm, .nranks = nranks, .seed = next(random)};
    sim.root = (int)(next(random) % (unsigned)nranks);
    do {
        sim.reduction = reductions[next(random) % (sizeof reductions / sizeof reductions[0])];
    } while (dd_coll_is_folding(algorithm->coll) &&
             !dd_coll_has_reduction(algorithm->coll, sim.reduction.dtype, sim.reduction.op));
    sim.reduction.divisor = nranks;
    sim.count = counts[next(random) % 8];
    sim.segment_nbytes = segments[next(random) % 4];
    if (nranks > 12 && sim.segment_nbytes < 1024 && sim.count > 97) {
        sim.count = 97;
    }
    sim.is_uneven = !algorithm->is_even_only && next(random) % 2 == 0;
    sim.stage = next(random) % 2 == 0 ? DD_STAGE_WHOLE : (dd_stage)(next(random) % 4);
    bool is_narrow =
        dd_reduce_partial_size(sim.reduction.dtype, sim.reduction.op) != dd_dtype_size(sim.reduction.dtype);
    bool changes_size = is_narrow && (sim.stage == DD_STAGE_FIRST || sim.stage == DD_STAGE_LAST) &&
                        algorithm->order != DD_ORDER_NONE;
    sim.is_in_place = next(random) % 2 == 0 && algorithm->coll != DD_COLL_ALL_TO_ALL && !changes_size;
    sim.policy = (sim_policy)(next(random) % SIM_NPOLICIES);
    sim.is_eager = next(random) % 3 == 0;
    return sim;
}

/* Check this number of cases of each algorithm for each number of ranks. */
static void
check_ranks(dd_coll coll, int ncases)
{
    unsigned random = 20250101u + (unsigned)coll;
    for (const dd_algorithm *row = dd_algorithms; row->name != NULL; row++) {
        for (int nranks = 1; row->coll == coll && nranks <= 64; nranks++) {
            int wanted = nranks <= 9 ? 4 * ncases : nranks <= 17 ? ncases : (ncases + 3) / 4;
            for (int i = 0; i < wanted; i++) {
                sim_case sim = random_case(row, nranks, &random);
                REQUIRE(plan_sim_check(&sim));
            }
        }
    }
}

#define PLANS_OF(name, text, ...)       \
    TEST(plans_of_##text)               \
    {                                   \
        check_ranks(DD_COLL_##name, 4); \
    }
DD_COLL_LIST(PLANS_OF)

TEST(ring_algorithms_with_many_segments_are_correct)
{
    unsigned random = 7;
    const char *colls[] = {"all_reduce", "reduce_scatter"};
    for (int i = 0; i < 24; i++) {
        dd_coll coll = strcmp(colls[i % 2], "all_reduce") == 0 ? DD_COLL_ALL_REDUCE : DD_COLL_REDUCE_SCATTER;
        sim_case sim = random_case(dd_algorithm_find(coll, "ring"), 2 + i % 5, &random);
        sim.count = 4001;
        sim.segment_nbytes = 64;
        sim.is_eager = false;
        REQUIRE(plan_sim_check(&sim));
    }
}

TEST(an_algorithm_is_found_by_collective_and_name)
{
    const dd_algorithm *ring = dd_algorithm_find(DD_COLL_ALL_REDUCE, "ring");
    REQUIRE(ring != NULL);
    CHECK_INT(ring->order, DD_ORDER_RING);
    CHECK_INT(ring->coll, DD_COLL_ALL_REDUCE);
    CHECK(dd_algorithm_find(DD_COLL_BARRIER, "ring") == NULL);
    CHECK(dd_algorithm_find(DD_COLL_ALL_REDUCE, "") == NULL);
}

TEST(each_collective_has_the_right_number_of_input_and_output_blocks)
{
    CHECK_INT(dd_coll_ninputs(DD_COLL_SCATTER, true, 5), 5);
    CHECK_INT(dd_coll_ninputs(DD_COLL_SCATTER, false, 5), 0);
    CHECK_INT(dd_coll_noutputs(DD_COLL_REDUCE, false, 5), 0);
    CHECK_INT(dd_coll_noutputs(DD_COLL_REDUCE, true, 5), 1);
    CHECK_INT(dd_coll_noutputs(DD_COLL_ALL_GATHER, false, 5), 5);
    CHECK_INT(dd_coll_ninputs(DD_COLL_BARRIER, true, 5), 0);
    CHECK_INT(dd_coll_ninputs((dd_coll)99, true, 5), 0);
    CHECK(strcmp(dd_coll_name(DD_COLL_REDUCE_SCATTER), "reduce_scatter") == 0);
    CHECK(strcmp(dd_coll_name((dd_coll)99), "unknown") == 0);
}

/* Each allocation of a builder fails once. */
TEST(planning_a_collective_returns_an_error_when_allocations_fail)
{
    unsigned random = 3;
    for (const dd_algorithm *row = dd_algorithms; row->name != NULL; row++) {
        sim_case sim = random_case(row, 9, &random);
        sim.count = 97;
        sim.segment_nbytes = 64;
        sim.is_uneven = false;
        dd_status status = DD_OUT_OF_MEMORY;
        long failing = 0;
        for (; status != DD_OK && failing < 1000; failing++) {
            dd_error err = {0};
            dd_mem_fail_after(failing);
            status = plan_sim_build(&sim, NULL, NULL, &err);
            dd_mem_fail_after(-1);
            if (status != DD_OK) {
                CHECK_INT(status, DD_OUT_OF_MEMORY);
                CHECK_CONTAINS(err.message, "bytes");
            }
        }
        CHECK(failing > 1 && failing < 1000);
    }
}

typedef struct cost {
    uint32_t most_steps;
    uint32_t most_deps;
    size_t most_scratch;
} cost;

static void
note_cost(int rank, const dd_plan *plan, void *ctx)
{
    cost *most = ctx;
    (void)rank;
    most->most_steps = plan->nsteps > most->most_steps ? plan->nsteps : most->most_steps;
    most->most_deps = plan->nfollowers > most->most_deps ? plan->nfollowers : most->most_deps;
    most->most_scratch =
        plan->scratch_nbytes > most->most_scratch ? plan->scratch_nbytes : most->most_scratch;
}

/* The algorithms for many ranks must need few steps. */
TEST(plans_for_1024_ranks_have_few_steps)
{
    static const struct {
        dd_coll coll;
        const char *name;
        uint32_t most_steps;
    } rows[] = {
        {DD_COLL_BARRIER, "dissemination", 20}, {DD_COLL_BROADCAST, "binomial", 12},
        {DD_COLL_ALL_REDUCE, "doubling", 40},   {DD_COLL_REDUCE, "binomial", 30},
        {DD_COLL_ALL_GATHER, "bruck", 1100},    {DD_COLL_ALL_TO_ALL, "bruck", 10 * 512 + 1100},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        sim_case sim = {.algorithm = dd_algorithm_find(rows[i].coll, rows[i].name),
                        .nranks = 1024,
                        .reduction = {.dtype = DD_DTYPE_FLOAT32, .op = DD_REDOP_SUM},
                        .count = 2,
                        .segment_nbytes = 65536};
        REQUIRE(sim.algorithm != NULL);
        cost most = {0};
        CHECK_OK(plan_sim_build(&sim, note_cost, &most, check_err()));
        CHECK(most.most_steps <= rows[i].most_steps);
        CHECK(most.most_deps <= 4 * rows[i].most_steps + 100);
    }
}
