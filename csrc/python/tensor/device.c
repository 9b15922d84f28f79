#include "python/tensor/device.h"

#include "core/mem.h"
#include "python/base/convert.h"
#include "python/base/error.h"
#include "python/base/thread_values.h"
#include "python/tensor/dtype.h"

#include <string.h>

/* DLPack's number for the legacy default stream. */
#define DEFAULT_STREAM ((void *)1)

/* Functions that query the current streams of libraries, and the streams that threads have set. */
struct py_devices {
    PyObject *torch_stream;     /* once: torch._C._cuda_getCurrentRawStream; NULL until found */
    PyObject *cupy_stream;      /* once: cupy.cuda.get_current_stream */
    PyObject *explicit_streams; /* stream that each thread has set (base/thread_values.h) */
};

/* Return the state's py_devices, and create the py_devices if needed. */
static struct py_devices *
devices_of_state(py_state *state)
{
    struct py_devices *devices = PY_ONCE_GET(&state->devices);
    if (devices != NULL) {
        return devices;
    }
    devices = dd_mem_zalloc(sizeof *devices);
    if (devices == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    if (!PY_ONCE_SET(&state->devices, devices)) {
        dd_mem_free(devices); /* another thread has created the py_devices */
    }
    return PY_ONCE_GET(&state->devices);
}

void
py_device_state_destroy(py_state *state)
{
    if (state->devices != NULL) {
        Py_XDECREF(state->devices->torch_stream);
        Py_XDECREF(state->devices->cupy_stream);
        Py_XDECREF(state->devices->explicit_streams);
        dd_mem_free(state->devices);
        state->devices = NULL;
    }
}

void
py_device_scope_init(py_device_scope *scope, py_state *state)
{
    scope->state = state;
    scope->find_stream = NULL;
    scope->ctx = NULL;
    scope->device = PY_NO_DEVICE;
    scope->is_host_taken = false;
    scope->has_host = false;
    scope->is_blocking = false;
    scope->is_stream_ordered = true;
    scope->nstreams = 0;
}

bool
py_device_is_cuda(int device_type)
{
    return device_type == PY_DEVICE_CUDA || device_type == PY_DEVICE_CUDA_MANAGED;
}

/* ---- streams of libraries */

/* Convert an int to a handle, and release `number`, which may be NULL. PyLong_AsVoidPtr may return
 * NULL for a valid handle, so only an exception shows a failure. */
static bool
to_handle(PyObject *number, void **handle)
{
    if (number == NULL) {
        return false;
    }
    *handle = PyLong_AsVoidPtr(number);
    Py_DECREF(number);
    return *handle != NULL || PyErr_Occurred() == NULL;
}

/* Return 1 with the handle if this thread has set a stream, 0 if not, -1 with an exception. */
static int
query_explicit(const py_state *state, void **handle)
{
    const struct py_devices *devices = PY_ONCE_GET(&state->devices);
    PyObject *stream = devices != NULL ? py_thread_value_get(&devices->explicit_streams) : NULL;
    if (stream == NULL) {
        return PyErr_Occurred() != NULL ? -1 : 0;
    }
    return to_handle(Py_NewRef(stream), handle) ? 1 : -1;
}

/* Return a new reference to a function of an imported module, found by a path of attributes; NULL
 * without an exception if it is not found. */
static PyObject *
find_imported(const char *module_name, const char *const *attributes)
{
    PyObject *modules = PySys_GetObject("modules"); /* borrowed dict of the imported modules */
    PyObject *found = modules != NULL ? PyMapping_GetItemString(modules, module_name) : NULL;
    for (size_t i = 0; found != NULL && attributes[i] != NULL; i++) {
        PyObject *next = PyObject_GetAttrString(found, attributes[i]);
        Py_DECREF(found);
        found = next;
    }
    py_error_forget();
    return found;
}

static PyObject *
torch_function(struct py_devices *devices)
{
    static const char *const path[] = {"_C", "_cuda_getCurrentRawStream", NULL};
    PyObject *function = PY_ONCE_GET(&devices->torch_stream);
    return function != NULL ? function : py_once_object(&devices->torch_stream, find_imported("torch", path));
}

static PyObject *
cupy_function(struct py_devices *devices)
{
    static const char *const path[] = {"cuda", "get_current_stream", NULL};
    PyObject *function = PY_ONCE_GET(&devices->cupy_stream);
    return function != NULL ? function : py_once_object(&devices->cupy_stream, find_imported("cupy", path));
}

/* Return function(device), a new reference. `function` may be NULL with an exception set. */
static PyObject *
query_function(PyObject *function, int device)
{
    PyObject *index = function != NULL ? PyLong_FromLong(device) : NULL;
    PyObject *stream = index != NULL ? PyObject_CallFunctionObjArgs(function, index, NULL) : NULL;
    Py_XDECREF(index);
    return stream;
}

static bool
query_torch(py_state *state, int device, void **handle)
{
    return to_handle(query_function(torch_function(state->devices), device), handle);
}

static bool
query_cupy(py_state *state, int device, void **handle)
{
    PyObject *stream = query_function(cupy_function(state->devices), device);
    PyObject *pointer = stream != NULL ? PyObject_GetAttrString(stream, "ptr") : NULL;
    Py_XDECREF(stream);
    return to_handle(pointer, handle);
}

static bool
query_exchange(dl_current_stream query, int device, void **handle)
{
    *handle = NULL;
    if (query(PY_DEVICE_CUDA, device, handle) == 0) {
        return true;
    }
    if (PyErr_Occurred() == NULL) {
        PyErr_Format(PyExc_RuntimeError,
                     "the library of a tensor reports no stream on cuda:%d; use nccl.stream()", device);
    }
    return false;
}

static bool
stream_query(const py_stream *stream, py_state *state, int device, void **handle)
{
    int is_explicit = query_explicit(state, handle);
    if (is_explicit != 0) {
        return is_explicit > 0;
    }
    switch (stream->kind) {
    /* this thread has set no stream now: use the stream that it had set at the call */
    case PY_STREAM_EXPLICIT:
        *handle = stream->handle;
        return true;
    case PY_STREAM_DEFAULT:
        *handle = NULL;
        return true;
    case PY_STREAM_EXCHANGE:
        return query_exchange(stream->query, device, handle);
    case PY_STREAM_TORCH:
        return query_torch(state, device, handle);
    case PY_STREAM_CUPY:
        return query_cupy(state, device, handle);
    }
    return false;
}

bool
py_device_query_streams(const py_device_scope *scope, void *handles[PY_MAX_STREAMS])
{
    for (size_t i = 0; i < scope->nstreams; i++) {
        if (!stream_query(&scope->streams[i], scope->state, scope->device, &handles[i])) {
            return false;
        }
    }
    return true;
}

static bool
is_same_stream(const py_stream *a, const py_stream *b)
{
    return a->kind == b->kind && a->query == b->query && a->handle == b->handle;
}

/* Query the handle of the stream, and add the stream to the scope unless the scope has it. If this
 * thread has set a stream, use that stream instead. */
static bool
note_stream(py_device_scope *scope, py_stream stream, int device, const py_argument *argument)
{
    int is_explicit = query_explicit(scope->state, &stream.handle);
    if (is_explicit > 0) {
        stream = (py_stream){.kind = PY_STREAM_EXPLICIT, .handle = stream.handle};
        /* not stream-ordered, because the library's own stream does not wait for the operation */
        scope->is_stream_ordered = false;
    } else if (is_explicit < 0 || !stream_query(&stream, scope->state, device, &stream.handle)) {
        return false;
    }
    for (size_t i = 0; i < scope->nstreams; i++) {
        if (is_same_stream(&scope->streams[i], &stream)) {
            return true;
        }
    }
    if (scope->nstreams == PY_MAX_STREAMS) {
        py_argument_raise(argument, PY_FAULT_VALUE,
                          "is on a stream of its own, and so are %d others: pass tensors of fewer libraries",
                          PY_MAX_STREAMS);
        return false;
    }
    scope->streams[scope->nstreams++] = stream;
    return true;
}

bool
py_device_note_exchange(py_device_scope *scope, const py_tensor_facts *facts, int device,
                        const py_argument *argument)
{
    if (devices_of_state(scope->state) == NULL) {
        return false;
    }
    if (facts->library != PY_LIBRARY_TORCH) {
        scope->is_stream_ordered = false;
    }
    py_stream stream = {.kind = PY_STREAM_EXCHANGE, .query = facts->api->current_stream};
    return note_stream(scope, stream, device, argument);
}

bool
py_device_note_own(py_device_scope *scope, int device, const py_argument *argument)
{
    if (devices_of_state(scope->state) == NULL) {
        return false;
    }
    scope->is_stream_ordered = false;
    py_stream stream = {.kind = PY_STREAM_DEFAULT};
    return note_stream(scope, stream, device, argument);
}

/* ---- tensors from capsules */

/* Read item i of a pair as an int. The item may be a Python enum that is not an int. */
static bool
read_number(PyObject *pair, Py_ssize_t i, int *number)
{
    PyObject *item = PyTuple_GetItem(pair, i);
    if (PyLong_Check(item)) {
        *number = (int)PyLong_AsLong(item);
    } else {
        PyObject *converted = PyNumber_Long(item);
        *number = converted != NULL ? (int)PyLong_AsLong(converted) : -1;
        Py_XDECREF(converted);
    }
    return PyErr_Occurred() == NULL;
}

/* Return 1 and the device if the memory is on a CUDA device, 0 if not, -1 with an exception. */
static int
query_device(const py_argument *argument, int *device)
{
    PyObject *answer =
        PyObject_CallMethodObjArgs(argument->value, argument->state->names[PY_NAME_DLPACK_DEVICE], NULL);
    if (answer == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
            return -1;
        }
        PyErr_Clear(); /* only NumPy and similar libraries for host memory lack __dlpack_device__ */
        return 0;
    }
    PyObject *pair = PySequence_Tuple(answer); /* if `answer` is a tuple, no copy is made */
    Py_DECREF(answer);
    if (pair == NULL || PyTuple_Size(pair) != 2) {
        Py_XDECREF(pair);
        py_error_forget();
        return 0;
    }
    int type;
    bool is_ok = read_number(pair, 0, &type) && read_number(pair, 1, device);
    Py_DECREF(pair);
    return is_ok ? py_device_is_cuda(type) : -1;
}

