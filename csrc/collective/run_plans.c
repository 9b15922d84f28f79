/* Plans and memory kept from one collective to the next. */
#include "collective/run_internal.h"

#include "core/mem.h"

#include <string.h>

#define ALIGNMENT ((size_t)64)
#define CACHED_SCRATCH_MAX_NBYTES ((size_t)1 << 20)
#define CACHED_PLAN_MAX_NBYTES ((size_t)256 << 10)

dd_status
dd_run_buffer_reserve(dd_run_buffer *buffer, size_t nbytes, dd_error *err)
{
    if (nbytes <= buffer->nbytes) {
        return DD_OK;
    }
    dd_run_buffer_fini(buffer);
    void *memory = nbytes <= SIZE_MAX - ALIGNMENT ? dd_mem_alloc(nbytes + ALIGNMENT) : NULL;
    if (memory == NULL) {
        return dd_error_no_memory(err, nbytes);
    }
    size_t past = (uintptr_t)memory % ALIGNMENT;
    *buffer =
        (dd_run_buffer){.memory = memory, .data = (char *)memory + (ALIGNMENT - past), .nbytes = nbytes};
    return DD_OK;
}

void
dd_run_buffer_trim(dd_run_buffer *buffer)
{
    if (buffer->nbytes > CACHED_SCRATCH_MAX_NBYTES) {
        dd_run_buffer_fini(buffer);
    }
}

void
dd_run_buffer_fini(dd_run_buffer *buffer)
{
    dd_mem_free(buffer->memory);
    *buffer = (dd_run_buffer){0};
}

/* ---- the kept plans */

/* Write to run->key everything that the plan depends on. */
static dd_status
write_key(dd_run *run, const dd_leg *leg, size_t *nbytes, dd_error *err)
{
    const dd_coll_args *args = &leg->args;
    const size_t fixed[] = {(size_t)args->coll,
                            (size_t)leg->nranks,
                            (size_t)args->root,
                            (size_t)args->reduction.dtype,
                            (size_t)args->reduction.op,
                            (size_t)args->stage,
                            run->call.signature.count != 0};
    int ninputs = dd_coll_ninputs(args->coll, leg->rank == args->root, leg->nranks);
    int noutputs = dd_coll_noutputs(args->coll, leg->rank == args->root, leg->nranks);
    *nbytes = sizeof fixed + (size_t)(ninputs + noutputs) * sizeof(size_t);
    dd_status status = dd_run_buffer_reserve(&run->key, *nbytes, err);
    if (status != DD_OK) {
        return status;
    }
    size_t *words = (size_t *)(void *)run->key.data;
    memcpy(words, fixed, sizeof fixed);
    words += sizeof fixed / sizeof fixed[0];
    for (int i = 0; i < ninputs; i++) {
        *words++ = args->inputs[i].nbytes;
    }
    for (int i = 0; i < noutputs; i++) {
        *words++ = args->outputs[i].nbytes;
    }
    return DD_OK;
}

static void
destroy_plan(dd_run_plan *plan)
{
    dd_plan_run_destroy(plan->plan);
    dd_mem_free(plan->key);
    *plan = (dd_run_plan){0};
}

static dd_status
build(const dd_run *run, const dd_leg *leg, dd_run_plan *made, dd_error *err)
{
    dd_select_query query = {.coll = leg->args.coll, .nranks = leg->nranks};
    query.nbytes =
        dd_coll_known_nbytes(&leg->args, leg->nranks, run->call.signature.count != 0, &query.is_even);
    size_t segment_nbytes = run->env.segment_nbytes;
    dd_plan_task task = {.rank = leg->rank,
                         .nranks = leg->nranks,
                         .args = &leg->args,
                         .segment_nbytes =
                             segment_nbytes != 0 ? segment_nbytes : dd_select_segment_nbytes(&query)};
    dd_plan steps = {0};
    made->algorithm = dd_select(&run->env.selection, &query);
    dd_status status = dd_plan_build(made->algorithm, &task, &steps, err);
    if (status == DD_OK) {
        status = dd_plan_run_create(&steps, &made->plan, err);
    }
    dd_plan_fini(&steps);
    return status;
}

/* Make a plan for run->key, and store it in the entry `plan` instead of the entry's old plan. */
static dd_status
make_plan(const dd_run *run, const dd_leg *leg, size_t key_nbytes, dd_run_plan *plan, dd_error *err)
{
    destroy_plan(plan);
    dd_run_plan made = {.key = dd_mem_alloc(key_nbytes), .key_nbytes = key_nbytes};
    dd_status status = made.key != NULL ? build(run, leg, &made, err) : dd_error_no_memory(err, key_nbytes);
    if (status != DD_OK) {
        destroy_plan(&made);
        return status;
    }
    memcpy(made.key, run->key.data, key_nbytes);
    *plan = made;
    return DD_OK;
}

dd_status
dd_run_find_plan(dd_run *run, const dd_leg *leg, dd_error *err)
{
    size_t nbytes;
    dd_status status = write_key(run, leg, &nbytes, err);
    if (status != DD_OK) {
        return status;
    }
    dd_run_plan *plan = NULL;
    dd_run_plan *oldest = &run->plans[0];
    for (int i = 0; i < DD_RUN_NPLANS && plan == NULL; i++) {
        dd_run_plan *cached = &run->plans[i];
        bool is_same = cached->key_nbytes == nbytes && memcmp(cached->key, run->key.data, nbytes) == 0;
        plan = is_same ? cached : NULL;
        oldest = cached->last_use < oldest->last_use ? cached : oldest;
    }
    if (plan == NULL) {
        plan = oldest;
        status = make_plan(run, leg, nbytes, plan, err);
    }
    if (status == DD_OK) {
        status = dd_run_buffer_reserve(&run->plan_scratch, dd_plan_run_scratch_nbytes(plan->plan), err);
    }
    if (status != DD_OK) {
        return status;
    }
    plan->last_use = ++run->nuses;
    run->plan = plan;
    run->algorithm = plan->algorithm;
    return DD_OK;
}

void
dd_run_release_plan(dd_run *run)
{
    dd_run_plan *plan = run->plan;
    run->plan = NULL;
    if (plan != NULL && dd_plan_run_nbytes(plan->plan) > CACHED_PLAN_MAX_NBYTES) {
        destroy_plan(plan);
    }
}

void
dd_run_destroy_plans(dd_run *run)
{
    for (int i = 0; i < DD_RUN_NPLANS; i++) {
        destroy_plan(&run->plans[i]);
    }
}
