#include "python/call/reduce_op.h"

#include "python/base/convert.h"
#include "python/base/error.h"
#include "python/base/object.h"
#include "python/base/params.h"
#include "python/tensor/dtype.h"

#include <strings.h>

typedef struct py_reduce_op {
    py_object_space ob_base; /* PyObject_HEAD's fields */
    dd_redop op;
    bool has_factor;  /* true only for PREMUL_SUM with a factor */
    double factor;    /* the factor; 1.0 if there is none or it is a tensor */
    PyObject *tensor; /* owned; const: a factor in device memory, or NULL */
} py_reduce_op;

#define QUOTED_NAME(name, text) "'" text "', "
#define EXPECTED                                                                  \
    "expected one of " DD_REDOP_LIST(                                             \
        QUOTED_NAME) "'PROD', 'MEAN'; dldist.functional also has 'LAND', 'LOR', " \
                     "'LXOR', 'MINLOC' and 'MAXLOC'"
#define EXPECTED_TYPE \
    "a ReduceOp, its name, or a function such as numpy.add (only dldist.functional takes any function)"

/* Other names of reductions, and functions that stand for a reduction: builtins of Python, and
 * ufuncs and other functions of NumPy and JAX, such as numpy.add and numpy.sum. */
static const struct {
    const char *name;
    bool is_function;
    dd_redop op;
} synonyms[] = {
    {"prod", false, DD_REDOP_PRODUCT},    {"mean", false, DD_REDOP_AVG},
    {"prod", true, DD_REDOP_PRODUCT},     {"mean", true, DD_REDOP_AVG},
    {"add", true, DD_REDOP_SUM},          {"sum", true, DD_REDOP_SUM},
    {"multiply", true, DD_REDOP_PRODUCT}, {"minimum", true, DD_REDOP_MIN},
    {"min", true, DD_REDOP_MIN},          {"maximum", true, DD_REDOP_MAX},
    {"max", true, DD_REDOP_MAX},          {"bitwise_and", true, DD_REDOP_BAND},
    {"bitwise_or", true, DD_REDOP_BOR},   {"bitwise_xor", true, DD_REDOP_BXOR},
};

static bool
find_synonym(const char *text, bool is_function, dd_redop *op)
{
    for (size_t i = 0; i < sizeof synonyms / sizeof synonyms[0]; i++) {
        if (synonyms[i].is_function == is_function && strcasecmp(text, synonyms[i].name) == 0) {
            *op = synonyms[i].op;
            return true;
        }
    }
    return false;
}

static bool
find_op(const char *text, dd_redop *op)
{
    for (int i = 0; i < DD_REDOP_COUNT; i++) {
        if (strcasecmp(text, dd_redop_name((dd_redop)i)) == 0) {
            *op = (dd_redop)i;
            return true;
        }
    }
    return find_synonym(text, false, op);
}

/* Return true for functions whose names have NumPy's meaning. NumPy's ufuncs have no module. */
static bool
is_known_function(PyObject *object)
{
    static const char *const modules[] = {"builtins", "_operator", "math", "numpy", "jax.numpy"};
    if (PyObject_HasAttrString(object, "nin") != 0) {
        return true;
    }
    PyObject *module = PyObject_HasAttrString(object, "__module__") != 0
                           ? PyObject_GetAttrString(object, "__module__")
                           : NULL;
    bool is_known = false;
    for (size_t i = 0; module != NULL && i < sizeof modules / sizeof modules[0]; i++) {
        is_known = is_known ||
                   (PyUnicode_Check(module) && PyUnicode_CompareWithASCIIString(module, modules[i]) == 0);
    }
    Py_XDECREF(module);
    return is_known;
}

/* Return the name of an operation as text, or of the operation that a function stands for. Return
 * NULL if the object is neither, or with an exception. */
static const char *
read_name(PyObject *object)
{
    if (PyUnicode_Check(object)) {
        return PyUnicode_AsUTF8AndSize(object, NULL);
    }
    bool is_function = PyObject_HasAttrString(object, "__name__") != 0 && is_known_function(object);
    PyObject *name = is_function ? PyObject_GetAttrString(object, "__name__") : NULL;
    const char *text = name != NULL ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
    dd_redop op;
    bool is_found = text != NULL && find_synonym(text, true, &op);
    Py_XDECREF(name);
    return is_found ? dd_redop_name(op) : NULL;
}

static PyObject *
make_constant(PyTypeObject *type, dd_redop op)
{
    py_reduce_op *self = (py_reduce_op *)py_object_alloc(type);
    if (self != NULL) {
        self->op = op;
        self->factor = 1.0;
    }
    return (PyObject *)self;
}

