/* Plans and memory that one collective leaves to the next. */
#include "collective/run_internal.h"

#include "core/mem.h"

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
    const dd_leg *leg;
    const dd_algorithm *algorithm;
    size_t segment_nbytes;
    size_t ninputs;
    size_t noutputs;
} shape;

static shape
make_shape(const dd_run *run, const dd_leg *leg)
{
    const dd_coll_args *args = &leg->args;
    dd_select_query query = {.coll = args->coll, .nranks = leg->nranks};
    query.nbytes = dd_coll_known_nbytes(args, leg->nranks, run->call.signature.count != 0, &query.is_even);
    bool is_root = leg->rank == args->root;
    size_t segment = run->env.segment_nbytes;
    return (shape){
        .leg = leg,
        .algorithm = dd_select(&run->env.selection, &query),
        .segment_nbytes = segment != 0 ? segment : dd_select_segment_nbytes(&query),
        .ninputs = (size_t)dd_coll_ninputs(args->coll, is_root, leg->nranks),
        .noutputs = (size_t)dd_coll_noutputs(args->coll, is_root, leg->nranks),
    };
}

#define NFIXED 5

static size_t
count_words(const shape *wanted)
{
    return NFIXED + wanted->ninputs + wanted->noutputs;
}

/* The i-th of the numbers that, with the algorithm, decide what plan it is. */
static size_t
word_at(const shape *wanted, size_t i)
{
    const dd_coll_args *args = &wanted->leg->args;
    size_t fixed[NFIXED] = {wanted->segment_nbytes, (size_t)wanted->leg->nranks, (size_t)args->root,
                            (size_t)args->reduction.dtype, (size_t)args->reduction.op};
    if (i < NFIXED) {
        return fixed[i];
    }
    i -= NFIXED;
    return i < wanted->ninputs ? args->inputs[i].nbytes : args->outputs[i - wanted->ninputs].nbytes;
}

static bool
is_plan_for(const dd_run_plan *plan, const shape *wanted)
{
    bool is_same =
        plan->plan != NULL && plan->algorithm == wanted->algorithm && plan->nshape == count_words(wanted);
    for (size_t i = 0; is_same && i < plan->nshape; i++) {
        is_same = plan->shape[i] == word_at(wanted, i);
    }
    return is_same;
}

/* ---- the plans that are kept */

static void
drop_plan(dd_run_plan *plan)
{
    dd_plan_run_destroy(plan->plan);
    dd_mem_free(plan->shape);
    *plan = (dd_run_plan){0};
}

static dd_status
make_plan(const shape *wanted, dd_run_plan *plan, dd_error *err)
{
    drop_plan(plan);
    const dd_leg *leg = wanted->leg;
    dd_plan steps = {0};
    dd_plan_task task = {.rank = leg->rank,
                         .nranks = leg->nranks,
                         .args = &leg->args,
                         .segment_nbytes = wanted->segment_nbytes};
    size_t nshape = count_words(wanted);
    dd_run_plan made = {.algorithm = wanted->algorithm,
                        .shape = dd_mem_alloc_array(nshape, sizeof(size_t)),
                        .nshape = nshape};
    dd_status status = made.shape != NULL ? DD_OK : dd_error_no_memory(err, nshape * sizeof *made.shape);
    if (status == DD_OK) {
        status = dd_plan_build(wanted->algorithm, &task, &steps, err);
    }
    if (status == DD_OK) {
        status = dd_plan_run_create(&steps, &made.plan, err);
    }
    dd_plan_fini(&steps);
    if (status != DD_OK) {
        drop_plan(&made);
        return status;
    }
    for (size_t i = 0; i < nshape; i++) {
        made.shape[i] = word_at(wanted, i);
    }
    *plan = made;
    return DD_OK;
}

dd_status
dd_run_find_plan(dd_run *run, const dd_leg *leg, dd_error *err)
{
    shape wanted = make_shape(run, leg);
    dd_run_plan *plan = NULL;
    dd_run_plan *oldest = &run->plans[0];
    for (int i = 0; i < DD_RUN_NPLANS && plan == NULL; i++) {
        plan = is_plan_for(&run->plans[i], &wanted) ? &run->plans[i] : NULL;
        oldest = run->plans[i].last_use < oldest->last_use ? &run->plans[i] : oldest;
    }
    dd_status status = DD_OK;
    if (plan == NULL) {
        plan = oldest;
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
    run->algorithm = wanted.algorithm;
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
