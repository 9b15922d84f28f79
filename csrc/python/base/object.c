#include "python/base/object.h"

#include <stddef.h>

int
py_object_read_size(py_state *state)
{
    PyObject *attribute = PyObject_GetAttrString((PyObject *)&PyBaseObject_Type, "__basicsize__");
    Py_ssize_t size = attribute != NULL ? PyLong_AsSsize_t(attribute) : -1;
    Py_XDECREF(attribute);
    if (size == -1) {
        return -1;
    }
    if ((size_t)size > sizeof(py_object_space)) {
        PyErr_Format(
            PyExc_ImportError,
            "import dldist: the head of a Python object has %zd bytes, expected at most %zu: this build is "
            "for older Pythons",
            size, sizeof(py_object_space));
        return -1;
    }
    state->object_size = size;
    return 0;
}

PyObject *
py_object_alloc(PyTypeObject *type)
{
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    return alloc(type, 0);
}

void
py_object_free(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    freefunc free_object = (freefunc)PyType_GetSlot(type, Py_tp_free);
    free_object(object);
    Py_DECREF(type);
}

PyObject *
py_object_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    PyObject *module;
    py_state *state = py_state_of_type(type, &module);
    py_object *self = state != NULL ? (py_object *)py_object_alloc(type) : NULL;
    if (self != NULL) {
        self->module = Py_NewRef(module);
        self->state = state;
    }
    return (PyObject *)self;
}

int
py_object_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((py_object *)object)->module);
    return 0;
}

void
py_object_begin_dealloc(PyObject *object)
{
    if ((PyType_GetFlags(Py_TYPE(object)) & Py_TPFLAGS_HAVE_GC) != 0) {
        PyObject_GC_UnTrack(object);
    }
#ifndef PY_MAY_LACK_GIL /* without a GIL, PyObject_ClearWeakRefs also waits for other threads */
    if (((py_object *)object)->weakrefs == NULL) {
        return;
    }
#endif
    PyObject_ClearWeakRefs(object);
}

void
py_object_end_dealloc(PyObject *object)
{
    PyObject *module = ((py_object *)object)->module;
    py_object_free(object);
    Py_XDECREF(module);
}

void
py_object_dealloc(PyObject *object)
{
    py_object_begin_dealloc(object);
    py_object_end_dealloc(object);
}

PyMemberDef py_object_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(py_object, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

void
py_list_append(PyObject **list, PyObject *item)
{
    if (item == NULL || *list == NULL || PyList_Append(*list, item) < 0) {
        Py_CLEAR(*list);
    }
    Py_XDECREF(item);
}

PyObject *
py_object_call_python(PyObject *self, const char *module, const char *function, PyObject *args,
                      PyObject *kwargs)
{
    PyObject *imported = PyImport_ImportModule(module);
    PyObject *callable = imported != NULL ? PyObject_GetAttrString(imported, function) : NULL;
    PyObject *head = callable != NULL ? PyTuple_Pack(1, self) : NULL;
    PyObject *all = head == NULL ? NULL : args != NULL ? PySequence_Concat(head, args) : Py_NewRef(head);
    PyObject *result = all != NULL ? PyObject_Call(callable, all, kwargs) : NULL;
    Py_XDECREF(all);
    Py_XDECREF(head);
    Py_XDECREF(callable);
    Py_XDECREF(imported);
    return result;
}
