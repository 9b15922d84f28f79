#include "python/window/window.h"

#include "core/mem.h"
#include "python/base/error.h"
#include "python/base/gate.h"
#include "python/base/object.h"
#include "python/tensor/dtype.h"
#include "python/tensor/memory.h"

#include <string.h>

bool
py_window_require_open(const py_window *self)
{
    if (self->window == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this window has been closed: create another one");
        return false;
    }
    return true;
}

bool
py_window_check_rank(const py_window *self, int rank, const char *function, const char *name)
{
    return py_params_check_rank(self->state, rank, self->group->size, function, name);
}

/* ---- creation */

static bool
take_group(py_window *self, PyObject *object)
{
    if (!PyObject_TypeCheck(object, self->state->group_type)) {
        py_raise_wrong_type("Window", "group", "a Group", object);
        return false;
    }
    py_group *group = (py_group *)object;
    if (!py_group_require_cpu(group, "Window")) {
        return false;
    }
    Py_INCREF(object);
    self->group = group;
    return py_group_require_usable(group);
}

static bool
window_take_memory(py_window *self, PyObject *object)
{
    py_argument argument = {.state = self->state, .function = "Window", .name = "memory", .value = object};
    if (!py_tensor_init(&self->memory, self->state, object, PY_TENSOR_OUT, argument.function,
                        argument.name) ||
        !py_tensor_require_cpu(&self->memory, self->state, argument.function, argument.name)) {
        return false;
    }
    if (!self->memory.view.is_contiguous) {
        py_argument_raise(&argument, PY_FAULT_VALUE,
                          "has gaps: got a strided array, expected a contiguous one");
        return false;
    }
    if (!py_tensor_pin(&self->memory, self->state)) {
        return false;
    }
    self->data = self->memory.view.data;
    self->nbytes = dd_view_nbytes(&self->memory.view);
    return true;
}

/* Return the region that contains the memory, or NULL. If is_whole is true, extend the window's
 * memory to the whole region. */
static dd_region *
find_region_of_memory(py_window *self, bool is_whole)
{
    dd_group *group = self->group->group;
    dd_region *region = PY_WITHOUT_GIL(dd_group_find_region(group, self->data, self->nbytes));
    if (region != NULL && is_whole) {
        uint8_t *start = dd_region_data(region);
        self->offset = (size_t)(self->data - start);
        self->data = start;
        self->nbytes = dd_region_nbytes(region);
    }
    return region;
}

static bool
window_open(py_window *self, const dd_window_options *options, int64_t timeout_ns)
{
    return PY_GROUP_CALL(self->state, py_group_timeout_or_own(self->group, timeout_ns), dd_window_open,
                         self->group->group, options, &self->window);
}

/* Report to the other ranks, by a failed opening, that this rank has no memory for the window, so
 * that they fail as well. Keeps the current exception. */
static void
window_report_obstacle(py_window *self, int64_t timeout_ns)
{
    bool is_memory = PyErr_ExceptionMatches(PyExc_MemoryError) != 0;
    dd_window_options options = {.obstacle = is_memory ? DD_OUT_OF_MEMORY : DD_INVALID_ARGUMENT};
    PyObject *exception = py_error_take();
    (void)window_open(self, &options, timeout_ns);
    py_error_put(exception);
}

/* The arguments of Window(). */
typedef struct window_arguments {
    PyObject *group;
    PyObject *memory; /* tensor, or NULL if not given */
    bool is_whole;
    PyObject *pad_size; /* size of the signal pad, or NULL if not given */
    PyObject *timeout;  /* timeout, or NULL if not given */
} window_arguments;

static bool
read_pad_size(const py_window *self, PyObject *value, int64_t *pad_nbytes)
{
    if (!py_to_int64(value, pad_nbytes, "Window", "pad_size")) {
        return false;
    }
    if (*pad_nbytes < 0) {
        PyErr_Format(self->state->errors[PY_ERROR_ARGUMENT],
                     "Window(): argument 'pad_size' is negative: got %lld, expected 0 or more",
                     (long long)*pad_nbytes);
    }
    return *pad_nbytes >= 0;
}