/* Return 1 if the factor is a tensor outside host memory, whose value cannot be read, else 0. */
static int
is_device_tensor(const py_state *state, PyObject *factor)
{
    if (PyFloat_Check(factor) || PyLong_Check(factor) ||
        !py_has_attribute(factor, state->names[PY_NAME_DLPACK_DEVICE])) {
        return 0;
    }
    PyObject *device = PyObject_CallMethod(factor, "__dlpack_device__", NULL);
    PyObject *kind = device != NULL ? PySequence_GetItem(device, 0) : NULL;
    long number = kind != NULL ? PyLong_AsLong(kind) : -1;
    Py_XDECREF(device);
    Py_XDECREF(kind);
    return PyErr_Occurred() != NULL ? -1 : number != PY_DEVICE_CPU;
}

/* Create a ReduceOp PREMUL_SUM(factor). */
static PyObject *
make_scaled(PyTypeObject *type, PyObject *factor)
{
    PyObject *module;
    const py_state *state = py_state_of_type(type, &module);
    int is_tensor = state != NULL ? is_device_tensor(state, factor) : -1;
    double number = is_tensor == 0 ? PyFloat_AsDouble(factor) : 1.0;
    if (is_tensor < 0 || (number == -1.0 && PyErr_Occurred() != NULL)) {
        if (PyErr_ExceptionMatches(PyExc_TypeError)) {
            py_raise_wrong_type("ReduceOp", "factor", "a number or a tensor", factor);
        }
        return NULL;
    }
    py_reduce_op *self = (py_reduce_op *)make_constant(type, DD_REDOP_PREMUL_SUM);
    if (self != NULL) {
        self->has_factor = true;
        self->factor = number;
        self->tensor = is_tensor > 0 ? Py_NewRef(factor) : NULL;
    }
    return (PyObject *)self;
}

/* Return a new reference to the class attribute for an operation without a factor. */
static PyObject *
constant_of(PyTypeObject *type, dd_redop op)
{
    return PyObject_GetAttrString((PyObject *)type, dd_redop_name(op));
}

/* Return DistArgumentError (borrowed). */
static PyObject *
argument_error(PyTypeObject *type)
{
    PyObject *module;
    py_state *state = py_state_of_type(type, &module);
    return state != NULL ? state->errors[PY_ERROR_ARGUMENT] : NULL;
}

static void
raise_no_factor(PyObject *error)
{
    PyErr_SetString(error, "ReduceOp(): PREMUL_SUM needs a factor: ReduceOp.PREMUL_SUM(factor)");
}

static PyObject *
copy_op(PyTypeObject *type, const py_reduce_op *other)
{
    if (other->has_factor) {
        return Py_NewRef((PyObject *)(uintptr_t)other); /* immutable, so no copy is needed */
    }
    if (other->op == DD_REDOP_PREMUL_SUM) {
        PyObject *error = argument_error(type);
        if (error != NULL) {
            raise_no_factor(error);
        }
        return NULL;
    }
    return constant_of(type, other->op);
}

static PyObject *
make_named(PyTypeObject *type, const char *name, PyObject *factor)
{
    dd_redop op;
    PyObject *error = argument_error(type);
    if (error == NULL) {
        return NULL;
    }
    if (!find_op(name, &op)) {
        py_raise_for_argument(error, "ReduceOp", "name", "is the unknown reduction '%s': " EXPECTED, name);
        return NULL;
    }
    if (factor == NULL) {
        if (op == DD_REDOP_PREMUL_SUM) {
            raise_no_factor(error);
            return NULL;
        }
        return constant_of(type, op);
    }
    if (op != DD_REDOP_PREMUL_SUM) {
        PyErr_Format(error, "ReduceOp(): only PREMUL_SUM has a factor, %s has none", dd_redop_name(op));
        return NULL;
    }
    return make_scaled(type, factor);
}

static PyObject *
reduce_op_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *name;
    PyObject *factor = NULL;
    const py_params params =
        PY_PARAMS("ReduceOp", 1, 2, {"name", PY_OBJECT, &name}, {"factor", PY_OBJECT, &factor});
    if (!py_params_read_tuple(&params, NULL, args, kwargs)) {
        return NULL;
    }
    if (Py_TYPE(name) == type && factor == NULL) {
        return copy_op(type, (py_reduce_op *)name);
    }
    const char *text = read_name(name);
    if (text == NULL) {
        if (PyErr_Occurred() == NULL) {
            py_raise_wrong_type("ReduceOp", "name", EXPECTED_TYPE, name);
        }
        return NULL;
    }
    return make_named(type, text, factor);
}

