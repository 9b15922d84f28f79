/* csrc/collective/arena: operations of two and three ranks, which sleep whenever they must wait. */
#include "models/checker.h"

#include "collective/arena/state.h"

#include <string.h>

#define MAX_RANKS 3
/* Too large for a header; and large enough that shares are claimed. */
#define SMALL_NBYTES ((size_t)96)
#define LARGE_NBYTES ((size_t)4096)

/* The operands of one rank, in its own memory. */
typedef struct rank_part {
    dd_arena *arena;
    dd_coll_args args;
    dd_block inputs[MAX_RANKS];
    dd_block outputs[MAX_RANKS];
    uint64_t *in;  /* [max_nbytes / 8] */
    uint64_t *out; /* [nranks][max_nbytes / 8] */
} rank_part;

static rank_part *parts[MAX_RANKS];
static int nranks;
static size_t max_nbytes; /* largest operation */
static checker_bell bells[MAX_RANKS];
static unsigned sleepers; /* a bit for each rank; the other ranks poll */

/* ---- external functions of the arena */

/* Sum int64 values. */
void
dd_reduce(const dd_reduction *reduction, dd_stage stage, void *out, const void *const *srcs, size_t nsrcs,
          size_t count)
{
    (void)reduction;
    (void)stage;
    for (size_t i = 0; i < count; i++) {
        uint64_t sum = 0;
        for (size_t k = 0; k < nsrcs; k++) {
            sum += ((const uint64_t *)srcs[k])[i];
        }
        ((uint64_t *)out)[i] = sum;
    }
}

size_t
dd_reduce_partial_size(dd_dtype dtype, dd_redop op)
{
    (void)op;
    return dd_dtype_size(dtype);
}

dd_cpu_set
dd_cpu_own_set(void)
{
    return (dd_cpu_set){{0}};
}

static void
wake(void *ctx, int rank)
{
    (void)ctx;
    checker_ring(&bells[rank], 1);
}

/* ---- operations */

static uint64_t
input_of(int rank, uint64_t sequence, size_t i)
{
    return sequence * 1000 + (uint64_t)rank * 100 + i;
}

static size_t
row(int rank)
{
    return (size_t)rank * max_nbytes / 8;
}

static void
begin(int rank, dd_coll coll, size_t nbytes, uint64_t sequence)
{
    rank_part *part = parts[rank];
    for (size_t i = 0; i < nbytes / 8; i++) {
        part->in[i] = input_of(rank, sequence, i);
    }
    part->args = (dd_coll_args){.coll = coll,
                                .reduction = {.dtype = DD_DTYPE_INT64, .op = DD_REDOP_SUM},
                                .inputs = part->inputs,
                                .outputs = part->outputs};
    part->inputs[0] = (dd_block){part->in, nbytes};
    for (int k = 0; k < nranks; k++) {
        part->outputs[k] = (dd_block){part->out + row(k), nbytes};
    }
    dd_arena_op_options options = {
        .signature = {.coll = (uint8_t)coll, .count = nbytes / 8}, .sequence = sequence, .wake = wake};
    dd_arena_start(part->arena, &part->args, &options);
}

static void
check_output(int rank, uint64_t sequence)
{
    const rank_part *part = parts[rank];
    dd_coll coll = part->args.coll;
    size_t count = coll == DD_COLL_BARRIER ? 0 : part->outputs[0].nbytes / 8;
    for (size_t i = 0; i < count; i++) {
        uint64_t sum = 0;
        for (int k = 0; k < nranks; k++) {
            sum += input_of(k, sequence, i);
            REQUIRE(coll != DD_COLL_ALL_GATHER || part->out[row(k) + i] == input_of(k, sequence, i));
        }
        REQUIRE(coll != DD_COLL_ALL_REDUCE || part->out[i] == sum);
        REQUIRE(coll != DD_COLL_BROADCAST || part->out[i] == input_of(0, sequence, i));
    }
}

/* Finish the operation that has begun. */
static void
finish_op(int rank, uint64_t sequence)
{
    dd_arena *arena = parts[rank]->arena;
    bool is_sleeper = (sleepers >> rank & 1) != 0;
    dd_arena_state state = DD_ARENA_MOVED;
    while (state != DD_ARENA_DONE) {
        checker_forget(sequence);
        state = dd_arena_progress(arena);
        REQUIRE(state == DD_ARENA_DONE || state == DD_ARENA_MOVED || state == DD_ARENA_BLOCKED);
        if (state == DD_ARENA_BLOCKED && !is_sleeper) {
            checker_poll();
        } else if (state == DD_ARENA_BLOCKED && dd_arena_fall_asleep(arena)) {
            checker_sleep(&bells[rank]);
            (void)checker_take_rings(&bells[rank]);
        }
    }
    check_output(rank, sequence);
}

