/* dldist.Plan: a collective that is prepared once and can be started many times. */
#ifndef DD_PYTHON_GROUP_PLAN_H
#define DD_PYTHON_GROUP_PLAN_H

#include "python/group/call.h"

/* False with an exception if the group cannot have plans. */
bool py_plan_require(const py_group *group, const py_params *params);

/* Ends a call whose operands have been prepared. Returns a Plan, which takes over the flight; NULL with an
 * exception. */
PyObject *py_plan_make(py_group_call *call, const dd_coll_args *args);

/* What a plan does. All of it is the plan's. */
typedef struct py_plan_description {
    dd_coll_args args;
    int64_t timeout_ns;
    const py_operands *operands;
} py_plan_description;
/* False with an exception if it is no plan, or is closed. Otherwise the plan does not end until the caller calls
 * py_plan_end_description. */
bool py_plan_describe(const py_state *state, PyObject *plan, py_plan_description *description);
void py_plan_end_description(PyObject *plan);

extern PyType_Spec py_plan_spec;

/* Functions of the module. start_all(plans) starts the plans in order, consecutive ones of one group together;
 * wait_all(plans) waits for each. */
PyObject *py_plan_start_all(PyObject *module, PyObject *plans);
PyObject *py_plan_wait_all(PyObject *module, PyObject *plans);

#endif
