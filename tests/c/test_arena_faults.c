/* Ranks that disagree, malformed data, descriptors that are not arenas, and failed allocations. */
#include "check.h"
#include "collective/arena/state.h"
#include "core/fork.h"
#include "core/mem.h"
#include "faults/faults.h"
#include "test_arena_team.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define NRANKS 3

/* The difference between one rank's call and the others'. */
typedef struct arena_fault {
    dd_coll coll;
    int wrong_rank;
    dd_signature difference; /* xor'ed into the wrong rank's signature */
    int wrong_input;         /* index of its block that is 8 bytes short; -1 if there is none */
    int wrong_output;
    size_t block_nbytes;
} arena_fault;

static bool
is_filled(const uint8_t *data, size_t nbytes, uint8_t value)
{
    for (size_t i = 0; i < nbytes; i++) {
        if (data[i] != value) {
            return false;
        }
    }
    return true;
}

static void
disagree(team_rank *self, const void *arg)
{
    const arena_fault *fault = arg;
    static const size_t max_nbytes = 8192;
    uint8_t inputs[NRANKS][8192] = {{0}};
    uint8_t outputs[NRANKS][8192];
    memset(outputs, 0x5a, sizeof(outputs));
    REQUIRE(fault->block_nbytes <= max_nbytes);
    dd_block in[NRANKS];
    dd_block out[NRANKS];
    bool is_wrong = self->rank == fault->wrong_rank;
    for (int k = 0; k < NRANKS; k++) {
        in[k] = (dd_block){inputs[k], fault->block_nbytes - (is_wrong && k == fault->wrong_input ? 8 : 0)};
        out[k] = (dd_block){outputs[k], fault->block_nbytes - (is_wrong && k == fault->wrong_output ? 8 : 0)};
    }
    dd_coll_args args = {.coll = fault->coll,
                         .reduction = {.dtype = DD_DTYPE_FLOAT32, .op = DD_REDOP_SUM, .divisor = NRANKS},
                         .inputs = in,
                         .outputs = out};
    dd_signature signature = arena_team_signature(&args, 7);
    dd_signature expected = signature;
    uint8_t *bytes = (uint8_t *)&signature;
    for (size_t i = 0; is_wrong && i < sizeof(signature); i++) {
        bytes[i] ^= ((const uint8_t *)&fault->difference)[i];
    }
    dd_arena_op_options options = arena_team_op_options(self, signature);
    options.sequence = 71;
    dd_arena_state state = arena_team_finish(self, &args, &options);
    /* A rank that is ahead receives the failure in its next operation. */
    if (dd_coll_has_root(fault->coll) && state == DD_ARENA_DONE) {
        args = (dd_coll_args){.coll = DD_COLL_BARRIER};
        options.signature = arena_team_signature(&args, 0);
        options.sequence = 72;
        state = arena_team_finish(self, &args, &options);
    } else {
        CHECK(is_filled(outputs[0], sizeof(outputs), 0x5a));
    }
    CHECK_INT(state, DD_ARENA_MISMATCH);
    dd_arena_mismatch mismatch = dd_arena_get_mismatch(self->arena);
    CHECK_INT(mismatch.sequence, 71);
    bool is_size = fault->wrong_input >= 0 || fault->wrong_output >= 0;
    CHECK_INT(mismatch.is_size, is_size);
    CHECK(mismatch.rank != self->rank);
    if (is_size) {
        CHECK_INT(mismatch.nbytes + mismatch.other_nbytes, 2 * fault->block_nbytes - 8);
    } else if (!is_wrong) {
        CHECK_INT(mismatch.rank, fault->wrong_rank);
        CHECK(memcmp(&mismatch.signature, &expected, sizeof(expected)) != 0);
    } else {
        CHECK(memcmp(&mismatch.signature, &expected, sizeof(expected)) == 0);
    }
}

TEST(ranks_whose_calls_differ_in_any_field_report_a_mismatch)
{
    const dd_signature differences[] = {
        {.coll = 1}, {.dtype = 1}, {.redop = 1},      {.flags = 1},
        {.root = 1}, {.count = 1}, {.extra_bits = 1}, {.count = UINT64_C(1) << 63}};
    for (size_t i = 0; i < sizeof(differences) / sizeof(differences[0]); i++) {
        arena_fault fault = {.coll = i % 2 == 0 ? DD_COLL_ALL_REDUCE : DD_COLL_ALL_TO_ALL,
                             .wrong_rank = (int)(i % NRANKS),
                             .difference = differences[i],
                             .wrong_input = -1,
                             .wrong_output = -1,
                             .block_nbytes = i < 4 ? 8 : 4096};
        arena_team_run(&(team_options){.nranks = NRANKS, .is_sleeping = i % 2 == 0}, disagree, &fault);
    }
}

