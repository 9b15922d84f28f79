#include "python/tensor/dlpack.h"

#include "python/base/error.h"
#include "python/tensor/device.h"
#include "python/tensor/dtype.h"
#include "python/tensor/type.h"

#include <string.h>

#define DL_MINOR 3 /* the minor version to request from producers */

#define CAPSULE_LEGACY "dltensor"
#define CAPSULE_VERSIONED "dltensor_versioned"

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
read_dlpack_dtype(dd_view *view, const dl_tensor *source, const py_argument *argument)
{
    if (source->nlanes != 1) {
        py_argument_raise(argument, PY_FAULT_DTYPE,
                          "has an unsupported dtype: got vectors of %d lanes, expected 1",
                          (int)source->nlanes);
        return false;
    }
    if (!py_dtype_of_dlpack(source->code, source->nbits, &view->dtype)) {
        py_argument_raise(argument, PY_FAULT_DTYPE,
                          "has an unsupported dtype: got %d bits of type code %d, expected a number",
                          (int)source->nbits, (int)source->code);
        return false;
    }
    return true;
}

/* Set the view's strides in bytes from the source's strides. Return false, without an exception, if
 * they do not fit into 64 bits. */
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
        py_argument_raise(argument, PY_FAULT_VALUE,
                          "has a wrong number of dimensions: got %d, expected 0 to %d", (int)source->ndim,
                          DD_VIEW_MAX_DIMS);
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
    return read_dlpack_dtype(&tensor->view, source, argument) && read_layout(&tensor->view, source, argument);
}

static bool
read_versioned(py_tensor *tensor, py_tensor_use use, const py_argument *argument)
{
    const dl_managed_versioned *managed = tensor->managed;
    if (managed->version.major != PY_DLPACK_MAJOR) {
        py_argument_raise(
            argument, PY_FAULT_VALUE, "has an unsupported version of DLPack: got %u.%u, expected %d.x or 0.x",
            (unsigned)managed->version.major, (unsigned)managed->version.minor, PY_DLPACK_MAJOR);
        return false;
    }
    if (use == PY_TENSOR_OUT && (managed->flags & DL_FLAG_IS_COPIED) != 0) {
        py_argument_raise(argument, PY_FAULT_VALUE, "is an output: got a copy, expected its own memory");
        return false;
    }
    tensor->view.is_readonly = (managed->flags & DL_FLAG_READ_ONLY) != 0;
    return read_tensor(tensor, &managed->tensor, argument);
}

static bool
read_legacy(py_tensor *tensor, const py_tensor_facts *facts, const py_argument *argument)
{
    const dl_managed *managed = tensor->managed;
    /* Set is_readonly for immutable arrays, because DLPack 0 has no read-only flag. */
    tensor->view.is_readonly = facts->library == PY_LIBRARY_JAX || facts->library == PY_LIBRARY_TENSORFLOW;
    return read_tensor(tensor, &managed->tensor, argument);
}

/* Call a method of the tensor. Return 1 if the method returned True; 0 if it did not return True or
 * does not exist; -1 with an exception. */
static int
call_and_read_int(PyObject *object, PyObject *method)
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

/* Reject PyTorch views that represent the conjugate or negative of their memory: PyTorch exports
 * some of them without an error. */
static bool
check_lazy_bits(const py_tensor *tensor, const py_tensor_facts *facts, const py_argument *argument)
{
    const py_state *state = argument->state;
    dd_dtype_kind kind = dd_dtype_kind_of(tensor->view.dtype);
    if (kind != DD_KIND_FLOAT && kind != DD_KIND_COMPLEX) {
        return true;
    }
    int is_neg = facts->has_is_neg ? call_and_read_int(argument->value, state->names[PY_NAME_IS_NEG]) : 0;
    if (is_neg > 0) {
        py_argument_raise(argument, PY_FAULT_VALUE,
                          "is a view that negates what is in memory: pass x.resolve_neg()");
    }
    if (is_neg != 0 || kind != DD_KIND_COMPLEX) {
        return is_neg == 0;
    }
    int is_conj = facts->has_is_conj ? call_and_read_int(argument->value, state->names[PY_NAME_IS_CONJ]) : 0;
    if (is_conj > 0) {
        py_argument_raise(argument, PY_FAULT_VALUE,
                          "is a view that conjugates what is in memory: pass x.resolve_conj()");
    }
    return is_conj == 0;
}

