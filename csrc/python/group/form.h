/* The collectives that a group has run lately, in a form that can be run again. If a call differs from an earlier
 * one only in where its data lies, its blocks need not be found, checked and described again. */
#ifndef DD_PYTHON_GROUP_FORM_H
#define DD_PYTHON_GROUP_FORM_H

#include "python/group/call.h"
#include "python/observe/recorder.h"

typedef struct py_form py_form;
typedef struct py_forms py_forms;

/* Finds the form of a call whose operands and sides are complete, and fills in the blocks in the operands and in
 * `args`, as py_operands_prepare would. The caller must give the form back. NULL without an exception: the call
 * has no form yet, or must be prepared each time (several tensors, splits, staging, overlapping memory). NULL with
 * an exception on failure. */
py_form *py_form_take(py_group_call *call, dd_coll_args *args);
/* Makes the form of a call that has been prepared. The caller must give it back. NULL without an exception: such
 * calls are not kept, or there is no room. NULL with an exception on failure. */
py_form *py_form_make(py_group_call *call, const dd_coll_args *args);
/* Gives a form of the group back, which may be NULL. */
void py_form_give_back(py_group *group, py_form *form);
/* The core's form, for dd_call_options. NULL for NULL. */
const dd_coll_form *py_form_core(const py_form *form);

/* No form may be in use. `forms` may be NULL. */
void py_forms_destroy(py_forms *forms);

#endif
