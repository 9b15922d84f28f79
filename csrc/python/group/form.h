/* A cache of collectives that a group has run. A form is the checked description of a call. A later
 * call that differs only in the addresses of its data reuses the form: the later call's blocks need
 * not be found, checked and described again. */
#ifndef DD_PYTHON_GROUP_FORM_H
#define DD_PYTHON_GROUP_FORM_H

#include "python/group/call.h"
#include "python/observe/recorder.h"

typedef struct py_form py_form;
typedef struct py_forms py_forms;

/* Find the form of a call with complete operands and sides, and set the blocks in the operands and
 * in `args`, as py_operands_prepare would. The caller must release the form with py_form_release.
 * Return NULL without an exception if there is no form yet, or if the call must always be prepared
 * (several tensors, splits, staging, overlapping memory). */
py_form *py_form_acquire(py_group_call *call, dd_coll_args *args);
/* Create the form of a prepared call. The caller must release the form with py_form_release. Return
 * NULL without an exception if such a call is not cached, or no slot or memory is free. */
py_form *py_form_make(py_group_call *call, const dd_coll_args *args);
/* Release a form of the group; `form` may be NULL. */
void py_form_release(py_group *group, py_form *form);
/* Return the core's part of a form, for dd_call_options; NULL if `form` is NULL. */
const dd_coll_form *py_form_core(const py_form *form);

/* Destroy a group's forms, none of which may be in use. `forms` may be NULL. */
void py_forms_destroy(py_forms *forms);

#endif