TEST(ranks_whose_calls_differ_in_any_block_size_report_a_mismatch)
{
    static const struct {
        dd_coll coll;
        int rank, input, output;
    } cases[] = {
        {DD_COLL_ALL_REDUCE, 1, 0, -1},     {DD_COLL_BROADCAST, 2, -1, 0},
        {DD_COLL_REDUCE, 0, 0, -1},         {DD_COLL_GATHER, 0, -1, 2},
        {DD_COLL_GATHER, 1, 0, -1},         {DD_COLL_SCATTER, 0, 1, -1},
        {DD_COLL_SCATTER, 2, -1, 0},        {DD_COLL_ALL_GATHER, 0, 0, -1},
        {DD_COLL_ALL_GATHER, 1, -1, 2},     {DD_COLL_REDUCE_SCATTER, 1, 0, -1},
        {DD_COLL_REDUCE_SCATTER, 2, -1, 0}, {DD_COLL_ALL_TO_ALL, 0, 1, -1},
        {DD_COLL_ALL_TO_ALL, 2, -1, 0},
    };
    for (size_t i = 0; i < 2 * sizeof(cases) / sizeof(cases[0]); i++) {
        arena_fault fault = {.coll = cases[i / 2].coll,
                             .wrong_rank = cases[i / 2].rank,
                             .wrong_input = cases[i / 2].input,
                             .wrong_output = cases[i / 2].output,
                             .block_nbytes = i % 2 == 0 ? 16 : 8192};
        arena_team_run(&(team_options){.nranks = NRANKS}, disagree, &fault);
    }
}

/* ---- a rank that writes arbitrary data into its part of the memory */

typedef struct arena_victim {
    dd_arena *arena;
    dd_arena *other;
    uint8_t *memory;
} arena_victim;

#define VICTIM_HALF ((size_t)74 * 4096) /* at least 300000 bytes, in whole pages */

static uint64_t
random_value(uint64_t *random)
{
    uint64_t drawn = arena_team_random(random);
    switch (drawn % 6) {
    case 0:
        return drawn;
    case 1:
        return (drawn >> 8) % 200;
    case 2:
        return UINT64_C(1) << (drawn >> 8) % 64;
    case 3:
        return 8192 * ((drawn >> 8) % 64);
    case 4:
        return UINT64_MAX - (drawn >> 8) % 100;
    default:
        return 0;
    }
}

/* Write random data next to the header. The header itself is half valid, so that it is accepted. */
static void
write_random_values(arena_victim *victim, const dd_signature *signature, uint64_t *random)
{
    arena_slot *slot = &victim->other->slots[1];
    uint32_t number = victim->arena->number;
    arena_record *record = &slot->control->records[number % ARENA_NRECORDS];
    for (int i = 0; i < (ARENA_NRECORDS * ARENA_NTABLES + 1) * 2; i++) {
        if (arena_team_random(random) % 2 == 0) {
            atomic_store(&slot->tables[i], random_value(random));
        }
    }
    _Atomic uint64_t *words = record->words;
    const uint64_t *right = (const uint64_t *)(const void *)signature;
    for (int i = 0; i < ARENA_NWORDS; i++) {
        bool is_right = i < ARENA_WORD_NBYTES && arena_team_random(random) % 32 != 0;
        atomic_store(&words[i], is_right ? right[i] : random_value(random));
    }
    if (arena_team_random(random) % 4 != 0) {
        atomic_store(&words[ARENA_WORD_NBYTES], victim->arena->op.nbytes);
    }
    if (arena_team_random(random) % 2 == 0) {
        atomic_store(&words[ARENA_WORD_FLAGS], arena_team_random(random) % (ARENA_ALL_FLAGS + 1));
    }
    if (arena_team_random(random) % 2 == 0) {
        atomic_store(&words[ARENA_WORD_INPUT_ID], 1 + arena_team_random(random) % 2);
        atomic_store(&words[ARENA_WORD_OUTPUT_ID], 1 + arena_team_random(random) % 2);
    }
    atomic_store(&slot->control->awaited, (uint32_t)random_value(random));
    uint64_t claims[] = {random_value(random),
                         (victim->arena->nchunks + 1) << 8 | (random_value(random) & 0xff)};
    atomic_store(&slot->control->claim, claims[arena_team_random(random) % 2]);
    atomic_store(&victim->other->shared->asleep[arena_team_random(random) % 4], random_value(random));
    uint32_t step = (uint32_t)(arena_team_random(random) % 3);
    bool is_wild = arena_team_random(random) % 8 == 0;
    atomic_store(&record->mark, is_wild ? random_value(random) : dd_arena_mark(number, step));
}

