/* The same call again and again. */
#include "group/group_internal.h"

#include "core/mem.h"

struct dd_standing_call {
    coll_call call;     /* first; its work is renewed by every start */
    dd_group *group;    /* owned */
    dd_coll_form *form; /* owned */
    bool is_chosen;     /* guarded by the engine's lock: among those that start_all has looked at */
};

/* ---- making and ending */

static void
free_call(dd_work *work)
{
    dd_standing_call *call = DD_CONTAINER_OF(work, dd_standing_call, call.base.work);
    dd_coll_form_destroy(call->form);
    dd_mem_free(call);
}

dd_status
dd_group_make_standing(dd_group *group, const dd_coll_args *args, const dd_call_options *options,
                       dd_standing_call **out, dd_error *err)
{
    dd_coll_form *form = NULL;
    dd_status status = dd_engine_check_fork(group->engine, err);
    if (status == DD_OK) {
        status = dd_coll_form_create(group, args, options->record, &form, err);
    }
    if (status == DD_OK) {
        dd_engine_lock(group->engine);
        status = group_check_usable_locked(group, dd_coll_name(args->coll), err);
        dd_engine_unlock(group->engine);
    }
    coll_call *made = NULL;
    dd_call_options nobody_told = {.timeout_ns = options->timeout_ns,
                                   .form = form,
                                   .stack = options->record != NULL ? options->record->stack : 0};
    if (status == DD_OK) {
        status = group_make_coll_call(group, args, &nobody_told, sizeof(dd_standing_call), &made, err);
    }
    if (status != DD_OK) {
        dd_coll_form_destroy(form);
        return status;
    }
    made->base.work.destroy = free_call;
    atomic_store_explicit(&made->base.work.is_done, true, memory_order_relaxed);
    dd_standing_call *call = (dd_standing_call *)made;
    call->group = dd_group_acquire(group);
    call->form = form;
    call->is_chosen = false;
    *out = call;
    return DD_OK;
}

bool
dd_standing_destroy(dd_standing_call *call, void (*on_done)(dd_work *work, void *ctx), void *ctx)
{
    if (call == NULL) {
        return false;
    }
    dd_group *group = call->group;
    dd_work *work = &call->call.base.work;
    bool is_under_way = false;
    if (!dd_work_is_done(work) && dd_engine_check_fork(group->engine, NULL) == DD_OK) {
        dd_engine_lock(group->engine);
        is_under_way = !dd_work_is_done(work);
        if (is_under_way) {
            work->on_done = on_done;
            work->ctx = ctx;
        }
        dd_engine_unlock(group->engine);
    }
    dd_work_release(work);
    if (is_under_way) {
        dd_group_kick(group);
    }
    dd_group_release(group);
    return is_under_way;
}

dd_work *
dd_standing_work(dd_standing_call *call)
{
    return &call->call.base.work;
}

/* ---- starting */

static dd_status
check_startable_locked(const dd_standing_call *call, const dd_group *group, dd_error *err)
{
    const dd_work *work = &call->call.base.work;
    if (call->group != group) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "%s: is of another group than the first of the calls",
                            work->what);
    }
    if (call->is_chosen) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "%s: is given twice", work->what);
    }
    if (!dd_work_is_done(work)) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "%s #%llu is under way and cannot be started again",
                            work->what, (unsigned long long)work->sequence);
    }
    return DD_OK;
}

/* All of them can be started, or none is. */
static dd_status
check_all_locked(dd_standing_call *const *calls, size_t ncalls, dd_error *err)
{
    dd_group *group = calls[0]->group;
    dd_status status = group_check_usable_locked(group, calls[0]->call.base.work.what, err);
    size_t nchosen = 0;
    while (nchosen < ncalls && status == DD_OK) {
        status = check_startable_locked(calls[nchosen], group, err);
        if (status == DD_OK) {
            calls[nchosen++]->is_chosen = true;
        }
    }
    while (nchosen > 0) {
        calls[--nchosen]->is_chosen = false;
    }
    return status;
}

