#include "collective/plan_internal.h"

#include "core/mem.h"

void
dd_plan_fini(dd_plan *plan)
{
    dd_mem_free(plan->steps);
    dd_mem_free(plan->sources);
    dd_mem_free(plan->deps);
    *plan = (dd_plan){0};
}

/* Room for `more` items after `used`; doubles, so that adding stays cheap. */
static dd_status
grow(void **items, uint32_t *capacity, uint32_t used, uint32_t more, size_t size, dd_error *err)
{
    if (more <= *capacity - used) {
        return DD_OK;
    }
    uint64_t wanted = (uint64_t)used + more;
    uint64_t doubled = *capacity < 16 ? 16 : 2 * (uint64_t)*capacity;
    uint64_t larger = doubled < wanted ? wanted : doubled;
    if (larger >= UINT32_MAX) {
        return dd_error_no_memory(err, wanted * size);
    }
    void *moved = dd_mem_realloc(*items, larger * size);
    if (moved == NULL) {
        return dd_error_no_memory(err, larger * size);
    }
    *items = moved;
    *capacity = (uint32_t)larger;
    return DD_OK;
}

static dd_status
add_step(dd_plan *plan, dd_plan_step step, uint32_t *index, dd_error *err)
{
    void *steps = plan->steps;
    dd_status status = grow(&steps, &plan->capacity[0], plan->nsteps, 1, sizeof *plan->steps, err);
    plan->steps = steps;
    if (status != DD_OK) {
        return status;
    }
    step.first_dep = plan->ndeps;
    *index = plan->nsteps;
    plan->steps[plan->nsteps++] = step;
    return DD_OK;
}

dd_status
dd_plan_add_send(dd_plan *plan, int peer, uint32_t channel, dd_plan_range src, uint32_t *index, dd_error *err)
{
    dd_plan_step step = {.kind = DD_PLAN_SEND, .peer = peer, .channel = channel, .src = src};
    return add_step(plan, step, index, err);
}

dd_status
dd_plan_add_recv(dd_plan *plan, int peer, uint32_t channel, dd_plan_range dst, uint32_t *index, dd_error *err)
{
    dd_plan_step step = {.kind = DD_PLAN_RECV, .peer = peer, .channel = channel, .dst = dst};
    return add_step(plan, step, index, err);
}

dd_status
dd_plan_add_copy(dd_plan *plan, dd_plan_range src, dd_plan_range dst, uint32_t *index, dd_error *err)
{
    dd_plan_step step = {.kind = DD_PLAN_COPY, .peer = -1, .src = src, .dst = dst};
    return add_step(plan, step, index, err);
}

dd_status
dd_plan_add_source(dd_plan *plan, dd_plan_range source, dd_error *err)
{
    void *sources = plan->sources;
    dd_status status = grow(&sources, &plan->capacity[1], plan->nsources, 1, sizeof *plan->sources, err);
    plan->sources = sources;
    if (status != DD_OK) {
        return status;
    }
    plan->sources[plan->nsources++] = source;
    plan->steps[plan->nsteps - 1].nsources++;
    return DD_OK;
}

dd_status
dd_plan_add_reduce(dd_plan *plan, dd_stage stage, const dd_plan_range *sources, uint32_t nsources,
                   dd_plan_range dst, size_t count, uint32_t *index, dd_error *err)
{
    dd_plan_step step = {.kind = DD_PLAN_REDUCE,
                         .stage = stage,
                         .peer = -1,
                         .dst = dst,
                         .count = count,
                         .first_source = plan->nsources};
    dd_status status = add_step(plan, step, index, err);
    for (uint32_t i = 0; i < nsources && status == DD_OK; i++) {
        status = dd_plan_add_source(plan, sources[i], err);
    }
    return status;
}

dd_status
dd_plan_add_dep(dd_plan *plan, uint32_t on, dd_error *err)
{
    void *deps = plan->deps;
    dd_status status = grow(&deps, &plan->capacity[2], plan->ndeps, 1, sizeof *plan->deps, err);
    plan->deps = deps;
    if (status != DD_OK) {
        return status;
    }
    plan->deps[plan->ndeps++] = on;
    plan->steps[plan->nsteps - 1].ndeps++;
    return DD_OK;
}
