/* The digest of a tensor's bytes. */
#include "kernels/digest.h"
#include "python/base/params.h"
#include "python/tensor/tensor.h"

static bool
check_bytes(const py_state *state, const py_tensor *data, const py_tensor *keys)
{
    if (!py_tensor_require_cpu(data, state, "_digest", "data") ||
        !py_tensor_require_cpu(keys, state, "_digest", "keys")) {
        return false;
    }
    size_t needed =
        (dd_view_nbytes(&data->view) + DD_DIGEST_NBYTES - 1) / DD_DIGEST_NBYTES * DD_DIGEST_NBYTES;
    if (!data->view.is_contiguous || !keys->view.is_contiguous || dd_view_nbytes(&keys->view) < needed) {
        PyErr_SetString(state->errors[PY_ERROR_ARGUMENT],
                        "_digest(): 'data' and 'keys' must be contiguous, and 'keys' as long as 'data'");
        return false;
    }
    return true;
}

static PyObject *
make_digest(const py_tensor *data, const py_tensor *keys)
{
    uint8_t digest[DD_DIGEST_NBYTES];
    Py_BEGIN_ALLOW_THREADS
    dd_digest(data->view.data, dd_view_nbytes(&data->view), keys->view.data, digest);
    Py_END_ALLOW_THREADS
    return PyBytes_FromStringAndSize((const char *)digest, DD_DIGEST_NBYTES);
}

PyObject *
py_tensor_digest(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *data_object;
    PyObject *keys_object;
    const py_params params =
        PY_PARAMS("_digest", 2, 2, {"data", PY_OBJECT, &data_object}, {"keys", PY_OBJECT, &keys_object});
    py_state *state = PyModule_GetState(module);
    py_tensor data = {0};
    py_tensor keys = {0};
    bool is_ready = py_params_read(&params, state, args, nargs, kwnames) &&
                    py_tensor_init(&data, state, data_object, PY_TENSOR_IN, "_digest", "data") &&
                    py_tensor_init(&keys, state, keys_object, PY_TENSOR_IN, "_digest", "keys") &&
                    check_bytes(state, &data, &keys);
    PyObject *digest = is_ready ? make_digest(&data, &keys) : NULL;
    py_tensor_fini(&keys);
    py_tensor_fini(&data);
    return digest;
}
