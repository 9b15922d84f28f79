/* Plans has a method for each collective, made from the table of operations. */
#include "python/group/plan.h"

#include "python/base/object.h"
#include "python/group/operations.h"

typedef struct py_plans {
    PY_OBJECT_HEAD;
    PyObject *group; /* owned; const after new */
} py_plans;

PyObject *
py_plans_group(PyObject *plans)
{
    return ((py_plans *)plans)->group;
}

PyObject *
py_group_get_plan(PyObject *group, void *Py_UNUSED(closure))
{
    py_plans *self = (py_plans *)py_object_new(((py_group *)group)->state->plans_type, NULL, NULL);
    if (self != NULL) {
        self->group = Py_NewRef(group);
    }
    return (PyObject *)self;
}

static void
plans_dealloc(PyObject *object)
{
    py_object_begin_dealloc(object);
    Py_XDECREF(((py_plans *)object)->group);
    py_object_end_dealloc(object);
}

static int
plans_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((py_plans *)object)->module);
    Py_VISIT(((py_plans *)object)->group);
    return 0;
}

#define PLAN_METHOD(name, coll, type, call, former, recorded, as_one, nrequired, parameters, input, output, \
                    signature, doc)                                                                         \
    {#name, PY_FAST_METHOD(py_group_plan_##name),                                                           \
     #name signature "timeout=None)\n--\n\nReturns a Plan, which does this every time it is started. " doc},

static PyMethodDef plans_methods[] = {PY_OPERATION_LIST(PLAN_METHOD){NULL, NULL, 0, NULL}};

static PyType_Slot plans_slots[] = {
    {Py_tp_doc,
     "The methods that create plans of a group. They have the names and arguments of its collectives."},
    {Py_tp_dealloc, (void *)plans_dealloc},
    {Py_tp_traverse, (void *)plans_traverse},
    {Py_tp_methods, plans_methods},
    {Py_tp_members, py_object_members},
    {0, NULL},
};

PyType_Spec py_plans_spec = {"dldist.Plans", sizeof(py_plans), 0, PY_MADE_TYPE_FLAGS | Py_TPFLAGS_HAVE_GC,
                             plans_slots};
