#include "collective/plan_run.h"

#include "core/assert.h"
#include "core/mem.h"

#include <string.h>

/* Larger local steps are queued; steps up to this size run immediately, with the lock held. */
#define SMALL_NBYTES ((size_t)64 << 10)

typedef struct plan_message {
    dd_message message; /* message.is_posted is true while the transport has the message */
    uint32_t step;      /* index of the message's step; set when the message is posted */
} plan_message;

/* Fields are guarded by the engine's lock; const fields do not change after creation. */
struct dd_plan_run {
    dd_plan plan;              /* const after creation */
    const void **sources;      /* buffer for the inputs of a fold that runs with the lock */
    const void **step_sources; /* buffer for the inputs of a fold that runs without the lock */
    uint32_t *nwaiting;        /* [step]: number of its dependencies that have not ended */
    plan_message *messages;    /* [message number]: the plan's messages */
    /* Indices of steps, in the order in which they may start; each is listed once. Large local
     * steps that wait are listed in entries of steps that have started. */
    uint32_t *queue;
    uint32_t nready, nstarted;
    uint32_t nlocal, ntaken;
    uint32_t nended;
    size_t nbytes; /* const: bytes of the run and all memory that it owns */
    bool is_under_way;
    bool is_advancing; /* a caller up the stack is starting ready steps */
    bool is_failed;
    dd_error error; /* the first error; set if is_failed */
    dd_coll_args args;
    dd_plan_run_options options;
};

static bool
is_message(const dd_plan_step *step)
{
    return step->kind == DD_PLAN_SEND || step->kind == DD_PLAN_RECV;
}

/* ---- creation */

/* Allocate the run and its arrays as one block; arrays with the widest alignment come first. */
dd_status
dd_plan_run_create(dd_plan *plan, dd_plan_run **run, dd_error *err)
{
    size_t nsteps = plan->nsteps;
    size_t nbytes = sizeof(dd_plan_run) + plan->nmessages * sizeof(plan_message) +
                    2 * plan->max_nsources * sizeof(void *) + 2 * nsteps * sizeof(uint32_t);
    dd_plan_run *made = dd_mem_zalloc(nbytes);
    if (made == NULL) {
        return dd_error_no_memory(err, nbytes);
    }
    made->plan = *plan;
    made->nbytes = nbytes + plan->capacity[0] * sizeof *plan->steps +
                   plan->capacity[1] * sizeof *plan->sources + plan->capacity[2] * sizeof *plan->followers;
    made->messages = (plan_message *)(made + 1);
    made->sources = (const void **)(void *)(made->messages + plan->nmessages);
    made->step_sources = made->sources + plan->max_nsources;
    made->nwaiting = (uint32_t *)(void *)(made->step_sources + plan->max_nsources);
    made->queue = made->nwaiting + nsteps;
    *plan = (dd_plan){0};
    *run = made;
    return DD_OK;
}

void
dd_plan_run_destroy(dd_plan_run *run)
{
    if (run != NULL) {
        dd_plan_fini(&run->plan);
        dd_mem_free(run);
    }
}

size_t
dd_plan_run_scratch_nbytes(const dd_plan_run *run)
{
    return run->plan.scratch_nbytes;
}

size_t
dd_plan_run_nbytes(const dd_plan_run *run)
{
    return run->nbytes;
}

/* ---- steps */

static void *
range_data(const dd_plan_run *run, const dd_plan_range *range)
{
    if (range->nbytes == 0) {
        return NULL;
    }
    char *base = run->options.scratch;
    if (range->buffer == DD_PLAN_INPUT) {
        base = run->args.inputs[range->block].data;
    } else if (range->buffer == DD_PLAN_OUTPUT) {
        base = run->args.outputs[range->block].data;
    }
    return base + range->offset;
}

