/* Plans and memory that one collective leaves to the next. */
#include "collective/run_internal.h"

#include "core/mem.h"

#include <stdio.h>
#include <string.h>

#define ALIGNMENT ((size_t)64)
#define KEPT_SCRATCH_NBYTES ((size_t)1 << 20)
#define KEPT_PLAN_NBYTES ((size_t)256 << 10)

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
    if (buffer->nbytes > KEPT_SCRATCH_NBYTES) {
        dd_run_buffer_fini(buffer);
    }
}

void
dd_run_buffer_fini(dd_run_buffer *buffer)
{
    dd_mem_free(buffer->memory);
    *buffer = (dd_run_buffer){0};
}

/* ---- what a plan is good for */

typedef struct shape {
    const dd_coll_args *args;
    int rank;
    int nranks;
    int ninputs;
    int nsizes;
    bool is_between_hosts;
    const dd_algorithm *algorithm;
    size_t segment_nbytes;
} shape;

static void
measure_blocks(const dd_block *blocks, int nblocks, dd_select_query *query)
{
    for (int i = 0; i < nblocks; i++) {
        query->nbytes = blocks[i].nbytes > query->nbytes ? blocks[i].nbytes : query->nbytes;
        query->is_even = query->is_even && blocks[i].nbytes == blocks[0].nbytes;
    }
}

/* Of what every rank knows. Where one knows its own blocks only, the signature tells whether they are all
 * of a size. */
static dd_select_query
make_query(const dd_leg *leg, const dd_signature *signature)
{
    const dd_coll_args *args = &leg->args;
    dd_select_query query = {.coll = args->coll, .nranks = leg->nranks, .is_even = true};
    bool is_known = signature->count != 0;
    switch (args->coll) {
    case DD_COLL_BARRIER:
        break;
    case DD_COLL_BROADCAST:
        query.nbytes = args->outputs[0].nbytes;
        break;
    case DD_COLL_REDUCE:
    case DD_COLL_ALL_REDUCE:
        query.nbytes = args->inputs[0].nbytes;
        break;
    case DD_COLL_ALL_GATHER:
        measure_blocks(args->outputs, leg->nranks, &query);
        break;
    case DD_COLL_REDUCE_SCATTER:
        measure_blocks(args->inputs, leg->nranks, &query);
        break;
    case DD_COLL_GATHER:
    case DD_COLL_ALL_TO_ALL:
        query.is_even = is_known;
        query.nbytes = is_known ? args->inputs[0].nbytes : 0;
        break;
    case DD_COLL_SCATTER:
        query.is_even = is_known;
        query.nbytes = is_known ? args->outputs[0].nbytes : 0;
        break;
    }
    return query;
}

static shape
make_shape(const dd_run *run, const dd_leg *leg)
{
    const dd_coll_args *args = &leg->args;
    dd_select_query query = make_query(leg, &run->call.signature);
    bool is_root = leg->rank == args->root;
    int ninputs = dd_coll_ninputs(args->coll, is_root, leg->nranks);
    return (shape){
        .args = args,
        .rank = leg->rank,
        .nranks = leg->nranks,
        .ninputs = ninputs,
        .nsizes = ninputs + dd_coll_noutputs(args->coll, is_root, leg->nranks),
        .is_between_hosts = leg->ranks != NULL,
        .algorithm = dd_select(&run->env.selection, &query),
        .segment_nbytes =
            run->env.segment_nbytes != 0 ? run->env.segment_nbytes : dd_select_segment_nbytes(&query),
    };
}

static size_t
size_at(const shape *wanted, int i)
{
    const dd_coll_args *args = wanted->args;
    return i < wanted->ninputs ? args->inputs[i].nbytes : args->outputs[i - wanted->ninputs].nbytes;
}

static bool
is_plan_for(const dd_run_plan *plan, const shape *wanted)
{
    const dd_coll_args *args = wanted->args;
    if (plan->plan == NULL || plan->algorithm != wanted->algorithm || plan->nranks != wanted->nranks ||
        plan->root != args->root || plan->segment_nbytes != wanted->segment_nbytes ||
        plan->dtype != args->reduction.dtype || plan->op != args->reduction.op ||
        plan->nsizes != wanted->nsizes) {
        return false;
    }
    for (int i = 0; i < plan->nsizes; i++) {
        if (plan->sizes[i] != size_at(wanted, i)) {
            return false;
        }
    }
    return true;
}

