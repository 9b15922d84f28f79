#include "plan_sim.h"

#include "check.h"
#include "coll_reference.h"
#include "plan_sim_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

unsigned
sim_random(sim_world *world)
{
    world->random = world->random * 1664525u + 1013904223u;
    return world->random >> 8;
}

static bool
is_folding(const sim_case *sim)
{
    return sim->algorithm->order != DD_ORDER_NONE;
}

static size_t
element_size(const sim_case *sim, bool is_partial)
{
    const dd_reduction *reduction = &sim->reduction;
    return is_partial && is_folding(sim) ? dd_reduce_partial_size(reduction->dtype, reduction->op)
                                         : dd_dtype_size(reduction->dtype);
}

static dd_dtype
input_dtype(const sim_case *sim)
{
    dd_dtype dtype = sim->reduction.dtype;
    return sim_input_size(sim) == dd_dtype_size(dtype) ? dtype : dd_reduce_accumulator(dtype);
}

size_t
sim_input_size(const sim_case *sim)
{
    return element_size(sim, sim->stage == DD_STAGE_MIDDLE || sim->stage == DD_STAGE_LAST);
}

size_t
sim_output_size(const sim_case *sim)
{
    return element_size(sim, sim->stage == DD_STAGE_MIDDLE || sim->stage == DD_STAGE_FIRST);
}

size_t
sim_count(const sim_case *sim, int from, int to)
{
    if (sim->algorithm->coll == DD_COLL_BARRIER) {
        return 0;
    }
    if (!sim->is_uneven || dd_coll_is_array(sim->algorithm->coll)) {
        return sim->count;
    }
    unsigned key = coll_size_key(sim->algorithm->coll, from, to);
    unsigned mixed = (key + 1) * 2654435761u ^ sim->seed;
    return mixed % 5 == 0 ? 0 : (mixed >> 7) % (sim->count + 1);
}

/* Fill with numbers of moderate size: sums must not overflow, and must not be exact. */
static void
fill(sim_world *world, dd_dtype dtype, void *data, size_t nbytes)
{
    uint8_t *bytes = data;
    size_t size = dd_dtype_size(dtype);
    for (size_t at = 0; at < nbytes; at += size) {
        float value = ((float)(sim_random(world) % 20001) - 10000.0f) / 777.0f;
        double wide = value;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        if (dtype == DD_DTYPE_FLOAT32 || dtype == DD_DTYPE_COMPLEX64) {
            for (size_t i = 0; i < size; i += 4) {
                memcpy(bytes + at + i, &value, 4);
            }
        } else if (dtype == DD_DTYPE_FLOAT64) {
            memcpy(bytes + at, &wide, 8);
        } else if (dtype == DD_DTYPE_BFLOAT16) {
            uint16_t high = (uint16_t)(bits >> 16);
            memcpy(bytes + at, &high, 2);
        } else {
            for (size_t i = 0; i < size; i++) {
                bytes[at + i] =
                    (uint8_t)(sim_random(world) & (dtype == DD_DTYPE_FLOAT8_E4M3FN ? 0xb7u : 0xffu));
            }
        }
    }
}

static dd_block *
make_blocks(int count)
{
    return calloc((size_t)count + 1, sizeof(dd_block));
}

static size_t
input_nbytes(const sim_case *sim, int rank, int block)
{
    bool is_each = dd_coll_traits_of[sim->algorithm->coll].is_split;
    return sim_count(sim, rank, is_each ? block : rank) * sim_input_size(sim);
}

static size_t
output_nbytes(const sim_case *sim, int rank, int block)
{
    bool is_each = dd_coll_traits_of[sim->algorithm->coll].is_collected;
    return sim_count(sim, is_each ? block : rank, rank) * sim_output_size(sim);
}

static void
make_inputs(sim_world *world, sim_rank *rank, int number)
{
    const sim_case *sim = world->sim;
    rank->originals = calloc((size_t)rank->ninputs + 1, sizeof *rank->originals);
    for (int i = 0; i < rank->ninputs; i++) {
        size_t nbytes = input_nbytes(sim, number, i);
        rank->inputs[i].data = malloc(nbytes + 1);
        rank->originals[i] = malloc(nbytes + 1);
        fill(world, input_dtype(sim), rank->inputs[i].data, nbytes); /* random bytes if wide integers */
        memcpy(rank->originals[i], rank->inputs[i].data, nbytes);
    }
}

void
sim_make_rank(sim_world *world, int number, bool has_memory)
{
    const sim_case *sim = world->sim;
    sim_rank *rank = &world->ranks[number];
    bool is_root = number == sim->root;
    rank->ninputs = dd_coll_ninputs(sim->algorithm->coll, is_root, sim->nranks);
    rank->noutputs = dd_coll_noutputs(sim->algorithm->coll, is_root, sim->nranks);
    rank->inputs = make_blocks(rank->ninputs);
    rank->outputs = make_blocks(rank->noutputs);
    for (int i = 0; i < rank->ninputs; i++) {
        rank->inputs[i].nbytes = input_nbytes(sim, number, i);
    }
    for (int i = 0; i < rank->noutputs; i++) {
        rank->outputs[i].nbytes = output_nbytes(sim, number, i);
    }
    if (!has_memory) {
        return;
    }
    make_inputs(world, rank, number);
    int input;
    int output;
    bool is_shared = coll_find_in_place(sim->algorithm->coll, sim->root, number, &input, &output);
    for (int i = 0; i < rank->noutputs; i++) {
        if (sim->is_in_place && is_shared && i == output) {
            rank->outputs[i].data = rank->inputs[input].data;
        } else {
            rank->outputs[i].data = malloc(rank->outputs[i].nbytes + 1);
            memset(rank->outputs[i].data, COLL_UNTOUCHED, rank->outputs[i].nbytes);
        }
    }
}

