#include "python/base/state.h"

#include <string.h>

#ifdef Py_TARGET_ABI3T
const char py_module_token[] = PY_MODULE_NAME;
#endif

static bool
is_core_module(PyObject *module)
{
#ifdef Py_TARGET_ABI3T
    void *token;
    return PyModule_GetToken(module, &token) == 0 && token == py_module_token;
#else
    const PyModuleDef *def = PyModule_GetDef(module);
    return def != NULL && strcmp(def->m_name, PY_MODULE_NAME) == 0;
#endif
}

py_state *
py_state_of_type(PyTypeObject *type, PyObject **module)
{
    /* A class derived in Python has no module, and a class derived in another extension has that
     * extension's module. Search the bases for the type that has dldist's module. */
    for (PyTypeObject *t = type; t != NULL; t = (PyTypeObject *)PyType_GetSlot(t, Py_tp_base)) {
        PyObject *found = PyType_GetModule(t);
        if (found != NULL && is_core_module(found)) {
            *module = found;
            return PyModule_GetState(found);
        }
        PyErr_Clear();
    }
    PyErr_SetString(PyExc_TypeError, "not a type of dldist");
    return NULL;
}

PyObject *
py_state_timedelta(py_state *state)
{
    PyObject *timedelta = PY_ONCE_GET(&state->timedelta);
    if (timedelta != NULL) {
        return timedelta;
    }
    PyObject *datetime = PyImport_ImportModule("datetime");
    timedelta = datetime != NULL ? PyObject_GetAttrString(datetime, "timedelta") : NULL;
    Py_XDECREF(datetime);
    return py_once_object(&state->timedelta, timedelta);
}

const char *
py_name_text(py_name name)
{
    static const char *const texts[PY_NAME_COUNT] = {
#define PY_NAME_TEXT(id, text) text,
        PY_NAME_LIST(PY_NAME_TEXT)
#undef PY_NAME_TEXT
    };
    return texts[name];
}