static void
ignore_wake(void *ctx, int rank)
{
    CHECK(ctx == NULL);
    CHECK(rank == 1);
}

static void
run_with_corruption(arena_victim *victim, uint64_t seed)
{
    uint64_t random = seed;
    const size_t sizes[] = {0, 8, 64, 80, 8192, 20000, 300000};
    size_t nbytes = sizes[arena_team_random(&random) % (sizeof(sizes) / sizeof(sizes[0]))];
    dd_coll coll = (dd_coll)(arena_team_random(&random) % DD_COLL_COUNT);
    nbytes = dd_coll_traits_of[coll].has_uneven ? nbytes / 2 / 8 * 8 : nbytes;
    dd_block in[2] = {{victim->memory, nbytes}, {victim->memory + nbytes, nbytes}};
    uint8_t *second = victim->memory + VICTIM_HALF;
    dd_block out[2] = {{second, nbytes}, {second + nbytes, nbytes}};
    if (arena_team_random(&random) % 3 == 0 && coll == DD_COLL_ALL_TO_ALL) {
        in[1].nbytes /= 2;
    }
    dd_coll_args args = {.coll = coll,
                         .root = (int)(arena_team_random(&random) % 2),
                         .reduction = {.dtype = DD_DTYPE_INT8, .op = DD_REDOP_SUM},
                         .inputs = in,
                         .outputs = out};
    args.inputs = dd_coll_ninputs(coll, args.root == 0, 2) > 0 ? in : NULL;
    args.outputs = dd_coll_noutputs(coll, args.root == 0, 2) > 0 ? out : NULL;
    dd_arena_op_options options = {.signature = arena_team_signature(&args, nbytes), .wake = ignore_wake};
    dd_arena_start(victim->arena, &args, &options);
    for (int i = 0; i < 24; i++) {
        dd_arena_state state = dd_arena_progress(victim->arena);
        if (state != DD_ARENA_BLOCKED && state != DD_ARENA_MOVED) {
            return;
        }
        write_random_values(victim, &options.signature, &random);
        (void)dd_arena_missing(victim->arena);
        (void)dd_arena_fall_asleep(victim->arena);
    }
}

TEST(corrupt_shared_memory_of_another_rank_causes_no_invalid_access)
{
    const size_t region_nbytes = 50000;
    uint8_t *region = dd_mem_zalloc(region_nbytes);
    arena_victim victim = {.memory = dd_mem_zalloc(2 * VICTIM_HALF)};
    int ncases = 3000;
    for (int i = 0; i < ncases; i++) {
        int fd = -1;
        REQUIRE_OK(dd_arena_create(2, i % 4 >= 2, &fd, check_err()));
        REQUIRE_OK(dd_arena_attach(fd, 2, 0, &victim.arena, check_err()));
        REQUIRE_OK(dd_arena_join(victim.arena, 1, &victim.other, check_err()));
        REQUIRE_OK(dd_arena_add_region(victim.arena, 1, 1, region, region_nbytes, check_err()));
        if (i % 2 == 0) {
            REQUIRE_OK(dd_arena_add_region(victim.arena, 0, 1, victim.memory, 2 * VICTIM_HALF, check_err()));
        }
        run_with_corruption(&victim, (uint64_t)i);
        dd_arena_close(victim.other);
        dd_arena_close(victim.arena);
        dd_fork_close(fd);
    }
    dd_mem_free(region);
    dd_mem_free(victim.memory);
}

/* ---- ranks that fail while other ranks use their memory */

#define SHARED_NBYTES ((size_t)1 << 20)

/* Two ranks of one arena, with a region each. */
typedef struct arena_pair {
    dd_arena *arenas[2];
    uint8_t *memory[2];
    dd_block blocks[2][2];
    dd_coll_args args[2];
    int fd;
} arena_pair;

static void
open_pair(arena_pair *pair, dd_coll coll)
{
    bool is_reduction = coll == DD_COLL_ALL_REDUCE;
    REQUIRE_OK(dd_arena_create(2, false, &pair->fd, check_err()));
    REQUIRE_OK(dd_arena_attach(pair->fd, 2, 0, &pair->arenas[0], check_err()));
    REQUIRE_OK(dd_arena_join(pair->arenas[0], 1, &pair->arenas[1], check_err()));
    for (int rank = 0; rank < 2; rank++) {
        pair->memory[rank] = dd_mem_zalloc((is_reduction ? 1 : 3) * SHARED_NBYTES);
        REQUIRE(pair->memory[rank] != NULL);
        for (int k = 0; k < 2; k++) {
            uint8_t *at = pair->memory[rank] + (size_t)(is_reduction ? 0 : k + 1) * SHARED_NBYTES;
            pair->blocks[rank][k] = (dd_block){at, SHARED_NBYTES};
            CHECK_OK(dd_arena_add_region(pair->arenas[k], rank, 1, pair->memory[rank],
                                         (is_reduction ? 1 : 3) * SHARED_NBYTES, check_err()));
        }
    }
    for (int rank = 0; rank < 2; rank++) {
        const dd_block *input = is_reduction ? pair->blocks[rank] : NULL;
        pair->args[rank] = (dd_coll_args){.coll = coll,
                                          .reduction = {.dtype = DD_DTYPE_UINT8, .op = DD_REDOP_SUM},
                                          .inputs = input,
                                          .outputs = pair->blocks[rank]};
    }
}

