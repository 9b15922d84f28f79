/* The legs of all ranks, carried out by definition in one thread, compared with the collective. */
#include "check.h"
#include "coll_reference.h"
#include "coll_world.h"
#include "collective/hierarchy.h"
#include "core/mem.h"
#include "faults/faults.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RANKS 16

typedef struct layout {
    int nranks;
    int host_of[MAX_RANKS];
} layout;

static const layout layouts[] = {
    {4, {0, 0, 1, 1}},       {4, {0, 1, 0, 1}},    {6, {0, 0, 1, 1, 2, 2}},
    {6, {0, 0, 0, 1, 1, 1}}, {4, {0, 0, 0, 1}},    {4, {0, 1, 1, 1}},
    {6, {0, 1, 1, 0, 2, 1}}, {5, {0, 1, 0, 1, 0}}, {16, {0, 1, 2, 3, 0, 1, 2, 3, 3, 2, 1, 0, 0, 1, 2, 3}},
};

#define NLAYOUTS ((int)(sizeof layouts / sizeof layouts[0]))

/* One set of limits small enough for many pieces, and the default limits. */
static const dd_hierarchy_limits tight = {.piece_nbytes = 256, .line_nbytes = 64, .small_nbytes = 96};
static const dd_hierarchy_limits usual = {0};

typedef struct actor {
    dd_topology topology;
    dd_hierarchy hierarchy;
    char *scratch;
    dd_leg legs[DD_LANE_COUNT];
    bool has_leg[DD_LANE_COUNT];
    bool is_over[DD_LANE_COUNT];
    uint64_t nended[DD_LANE_COUNT];
} actor;

typedef struct stage {
    const layout *where;
    coll_world world;
    actor actors[MAX_RANKS];
} stage;

/* ---- collectives by definition */

/* A copy of a member's input. */
typedef struct block_copy {
    void *data;
    size_t nbytes;
} block_copy;

static block_copy
copy_block(const dd_leg *leg, int block)
{
    size_t nbytes = leg->args.inputs[block].nbytes;
    block_copy taken = {.data = malloc(nbytes + 1), .nbytes = nbytes};
    if (nbytes > 0) {
        memcpy(taken.data, leg->args.inputs[block].data, nbytes);
    }
    return taken;
}

static bool
fold_copies(const dd_leg *leg, const block_copy *copies, int ncopies, dd_block out)
{
    const void *sources[MAX_RANKS];
    size_t size = dd_coll_input_size(&leg->args);
    size_t count = out.nbytes / dd_coll_output_size(&leg->args);
    for (int k = 0; k < ncopies; k++) {
        sources[k] = copies[k].data;
        if (!CHECK_INT(copies[k].nbytes, count * size)) {
            return false;
        }
    }
    if (count > 0) {
        dd_reduce(&leg->args.reduction, leg->args.stage, out.data, sources, (size_t)ncopies, count);
    }
    return true;
}

static bool
deliver(const block_copy *from, dd_block to)
{
    if (!CHECK_INT(from->nbytes, to.nbytes)) {
        return false;
    }
    if (to.nbytes > 0) {
        memcpy(to.data, from->data, to.nbytes);
    }
    return true;
}

static bool
fill_output(dd_leg *const *legs, block_copy *const *copies, int to, int block)
{
    const dd_leg *leg = legs[to];
    dd_block out = leg->args.outputs[block];
    coll_sources from = coll_sources_of(leg->args.coll, leg->args.root, leg->nranks, to, block);
    block_copy column[MAX_RANKS];
    for (int k = 0; k < from.count; k++) {
        column[k] = copies[from.first + k][from.block];
    }
    return dd_coll_is_folding(leg->args.coll) ? fold_copies(leg, column, from.count, out)
                                              : deliver(&column[0], out);
}

