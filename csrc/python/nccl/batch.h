/* A batch: calls of one thread that become one operation, or one estimate of their duration. Only
 * that thread uses a batch. The core's lock guards the list of batches. */
#ifndef DD_PYTHON_NCCL_BATCH_H
#define DD_PYTHON_NCCL_BATCH_H

#include "python/nccl/nccl.h"
#include "python/observe/recorder.h"

/* Return the thread's innermost batch, or NULL. Calls may be coalesced within an estimate. */
py_nccl_batch *py_nccl_batch_find(py_nccl_core *core);
/* Create a batch as the thread's innermost. Returns NULL with an exception on failure. */
py_nccl_batch *py_nccl_batch_open(py_nccl_core *core, bool is_estimate);
/* Append items and take over their flights. On failure returns false with an exception; the flights
 * then stay the caller's. */
bool py_nccl_batch_append(py_nccl_batch *batch, const py_nccl_item *items, size_t nitems);
/* Remove the batch from the list. The caller then owns it. */
void py_nccl_batch_take_out(py_nccl_core *core, py_nccl_batch *batch);
/* Destroy a batch, with its items' flights if has_flights is set, and release its windows. */
void py_nccl_batch_destroy(py_nccl_batch *batch, bool has_flights);

/* Fill in the record of a call in `told`. Returns NULL if recording is off. */
dd_record_call *py_nccl_record(const py_group *group, const py_nccl_item *item, const char *what,
                               py_record *told);

/* ---- estimates */

/* Return the thread's estimate, or NULL. */
py_nccl_batch *py_nccl_estimate_find(py_nccl_core *core);
/* Add a call to the estimate, of several items if they were coalesced. Returns None, or a completed
 * Work. Returns NULL with an exception if NCCL cannot estimate such a call, or if out of memory;
 * the flights then stay the caller's. */
PyObject *py_nccl_estimate_add(const py_group *group, py_nccl_batch *estimate, const py_nccl_item *items,
                               size_t nitems, bool is_async);

#endif
