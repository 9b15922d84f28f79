/* dldist.NcclGroup, a Group whose data NCCL moves. Methods: group/operations.c and group/p2p.c. */
#include "core/mem.h"
#include "python/base/error.h"
#include "python/base/object.h"
#include "python/nccl/nccl.h"
#include "python/observe/watch.h"

bool
py_nccl_group_choose_device(py_group *self, int *device)
{
    py_nccl_core *core = self->nccl;
    if (py_nccl_core_device(core) == PY_NO_DEVICE) {
        int guess = self->rank % self->state->nccl->cuda->ndevices;
        if (PyErr_WarnFormat(
                PyExc_UserWarning, 1,
                "this group does not know its device, and takes cuda:%d, as ranks often do: give it with "
                "device_id of init_process_group, or device_ids of barrier; if other ranks use another order, "
                "this may hang",
                guess) < 0) {
            return false;
        }
        py_nccl_core_note_device(core, guess);
    }
    *device = py_nccl_core_device(core);
    return true;
}

py_nccl_core *
py_nccl_core_create(dd_nccl_group *group, const dd_nccl_group_options *options, dd_recorder_group *recorded,
                    int device)
{
    py_nccl_core *core = dd_mem_zalloc(sizeof *core);
    if (core == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    core->group = group;
    core->options = *options;
    core->options.name = dd_bytes_of(NULL, 0);
    core->recorded = recorded;
    atomic_init(&core->device, device);
    atomic_init(&core->watch_id, 0);
    return core;
}

void
py_nccl_group_take(py_group *self, const py_group_kind *kind, py_nccl_core *core)
{
    self->nccl = core;
    py_group_publish(self, kind, dd_nccl_group_rank(core->group), dd_nccl_group_size(core->group));
}

void
py_nccl_group_drop(dd_nccl_group *group)
{
    Py_BEGIN_ALLOW_THREADS
    dd_nccl_group_release(group);
    Py_END_ALLOW_THREADS
}

PyObject *
py_nccl_group_wrap(const py_group *parent, dd_nccl_group *group, const dd_nccl_group_options *options,
                   dd_recorder_group *recorded, int device, PyObject *store)
{
    PyTypeObject *type = parent->state->nccl_group_type;
    py_group *self = (py_group *)py_object_new(type, NULL, NULL);
    py_nccl_core *core = self != NULL ? py_nccl_core_create(group, options, recorded, device) : NULL;
    if (core == NULL) {
        Py_XDECREF((PyObject *)self);
        py_nccl_group_drop(group);
        return NULL;
    }
    core->is_bound = parent->nccl->is_bound;
    core->is_blocking_wait = parent->nccl->is_blocking_wait;
    /* if the object shares the parent's group, it is from _host_view() and accepts host memory */
    core->is_host_taken = group == parent->nccl->group;
    self->store = Py_XNewRef(store);
    py_nccl_group_take(self, parent->kind, core);
    if (group != parent->nccl->group && py_watch_add_nccl(self) < 0) {
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    return (PyObject *)self;
}
