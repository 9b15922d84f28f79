/* The process's engines: usually one, opened with the first group, configured by the
 * environment. */
#ifndef DD_PYTHON_GROUP_ENGINE_H
#define DD_PYTHON_GROUP_ENGINE_H

#include "collective/select.h"
#include "python/base/state.h"

/* Find or open the engine (borrowed) for groups that meet in a store with this secret; if empty,
 * the secret of the environment. A forked child gets engines of its own. */
dd_engine *py_engine_get(py_state *state, dd_bytes secret);

/* Read DLDIST_ALGORITHM. */
bool py_engine_read_selection(py_state *state, dd_selection *selection);

/* _core._shutdown(): close all groups with a short deadline when the interpreter exits. */
PyObject *py_engine_shut_down(PyObject *module, PyObject *unused);

#endif
