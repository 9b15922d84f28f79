/* The engine of this process, made with what the environment says when the first group is. */
#ifndef DD_PYTHON_GROUP_ENGINE_H
#define DD_PYTHON_GROUP_ENGINE_H

#include "collective/select.h"
#include "python/base/state.h"

/* Borrowed; NULL with an exception. In a forked child it is another one than in the parent. */
dd_engine *py_engine_get(py_state *state);

/* DLDIST_ALGORITHM; false with an exception. */
bool py_engine_read_selection(py_state *state, dd_selection *selection);

/* _shutdown(): closes all groups with a short deadline; for the end of the interpreter. */
PyObject *py_engine_shut_down(PyObject *module, PyObject *unused);

#endif
