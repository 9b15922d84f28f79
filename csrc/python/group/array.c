/* dldist.SharedArray: memory made by Group.empty, as a buffer and through DLPack. */
#include "python/group/array.h"

#include "core/mem.h"
#include "python/base/error.h"
#include "python/base/object.h"
#include "python/group/group.h"
#include "python/tensor/dtype.h"
#include "python/tensor/memory.h"

typedef struct shared_memory {
    py_memory memory;  /* first */
    dd_region *region; /* owned */
} shared_memory;

static void
destroy_memory(py_memory *memory)
{
    shared_memory *shared = (shared_memory *)memory;
    dd_region_release(shared->region);
    dd_mem_free(shared);
}

/* ---- making */

/* Memory that somebody else owns. */
typedef struct foreign_memory {
    void *at;
    int fd;
} foreign_memory;

/* A new region of the group, or with `foreign`, a region that adopts that memory. NULL with an exception. */
static py_memory *
make_memory(py_group *group, const dd_view *view, const foreign_memory *foreign)
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
    py_memory_init(&shared->memory, &filled, destroy_memory);
    return &shared->memory;
}

static PyObject *
make_array(py_group *group, const dd_view *view, const foreign_memory *foreign)
{
    py_memory *memory = make_memory(group, view, foreign);
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

/* ---- parts */

/* Some of the elements of another memory, which it keeps alive. */
typedef struct memory_part {
    py_memory memory; /* first */
    py_memory *whole; /* counted */
} memory_part;

static void
destroy_part(py_memory *memory)
{
    memory_part *part = (memory_part *)memory;
    py_memory_release(part->whole);
    dd_mem_free(part);
}

PyObject *
py_shared_array_view(PyObject *array, size_t start, const dd_view *shape)
{
    const py_memory_array *self = (const py_memory_array *)array;
    py_memory *whole = self->memory;
    memory_part *part = dd_mem_alloc(sizeof *part);
    if (part == NULL) {
        return PyErr_NoMemory();
    }
    dd_view view = *shape;
    view.data = (char *)whole->view.data + start * dd_dtype_size(whole->view.dtype);
    (void)py_tensor_set_row_major(&view); /* the strides fit, because those of the whole do */
    part->whole = whole;
    py_memory_acquire(whole);
    py_memory_init(&part->memory, &view, destroy_part);
    return py_memory_array_make(Py_TYPE(array), &part->memory);
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
        PyErr_Format(self->state->errors[PY_ERROR_ARGUMENT],
                     "part(): %zu elements from number %lld on do not fit into an array of %zu", view.count,
                     (long long)start, count);
        return NULL;
    }
    return py_shared_array_view(object, (size_t)start, &view);
}

static PyObject *
shared_array_note_unmapped(PyObject *object, PyObject *Py_UNUSED(unused))
{
    py_memory *memory = ((py_memory_array *)object)->memory;
    if (memory->destroy == destroy_memory) {
        dd_region_note_unmapped(((shared_memory *)memory)->region);
    }
    Py_RETURN_NONE;
}

/* ---- as a buffer */

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

/* ---- questions */

#define IN_PYTHON "dldist._base.shared_array"

static PyObject *
shared_array_repr(PyObject *object)
{
    return py_object_call_python(object, IN_PYTHON, "represent", NULL, NULL);
}

static PyObject *
shared_array_to_list(PyObject *object, PyObject *Py_UNUSED(unused))
{
    return py_object_call_python(object, IN_PYTHON, "to_list", NULL, NULL);
}

static PyObject *
shared_array_as_numpy(PyObject *object, PyObject *args, PyObject *kwargs)
{
    return py_object_call_python(object, IN_PYTHON, "as_numpy", args, kwargs);
}

static PyObject *
shared_array_get_ndim(PyObject *object, void *Py_UNUSED(closure))
{
    return PyLong_FromLong(((py_memory_array *)object)->memory->view.ndim);
}

static PyObject *
shared_array_get_size(PyObject *object, void *Py_UNUSED(closure))
{
    return PyLong_FromSize_t(((py_memory_array *)object)->memory->view.count);
}

static PyMethodDef shared_array_methods[] = {
    {"part", PY_FAST_METHOD(shared_array_part),
     "part($self, /, start, shape)\n--\n\n"
     "An array of this shape over the elements from number `start` on, in the same memory."},
    {"tolist", shared_array_to_list, METH_NOARGS,
     "tolist($self, /)\n--\n\nThe values as nested lists, or the value itself if there are no dimensions."},
    {"__array__", (PyCFunction)(void (*)(void))shared_array_as_numpy, METH_VARARGS | METH_KEYWORDS,
     "__array__($self, dtype=None, *, copy=None)\n--\n\nFor numpy.asarray(): a NumPy array in the same memory."},
    {"_note_unmapped", shared_array_note_unmapped, METH_NOARGS,
     "_note_unmapped($self, /)\n--\n\n"
     "Says that the mapping given to Group._adopt is gone."},
    PY_MEMORY_ARRAY_METHODS,
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef shared_array_getset[] = {
    PY_MEMORY_ARRAY_GETSET,
    {"ndim", shared_array_get_ndim, NULL, "The number of dimensions.", NULL},
    {"size", shared_array_get_size, NULL, "The number of elements.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot shared_array_slots[] = {
    {Py_tp_doc,
     "Memory that the ranks of a host share; made by Group.empty.\n\n"
     "It is a writable buffer and speaks DLPack: numpy.asarray(a), torch.from_dlpack(a), memoryview(a).\n"
     "a[i], a[i, j], a[i:j] and a[i:j] = ... work if the elements are contiguous; parts share the memory.\n"
     "It may outlive its group."},
    {Py_tp_dealloc, (void *)py_memory_array_dealloc},
    {Py_tp_traverse, (void *)py_object_traverse},
    {Py_tp_repr, (void *)shared_array_repr},
    {Py_tp_methods, shared_array_methods},
    {Py_tp_getset, shared_array_getset},
    {Py_tp_members, py_object_members},
    {Py_sq_length, (void *)py_shared_array_length},
    {Py_sq_item, (void *)py_shared_array_item},
    {Py_mp_length, (void *)py_shared_array_length},
    {Py_mp_subscript, (void *)py_shared_array_get},
    {Py_mp_ass_subscript, (void *)py_shared_array_set},
    {Py_bf_getbuffer, (void *)shared_array_get_buffer},
    {0, NULL},
};

PyType_Spec py_shared_array_spec = {"dldist.SharedArray", sizeof(py_memory_array), 0,
                                    PY_MADE_TYPE_FLAGS | Py_TPFLAGS_HAVE_GC, shared_array_slots};
