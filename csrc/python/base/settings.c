#include "python/base/settings.h"

PyObject *
py_settings_read(const char *function)
{
    PyObject *settings = PyImport_ImportModule("dldist._base.settings");
    PyObject *values = settings != NULL ? PyObject_CallMethod(settings, function, NULL) : NULL;
    Py_XDECREF(settings);
    return values;
}