static bool
do_collective(dd_leg *const *legs, int nranks)
{
    block_copy *copies[MAX_RANKS];
    bool is_good = true;
    dd_coll coll = legs[0]->args.coll;
    for (int k = 0; k < nranks; k++) {
        const dd_leg *leg = legs[k];
        is_good = is_good && CHECK_INT(leg->args.coll, coll) && CHECK_INT(leg->nranks, nranks) &&
                  CHECK_INT(leg->rank, k) && CHECK_INT(leg->args.root, legs[0]->args.root) &&
                  CHECK_INT(leg->args.stage, legs[0]->args.stage);
        int ninputs = dd_coll_ninputs(coll, leg->args.root == k, nranks);
        copies[k] = malloc(((size_t)ninputs + 1) * sizeof **copies);
        for (int i = 0; i < ninputs; i++) {
            copies[k][i] = copy_block(leg, i);
        }
    }
    for (int k = 0; k < nranks && is_good; k++) {
        int noutputs = dd_coll_noutputs(coll, legs[k]->args.root == k, nranks);
        for (int i = 0; i < noutputs && is_good; i++) {
            is_good = fill_output(legs, copies, k, i);
        }
    }
    for (int k = 0; k < nranks; k++) {
        for (int i = 0; i < dd_coll_ninputs(coll, legs[0]->args.root == k, nranks); i++) {
            free(copies[k][i].data);
        }
        free(copies[k]);
    }
    return is_good;
}

/* ---- the lanes of all ranks */

static bool
is_ready(actor *who, dd_leg_lane lane)
{
    if (!who->has_leg[lane] && !who->is_over[lane]) {
        who->has_leg[lane] = dd_hierarchy_get_leg(&who->hierarchy, lane, who->nended[lane], &who->legs[lane]);
        who->is_over[lane] = !who->has_leg[lane];
    }
    return who->has_leg[lane] && who->nended[1 - lane] >= who->legs[lane].needs;
}

static void
end_leg(actor *who, dd_leg_lane lane)
{
    who->has_leg[lane] = false;
    who->nended[lane]++;
}

/* Run a leg that needs only one rank. */
static bool
do_alone(actor *who)
{
    dd_leg *leg = &who->legs[DD_LANE_PLAN];
    if (!is_ready(who, DD_LANE_PLAN) || leg->kind == DD_LEG_PLAN) {
        return false;
    }
    end_leg(who, DD_LANE_PLAN);
    return true;
}

/* Run a leg of the given ranks, once all of them have reached it. */
static bool
do_together(stage *set, dd_leg_lane lane, const int *ranks, int nranks, dd_leg_kind kind)
{
    dd_leg *legs[MAX_RANKS];
    for (int k = 0; k < nranks; k++) {
        actor *who = &set->actors[ranks[k]];
        if (!is_ready(who, lane) || who->legs[lane].kind != kind) {
            return false;
        }
        legs[k] = &who->legs[lane];
    }
    if (!do_collective(legs, nranks)) {
        return false;
    }
    int named[MAX_RANKS];
    memcpy(named, ranks, (size_t)nranks * sizeof *ranks);
    for (int k = 0; k < nranks; k++) {
        end_leg(&set->actors[named[k]], lane);
    }
    return true;
}

static bool
are_plans_agreed(stage *set, const dd_leg *leg)
{
    for (int k = 0; k < leg->nranks; k++) {
        actor *who = &set->actors[leg->ranks[k]];
        if (!is_ready(who, DD_LANE_PLAN) || who->legs[DD_LANE_PLAN].kind != DD_LEG_PLAN ||
            who->legs[DD_LANE_PLAN].nranks != leg->nranks ||
            memcmp(who->legs[DD_LANE_PLAN].ranks, leg->ranks, (size_t)leg->nranks * sizeof(int)) != 0) {
            return false;
        }
    }
    return true;
}

static bool
move_rank(stage *set, int rank)
{
    actor *who = &set->actors[rank];
    const dd_topology *topology = &who->topology;
    if (do_alone(who)) {
        return true;
    }
    const dd_leg *plan = &who->legs[DD_LANE_PLAN];
    if (is_ready(who, DD_LANE_PLAN) && plan->kind == DD_LEG_PLAN && are_plans_agreed(set, plan) &&
        do_together(set, DD_LANE_PLAN, plan->ranks, plan->nranks, DD_LEG_PLAN)) {
        return true;
    }
    return do_together(set, DD_LANE_ARENA, topology->local_ranks, topology->nlocal, DD_LEG_ARENA);
}

