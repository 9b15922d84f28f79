/* Waiting for the first of several Works. */
#include "core/mem.h"
#include "group/extension.h"
#include "python/base/error.h"
#include "python/group/group.h"
#include "python/work/flight.h"

typedef struct work_set {
    dd_group *group; /* borrowed: a group whose engine completes all of the works */
    dd_work **works; /* owned array; the works are borrowed from the caller's list */
    Py_ssize_t count;
} work_set;

/* Return the flight of an item, or NULL if the core cannot wait for it. */
static const py_flight *
flight_of(const py_state *state, PyObject *item)
{
    const py_work *work = PyObject_TypeCheck(item, state->work_type) ? (py_work *)item : NULL;
    return work != NULL && work->flight != NULL && !work->flight->is_nccl ? work->flight : NULL;
}

/* Fill the set from a tuple of Works. Return false if they are of several engines or of other kinds. */
static bool
collect(const py_state *state, PyObject *items, work_set *set)
{
    for (Py_ssize_t i = 0; i < set->count; i++) {
        const py_flight *flight = flight_of(state, PyTuple_GetItem(items, i));
        if (flight == NULL) {
            return false;
        }
        dd_group *group = py_group_core(flight->group);
        set->group = i == 0 ? group : set->group;
        if (dd_group_engine(group) != dd_group_engine(set->group)) {
            return false;
        }
        set->works[i] = flight->work;
    }
    return set->group != NULL;
}

static bool
is_any_done(void *ctx)
{
    const work_set *set = ctx;
    Py_ssize_t i = 0;
    while (i < set->count && !dd_work_is_done(set->works[i])) {
        i++;
    }
    return i < set->count;
}

static PyObject *
wait_for_any(py_state *state, work_set *set, int64_t timeout_ns)
{
    py_wait wait;
    dd_error err;
    if (is_any_done(set)) {
        return Py_NewRef(Py_True);
    }
    py_wait_init(&wait, state, timeout_ns, true);
    dd_status status = PY_WITHOUT_GIL(dd_group_await(set->group, is_any_done, set, &wait.wait, &err));
    if (status == DD_OP_TIMED_OUT) {
        return Py_NewRef(Py_False);
    }
    return py_group_finish_wait(&wait, status, &err) ? Py_NewRef(Py_True) : NULL;
}

PyObject *
py_work_wait_any(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    py_state *state = PyModule_GetState(module);
    PyObject *items = NULL;
    int64_t timeout_ns = DD_NEVER_NS;
    const py_params params =
        PY_PARAMS("_wait_any", 1, 2, {"works", PY_OBJECT, &items}, {"timeout", PY_TIMEOUT, &timeout_ns});
    if (!py_params_read(&params, state, args, nargs, kwnames)) {
        return NULL;
    }
    work_set set = {.count = PyTuple_Size(items)};
    if (set.count < 0) {
        return NULL;
    }
    set.works = dd_mem_alloc_array((size_t)set.count + 1, sizeof(dd_work *));
    if (set.works == NULL) {
        return PyErr_NoMemory();
    }
    PyObject *result =
        collect(state, items, &set) ? wait_for_any(state, &set, timeout_ns) : Py_NewRef(Py_None);
    dd_mem_free(set.works);
    return result;
}