static void
start_locked(dd_standing_call *call)
{
    dd_group *group = call->group;
    group_call *base = &call->call.base;
    dd_work_renew(&base->work);
    base->record = DD_NO_RECORD;
    base->is_unstamped = true;
    group_post_coll_locked(group, &call->call);
    if (group->cause.code != DD_OK && !dd_work_is_done(&base->work)) {
        group_complete_locked(base, &group->cause); /* one that was started with it has failed */
    }
}

dd_status
dd_standing_start_all(dd_standing_call *const *calls, size_t ncalls, dd_error *err)
{
    if (ncalls == 0) {
        return DD_OK;
    }
    dd_group *group = calls[0]->group;
    dd_status status = dd_engine_check_fork(group->engine, err);
    if (status != DD_OK) {
        return status;
    }
    bool needs_driver = false;
    dd_engine_lock(group->engine);
    status = check_all_locked(calls, ncalls, err);
    for (size_t i = 0; i < ncalls && status == DD_OK; i++) {
        start_locked(calls[i]);
        group_watch_coll_locked(group, &calls[i]->call);
        needs_driver = needs_driver || !calls[i]->call.is_quick;
    }
    needs_driver = needs_driver && !dd_list_is_empty(&group->collectives);
    dd_engine_unlock(group->engine);
    if (needs_driver) {
        dd_group_kick(group);
    }
    return status;
}

dd_status
dd_standing_start(dd_standing_call *call, dd_error *err)
{
    return dd_standing_start_all(&call, 1, err);
}

/* ---- waiting */

/* What ends makes room for the next, which moves at once. */
static bool
are_all_quick_locked(const dd_group *group)
{
    const dd_list *all = &group->collectives;
    bool is_quick = true;
    for (const dd_list *node = all->next; node != all && is_quick; node = node->next) {
        is_quick = ((const coll_call *)DD_CONTAINER_OF(node, group_call, link))->is_quick;
    }
    return is_quick;
}

static void
look_hastily_locked(const dd_standing_call *call)
{
    if (are_all_quick_locked(call->group)) {
        group_look_hastily_locked(call->group, &call->call);
    }
}

/* The lock, if the call is one that takes no time and the lock is there to be had. */
static bool
try_lock(const dd_standing_call *call)
{
    dd_engine *engine = call->group->engine;
    return call->call.is_quick && dd_engine_check_fork(engine, NULL) == DD_OK && dd_engine_try_lock(engine);
}

bool
dd_standing_try_start(dd_standing_call *call, bool is_patient, dd_status *status, dd_error *err)
{
    if (!try_lock(call)) {
        return false;
    }
    dd_group *group = call->group;
    *status = check_all_locked(&call, 1, err);
    if (*status == DD_OK) {
        start_locked(call);
        if (is_patient) {
            look_hastily_locked(call);
        }
        group_watch_coll_locked(group, &call->call);
    }
    dd_engine_unlock(group->engine);
    return true;
}

bool
dd_standing_try_wait(dd_standing_call *call)
{
    const dd_work *work = &call->call.base.work;
    if (!dd_work_is_done(work) && try_lock(call)) {
        look_hastily_locked(call);
        dd_engine_unlock(call->group->engine);
    }
    return dd_work_is_done(work);
}

dd_status
dd_standing_wait(dd_standing_call *call, const dd_wait *wait, dd_error *err)
{
    dd_group *group = call->group;
    dd_work *work = &call->call.base.work;
    if (!dd_work_is_done(work) && dd_engine_check_fork(group->engine, NULL) == DD_OK &&
        dd_engine_try_lock(group->engine)) {
        group_look_a_while_locked(group, &call->call, GROUP_SHORT_LOOKS);
        dd_engine_unlock(group->engine);
    }
    return dd_group_wait(group, work, wait, err);
}
