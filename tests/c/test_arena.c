/* Results of the arena's collectives: all of them, at random, in sequences that every rank derives
 * from one seed, each at its own pace. Results are compared with dd_reduce over all inputs in rank
 * order. */
#include "check.h"
#include "coll_reference.h"
#include "collective/arena/arena.h"
#include "test_arena_team.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROOM ((size_t)4 << 20) /* for all blocks of a rank, and again for the expected results */
#define MAX_BLOCK (ROOM / 8)

typedef struct test_plan {
    uint64_t seed;
    int ncases;
    size_t max_nbytes; /* of a block */
} test_plan;

/* One operation; the same on every rank. */
typedef struct test_scene {
    uint64_t seed;
    dd_coll coll;
    int nranks;
    int root;
    dd_reduction reduction;
    size_t count; /* elements of a block, if all blocks are equal */
    bool is_uneven;
    bool is_in_place;
    bool is_partial;
    uint64_t in_regions; /* bit mask of the ranks whose blocks are in regions */
    size_t out_size;
} test_scene;

static bool
is_fold(const test_scene *scene)
{
    return dd_coll_is_folding(scene->coll);
}

static size_t
draw_nbytes(uint64_t *random, size_t max_nbytes, int nranks)
{
    /* approximately one buffer of an arena */
    size_t buffer = nranks < 4 ? ((size_t)1 << 20) / (size_t)nranks / 4 : 65536;
    const size_t sizes[] = {0,          1,          8,      16,     17,        48,
                            80,         81,         128,    1000,   4096,      8192,
                            16384,      65536,      262144, buffer, 2048,      buffer / (size_t)nranks,
                            2 * buffer, 3 * buffer, 524288, 40,     5 * buffer};
    size_t nbytes = sizes[arena_team_random(random) % (sizeof(sizes) / sizeof(sizes[0]))];
    switch (arena_team_random(random) % 4) {
    case 0:
        nbytes += arena_team_random(random) % 33;
        break;
    case 1:
        nbytes -= arena_team_random(random) % 33 < nbytes ? arena_team_random(random) % 33 % (nbytes + 1) : 0;
        break;
    default:
        break;
    }
    return nbytes > max_nbytes ? max_nbytes - arena_team_random(random) % 64 : nbytes;
}

static test_scene
draw(uint64_t seed, int nranks, size_t max_nbytes)
{
    uint64_t random = seed;
    test_scene scene = {.seed = seed, .nranks = nranks};
    scene.coll = (dd_coll)(arena_team_random(&random) % DD_COLL_COUNT);
    scene.root = (int)(arena_team_random(&random) % (unsigned)nranks);
    do {
        scene.reduction.dtype = (dd_dtype)(arena_team_random(&random) % DD_DTYPE_COUNT);
        scene.reduction.op = (dd_redop)(arena_team_random(&random) % DD_REDOP_COUNT);
    } while (is_fold(&scene) &&
             !dd_coll_has_reduction(scene.coll, scene.reduction.dtype, scene.reduction.op));
    scene.reduction.factor = 1.5;
    scene.reduction.divisor = nranks;
    size_t size = dd_dtype_size(scene.reduction.dtype);
    scene.is_partial =
        is_fold(&scene) && scene.reduction.op != DD_REDOP_AVG && arena_team_random(&random) % 4 == 0;
    scene.out_size =
        scene.is_partial ? dd_reduce_partial_size(scene.reduction.dtype, scene.reduction.op) : size;
    bool is_each = dd_coll_traits_of[scene.coll].has_uneven;
    size_t most = is_each ? MAX_BLOCK / (size_t)nranks : MAX_BLOCK;
    scene.count = draw_nbytes(&random, max_nbytes < most ? max_nbytes : most, nranks) / size;
    scene.is_uneven = dd_coll_traits_of[scene.coll].has_uneven && arena_team_random(&random) % 3 == 0;
    scene.is_in_place = scene.out_size == size && arena_team_random(&random) % 2 == 0;
    uint64_t mode = arena_team_random(&random) % 3;
    scene.in_regions = mode == 0 ? 0 : mode == 1 ? UINT64_MAX : arena_team_random(&random);
    return scene;
}

/* Return the number of elements that one rank sends to another. */
static size_t
count_between(const test_scene *scene, int from, int to)
{
    if (!scene->is_uneven) {
        return scene->count;
    }
    uint64_t random = scene->seed + coll_size_key(scene->coll, from, to);
    uint64_t drawn = arena_team_random(&random);
    return drawn % 4 == 0 ? 0 : (size_t)(drawn >> 8) % (scene->count + 1);
}

