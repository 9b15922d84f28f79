#include "python/py_dlpack.h"

#include "python/py_device.h"
#include "python/py_dtype.h"

#include <string.h>

/* What is asked for, and the only major version whose layout is known. */
#define DL_MAJOR 1
#define DL_MINOR 3

#define CAPSULE_LEGACY "dltensor"
#define CAPSULE_VERSIONED "dltensor_versioned"
#define CAPSULE_EXCHANGE_API "dlpack_exchange_api"

void
py_dlpack_release(py_tensor *tensor)
{
    if (tensor->managed == NULL) {
        return;
    }
    if (tensor->route == PY_ROUTE_DLPACK_LEGACY) {
        dl_managed *managed = tensor->managed;
        if (managed->deleter != NULL) {
            managed->deleter(managed);
        }
    } else {
        dl_managed_versioned *managed = tensor->managed;
        if (managed->deleter != NULL) {
            managed->deleter(managed);
        }
    }
    tensor->managed = NULL;
}

static bool
read_dtype(dd_view *view, const dl_tensor *source, const py_argument *argument)
{
    if (source->nlanes != 1) {
        py_argument_raise(argument, PY_FAULT_DTYPE, "has vectors of %d lanes as elements",
                          (int)source->nlanes);
        return false;
    }
    if (!py_dtype_of_dlpack(source->code, source->nbits, &view->dtype)) {
        py_argument_raise(argument, PY_FAULT_DTYPE,
                          "has elements of %d bits of DLPack's type code %d, which is no dtype of dldist",
                          (int)source->nbits, (int)source->code);
        return false;
    }
    return true;
}

/* False when the strides do not fit into 64 bits. */
static bool
read_strides(dd_view *view, const dl_tensor *source)
{
    if (source->strides == NULL) {
        return py_tensor_set_row_major(view);
    }
    int64_t size = (int64_t)dd_dtype_size(view->dtype);
    for (int i = 0; i < view->ndim; i++) {
        if (__builtin_mul_overflow(source->strides[i], size, &view->strides[i])) {
            return false;
        }
    }
    return true;
}

static bool
read_layout(dd_view *view, const dl_tensor *source, const py_argument *argument)
{
    if (source->ndim < 0 || source->ndim > DD_VIEW_MAX_DIMS) {
        py_argument_raise(argument, PY_FAULT_VALUE, "has %d dimensions; dldist takes up to %d",
                          (int)source->ndim, DD_VIEW_MAX_DIMS);
        return false;
    }
    if (source->ndim > 0 && source->shape == NULL) {
        py_argument_raise(argument, PY_FAULT_VALUE, "has %d dimensions and no shape", (int)source->ndim);
        return false;
    }
    view->ndim = source->ndim;
    for (int i = 0; i < view->ndim; i++) {
        view->shape[i] = source->shape[i];
    }
    if (!read_strides(view, source)) {
        py_argument_raise(argument, PY_FAULT_VALUE, "has strides that do not fit into 64 bits");
        return false;
    }
    view->data = source->data != NULL ? (char *)source->data + source->byte_offset : NULL;
    return true;
}

static bool
read_tensor(py_tensor *tensor, const dl_tensor *source, const py_argument *argument)
{
    tensor->device_type = source->device_type;
    tensor->device_id = source->device_id;
    return read_dtype(&tensor->view, source, argument) && read_layout(&tensor->view, source, argument);
}

static bool
read_versioned(py_tensor *tensor, py_tensor_use use, const py_argument *argument)
{
    const dl_managed_versioned *managed = tensor->managed;
    if (managed->version.major != DL_MAJOR) {
        py_argument_raise(argument, PY_FAULT_VALUE, "is exported by DLPack %u.%u; dldist knows %d.x and 0.x",
                          (unsigned)managed->version.major, (unsigned)managed->version.minor, DL_MAJOR);
        return false;
    }
    if (use == PY_TENSOR_OUT && (managed->flags & DL_FLAG_IS_COPIED) != 0) {
        py_argument_raise(argument, PY_FAULT_VALUE,
                          "is written to, but what it exports by DLPack is a copy of it");
        return false;
    }
    tensor->view.is_readonly = (managed->flags & DL_FLAG_READ_ONLY) != 0;
    return read_tensor(tensor, &managed->tensor, argument);
}

