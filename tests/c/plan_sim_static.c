/* Checks of plans that do not run them. */
#include "check.h"
#include "coll_reference.h"
#include "plan_sim_internal.h"

#include <stdlib.h>
#include <string.h>

/* One step's access to a range of memory. */
typedef struct touch {
    uint64_t memory; /* number of the block; blocks that may be the same memory share a number */
    size_t offset;
    size_t end;
    uint32_t step;
    bool is_write;
} touch;

typedef struct message {
    int sender;
    int receiver;
    uint32_t channel;
    size_t nbytes;
    uint32_t step;
} message;

static bool
check_range(const sim_world *world, const sim_rank *rank, dd_plan_range range, bool is_dst)
{
    size_t limit = rank->plan.scratch_nbytes;
    bool is_good = true;
    if (range.buffer == DD_PLAN_INPUT) {
        is_good = CHECK(!is_dst) && CHECK(range.block >= 0 && range.block < rank->ninputs);
        limit = is_good ? rank->inputs[range.block].nbytes : 0;
    } else if (range.buffer == DD_PLAN_OUTPUT) {
        is_good = CHECK(range.block >= 0 && range.block < rank->noutputs);
        limit = is_good ? rank->outputs[range.block].nbytes : 0;
    }
    is_good = is_good && CHECK(range.offset <= limit && range.nbytes <= limit - range.offset);
    return is_good && CHECK(range.nbytes > 0 || world->sim->algorithm->coll == DD_COLL_BARRIER);
}

/* Return the size limit of a message, at least 64 bytes of each block that it carries. */
static size_t
message_limit(const sim_world *world)
{
    size_t least = (size_t)world->sim->nranks * 64;
    return world->sim->segment_nbytes > least ? world->sim->segment_nbytes : least;
}

static bool
check_reduce(const sim_world *world, const sim_rank *rank, const dd_plan_step *step)
{
    const dd_reduction *reduction = &world->sim->reduction;
    size_t element = dd_dtype_size(reduction->dtype);
    size_t partial = dd_reduce_partial_size(reduction->dtype, reduction->op);
    bool takes_inputs = step->stage == DD_STAGE_WHOLE || step->stage == DD_STAGE_FIRST;
    bool gives_results = step->stage == DD_STAGE_WHOLE || step->stage == DD_STAGE_LAST;
    size_t source_nbytes = step->count * (takes_inputs ? element : partial);
    bool is_good = CHECK(step->nsources > 0) && CHECK(step->count > 0) &&
                   CHECK(step->dst.nbytes == step->count * (gives_results ? element : partial));
    for (uint32_t i = 0; i < step->nsources && is_good; i++) {
        dd_plan_range source = rank->plan.sources[step->first_source + i];
        is_good = check_range(world, rank, source, false) && CHECK(source.nbytes == source_nbytes);
        if (is_good && source.buffer == step->dst.buffer && source.block == step->dst.block) {
            bool is_apart = source.offset + source.nbytes <= step->dst.offset ||
                            step->dst.offset + step->dst.nbytes <= source.offset;
            bool is_same = source.offset == step->dst.offset && step->dst.nbytes <= source.nbytes;
            is_good = CHECK(is_apart || is_same);
        }
    }
    return is_good;
}

static bool
check_step(const sim_world *world, int number, uint32_t index)
{
    const sim_rank *rank = &world->ranks[number];
    const dd_plan_step *step = &rank->plan.steps[index];
    bool is_message = step->kind == DD_PLAN_SEND || step->kind == DD_PLAN_RECV;
    bool is_good = true;
    if (step->kind != DD_PLAN_RECV && step->kind != DD_PLAN_REDUCE) {
        is_good = check_range(world, rank, step->src, false);
    }
    if (step->kind != DD_PLAN_SEND) {
        is_good = is_good && check_range(world, rank, step->dst, true);
    }
    if (is_message) {
        is_good = is_good &&
                  CHECK(step->peer >= 0 && step->peer < world->sim->nranks && step->peer != number) &&
                  CHECK(step->src.nbytes <= message_limit(world) && step->dst.nbytes <= message_limit(world));
    } else if (step->kind == DD_PLAN_COPY) {
        is_good = is_good && CHECK(step->src.nbytes == step->dst.nbytes);
    } else {
        is_good = is_good && check_reduce(world, rank, step);
    }
    for (uint32_t i = step->first_follower; i != DD_PLAN_NONE && is_good; i = rank->plan.followers[i].next) {
        is_good = CHECK(rank->plan.followers[i].step > index);
    }
    return is_good;
}

