/* dldist.Plan: a collective that is prepared once and can be started many times. */
#ifndef DD_PYTHON_GROUP_PLAN_H
#define DD_PYTHON_GROUP_PLAN_H

#include "python/group/call.h"

/* Fail if the group does not support plans. */
bool py_plan_require(const py_group *group, const py_params *params);

/* Create a Plan from a call with prepared operands, and end the call. The Plan takes ownership of
 * the call's flight, the Python references of the operation (work/work.h). */
PyObject *py_plan_make(py_group_call *call, const dd_coll_args *args);

/* The arguments of a plan, all borrowed from the plan. */
typedef struct py_plan_description {
    dd_coll_args args;
    int64_t timeout_ns;
    const py_operands *operands;
} py_plan_description;
/* Read the arguments of a Plan, and keep the Plan alive until py_plan_end_description. Fail if the
 * object is not a Plan, or is closed. */
bool py_plan_describe(const py_state *state, PyObject *plan, py_plan_description *description);
void py_plan_end_description(PyObject *plan);

extern PyType_Spec py_plan_spec;

/* dldist.Plans: the attribute `plan` of a group, whose methods create Plans. */
extern PyType_Spec py_plans_spec;

/* Return the group of a Plans object, as a borrowed reference. */
PyObject *py_plans_group(PyObject *plans);
/* Implement Group.plan: return a new Plans object, which holds the group. */
PyObject *py_group_get_plan(PyObject *group, void *closure);

/* Module functions. start_all(plans) starts the plans in order; consecutive plans of one group
 * start together. wait_all(plans) waits for each plan. */
PyObject *py_plan_start_all(PyObject *module, PyObject *plans);
PyObject *py_plan_wait_all(PyObject *module, PyObject *plans);

#endif
