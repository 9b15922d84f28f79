/* Access to the environment variables of dldist, which dldist._base.settings reads. */
#ifndef DD_PYTHON_BASE_SETTINGS_H
#define DD_PYTHON_BASE_SETTINGS_H

#include "python/base/api.h"

/* Return dldist._base.settings.<function>(), a new reference, or NULL with an exception. */
PyObject *py_settings_read(const char *function);

#endif
