/* A prepared call: a call of the pool that keeps its form and is started many times. */
#include "group/internal.h"

dd_status
dd_group_prepare_call(dd_group *group, const dd_coll_args *args, const dd_call_options *options,
                      dd_prepared_call **out, dd_error *err)
{
    dd_coll_form *form = NULL;
    group_call *call = NULL;
    dd_status status = group_check_usable(group, dd_coll_name(args->coll), err);
    if (status == DD_OK) {
        status = dd_coll_form_create(group, args, options->record, &form, err);
    }
    if (status != DD_OK) {
        return status;
    }
    dd_call_options without_record = {.timeout_ns = options->timeout_ns,
                                      .form = form,
                                      .stack = options->record != NULL ? options->record->stack : 0};
    status = group_create_collective(group, args, &without_record, &call, err);
    if (status != DD_OK) {
        dd_coll_form_destroy(form);
        return status;
    }
    call->prepared_form = form;
    atomic_store_explicit(&call->work.is_done, true, memory_order_relaxed);
    (void)dd_group_acquire(group);
    *out = call;
    return DD_OK;
}

bool
dd_prepared_destroy(dd_prepared_call *call, void (*on_done)(dd_work *work, void *ctx), void *ctx)
{
    if (call == NULL) {
        return false;
    }
    dd_group *group = call->group;
    bool is_under_way = false;
    if (!dd_work_is_done(&call->work) && dd_engine_check_fork(group->engine, NULL) == DD_OK) {
        dd_engine_lock(group->engine);
        is_under_way = !dd_work_is_done(&call->work);
        if (is_under_way) {
            call->work.on_done = on_done;
            call->work.ctx = ctx;
        }
        dd_engine_unlock(group->engine);
    }
    dd_work_release(&call->work);
    if (is_under_way) {
        dd_engine_kick(group->engine);
    }
    dd_group_release(group);
    return is_under_way;
}

dd_work *
dd_prepared_work(dd_prepared_call *call)
{
    return &call->work;
}

void
dd_prepared_describe(const dd_prepared_call *call, dd_coll_args *args, int64_t *timeout_ns)
{
    *args = call->args;
    *timeout_ns = call->timeout_ns;
}

/* Return true if other ranks may need data from this rank that the start has not published. */
static bool
needs_driver(const group_call *call)
{
    bool has_published_all = call->is_quick && dd_group_carrier(call->group) == NULL;
    return !has_published_all && !dd_work_is_done(&call->work);
}

dd_status
dd_prepared_start(dd_prepared_call *const *calls, size_t ncalls, bool is_patient, const dd_wait *wait,
                  dd_error *err)
{
    dd_status status = ncalls > 0 ? group_start_calls(calls, ncalls, is_patient, wait, err) : DD_OK;
    bool is_needed = false;
    for (size_t i = 0; i < ncalls && status == DD_OK && !is_patient; i++) {
        is_needed = is_needed || needs_driver(calls[i]);
    }
    if (is_needed) {
        dd_engine_kick(calls[0]->group->engine);
    }
    return status;
}

static bool
prepared_try_lock(const dd_prepared_call *call)
{
    dd_engine *engine = call->group->engine;
    return !dd_work_is_done(&call->work) && dd_engine_check_fork(engine, NULL) == DD_OK &&
           dd_engine_try_lock(engine);
}

bool
dd_prepared_poll(dd_prepared_call *call)
{
    if (call->is_quick && prepared_try_lock(call)) {
        group_poll_call_locked(call, true);
        dd_engine_unlock(call->group->engine);
    }
    return dd_work_is_done(&call->work);
}

dd_status
dd_prepared_wait(dd_prepared_call *call, const dd_wait *wait, dd_error *err)
{
    if (!dd_prepared_poll(call)) {
        dd_wait_will_block(wait);
        if (prepared_try_lock(call)) {
            group_poll_call_locked(call, false);
            dd_engine_unlock(call->group->engine);
        }
    }
    return dd_group_wait(call->group, &call->work, wait, err);
}