/* Fill the block that `from` sends to `to`; `to` is 0 if all ranks receive the same block. */
static void
fill(const test_scene *scene, int from, int to, uint8_t *data, size_t nbytes)
{
    uint64_t random = scene->seed * 31 + (uint64_t)(from * 64 + to);
    for (size_t i = 0; i < nbytes; i += 8) {
        uint64_t word = arena_team_random(&random);
        memcpy(data + i, &word, nbytes - i < 8 ? nbytes - i : 8);
    }
}

typedef struct test_board {
    dd_block inputs[DD_ARENA_MAX_RANKS];
    dd_block outputs[DD_ARENA_MAX_RANKS];
    uint8_t *next;
    uint8_t *expected;
    uint8_t *source_memory;
    /* blocks start at page boundaries: other ranks may write to blocks of whole pages */
    bool is_paged;
} test_board;

/* Allocate a block that is followed by bytes that must not change. */
static dd_block
take(test_board *board, size_t nbytes)
{
    if (board->is_paged) {
        board->next += -(uintptr_t)board->next % 4096;
    }
    dd_block block = {.data = board->next, .nbytes = nbytes};
    memset(board->next, COLL_UNTOUCHED, nbytes + 64);
    board->next += nbytes + 64;
    return block;
}

static bool
is_tail_intact(const dd_block *block)
{
    for (size_t i = 0; i < 48; i++) {
        if (((const uint8_t *)block->data)[block->nbytes + i] != COLL_UNTOUCHED) {
            return false;
        }
    }
    return true;
}

static void
lay_out(const test_scene *scene, int rank, test_board *board)
{
    bool is_root = rank == scene->root;
    size_t size = dd_dtype_size(scene->reduction.dtype);
    int ninputs = dd_coll_ninputs(scene->coll, is_root, scene->nranks);
    int noutputs = dd_coll_noutputs(scene->coll, is_root, scene->nranks);
    for (int k = 0; k < ninputs; k++) {
        int to = dd_coll_traits_of[scene->coll].is_split ? k : 0;
        board->inputs[k] = take(board, count_between(scene, rank, to) * size);
        fill(scene, rank, dd_coll_traits_of[scene->coll].is_split ? k : 0, board->inputs[k].data,
             board->inputs[k].nbytes);
    }
    for (int k = 0; k < noutputs; k++) {
        coll_sources from = coll_sources_of(scene->coll, scene->root, scene->nranks, rank, k);
        board->outputs[k] = take(board, count_between(scene, from.first, rank) * scene->out_size);
    }
    int input;
    int output;
    if (scene->is_in_place && coll_find_in_place(scene->coll, scene->root, rank, &input, &output)) {
        board->outputs[output] = board->inputs[input];
    }
}

static void
expect(const test_scene *scene, int rank, int output, test_board *board)
{
    size_t size = dd_dtype_size(scene->reduction.dtype);
    coll_sources from = coll_sources_of(scene->coll, scene->root, scene->nranks, rank, output);
    size_t count = count_between(scene, from.first, rank);
    if (!is_fold(scene)) {
        fill(scene, from.first, from.block, board->expected, count * size);
        return;
    }
    if (from.count == 0 && board->outputs[output].data == board->inputs[0].data) {
        fill(scene, rank, from.block, board->expected, count * size);
        return;
    }
    if (from.count == 0) {
        memset(board->expected, COLL_UNTOUCHED, board->outputs[output].nbytes);
        return;
    }
    const void *sources[DD_ARENA_MAX_RANKS];
    for (int k = 0; k < from.count; k++) {
        uint8_t *source = board->source_memory + (size_t)k * ((count * size + 63) / 64 * 64);
        fill(scene, from.first + k, from.block, source, count * size);
        sources[k] = source;
    }
    dd_reduce(&scene->reduction, scene->is_partial ? DD_STAGE_FIRST : DD_STAGE_WHOLE, board->expected,
              sources, (size_t)from.count, count);
}

static bool
is_same(const dd_block *block, const uint8_t *expected)
{
    return block->nbytes == 0 || memcmp(block->data, expected, block->nbytes) == 0;
}

static void
describe(const test_scene *scene, int rank, const char *label)
{
    fprintf(stderr, "rank %d of %d: %s %s %s count %zu root %d%s%s%s regions %llx: %s\n", rank, scene->nranks,
            dd_coll_name(scene->coll), dd_redop_name(scene->reduction.op),
            dd_dtype_name(scene->reduction.dtype), scene->count, scene->root,
            scene->is_uneven ? " uneven" : "", scene->is_in_place ? " in place" : "",
            scene->is_partial ? " partial" : "", (unsigned long long)scene->in_regions, label);
}

