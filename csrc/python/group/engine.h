/* The engines of the process, which move the data of its groups. Usually there is one engine,
 * opened with the first group and configured by the environment. */
#ifndef DD_PYTHON_GROUP_ENGINE_H
#define DD_PYTHON_GROUP_ENGINE_H

#include "collective/select.h"
#include "python/base/state.h"

/* Return the engine (borrowed) for groups whose store has this secret, and open it if needed. An
 * empty secret stands for the environment's secret. A forked child gets engines of its own. */
dd_engine *py_engine_get(py_state *state, dd_bytes secret);

/* Read DLDIST_ALGORITHM, the environment variable that selects algorithms. */
bool py_engine_read_selection(py_state *state, dd_selection *selection);

/* _core._process_endpoint(store) and _core._is_other_running(endpoint, own_endpoint), which find out if two
 * processes were started as one rank. */
PyObject *py_engine_make_endpoint(PyObject *module, PyObject *store);
PyObject *py_engine_is_other_running(PyObject *module, PyObject *args);

/* _core._shutdown(): close all groups with a short deadline when the interpreter exits. */
PyObject *py_engine_shut_down(PyObject *module, PyObject *unused);

#endif