/* ---- the plans that are kept */

static void
drop_plan(dd_run_plan *plan)
{
    dd_plan_run_destroy(plan->plan);
    dd_mem_free(plan->sizes);
    *plan = (dd_run_plan){0};
}

static dd_run_plan *
least_recent(dd_run *run)
{
    dd_run_plan *found = &run->plans[0];
    for (int i = 1; i < DD_RUN_NPLANS; i++) {
        found = run->plans[i].last_use < found->last_use ? &run->plans[i] : found;
    }
    return found;
}

static dd_status
build(const shape *wanted, dd_plan_run **made, dd_error *err)
{
    dd_plan plan = {0};
    dd_plan_task task = {.rank = wanted->rank,
                         .nranks = wanted->nranks,
                         .args = wanted->args,
                         .segment_nbytes = wanted->segment_nbytes};
    dd_status status = dd_plan_build(wanted->algorithm, &task, &plan, err);
    if (status == DD_OK) {
        status = dd_plan_run_create(&plan, made, err);
    }
    dd_plan_fini(&plan);
    return status;
}

static dd_status
make_plan(const shape *wanted, dd_run_plan *plan, dd_error *err)
{
    drop_plan(plan);
    size_t *sizes = dd_mem_alloc_array((size_t)wanted->nsizes, sizeof *sizes);
    if (sizes == NULL) {
        return dd_error_no_memory(err, (size_t)wanted->nsizes * sizeof *sizes);
    }
    dd_plan_run *made = NULL;
    dd_status status = build(wanted, &made, err);
    if (status != DD_OK) {
        dd_mem_free(sizes);
        return status;
    }
    for (int i = 0; i < wanted->nsizes; i++) {
        sizes[i] = size_at(wanted, i);
    }
    *plan = (dd_run_plan){.plan = made,
                          .algorithm = wanted->algorithm,
                          .segment_nbytes = wanted->segment_nbytes,
                          .nranks = wanted->nranks,
                          .root = wanted->args->root,
                          .dtype = wanted->args->reduction.dtype,
                          .op = wanted->args->reduction.op,
                          .sizes = sizes,
                          .nsizes = wanted->nsizes};
    (void)snprintf(plan->way, sizeof plan->way, "%s%s", wanted->is_between_hosts ? "arena+" : "",
                   wanted->algorithm->name);
    return DD_OK;
}

dd_status
dd_run_find_plan(dd_run *run, const dd_leg *leg, dd_error *err)
{
    shape wanted = make_shape(run, leg);
    dd_run_plan *plan = NULL;
    for (int i = 0; i < DD_RUN_NPLANS && plan == NULL; i++) {
        plan = is_plan_for(&run->plans[i], &wanted) ? &run->plans[i] : NULL;
    }
    dd_status status = DD_OK;
    if (plan == NULL) {
        plan = least_recent(run);
        status = make_plan(&wanted, plan, err);
    }
    if (status == DD_OK) {
        status = dd_run_buffer_reserve(&run->plan_scratch, dd_plan_run_scratch_nbytes(plan->plan), err);
    }
    if (status != DD_OK) {
        return status;
    }
    plan->last_use = ++run->nuses;
    run->plan = plan;
    memcpy(run->way, plan->way, sizeof run->way);
    return DD_OK;
}

void
dd_run_let_plan_go(dd_run *run)
{
    dd_run_plan *plan = run->plan;
    run->plan = NULL;
    if (plan != NULL && dd_plan_run_nbytes(plan->plan) > KEPT_PLAN_NBYTES) {
        drop_plan(plan);
    }
}

void
dd_run_drop_plans(dd_run *run)
{
    for (int i = 0; i < DD_RUN_NPLANS; i++) {
        drop_plan(&run->plans[i]);
    }
}