/* Like query_device, but exceptions name the argument. */
static int
find_device(const py_argument *argument, int *device)
{
    int is_cuda = query_device(argument, device);
    if (is_cuda < 0) {
        py_argument_raise_from_current(argument, "does not say its device");
    }
    return is_cuda;
}

int
py_device_has(const py_argument *argument)
{
    if ((PyObject *)Py_TYPE(argument->value) == PY_ONCE_GET(&argument->state->ndarray_type)) {
        return 0;
    }
    py_tensor_facts facts;
    py_tensor_type_find(argument->state, argument->value, &facts);
    if (!facts.has_device && PyObject_CheckBuffer(argument->value)) {
        return 0;
    }
    dl_tensor view;
    if (facts.api != NULL && facts.api->view_object != NULL) {
        if (facts.api->view_object(argument->value, &view) == 0) {
            return py_device_is_cuda(view.device_type);
        }
        py_error_forget(); /* ignore the error: __dlpack_device__ gives a better message */
    }
    int device;
    return find_device(argument, &device);
}

/* Find the kind of stream that the tensor's library uses. Return false if the stream is unknown. */
static bool
find_stream_kind(struct py_devices *devices, const py_tensor_facts *facts, py_stream_kind *kind)
{
    if (facts->library == PY_LIBRARY_TORCH && torch_function(devices) != NULL) {
        *kind = PY_STREAM_TORCH;
        return true;
    }
    if (facts->library == PY_LIBRARY_CUPY && cupy_function(devices) != NULL) {
        *kind = PY_STREAM_CUPY;
        return true;
    }
    return false;
}

