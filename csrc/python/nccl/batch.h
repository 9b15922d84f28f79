/* A batch: calls of one thread that become one operation, or one estimate of their duration. Only
 * that thread uses the batch. The list of batches is guarded by py_nccl_core.lock. */
#ifndef DD_PYTHON_NCCL_BATCH_H
#define DD_PYTHON_NCCL_BATCH_H

#include "python/nccl/nccl.h"
#include "python/observe/recorder.h"

/* Return the thread's innermost batch, or NULL. Coalesced calls may be nested in an estimate. */
py_nccl_batch *py_nccl_batch_find(py_nccl_core *core);
/* Create a batch and make it the thread's innermost. Return NULL with an exception on failure. */
py_nccl_batch *py_nccl_batch_open(py_nccl_core *core, bool is_estimate);
/* Append items and take ownership of their flights, the Python references of the calls
 * (work/work.h). On failure return false with an exception; the caller then still owns the
 * flights. */
bool py_nccl_batch_append(py_nccl_batch *batch, const py_nccl_item *items, size_t nitems);
/* Remove a batch from the core's list. The caller then owns the batch. */
void py_nccl_batch_take_out(py_nccl_core *core, py_nccl_batch *batch);
/* Destroy a batch and release its items' windows and configurations. If has_flights is true, also
 * destroy the items' flights. */
void py_nccl_batch_destroy(py_nccl_batch *batch, bool has_flights);

/* Fill in `record`, the description of a call for the flight recorder. Return the part of `record` that
 * the core needs, or NULL if recording is off. */
dd_record_call *py_nccl_record(const py_group *group, const py_nccl_item *item, const char *label,
                               py_record *record);

/* ---- estimates */

/* Return the thread's batch that collects calls for an estimate, or NULL. */
py_nccl_batch *py_nccl_estimate_find(py_nccl_core *core);
/* Add a call to the estimate; coalesced calls are added as several items. Return None, or a
 * completed Work. Return NULL with an exception if NCCL cannot estimate such a call, or if out of
 * memory; the caller then still owns the flights. */
PyObject *py_nccl_estimate_add(const py_group *group, py_nccl_batch *estimate, const py_nccl_item *items,
                               size_t nitems, bool is_async);

#endif
