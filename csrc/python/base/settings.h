/* Access to the environment variables of dldist, which dldist._base.settings reads. */
#ifndef DD_PYTHON_BASE_SETTINGS_H
#define DD_PYTHON_BASE_SETTINGS_H

#include "python/base/api.h"

/* Call dldist._base.settings.<function>(). Return its result, a new reference, or NULL. */
PyObject *py_settings_read(const char *function);

#endif
