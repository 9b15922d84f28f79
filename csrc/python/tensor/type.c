#include "python/tensor/type.h"

#include "core/mem.h"
#include "python/base/error.h"
#include "python/base/lock.h"

#include <string.h>

#define MAX_TYPES 16u /* must be a power of two */
#define CAPSULE_EXCHANGE_API "dlpack_exchange_api"
#define CAPSULE_TYPES "dldist.tensor_types"

typedef struct known_type {
    /* address of a living class, only compared, never dereferenced; NULL if the slot is free */
    const PyObject *type;
    PyObject *ref; /* owned: a weak reference to the class, whose callback frees the slot */
    py_tensor_facts facts;
} known_type;

/* A hash table of facts about classes. A class has one possible slot, where it evicts another. */
struct py_tensor_types {
    PyObject *on_freed; /* the callback of the weak references; const; owned */
    py_lock lock;
    known_type known[MAX_TYPES]; /* the table's slots; guarded by lock */
};

/* ---- classes that are freed */

/* Free the slot that has this weak reference. Return false if there is no such slot. */
static bool
clear_slot(py_tensor_types *types, const PyObject *ref)
{
    for (size_t i = 0; i < MAX_TYPES; i++) {
        if (types->known[i].ref == ref) {
            types->known[i] = (known_type){0};
            return true;
        }
    }
    return false;
}

/* The callback for a freed class, whose weak reference was `ref`. The capsule points to the table,
 * and is renamed when the table is freed. */
static PyObject *
on_type_freed(PyObject *capsule, PyObject *ref)
{
    bool is_valid = PyCapsule_IsValid(capsule, CAPSULE_TYPES) != 0;
    py_tensor_types *types = is_valid ? PyCapsule_GetPointer(capsule, CAPSULE_TYPES) : NULL;
    if (types != NULL && PY_LOCKED(&types->lock, clear_slot(types, ref))) {
        Py_DECREF(ref);
    }
    Py_RETURN_NONE;
}

static PyMethodDef forget_method = {"forget", on_type_freed, METH_O, NULL};

static PyObject *
make_on_type_freed(py_tensor_types *types)
{
    PyObject *capsule = PyCapsule_New(types, CAPSULE_TYPES, NULL);
    PyObject *function = capsule != NULL ? PyCFunction_NewEx(&forget_method, capsule, NULL) : NULL;
    Py_XDECREF(capsule);
    return function;
}

py_tensor_types *
py_tensor_types_create(void)
{
    py_tensor_types *types = dd_mem_zalloc(sizeof *types);
    if (types == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    types->on_freed = make_on_type_freed(types);
    if (types->on_freed == NULL) {
        dd_mem_free(types);
        return NULL;
    }
    return types;
}

void
py_tensor_types_destroy(py_tensor_types *types)
{
    if (types == NULL) {
        return;
    }
    for (size_t i = 0; i < MAX_TYPES; i++) {
        Py_XDECREF(types->known[i].ref);
    }
    (void)PyCapsule_SetName(PyCFunction_GetSelf(types->on_freed), NULL);
    Py_DECREF(types->on_freed);
    dd_mem_free(types);
}

/* ---- facts about classes */

static const dl_exchange_api *
find_exchange_api(const py_state *state, PyObject *type)
{
    PyObject *capsule = PyObject_GetAttr(type, state->names[PY_NAME_EXCHANGE_API]);
    const dl_exchange_api *api = capsule != NULL ? PyCapsule_GetPointer(capsule, CAPSULE_EXCHANGE_API) : NULL;
    Py_XDECREF(capsule);
    py_error_forget();
    return api;
}

/* Choose the API version anew at every use, because the library may set its table later. */
static void
choose_version(py_tensor_facts *facts)
{
    while (facts->api != NULL && facts->api->version.major != PY_DLPACK_MAJOR) {
        facts->api = facts->api->previous;
    }
}

static py_tensor_library
find_library(const py_argument *argument)
{
    static const struct {
        const char *package;
        py_tensor_library library;
    } packages[] = {
        {"torch", PY_LIBRARY_TORCH},
        {"cupy", PY_LIBRARY_CUPY},
        {"jaxlib", PY_LIBRARY_JAX},
        {"jax", PY_LIBRARY_JAX},
        {"tensorflow", PY_LIBRARY_TENSORFLOW},
    };
    for (size_t i = 0; i < sizeof packages / sizeof packages[0]; i++) {
        if (py_argument_is_from(argument, packages[i].package)) {
            return packages[i].library;
        }
    }
    return PY_LIBRARY_OTHER;
}

static void
find_facts(const py_state *state, PyObject *object, py_tensor_facts *facts)
{
    PyObject *type = (PyObject *)Py_TYPE(object);
    py_argument argument = {.state = state, .value = object};
    facts->api = find_exchange_api(state, type);
    facts->library = find_library(&argument);
    facts->has_device = py_has_attribute(type, state->names[PY_NAME_DLPACK_DEVICE]);
    facts->has_is_neg = py_has_attribute(type, state->names[PY_NAME_IS_NEG]);
    facts->has_is_conj = py_has_attribute(type, state->names[PY_NAME_IS_CONJ]);
}

static known_type *
known_type_slot(py_tensor_types *types, const PyObject *type)
{
    /* class objects are larger than 64 bytes, so ignore the low bits of their addresses */
    uintptr_t number = (uintptr_t)type / 64;
    return &types->known[(number ^ number / MAX_TYPES) % MAX_TYPES];
}

static bool
find_known_facts(py_tensor_types *types, const PyObject *type, py_tensor_facts *facts)
{
    py_lock_take(&types->lock);
    const known_type *known = known_type_slot(types, type);
    bool is_known = known->type == type;
    if (is_known) {
        *facts = known->facts;
    }
    py_lock_release(&types->lock);
    return is_known;
}

/* Add facts about a class. If out of memory, the facts are found again for the next object. */
static void
add_known_facts(py_tensor_types *types, PyObject *type, const py_tensor_facts *facts)
{
    PyObject *ref = PyWeakref_NewRef(type, types->on_freed);
    if (ref == NULL) {
        PyErr_Clear();
        return;
    }
    py_lock_take(&types->lock);
    known_type *slot = known_type_slot(types, type);
    PyObject *before = slot->ref;
    *slot = (known_type){.type = type, .ref = ref, .facts = *facts};
    py_lock_release(&types->lock);
    Py_XDECREF(before);
}

void
py_tensor_type_find(const py_state *state, PyObject *object, py_tensor_facts *facts)
{
    PyObject *type = (PyObject *)Py_TYPE(object);
    if (!find_known_facts(state->tensor_types, type, facts)) {
        find_facts(state, object, facts); /* may run Python code that calls this function again */
        add_known_facts(state->tensor_types, type, facts);
    }
    choose_version(facts);
}