/* Implement ReduceOp.PREMUL_SUM(factor): return a ReduceOp with this factor. */
static PyObject *
reduce_op_call(PyObject *object, PyObject *args, PyObject *kwargs)
{
    const py_reduce_op *self = (py_reduce_op *)object;
    PyObject *factor;
    const py_params params = PY_PARAMS("ReduceOp", 1, 1, {"factor", PY_OBJECT, &factor});
    if (!py_params_read_tuple(&params, NULL, args, kwargs)) {
        return NULL;
    }
    if (self->op != DD_REDOP_PREMUL_SUM) {
        PyObject *error = argument_error(Py_TYPE(object));
        if (error != NULL) {
            PyErr_Format(error, "Only PREMUL_SUM supports calling with a factor, got %R", object);
        }
        return NULL;
    }
    return make_scaled(Py_TYPE(object), factor);
}

static void
reduce_op_dealloc(PyObject *object)
{
    Py_XDECREF(((py_reduce_op *)object)->tensor);
    py_object_free(object);
}

static PyObject *
reduce_op_get_name(PyObject *object, void *Py_UNUSED(closure))
{
    return PyUnicode_FromString(dd_redop_name(((py_reduce_op *)object)->op));
}

static PyObject *
get_factor(PyObject *object, void *Py_UNUSED(closure))
{
    py_reduce_op *self = (py_reduce_op *)object;
    if (!self->has_factor) {
        Py_RETURN_NONE;
    }
    return self->tensor != NULL ? Py_NewRef(self->tensor) : PyFloat_FromDouble(self->factor);
}

static PyObject *
reduce_op_get_op(PyObject *object, void *Py_UNUSED(closure))
{
    py_reduce_op *self = (py_reduce_op *)object;
    return constant_of(Py_TYPE(object), self->op);
}

/* int(op): the numbers match c10d's RedOpType. */
static PyObject *
reduce_op_as_int(PyObject *object)
{
    return PyLong_FromLong((long)((py_reduce_op *)object)->op);
}

static PyObject *
get_value(PyObject *object, void *Py_UNUSED(closure))
{
    return reduce_op_as_int(object);
}

static PyObject *
reduce_op_repr(PyObject *object)
{
    py_reduce_op *self = (py_reduce_op *)object;
    if (!self->has_factor) {
        return PyUnicode_FromFormat("ReduceOp.%s", dd_redop_name(self->op));
    }
    PyObject *factor = get_factor(object, NULL);
    PyObject *text = factor != NULL ? PyUnicode_FromFormat("ReduceOp.PREMUL_SUM(%R)", factor) : NULL;
    Py_XDECREF(factor);
    return text;
}

static Py_hash_t
reduce_op_hash(PyObject *object)
{
    return (Py_hash_t)((py_reduce_op *)object)->op;
}

/* PREMUL_SUM without a factor equals PREMUL_SUM with any factor. */
static bool
is_equal(const py_reduce_op *a, const py_reduce_op *b)
{
    return a->op == b->op &&
           (!a->has_factor || !b->has_factor || (a->factor == b->factor && a->tensor == b->tensor));
}

static PyObject *
reduce_op_compare(PyObject *a, PyObject *b, int comparison)
{
    if (Py_TYPE(a) != Py_TYPE(b) || (comparison != Py_EQ && comparison != Py_NE)) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    return PyBool_FromLong(is_equal((py_reduce_op *)a, (py_reduce_op *)b) == (comparison == Py_EQ));
}

static PyObject *
reduce_op_reduce(PyObject *object, PyObject *Py_UNUSED(unused))
{
    py_reduce_op *self = (py_reduce_op *)object;
    const char *name = dd_redop_name(self->op);
    if (self->has_factor) {
        return Py_BuildValue("O(sN)", (PyObject *)Py_TYPE(object), name, get_factor(object, NULL));
    }
    /* As the result of __reduce__, pickle takes a str as the name of an existing object. */
    return PyUnicode_FromFormat("ReduceOp.%s", name);
}