static void
close_pair(arena_pair *pair)
{
    for (int rank = 1; rank >= 0; rank--) {
        dd_arena_close(pair->arenas[rank]);
        dd_mem_free(pair->memory[rank]);
    }
    dd_fork_close(pair->fd);
}

static void
start(arena_pair *pair, int rank)
{
    dd_arena_op_options options = {.signature = arena_team_signature(&pair->args[rank], SHARED_NBYTES)};
    dd_arena_start(pair->arenas[rank], &pair->args[rank], &options);
}

static dd_arena_state
go_on(arena_pair *pair, int rank)
{
    dd_arena_state state = DD_ARENA_MOVED;
    while (state == DD_ARENA_MOVED) {
        state = dd_arena_progress(pair->arenas[rank]);
    }
    return state;
}

/* Rank 1 is stopped inside its part of the sum, which it writes to both outputs. */
TEST(an_aborting_rank_finds_the_part_of_its_memory_that_other_ranks_write)
{
    arena_pair pair;
    dd_block written = {.data = NULL};
    open_pair(&pair, DD_COLL_ALL_REDUCE);
    memset(pair.memory[0], 1, SHARED_NBYTES);
    memset(pair.memory[1], 2, SHARED_NBYTES);
    CHECK(!dd_arena_find_written(pair.arenas[0], &written));
    start(&pair, 0);
    CHECK_INT(go_on(&pair, 0), DD_ARENA_BLOCKED);
    start(&pair, 1);
    CHECK_INT(dd_arena_progress(pair.arenas[1]), DD_ARENA_MOVED);
    REQUIRE(pair.memory[0][SHARED_NBYTES / 2] == 3 && pair.memory[0][SHARED_NBYTES - 1] == 1);
    dd_arena_poison(pair.arenas[0]);
    CHECK(dd_arena_find_written(pair.arenas[0], &written));
    CHECK(written.data == pair.memory[0] && written.nbytes == SHARED_NBYTES);
    CHECK_INT(go_on(&pair, 1), DD_ARENA_BLOCKED); /* its copy of rank 0's data may be wrong */
    CHECK(dd_arena_find_written(pair.arenas[0], &written));
    close_pair(&pair);
}

/* A rank that arrives after the poison does not start. A rank that has published the end of an
 * operation has written all of its data. */
TEST(an_aborting_rank_keeps_memory_that_no_other_rank_writes)
{
    arena_pair pair;
    dd_block written;
    open_pair(&pair, DD_COLL_ALL_REDUCE);
    start(&pair, 0);
    CHECK_INT(go_on(&pair, 0), DD_ARENA_BLOCKED);
    dd_arena_poison(pair.arenas[0]);
    CHECK(!dd_arena_find_written(pair.arenas[0], &written));
    memset(pair.memory[0], 5, SHARED_NBYTES);
    start(&pair, 1);
    CHECK_INT(go_on(&pair, 1), DD_ARENA_BLOCKED);
    CHECK(is_filled(pair.memory[0], SHARED_NBYTES, 5));
    close_pair(&pair);

    open_pair(&pair, DD_COLL_ALL_REDUCE);
    start(&pair, 0);
    start(&pair, 1);
    CHECK_INT(go_on(&pair, 0), DD_ARENA_BLOCKED);
    CHECK_INT(go_on(&pair, 1), DD_ARENA_BLOCKED); /* waits for rank 0's part */
    dd_arena_poison(pair.arenas[0]);
    CHECK(!dd_arena_find_written(pair.arenas[0], &written));
    close_pair(&pair);
}

/* If an output shares a page with other bytes, that page cannot be taken away from the other ranks:
 * they must not write to any of it. */
