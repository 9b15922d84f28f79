/* Groups of threads: every collective, over every transport. */
#include "check.h"
#include "group_case.h"

#include "core/system.h"
#include "faults/faults.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RANKS 16

/* Sizes of blocks in bytes: empty, a few bytes, about the limit of a header, a page, a slot's
 * buffers, and the limits of messages. */
static const size_t sizes[] = {0, 1, 2, 16, 37, 80, 96, 1000, 4096, 4104, 16380, 32800, 65536, 70001, 200003};
#define NSIZES (sizeof sizes / sizeof sizes[0])

typedef struct matrix_arg {
    uint64_t number;
    size_t nsizes;
    bool is_by_messages; /* on all ranks; else through one arena */
    bool is_mixed;
    /* the barrier between writing and reading is a dldist barrier */
    _Atomic uint64_t hashes[MAX_RANKS];
} matrix_arg;

static bool
is_linear(const team_rank *self, const matrix_arg *arg, const coll_case *test, const dd_selection *selection)
{
    dd_select_query query = {
        .coll = test->coll,
        .nranks = self->size,
        .nbytes = test->count * dd_dtype_size(test->dtype),
        .is_even = test->shape == SHAPE_EVEN,
    };
    if (arg->is_mixed || !arg->is_by_messages) {
        return !arg->is_mixed;
    }
    /* The largest of uneven blocks decides, which is not computed here. */
    return query.is_even && dd_select(selection, &query)->order == DD_ORDER_LINEAR;
}

/* Check that an all_reduce gives the same bits on every rank, in any order. */
static void
compare_hashes(team_rank *self, matrix_arg *arg, const coll_case *test, uint64_t hash)
{
    if (test->coll != DD_COLL_ALL_REDUCE) {
        return;
    }
    arg->hashes[self->rank] = hash;
    CHECK_OK(team_barrier(self->group));
    char name[200];
    case_print(test, name);
    if (!CHECK(arg->hashes[0] == hash)) {
        fprintf(stderr, "    rank %d of %d: %s\n", self->rank, self->size, name);
    }
    CHECK_OK(team_barrier(self->group));
}

static void
run_matrix(team_rank *self)
{
    matrix_arg *arg = self->arg;
    dd_selection selection;
    REQUIRE_OK(dd_selection_parse("", &selection, check_err()));
    for (int coll = 0; coll < DD_COLL_COUNT && check_failures() == 0; coll++) {
        for (size_t i = 0; i < arg->nsizes; i++) {
            size_t nbytes = sizes[(i * NSIZES + arg->number) / arg->nsizes % NSIZES];
            coll_case test = case_sample(arg->number + i, (dd_coll)coll, nbytes, self->size);
            uint64_t hash = 0;
            case_run(self, &test, is_linear(self, arg, &test, &selection), &hash);
            compare_hashes(self, arg, &test, hash);
        }
    }
}

/* Return the number of sizes to test: fewer for more ranks. */
static size_t
nsizes_for(int nranks)
{
    return nranks <= 5 ? NSIZES : nranks <= 8 ? NSIZES / 2 : NSIZES / 4;
}

static void
run_matrices(team_options options, bool is_by_messages, bool is_mixed)
{
    static const int teams[] = {1, 2, 3, 4, 5, 7, 8, 16};
    for (size_t i = 0; i < sizeof teams / sizeof teams[0]; i++) {
        matrix_arg arg = {.number = (uint64_t)teams[i] * 100,
                          .nsizes = nsizes_for(teams[i]),
                          .is_by_messages = is_by_messages,
                          .is_mixed = is_mixed};
        options.size = teams[i];
        team_run(&options, run_matrix, &arg);
    }
}

TEST(collectives_by_shared_memory_are_correct)
{
    run_matrices((team_options){0}, false, false);
}

TEST(collectives_by_tcp_are_correct)
{
    run_matrices((team_options){.is_shm_disabled = true}, true, false);
}

TEST(collectives_by_messages_in_shared_memory_are_correct)
{
    run_matrices((team_options){.algorithms = "flat"}, true, false);
}

TEST(collectives_of_hosts_with_several_ranks_and_with_one_are_correct)
{
    run_matrices((team_options){.single_ranks = 0x5a52}, true, true);
}