static bool
window_take_and_open(py_window *self, const window_arguments *arguments)
{
    int64_t timeout_ns = -1;
    int64_t pad_nbytes = 0;
    if ((arguments->timeout != NULL &&
         !py_to_timeout_ns(self->state, arguments->timeout, &timeout_ns, "Window", "timeout")) ||
        (arguments->pad_size != NULL && !read_pad_size(self, arguments->pad_size, &pad_nbytes)) ||
        (arguments->memory != NULL && !window_take_memory(self, arguments->memory))) {
        window_report_obstacle(self, timeout_ns);
        return false;
    }
    dd_region *region = self->data != NULL ? find_region_of_memory(self, arguments->is_whole)
                                           /* evaluate first: it may change self->data and
                                            * self->nbytes */
                                           : NULL;
    dd_window_options options = {
        .region = region,
        .data = self->data,
        .nbytes = self->nbytes,
        .dtype = self->data != NULL ? self->memory.view.dtype : DD_DTYPE_UINT8,
        .pad_nbytes = (size_t)pad_nbytes,
    };
    return window_open(self, &options, timeout_ns);
}

static PyObject *
window_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    window_arguments arguments = {.memory = NULL};
    const py_params params =
        PY_PARAMS("Window", 1, 2, {"group", PY_OBJECT, &arguments.group},
                  {"memory", PY_OBJECT, &arguments.memory}, {"is_whole", PY_FLAG, &arguments.is_whole},
                  {"pad_size", PY_OBJECT, &arguments.pad_size}, {"timeout", PY_OBJECT, &arguments.timeout});
    py_window *self = (py_window *)py_object_new(type, NULL, NULL);
    if (self == NULL) {
        return NULL;
    }
    if (!py_params_read_tuple(&params, self->state, args, kwargs) || !take_group(self, arguments.group) ||
        !window_take_and_open(self, &arguments)) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

/* The type has no tp_clear; base/object.h explains why. */
static int
window_traverse(PyObject *object, visitproc visit, void *arg)
{
    py_window *self = (py_window *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->module);
    Py_VISIT((PyObject *)self->group);
    return py_tensor_traverse(&self->memory, visit, arg);
}

static void
window_end(py_window *self)
{
    dd_window *window = self->window;
    py_group *group = self->group;
    self->window = NULL;
    self->group = NULL;
    if (window != NULL) {
        Py_BEGIN_ALLOW_THREADS
        /* views may keep the window alive: close it, so that other ranks' operations on it fail */
        dd_window_close(window);
        dd_window_release(window);
        Py_END_ALLOW_THREADS
    }
    py_tensor_fini(&self->memory);
    Py_XDECREF((PyObject *)group);
}

static void
window_dealloc(PyObject *object)
{
    py_window *self = (py_window *)object;
    py_object_begin_dealloc(object);
    window_end(self);
    py_object_end_dealloc(object);
}