static bool
check_scene(const test_scene *scene, int rank, test_board *board)
{
    bool is_root = rank == scene->root;
    bool is_good = true;
    int noutputs = dd_coll_noutputs(scene->coll, is_root, scene->nranks);
    for (int k = 0; k < noutputs; k++) {
        expect(scene, rank, k, board);
        is_good =
            is_good && is_same(&board->outputs[k], board->expected) && is_tail_intact(&board->outputs[k]);
    }
    int ninputs = dd_coll_ninputs(scene->coll, is_root, scene->nranks);
    for (int k = 0; k < ninputs; k++) {
        bool is_output = false;
        for (int i = 0; i < noutputs; i++) {
            is_output = is_output || board->outputs[i].data == board->inputs[k].data;
        }
        fill(scene, rank, dd_coll_traits_of[scene->coll].is_split ? k : 0, board->expected,
             board->inputs[k].nbytes);
        is_good = is_good && (is_output || is_same(&board->inputs[k], board->expected)) &&
                  is_tail_intact(&board->inputs[k]);
    }
    return is_good;
}

static bool
play(team_rank *self, const test_scene *scene, uint8_t *memory)
{
    test_board board = {.expected = memory + ROOM, .source_memory = memory + 2 * ROOM};
    bool is_in_region = self->options->shared_nbytes > 0 && (scene->in_regions >> self->rank % 64 & 1) != 0;
    board.next = is_in_region ? self->shared[self->rank] + (scene->seed % 2) * ROOM : memory;
    board.is_paged = scene->coll == DD_COLL_ALL_REDUCE && scene->seed % 4 < 3;
    lay_out(scene, self->rank, &board);
    dd_coll_args args = {.coll = scene->coll,
                         .root = scene->root,
                         .reduction = scene->reduction,
                         .stage = scene->is_partial ? DD_STAGE_FIRST : DD_STAGE_WHOLE,
                         .inputs = board.inputs,
                         .outputs = board.outputs};
    dd_arena_op_options options =
        arena_team_op_options(self, arena_team_signature(&args, scene->is_uneven ? 0 : scene->count));
    dd_arena_state state = arena_team_finish(self, &args, &options);
    if (!CHECK_INT(state, DD_ARENA_DONE)) {
        describe(scene, self->rank, "did not end well");
        return false;
    }
    if (!CHECK(check_scene(scene, self->rank, &board))) {
        describe(scene, self->rank, "wrong result");
        return false;
    }
    return true;
}

static void
play_all(team_rank *self, const void *arg)
{
    const test_plan *plan = arg;
    size_t sources = (plan->max_nbytes + 128) * (size_t)self->nranks;
    uint8_t *memory = malloc(2 * ROOM + sources);
    REQUIRE(memory != NULL);
    uint64_t random = plan->seed;
    for (int i = 0; i < plan->ncases; i++) {
        test_scene scene = draw(arena_team_random(&random), self->nranks, plan->max_nbytes);
        if (!play(self, &scene, memory)) {
            break;
        }
    }
    free(memory);
}

static void
play_team(team_options options, test_plan plan)
{
    options.shared_nbytes = 2 * ROOM;
    arena_team_run(&options, play_all, &plan);
}

TEST(collectives_of_one_rank_are_correct)
{
    play_team((team_options){.nranks = 1}, (test_plan){.seed = 1, .ncases = 300, .max_nbytes = MAX_BLOCK});
}

TEST(collectives_of_two_ranks_are_correct)
{
    play_team((team_options){.nranks = 2}, (test_plan){.seed = 2, .ncases = 300, .max_nbytes = MAX_BLOCK});
}

TEST(collectives_of_two_processes_are_correct)
{
    play_team((team_options){.nranks = 2, .is_forked = true, .is_lazy = true},
              (test_plan){.seed = 3, .ncases = 300, .max_nbytes = MAX_BLOCK});
}

TEST(collectives_of_three_ranks_are_correct)
{
    play_team((team_options){.nranks = 3, .is_lazy = true},
              (test_plan){.seed = 4, .ncases = 150, .max_nbytes = MAX_BLOCK});
}

TEST(collectives_of_four_ranks_are_correct)
{
    play_team((team_options){.nranks = 4}, (test_plan){.seed = 5, .ncases = 120, .max_nbytes = MAX_BLOCK});
}