static bool
is_input(const sim_rank *rank, const void *data)
{
    for (int i = 0; i < rank->ninputs; i++) {
        if (rank->inputs[i].data == data) {
            return true;
        }
    }
    return false;
}

void
sim_free_rank(sim_rank *rank)
{
    for (int i = 0; i < rank->noutputs; i++) {
        if (!is_input(rank, rank->outputs[i].data)) {
            free(rank->outputs[i].data);
        }
    }
    for (int i = 0; i < rank->ninputs; i++) {
        free(rank->inputs[i].data);
        if (rank->originals != NULL) {
            free(rank->originals[i]);
        }
    }
    for (uint32_t i = 0; rank->eager_data != NULL && i < rank->plan.nsteps; i++) {
        free(rank->eager_data[i]);
    }
    void *blocks[] = {rank->inputs,  rank->outputs, rank->originals, rank->scratch,
                      rank->waiting, rank->partner, rank->state,     rank->eager_data};
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        free(blocks[i]);
    }
    dd_plan_fini(&rank->plan);
}

void *
sim_address(const sim_rank *rank, dd_plan_range range)
{
    uint8_t *base = rank->scratch;
    if (range.buffer == DD_PLAN_INPUT) {
        base = rank->inputs[range.block].data;
    } else if (range.buffer == DD_PLAN_OUTPUT) {
        base = rank->outputs[range.block].data;
    }
    return base + range.offset;
}

static dd_status
build_rank(sim_world *world, int number, dd_error *err)
{
    const sim_case *sim = world->sim;
    sim_rank *rank = &world->ranks[number];
    dd_coll_args args = {.coll = sim->algorithm->coll,
                         .root = sim->root,
                         .reduction = sim->reduction,
                         .stage = sim->stage,
                         .inputs = rank->inputs,
                         .outputs = rank->outputs};
    dd_plan_task task = {
        .rank = number, .nranks = sim->nranks, .args = &args, .segment_nbytes = sim->segment_nbytes};
    return dd_plan_build(sim->algorithm, &task, &rank->plan, err);
}

static void
free_world(sim_world *world)
{
    for (int i = 0; i < world->sim->nranks; i++) {
        sim_free_rank(&world->ranks[i]);
    }
    free(world->ranks);
}

static bool
simulate(sim_world *world)
{
    bool is_good = true;
    for (int i = 0; i < world->sim->nranks; i++) {
        sim_make_rank(world, i, true);
    }
    for (int i = 0; i < world->sim->nranks && is_good; i++) {
        is_good = CHECK_OK(build_rank(world, i, check_err())) && sim_check_plan(world, i);
    }
    return is_good && sim_match(world) && sim_run(world) && sim_check_results(world);
}

bool
plan_sim_check(const sim_case *sim)
{
    sim_world world = {.sim = sim, .random = sim->seed};
    world.ranks = calloc((size_t)sim->nranks, sizeof *world.ranks);
    bool is_good = simulate(&world);
    if (!is_good) {
        printf(
            "    in %s %s: nranks %d, root %d, %s %s, stage %d, count %zu%s%s, segment %zu, policy %d%s, seed %u\n",
            dd_coll_name(sim->algorithm->coll), sim->algorithm->name, sim->nranks, sim->root,
            dd_dtype_name(sim->reduction.dtype), dd_redop_name(sim->reduction.op), (int)sim->stage,
            sim->count, sim->is_uneven ? " uneven" : "", sim->is_in_place ? " in place" : "",
            sim->segment_nbytes, (int)sim->policy, sim->is_eager ? " eager" : "", sim->seed);
    }
    free_world(&world);
    return is_good;
}

dd_status
plan_sim_build(const sim_case *sim, void (*visit)(int rank, const dd_plan *plan, void *ctx), void *ctx,
               dd_error *err)
{
    sim_world world = {.sim = sim, .random = sim->seed};
    world.ranks = calloc((size_t)sim->nranks, sizeof *world.ranks);
    dd_status status = DD_OK;
    for (int i = 0; i < sim->nranks && status == DD_OK; i++) {
        sim_make_rank(&world, i, false);
        status = build_rank(&world, i, err);
        if (status == DD_OK && visit != NULL) {
            visit(i, &world.ranks[i].plan, ctx);
        }
        sim_free_rank(&world.ranks[i]);
        world.ranks[i] = (sim_rank){0};
    }
    free(world.ranks);
    return status;
}
