/* Methods of an NcclGroup for its communicators. */
#include "python/nccl/group_comm.h"
#include "python/base/error.h"

bool
py_nccl_comm_read_device(py_group *self, PyObject *object, int *device, const char *function)
{
    if (object != NULL && object != Py_None) {
        return py_params_int(self->state, object, device, function, "device");
    }
    return py_nccl_group_choose_device(self, device);
}

dd_nccl_comm *
py_nccl_comm_connect(py_group *self, int device)
{
    dd_nccl_comm *comm = NULL;
    if (!PY_GROUP_CALL(self->state, DD_NEVER_NS, dd_nccl_group_connect, self->nccl->group, device, &comm)) {
        dd_nccl_comm_release(comm);
        return NULL;
    }
    py_nccl_core_note_device(self->nccl, device);
    return comm;
}

PY_NCCL_METHOD(connect)
{
    PyObject *device_object = NULL;
    const py_params params = PY_PARAMS("connect", 0, 1, {"device", PY_OBJECT, &device_object});
    int device;
    PY_NCCL_BEGIN(group, self)
    if (!py_params_read(&params, group->state, args, nargs, kwnames) ||
        !py_nccl_comm_read_device(group, device_object, &device, "connect")) {
        return NULL;
    }
    dd_nccl_comm *comm = py_nccl_comm_connect(group, device);
    if (comm == NULL) {
        return NULL;
    }
    py_nccl_comm_release(comm);
    Py_RETURN_NONE;
}

/* ---- the communicator */

/* Return a new reference to the communicator on the group's device, or fail if there is none. */
static dd_nccl_comm *
find_group_comm(py_group *self, const char *function)
{
    int device;
    if (!py_nccl_group_choose_device(self, &device)) {
        return NULL;
    }
    dd_nccl_comm *comm = dd_nccl_group_find_comm(self->nccl->group, device);
    if (comm == NULL) {
        PyErr_Format(self->state->errors[PY_ERROR_BACKEND],
                     "%s(): there is no communicator on cuda:%d yet: connect() makes it", function, device);
    }
    return comm;
}

typedef dd_status (*comm_call)(dd_nccl_comm *comm, const dd_wait *wait, dd_error *err);

static PyObject *
call_comm(PyObject *object, comm_call call, const char *function)
{
    PY_NCCL_BEGIN(self, object)
    dd_nccl_comm *comm = find_group_comm(self, function);
    if (comm == NULL) {
        return NULL;
    }
    bool is_done = PY_GROUP_CALL(self->state, dd_nccl_group_get_timeout_ns(self->nccl->group), call, comm);
    py_nccl_comm_release(comm);
    return py_none_if(is_done);
}

static dd_status
revoke_now(dd_nccl_comm *comm, const dd_wait *Py_UNUSED(wait), dd_error *err)
{
    return dd_nccl_comm_revoke(comm, err);
}

PY_NCCL_PLAIN_METHOD(revoke)
{
    return call_comm(self, revoke_now, "revoke");
}

PY_NCCL_PLAIN_METHOD(suspend)
{
    return call_comm(self, dd_nccl_comm_suspend, "suspend");
}

PY_NCCL_PLAIN_METHOD(resume)
{
    return call_comm(self, dd_nccl_comm_resume, "resume");
}

/* Names for ncclCommMemStats's statistics, in NCCL's order. */
static const char *const memory_stat_names[] = {"gpu_mem_suspend", "gpu_mem_suspended", "gpu_mem_persist",
                                                "gpu_mem_total"};
#define NMEMORY_STATS (sizeof memory_stat_names / sizeof memory_stat_names[0])

static dd_status
read_memory_stats(dd_nccl_comm *comm, uint64_t values[NMEMORY_STATS], dd_error *err)
{
    dd_status status = DD_OK;
    for (size_t i = 0; status == DD_OK && i < NMEMORY_STATS; i++) {
        status = dd_nccl_comm_mem_stat(comm, (int)i, &values[i], err);
    }
    return status;
}

/* Set dict[name] to `value`, and release `value`, which may be NULL. */
static bool
dict_put(PyObject *dict, const char *name, PyObject *value)
{
    bool is_ok = value != NULL && PyDict_SetItemString(dict, name, value) == 0;
    Py_XDECREF(value);
    return is_ok;
}