TEST(collectives_of_four_processes_are_correct)
{
    play_team((team_options){.nranks = 4, .is_forked = true},
              (test_plan){.seed = 6, .ncases = 120, .max_nbytes = MAX_BLOCK});
}

TEST(collectives_of_five_ranks_are_correct)
{
    play_team((team_options){.nranks = 5, .is_lazy = true},
              (test_plan){.seed = 7, .ncases = 150, .max_nbytes = 300000});
}

TEST(collectives_of_seven_ranks_are_correct)
{
    play_team((team_options){.nranks = 7}, (test_plan){.seed = 8, .ncases = 100, .max_nbytes = 300000});
}

TEST(collectives_of_eight_processes_are_correct)
{
    play_team((team_options){.nranks = 8, .is_forked = true},
              (test_plan){.seed = 9, .ncases = 100, .max_nbytes = 300000});
}

TEST(collectives_of_more_ranks_than_cores_are_correct)
{
    play_team((team_options){.nranks = 2, .is_crowded = true},
              (test_plan){.seed = 40, .ncases = 200, .max_nbytes = MAX_BLOCK});
    play_team((team_options){.nranks = 3, .is_crowded = true, .is_lazy = true, .is_forked = true},
              (test_plan){.seed = 41, .ncases = 150, .max_nbytes = MAX_BLOCK});
    play_team((team_options){.nranks = 5, .is_crowded = true, .is_delayed = true},
              (test_plan){.seed = 42, .ncases = 150, .max_nbytes = 300000});
    play_team((team_options){.nranks = 8, .is_crowded = true, .is_sleeping = true},
              (test_plan){.seed = 43, .ncases = 150, .max_nbytes = 300000});
    play_team((team_options){.nranks = 16, .is_crowded = true, .is_forked = true},
              (test_plan){.seed = 44, .ncases = 15, .max_nbytes = 100000});
}

TEST(collectives_of_sixteen_ranks_are_correct)
{
    play_team((team_options){.nranks = 16}, (test_plan){.seed = 10, .ncases = 40, .max_nbytes = 100000});
}

TEST(collectives_of_sixty_four_ranks_are_correct)
{
    play_team((team_options){.nranks = 64, .is_sleeping = true},
              (test_plan){.seed = 11, .ncases = 4, .max_nbytes = 5000});
}

/* The bits of the ranks fill more than one word, and more than two. */
TEST(collectives_of_more_than_sixty_four_ranks_are_correct)
{
    play_team((team_options){.nranks = 70, .is_sleeping = true, .is_crowded = true},
              (test_plan){.seed = 12, .ncases = 6, .max_nbytes = 5000});
    play_team((team_options){.nranks = DD_ARENA_MAX_RANKS, .is_sleeping = true, .is_crowded = true},
              (test_plan){.seed = 13, .ncases = 3, .max_nbytes = 3000});
}

TEST(small_collectives_of_ranks_that_pause_at_random_are_correct)
{
    for (int nranks = 2; nranks <= 4; nranks++) {
        play_team((team_options){.nranks = nranks, .is_delayed = true},
                  (test_plan){.seed = 20 + (uint64_t)nranks, .ncases = 500, .max_nbytes = 2000});
    }
}

TEST(collectives_of_ranks_that_sleep_while_they_wait_are_correct)
{
    play_team((team_options){.nranks = 2, .is_sleeping = true, .is_lazy = true},
              (test_plan){.seed = 30, .ncases = 500, .max_nbytes = 100000});
    play_team((team_options){.nranks = 3, .is_sleeping = true, .is_delayed = true, .is_forked = true},
              (test_plan){.seed = 31, .ncases = 300, .max_nbytes = 100000});
    play_team((team_options){.nranks = 5, .is_sleeping = true},
              (test_plan){.seed = 32, .ncases = 150, .max_nbytes = 50000});
}

TEST(sleeping_ranks_are_woken_even_if_membarrier_is_enabled_late_or_never)
{
    play_team((team_options){.nranks = 2, .is_sleeping = true, .is_forked = true, .fence = TEAM_UNFENCED},
              (test_plan){.seed = 33, .ncases = 300, .max_nbytes = 20000});
    play_team((team_options){.nranks = 3, .is_sleeping = true, .is_forked = true, .fence = TEAM_FENCED_LATE},
              (test_plan){.seed = 34, .ncases = 300, .max_nbytes = 20000});
    play_team((team_options){.nranks = 3, .is_sleeping = true, .fence = TEAM_FENCED_LATE},
              (test_plan){.seed = 35, .ncases = 300, .max_nbytes = 20000});
}