static void
run_op(int rank, dd_coll coll, size_t nbytes, uint64_t sequence)
{
    begin(rank, coll, nbytes, sequence);
    finish_op(rank, sequence);
}

/* Run the operation as far as possible. Return the state in which it stopped. */
static dd_arena_state
progress_until_blocked(int rank)
{
    dd_arena_state state = DD_ARENA_MOVED;
    while (state == DD_ARENA_MOVED) {
        state = dd_arena_progress(parts[rank]->arena);
    }
    return state;
}

static void
begin_barrier(int rank)
{
    begin(rank, DD_COLL_BARRIER, 0, 1);
    (void)progress_until_blocked(rank);
}

/* ---- setups */

/* Run the operation of all ranks one after the other: setup is sequential. */
static void
run_in_setup(dd_coll coll, size_t nbytes)
{
    bool is_over = false;
    for (int k = 0; k < nranks; k++) {
        begin(k, coll, nbytes, 1);
    }
    while (!is_over) {
        is_over = true;
        for (int k = 0; k < nranks; k++) {
            is_over = dd_arena_progress(parts[k]->arena) == DD_ARENA_DONE && is_over;
        }
    }
}

static void
open_arena(int count, bool is_crowded)
{
    dd_error err;
    int fd = -1;
    nranks = count;
    sleepers = ~0u;
    max_nbytes = is_crowded ? LARGE_NBYTES : SMALL_NBYTES;
    memset(bells, 0, sizeof bells);
    REQUIRE(dd_arena_create(nranks, is_crowded, &fd, &err) == DD_OK);
    for (int k = 0; k < nranks; k++) {
        checker_allocate_for(k);
        parts[k] = checker_alloc(sizeof *parts[k]);
        parts[k]->in = checker_alloc(max_nbytes);
        parts[k]->out = checker_alloc(max_nbytes * (size_t)nranks);
        REQUIRE(dd_arena_attach(fd, nranks, k, &parts[k]->arena, &err) == DD_OK);
    }
    checker_allocate_for(-1);
}

static void
open_pair(void)
{
    checker_set_fenced(true);
    open_arena(2, false);
}

static void
open_pair_unfenced(void)
{
    open_arena(2, false);
}

static void
open_pair_polling(void)
{
    open_pair();
    sleepers = 0;
}

static void
open_pair_crowded(void)
{
    checker_set_fenced(true);
    open_arena(2, true);
    sleepers = 0;
}

static void
open_three(void)
{
    checker_set_fenced(true);
    open_arena(3, false);
}

static void
open_three_of_which_one_sleeps(void)
{
    open_three();
    sleepers = 1;
}

static void
open_three_of_which_one_has_begun(void)
{
    open_arena(3, false);
    begin_barrier(0);
}

static void
open_three_polling(void)
{
    open_three();
    sleepers = 0;
}

/* Begin with used records: the next operation reuses them. */
static void
open_pair_used(void)
{
    open_pair();
    for (int i = 0; i < 15; i++) {
        run_in_setup(DD_COLL_ALL_REDUCE, 8);
    }
}

/* ---- scenarios */

static void
reduce_once(int self)
{
    run_op(self, DD_COLL_ALL_REDUCE, 8, 1);
}

static void
reduce_twice(int self)
{
    run_op(self, DD_COLL_ALL_REDUCE, 8, 1);
    run_op(self, DD_COLL_ALL_REDUCE, 8, 2);
}

SCENARIO(arena_sleeps, .label = "an all_reduce of 8 bytes, in a record that is used again", .nthreads = 2,
         .setup = open_pair_used, .thread = reduce_once)
SCENARIO(arena_sleeps_twice, .label = "two of them", .nthreads = 2, .setup = open_pair,
         .thread = reduce_twice)
SCENARIO(arena_sleeps_unfenced, .label = "two, before processes take part in the fence", .nthreads = 2,
         .setup = open_pair_unfenced, .thread = reduce_twice)

/* Each process joins the fences at its own time. */
static void
become_fenced(int self)
{
    checker_set_fenced(true);
    run_op(self, DD_COLL_BARRIER, 0, 1);
}

SCENARIO(arena_registers, .label = "processes that come to take part in the fence", .nthreads = 2,
         .setup = open_pair_unfenced, .thread = become_fenced)

static void
barrier_once(int self)
{
    run_op(self, DD_COLL_BARRIER, 0, 1);
}

