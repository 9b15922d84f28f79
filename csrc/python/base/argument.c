#include "python/base/argument.h"

#include "python/base/error.h"

#include <stdarg.h>
#include <string.h>

static PyObject *
exception_of_fault(const py_state *state, py_fault fault)
{
    switch (fault) {
    case PY_FAULT_VALUE:
        return state->errors[PY_ERROR_ARGUMENT];
    case PY_FAULT_DTYPE:
        return state->errors[PY_ERROR_TYPE];
    case PY_FAULT_TYPE:
        break;
    }
    return PyExc_TypeError;
}

/* Return "<function>(): argument '<name>'" with the names of the program's call, as a new
 * reference. Names of the extension remain if the lookup fails. */
static PyObject *
title_of(const char *function, const char *name)
{
    PyObject *module = PyImport_ImportModule("dldist._base.argument_names");
    PyObject *title = module != NULL ? PyObject_CallMethod(module, "title", "ss", name, function) : NULL;
    Py_XDECREF(module);
    if (title == NULL && PyErr_ExceptionMatches(PyExc_Exception)) {
        py_error_forget();
        title = PyUnicode_FromFormat("%s(): argument '%s'", function, name);
    }
    return title;
}

static void
raise_with_title(PyObject *exception, const char *function, const char *name, const char *format,
                 va_list args)
{
    PyObject *text = PyUnicode_FromFormatV(format, args);
    PyObject *title = text != NULL ? title_of(function, name) : NULL;
    if (title != NULL) {
        PyErr_Format(exception, "%U %U", title, text);
    }
    Py_XDECREF(text);
    Py_XDECREF(title);
}

void
py_raise_for_argument(PyObject *exception, const char *function, const char *name, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    raise_with_title(exception, function, name, format, args);
    va_end(args);
}

void
py_argument_raise(const py_argument *argument, py_fault fault, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    raise_with_title(exception_of_fault(argument->state, fault), argument->function, argument->name, format,
                     args);
    va_end(args);
}

/* Return the first line of the exception's text as a new reference. The rest is dropped, because
 * frameworks append stack traces to exception texts. */
static PyObject *
first_line(PyObject *exception)
{
    PyObject *text = PyObject_Str(exception);
    if (text == NULL) {
        return NULL;
    }
    Py_ssize_t len = PyUnicode_GetLength(text);
    Py_ssize_t end = PyUnicode_FindChar(text, '\n', 0, len, 1);
    PyObject *line = end >= -1 ? PyUnicode_Substring(text, 0, end >= 0 ? end : len) : NULL;
    Py_DECREF(text);
    return line;
}

static void
raise_with_line(const py_argument *argument, const char *label, PyObject *exception)
{
    PyObject *line = first_line(exception);
    PyObject *type_name = line != NULL ? PyType_GetName(Py_TYPE(argument->value)) : NULL;
    if (type_name != NULL) {
        py_argument_raise(argument, PY_FAULT_VALUE, "(%U) %s: %U", type_name, label, line);
    }
    Py_XDECREF(type_name);
    Py_XDECREF(line);
}

void
py_argument_raise_from_current(const py_argument *argument, const char *label)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception) || PyErr_ExceptionMatches(PyExc_MemoryError)) {
        return;
    }
    PyObject *cause = py_error_take();
    raise_with_line(argument, label, cause);
    PyObject *raised = py_error_take();
    PyException_SetCause(raised, Py_NewRef(cause));
    PyException_SetContext(raised, cause);
    py_error_put(raised);
}

bool
py_argument_is_from(const py_argument *argument, const char *package)
{
    PyObject *module = PyObject_GetAttrString((PyObject *)Py_TYPE(argument->value), "__module__");
    Py_ssize_t len = 0;
    const char *text =
        module != NULL && PyUnicode_Check(module) ? PyUnicode_AsUTF8AndSize(module, &len) : NULL;
    size_t package_len = strlen(package);
    bool is_from = text != NULL && strncmp(text, package, package_len) == 0 &&
                   (text[package_len] == '\0' || text[package_len] == '.');
    Py_XDECREF(module);
    py_error_forget();
    return is_from;
}
