/* Conversion of Python arguments to C values, and of C results to Python. Exceptions name the
 * function and the argument. */
#ifndef DD_PYTHON_BASE_CONVERT_H
#define DD_PYTHON_BASE_CONVERT_H

#include "core/bytes.h"
#include "python/base/state.h"
#include "store/store.h"

#include <stdbool.h>
#include <stdint.h>

/* Raise TypeError "<function>(): argument '<name>' must be <wanted>, not <type of value>". */
void py_raise_wrong_type(const char *function, const char *name, const char *wanted, PyObject *value);

/* The bytes of a str (as UTF-8) or of a bytes-like object, which the caller must keep alive until
 * py_bytes_fini. The struct must be zeroed before py_bytes_init; py_bytes_fini may then be called
 * at any time. */
typedef struct py_bytes {
    dd_bytes view;
    PyObject *owner;   /* owned: the encoded str that `view` points into, or NULL */
    Py_buffer *buffer; /* owned: the buffer that `view` points into, or NULL */
} py_bytes;

bool py_bytes_init(py_bytes *bytes, PyObject *value, const char *function, const char *name);
void py_bytes_fini(py_bytes *bytes);

/* Like py_bytes_init, but return 0 without an exception if the value is neither a str nor
 * bytes-like; 1 on success, -1 with an exception on failure. */
int py_bytes_try_init(py_bytes *bytes, PyObject *value);

/* A sequence of str or bytes-like objects. The struct must be zeroed before py_bytes_list_init. */
typedef struct py_bytes_list {
    PyObject *items; /* owned: a private list that keeps the bytes alive */
    dd_bytes *views;
    size_t count;
} py_bytes_list;

bool py_bytes_list_init(py_bytes_list *list, PyObject *value, const char *function, const char *name);
void py_bytes_list_fini(py_bytes_list *list);

/* Return an array of the paths in `list`, a list of str that must outlive the array. The caller
 * frees the array with PyMem_Free. */
const char **py_to_paths(PyObject *list, size_t *count);

bool py_to_int64(PyObject *value, int64_t *number, const char *function, const char *name);

/* Convert a timedelta or a real number of seconds to nanoseconds; infinity becomes DD_NEVER_NS. */
bool py_to_timeout_ns(py_state *state, PyObject *value, int64_t *timeout_ns, const char *function,
                      const char *name);

/* All functions below return a new reference. */
PyObject *py_from_timeout_ns(py_state *state, int64_t timeout_ns);
PyObject *py_from_value(dd_bytes value); /* returns a bytes object */
/* the key as a str; bytes that are not UTF-8 become surrogate escapes */
PyObject *py_from_key(dd_bytes key);
PyObject *py_from_values(const dd_bytes *values, size_t count);
PyObject *py_from_keys(const dd_bytes *keys, size_t count);
PyObject *py_from_blob_list(const dd_blob_list *list, PyObject *(*convert)(dd_bytes bytes));

#endif
