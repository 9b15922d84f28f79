/* Converts arguments from Python and results to Python. A function that fails sets an exception that names the
 * function and the argument. */
#ifndef DD_PYTHON_BASE_CONVERT_H
#define DD_PYTHON_BASE_CONVERT_H

#include "core/bytes.h"
#include "python/base/state.h"
#include "store/store.h"

#include <stdbool.h>
#include <stdint.h>

/* Raises TypeError "<function>(): argument '<name>' must be <wanted>, not <type of value>". */
void py_raise_wrong_type(const char *function, const char *name, const char *wanted, PyObject *value);

/* The bytes of a str (as UTF-8) or of a bytes-like object. The caller keeps the object alive until fini. Start
 * zeroed: fini may then be called at any time. */
typedef struct py_bytes {
    dd_bytes view;
    PyObject *owner;   /* a bytes object that had to be made, or NULL */
    Py_buffer *buffer; /* a buffer that is held, or NULL */
} py_bytes;

bool py_bytes_init(py_bytes *bytes, PyObject *value, const char *function, const char *name);
void py_bytes_fini(py_bytes *bytes);

/* Like py_bytes_init, but raises nothing when the value is neither a str nor bytes-like: returns 0 then, 1 when
 * done, -1 with an exception. */
int py_bytes_try_init(py_bytes *bytes, PyObject *value);

/* A sequence of str or bytes-like objects. Start zeroed. */
typedef struct py_bytes_list {
    PyObject *items; /* our own list, which keeps the bytes alive */
    dd_bytes *views;
    size_t count;
} py_bytes_list;

bool py_bytes_list_init(py_bytes_list *list, PyObject *value, const char *function, const char *name);
void py_bytes_list_fini(py_bytes_list *list);

/* Paths from a list of str, which must stay alive. The caller frees the result with PyMem_Free; NULL with an
 * exception. */
const char **py_to_paths(PyObject *list, size_t *count);

bool py_to_int64(PyObject *value, int64_t *number, const char *function, const char *name);

/* A timedelta or a real number of seconds; infinity means to wait for ever. */
bool py_to_timeout_ns(py_state *state, PyObject *value, int64_t *timeout_ns, const char *function,
                      const char *name);

/* These return new references, or NULL with an exception. */
PyObject *py_from_timeout_ns(py_state *state, int64_t timeout_ns);
PyObject *py_from_value(dd_bytes value); /* bytes */
PyObject *py_from_key(dd_bytes key);     /* str; bytes that are not UTF-8 are kept by surrogateescape */
PyObject *py_from_values(const dd_bytes *values, size_t count);
PyObject *py_from_keys(const dd_bytes *keys, size_t count);
PyObject *py_from_blob_list(const dd_blob_list *list, PyObject *(*convert)(dd_bytes bytes));

#endif