TEST(other_ranks_write_only_whole_pages_of_an_output)
{
    static const struct {
        size_t start, end, tail;
    } cases[] = {{0, 65536, 0},
                 {4096, 65536, 0},
                 {0, 65000, 65000 - 15 * 4096},
                 {16, 65536, 0},
                 {0, SHARED_NBYTES, 0},
                 {SHARED_NBYTES - 10000, SHARED_NBYTES, 0},
                 {100, 50001, 50001 - 12 * 4096}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        arena_pair pair;
        dd_block written = {.data = NULL};
        size_t nbytes = cases[i].end - cases[i].start;
        open_pair(&pair, DD_COLL_ALL_REDUCE);
        uint8_t *at = pair.memory[0] + cases[i].start;
        pair.blocks[0][0] = (dd_block){at, nbytes};
        pair.blocks[1][0].nbytes = nbytes;
        memset(pair.memory[0], 1, SHARED_NBYTES);
        memset(pair.memory[1], 2, SHARED_NBYTES);
        start(&pair, 0);
        CHECK_INT(dd_arena_progress(pair.arenas[0]), DD_ARENA_MOVED);
        start(&pair, 1);
        CHECK_INT(go_on(&pair, 1), DD_ARENA_BLOCKED);
        CHECK(dd_arena_find_written(pair.arenas[0], &written) == false); /* rank 1 is done */
        size_t first_of_1 = (nbytes / 2 + 63) / 64 * 64;
        CHECK(is_filled(at, first_of_1, 1));
        CHECK(is_filled(at + first_of_1, nbytes - cases[i].tail - first_of_1, 3));
        CHECK(is_filled(at + nbytes - cases[i].tail, cases[i].tail, 1));
        dd_arena_state states[2] = {DD_ARENA_MOVED, DD_ARENA_MOVED};
        for (int turn = 0; turn < 8; turn++) {
            int rank = turn % 2;
            states[rank] = states[rank] == DD_ARENA_DONE ? states[rank] : go_on(&pair, rank);
        }
        CHECK(states[0] == DD_ARENA_DONE && states[1] == DD_ARENA_DONE);
        CHECK(is_filled(at, nbytes, 3) && is_filled(pair.memory[1], nbytes, 3));
        CHECK(is_filled(pair.memory[0], cases[i].start, 1));
        CHECK(is_filled(pair.memory[0] + cases[i].end, SHARED_NBYTES - cases[i].end, 1));
        close_pair(&pair);
    }
}

TEST(only_whole_pages_count_as_memory_that_other_ranks_write)
{
    arena_pair pair;
    dd_block written = {.data = NULL};
    open_pair(&pair, DD_COLL_ALL_REDUCE);
    pair.blocks[0][0] = (dd_block){pair.memory[0] + 16, SHARED_NBYTES - 116};
    pair.blocks[1][0].nbytes = SHARED_NBYTES - 116;
    start(&pair, 0);
    CHECK_INT(go_on(&pair, 0), DD_ARENA_BLOCKED);
    start(&pair, 1);
    CHECK_INT(dd_arena_progress(pair.arenas[1]), DD_ARENA_MOVED);
    dd_arena_poison(pair.arenas[0]);
    REQUIRE(dd_arena_find_written(pair.arenas[0], &written));
    CHECK(written.data == pair.memory[0] + 4096 && written.nbytes == SHARED_NBYTES - 2 * 4096);
    close_pair(&pair);
}

/* Rank 1 is stopped while it reads the array of rank 0, whose caller then reuses the array. */
TEST(no_rank_completes_with_data_that_it_read_after_a_failure)
{
    arena_pair pair;
    open_pair(&pair, DD_COLL_ALL_GATHER);
    dd_block input = {pair.memory[0], SHARED_NBYTES};
    dd_block own = {dd_mem_zalloc(SHARED_NBYTES), SHARED_NBYTES};
    pair.args[0].inputs = &input;
    pair.args[1].inputs = &own;
    start(&pair, 0);
    start(&pair, 1);
    (void)dd_arena_progress(pair.arenas[1]);
    (void)dd_arena_progress(pair.arenas[0]);
    (void)dd_arena_progress(pair.arenas[1]);
    dd_arena_poison(pair.arenas[0]);
    memset(pair.memory[0], 7, SHARED_NBYTES);
    CHECK_INT(go_on(&pair, 1), DD_ARENA_BLOCKED);
    close_pair(&pair);
    dd_mem_free(own.data);
}

/* ---- shares that the first free rank folds */

/* Ranks of a crowded arena with private arrays of floats. Each element is initially rank + 1. */
typedef struct arena_crowd {
    dd_arena *arenas[NRANKS];
    float *arrays[NRANKS];
    dd_block blocks[NRANKS];
    dd_coll_args args[NRANKS];
    int fd;
} arena_crowd;

/* Return the number of ranks that started. */
static int
start_crowd(arena_crowd *crowd)
{
    int nstarted = 0;
    for (; nstarted < NRANKS; nstarted++) {
        const dd_coll_args *args = &crowd->args[nstarted];
        dd_arena_op_options options = {.signature = arena_team_signature(args, 1)};
        dd_arena_start(crowd->arenas[nstarted], args, &options);
    }
    return nstarted;
}