/* DLPack 0 has no word for read-only; these never change an array once it is made. */
static bool
is_immutable(const py_argument *argument)
{
    return py_argument_is_from(argument, "jaxlib") || py_argument_is_from(argument, "jax") ||
           py_argument_is_from(argument, "tensorflow");
}

static bool
read_legacy(py_tensor *tensor, const py_argument *argument)
{
    const dl_managed *managed = tensor->managed;
    tensor->view.is_readonly = is_immutable(argument);
    return read_tensor(tensor, &managed->tensor, argument);
}

/* -1 with an exception, 0 when the method does not exist, else whether it returns True. */
static int
ask(PyObject *object, PyObject *method)
{
    PyObject *answer = PyObject_CallMethodObjArgs(object, method, NULL);
    if (answer == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
            return -1;
        }
        PyErr_Clear();
        return 0;
    }
    int is_true = answer == Py_True;
    Py_DECREF(answer);
    return is_true;
}

/* PyTorch has views that stand for the conjugate or the negative of what is in memory, and does not refuse to
 * export all of them. */
static bool
check_lazy_bits(const py_tensor *tensor, const py_state *state, const py_argument *argument)
{
    dd_dtype_kind kind = dd_dtype_kind_of(tensor->view.dtype);
    if (kind != DD_KIND_FLOAT && kind != DD_KIND_COMPLEX) {
        return true;
    }
    int is_neg = ask(argument->value, state->names[PY_NAME_IS_NEG]);
    if (is_neg > 0) {
        py_argument_raise(argument, PY_FAULT_VALUE,
                          "is a view that negates what is in memory: pass x.resolve_neg()");
    }
    if (is_neg != 0 || kind != DD_KIND_COMPLEX) {
        return is_neg == 0;
    }
    int is_conj = ask(argument->value, state->names[PY_NAME_IS_CONJ]);
    if (is_conj > 0) {
        py_argument_raise(argument, PY_FAULT_VALUE,
                          "is a view that conjugates what is in memory: pass x.resolve_conj()");
    }
    return is_conj == 0;
}

/* NULL when the type has none that is understood. */
static const dl_exchange_api *
find_exchange_api(const py_state *state, const py_argument *argument)
{
    PyObject *type = (PyObject *)Py_TYPE(argument->value);
    PyObject *capsule = PyObject_GetAttr(type, state->names[PY_NAME_EXCHANGE_API]);
    const dl_exchange_api *api = capsule != NULL ? PyCapsule_GetPointer(capsule, CAPSULE_EXCHANGE_API) : NULL;
    Py_XDECREF(capsule);
    if (api == NULL) {
        PyErr_Clear();
    }
    while (api != NULL && api->version.major != DL_MAJOR) {
        api = api->previous;
    }
    return api;
}

int
py_dlpack_try_exchange(py_tensor *tensor, const py_state *state, py_tensor_use use,
                       const py_argument *argument)
{
    const dl_exchange_api *api = find_exchange_api(state, argument);
    if (api == NULL) {
        return 0;
    }
    dl_managed_versioned *managed = NULL;
    if (api->export_object(argument->value, &managed) != 0 || managed == NULL) {
        if (PyErr_Occurred() != NULL && !PyErr_ExceptionMatches(PyExc_Exception)) {
            return -1;
        }
        /* __dlpack__ refuses, too, and says better why. */
        PyErr_Clear();
        return 0;
    }
    tensor->route = PY_ROUTE_EXCHANGE;
    tensor->managed = managed;
    bool is_noted = tensor->scope == NULL || !py_device_is_cuda(managed->tensor.device_type) ||
                    py_device_note_exchange(tensor->scope, api, managed->tensor.device_id, argument);
    return is_noted && read_versioned(tensor, use, argument) && check_lazy_bits(tensor, state, argument) ? 1
                                                                                                         : -1;
}

