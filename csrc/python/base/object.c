#include "python/base/object.h"

PyObject *
py_object_alloc(PyTypeObject *type)
{
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    return alloc(type, 0);
}

void
py_object_free(PyObject *object, PyObject *module)
{
    PyTypeObject *type = Py_TYPE(object);
    freefunc free_object = (freefunc)PyType_GetSlot(type, Py_tp_free);
    free_object(object);
    Py_DECREF(type);
    Py_XDECREF(module);
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
