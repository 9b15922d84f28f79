/* NCCL calls that create communicators or wait for other ranks; see task_internal.h. */
#include "nccl/comm/task_internal.h"

#include "core/lock.h"
#include "core/mem.h"

#include <stdio.h>
#include <string.h>

dd_status
dd_nccl_make_unique_id(const dd_nccl_lib *lib, dd_nccl_unique_id *id, dd_error *err)
{
    dd_nccl_last_error before;
    dd_nccl_note_last_error(lib, NULL, &before);
    return dd_nccl_check(lib, &before, lib->api.ncclGetUniqueId(id), err, "ncclGetUniqueId");
}

/* Return a copy of an array; NULL if there is no memory. */
static void *
copy_array(const void *array, size_t size)
{
    void *copy = dd_mem_alloc(size);
    return copy != NULL && size > 0 ? memcpy(copy, array, size) : copy;
}

static dd_status
task_set_numbers(dd_nccl_task *t, const int *numbers, int n, dd_error *err)
{
    size_t size = (size_t)n * sizeof *numbers;
    t->numbers = copy_array(numbers, size);
    t->nnumbers = n;
    return t->numbers != NULL ? DD_OK : dd_error_no_memory(err, size);
}

static dd_status
task_set_ids(dd_nccl_task *t, const dd_nccl_unique_id *ids, int nids, dd_error *err)
{
    size_t size = (size_t)nids * sizeof *ids;
    t->ids = copy_array(ids, size);
    t->nids = nids;
    return t->ids != NULL ? DD_OK : dd_error_no_memory(err, size);
}

/* Set the configuration. If there is none, a child gets its parent's settings, others NCCL's. */
static dd_status
task_set_config(dd_nccl_task *t, const dd_nccl_config *config, dd_error *err)
{
    t->has_config = config != NULL || t->parent == NULL;
    if (config != NULL) {
        t->config = *config;
    } else {
        dd_nccl_config_init(&t->config);
    }
    if (t->parent != NULL && t->config.values.blocking == DD_NCCL_UNDEFINED_INT) {
        t->config.values.blocking = t->parent->is_blocking;
    }
    return dd_nccl_config_pack(&t->config, &t->lib, &t->packed, err);
}

/* Enter the parent, as dd_nccl_task_run requires, and set the task's name. */
static dd_status
task_enter_parent(dd_nccl_task *t, const char *call, const atomic_bool *stop, const dd_wait *wait,
                  dd_error *err)
{
    dd_nccl_comm *parent = t->parent;
    char name[64];
    (void)snprintf(t->label, sizeof t->label, "%s of %s", call,
                   dd_nccl_comm_print(parent, name, sizeof name));
    dd_status status = dd_nccl_comm_enter(parent, stop, wait, &t->parent_handle, err);
    if (status != DD_OK) {
        dd_error_prepend(err, "%s", t->label);
    }
    return status;
}

/* Enter the parent and run the task. Takes ownership of the task. */
static dd_status
task_run_inside(dd_nccl_task *t, const char *call, dd_nccl_comm **comms, const atomic_bool *stop,
                const dd_wait *wait, dd_error *err)
{
    dd_status status = task_enter_parent(t, call, stop, wait, err);
    if (status != DD_OK) {
        dd_nccl_task_release(t);
        return status;
    }
    return dd_nccl_task_run(t, comms, stop, wait, err);
}

/* Create a task on a parent. The parent must be entered before the task is run. */
static dd_status
task_create_on(dd_nccl_task_kind kind, dd_nccl_comm *parent, int ncomms, dd_nccl_task **t, dd_error *err)
{
    dd_nccl_device_ref at = {parent->lib, parent->cuda, parent->device};
    dd_status status = dd_nccl_task_create(kind, &at, ncomms, t, err);
    if (status == DD_OK) {
        (*t)->parent = dd_nccl_comm_acquire(parent);
    }
    return status;
}

static dd_status
check_spec(const dd_nccl_comm_spec *spec, int nids, dd_error *err)
{
    if (spec->size < 1 || spec->rank < 0 || spec->rank >= spec->size) {
        return dd_error_set(err, DD_INVALID_ARGUMENT,
                            "invalid rank of an NCCL communicator: got %d, expected 0 to %d", spec->rank,
                            spec->size - 1);
    }
    if (nids < 1 || nids > spec->size) {
        return dd_error_set(err, DD_INVALID_ARGUMENT,
                            "invalid number of unique ids: got %d, expected 1 to %d (the number of ranks)",
                            nids, spec->size);
    }
    return nids == 1 ? DD_OK : dd_nccl_need(spec->lib, DD_NCCL_CAN_INIT_SCALABLE, err);
}

