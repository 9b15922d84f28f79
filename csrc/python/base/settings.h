/* Access to environment variables, which dldist._base.settings reads for the whole binding. */
#ifndef DD_PYTHON_BASE_SETTINGS_H
#define DD_PYTHON_BASE_SETTINGS_H

#include "python/base/api.h"

/* Call dldist._base.settings.<function>(). Return a new reference, or NULL with an exception. */
PyObject *py_settings_read(const char *function);

#endif