/* Return the number of the memory. An output that may be an input has the input's number. */
static uint64_t
memory_of(const sim_case *sim, int rank, dd_plan_range range)
{
    if (range.buffer == DD_PLAN_SCRATCH) {
        return 0;
    }
    uint64_t input = 1 + (uint64_t)range.block;
    uint64_t output = input + (uint64_t)sim->nranks;
    if (range.buffer == DD_PLAN_INPUT) {
        return input;
    }
    if (sim_input_size(sim) != sim_output_size(sim)) {
        return output;
    }
    int shared;
    int block;
    bool is_shared = coll_find_in_place(sim->algorithm->coll, rank, rank, &shared, &block);
    return is_shared && (int)range.block == block ? 1 + (uint64_t)shared : output;
}

static void
add_touch(const sim_case *sim, int rank, touch *touches, size_t *count, touch use, dd_plan_range range)
{
    if (range.nbytes > 0) {
        use.memory = memory_of(sim, rank, range);
        use.offset = range.offset;
        use.end = range.offset + range.nbytes;
        touches[(*count)++] = use;
    }
}

static size_t
list_touches(const sim_case *sim, int rank, const dd_plan *plan, touch *touches)
{
    size_t count = 0;
    for (uint32_t i = 0; i < plan->nsteps; i++) {
        const dd_plan_step *step = &plan->steps[i];
        touch use = {.step = i};
        touch write = {.step = i, .is_write = true};
        if (step->kind == DD_PLAN_COPY &&
            memory_of(sim, rank, step->src) == memory_of(sim, rank, step->dst) &&
            step->src.offset == step->dst.offset) {
            continue;
        }
        if (step->kind == DD_PLAN_SEND || step->kind == DD_PLAN_COPY) {
            add_touch(sim, rank, touches, &count, use, step->src);
        }
        if (step->kind != DD_PLAN_SEND) {
            add_touch(sim, rank, touches, &count, write, step->dst);
        }
        for (uint32_t j = 0; j < step->nsources; j++) {
            add_touch(sim, rank, touches, &count, use, plan->sources[step->first_source + j]);
        }
    }
    return count;
}

static int
compare_touches(const void *left, const void *right)
{
    const touch *a = left;
    const touch *b = right;
    if (a->memory != b->memory) {
        return a->memory < b->memory ? -1 : 1;
    }
    return a->offset != b->offset ? (a->offset < b->offset ? -1 : 1) : 0;
}

/* Bit i of row j is set if step i ends before step j starts. */
static uint64_t *
make_paths(const dd_plan *plan, size_t width)
{
    uint64_t *paths = calloc((size_t)plan->nsteps * width + 1, sizeof *paths);
    for (uint32_t i = 0; i < plan->nsteps; i++) {
        const uint64_t *row = paths + (size_t)i * width;
        for (uint32_t j = plan->steps[i].first_follower; j != DD_PLAN_NONE; j = plan->followers[j].next) {
            uint64_t *other = paths + (size_t)plan->followers[j].step * width;
            for (size_t word = 0; word <= i / 64; word++) {
                other[word] |= row[word];
            }
            other[i / 64] |= (uint64_t)1 << (i % 64);
        }
    }
    return paths;
}

static bool
is_path(const uint64_t *paths, size_t width, uint32_t a, uint32_t b)
{
    uint32_t first = a < b ? a : b;
    uint32_t second = a < b ? b : a;
    return (paths[(size_t)second * width + first / 64] >> (first % 64) & 1) != 0;
}

static bool
check_races(const sim_case *sim, int rank, const dd_plan *plan)
{
    size_t width = plan->nsteps / 64 + 1;
    uint64_t *paths = make_paths(plan, width);
    touch *touches = malloc(((size_t)plan->nsteps * 2 + plan->nsources + 1) * sizeof *touches);
    size_t count = list_touches(sim, rank, plan, touches);
    qsort(touches, count, sizeof *touches, compare_touches);
    bool is_good = true;
    for (size_t i = 0; i < count && is_good; i++) {
        for (size_t j = i + 1; j < count && touches[j].memory == touches[i].memory &&
                               touches[j].offset < touches[i].end && is_good;
             j++) {
            if (touches[i].step != touches[j].step && (touches[i].is_write || touches[j].is_write)) {
                is_good = CHECK(is_path(paths, width, touches[i].step, touches[j].step));
            }
        }
    }
    free(touches);
    free(paths);
    return is_good;
}

