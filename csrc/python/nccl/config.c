/* NCCL configurations given as dicts: for communicators, and for a thread's collectives. */
#include "core/mem.h"
#include "python/base/error.h"
#include "python/base/thread_values.h"
#include "python/nccl/nccl.h"

/* Read a configuration field, a str or a number; None leaves it unset. Texts are borrowed. */
static bool
config_value_read(PyObject *object, const char *field, const char *function, dd_nccl_config_value *value)
{
    *value = (dd_nccl_config_value){.is_set = object != Py_None, .is_text = PyUnicode_Check(object) != 0};
    if (value->is_text) {
        value->text = PyUnicode_AsUTF8AndSize(object, NULL);
        return value->text != NULL;
    }
    int64_t number = 0;
    if (value->is_set && !py_to_int64(object, &number, function, field)) {
        return false;
    }
    value->number = number;
    return true;
}

static bool
config_field_read(const py_state *state, PyObject *name, PyObject *object, dd_nccl_config *config,
                  const char *function)
{
    const char *field = PyUnicode_Check(name) ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
    if (field == NULL) {
        if (PyErr_Occurred() == NULL) {
            py_raise_wrong_type(function, "config", "a dict of str", name);
        }
        return false;
    }
    dd_error err;
    dd_nccl_config_value value;
    return config_value_read(object, field, function, &value) &&
           py_error_check_of_group((py_state *)(uintptr_t)state,
                                   dd_nccl_config_set(config, field, &value, &err), &err);
}

static bool
read_fields(const py_state *state, PyObject *dict, dd_nccl_config *config, const char *function)
{
    if (!PyDict_Check(dict)) {
        py_raise_wrong_type(function, "config", "a dict", dict);
        return false;
    }
    PyObject *copy = PyDict_Copy(dict); /* other threads may change the caller's dict */
    PyObject *name;
    PyObject *value;
    Py_ssize_t position = 0;
    bool is_ok = copy != NULL;
    while (is_ok && PyDict_Next(copy, &position, &name, &value)) {
        is_ok = config_field_read(state, name, value, config, function);
    }
    Py_XDECREF(copy);
    return is_ok;
}

bool
py_nccl_read_config(const py_state *state, PyObject *dict, dd_nccl_config *config, const char *function)
{
    dd_nccl_config_init(config);
    return dict == NULL || dict == Py_None || read_fields(state, dict, config, function);
}

#define CAPSULE_NAME "dldist.nccl.coll_config"

typedef struct coll_config {
    dd_nccl_config values;
    dd_nccl_abi_coll_config packed; /* configuration in NCCL's format; points into `values` */
} coll_config;

static void
config_capsule_destroy(PyObject *capsule)
{
    dd_mem_free(PyCapsule_GetPointer(capsule, CAPSULE_NAME));
}

/* Read a dict into a configuration for collectives. Return false with an exception on failure, also
 * if this version of NCCL has no such configurations. */
static bool
read_coll_config(py_state *state, PyObject *dict, coll_config *config)
{
    const py_nccl *nccl = py_nccl_get(state);
    dd_error err;
    dd_nccl_coll_config_init(&config->values);
    return nccl != NULL &&
           py_error_check_of_group(state, dd_nccl_need(nccl->lib, DD_NCCL_CAN_ALL_REDUCE_CONFIG, &err),
                                   &err) &&
           read_fields(state, dict, &config->values, "coll_config") &&
           py_error_check_of_group(
               state, dd_nccl_coll_config_pack(&config->values, nccl->lib, &config->packed, &err), &err);
}

PyObject *
py_nccl_make_coll_config(PyObject *module, PyObject *dict)
{
    coll_config *config = dd_mem_zalloc(sizeof *config);
    if (config == NULL) {
        return PyErr_NoMemory();
    }
    bool is_ok = read_coll_config(PyModule_GetState(module), dict, config);
    PyObject *capsule = is_ok ? PyCapsule_New(config, CAPSULE_NAME, config_capsule_destroy) : NULL;
    if (capsule == NULL) {
        dd_mem_free(config);
    }
    return capsule;
}

PyObject *
py_nccl_swap_coll_config(PyObject *module, PyObject *capsule)
{
    py_nccl *nccl = py_nccl_get(PyModule_GetState(module));
    if (nccl == NULL) {
        return NULL;
    }
    if (capsule != Py_None && !PyCapsule_IsValid(capsule, CAPSULE_NAME)) {
        py_raise_wrong_type("_swap_coll_config", "config", "what _nccl_coll_config() returns, or None",
                            capsule);
        return NULL;
    }
    return py_thread_value_swap(&nccl->coll_configs, capsule != Py_None ? capsule : NULL);
}

bool
py_nccl_find_coll_config(const py_nccl *nccl, PyObject **capsule, const dd_nccl_abi_coll_config **config)
{
    *config = NULL;
    *capsule = Py_XNewRef(py_thread_value_get(&nccl->coll_configs));
    if (*capsule == NULL) {
        return PyErr_Occurred() == NULL;
    }
    coll_config *current = PyCapsule_GetPointer(*capsule, CAPSULE_NAME);
    *config = &current->packed;
    return true;
}
