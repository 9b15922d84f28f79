/* What the types of communicators without groups have in common. */
#include "python/nccl/team.h"

#include "python/base/error.h"
#include "python/base/object.h"

#include <stdio.h>

bool
py_nccl_team_raise(py_state *state, dd_status status, const dd_error *err)
{
    if (status != DD_OK) {
        py_error_raise_of_group(state, status, err);
    }
    return status == DD_OK;
}

void *
py_nccl_object_create(py_state *state, PyTypeObject *type, PyObject *module)
{
    py_nccl_object *self = (py_nccl_object *)py_object_alloc(type);
    if (self != NULL) {
        self->module = Py_NewRef(module);
        self->state = state;
    }
    return self;
}

PyObject *
py_nccl_object_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args;
    (void)kwargs;
    PyObject *module;
    py_state *state = py_state_of_type(type, &module);
    return state != NULL ? py_nccl_object_create(state, type, module) : NULL;
}

void
py_nccl_object_free(PyObject *object)
{
    py_object_free(object, ((py_nccl_object *)object)->module);
}

void
py_nccl_object_drop_comm(dd_nccl_comm *comm)
{
    Py_BEGIN_ALLOW_THREADS
    dd_nccl_comm_release(comm);
    Py_END_ALLOW_THREADS
}

bool
py_nccl_team_read_device(const py_argument *argument, int *device)
{
    const py_state *state = argument->state;
    if (PyLong_Check(argument->value)) {
        return py_params_int(state, argument->value, device, argument->function, argument->name);
    }
    PyObject *text = PyObject_Str(argument->value);
    const char *utf8 = text != NULL ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    int nread = 0;
    bool is_ok = utf8 != NULL && sscanf(utf8, "cuda:%9d%n", device, &nread) == 1 && utf8[nread] == '\0';
    if (utf8 != NULL && !is_ok) {
        PyErr_Format(state->errors[PY_ERROR_ARGUMENT], "%s(): argument '%s': CUDA devices are needed, not %R",
                     argument->function, argument->name, argument->value);
    }
    Py_XDECREF(text);
    return is_ok;
}