static PyMethodDef reduce_op_methods[] = {
    {"__reduce__", reduce_op_reduce, METH_NOARGS, "__reduce__($self, /)\n--\n\nFor pickle and copy."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef reduce_op_getset[] = {
    {"name", reduce_op_get_name, NULL, "\"SUM\" and so on.", NULL},
    {"value", get_value, NULL, "Its number, as in c10d: SUM is 0.", NULL},
    {"op", reduce_op_get_op, NULL, "The operation without its factor.", NULL},
    {"factor", get_factor, NULL,
     "The factor of PREMUL_SUM, a float or a tensor on a device; None for the others.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot reduce_op_slots[] = {
    {Py_tp_doc,
     "ReduceOp(name, factor=None)\n--\n\nThe operation of a reduction: SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, and\n"
     "PREMUL_SUM(factor). The factor is a number; NCCL also takes a tensor of one element on the device.\n"
     "Wherever a ReduceOp is accepted, so is its name in upper or lower case: \"sum\".\n\n"
     "ReduceOp(op) copies. ReduceOp.RedOpType is this class. PREMUL_SUM without a factor stands for the operation in general."},
    {Py_tp_new, (void *)reduce_op_new},
    {Py_tp_dealloc, (void *)reduce_op_dealloc},
    {Py_tp_repr, (void *)reduce_op_repr},
    {Py_tp_hash, (void *)reduce_op_hash},
    {Py_tp_call, (void *)reduce_op_call},
    {Py_nb_int, (void *)reduce_op_as_int},
    {Py_nb_index, (void *)reduce_op_as_int},
    {Py_tp_richcompare, (void *)reduce_op_compare},
    {Py_tp_methods, reduce_op_methods},
    {Py_tp_getset, reduce_op_getset},
    {0, NULL},
};

PyType_Spec py_reduce_op_spec = {"dldist.ReduceOp", sizeof(py_reduce_op), 0, Py_TPFLAGS_DEFAULT,
                                 reduce_op_slots};

int
py_reduce_op_add_attributes(PyTypeObject *type)
{
    PyObject *object = (PyObject *)type;
    PyObject *members = PyDict_New();
    bool is_ok = members != NULL;
    for (int i = 0; is_ok && i < DD_REDOP_COUNT; i++) {
        const char *name = dd_redop_name((dd_redop)i);
        PyObject *op = make_constant(type, (dd_redop)i);
        is_ok = op != NULL && PyObject_SetAttrString(object, name, op) == 0 &&
                PyDict_SetItemString(members, name, op) == 0;
        Py_XDECREF(op);
    }
    PyObject *proxy = is_ok ? PyDictProxy_New(members) : NULL;
    is_ok = proxy != NULL && PyObject_SetAttrString(object, "__members__", proxy) == 0 &&
            PyObject_SetAttrString(object, "RedOpType", object) == 0;
    Py_XDECREF(proxy);
    Py_XDECREF(members);
    return is_ok ? 0 : -1;
}

static bool
refuse_kind(const py_state *state, const char *function)
{
    PyErr_Format(state->errors[PY_ERROR_ARGUMENT],
                 "%s(): argument 'op': PREMUL_SUM needs a factor: ReduceOp.PREMUL_SUM(factor)", function);
    return false;
}

static bool
read_op(const py_state *state, const py_reduce_op *op, dd_reduction *reduction, PyObject **tensor,
        const char *function)
{
    reduction->op = op->op;
    reduction->factor = op->factor;
    if (op->op == DD_REDOP_PREMUL_SUM && !op->has_factor) {
        return refuse_kind(state, function);
    }
    if (tensor != NULL) {
        *tensor = op->tensor;
    } else if (op->tensor != NULL) {
        PyErr_Format(
            state->errors[PY_ERROR_ARGUMENT],
            "%s(): argument 'op': the factor of PREMUL_SUM is a tensor on a GPU, expected a number or a CPU tensor",
            function);
        return false;
    }
    return true;
}

bool
py_reduce_op_read(const py_state *state, PyObject *object, dd_reduction *reduction, PyObject **tensor,
                  const char *function)
{
    reduction->op = DD_REDOP_SUM;
    reduction->factor = 1.0;
    if (tensor != NULL) {
        *tensor = NULL;
    }
    if (object == NULL) {
        return true;
    }
    if (Py_TYPE(object) == state->reduce_op_type) {
        return read_op(state, (py_reduce_op *)object, reduction, tensor, function);
    }
    const char *text = read_name(object);
    if (text == NULL) {
        if (PyErr_Occurred() == NULL) {
            py_raise_wrong_type(function, "op", EXPECTED_TYPE, object);
        }
        return false;
    }
    if (!find_op(text, &reduction->op)) {
        py_raise_argument(state, function, "op", "is the unknown reduction %R: " EXPECTED, object);
        return false;
    }
    return reduction->op != DD_REDOP_PREMUL_SUM || refuse_kind(state, function);
}

bool
py_reduce_op_add_factor(PyObject *tensor, py_operands *operands, const void **data)
{
    if (!py_operands_add(operands, tensor, PY_USE_IN, "op.factor")) {
        return false;
    }
    const py_piece *piece = &operands->pieces[operands->npieces - 1];
    *data = piece->tensor.view.data;
    if (piece->tensor.view.count != 1) {
        PyErr_Format(operands->state->errors[PY_ERROR_ARGUMENT],
                     "%s(): argument 'op': the factor of PREMUL_SUM has %zu elements, expected 1",
                     operands->function, piece->tensor.view.count);
        return false;
    }
    return true;
}