PY_NCCL_PLAIN_METHOD(memory_stats)
{
    PY_NCCL_BEGIN(group, self)
    dd_nccl_comm *comm = find_group_comm(group, "memory_stats");
    if (comm == NULL) {
        return NULL;
    }
    uint64_t values[NMEMORY_STATS];
    bool is_read = PY_GROUP_TRY(group->state, read_memory_stats, comm, values);
    py_nccl_comm_release(comm);
    PyObject *stats = is_read ? PyDict_New() : NULL;
    for (size_t i = 0; stats != NULL && i < NMEMORY_STATS; i++) {
        if (!dict_put(stats, memory_stat_names[i], PyLong_FromUnsignedLongLong(values[i]))) {
            Py_CLEAR(stats);
        }
    }
    return stats;
}

typedef enum property_type {
    PROPERTY_INT,
    PROPERTY_FLAG,
    PROPERTY_WORD,
} property_type;

typedef struct property_row {
    const char *name;
    int since;
    property_type type;
    size_t offset;
} property_row;

#define PROPERTY_ROW(field, name, since, type) \
    {(name), (since), PROPERTY_##type, offsetof(dd_nccl_abi_properties, field)},

static const property_row property_rows[] = {DD_NCCL_PROPERTY_LIST(PROPERTY_ROW)};

static PyObject *
build_property(const dd_nccl_abi_properties *properties, const property_row *row)
{
    const void *field = (const char *)properties + row->offset;
    switch (row->type) {
    case PROPERTY_INT:
        return PyLong_FromLong(*(const int *)field);
    case PROPERTY_FLAG:
        return PyBool_FromLong(*(const bool *)field);
    case PROPERTY_WORD:
        break;
    }
    return PyLong_FromUnsignedLongLong(*(const uint64_t *)field);
}

/* Build a dict of the properties that this version of NCCL fills in. */
static PyObject *
build_properties(const dd_nccl_abi_properties *properties, int version)
{
    PyObject *dict = PyDict_New();
    for (size_t i = 0; dict != NULL && i < sizeof property_rows / sizeof property_rows[0]; i++) {
        const property_row *row = &property_rows[i];
        if (version >= row->since && !dict_put(dict, row->name, build_property(properties, row))) {
            Py_CLEAR(dict);
        }
    }
    return dict;
}

PY_NCCL_PLAIN_METHOD(properties)
{
    PY_NCCL_BEGIN(group, self)
    dd_nccl_comm *comm = find_group_comm(group, "properties");
    if (comm == NULL) {
        return NULL;
    }
    dd_nccl_abi_properties properties;
    int version = dd_nccl_comm_lib(comm)->version;
    bool is_read = PY_GROUP_TRY(group->state, dd_nccl_comm_properties, comm, &properties);
    py_nccl_comm_release(comm);
    return is_read ? build_properties(&properties, version) : NULL;
}

/* ---- buffers */

/* Read memory to register: an address and a number of bytes, or a tensor to keep alive. */
static bool
read_memory(const py_group *self, PyObject *memory, PyObject *nbytes_object, void **data, size_t *nbytes)
{
    if (PyLong_Check(memory)) {
        *data = PyLong_AsVoidPtr(memory);
        *nbytes = nbytes_object != NULL && PyErr_Occurred() == NULL ? PyLong_AsSize_t(nbytes_object) : 0;
        if (nbytes_object == NULL) {
            PyErr_SetString(PyExc_TypeError, "register(): argument 'nbytes' is needed with an address");
        }
        return PyErr_Occurred() == NULL;
    }
    py_device_scope scope;
    py_device_scope_init(&scope, self->state);
    py_tensor tensor = {.scope = &scope};
    if (!py_tensor_init(&tensor, self->state, memory, PY_TENSOR_IN, "register", "memory")) {
        return false;
    }
    py_argument argument = {.state = self->state, .function = "register", .name = "memory", .value = memory};
    bool is_ok = py_device_take(&scope, &tensor, &argument);
    if (is_ok && !tensor.view.is_contiguous) {
        py_argument_raise(&argument, PY_FAULT_VALUE,
                          "has gaps: got a strided array, expected a contiguous one");
        is_ok = false;
    }
    *data = tensor.view.data;
    *nbytes = dd_view_nbytes(&tensor.view);
    py_tensor_fini(&tensor);
    return is_ok;
}

PY_NCCL_METHOD(register)
{
    PyObject *memory;
    PyObject *nbytes_object = NULL;
    bool is_window = false;
    const py_params params =
        PY_PARAMS("register", 1, 2, {"memory", PY_OBJECT, &memory}, {"nbytes", PY_OBJECT, &nbytes_object},
                  {"is_window", PY_FLAG, &is_window});
    void *data;
    size_t nbytes;
    PY_NCCL_BEGIN(group, self)
    if (!py_params_read(&params, group->state, args, nargs, kwnames) ||
        !read_memory(group, memory, nbytes_object, &data, &nbytes)) {
        return NULL;
    }
    dd_nccl_comm *comm = find_group_comm(group, "register");
    if (comm == NULL) {
        return NULL;
    }
    void *registration = NULL;
    bool is_ok = PY_GROUP_CALL(group->state, dd_nccl_group_get_timeout_ns(group->nccl->group),
                               dd_nccl_comm_register, comm, data, nbytes, is_window, &registration);
    if (!is_ok) { /* if a signal handler raised, the memory may be registered */
        (void)!PY_WITHOUT_GIL(dd_nccl_comm_deregister(comm, registration, is_window, NULL));
    }
    py_nccl_comm_release(comm);
    return is_ok ? PyLong_FromVoidPtr(registration) : NULL;
}

PY_NCCL_METHOD(deregister)
{
    int64_t number;
    bool is_window = false;
    const py_params params = PY_PARAMS("deregister", 1, 1, {"registration", PY_INT64, &number},
                                       {"is_window", PY_FLAG, &is_window});
    PY_NCCL_BEGIN(group, self)
    if (!py_params_read(&params, group->state, args, nargs, kwnames)) {
        return NULL;
    }
    void *registration = (void *)(intptr_t)number;
    dd_nccl_comm *comm = registration != NULL ? find_group_comm(group, "deregister") : NULL;
    if (comm == NULL) {
        /* no exception: NULL is a valid registration of a window, and needs no deregistration */
        return PyErr_Occurred() == NULL ? Py_NewRef(Py_None) : NULL;
    }
    bool is_done = PY_GROUP_TRY(group->state, dd_nccl_comm_deregister, comm, registration, is_window);
    py_nccl_comm_release(comm);
    return py_none_if(is_done);
}

/* ---- for third-party code */

PY_NCCL_METHOD(comm_pointer)
{
    PyObject *device_object = NULL;
    const py_params params = PY_PARAMS("comm_pointer", 0, 1, {"device", PY_OBJECT, &device_object});
    int device;
    PY_NCCL_BEGIN(group, self)
    if (!py_params_read(&params, group->state, args, nargs, kwnames)) {
        return NULL;
    }
    if (py_nccl_core_device(group->nccl) == PY_NO_DEVICE && device_object == NULL) {
        return PyLong_FromLong(0);
    }
    if (!py_nccl_comm_read_device(group, device_object, &device, "comm_pointer")) {
        return NULL;
    }
    dd_nccl_comm *comm = dd_nccl_group_find_comm(group->nccl->group, device);
    dd_nccl_comm_handle handle = NULL;
    if (comm != NULL) {
        handle = dd_nccl_comm_pointer(comm);
        py_nccl_comm_release(comm);
    }
    return PyLong_FromVoidPtr(handle);
}

PY_NCCL_PLAIN_METHOD(split_count)
{
    PY_NCCL_BEGIN(group, self)
    int device = py_nccl_core_device(group->nccl);
    dd_nccl_comm *comm = device != PY_NO_DEVICE ? dd_nccl_group_find_comm(group->nccl->group, device) : NULL;
    uint64_t count = comm != NULL ? dd_nccl_comm_nsplits(comm) : 0;
    py_nccl_comm_release(comm);
    return PyLong_FromUnsignedLongLong(count);
}