static PyObject *
window_close(PyObject *object, PyObject *Py_UNUSED(unused))
{
    py_window *self = (py_window *)object;
    if (!py_window_require_open(self)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    dd_window_close(self->window);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* ---- views */

/* A rank's memory as an array. The view keeps the window alive; a view of this rank's own memory
 * keeps the tensor alive instead. */
typedef struct window_view {
    py_memory memory;  /* the base; must be the first field */
    dd_window *window; /* owned reference to the window, or NULL */
    py_tensor tensor;
} window_view;

/* Destroy a view. DLPack consumers may call this on their own threads, also after Python has shut
 * down, when Python objects can no longer be released. */
static void
destroy_view(py_memory *memory)
{
    window_view *view = (window_view *)memory;
    dd_window_release(view->window);
    py_gate_pass pass;
    if (view->tensor.route != PY_ROUTE_NONE && py_gate_enter(&pass)) {
        py_tensor_fini(&view->tensor);
        py_gate_leave(&pass);
    }
    dd_mem_free(view);
}

/* The memory that a view shows: a rank's data or a rank's signal pad. */
typedef struct shown_memory {
    const char *function;
    const char *label;
    int rank;
    uint8_t *data; /* address of the memory; NULL if this process has not mapped it */
    size_t nbytes;
    bool is_own; /* true for the memory that this rank passed */
} shown_memory;

static PyObject *
make_view(py_window *self, const shown_memory *shown, dd_view *view)
{
    window_view *made = dd_mem_zalloc(sizeof *made);
    if (made == NULL) {
        return PyErr_NoMemory();
    }
    if (!shown->is_own) {
        made->window = dd_window_acquire(self->window);
    } else if (!py_tensor_init(&made->tensor, self->state, self->memory.object, PY_TENSOR_OUT,
                               shown->function, "memory") ||
               !py_tensor_pin(&made->tensor, self->state)) {
        py_tensor_fini(&made->tensor);
        dd_mem_free(made);
        return NULL;
    }
    py_memory_init(&made->memory, view, destroy_view);
    return py_memory_array_make(self->state->shared_array_type, &made->memory);
}

static void
raise_unseen(py_window *self, const shown_memory *shown)
{
    dd_member_info info;
    Py_BEGIN_ALLOW_THREADS
    dd_group_get_member(self->group->group, shown->rank, &info);
    Py_END_ALLOW_THREADS
    PyObject *error = self->state->errors[PY_ERROR_ARGUMENT];
    if (!info.is_same_host) {
        PyErr_Format(error, "%s(): the %s of rank %d is on another host (%s): use put() and get()",
                     shown->function, shown->label, shown->rank, info.host);
    } else {
        PyErr_Format(
            error,
            "%s(): the %s of rank %d is not shared: it was not made by empty() of this group. Use put() "
            "and get()",
            shown->function, shown->label, shown->rank);
    }
}

/* Set the data of `view` to element `offset` of the shown memory, counted in the view's dtype.
 * Returns false with an exception if the view would exceed the memory. */
static bool
offset_view(py_window *self, const shown_memory *shown, int64_t offset, dd_view *view)
{
    size_t nbytes = dd_view_nbytes(view);
    size_t start;
    if (offset < 0 || __builtin_mul_overflow((size_t)offset, dd_dtype_size(view->dtype), &start) ||
        start > shown->nbytes || nbytes > shown->nbytes - start) {
        PyErr_Format(
            self->state->errors[PY_ERROR_ARGUMENT],
            "%s(): out of range: got %zu elements of %s from element %lld on, expected a part of the %zu bytes of the %s of rank %d",
            shown->function, view->count, dd_dtype_name(view->dtype), (long long)offset, shown->nbytes,
            shown->label, shown->rank);
        return false;
    }
    if (shown->data == NULL && nbytes > 0) {
        raise_unseen(self, shown);
        return false;
    }
    view->data = shown->data != NULL ? shown->data + start : NULL;
    return true;
}

/* Create a view of a rank's memory from byte `skipped` on. */
static PyObject *
view_memory(py_window *self, shown_memory *shown, size_t skipped, int64_t offset, dd_view *view)
{
    shown->is_own = shown->rank == self->group->rank && self->data != NULL;
    shown->data = shown->is_own ? self->data : dd_window_data(self->window, shown->rank);
    shown->nbytes = dd_window_nbytes(self->window, shown->rank);
    skipped = skipped < shown->nbytes ? skipped : shown->nbytes;
    shown->data = shown->data != NULL ? shown->data + skipped : NULL;
    shown->nbytes -= skipped;
    return offset_view(self, shown, offset, view) ? make_view(self, shown, view) : NULL;
}

static PyObject *
window_get_buffer(PyObject *object, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    py_window *self = (py_window *)object;
    py_argument sizes = {.state = self->state, .function = "get_buffer", .name = "sizes"};
    shown_memory shown = {.function = "get_buffer", .label = "memory"};
    PyObject *dtype;
    int64_t offset = 0;
    const py_params params =
        PY_PARAMS("get_buffer", 3, 4, {"rank", PY_INT, &shown.rank}, {"sizes", PY_OBJECT, &sizes.value},
                  {"dtype", PY_OBJECT, &dtype}, {"storage_offset", PY_INT64, &offset});
    dd_view view;
    return py_window_require_open(self) && py_params_read(&params, self->state, args, nargs, kwnames) &&
                   py_window_check_rank(self, shown.rank, "get_buffer", "rank") &&
                   py_memory_read_view(&sizes, dtype, &view)
               ? view_memory(self, &shown, 0, offset, &view)
               : NULL;
}

static PyObject *
window_get_remote_tensor(PyObject *object, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    py_window *self = (py_window *)object;
    py_argument sizes = {.state = self->state, .function = "get_remote_tensor", .name = "sizes"};
    shown_memory shown = {.function = "get_remote_tensor", .label = "memory"};
    PyObject *dtype;
    const py_params params = PY_PARAMS("get_remote_tensor", 3, 3, {"peer", PY_INT, &shown.rank},
                                       {"sizes", PY_OBJECT, &sizes.value}, {"dtype", PY_OBJECT, &dtype});
    dd_view view;
    return py_window_require_open(self) && py_params_read(&params, self->state, args, nargs, kwnames) &&
                   py_window_check_rank(self, shown.rank, "get_remote_tensor", "peer") &&
                   py_memory_read_view(&sizes, dtype, &view)
               ? view_memory(self, &shown, self->offset, 0, &view)
               : NULL;
}

/* Set the shape of the view to the rest of the pad from `offset` on; for calls that give no sizes,
 * or an empty list of sizes. Return false with an exception on failure. */
static bool
read_rest_of_pad(const py_window *self, int64_t offset, dd_view *view)
{
    py_argument count = {.state = self->state, .function = "get_signal_pad", .name = "storage_offset"};
    int64_t most = (int64_t)(dd_window_pad_nbytes(self->window) / dd_dtype_size(view->dtype));
    count.value = PyLong_FromLongLong(offset >= 0 && offset < most ? most - offset : 0);
    bool is_read = count.value != NULL && py_memory_read_shape(&count, view);
    Py_XDECREF(count.value);
    return is_read;
}

static bool
is_nothing(PyObject *sizes)
{
    return sizes == NULL || (PyList_Check(sizes) && PyList_Size(sizes) == 0) ||
           (PyTuple_Check(sizes) && PyTuple_Size(sizes) == 0);
}

static PyObject *
window_get_signal_pad(PyObject *object, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    py_window *self = (py_window *)object;
    py_argument sizes = {.state = self->state, .function = "get_signal_pad", .name = "sizes"};
    py_argument dtype = {.state = self->state, .function = "get_signal_pad", .name = "dtype"};
    shown_memory shown = {.function = "get_signal_pad", .label = "pad"};
    dd_view view = {.dtype = DD_DTYPE_UINT32};
    int64_t offset = 0;
    const py_params params =
        PY_PARAMS("get_signal_pad", 1, 4, {"rank", PY_INT, &shown.rank}, {"sizes", PY_OBJECT, &sizes.value},
                  {"dtype", PY_OBJECT, &dtype.value}, {"storage_offset", PY_INT64, &offset});
    if (!py_window_require_open(self) || !py_params_read(&params, self->state, args, nargs, kwnames) ||
        !py_window_check_rank(self, shown.rank, "get_signal_pad", "rank") ||
        (dtype.value != NULL && !py_memory_read_dtype(&dtype, &view.dtype)) ||
        !(is_nothing(sizes.value) ? read_rest_of_pad(self, offset, &view)
                                  : py_memory_read_shape(&sizes, &view))) {
        return NULL;
    }
    shown.data = (uint8_t *)(uintptr_t)dd_window_pad(self->window, shown.rank);
    shown.nbytes = dd_window_pad_nbytes(self->window);
    return offset_view(self, &shown, offset, &view) ? make_view(self, &shown, &view) : NULL;
}

/* ---- attributes */

/* The attribute that a getter returns, stored in its closure. */
typedef enum window_property {
    WINDOW_RANK,
    WINDOW_WORLD_SIZE,
    WINDOW_BUFFER_SIZE,
    WINDOW_OFFSET,
    WINDOW_PAD_SIZE,
    WINDOW_CHANNELS,
    WINDOW_BUFFER_SIZES, /* this and the attributes below have one value for each rank */
    WINDOW_BUFFER_PTRS,
    WINDOW_PAD_PTRS,
} window_property;

static size_t
window_property_value(const py_window *self, window_property question, int rank)
{
    switch (question) {
    case WINDOW_RANK:
        return (size_t)self->group->rank;
    case WINDOW_WORLD_SIZE:
        return (size_t)self->group->size;
    case WINDOW_BUFFER_SIZE:
        return self->nbytes;
    case WINDOW_OFFSET:
        return self->offset;
    case WINDOW_PAD_SIZE:
        return dd_window_pad_nbytes(self->window);
    case WINDOW_CHANNELS:
        return (size_t)dd_window_nchannels(self->window);
    case WINDOW_BUFFER_SIZES:
        return dd_window_nbytes(self->window, rank);
    case WINDOW_BUFFER_PTRS:
        return (uintptr_t)(rank == self->group->rank ? self->data : dd_window_data(self->window, rank));
    case WINDOW_PAD_PTRS:
        return (uintptr_t)dd_window_pad(self->window, rank);
    }
    return 0;
}

static PyObject *
get_property(PyObject *object, void *closure)
{
    py_window *self = (py_window *)object;
    window_property question = (window_property)(uintptr_t)closure;
    if (!py_window_require_open(self)) {
        return NULL;
    }
    if (question < WINDOW_BUFFER_SIZES) {
        return PyLong_FromSize_t(window_property_value(self, question, 0));
    }
    PyObject *list = PyList_New(0);
    for (int rank = 0; list != NULL && rank < self->group->size; rank++) {
        py_list_append(&list, PyLong_FromSize_t(window_property_value(self, question, rank)));
    }
    return list;
}

static PyObject *
get_group(PyObject *object, void *Py_UNUSED(closure))
{
    py_window *self = (py_window *)object;
    return py_window_require_open(self) ? Py_NewRef((PyObject *)self->group) : NULL;
}

static PyObject *
window_repr(PyObject *object)
{
    py_window *self = (py_window *)object;
    PyObject *name = PyType_GetName(Py_TYPE(object));
    if (name == NULL || self->window == NULL) {
        return name;
    }
    PyObject *text =
        PyUnicode_FromFormat("<dldist.%U: rank %d of %d, %zu bytes, %d channels>", name, self->group->rank,
                             self->group->size, self->nbytes, dd_window_nchannels(self->window));
    Py_DECREF(name);
    return text;
}

/* ---- functions of the module */

static bool
is_in_region_of(dd_group *group, const dd_view *view)
{
    bool is_found = PY_WITHOUT_GIL(dd_group_find_region(group, view->data, dd_view_nbytes(view)) != NULL);
    return is_found;
}

/* Return 1 if the memory lies in a region of any CPU group, 0 if not, -1 with an exception. */
static int
is_in_any_region(py_state *state, const dd_view *view)
{
    /* new references, which keep the groups alive */
    PyObject *groups = py_group_list(state, &py_group_kind_cpu);
    if (groups == NULL) {
        return -1;
    }
    bool is_found = false;
    for (Py_ssize_t i = 0; !is_found && i < PyList_Size(groups); i++) {
        is_found = is_in_region_of(py_group_core(PyList_GetItem(groups, i)), view);
    }
    Py_DECREF(groups);
    return is_found ? 1 : 0;
}

PyObject *
py_window_is_shared(PyObject *module, PyObject *object)
{
    py_state *state = PyModule_GetState(module);
    if (Py_TYPE(object) == state->shared_array_type) {
        Py_RETURN_TRUE;
    }
    py_tensor tensor = {0};
    if (!py_tensor_init(&tensor, state, object, PY_TENSOR_IN, "is_symm_mem_tensor", "tensor")) {
        return NULL;
    }
    int is_shared = py_device_is_cpu(tensor.device_type) ? is_in_any_region(state, &tensor.view) : 0;
    py_tensor_fini(&tensor);
    return is_shared >= 0 ? PyBool_FromLong(is_shared) : NULL;
}

/* Return the address of the tensor's 32-bit element `offset`. Return NULL with an exception unless
 * `count` elements exist from `offset` on. */
static _Atomic uint32_t *
words_of(const py_tensor *tensor, const py_argument *argument, int64_t offset, int64_t count)
{
    const dd_view *view = &tensor->view;
    if (!py_tensor_require_cpu(tensor, argument->state, argument->function, argument->name)) {
        return NULL;
    }
    if (dd_dtype_size(view->dtype) != sizeof(uint32_t) || !view->is_contiguous) {
        py_argument_raise(argument, PY_FAULT_VALUE,
                          "has another form: got %s, expected contiguous 32-bit elements",
                          dd_dtype_name(view->dtype));
        return NULL;
    }
    if (offset < 0 || count < 0 || (uint64_t)offset > view->count ||
        (uint64_t)count > view->count - (uint64_t)offset) {
        py_argument_raise(argument, PY_FAULT_VALUE,
                          "is too small: got 'offset' %lld and 'count' %lld, expected a part of %zu elements",
                          (long long)offset, (long long)count, view->count);
        return NULL;
    }
    return (_Atomic uint32_t *)view->data + offset;
}

PyObject *
py_window_write32(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    py_state *state = PyModule_GetState(module);
    py_argument argument = {.state = state, .name = "input"};
    int64_t offset;
    int64_t value;
    int64_t count;
    const py_params params = PY_PARAMS("_write32", 5, 5, {"function", PY_TEXT, &argument.function},
                                       {"tensor", PY_OBJECT, &argument.value}, {"offset", PY_INT64, &offset},
                                       {"value", PY_INT64, &value}, {"count", PY_INT64, &count});
    py_tensor tensor = {0};
    if (!py_params_read(&params, state, args, nargs, kwnames)) {
        return NULL;
    }
    if (value < 0 || value > UINT32_MAX) {
        PyErr_Format(argument.state->errors[PY_ERROR_ARGUMENT],
                     "%s(): argument 'val' is out of range: got %lld, expected 32 bits", argument.function,
                     (long long)value);
        return NULL;
    }
    if (!py_tensor_init(&tensor, state, argument.value, PY_TENSOR_OUT, argument.function, argument.name)) {
        return NULL;
    }
    _Atomic uint32_t *words = words_of(&tensor, &argument, offset, count);
    for (int64_t i = 0; words != NULL && i < count; i++) {
        atomic_store_explicit(&words[i], (uint32_t)value, memory_order_release);
    }
    py_tensor_fini(&tensor);
    return words != NULL ? Py_NewRef(Py_None) : NULL;
}

/* ---- the type */

#define METHOD(name, signature, doc)                                            \
    {                                                                           \
#name, PY_FAST_METHOD(py_window_##name), #name signature "\n--\n\n" doc \
    }

static PyMethodDef window_methods[] = {
    METHOD(
        put, "($self, tensor, rank, offset=0, channel=None, *, timeout=None, async_op=False)",
        "Copies the tensor into the memory of a rank, from element `offset` on, counted in the tensor's dtype.\n\n"
        "With a channel a signal follows the data. When it returns the tensor may be used again."),
    METHOD(
        get, "($self, tensor, rank, offset=0, *, timeout=None, async_op=False)",
        "Copies elements from the memory of a rank into the tensor, from element `offset` on, counted in the tensor's dtype."),
    METHOD(flush, "($self, *, timeout=None)",
           "Returns when everything that was put before has arrived, on all ranks."),
    METHOD(signal, "($self, dst_rank, channel=0, timeout_ms=0)",
           "Sends one more signal to a rank, whether or not it has taken those before."),
    METHOD(put_signal, "($self, dst_rank, channel=0, timeout_ms=0)",
           "Sends a signal to a rank. Waits until the rank has taken the one before on this channel."),
    METHOD(wait_signal, "($self, src_rank, channel=0, timeout_ms=0)",
           "Waits for a signal from a rank and takes it. timeout_ms=0 means the group's timeout."),
    METHOD(take_signal, "($self, src_rank, channel=0)",
           "Takes a signal from a rank if there is one, and returns whether there was."),
    METHOD(barrier, "($self, channel=0, timeout_ms=0)",
           "Waits until all ranks have called it. What they had put before has arrived then."),
    {"get_buffer", PY_FAST_METHOD(window_get_buffer),
     "get_buffer($self, rank, sizes, dtype, storage_offset=0)\n--\n\n"
     "The memory of a rank of this host as a SharedArray, from element `storage_offset` on."},
    {"get_remote_tensor", PY_FAST_METHOD(window_get_remote_tensor),
     "get_remote_tensor($self, peer, sizes, dtype)\n--\n\n"
     "The same from where this rank's own memory begins in what the others see of it."},
    {"get_signal_pad", PY_FAST_METHOD(window_get_signal_pad),
     "get_signal_pad($self, rank, sizes=[], dtype=None, storage_offset=0)\n--\n\n"
     "The signals of a rank of this host as a SharedArray, uint32 and all of them unless told otherwise."},
    {"close", window_close, METH_NOARGS,
     "close($self, /)\n--\n\nCloses the window: no rank can put or signal by it; views stay valid. Not collective."},
    {NULL, NULL, 0, NULL},
};

#define ANSWER(name, question, doc)                                  \
    {                                                                \
        name, get_property, NULL, doc, (void *)(uintptr_t)(question) \
    }

static PyGetSetDef window_getset[] = {
    ANSWER("rank", WINDOW_RANK, "This process's rank."),
    ANSWER("world_size", WINDOW_WORLD_SIZE, "How many ranks there are."),
    {"group", get_group, NULL, "The group.", NULL},
    ANSWER("buffer_size", WINDOW_BUFFER_SIZE, "Bytes that the others see of this rank."),
    ANSWER("buffer_sizes", WINDOW_BUFFER_SIZES, "The same of each rank."),
    ANSWER("buffer_ptrs", WINDOW_BUFFER_PTRS, "Where the memory of each rank is seen here; 0: it is not."),
    ANSWER("offset", WINDOW_OFFSET, "Byte at which the memory that was given begins in what the others see."),
    ANSWER("signal_pad_size", WINDOW_PAD_SIZE, "Bytes of each rank's pad."),
    ANSWER("signal_pad_ptrs", WINDOW_PAD_PTRS, "Where the pad of each rank is seen here; 0: it is not."),
    ANSWER("channels", WINDOW_CHANNELS, "How many channels there are."),
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot window_slots[] = {
    {Py_tp_doc,
     "Window(group, memory=None, *, is_whole=False, pad_size=0, timeout=None)\n--\n\n"
     "Memory of all ranks of a group that the others write, read and signal. All ranks call it.\n\n"
     "Memory that empty() of the group has made the ranks of the host reach directly, all others by messages;\n"
     "with is_whole they see all of the array that it is a part of. The window keeps the memory."},
    {Py_tp_new, (void *)window_new},
    {Py_tp_dealloc, (void *)window_dealloc},
    {Py_tp_traverse, (void *)window_traverse},
    {Py_tp_repr, (void *)window_repr},
    {Py_tp_methods, window_methods},
    {Py_tp_getset, window_getset},
    {Py_tp_members, py_object_members},
    {0, NULL},
};

PyType_Spec py_window_spec = {"dldist._core.Window", sizeof(py_window), 0,
                              PY_BASE_TYPE_FLAGS | Py_TPFLAGS_HAVE_GC, window_slots};