TEST(collectives_over_parallel_tcp_connections_are_correct)
{
    for (int size = 2; size <= 4; size++) {
        matrix_arg arg = {.number = 5, .nsizes = NSIZES / 2, .is_by_messages = true};
        team_options options = {.size = size, .is_shm_disabled = true, .nlanes = 3};
        team_run(&options, run_matrix, &arg);
    }
}

/* ---- every type with every operation */

static void
run_reductions(team_rank *self)
{
    for (int dtype = 0; dtype < DD_DTYPE_COUNT; dtype++) {
        for (int op = 0; op < DD_REDOP_COUNT; op++) {
            if (!dd_reduce_is_supported((dd_dtype)dtype, (dd_redop)op)) {
                continue;
            }
            static const dd_coll colls[] = {DD_COLL_ALL_REDUCE, DD_COLL_REDUCE, DD_COLL_REDUCE_SCATTER};
            for (size_t i = 0; i < 3; i++) {
                coll_case test =
                    case_sample((uint64_t)(dtype * 64 + op), colls[i], (size_t)(op * 977 + 300), self->size);
                test.dtype = (dd_dtype)dtype;
                test.op = (dd_redop)op;
                test.shape = SHAPE_EVEN;
                uint64_t hash;
                case_run(self, &test, true, &hash);
            }
        }
    }
}

TEST(every_reduction_of_every_type_is_correct)
{
    team_options options = {.size = 3};
    team_run_both(&options, run_reductions, NULL); /* three ranks also fold in order over TCP */
}

/* ---- large collectives */

static void
run_large(team_rank *self)
{
    for (int coll = 1; coll < DD_COLL_COUNT; coll++) {
        for (uint64_t variant = 0; variant < 3; variant++) {
            coll_case test =
                case_sample(variant, (dd_coll)coll, ((size_t)1 << 20) + variant * 24, self->size);
            test.region_ranks = variant == 0 ? 0 : variant == 1 ? 0xffff : 0x5;
            uint64_t hash;
            case_run(self, &test, !self->options->is_shm_disabled, &hash);
        }
    }
}

TEST(collectives_of_a_mebibyte_are_correct)
{
    for (int size = 2; size <= 3; size++) {
        team_options options = {.size = size};
        team_run_both(&options, run_large, NULL);
    }
}

static void
run_huge(team_rank *self)
{
    coll_case test = case_sample(1, DD_COLL_ALL_REDUCE, (size_t)9 << 20, self->size);
    test.dtype = DD_DTYPE_FLOAT32;
    test.op = DD_REDOP_SUM;
    test.region_ranks = 0;
    test.count = ((size_t)9 << 20) / 4;
    uint64_t hash;
    case_run(self, &test, true, &hash);
}

TEST(a_collective_of_nine_mebibytes_is_correct)
{
    team_options options = {.size = 3};
    team_run_both(&options, run_huge, NULL);
}

/* ---- the same bits over every transport */

typedef struct bits_arg {
    dd_coll coll;
    size_t nbytes;
    uint64_t hashes[MAX_RANKS];
} bits_arg;

static void
run_for_bits(team_rank *self)
{
    bits_arg *arg = self->arg;
    coll_case test = case_sample(0, arg->coll, arg->nbytes, self->size);
    test.dtype = DD_DTYPE_BFLOAT16;
    test.op = DD_REDOP_SUM;
    test.count = arg->nbytes / 2;
    test.shape = SHAPE_EVEN;
    test.root = 1;
    test.region_ranks = 0;
    test.seed = 4711;
    case_run(self, &test, false, &arg->hashes[self->rank]);
}