static void
open_crowd(arena_crowd *crowd, size_t count)
{
    REQUIRE_OK(dd_arena_create(NRANKS, true, &crowd->fd, check_err()));
    for (int rank = 0; rank < NRANKS; rank++) {
        REQUIRE_OK(rank == 0 ? dd_arena_attach(crowd->fd, NRANKS, 0, &crowd->arenas[0], check_err())
                             : dd_arena_join(crowd->arenas[0], rank, &crowd->arenas[rank], check_err()));
        crowd->arrays[rank] = dd_mem_alloc(count * sizeof(float));
        REQUIRE(crowd->arrays[rank] != NULL);
        for (size_t i = 0; i < count; i++) {
            crowd->arrays[rank][i] = (float)(rank + 1);
        }
        crowd->blocks[rank] = (dd_block){crowd->arrays[rank], count * sizeof(float)};
        crowd->args[rank] = (dd_coll_args){.coll = DD_COLL_ALL_REDUCE,
                                           .reduction = {.dtype = DD_DTYPE_FLOAT32, .op = DD_REDOP_SUM},
                                           .inputs = &crowd->blocks[rank],
                                           .outputs = &crowd->blocks[rank]};
    }
    CHECK_INT(start_crowd(crowd), NRANKS);
}

static void
close_crowd(arena_crowd *crowd)
{
    for (int rank = NRANKS - 1; rank >= 0; rank--) {
        dd_arena_close(crowd->arenas[rank]);
        dd_mem_free(crowd->arrays[rank]);
    }
    dd_fork_close(crowd->fd);
}

static dd_arena_state
go_on_alone(dd_arena *arena)
{
    dd_arena_state state = DD_ARENA_MOVED;
    while (state == DD_ARENA_MOVED) {
        state = dd_arena_progress(arena);
    }
    return state;
}

static bool
is_all(const float *array, size_t count, float value)
{
    for (size_t i = 0; i < count; i++) {
        if (array[i] != value) {
            return false;
        }
    }
    return true;
}

/* The other ranks have already run; each needs only one more turn. */
TEST(the_last_of_several_ranks_on_one_core_reduces_all_the_data)
{
    const size_t count = 10000;
    arena_crowd crowd;
    open_crowd(&crowd, count);
    CHECK_INT(go_on_alone(crowd.arenas[0]), DD_ARENA_BLOCKED);
    CHECK_INT(go_on_alone(crowd.arenas[1]), DD_ARENA_BLOCKED);
    for (int rank = NRANKS - 1; rank >= 0; rank--) {
        CHECK_INT(go_on_alone(crowd.arenas[rank]), DD_ARENA_DONE);
        CHECK(is_all(crowd.arrays[rank], count, 6));
    }
    close_crowd(&crowd);
}

/* Rank 2 stops with a share that it has claimed: no rank can complete, and all can name rank 2. */
TEST(a_rank_that_dies_during_its_share_of_a_reduction_is_named_as_missing)
{
    const size_t count = 500000;
    arena_crowd crowd;
    open_crowd(&crowd, count);
    CHECK_INT(go_on_alone(crowd.arenas[0]), DD_ARENA_BLOCKED);
    CHECK_INT(go_on_alone(crowd.arenas[1]), DD_ARENA_BLOCKED);
    CHECK_INT(dd_arena_progress(crowd.arenas[2]), DD_ARENA_MOVED); /* one turn */
    REQUIRE(atomic_load(&crowd.arenas[0]->slots[2].control->claim) != 0);
    for (int rank = 0; rank < 2; rank++) {
        CHECK_INT(go_on_alone(crowd.arenas[rank]), DD_ARENA_BLOCKED);
    }
    for (int rank = 0; rank < 2; rank++) {
        dd_block written;
        CHECK_INT(go_on_alone(crowd.arenas[rank]), DD_ARENA_BLOCKED);
        dd_arena_ranks missing = dd_arena_missing(crowd.arenas[rank]);
        CHECK_INT(dd_arena_ranks_pop(&missing), 2);
        CHECK_INT(dd_arena_ranks_pop(&missing), -1);
        dd_arena_poison(crowd.arenas[rank]);
        CHECK(!dd_arena_find_written(crowd.arenas[rank], &written));
        for (size_t i = 0; i < count; i++) {
            crowd.arrays[rank][i] = 9;
        }
    }
    /* Rank 2 was only slow. It now writes only to the arena and to its own array. */
    CHECK_INT(go_on_alone(crowd.arenas[2]), DD_ARENA_BLOCKED);
    CHECK(is_all(crowd.arrays[0], count, 9) && is_all(crowd.arrays[1], count, 9));
    close_crowd(&crowd);
}

