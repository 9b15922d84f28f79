#include "python/py_reduce_op.h"

#include <string.h>
#include <strings.h>

typedef struct py_reduce_op {
    PyObject ob_base; /* PyObject_HEAD */
    dd_redop op;
    double factor; /* of PREMUL_SUM */
} py_reduce_op;

static bool
find_op(const char *text, dd_redop *op)
{
    for (int i = 0; i < DD_REDOP_COUNT; i++) {
        if (strcasecmp(text, dd_redop_name((dd_redop)i)) == 0) {
            *op = (dd_redop)i;
            return true;
        }
    }
    return false;
}

static PyObject *
make_op(PyTypeObject *type, dd_redop op, double factor)
{
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    py_reduce_op *self = (py_reduce_op *)alloc(type, 0);
    if (self != NULL) {
        self->op = op;
        self->factor = factor;
    }
    return (PyObject *)self;
}

static PyObject *
reduce_op_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"name", "factor", NULL};
    const char *text;
    PyObject *factor = NULL;
    dd_redop op;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "s|O:ReduceOp", keywords, &text, &factor)) {
        return NULL;
    }
    if (!find_op(text, &op)) {
        PyErr_Format(PyExc_ValueError, "ReduceOp(): no operation is called \"%s\"", text);
        return NULL;
    }
    bool has_factor = factor != NULL && factor != Py_None;
    if (has_factor != (op == DD_REDOP_PREMUL_SUM)) {
        PyErr_Format(PyExc_ValueError,
                     has_factor ? "ReduceOp(): only PREMUL_SUM has a factor, %s has none"
                                : "ReduceOp(): %s needs a factor: ReduceOp.PREMUL_SUM(factor)",
                     dd_redop_name(op));
        return NULL;
    }
    double number = has_factor ? PyFloat_AsDouble(factor) : 1.0;
    if (number == -1.0 && PyErr_Occurred() != NULL) {
        return NULL;
    }
    return make_op(type, op, number);
}

static PyObject *
reduce_op_premul_sum(PyObject *type, PyObject *factor)
{
    double number = PyFloat_AsDouble(factor);
    if (number == -1.0 && PyErr_Occurred() != NULL) {
        return NULL;
    }
    return make_op((PyTypeObject *)type, DD_REDOP_PREMUL_SUM, number);
}

static void
reduce_op_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    freefunc free_object = (freefunc)PyType_GetSlot(type, Py_tp_free);
    free_object(object);
    Py_DECREF(type);
}

static PyObject *
get_name(PyObject *object, void *closure)
{
    (void)closure;
    return PyUnicode_FromString(dd_redop_name(((py_reduce_op *)object)->op));
}

static PyObject *
get_factor(PyObject *object, void *closure)
{
    (void)closure;
    py_reduce_op *self = (py_reduce_op *)object;
    if (self->op != DD_REDOP_PREMUL_SUM) {
        Py_RETURN_NONE;
    }
    return PyFloat_FromDouble(self->factor);
}

static PyObject *
reduce_op_repr(PyObject *object)
{
    py_reduce_op *self = (py_reduce_op *)object;
    if (self->op != DD_REDOP_PREMUL_SUM) {
        return PyUnicode_FromFormat("ReduceOp.%s", dd_redop_name(self->op));
    }
    PyObject *factor = PyFloat_FromDouble(self->factor);
    PyObject *text = factor != NULL ? PyUnicode_FromFormat("ReduceOp.PREMUL_SUM(%R)", factor) : NULL;
    Py_XDECREF(factor);
    return text;
}

static Py_hash_t
reduce_op_hash(PyObject *object)
{
    py_reduce_op *self = (py_reduce_op *)object;
    uint64_t bits;
    double factor = self->factor + 0.0; /* one zero, since both are equal */
    memcpy(&bits, &factor, sizeof bits);
    Py_hash_t hash = (Py_hash_t)(bits * UINT64_C(0x9E3779B97F4A7C15) >> 8) + (Py_hash_t)self->op;
    return hash == -1 ? -2 : hash;
}

