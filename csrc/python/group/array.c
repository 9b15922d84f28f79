/* dldist.SharedArray: memory from Group.empty or Group._adopt, as a buffer and through DLPack. */
#include "core/mem.h"
#include "python/base/error.h"
#include "python/base/object.h"
#include "python/group/group.h"
#include "python/tensor/dtype.h"
#include "python/tensor/element.h"
#include "python/tensor/memory.h"

typedef struct shared_memory {
    py_memory memory;  /* the base; must be the first field */
    dd_region *region; /* owned reference to the group's region */
} shared_memory;

static void
shared_memory_destroy(py_memory *memory)
{
    shared_memory *shared = (shared_memory *)memory;
    dd_region_release(shared->region);
    dd_mem_free(shared);
}

/* Memory that the caller of Group._adopt has mapped. */
typedef struct foreign_memory {
    void *at;
    int fd;
} foreign_memory;

/* Create a region of the group, from the foreign memory if `foreign` is not NULL. */
static py_memory *
shared_memory_make(py_group *group, const dd_view *view, const foreign_memory *foreign)
{
    shared_memory *shared = dd_mem_alloc(sizeof *shared);
    if (shared == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    size_t nbytes = dd_view_nbytes(view);
    dd_error err;
    dd_status status =
        PY_WITHOUT_GIL(foreign == NULL ? dd_group_alloc(group->group, nbytes, &shared->region, &err)
                                       : dd_group_adopt(group->group, foreign->at, nbytes, foreign->fd,
                                                        &shared->region, &err));
    if (!py_error_check_of_group(group->state, status, &err)) {
        dd_mem_free(shared);
        return NULL;
    }
    dd_view filled = *view;
    filled.data = dd_region_data(shared->region);
    py_memory_init(&shared->memory, &filled, shared_memory_destroy);
    return &shared->memory;
}

static PyObject *
make_array(py_group *group, const dd_view *view, const foreign_memory *foreign)
{
    py_memory *memory = shared_memory_make(group, view, foreign);
    return memory != NULL ? py_memory_array_make(group->state->shared_array_type, memory) : NULL;
}

PyObject *
py_group_empty(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    py_group *group = (py_group *)self;
    py_argument shape = {.state = group->state, .function = "empty", .name = "shape"};
    PyObject *dtype = NULL;
    const py_params params =
        PY_PARAMS("empty", 1, 2, {"shape", PY_OBJECT, &shape.value}, {"dtype", PY_OBJECT, &dtype});
    dd_view view;
    if (!py_group_require_cpu(group, "empty") ||
        !py_params_read(&params, group->state, args, nargs, kwnames) ||
        !py_memory_read_view(&shape, dtype, &view)) {
        return NULL;
    }
    return make_array(group, &view, NULL);
}

PyObject *
py_group_adopt(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    py_group *group = (py_group *)self;
    py_argument nbytes = {.state = group->state, .function = "_adopt", .name = "nbytes"};
    dd_view view = {.dtype = DD_DTYPE_UINT8};
    int64_t address;
    foreign_memory foreign;
    const py_params params = PY_PARAMS("_adopt", 3, 3, {"address", PY_INT64, &address},
                                       {"fd", PY_INT, &foreign.fd}, {"nbytes", PY_OBJECT, &nbytes.value});
    if (!py_group_require_cpu(group, "_adopt") ||
        !py_params_read(&params, group->state, args, nargs, kwnames) ||
        !py_memory_read_shape(&nbytes, &view)) {
        return NULL;
    }
    foreign.at = (void *)(intptr_t)address;
    return make_array(group, &view, &foreign);
}

/* Memory that is a part of another array's memory. */
typedef struct memory_part {
    py_memory memory; /* the base; must be the first field */
    py_memory *whole; /* counted reference to the memory that contains this part */
} memory_part;

static void
destroy_part(py_memory *memory)
{
    memory_part *part = (memory_part *)memory;
    py_memory_release(part->whole);
    dd_mem_free(part);
}

/* Create an array with the shape of `view` that begins at element `start` of `array`. The data of
 * `view` is not used; the caller must have checked that the elements exist. */
static PyObject *
memory_part_make(const py_memory_array *array, size_t start, dd_view view)
{
    py_memory *whole = array->memory;
    memory_part *part = dd_mem_alloc(sizeof *part);
    if (part == NULL) {
        return PyErr_NoMemory();
    }
    view.data = (char *)whole->view.data + start * dd_dtype_size(whole->view.dtype);
    /* the part's strides cannot overflow, because those of the whole memory do not */
    (void)py_tensor_set_row_major(&view);
    part->whole = whole;
    py_memory_acquire(whole);
    py_memory_init(&part->memory, &view, destroy_part);
    return py_memory_array_make(array->state->shared_array_type, &part->memory);
}

static PyObject *
shared_array_part(PyObject *object, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    const py_memory_array *self = (const py_memory_array *)object;
    py_argument shape = {.state = self->state, .function = "part", .name = "shape"};
    dd_view view = {.dtype = self->memory->view.dtype};
    int64_t start;
    const py_params params =
        PY_PARAMS("part", 2, 2, {"start", PY_INT64, &start}, {"shape", PY_OBJECT, &shape.value});
    if (!py_params_read(&params, self->state, args, nargs, kwnames) || !py_memory_read_shape(&shape, &view)) {
        return NULL;
    }
    size_t count = self->memory->view.count;
    if (start < 0 || (size_t)start > count || view.count > count - (size_t)start) {
        py_raise_argument(
            self->state, "part", "start",
            "is out of range: got %lld for %zu elements (argument 'shape'), expected a part of %zu",
            (long long)start, view.count, count);
        return NULL;
    }
    return memory_part_make(self, (size_t)start, view);
}

static PyObject *
shared_array_note_unmapped(PyObject *object, PyObject *Py_UNUSED(unused))
{
    py_memory *memory = ((py_memory_array *)object)->memory;
    if (memory->destroy == shared_memory_destroy) {
        dd_region_note_unmapped(((shared_memory *)memory)->region);
    }
    Py_RETURN_NONE;
}

static int
shared_array_get_buffer(PyObject *object, Py_buffer *buffer, int flags)
{
    dd_view *view = &((py_memory_array *)object)->memory->view;
    const char *format = py_dtype_format(view->dtype);
    if (format == NULL && (flags & PyBUF_FORMAT) == PyBUF_FORMAT) {
        PyErr_Format(PyExc_BufferError, "the buffer protocol has no format for %s: use DLPack",
                     dd_dtype_name(view->dtype));
        buffer->obj = NULL;
        return -1;
    }
    *buffer = (Py_buffer){
        .buf = view->data,
        .obj = Py_NewRef(object),
        .len = (Py_ssize_t)dd_view_nbytes(view),
        .itemsize = (Py_ssize_t)dd_dtype_size(view->dtype),
        .ndim = view->ndim,
        .format = (flags & PyBUF_FORMAT) == PyBUF_FORMAT ? (char *)(uintptr_t)format : NULL,
        .shape = (flags & PyBUF_ND) == PyBUF_ND ? (Py_ssize_t *)view->shape : NULL,
        .strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? (Py_ssize_t *)view->strides : NULL,
    };
    return 0;
}

static Py_ssize_t
shared_array_length(PyObject *object)
{
    const dd_view *view = &((py_memory_array *)object)->memory->view;
    if (view->ndim == 0) {
        PyErr_SetString(PyExc_TypeError, "len() of a SharedArray without dimensions");
        return -1;
    }
    return (Py_ssize_t)view->shape[0];
}

/* Return the address of the element with this key, which is an int, or a tuple of one int for each
 * dimension. Return NULL with an exception if there is no such element. */
static void *
find_element(const dd_view *view, PyObject *key)
{
    bool is_tuple = PyTuple_Check(key) != 0;
    if ((is_tuple ? PyTuple_Size(key) : 1) != view->ndim) {
        PyErr_Format(PyExc_IndexError,
                     "wrong index of a SharedArray: expected %d integers; numpy.asarray(array) has slices",
                     view->ndim);
        return NULL;
    }
    size_t number = 0;
    for (int i = 0; i < view->ndim; i++) {
        Py_ssize_t length = (Py_ssize_t)view->shape[i];
        Py_ssize_t index = PyNumber_AsSsize_t(is_tuple ? PyTuple_GetItem(key, i) : key, PyExc_IndexError);
        if (index == -1 && PyErr_Occurred() != NULL) {
            return NULL;
        }
        if (index < -length || index >= length) {
            PyErr_Format(PyExc_IndexError, "index %zd is out of bounds for a length of %zd", index, length);
            return NULL;
        }
        number = number * (size_t)length + (size_t)(index < 0 ? index + length : index);
    }
    return (char *)view->data + number * dd_dtype_size(view->dtype);
}

static PyObject *
shared_array_get(PyObject *object, PyObject *key)
{
    const dd_view *view = &((py_memory_array *)object)->memory->view;
    const void *element = find_element(view, key);
    return element != NULL ? py_element_get(view->dtype, element) : NULL;
}

static int
shared_array_set(PyObject *object, PyObject *key, PyObject *value)
{
    const dd_view *view = &((py_memory_array *)object)->memory->view;
    if (value == NULL) {
        PyErr_SetString(PyExc_TypeError, "elements of a SharedArray cannot be deleted");
        return -1;
    }
    void *element = find_element(view, key);
    return element != NULL && py_element_set(view->dtype, element, value) ? 0 : -1;
}

/* Return the elements from *next on as nested lists, for the dimensions from `dim` on. Advance
 * *next to the element after these. */
static PyObject *
nested_list(const dd_view *view, int dim, const char **next)
{
    if (dim == view->ndim) {
        const char *element = *next;
        *next += dd_dtype_size(view->dtype);
        return py_element_get(view->dtype, element);
    }
    PyObject *list = PyList_New(0);
    for (int64_t i = 0; list != NULL && i < view->shape[dim]; i++) {
        py_list_append(&list, nested_list(view, dim + 1, next));
    }
    return list;
}

static PyObject *
shared_array_to_list(PyObject *object, PyObject *Py_UNUSED(unused))
{
    const dd_view *view = &((py_memory_array *)object)->memory->view;
    const char *next = view->data;
    return nested_list(view, 0, &next);
}

static PyMethodDef shared_array_methods[] = {
    {"part", PY_FAST_METHOD(shared_array_part),
     "part($self, /, start, shape)\n--\n\n"
     "An array of this shape over the elements from number `start` on, in the same memory."},
    {"tolist", shared_array_to_list, METH_NOARGS,
     "tolist($self, /)\n--\n\nThe values as nested lists, or the value itself if there are no dimensions."},
    {"_note_unmapped", shared_array_note_unmapped, METH_NOARGS,
     "_note_unmapped($self, /)\n--\n\n"
     "Says that the mapping given to Group._adopt is gone."},
    PY_MEMORY_ARRAY_METHODS,
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef shared_array_getset[] = {
    PY_MEMORY_ARRAY_GETSET,
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot shared_array_slots[] = {
    {Py_tp_doc,
     "Memory that the ranks of a host share; made by Group.empty.\n\n"
     "It is a writable buffer and speaks DLPack: numpy.asarray(a), torch.from_dlpack(a), memoryview(a).\n"
     "a[i], a[i, j] and a[i, j] = x are for one element. "
     "It may outlive its group."},
    {Py_tp_dealloc, (void *)py_memory_array_dealloc},
    {Py_tp_traverse, (void *)py_object_traverse},
    {Py_tp_methods, shared_array_methods},
    {Py_tp_getset, shared_array_getset},
    {Py_tp_members, py_object_members},
    {Py_mp_length, (void *)shared_array_length},
    {Py_mp_subscript, (void *)shared_array_get},
    {Py_mp_ass_subscript, (void *)shared_array_set},
    {Py_bf_getbuffer, (void *)shared_array_get_buffer},
    {0, NULL},
};

PyType_Spec py_shared_array_spec = {"dldist.SharedArray", sizeof(py_memory_array), 0,
                                    PY_MADE_TYPE_FLAGS | Py_TPFLAGS_HAVE_GC, shared_array_slots};