int
py_dlpack_try_exchange(py_tensor *tensor, const py_state *state, py_tensor_use use,
                       const py_argument *argument)
{
    py_tensor_facts facts;
    py_tensor_type_find(state, argument->value, &facts);
    if (facts.api == NULL) {
        return 0;
    }
    dl_managed_versioned *managed = NULL;
    if (facts.api->export_object(argument->value, &managed) != 0 || managed == NULL) {
        if (PyErr_Occurred() != NULL && !PyErr_ExceptionMatches(PyExc_Exception)) {
            return -1;
        }
        /* Ignore the error: __dlpack__, which is tried next, also fails, with a better message. */
        PyErr_Clear();
        return 0;
    }
    tensor->route = PY_ROUTE_EXCHANGE;
    tensor->managed = managed;
    bool is_noted = tensor->scope == NULL || !py_device_is_cuda(managed->tensor.device_type) ||
                    py_device_note_exchange(tensor->scope, &facts, managed->tensor.device_id, argument);
    return is_noted && read_versioned(tensor, use, argument) && check_lazy_bits(tensor, &facts, argument)
               ? 1
               : -1;
}

/* Return true if the exception's text contains `words`. Clears the current exception. */
static bool
has_text(PyObject *exception, const char *words)
{
    PyObject *text = exception != NULL ? PyObject_Str(exception) : NULL;
    const char *utf8 = text != NULL ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    bool is_reported = utf8 != NULL && strstr(utf8, words) != NULL;
    Py_XDECREF(text);
    py_error_forget();
    return is_reported;
}

/* Return true if the current exception may mean that the called function does not accept a keyword.
 * A TypeError with a traceback comes from inside a Python function, and counts only if its text
 * mentions the keyword, because the function may have passed the keywords on. A TypeError from a C
 * function has no traceback; if it has another cause, the second call raises it again. */
static bool
is_refused_call(void)
{
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) {
        return false;
    }
    PyObject *exception = py_error_take();
    PyObject *traceback = PyException_GetTraceback(exception);
    bool is_refused = traceback == NULL || has_text(exception, "keyword argument") ||
                      has_text(exception, py_name_text(PY_NAME_MAX_VERSION));
    Py_XDECREF(traceback);
    py_error_put(exception);
    return is_refused;
}

/* Call __dlpack__, with the stream unless it is NULL. Return a new reference. Producers older than
 * DLPack 1 reject the argument max_version; call their __dlpack__ again without it. */
static PyObject *
call_dlpack(const py_state *state, PyObject *method, PyObject *stream)
{
    PyObject *max_version = state->names[PY_NAME_MAX_VERSION];
    PyObject *keywords = PyDict_New();
    PyObject *none = keywords != NULL ? PyTuple_New(0) : NULL;
    PyObject *version = none != NULL ? Py_BuildValue("(ii)", PY_DLPACK_MAJOR, DL_MINOR) : NULL;
    PyObject *capsule = NULL;
    if (version != NULL && PyDict_SetItem(keywords, max_version, version) == 0 &&
        (stream == NULL || PyDict_SetItem(keywords, state->names[PY_NAME_STREAM], stream) == 0)) {
        capsule = PyObject_Call(method, none, keywords);
        if (capsule == NULL && is_refused_call()) {
            PyErr_Clear();
            capsule =
                PyDict_DelItem(keywords, max_version) == 0 ? PyObject_Call(method, none, keywords) : NULL;
        }
    }
    Py_XDECREF(version);
    Py_XDECREF(none);
    Py_XDECREF(keywords);
    return capsule;
}

/* Take ownership of the capsule's content, which py_dlpack_release releases. Rename the capsule, so
 * that the capsule's destructor does not also release the content. */
static bool
take_from_capsule(py_tensor *tensor, PyObject *capsule, const py_argument *argument)
{
    bool is_versioned = PyCapsule_IsValid(capsule, CAPSULE_VERSIONED) != 0;
    if (!is_versioned && !PyCapsule_IsValid(capsule, CAPSULE_LEGACY)) {
        PyObject *returned = PyObject_Repr(capsule);
        if (returned != NULL) {
            py_argument_raise(argument, PY_FAULT_TYPE,
                              "has a __dlpack__ that does not return a fresh capsule: %U", returned);
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
    py_tensor_facts facts;
    py_tensor_type_find(state, argument->value, &facts);
    if (tensor->scope != NULL && !py_device_choose_stream(tensor->scope, &facts, argument, &stream)) {
        Py_DECREF(method);
        return -1;
    }
    PyObject *capsule = call_dlpack(state, method, stream);
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
                                                    : read_legacy(tensor, &facts, argument);
    return is_read && check_lazy_bits(tensor, &facts, argument) ? 1 : -1;
}