/* ---- choice of the faster way of copying */

static void
finish_crowd(arena_crowd *crowd)
{
    bool is_done[NRANKS] = {false};
    for (int ndone = 0, i = 0; ndone < NRANKS; i = (i + 1) % NRANKS) {
        dd_arena_state state = is_done[i] ? DD_ARENA_BLOCKED : go_on_alone(crowd->arenas[i]);
        is_done[i] = is_done[i] || state == DD_ARENA_DONE;
        ndone += state == DD_ARENA_DONE;
    }
}

TEST(cached_and_uncached_copies_are_timed_and_the_faster_one_is_used)
{
    const size_t count = 100000;
    arena_crowd crowd;
    open_crowd(&crowd, count);
    dd_arena *judge = crowd.arenas[0];
    const uint32_t bit = UINT32_C(1) << DD_COLL_ALL_REDUCE;
    const uint32_t others = atomic_load(&judge->shared->streaming) & ~bit;
    dd_copy_trial *trial = &judge->trials[DD_COLL_ALL_REDUCE].copies;
    const int neach = trial->nbefore + 3; /* three of which count */
    CHECK(trial->nbefore >= (int)(judge->geometry.staging_nbytes / (4 * count)));
    for (int i = 0; i < 2 * neach; i++) {
        CHECK(trial->is_open && trial->ntaken == i);
        CHECK_INT(atomic_load(&judge->shared->streaming), others | (i >= neach ? bit : 0));
        finish_crowd(&crowd);
        CHECK_INT(start_crowd(&crowd), NRANKS);
    }
    CHECK(!trial->is_open && trial->next_ns > trial->begin_ns);
    CHECK(trial->best[0] < INT64_MAX && trial->best[1] < INT64_MAX);
    finish_crowd(&crowd);
    for (int is_streaming = 0; is_streaming < 2; is_streaming++) {
        /* The last trial of the second way is slower than 0 ns, and faster than INT64_MAX. */
        trial->is_open = false;
        trial->next_ns = 0;
        CHECK_INT(start_crowd(&crowd), NRANKS);
        trial->ntaken = 2 * neach - 1;
        trial->best[0] = is_streaming == 1 ? INT64_MAX : 0;
        finish_crowd(&crowd);
        CHECK(!trial->is_open);
        CHECK_INT(start_crowd(&crowd), NRANKS);
        CHECK_INT(crowd.arenas[1]->op.is_streaming, is_streaming);
        finish_crowd(&crowd);
    }
    close_crowd(&crowd);
}

/* Three crowded ranks: streaming starts at 32 MiB of outputs in all. */
TEST(results_of_large_operations_bypass_the_caches)
{
    const size_t least = ((size_t)32 << 20) / NRANKS / sizeof(float) + 1;
    for (size_t count = least - 2; count <= least; count += 2) {
        arena_crowd crowd;
        open_crowd(&crowd, count);
        finish_crowd(&crowd);
        for (int rank = 0; rank < NRANKS; rank++) {
            CHECK_INT(crowd.arenas[rank]->op.is_taken_past, count == least);
            CHECK(is_all(crowd.arrays[rank], count, 6));
        }
        close_crowd(&crowd);
    }
}

/* ---- creating and attaching */

/* The size includes tables of all ranks by all ranks, but must be about proportional to nranks. */
TEST(shared_memory_grows_about_linearly_with_the_number_of_ranks)
{
    for (int nranks = 1; nranks <= DD_ARENA_MAX_RANKS; nranks++) {
        size_t nbytes = dd_arena_nbytes(nranks);
        CHECK(nbytes >= (size_t)nranks * 262144);
        CHECK(nbytes <= (size_t)nranks * (262144 + 8192 + 264 * (size_t)nranks) + ((size_t)4 << 20));
    }
}

