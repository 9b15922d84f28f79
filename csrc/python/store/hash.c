#include "python/store/store.h"

static dd_status
open_hash(const void *timeout_ns, dd_store **store, const dd_wait *wait, dd_error *err)
{
    (void)wait;
    return dd_hash_store_open(store, *(const int64_t *)timeout_ns, err);
}

static int
hash_store_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    py_store *self = (py_store *)object;
    int64_t timeout_ns = DD_STORE_DEFAULT_TIMEOUT_NS;
    const py_params params = PY_PARAMS("HashStore", 0, 0, {"timeout", PY_TIMEOUT, &timeout_ns});
    return py_params_read_tuple(&params, self->state, args, kwargs)
               ? py_store_open(self, timeout_ns, open_hash, &timeout_ns)
               : -1;
}

static PyObject *
hash_store_repr(PyObject *Py_UNUSED(self))
{
    return PyUnicode_FromString("HashStore()");
}

static PyType_Slot hash_store_slots[] = {
    {Py_tp_doc, "HashStore(*, timeout=300.0)\n--\n\n"
                "A store in the memory of this process, shared by its clones."},
    {Py_tp_init, (void *)hash_store_init},
    {Py_tp_repr, (void *)hash_store_repr},
    {Py_tp_dealloc, (void *)py_store_dealloc},
    {Py_tp_traverse, (void *)py_object_traverse},
    {0, NULL},
};

PyType_Spec py_hash_store_spec = {"dldist.HashStore", sizeof(py_store), 0,
                                  PY_BASE_TYPE_FLAGS | Py_TPFLAGS_HAVE_GC, hash_store_slots};