static void
note_ended(dd_plan_run *run, uint32_t index)
{
    const dd_plan_follower *followers = run->plan.followers;
    run->nended++;
    for (uint32_t i = run->plan.steps[index].first_follower; i != DD_PLAN_NONE; i = followers[i].next) {
        uint32_t step = followers[i].step;
        if (--run->nwaiting[step] == 0) {
            run->queue[run->nready++] = step;
        }
    }
}

/* Run a local step, with or without the lock: it reads no field that changes during a run. */
static void
do_local(const dd_plan_run *run, uint32_t index, const void **sources)
{
    const dd_plan_step *step = &run->plan.steps[index];
    void *dst = range_data(run, &step->dst);
    if (step->kind == DD_PLAN_COPY) {
        const void *src = range_data(run, &step->src);
        if (src != dst && step->src.nbytes > 0) {
            memcpy(dst, src, step->src.nbytes);
        }
    } else if (step->count > 0) {
        for (uint32_t i = 0; i < step->nsources; i++) {
            sources[i] = range_data(run, &run->plan.sources[step->first_source + i]);
        }
        dd_reduce(&run->args.reduction, step->stage, dst, sources, step->nsources, step->count);
    }
}

static size_t
local_nbytes(const dd_plan_step *step)
{
    return step->dst.nbytes * (step->nsources > 0 ? step->nsources : 1);
}

static void plan_run_on_message_done(dd_message *message, const dd_error *error);

static void
post_message(dd_plan_run *run, uint32_t index)
{
    const dd_plan_step *step = &run->plan.steps[index];
    const dd_plan_range *range = step->kind == DD_PLAN_SEND ? &step->src : &step->dst;
    dd_message *message = &run->messages[step->message].message;
    run->messages[step->message].step = index;
    message->kind = DD_MESSAGE_COLL;
    message->rank = run->options.ranks != NULL ? run->options.ranks[step->peer] : step->peer;
    message->tag = run->options.sequence;
    message->channel = step->channel;
    message->data = range_data(run, range);
    message->nbytes = range->nbytes;
    message->signature = &run->options.signature;
    message->on_done = plan_run_on_message_done;
    message->owner = run;
    if (step->kind == DD_PLAN_SEND) {
        dd_context_post_send_locked(run->options.context, message);
    } else {
        dd_context_post_recv_locked(run->options.context, message);
    }
}

static void
start_step(dd_plan_run *run, uint32_t index)
{
    const dd_plan_step *step = &run->plan.steps[index];
    if (is_message(step)) {
        post_message(run, index);
    } else if (local_nbytes(step) <= SMALL_NBYTES) {
        do_local(run, index, run->sources);
        note_ended(run, index);
    } else {
        run->queue[run->nlocal++] = index;
    }
}

/* ---- ending */

static void
plan_run_end(dd_plan_run *run, const dd_error *error)
{
    run->is_under_way = false;
    run->is_advancing = false;
    run->options.on_done(run->options.ctx, error);
}

/* Cancel the messages that the transport still has, and end the run. */
static void
end_failed(dd_plan_run *run)
{
    for (uint32_t i = 0; i < run->plan.nmessages; i++) {
        if (run->messages[i].message.is_posted) {
            dd_context_cancel_locked(run->options.context, &run->messages[i].message, &run->error);
        }
    }
    plan_run_end(run, &run->error);
}

static void
plan_run_note_failed(dd_plan_run *run, const dd_error *error)
{
    if (!run->is_failed) {
        run->is_failed = true;
        run->error = *error;
    }
}

/* Record a failed message. All ranks' calls determine the sizes of messages, so if a receive is too
 * small, the error is DD_MISMATCH, not this caller's invalid argument. */
static void
note_message_failed(dd_plan_run *run, const dd_error *error)
{
    plan_run_note_failed(run, error);
    if (run->error.code == DD_INVALID_ARGUMENT) {
        run->error.code = DD_MISMATCH;
    }
}

/* Start all steps that may start. End the run if all its steps have ended or it has failed. Do not
 * use the run after this call, unless it is known to be under way. */