static void
begin_after_one(int self)
{
    if (self == 0) {
        finish_op(0, 1);
    } else {
        barrier_once(self);
    }
}

/* A barrier of three that all sleep and begin together, or use the fence, has too many states. */
SCENARIO(arena_sleeps_three, .label = "a barrier of three that sleep, one of which began before",
         .nthreads = 3, .setup = open_three_of_which_one_has_begun, .thread = begin_after_one)
SCENARIO(arena_one_of_three_sleeps, .label = "a barrier of three, by the fence", .nthreads = 3,
         .setup = open_three_of_which_one_sleeps, .thread = barrier_once, .is_large = true)
SCENARIO(arena_polls_three, .label = "an all_reduce of three that poll", .nthreads = 3,
         .setup = open_three_polling, .thread = reduce_once)

static void
gather_staged(int self)
{
    for (uint64_t i = 1; i <= 3; i++) {
        run_op(self, DD_COLL_ALL_GATHER, SMALL_NBYTES, i);
    }
}

SCENARIO(arena_stages, .label = "three all_gather of 96 bytes, through the slots", .nthreads = 2,
         .setup = open_pair_polling, .thread = gather_staged)

static void
broadcast_ahead(int self)
{
    for (uint64_t i = 1; i <= 3; i++) {
        run_op(self, DD_COLL_BROADCAST, SMALL_NBYTES, i);
    }
    run_op(self, DD_COLL_ALL_REDUCE, 8, 4);
}

SCENARIO(arena_runs_ahead, .label = "a root that runs ahead", .nthreads = 2, .setup = open_pair_polling,
         .thread = broadcast_ahead)

static void
claim_shares(int self)
{
    run_op(self, DD_COLL_ALL_REDUCE, LARGE_NBYTES, 1);
}

SCENARIO(arena_claims, .label = "an all_reduce whose shares are claimed", .nthreads = 2,
         .setup = open_pair_crowded, .thread = claim_shares)

/* A rank fails and publishes that to a rank that has not begun. The other rank must not succeed if
 * the first has failed. */
static void
poison_before_begin(int self)
{
    dd_arena *arena = parts[self]->arena;
    if (self == 0) {
        begin(0, DD_COLL_ALL_REDUCE, 8, 1);
        while (dd_arena_progress(arena) == DD_ARENA_MOVED) {
        }
        dd_arena_poison(arena);
        checker_ring(&bells[1], 1);
        return;
    }
    checker_sleep(&bells[1]);
    (void)checker_take_rings(&bells[1]);
    begin(1, DD_COLL_ALL_REDUCE, 8, 1);
    dd_arena_state state = DD_ARENA_MOVED;
    while (state == DD_ARENA_MOVED) {
        state = dd_arena_progress(arena);
    }
    REQUIRE(state == DD_ARENA_BLOCKED);
}

SCENARIO(arena_poisoned, .label = "a rank that fails before another begins", .nthreads = 2,
         .setup = open_pair, .thread = poison_before_begin, .needs_no_order = true)

/* Two of three ranks have begun an in-place operation. One of them fails, and finds that the third
 * has not begun. The other rank must then not write to the memory of the failed rank, even if it
 * finds all headers (dd_arena_find_written relies on it). Their headers contain only the flag,
 * which suffices: a rank compares the headers before it writes, and finds them invalid. */
static bool is_alone;
static bool has_compared;

static void
begin_in_place(int rank)
{
    begin(rank, DD_COLL_BARRIER, 0, 1);
    parts[rank]->arena->op.call->flags |= ARENA_IN_PLACE;
    (void)progress_until_blocked(rank);
}

static void
open_three_of_which_two_have_begun(void)
{
    open_three();
    begin_in_place(0);
    begin_in_place(2);
    is_alone = has_compared = false;
}

static void
poison_alone(int self)
{
    dd_arena *arena = parts[self]->arena;
    dd_arena_ranks missing;
    if (self == 0) {
        dd_arena_poison(arena);
        is_alone = dd_arena_find_missing(arena, &arena->all_ranks, dd_arena_mark_of(arena, 0), &missing);
    } else if (self == 1) {
        begin_in_place(1);
    } else {
        has_compared = progress_until_blocked(2) == DD_ARENA_BROKEN;
    }
}

static void
check_that_one_was_right(void)
{
    REQUIRE(!is_alone || !has_compared);
}

SCENARIO(arena_gives_up, .label = "a rank that fails while another begins, and a third that checks both",
         .nthreads = 3, .setup = open_three_of_which_two_have_begun, .thread = poison_alone,
         .finish = check_that_one_was_right)