dd_status
dd_nccl_comm_init(const dd_nccl_comm_spec *spec, const dd_nccl_unique_id *ids, int nids, dd_nccl_comm **comm,
                  const atomic_bool *stop, const dd_wait *wait, dd_error *err)
{
    dd_nccl_device_ref at = {spec->lib, spec->cuda, spec->device};
    dd_nccl_task *t = NULL;
    dd_status status = check_spec(spec, nids, err);
    if (status == DD_OK) {
        status = dd_nccl_task_create(DD_NCCL_TASK_INIT, &at, 1, &t, err);
    }
    if (status == DD_OK) {
        status = task_set_ids(t, ids, nids, err);
    }
    if (status == DD_OK) {
        status = task_set_config(t, spec->config, err);
    }
    if (status != DD_OK) {
        dd_nccl_task_release(t);
        return status;
    }
    t->rank = spec->rank;
    t->size = spec->size;
    (void)snprintf(t->label, sizeof t->label, "%s of rank %d of %d on device %d",
                   nids > 1 ? "ncclCommInitRankScalable" : "ncclCommInitRankConfig", spec->rank, spec->size,
                   spec->device);
    return dd_nccl_task_run(t, comm, stop, wait, err);
}

dd_status
dd_nccl_comm_init_all(const dd_nccl_lib *lib, const dd_cuda *cuda, const int *devices, int n,
                      dd_nccl_comm **comms, const dd_wait *wait, dd_error *err)
{
    if (n < 1) {
        return dd_error_set(err, DD_INVALID_ARGUMENT,
                            "no devices for NCCL communicators: got %d, expected at least 1", n);
    }
    dd_nccl_device_ref at = {lib, cuda, devices[0]};
    dd_nccl_task *t = NULL;
    dd_status status = DD_OK;
    for (int i = 0; i < n && status == DD_OK; i++) {
        status = dd_cuda_check_device(cuda, devices[i], err);
    }
    if (status == DD_OK) {
        status = dd_nccl_task_create(DD_NCCL_TASK_INIT_ALL, &at, n, &t, err);
    }
    if (status == DD_OK) {
        status = task_set_numbers(t, devices, n, err);
    }
    if (status != DD_OK) {
        dd_nccl_task_release(t);
        return status;
    }
    for (int i = 0; i < n; i++) {
        t->comms[i]->device = devices[i];
    }
    (void)snprintf(t->label, sizeof t->label, "ncclCommInitAll of %d devices", n);
    return dd_nccl_task_run(t, comms, NULL, wait, err);
}

/* Set the configuration, enter the parent and run the task. Takes ownership of the task. */
static dd_status
run_child(dd_nccl_task *t, const char *call, const dd_nccl_config *config, dd_nccl_comm **comm,
          const atomic_bool *stop, const dd_wait *wait, dd_error *err)
{
    dd_status status = task_set_config(t, config, err);
    if (status != DD_OK) {
        dd_nccl_task_release(t);
        return status;
    }
    return task_run_inside(t, call, comm, stop, wait, err);
}

dd_status
dd_nccl_comm_split(dd_nccl_comm *parent, int color, int key, const dd_nccl_config *config,
                   dd_nccl_comm **comm, const atomic_bool *stop, const dd_wait *wait, dd_error *err)
{
    dd_nccl_task *t;
    dd_status status = task_create_on(DD_NCCL_TASK_SPLIT, parent, 1, &t, err);
    if (status != DD_OK) {
        return status;
    }
    t->color = color;
    t->key = key;
    status = run_child(t, "ncclCommSplit", config, comm, stop, wait, err);
    if (status == DD_OK) {
        dd_lock_take(&parent->mu);
        parent->nsplits++;
        dd_lock_release(&parent->mu);
    }
    return status;
}

dd_status
dd_nccl_comm_shrink(dd_nccl_comm *parent, const dd_nccl_exclusion *excluded, const dd_nccl_config *config,
                    dd_nccl_comm **comm, const atomic_bool *stop, const dd_wait *wait, dd_error *err)
{
    dd_nccl_task *t = NULL;
    dd_status status = dd_nccl_need(parent->lib, DD_NCCL_CAN_SHRINK, err);
    if (status == DD_OK) {
        status = task_create_on(DD_NCCL_TASK_SHRINK, parent, 1, &t, err);
    }
    if (status == DD_OK) {
        status = task_set_numbers(t, excluded->ranks, excluded->nranks, err);
    }
    if (status != DD_OK) {
        dd_nccl_task_release(t);
        return status;
    }
    t->is_abort = excluded->is_abort;
    return run_child(t, "ncclCommShrink", config, comm, stop, wait, err);
}

