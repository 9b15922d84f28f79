#include "store/file_store.h"

#include "python/store/store.h"

/* Return the path as bytes, or NULL with an exception. */
static PyObject *
encode_path(PyObject *path)
{
    PyObject *encoded = NULL;
    if (!PyUnicode_FSConverter(path, &encoded) && PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear();
        py_raise_wrong_type("FileStore", "file_name", "str, bytes or os.PathLike", path);
    }
    return encoded;
}

static dd_status
open_file(const void *options, dd_store **store, const dd_wait *wait, dd_error *err)
{
    return dd_file_store_open(store, options, wait, err);
}

static int
file_store_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    py_store *self = (py_store *)object;
    PyObject *path;
    dd_file_store_options options = {.world_size = -1, .timeout_ns = DD_STORE_DEFAULT_TIMEOUT_NS};
    const py_params params = PY_PARAMS("FileStore", 1, 2, {"file_name", PY_OBJECT, &path},
                                       {"world_size", PY_INT64, &options.world_size},
                                       {"timeout", PY_TIMEOUT, &options.timeout_ns});
    if (!py_params_read_tuple(&params, self->state, args, kwargs)) {
        return -1;
    }
    PyObject *encoded = encode_path(path);
    if (encoded == NULL) {
        return -1;
    }
    options.path = PyBytes_AsString(encoded);
    int rc = py_store_open(self, options.timeout_ns, open_file, &options);
    Py_DECREF(encoded);
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

PyType_Spec py_file_store_spec = {"dldist.FileStore", sizeof(py_store), 0,
                                  PY_BASE_TYPE_FLAGS | Py_TPFLAGS_HAVE_GC, file_store_slots};