bool
py_device_choose_stream(py_device_scope *scope, const py_tensor_facts *facts, const py_argument *argument,
                        PyObject **stream)
{
    int device;
    *stream = NULL;
    int is_cuda = find_device(argument, &device);
    if (is_cuda <= 0) {
        return is_cuda == 0;
    }
    struct py_devices *devices = devices_of_state(scope->state);
    void *handle;
    int is_explicit = devices != NULL ? query_explicit(scope->state, &handle) : -1;
    if (is_explicit < 0) {
        return false;
    }
    py_stream known = {.kind = PY_STREAM_EXPLICIT};
    bool is_known = find_stream_kind(devices, facts, &known.kind);
    scope->is_stream_ordered = scope->is_stream_ordered && is_known;
    if (is_known || is_explicit > 0) {
        *stream = note_stream(scope, known, device, argument) ? PyLong_FromLong(-1) : NULL;
        return *stream != NULL;
    }
    scope->is_blocking = true;
    handle = DEFAULT_STREAM;
    if (scope->find_stream != NULL && !scope->find_stream(scope->ctx, device, &handle)) {
        return false;
    }
    *stream = PyLong_FromVoidPtr(handle);
    return *stream != NULL;
}

/* ---- the device of a tensor */

static bool
take_host(py_device_scope *scope, const py_argument *argument)
{
    if (!scope->is_host_taken) {
        py_argument_raise(argument, PY_FAULT_VALUE,
                          "is on a device without a backend: got cpu, expected cuda");
        return false;
    }
    scope->has_host = true;
    return true;
}

