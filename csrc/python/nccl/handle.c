/* Handles: the communicators of NcclComms and NcclRankComm objects, kept by unfinished calls. */
#include "core/fork.h"
#include "python/nccl/team.h"

static void *
begin_locked(py_nccl_handle *self, bool is_closed_taken)
{
    void *handle = self->is_closed && !is_closed_taken ? NULL : self->handle;
    self->ncalls += handle != NULL ? 1 : 0;
    return handle;
}

void *
py_nccl_handle_begin(py_nccl_handle *self)
{
    void *handle = PY_LOCKED(&self->lock, begin_locked(self, false));
    if (handle == NULL) {
        PyErr_SetString(self->state->errors[PY_ERROR_BACKEND], "the communicator is closed");
    }
    return handle;
}

void *
py_nccl_handle_begin_late(py_nccl_handle *self)
{
    return PY_LOCKED(&self->lock, begin_locked(self, true));
}

/* Remove and return the handle if the object is closed and no call keeps it; otherwise NULL. */
static void *
take_closed_locked(py_nccl_handle *self)
{
    void *handle = self->is_closed && self->ncalls == 0 ? self->handle : NULL;
    if (handle != NULL) {
        self->handle = NULL;
    }
    return handle;
}

static void
destroy_taken(const py_nccl_handle *self, void *handle)
{
    if (handle != NULL && self->state->nccl->generation == dd_fork_generation()) {
        Py_BEGIN_ALLOW_THREADS
        self->destroy(handle);
        Py_END_ALLOW_THREADS
    }
}

void
py_nccl_handle_end(py_nccl_handle *self)
{
    py_lock_take(&self->lock);
    self->ncalls--;
    void *handle = take_closed_locked(self);
    py_lock_release(&self->lock);
    destroy_taken(self, handle);
}

void
py_nccl_handle_close(py_nccl_handle *self)
{
    py_lock_take(&self->lock);
    self->is_closed = true;
    void *handle = take_closed_locked(self);
    py_lock_release(&self->lock);
    destroy_taken(self, handle);
}

static bool
is_new_locked(const py_nccl_handle *self)
{
    return self->handle == NULL && !self->is_closed;
}

bool
py_nccl_handle_is_new(py_nccl_handle *self)
{
    return PY_LOCKED(&self->lock, is_new_locked(self));
}

bool
py_nccl_handle_set(py_nccl_handle *self, void *handle, void (*destroy)(void *handle))
{
    py_lock_take(&self->lock);
    bool is_new = is_new_locked(self);
    if (is_new) {
        self->handle = handle;
        self->destroy = destroy;
    }
    py_lock_release(&self->lock);
    return is_new;
}

PyObject *
py_nccl_handle_enter(PyObject *object, PyObject *Py_UNUSED(unused))
{
    py_nccl_handle *self = (py_nccl_handle *)object;
    if (py_nccl_handle_begin(self) == NULL) {
        return NULL;
    }
    py_nccl_handle_end(self);
    return Py_NewRef(object);
}

PyObject *
py_nccl_handle_exit(PyObject *object, PyObject *Py_UNUSED(args))
{
    py_nccl_handle_close((py_nccl_handle *)object);
    Py_RETURN_NONE;
}

void
py_nccl_handle_dealloc(PyObject *object)
{
    py_object_begin_dealloc(object);
    py_nccl_handle_close((py_nccl_handle *)object);
    py_object_end_dealloc(object);
}