static bool
check_scratch(const sim_world *world, const dd_plan *plan)
{
    size_t nranks = (size_t)world->sim->nranks;
    return CHECK(plan->scratch_nbytes <= message_limit(world) * (2 * nranks + 16) + 4096);
}

/* Finding paths costs the square of the steps; larger plans only repeat smaller ones. */
#define MAX_STEPS_FOR_RACES 6000

bool
sim_check_plan(const sim_world *world, int number)
{
    const dd_plan *plan = &world->ranks[number].plan;
    for (uint32_t i = 0; i < plan->nsteps; i++) {
        if (!check_step(world, number, i)) {
            return false;
        }
    }
    bool is_sampled = world->sim->nranks <= 9 || (unsigned)number % 5 == world->sim->seed % 5;
    return check_scratch(world, plan) &&
           (plan->nsteps > MAX_STEPS_FOR_RACES || !is_sampled || check_races(world->sim, number, plan));
}

static int
compare_messages(const void *left, const void *right)
{
    const message *a = left;
    const message *b = right;
    if (a->sender != b->sender) {
        return a->sender < b->sender ? -1 : 1;
    }
    if (a->receiver != b->receiver) {
        return a->receiver < b->receiver ? -1 : 1;
    }
    return a->step < b->step ? -1 : 1;
}

static int
compare_channels(const void *left, const void *right)
{
    const message *a = left;
    const message *b = right;
    if (a->sender == b->sender && a->receiver == b->receiver && a->channel != b->channel) {
        return a->channel < b->channel ? -1 : 1;
    }
    return compare_messages(left, right);
}

static size_t
list_messages(const sim_world *world, dd_plan_kind kind, message *messages)
{
    size_t count = 0;
    for (int rank = 0; rank < world->sim->nranks; rank++) {
        const dd_plan *plan = &world->ranks[rank].plan;
        for (uint32_t i = 0; i < plan->nsteps; i++) {
            const dd_plan_step *step = &plan->steps[i];
            if (step->kind != kind) {
                continue;
            }
            bool is_send = kind == DD_PLAN_SEND;
            messages[count++] = (message){.sender = is_send ? rank : step->peer,
                                          .receiver = is_send ? step->peer : rank,
                                          .channel = step->channel,
                                          .nbytes = is_send ? step->src.nbytes : step->dst.nbytes,
                                          .step = i};
        }
    }
    return count;
}

static bool
check_unique(message *messages, size_t count)
{
    qsort(messages, count, sizeof *messages, compare_channels);
    for (size_t i = 1; i < count; i++) {
        bool is_same = messages[i].sender == messages[i - 1].sender &&
                       messages[i].receiver == messages[i - 1].receiver &&
                       messages[i].channel == messages[i - 1].channel;
        if (!CHECK(!is_same)) {
            return false;
        }
    }
    return true;
}

static bool
match_all(sim_world *world, message *sends, message *recvs, size_t count)
{
    qsort(sends, count, sizeof *sends, compare_messages);
    qsort(recvs, count, sizeof *recvs, compare_messages);
    for (size_t i = 0; i < count; i++) {
        if (!CHECK(sends[i].sender == recvs[i].sender && sends[i].receiver == recvs[i].receiver &&
                   sends[i].channel == recvs[i].channel && sends[i].nbytes == recvs[i].nbytes)) {
            return false;
        }
        world->ranks[sends[i].sender].partner[sends[i].step] = recvs[i].step;
        world->ranks[sends[i].receiver].partner[recvs[i].step] = sends[i].step;
    }
    return check_unique(sends, count);
}

bool
sim_match(sim_world *world)
{
    size_t nsteps = 0;
    for (int rank = 0; rank < world->sim->nranks; rank++) {
        sim_rank *each = &world->ranks[rank];
        nsteps += each->plan.nsteps;
        each->partner = calloc((size_t)each->plan.nsteps + 1, sizeof *each->partner);
    }
    message *sends = calloc(nsteps + 1, sizeof *sends);
    message *recvs = calloc(nsteps + 1, sizeof *recvs);
    size_t nsends = list_messages(world, DD_PLAN_SEND, sends);
    size_t nrecvs = list_messages(world, DD_PLAN_RECV, recvs);
    bool is_good = CHECK(nsends == nrecvs) && match_all(world, sends, recvs, nsends);
    free(sends);
    free(recvs);
    return is_good;
}