/* Run the grow task of a new rank, which has no parent. Takes ownership of the task. */
static dd_status
run_new_rank(dd_nccl_task *t, const dd_nccl_comm_spec *spec, dd_nccl_comm **comm, const atomic_bool *stop,
             const dd_wait *wait, dd_error *err)
{
    dd_status status = task_set_config(t, spec->config, err);
    if (status != DD_OK) {
        dd_nccl_task_release(t);
        return status;
    }
    t->rank = spec->rank;
    t->size = spec->size;
    (void)snprintf(t->label, sizeof t->label, "ncclCommGrow of new rank %d of %d on device %d", spec->rank,
                   spec->size, spec->device);
    return dd_nccl_task_run(t, comm, stop, wait, err);
}

dd_status
dd_nccl_comm_grow(dd_nccl_comm *parent, const dd_nccl_comm_spec *spec, const dd_nccl_unique_id *id,
                  dd_nccl_comm **comm, const atomic_bool *stop, const dd_wait *wait, dd_error *err)
{
    dd_nccl_task *t = NULL;
    dd_nccl_device_ref at = {spec->lib, spec->cuda, spec->device};
    dd_status status = dd_nccl_need(spec->lib, DD_NCCL_CAN_GROW, err);
    if (status == DD_OK && parent == NULL) {
        status = check_spec(spec, 1, err);
    }
    if (status == DD_OK) {
        status = parent != NULL ? task_create_on(DD_NCCL_TASK_GROW, parent, 1, &t, err)
                                : dd_nccl_task_create(DD_NCCL_TASK_GROW, &at, 1, &t, err);
    }
    if (status == DD_OK) {
        status = task_set_ids(t, id, id != NULL, err);
    }
    if (status != DD_OK) {
        dd_nccl_task_release(t);
        return status;
    }
    if (parent == NULL) {
        return run_new_rank(t, spec, comm, stop, wait, err);
    }
    t->rank = -1;
    t->size = spec->size;
    return run_child(t, "ncclCommGrow", spec->config, comm, stop, wait, err);
}

/* Return false if NCCL must not finalise a communicator: it is revoked, or a shrink aborted it. */
static bool
may_finalize(dd_nccl_comm *comm)
{
    dd_lock_take(&comm->mu);
    bool may = !comm->must_abort && !comm->is_revoked;
    dd_lock_release(&comm->mu);
    return may && !dd_cuda_is_shut_down(comm->cuda);
}

dd_status
dd_nccl_comm_finalize(dd_nccl_comm *comm, const atomic_bool *stop, const dd_wait *wait, dd_error *err)
{
    dd_nccl_task *t;
    dd_status status = task_create_on(DD_NCCL_TASK_FINALIZE, comm, 0, &t, err);
    if (status != DD_OK) {
        return status;
    }
    status = task_enter_parent(t, "ncclCommFinalize", stop, wait, err);
    if (status != DD_OK || !may_finalize(comm)) {
        if (status == DD_OK) {
            dd_nccl_comm_leave(comm);
        }
        dd_nccl_task_release(t);
        return status;
    }
    return dd_nccl_task_run(t, NULL, stop, wait, err);
}

/* Run a task that creates no communicator. */
static dd_status
run_on(dd_nccl_comm *comm, dd_nccl_task_kind kind, dd_nccl_capability capability, const dd_wait *wait,
       dd_error *err)
{
    dd_nccl_task *t;
    dd_status status = dd_nccl_need(comm->lib, capability, err);
    if (status == DD_OK) {
        status = task_create_on(kind, comm, 0, &t, err);
    }
    return status == DD_OK ? task_run_inside(t, dd_nccl_capability_name(capability), NULL, NULL, wait, err)
                           : status;
}

dd_status
dd_nccl_comm_suspend(dd_nccl_comm *comm, const dd_wait *wait, dd_error *err)
{
    return run_on(comm, DD_NCCL_TASK_SUSPEND, DD_NCCL_CAN_SUSPEND, wait, err);
}

dd_status
dd_nccl_comm_resume(dd_nccl_comm *comm, const dd_wait *wait, dd_error *err)
{
    return run_on(comm, DD_NCCL_TASK_RESUME, DD_NCCL_CAN_RESUME, wait, err);
}

dd_status
dd_nccl_comm_register_window(dd_nccl_comm *comm, void *data, size_t nbytes, dd_nccl_window *window,
                             const dd_wait *wait, dd_error *err)
{
    dd_nccl_task *t;
    dd_status status = task_create_on(DD_NCCL_TASK_WINDOW, comm, 0, &t, err);
    if (status != DD_OK) {
        return status;
    }
    t->data = data;
    t->nbytes = nbytes;
    atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
    status = task_run_inside(t, "ncclCommWindowRegister", NULL, NULL, wait, err);
    if (status == DD_OK) {
        *window = t->window;
    }
    dd_nccl_task_release(t);
    return status;
}