static PyObject *
reduce_op_compare(PyObject *a, PyObject *b, int comparison)
{
    if (Py_TYPE(a) != Py_TYPE(b) || (comparison != Py_EQ && comparison != Py_NE)) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    const py_reduce_op *left = (py_reduce_op *)a;
    const py_reduce_op *right = (py_reduce_op *)b;
    bool is_equal = left->op == right->op && left->factor == right->factor;
    return PyBool_FromLong(is_equal == (comparison == Py_EQ));
}

static PyObject *
reduce_op_reduce(PyObject *object, PyObject *unused)
{
    (void)unused;
    py_reduce_op *self = (py_reduce_op *)object;
    const char *name = dd_redop_name(self->op);
    if (self->op == DD_REDOP_PREMUL_SUM) {
        return Py_BuildValue("O(sd)", (PyObject *)Py_TYPE(object), name, self->factor);
    }
    return Py_BuildValue("O(s)", (PyObject *)Py_TYPE(object), name);
}

static PyMethodDef reduce_op_methods[] = {
    {"PREMUL_SUM", reduce_op_premul_sum, METH_O | METH_CLASS,
     "PREMUL_SUM($type, factor, /)\n--\n\nThe sum of what every rank gives, each multiplied by its factor."},
    {"__reduce__", reduce_op_reduce, METH_NOARGS, "__reduce__($self, /)\n--\n\nFor pickle and copy."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef reduce_op_getset[] = {
    {"name", get_name, NULL, "\"SUM\" and so on.", NULL},
    {"factor", get_factor, NULL, "The factor of PREMUL_SUM, None for the others.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot reduce_op_slots[] = {
    {Py_tp_doc,
     "ReduceOp(name, factor=None)\n--\n\nWhat a reduction does: SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, and\n"
     "PREMUL_SUM(factor). Wherever one is wanted, its name will do, in any case: \"sum\"."},
    {Py_tp_new, (void *)reduce_op_new},
    {Py_tp_dealloc, (void *)reduce_op_dealloc},
    {Py_tp_repr, (void *)reduce_op_repr},
    {Py_tp_hash, (void *)reduce_op_hash},
    {Py_tp_richcompare, (void *)reduce_op_compare},
    {Py_tp_methods, reduce_op_methods},
    {Py_tp_getset, reduce_op_getset},
    {0, NULL},
};

static PyType_Spec reduce_op_spec = {
    .name = "dldist.ReduceOp",
    .basicsize = sizeof(py_reduce_op),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = reduce_op_slots,
};

PyObject *
py_reduce_op_make_type(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &reduce_op_spec, NULL);
    for (int i = 0; type != NULL && i < DD_REDOP_COUNT; i++) {
        if (i == DD_REDOP_PREMUL_SUM) {
            continue;
        }
        PyObject *op = make_op((PyTypeObject *)type, (dd_redop)i, 1.0);
        if (op == NULL || PyObject_SetAttrString(type, dd_redop_name((dd_redop)i), op) < 0) {
            Py_CLEAR(type);
        }
        Py_XDECREF(op);
    }
    return type;
}

bool
py_reduce_op_read(const py_state *state, PyObject *object, dd_reduction *reduction, const char *function)
{
    reduction->op = DD_REDOP_SUM;
    reduction->factor = 1.0;
    if (object == NULL) {
        return true;
    }
    if (Py_TYPE(object) == state->reduce_op_type) {
        const py_reduce_op *self = (py_reduce_op *)object;
        reduction->op = self->op;
        reduction->factor = self->factor;
        return true;
    }
    const char *text = PyUnicode_Check(object) ? PyUnicode_AsUTF8AndSize(object, NULL) : NULL;
    if (text == NULL) {
        if (PyErr_Occurred() == NULL) {
            PyErr_Format(PyExc_TypeError, "%s(): argument 'op' must be a ReduceOp or its name, not %R",
                         function, object);
        }
        return false;
    }
    if (!find_op(text, &reduction->op)) {
        PyErr_Format(PyExc_ValueError, "%s(): argument 'op': no operation is called %R", function, object);
        return false;
    }
    if (reduction->op == DD_REDOP_PREMUL_SUM) {
        PyErr_Format(PyExc_ValueError,
                     "%s(): argument 'op': PREMUL_SUM needs a factor: "
                     "ReduceOp.PREMUL_SUM(factor)",
                     function);
        return false;
    }
    return true;
}