static void
compare_ways(dd_coll coll, int size, size_t nbytes, const uint64_t *linear)
{
    for (const dd_algorithm *row = dd_algorithms; row->name != NULL; row++) {
        if (row->coll != coll) {
            continue;
        }
        char way[128];
        uint64_t first[MAX_RANKS];
        for (int variant = 0; variant < 3; variant++) {
            bits_arg arg = {.coll = coll, .nbytes = nbytes};
            snprintf(way, sizeof way, "flat,%s=%s", dd_coll_name(coll), row->name);
            team_options options = {.size = size,
                                    .algorithms = way,
                                    .is_shm_disabled = variant > 0,
                                    .segment_nbytes = variant > 1 ? 8192 : 0};
            team_run(&options, run_for_bits, &arg);
            if (variant == 0) {
                memcpy(first, arg.hashes, sizeof first);
            }
            if (!CHECK(memcmp(first, arg.hashes, sizeof first) == 0) ||
                (row->order == DD_ORDER_LINEAR &&
                 !CHECK(memcmp(linear, arg.hashes, sizeof arg.hashes) == 0))) {
                fprintf(stderr, "    %s, %d ranks, %zu bytes, variant %d\n", way, size, nbytes, variant);
            }
        }
    }
}

TEST(results_have_the_same_bits_over_shared_memory_and_over_tcp)
{
    static const dd_coll colls[] = {DD_COLL_ALL_REDUCE, DD_COLL_REDUCE, DD_COLL_REDUCE_SCATTER};
    for (size_t i = 0; i < 3; i++) {
        for (int size = 3; size <= 5; size += 2) {
            for (size_t nbytes = 60; nbytes < 100000; nbytes *= 1000) {
                bits_arg arg = {.coll = colls[i], .nbytes = nbytes};
                team_options options = {.size = size};
                team_run(&options, run_for_bits, &arg);
                compare_ways(colls[i], size, nbytes, arg.hashes);
            }
        }
    }
}

/* ---- many collectives in flight */

#define NFLIGHTS 300

static void
fly_many(team_rank *self)
{
    static const int counts[] = {1, 5, 100, 5000};
    dd_work *works[NFLIGHTS];
    int64_t *data[NFLIGHTS];
    for (int i = 0; i < NFLIGHTS; i++) {
        int count = counts[i % 4];
        data[i] = malloc((size_t)count * sizeof *data[i]);
        for (int k = 0; k < count; k++) {
            data[i][k] = self->rank + i + k;
        }
        dd_block block = {.data = data[i], .nbytes = (size_t)count * sizeof *data[i]};
        dd_coll_args args = {.coll = i % 7 == 3 ? DD_COLL_BROADCAST : DD_COLL_ALL_REDUCE,
                             .root = i % self->size * (i % 7 == 3),
                             .reduction = {.dtype = DD_DTYPE_INT64, .op = DD_REDOP_SUM},
                             .inputs = &block,
                             .outputs = &block};
        works[i] = NULL;
        REQUIRE_OK(dd_group_collective(self->group, &args, &team_no_options, &works[i], check_err()));
    }
    dd_engine_kick(dd_group_engine(self->group));
    for (int i = 0; i < NFLIGHTS; i++) {
        /* some in order, some from the end */
        int wait_for = i % 2 == 0 ? i : NFLIGHTS - (NFLIGHTS % 2) - i;
        CHECK_OK(team_wait(self->group, works[wait_for]));
    }
    for (int i = 0; i < NFLIGHTS; i++) {
        int last = counts[i % 4] - 1;
        int64_t sum = (int64_t)self->size * (i + last) + self->size * (self->size - 1) / 2;
        CHECK_INT(data[i][last], i % 7 == 3 ? i % self->size + i + last : sum);
        free(data[i]);
    }
    CHECK_INT(dd_group_sequence(self->group), NFLIGHTS);
}

TEST(hundreds_of_collectives_in_flight_complete)
{
    for (int size = 1; size <= 4; size++) {
        team_options options = {.size = size};
        team_run_both(&options, fly_many, NULL);
    }
}

/* ---- works without a waiting thread */

static void
fly_unattended(team_rank *self)
{
    int64_t x[1000];
    for (int i = 0; i < 1000; i++) {
        x[i] = i;
    }
    dd_block block = {.data = x, .nbytes = sizeof x};
    dd_coll_args args = {.coll = DD_COLL_ALL_REDUCE,
                         .reduction = {.dtype = DD_DTYPE_INT64, .op = DD_REDOP_SUM},
                         .inputs = &block,
                         .outputs = &block};
    dd_work *work = NULL;
    REQUIRE_OK(dd_group_collective(self->group, &args, &team_no_options, &work, check_err()));
    dd_engine_kick(dd_group_engine(self->group));
    dd_wait wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
    while (!dd_work_is_done(work) && !dd_wait_has_expired(&wait)) {
        CHECK_OK(dd_wait_sleep(&wait, DD_NS_PER_MS, check_err()));
    }
    REQUIRE(dd_work_is_done(work));
    CHECK_INT(x[999], 999 * self->size);
    dd_work_release(work);
}

