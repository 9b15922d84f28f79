/* Run all plans against each other, one event at a time. */
#include "check.h"
#include "plan_sim_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum step_state {
    STEP_WAITING,
    STEP_STARTED, /* a message whose peer has not started it */
    STEP_ENDED,
} step_state;

/* An event that can happen now: a step starts, or a message that both ends have started arrives
 * (named by its send). */
typedef struct sim_event {
    int rank;
    uint32_t step;
    bool is_arrival;
} sim_event;

typedef struct sim_queue {
    sim_event *events;
    size_t first;
    size_t count;
    size_t capacity;
} sim_queue;

static void
push(sim_queue *queue, sim_event event)
{
    if (queue->first + queue->count == queue->capacity) {
        queue->capacity = queue->capacity * 2 + 64;
        queue->events = realloc(queue->events, queue->capacity * sizeof *queue->events);
    }
    queue->events[queue->first + queue->count++] = event;
}

static sim_event
take(sim_world *world, sim_queue *queue)
{
    size_t index = queue->first;
    size_t last = queue->first + queue->count - 1;
    if (world->sim->policy == SIM_OLDEST) {
        queue->count--;
        return queue->events[queue->first++];
    }
    if (world->sim->policy == SIM_NEWEST) {
        index = last;
    } else {
        index += sim_random(world) % queue->count;
    }
    int laggard = (int)(world->sim->seed % (unsigned)world->sim->nranks);
    for (size_t i = 0; world->sim->policy == SIM_LAGGARD && i < queue->count; i++) {
        size_t other = queue->first + (index - queue->first + i) % queue->count;
        if (queue->events[other].rank != laggard) {
            index = other;
            break;
        }
    }
    sim_event chosen = queue->events[index];
    queue->events[index] = queue->events[last];
    queue->count--;
    return chosen;
}

static void
prepare_rank(sim_rank *rank, sim_queue *queue, int number)
{
    const dd_plan *plan = &rank->plan;
    size_t nsteps = plan->nsteps;
    rank->scratch = malloc(plan->scratch_nbytes + 1);
    memset(rank->scratch, 0x5a, plan->scratch_nbytes);
    rank->waiting = calloc(nsteps + 1, sizeof *rank->waiting);
    rank->state = calloc(nsteps + 1, 1);
    rank->eager_data = calloc(nsteps + 1, sizeof *rank->eager_data);
    for (uint32_t i = 0; i < nsteps; i++) {
        rank->waiting[i] = plan->steps[i].ndeps;
        if (plan->steps[i].ndeps == 0) {
            push(queue, (sim_event){.rank = number, .step = i});
        }
    }
}

static void
end_step(sim_world *world, sim_queue *queue, int number, uint32_t index)
{
    sim_rank *rank = &world->ranks[number];
    rank->state[index] = STEP_ENDED;
    const dd_plan_follower *followers = rank->plan.followers;
    for (uint32_t i = rank->plan.steps[index].first_follower; i != DD_PLAN_NONE; i = followers[i].next) {
        uint32_t step = followers[i].step;
        if (--rank->waiting[step] == 0) {
            push(queue, (sim_event){.rank = number, .step = step});
        }
    }
}

static void
reduce(const sim_world *world, const sim_rank *rank, const dd_plan_step *step)
{
    const void **sources = malloc(step->nsources * sizeof *sources);
    for (uint32_t i = 0; i < step->nsources; i++) {
        sources[i] = sim_address(rank, rank->plan.sources[step->first_source + i]);
    }
    dd_reduce(&world->sim->reduction, step->stage, sim_address(rank, step->dst), sources, step->nsources,
              step->count);
    free(sources);
}

/* A message that both sides have started arrives later; until then the receive is invalid. */
static void
start_message(sim_world *world, sim_queue *queue, sim_event event)
{
    sim_rank *rank = &world->ranks[event.rank];
    const dd_plan_step *step = &rank->plan.steps[event.step];
    bool is_send = step->kind == DD_PLAN_SEND;
    int sender = is_send ? event.rank : step->peer;
    uint32_t send = is_send ? event.step : rank->partner[event.step];
    step_state other = world->ranks[step->peer].state[rank->partner[event.step]];
    rank->state[event.step] = STEP_STARTED;
    if (!is_send && step->dst.nbytes > 0) {
        memset(sim_address(rank, step->dst), 0xcc, step->dst.nbytes);
    }
    if (is_send && world->sim->is_eager) {
        rank->eager_data[event.step] = malloc(step->src.nbytes + 1);
        if (step->src.nbytes > 0) {
            memcpy(rank->eager_data[event.step], sim_address(rank, step->src), step->src.nbytes);
        }
        end_step(world, queue, event.rank, event.step);
    }
    if (other != STEP_WAITING) {
        event.rank = sender;
        event.step = send;
        event.is_arrival = true;
        push(queue, event);
    }
}

static void
arrive(sim_world *world, sim_queue *queue, sim_event event)
{
    sim_rank *sender = &world->ranks[event.rank];
    const dd_plan_step *send = &sender->plan.steps[event.step];
    sim_rank *receiver = &world->ranks[send->peer];
    uint32_t index = sender->partner[event.step];
    const dd_plan_step *recv = &receiver->plan.steps[index];
    const void *src = sender->eager_data[event.step];
    if (src == NULL && send->src.nbytes > 0) {
        src = sim_address(sender, send->src);
    }
    if (send->src.nbytes > 0) {
        memcpy(sim_address(receiver, recv->dst), src, send->src.nbytes);
    }
    if (sender->state[event.step] != STEP_ENDED) {
        end_step(world, queue, event.rank, event.step);
    }
    end_step(world, queue, send->peer, index);
}

static void
happen(sim_world *world, sim_queue *queue, sim_event event)
{
    sim_rank *rank = &world->ranks[event.rank];
    const dd_plan_step *step = &rank->plan.steps[event.step];
    if (event.is_arrival) {
        arrive(world, queue, event);
    } else if (step->kind == DD_PLAN_SEND || step->kind == DD_PLAN_RECV) {
        start_message(world, queue, event);
    } else {
        void *dst = sim_address(rank, step->dst);
        if (step->kind == DD_PLAN_REDUCE) {
            reduce(world, rank, step);
        } else if (dst != sim_address(rank, step->src)) {
            memcpy(dst, sim_address(rank, step->src), step->src.nbytes);
        }
        end_step(world, queue, event.rank, event.step);
    }
}

static bool
have_all_ended(const sim_world *world)
{
    for (int number = 0; number < world->sim->nranks; number++) {
        const sim_rank *rank = &world->ranks[number];
        for (uint32_t i = 0; i < rank->plan.nsteps; i++) {
            if (rank->state[i] != STEP_ENDED) {
                printf("    deadlock: step %u of rank %d never ended\n", i, number);
                return false;
            }
        }
    }
    return true;
}

bool
sim_run(sim_world *world)
{
    sim_queue queue = {0};
    for (int number = 0; number < world->sim->nranks; number++) {
        prepare_rank(&world->ranks[number], &queue, number);
    }
    while (queue.count > 0) {
        happen(world, &queue, take(world, &queue));
    }
    free(queue.events);
    return CHECK(have_all_ended(world));
}
