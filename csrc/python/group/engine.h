/* The engines of this process: one, as a rule. It is made with the first group, as the environment says. */
#ifndef DD_PYTHON_GROUP_ENGINE_H
#define DD_PYTHON_GROUP_ENGINE_H

#include "collective/select.h"
#include "python/base/state.h"

/* The engine for groups that meet in a store with that secret; empty: that of the environment. Borrowed; NULL with an exception. A forked
 * child gets engines of its own. */
dd_engine *py_engine_get(py_state *state, dd_bytes secret);

/* Reads DLDIST_ALGORITHM; false with an exception. */
bool py_engine_read_selection(py_state *state, dd_selection *selection);

/* _core._shutdown(): closes all groups with a short deadline, at the end of the interpreter. */
PyObject *py_engine_shut_down(PyObject *module, PyObject *unused);

#endif
