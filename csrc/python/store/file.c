#include "store/file_store.h"

#include "python/store/store.h"

typedef struct file_store_arguments {
    PyObject *path; /* bytes, owned */
    dd_file_store_options options;
} file_store_arguments;

static bool
parse_arguments(py_state *state, PyObject *args, PyObject *kwargs, file_store_arguments *arguments)
{
    static char *keywords[] = {"file_name", "world_size", "timeout", NULL};
    PyObject *path;
    PyObject *world_size = NULL;
    PyObject *timeout = NULL;
    *arguments = (file_store_arguments){.options = {NULL, -1, DD_STORE_DEFAULT_TIMEOUT_NS}};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O$O:FileStore", keywords, &path, &world_size,
                                     &timeout)) {
        return false;
    }
    dd_file_store_options *options = &arguments->options;
    if (world_size != NULL && world_size != Py_None &&
        !py_to_int64(world_size, &options->world_size, "FileStore", "world_size")) {
        return false;
    }
    if (timeout != NULL && !py_to_timeout_ns(state, timeout, &options->timeout_ns, "FileStore", "timeout")) {
        return false;
    }
    if (!PyUnicode_FSConverter(path, &arguments->path)) {
        if (PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Clear();
            py_raise_wrong_type("FileStore", "file_name", "str, bytes or os.PathLike", path);
        }
        return false;
    }
    options->path = PyBytes_AsString(arguments->path);
    return true;
}

static int
file_store_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    py_store *self = (py_store *)object;
    file_store_arguments arguments;
    if (!parse_arguments(self->state, args, kwargs, &arguments)) {
        return -1;
    }
    int rc = -1;
    if (py_store_begin_init(self)) {
        py_wait wait;
        py_wait_init(&wait, self->state, arguments.options.timeout_ns, true);
        dd_store *store = NULL;
        dd_error err;
        dd_status status;
        Py_BEGIN_ALLOW_THREADS
        status = dd_file_store_open(&store, &arguments.options, &wait.wait, &err);
        Py_END_ALLOW_THREADS
        rc = py_store_finish_init(self, store, &wait, status, &err);
    }
    Py_DECREF(arguments.path);
    return rc;
}

static PyObject *
file_store_get_path(PyObject *object, void *Py_UNUSED(closure))
{
    dd_store *store = py_store_opened((py_store *)object);
    return store != NULL ? PyUnicode_DecodeFSDefault(dd_file_store_path(store)) : NULL;
}

static PyObject *
file_store_repr(PyObject *object)
{
    PyObject *path = file_store_get_path(object, NULL);
    if (path == NULL) {
        return NULL;
    }
    PyObject *text = PyUnicode_FromFormat("FileStore(path=%R)", path);
    Py_DECREF(path);
    return text;
}

static PyGetSetDef file_store_getset[] = {
    {"path", file_store_get_path, NULL, "The path of the file.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot file_store_slots[] = {
    {Py_tp_doc,
     "FileStore(file_name, world_size=-1, *, timeout=300.0)\n--\n\n"
     "A store in a file that processes share.\n\n"
     "With a world_size, the file is removed when that many have opened it and all have closed it. Data that\n"
     "a dead job left in the file is ignored."},
    {Py_tp_init, (void *)file_store_init},
    {Py_tp_repr, (void *)file_store_repr},
    {Py_tp_dealloc, (void *)py_store_dealloc},
    {Py_tp_traverse, (void *)py_object_traverse},
    {Py_tp_getset, file_store_getset},
    {0, NULL},
};

PyType_Spec py_file_store_spec = {
    .name = "dldist.FileStore",
    .basicsize = sizeof(py_store),
    .flags = PY_STORE_TYPE_FLAGS,
    .slots = file_store_slots,
};