TEST(asynchronous_collectives_progress_while_no_thread_waits)
{
    team_options options = {.size = 3};
    team_run_both(&options, fly_unattended, NULL);
    options.single_ranks = 4;
    team_run(&options, fly_unattended, NULL);
}

/* ---- calls that are rejected before any data is sent */

static void
call_wrongly(team_rank *self)
{
    uint8_t bytes[64] = {0};
    dd_block blocks[] = {{bytes, 8}, {bytes + 8, 8}, {bytes + 16, 4}, {bytes + 24, 7}};
    dd_coll_args args = {.coll = DD_COLL_ALL_REDUCE,
                         .reduction = {.dtype = DD_DTYPE_FLOAT32, .op = DD_REDOP_SUM},
                         .inputs = &blocks[0],
                         .outputs = &blocks[2]};
    CHECK_STATUS(team_call(self, &args), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "all_reduce: ");
    args.inputs = args.outputs = &blocks[3];
    CHECK_STATUS(team_call(self, &args), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "invalid block size: got 7 bytes, expected a multiple of 4 (float32)");
    args.inputs = args.outputs = &blocks[0];
    args.reduction.op = DD_REDOP_BXOR;
    CHECK_STATUS(team_call(self, &args), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "reduction BXOR does not support dtype float32");
    args.coll = DD_COLL_BROADCAST;
    args.root = self->size;
    CHECK_STATUS(team_call(self, &args), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "invalid root rank");
    args.root = -1;
    CHECK_STATUS(team_call(self, &args), DD_INVALID_ARGUMENT);
    CHECK(team_check_sum(self->group)); /* the group is not affected */
    CHECK_INT(dd_group_sequence(self->group), 1);
}

TEST(collectives_with_wrong_arguments_are_refused)
{
    team_options options = {.size = 2};
    team_run_both(&options, call_wrongly, NULL);
}

/* ---- suspension */

typedef struct suspension {
    dd_sys_fault fault; /* one rank's call fails */
    atomic_int nown;
    atomic_int nnotified;
} suspension;

static void
fail_to_suspend(team_rank *self)
{
    suspension *counts = self->arg;
    dd_wait wait = dd_wait_after(20 * DD_NS_PER_S * check_slow());
    REQUIRE(team_check_sum(self->group));
    team_rendezvous(self, "used");
    if (self->rank == 0) {
        dd_sys_fail_call(&counts->fault);
    }
    team_rendezvous(self, "fails from now on");
    dd_status status = dd_group_suspend(self->group, &wait, check_err());
    atomic_fetch_add(status == DD_SYSTEM ? &counts->nown : &counts->nnotified, 1);
    CHECK_CONTAINS(check_message(),
                   status == DD_SYSTEM ? "cannot release" : "cannot suspend it, so no rank does");
    CHECK(status == DD_SYSTEM || status == DD_INVALID_ARGUMENT);
    CHECK(team_check_sum(self->group));
    team_rendezvous(self, "once more");
    CHECK_OK(dd_group_suspend(self->group, &wait, check_err()));
    CHECK_STATUS(team_barrier(self->group), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "is suspended");
    CHECK_OK(dd_group_resume(self->group, check_err()));
    team_rendezvous(self, "resumed");
    CHECK(team_check_sum(self->group));
}

TEST(either_all_ranks_of_a_group_are_suspended_or_none)
{
    suspension counts = {.fault = {.call = DD_SYS_madvise, .error_number = EINVAL}};
    team_options options = {.size = 3, .timeout_ns = 4 * DD_NS_PER_S};
    team_run(&options, fail_to_suspend, &counts);
    dd_sys_fail_call(NULL);
    CHECK_INT(counts.nown, 1);
    CHECK_INT(counts.nnotified, 2);
}
