/* The calls of a thread that will be one operation, or one estimate of how long they would take. Only that thread uses
 * a batch; the list of all is guarded by the core's lock. */
#ifndef DD_PYTHON_NCCL_BATCH_H
#define DD_PYTHON_NCCL_BATCH_H

#include "python/nccl/nccl.h"
#include "python/observe/recorder.h"

/* The innermost batch of this thread: calls may be coalesced within an estimate. NULL: it makes none. */
py_nccl_batch *py_nccl_batch_find(py_nccl_core *core);
/* A new one, innermost. NULL with an exception. */
py_nccl_batch *py_nccl_batch_open(py_nccl_core *core, bool is_estimate);
/* Takes over the flights of the items. False with an exception; then it does not. */
bool py_nccl_batch_append(py_nccl_batch *batch, const py_nccl_item *items, size_t nitems);
/* The caller owns it from then on. */
void py_nccl_batch_take_out(py_nccl_core *core, py_nccl_batch *batch);
/* With the windows that its items use, and with their flights if they have not been handed on. */
void py_nccl_batch_destroy(py_nccl_batch *batch, bool has_flights);

/* Fills in the record of a call in `told`; NULL if nothing is recorded. */
dd_record_call *py_nccl_record(const py_group *group, const py_nccl_item *item, const char *what,
                               py_record *told);

/* ---- estimates */

/* The estimate of this thread, or NULL. */
py_nccl_batch *py_nccl_estimate_find(py_nccl_core *core);
/* Adds a call, of several items if they have been coalesced. Returns None, or a Work that is done. NULL with an exception
 * if NCCL does not estimate such calls, or without memory; then the flights are still the caller's. */
PyObject *py_nccl_estimate_add(const py_group *group, py_nccl_batch *estimate, const py_nccl_item *items,
                               size_t nitems, bool is_async);

#endif