bool
py_device_take(py_device_scope *scope, const py_tensor *tensor, const py_argument *argument)
{
    if (py_device_is_cpu(tensor->device_type)) {
        return take_host(scope, argument);
    }
    if (!py_device_is_cuda(tensor->device_type)) {
        const char *name = py_device_name(tensor->device_type);
        py_argument_raise(argument, PY_FAULT_VALUE,
                          "is on a device without a backend: got %s:%d, expected cuda",
                          name != NULL ? name : "another device", tensor->device_id);
        return false;
    }
    if (scope->device != PY_NO_DEVICE && scope->device != tensor->device_id) {
        py_argument_raise(argument, PY_FAULT_VALUE,
                          "is on another device: got cuda:%d, expected cuda:%d, as the tensors before it",
                          tensor->device_id, scope->device);
        return false;
    }
    scope->device = tensor->device_id;
    return true;
}

/* ---- streams set by callers */

/* Return a new reference to the handle in (version, handle), the result of __cuda_stream__(). */
static PyObject *
call_protocol(PyObject *object)
{
    PyObject *method = PyObject_GetAttrString(object, "__cuda_stream__");
    if (method == NULL) {
        return NULL;
    }
    PyObject *answer = PyObject_CallNoArgs(method);
    Py_DECREF(method);
    PyObject *handle = answer != NULL ? PySequence_GetItem(answer, 1) : NULL;
    Py_XDECREF(answer);
    return handle;
}

static PyObject *
find_handle(PyObject *object)
{
    /* the attributes with the handle of a torch stream and of a CuPy stream */
    static const char *const attributes[] = {"cuda_stream", "ptr"};
    PyObject *handle = PyLong_Check(object) ? Py_NewRef(object) : call_protocol(object);
    for (size_t i = 0; handle == NULL && i < sizeof attributes / sizeof attributes[0]; i++) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
            return NULL;
        }
        PyErr_Clear();
        handle = PyObject_GetAttrString(object, attributes[i]);
    }
    return handle;
}

bool
py_device_read_stream(const py_argument *argument, void **stream)
{
    PyObject *handle = find_handle(argument->value);
    if (handle != NULL && PyLong_Check(handle)) {
        return to_handle(handle, stream);
    }
    Py_XDECREF(handle);
    if (PyErr_Occurred() == NULL || PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        py_raise_wrong_type(
            argument->function, argument->name,
            "a CUDA stream (an address, or an object with __cuda_stream__, cuda_stream or ptr)",
            argument->value);
    }
    return false;
}

PyObject *
py_device_swap_stream(PyObject *module, PyObject *stream)
{
    py_state *state = PyModule_GetState(module);
    struct py_devices *devices = devices_of_state(state);
    if (devices == NULL) {
        return NULL;
    }
    void *handle = NULL;
    py_argument argument = {.state = state, .function = "stream", .name = "stream", .value = stream};
    if (stream != Py_None && !py_device_read_stream(&argument, &handle)) {
        return NULL;
    }
    PyObject *number = stream != Py_None ? PyLong_FromVoidPtr(handle) : NULL;
    if (stream != Py_None && number == NULL) {
        return NULL;
    }
    PyObject *before = py_thread_value_swap(&devices->explicit_streams, number);
    Py_XDECREF(number);
    return before;
}