/* What __dlpack__ returns, told of a stream unless that is NULL; producers from before DLPack 1 do not know max_version. */
static PyObject *
call_dlpack(PyObject *method, PyObject *stream)
{
    PyObject *keywords = PyDict_New();
    PyObject *none = keywords != NULL ? PyTuple_New(0) : NULL;
    PyObject *version = none != NULL ? Py_BuildValue("(ii)", DL_MAJOR, DL_MINOR) : NULL;
    PyObject *capsule = NULL;
    if (version != NULL && PyDict_SetItemString(keywords, "max_version", version) == 0 &&
        (stream == NULL || PyDict_SetItemString(keywords, "stream", stream) == 0)) {
        capsule = PyObject_Call(method, none, keywords);
        if (capsule == NULL && PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Clear();
            capsule = PyDict_DelItemString(keywords, "max_version") == 0
                          ? PyObject_Call(method, none, keywords)
                          : NULL;
        }
    }
    Py_XDECREF(version);
    Py_XDECREF(none);
    Py_XDECREF(keywords);
    return capsule;
}

/* Takes what the capsule holds. From then on its destructor leaves that alone, and it is ours to give back. */
static bool
take_from_capsule(py_tensor *tensor, PyObject *capsule, const py_argument *argument)
{
    bool is_versioned = PyCapsule_IsValid(capsule, CAPSULE_VERSIONED) != 0;
    if (!is_versioned && !PyCapsule_IsValid(capsule, CAPSULE_LEGACY)) {
        PyObject *returned = PyObject_Repr(capsule);
        if (returned != NULL) {
            py_argument_raise(argument, PY_FAULT_TYPE, "has a __dlpack__ that returns no fresh capsule: %U",
                              returned);
            Py_DECREF(returned);
        }
        return false;
    }
    void *managed = PyCapsule_GetPointer(capsule, is_versioned ? CAPSULE_VERSIONED : CAPSULE_LEGACY);
    if (managed == NULL ||
        PyCapsule_SetName(capsule, is_versioned ? "used_" CAPSULE_VERSIONED : "used_" CAPSULE_LEGACY) != 0) {
        return false;
    }
    tensor->managed = managed;
    tensor->route = is_versioned ? PY_ROUTE_DLPACK : PY_ROUTE_DLPACK_LEGACY;
    return true;
}

int
py_dlpack_try_capsule(py_tensor *tensor, const py_state *state, py_tensor_use use,
                      const py_argument *argument)
{
    if (PyType_Check(argument->value)) {
        return 0;
    }
    PyObject *method = PyObject_GetAttr(argument->value, state->names[PY_NAME_DLPACK]);
    if (method == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
            return -1;
        }
        PyErr_Clear();
        return 0;
    }
    PyObject *stream = NULL;
    if (tensor->scope != NULL && !py_device_choose_stream(tensor->scope, argument, &stream)) {
        Py_DECREF(method);
        return -1;
    }
    PyObject *capsule = call_dlpack(method, stream);
    Py_XDECREF(stream);
    Py_DECREF(method);
    if (capsule == NULL) {
        py_argument_raise_from_current(argument, "cannot be exported by DLPack");
        return -1;
    }
    bool is_taken = take_from_capsule(tensor, capsule, argument);
    Py_DECREF(capsule);
    if (!is_taken) {
        return -1;
    }
    bool is_read = tensor->route == PY_ROUTE_DLPACK ? read_versioned(tensor, use, argument)
                                                    : read_legacy(tensor, argument);
    return is_read && check_lazy_bits(tensor, state, argument) ? 1 : -1;
}