TEST(shared_memory_of_invalid_size_or_rank_is_refused)
{
    dd_arena *arena = NULL;
    int fd = -1;
    CHECK_STATUS(dd_arena_create(0, false, &fd, check_err()), DD_INVALID_ARGUMENT);
    CHECK_STATUS(dd_arena_create(DD_ARENA_MAX_RANKS + 1, false, &fd, check_err()), DD_INVALID_ARGUMENT);
    REQUIRE_OK(dd_arena_create(3, false, &fd, check_err()));
    CHECK_STATUS(dd_arena_attach(fd, 3, 3, &arena, check_err()), DD_INVALID_ARGUMENT);
    CHECK_STATUS(dd_arena_attach(fd, 2, 0, &arena, check_err()), DD_PROTOCOL);
    CHECK_STATUS(dd_arena_attach(-1, 3, 0, &arena, check_err()), DD_PROTOCOL);
    CHECK(ftruncate(fd, 4096) != 0);
    dd_fork_close(fd);
    int plain = memfd_create("plain", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    REQUIRE(plain >= 0 && ftruncate(plain, (off_t)dd_arena_nbytes(3)) == 0);
    CHECK_STATUS(dd_arena_attach(plain, 3, 0, &arena, check_err()), DD_PROTOCOL);
    close(plain);
    CHECK(arena == NULL);
}

/* Another build may use another memory layout, or another number of epochs per operation, and a
 * rank would wait for ever. */
TEST(shared_memory_created_by_another_build_is_refused)
{
    const size_t nwords = sizeof(arena_geometry) / sizeof(uint64_t);
    for (size_t i = 0; i < nwords; i++) {
        int fd = -1;
        dd_arena *arena = NULL;
        dd_error error;
        uint64_t word;
        off_t offset = (off_t)(i * sizeof(word));
        REQUIRE_OK(dd_arena_create(2, false, &fd, check_err()));
        REQUIRE(pread(fd, &word, sizeof(word), offset) == (ssize_t)sizeof(word));
        word++;
        REQUIRE(pwrite(fd, &word, sizeof(word), offset) == (ssize_t)sizeof(word));
        CHECK_STATUS(dd_arena_attach(fd, 2, 0, &arena, &error), DD_PROTOCOL);
        CHECK(strstr(error.message, "not shared memory of this dldist version") != NULL);
        word--;
        REQUIRE(pwrite(fd, &word, sizeof(word), offset) == (ssize_t)sizeof(word));
        CHECK_OK(dd_arena_attach(fd, 2, 0, &arena, check_err()));
        dd_arena_close(arena);
        dd_fork_close(fd);
    }
}

TEST(shared_arrays_are_identified_by_rank_and_number)
{
    uint8_t memory[64];
    int fd = -1;
    dd_arena *arena = NULL;
    REQUIRE_OK(dd_arena_create(2, false, &fd, check_err()));
    REQUIRE_OK(dd_arena_attach(fd, 2, 0, &arena, check_err()));
    CHECK_OK(dd_arena_add_region(arena, 1, 7, memory, sizeof(memory), check_err()));
    CHECK_STATUS(dd_arena_add_region(arena, 1, 7, memory, sizeof(memory), check_err()), DD_INVALID_ARGUMENT);
    CHECK_STATUS(dd_arena_add_region(arena, 2, 1, memory, sizeof(memory), check_err()), DD_INVALID_ARGUMENT);
    CHECK_OK(dd_arena_add_region(arena, 0, 7, memory, sizeof(memory), check_err()));
    dd_arena_remove_region(arena, 1, 7);
    dd_arena_remove_region(arena, 1, 7);
    CHECK_OK(dd_arena_add_region(arena, 1, 7, memory, sizeof(memory), check_err()));
    dd_arena_close(arena);
    dd_fork_close(fd);
}

TEST(attaching_shared_memory_returns_an_error_when_allocations_fail)
{
    int fd = -1;
    REQUIRE_OK(dd_arena_create(2, false, &fd, check_err()));
    for (long count = 0;; count++) {
        dd_arena *arena = NULL;
        uint8_t memory[8];
        dd_mem_fail_after(count);
        dd_status status = dd_arena_attach(fd, 2, 0, &arena, check_err());
        bool is_attached = status == DD_OK;
        if (is_attached) {
            status = dd_arena_add_region(arena, 0, 1, memory, sizeof(memory), check_err());
        }
        dd_mem_fail_after(-1);
        CHECK(is_attached == (arena != NULL));
        dd_arena_close(arena);
        if (status == DD_OK) {
            CHECK(count > 3);
            break;
        }
        CHECK_STATUS(status, DD_OUT_OF_MEMORY);
    }
    dd_fork_close(fd);
}

/* The child has mapped other memory at the arena's address. */
TEST(a_forked_child_does_not_unmap_memory_that_replaced_the_shared_memory)
{
    int fd = -1;
    dd_arena *arena = NULL;
    REQUIRE_OK(dd_arena_create(1, false, &fd, check_err()));
    REQUIRE_OK(dd_arena_attach(fd, 1, 0, &arena, check_err()));
    size_t nbytes = dd_arena_nbytes(1);
    pid_t pid = fork();
    if (pid == 0) {
        void *offset = arena->memory;
        void *other = mmap(offset, nbytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        CHECK(other == offset);
        dd_arena_close(arena);
        CHECK_INT(msync(other, nbytes, MS_ASYNC), 0);
        _exit(check_failures() > 0 ? 1 : 0);
    }
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    dd_arena_close(arena);
    dd_fork_close(fd);
}
