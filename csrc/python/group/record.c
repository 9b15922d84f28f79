/* Coalescing and batches, written mostly in Python (dldist._backends.recorded_calls). */
#include "python/base/object.h"
#include "python/base/thread_values.h"
#include "python/group/call.h"

static PyObject *
call_python(PyObject *self, const char *function, PyObject *args, PyObject *kwargs)
{
    return py_group_require_open((py_group *)self)
               ? py_object_call_python(self, "dldist._backends.recorded_calls", function, args, kwargs)
               : NULL;
}

PyObject *
py_group_coalesce(PyObject *self, PyObject *args, PyObject *kwargs)
{
    return call_python(self, "coalesce", args, kwargs);
}

PyObject *
py_group_batch_isend_irecv(PyObject *self, PyObject *args, PyObject *kwargs)
{
    return call_python(self, "batch_isend_irecv", args, kwargs);
}

/* Set the recorder of this thread's calls; None removes it. Return the old recorder, or None. */
PyObject *
py_group_set_recorder(PyObject *object, PyObject *recorder)
{
    py_group *self = (py_group *)object;
    return py_thread_value_swap(&self->recorders, recorder != Py_None ? recorder : NULL);
}

int
py_group_call_record(py_group_call *call, PyObject **result)
{
    PyObject *recorder = Py_XNewRef(py_thread_value_get(&call->group->recorders));
    if (recorder == NULL) {
        return PyErr_Occurred() != NULL ? -1 : 0;
    }
    const py_params *params = call->params;
    bool is_async = params->is_async;
    /* async_op is the last parameter, and timeout the one before async_op */
    PyObject *flag = call->values[params->count - 1];
    bool is_ok =
        flag == NULL || py_params_flag(call->group->state, flag, &is_async, params->function, "async_op");
    if (is_ok && call->values[params->count - 2] != NULL) {
        PyErr_Format(call->group->state->errors[PY_ERROR_ARGUMENT],
                     "%s(): a call inside coalesce() has no timeout of its own: give it to coalesce()",
                     params->function);
        is_ok = false;
    }
    if (!is_ok) {
        Py_DECREF(recorder);
        return -1;
    }
    PyObject *values[3];
    for (int i = 0; i < 3; i++) {
        values[i] = call->values[i] != NULL ? call->values[i] : Py_None;
    }
    *result = PyObject_CallMethod(recorder, "record", "sOOOO", call->params->function, values[0], values[1],
                                  values[2], is_async ? Py_True : Py_False);
    Py_DECREF(recorder);
    return *result != NULL ? 1 : -1;
}