static void
begin(stage *set, const dd_hierarchy_limits *limits)
{
    for (int r = 0; r < set->where->nranks; r++) {
        actor *who = &set->actors[r];
        memset(who, 0, sizeof *who);
        CHECK_OK(dd_topology_init(&who->topology, r, set->where->nranks, set->where->host_of, check_err()));
        CHECK_OK(dd_hierarchy_init(&who->hierarchy, &who->topology, limits, check_err()));
        dd_hierarchy_begin(&who->hierarchy, &set->world.ranks[r].args);
        who->scratch = aligned_alloc(64, who->hierarchy.scratch_nbytes + 64);
        who->hierarchy.scratch = who->scratch;
    }
}

static bool
finish(stage *set)
{
    bool is_good = true;
    for (int r = 0; r < set->where->nranks; r++) {
        actor *who = &set->actors[r];
        is_good = is_good && CHECK(!is_ready(who, DD_LANE_PLAN) && who->is_over[DD_LANE_PLAN]) &&
                  CHECK(!is_ready(who, DD_LANE_ARENA) && who->is_over[DD_LANE_ARENA]);
        free(who->scratch);
        dd_hierarchy_fini(&who->hierarchy);
        dd_topology_fini(&who->topology);
    }
    return is_good;
}

static bool
check_case(const layout *where, const coll_case *test_case, const dd_hierarchy_limits *limits)
{
    stage *set = calloc(1, sizeof *set);
    set->where = where;
    coll_world_init(&set->world, test_case);
    begin(set, limits);
    bool has_moved = true;
    while (has_moved) {
        has_moved = false;
        for (int r = 0; r < where->nranks; r++) {
            has_moved = move_rank(set, r) || has_moved;
        }
    }
    bool is_good = finish(set);
    for (int r = 0; r < where->nranks && is_good; r++) {
        is_good = coll_world_check_rank(&set->world, r);
    }
    if (!is_good) {
        char text[160];
        fprintf(stderr, "    layout %d: %s\n", (int)(where - layouts), coll_case_print(test_case, text));
    }
    coll_world_fini(&set->world);
    free(set);
    return is_good;
}

/* ---- cases */

typedef struct arithmetic {
    dd_dtype dtype;
    dd_redop op;
} arithmetic;

static const arithmetic arithmetics[] = {
    {DD_DTYPE_FLOAT32, DD_REDOP_SUM},        {DD_DTYPE_BFLOAT16, DD_REDOP_AVG},
    {DD_DTYPE_FLOAT64, DD_REDOP_AVG},        {DD_DTYPE_INT16, DD_REDOP_AVG},
    {DD_DTYPE_FLOAT16, DD_REDOP_PREMUL_SUM}, {DD_DTYPE_INT32, DD_REDOP_MAX},
    {DD_DTYPE_FLOAT8_E4M3FN, DD_REDOP_SUM},  {DD_DTYPE_INT64, DD_REDOP_PREMUL_SUM},
};

static const size_t counts[] = {0, 1, 3, 40, 700, 2000};

/* Return false after the first failure. */
static bool
check_counts(const layout *where, coll_case test_case, const dd_hierarchy_limits *limits)
{
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        test_case.count = counts[i];
        for (int kind = 0; kind < 4; kind++) {
            test_case.is_in_place = kind % 2 != 0;
            test_case.is_uneven = kind / 2 != 0;
            if (!check_case(where, &test_case, limits)) {
                return false;
            }
        }
    }
    return true;
}

static void
check_coll(dd_coll coll, int narithmetics, bool has_roots)
{
    for (int at = 0; at < NLAYOUTS; at++) {
        dd_topology topology;
        REQUIRE_OK(dd_topology_init(&topology, 0, layouts[at].nranks, layouts[at].host_of, check_err()));
        bool is_fitting = dd_hierarchy_fits(&topology, coll);
        dd_topology_fini(&topology);
        for (int root = 0; is_fitting && root < (has_roots ? layouts[at].nranks : 1); root += 1 + root / 3) {
            for (int i = 0; i < narithmetics; i++) {
                coll_case test_case = {.coll = coll,
                                       .nranks = layouts[at].nranks,
                                       .root = root,
                                       .dtype = arithmetics[i].dtype,
                                       .op = arithmetics[i].op};
                REQUIRE(check_counts(&layouts[at], test_case, &tight));
                REQUIRE(i > 1 || check_counts(&layouts[at], test_case, &usual));
            }
        }
    }
}

