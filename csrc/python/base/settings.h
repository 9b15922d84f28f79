/* What the environment says: dldist._base.settings reads it, for all of the binding. */
#ifndef DD_PYTHON_BASE_SETTINGS_H
#define DD_PYTHON_BASE_SETTINGS_H

#include "python/base/api.h"

/* Calls dldist._base.settings.<function>(). A new reference; NULL with an exception. */
PyObject *py_settings_read(const char *function);

#endif
