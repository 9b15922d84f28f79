/* Collectives that a group has made lately, in a form that can be run again: where tensors, operation and root are alike but for where
 * the data lies, blocks need not be found, checked and described anew. */
#ifndef DD_PYTHON_GROUP_FORM_H
#define DD_PYTHON_GROUP_FORM_H

#include "python/group/call.h"
#include "python/observe/recorder.h"

typedef struct py_form py_form;
typedef struct py_forms py_forms;

/* Of a call whose operands and sides are complete, instead of py_operands_prepare: the form it has, and its blocks in the operands and
 * in `args`. NULL without an exception: it has none, or is one that must be looked at each time (several tensors, splits, staging, memory
 * that overlaps). NULL with one. The caller gives it back. */
py_form *py_form_take(py_group_call *call, dd_coll_args *args);
/* Makes it, of a call that has been prepared and is not staged. NULL without an exception: such calls are not kept, or there is no room.
 * NULL with one. */
py_form *py_form_make(py_group_call *call, const dd_coll_args *args);
/* NULL is fine. */
void py_form_give_back(py_form *form);
/* What dd_call_options wants. */
const dd_coll_form *py_form_core(const py_form *form);

/* Nobody has any. NULL is fine. */
void py_forms_destroy(py_forms *forms);

#endif