#define ALL_ARITHMETICS ((int)(sizeof arithmetics / sizeof arithmetics[0]))

TEST(all_reduce_in_stages_within_and_between_hosts_is_correct)
{
    check_coll(DD_COLL_ALL_REDUCE, ALL_ARITHMETICS, false);
}

TEST(reduce_in_stages_within_and_between_hosts_is_correct)
{
    check_coll(DD_COLL_REDUCE, ALL_ARITHMETICS, true);
}

TEST(broadcast_in_stages_within_and_between_hosts_is_correct)
{
    check_coll(DD_COLL_BROADCAST, 1, true);
}

TEST(all_gather_in_stages_within_and_between_hosts_is_correct)
{
    check_coll(DD_COLL_ALL_GATHER, 1, false);
}

TEST(reduce_scatter_in_stages_within_and_between_hosts_is_correct)
{
    check_coll(DD_COLL_REDUCE_SCATTER, ALL_ARITHMETICS, false);
}

TEST(barrier_in_stages_within_and_between_hosts_is_correct)
{
    check_coll(DD_COLL_BARRIER, 1, false);
}

TEST(unsupported_host_layouts_and_collectives_are_not_run_in_stages)
{
    static const layout alone = {3, {0, 1, 2}};
    static const layout together = {3, {0, 0, 0}};
    static const layout uneven = {3, {0, 0, 1}};
    static const layout *const all[] = {&alone, &together, &uneven};
    for (int i = 0; i < 3; i++) {
        dd_topology topology;
        REQUIRE_OK(dd_topology_init(&topology, 0, 3, all[i]->host_of, check_err()));
        CHECK_INT(dd_hierarchy_fits(&topology, DD_COLL_ALL_REDUCE), all[i] == &uneven);
        CHECK(!dd_hierarchy_fits(&topology, DD_COLL_ALL_GATHER));
        CHECK(!dd_hierarchy_fits(&topology, DD_COLL_REDUCE_SCATTER));
        CHECK(!dd_hierarchy_fits(&topology, DD_COLL_ALL_TO_ALL));
        CHECK(!dd_hierarchy_fits(&topology, DD_COLL_GATHER));
        dd_topology_fini(&topology);
    }
}

TEST(the_scratch_memory_of_huge_collectives_is_bounded)
{
    dd_topology topology;
    dd_hierarchy hierarchy;
    REQUIRE_OK(dd_topology_init(&topology, 0, 4, layouts[0].host_of, check_err()));
    REQUIRE_OK(dd_hierarchy_init(&hierarchy, &topology, &usual, check_err()));
    dd_block block = {.data = NULL, .nbytes = (size_t)1 << 32};
    const dd_block blocks[] = {block, block, block, block};
    static const dd_coll colls[] = {DD_COLL_ALL_REDUCE, DD_COLL_REDUCE, DD_COLL_REDUCE_SCATTER};
    for (int i = 0; i < 3; i++) {
        dd_coll_args args = {.coll = colls[i],
                             .root = 1,
                             .reduction = {.dtype = DD_DTYPE_BFLOAT16, .divisor = 4},
                             .inputs = blocks,
                             .outputs = blocks};
        dd_hierarchy_begin(&hierarchy, &args);
        CHECK(hierarchy.scratch_nbytes > 0 && hierarchy.scratch_nbytes <= (size_t)8 << 20);
    }
    dd_hierarchy_fini(&hierarchy);
    dd_topology_fini(&topology);
}

TEST(preparing_stages_within_and_between_hosts_fails_when_allocations_fail)
{
    dd_topology topology;
    dd_hierarchy hierarchy;
    REQUIRE_OK(dd_topology_init(&topology, 0, 4, layouts[0].host_of, check_err()));
    (void)dd_mem_fail_after(0);
    CHECK_STATUS(dd_hierarchy_init(&hierarchy, &topology, &usual, check_err()), DD_OUT_OF_MEMORY);
    (void)dd_mem_fail_after(-1);
    dd_topology_fini(&topology);
}