static void
plan_run_advance(dd_plan_run *run)
{
    run->is_advancing = true;
    while (run->nstarted < run->nready && !run->is_failed) {
        start_step(run, run->queue[run->nstarted++]);
    }
    if (run->is_failed) {
        end_failed(run);
        return;
    }
    run->is_advancing = false;
    if (run->nended == run->plan.nsteps) {
        plan_run_end(run, NULL);
    }
}

static void
plan_run_on_message_done(dd_message *message, const dd_error *error)
{
    dd_plan_run *run = message->owner;
    if (error != NULL) {
        note_message_failed(run, error);
    } else {
        note_ended(run, DD_CONTAINER_OF(message, plan_message, message)->step);
    }
    if (!run->is_advancing) {
        plan_run_advance(run);
    }
}

void
dd_plan_run_start_locked(dd_plan_run *run, const dd_coll_args *args, const dd_plan_run_options *options)
{
    dd_assert_holds(ENGINE);
    run->args = *args;
    run->options = *options;
    run->nready = run->nstarted = run->nlocal = run->ntaken = 0;
    run->nended = 0;
    run->is_under_way = true;
    run->is_failed = false;
    for (uint32_t i = 0; i < run->plan.nsteps; i++) {
        run->nwaiting[i] = run->plan.steps[i].ndeps;
        if (run->nwaiting[i] == 0) {
            run->queue[run->nready++] = i;
        }
    }
    plan_run_advance(run);
}

bool
dd_plan_run_is_busy_locked(const dd_plan_run *run)
{
    return run->is_under_way && run->ntaken < run->nlocal;
}

bool
dd_plan_run_take_step_locked(dd_plan_run *run, uint32_t *step)
{
    if (!dd_plan_run_is_busy_locked(run) || run->is_advancing) {
        return false;
    }
    *step = run->queue[run->ntaken++];
    return true;
}

void
dd_plan_run_do_step(dd_plan_run *run, uint32_t step)
{
    do_local(run, step, run->step_sources);
}

void
dd_plan_run_end_step_locked(dd_plan_run *run, uint32_t step)
{
    note_ended(run, step);
    if (!run->is_advancing) {
        plan_run_advance(run);
    }
}

bool
dd_plan_run_catch_up_locked(dd_plan_run *run)
{
    bool has_ended = false;
    if (!run->is_under_way || run->is_advancing) {
        return false;
    }
    run->is_advancing = true; /* makes plan_run_on_message_done leave the next steps to this call */
    for (uint32_t i = 0; i < run->plan.nmessages; i++) {
        has_ended = dd_context_notify_success_locked(&run->messages[i].message) || has_ended;
    }
    run->is_advancing = false;
    if (has_ended) {
        plan_run_advance(run);
    }
    return has_ended;
}

void
dd_plan_run_cancel_locked(dd_plan_run *run, const dd_error *error)
{
    dd_assert_holds(ENGINE);
    if (run->is_under_way) {
        plan_run_note_failed(run, error);
        if (!run->is_advancing) {
            run->is_advancing = true;
            end_failed(run);
        }
    }
}

void
dd_plan_run_note_rank(int *ranks, int *nranks, int rank)
{
    int i = 0;
    while (i < *nranks && ranks[i] != rank) {
        i++;
    }
    ranks[i] = rank;
    *nranks += i == *nranks;
}

int
dd_plan_run_missing_locked(const dd_plan_run *run, int *ranks, int max)
{
    int nfound = 0;
    for (uint32_t i = 0; i < run->plan.nmessages && run->is_under_way && nfound < max; i++) {
        const dd_message *message = &run->messages[i].message;
        bool is_receive = run->plan.steps[run->messages[i].step].kind == DD_PLAN_RECV;
        if (message->is_posted && is_receive) {
            dd_plan_run_note_rank(ranks, &nfound, message->rank);
        }
    }
    return nfound;
}
