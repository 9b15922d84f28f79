/* Suspension: returns a group's working memory to the system, until dd_group_resume. */
#include "group/internal.h"

#include "core/thread.h"

static dd_status
meet_all(dd_group *group, const dd_wait *wait, dd_error *err)
{
    dd_coll_args args = {.coll = DD_COLL_BARRIER};
    dd_call_options options = {.timeout_ns = -1};
    return group->size == 1 ? DD_OK : dd_group_collective_and_wait(group, &args, &options, wait, err);
}

static dd_status
check_quiet_locked(dd_group *group, dd_error *err)
{
    dd_status status = dd_group_check_usable_locked(group, "suspend", err);
    if (status == DD_OK && !dd_list_is_empty(&group->collectives)) {
        status = dd_error_set(err, DD_INVALID_ARGUMENT,
                              "suspend: another thread called a collective of " GROUP_FORMAT
                              ": call none between suspend() and resume()",
                              GROUP_ARGS(group));
    }
    return status;
}

/* Begin to suspend. Until end_suspending, only this thread may call collectives of the group. */
static dd_status
begin_suspending_locked(dd_group *group, dd_error *err)
{
    dd_status status = check_quiet_locked(group, err);
    if (status == DD_OK) {
        group->suspender = dd_thread_self();
        group->is_suspending = true;
    }
    return status;
}

static dd_status
release_memory(dd_group *group, dd_error *err)
{
    dd_engine_lock(group->engine);
    dd_status status = begin_suspending_locked(group, err);
    if (status == DD_OK && group->arena != NULL) {
        status = dd_arena_release_memory(group->arena, err);
    }
    if (status == DD_OK) {
        group_clear_unused_regions_locked(group);
    }
    dd_engine_unlock(group->engine);
    return status;
}

static void
end_suspending(dd_group *group, bool is_suspended)
{
    dd_engine_lock(group->engine);
    group->is_suspending = false;
    group->is_suspended = is_suspended;
    dd_engine_unlock(group->engine);
}

/* Agree across ranks: if any rank failed to release its memory, no rank is suspended. */
static dd_status
vote(dd_group *group, bool is_ready, const dd_wait *wait, dd_error *err)
{
    int32_t unready = is_ready ? -1 : group->rank;
    int32_t highest = unready;
    if (group->size > 1) {
        dd_block input = {&unready, sizeof unready};
        dd_block output = {&highest, sizeof highest};
        dd_coll_args args = {.coll = DD_COLL_ALL_REDUCE,
                             .reduction = {.dtype = DD_DTYPE_INT32, .op = DD_REDOP_MAX},
                             .inputs = &input,
                             .outputs = &output};
        dd_call_options options = {.timeout_ns = -1};
        dd_status status = dd_group_collective_and_wait(group, &args, &options, wait, err);
        if (status != DD_OK) {
            return status;
        }
    }
    if (highest >= 0) {
        return dd_error_set(err, DD_INVALID_ARGUMENT,
                            "suspend: rank %d of " GROUP_FORMAT
                            " cannot suspend it, so no rank does; see the error of that rank",
                            (int)highest, GROUP_ARGS(group));
    }
    return DD_OK;
}

dd_status
dd_group_suspend(dd_group *group, const dd_wait *wait, dd_error *err)
{
    dd_status status = dd_engine_check_fork(group->engine, err);
    if (status != DD_OK) {
        return status;
    }
    dd_engine_lock(group->engine);
    bool is_suspended = group->is_suspended;
    dd_engine_unlock(group->engine);
    if (is_suspended) {
        return DD_OK;
    }
    /* After this barrier, no rank reads the arena; after the vote, all have released memory. */
    status = meet_all(group, wait, err);
    if (status != DD_OK) {
        return status;
    }
    status = release_memory(group, err);
    dd_error common;
    dd_status decision = vote(group, status == DD_OK, wait, &common);
    end_suspending(group, decision == DD_OK);
    return status == DD_OK && decision != DD_OK ? dd_error_copy(err, &common) : status;
}

dd_status
dd_group_resume(dd_group *group, dd_error *err)
{
    dd_status status = dd_engine_check_fork(group->engine, err);
    if (status == DD_OK) {
        dd_engine_lock(group->engine);
        group->is_suspended = false;
        dd_engine_unlock(group->engine);
    }
    return status;
}

void
dd_group_get_memory(dd_group *group, dd_group_memory *memory)
{
    *memory = (dd_group_memory){0};
    if (dd_engine_check_fork(group->engine, NULL) != DD_OK) {
        return;
    }
    dd_engine_lock(group->engine);
    if (group->arena != NULL) {
        memory->suspend = dd_arena_data_nbytes(group->arena);
        memory->persist = dd_arena_nbytes(group->topology.nlocal) / (size_t)group->topology.nlocal;
        memory->persist -= memory->suspend < memory->persist ? memory->suspend : memory->persist;
    }
    memory->suspended = group->is_suspended ? memory->suspend : 0;
    memory->suspend += atomic_load(&group->unused_nbytes);
    memory->persist += group_regions_nbytes_locked(group);
    dd_engine_unlock(group->engine);
}
