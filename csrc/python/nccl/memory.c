/* Memory from ncclMemAlloc: for dldist's arrays, and for other libraries' allocators by two C
 * functions. These functions have no context argument, so they find NCCL by a variable. They may be
 * called on any thread, with the GIL or without. */
#include "core/fork.h"
#include "python/base/error.h"
#include "python/nccl/nccl.h"

#include <stdatomic.h>

void
py_nccl_mem_free(const py_nccl *nccl, int device, void *data)
{
    dd_cuda_guard guard;
    if (dd_cuda_enter(nccl->cuda, device, &guard, NULL) == DD_OK) {
        (void)nccl->lib->api.ncclMemFree(data);
        dd_cuda_leave(&guard);
    }
}

dd_status
py_nccl_mem_alloc(const py_nccl *nccl, int device, size_t nbytes, void **data, dd_error *err)
{
    dd_cuda_guard guard;
    *data = NULL;
    dd_status status = dd_nccl_need(nccl->lib, DD_NCCL_CAN_MEM_ALLOC, err);
    if (status != DD_OK || nbytes == 0) {
        return status;
    }
    status = dd_cuda_enter(nccl->cuda, device, &guard, err);
    if (status == DD_OK) {
        dd_nccl_last_error before;
        dd_nccl_note_last_error(nccl->lib, NULL, &before);
        status = dd_nccl_check(nccl->lib, &before, nccl->lib->api.ncclMemAlloc(data, nbytes), err,
                               "ncclMemAlloc of %zu bytes on cuda:%d", nbytes, device);
        dd_cuda_leave(&guard);
    }
    return status;
}

/* ---- other libraries' allocators */

static _Atomic(const py_nccl *)
    /* NCCL's state for the allocators; NULL until requested, and after the module's end */
    loaded;

/* Return the allocators' NCCL state; NULL if NCCL is not loaded, or in a forked child. */
static const py_nccl *
find_nccl(void)
{
    const py_nccl *nccl = atomic_load_explicit(&loaded, memory_order_acquire);
    return nccl != NULL && nccl->generation == dd_fork_generation() ? nccl : NULL;
}

/* PyTorch's CUDAPluggableAllocator calls this function. Return NULL if out of memory. */
static void *
torch_allocate(size_t nbytes, int device, void *Py_UNUSED(stream))
{
    const py_nccl *nccl = find_nccl();
    void *data = NULL;
    return nccl != NULL && py_nccl_mem_alloc(nccl, device, nbytes, &data, NULL) == DD_OK ? data : NULL;
}

static void
torch_release(void *data, size_t Py_UNUSED(nbytes), int device, void *Py_UNUSED(stream))
{
    const py_nccl *nccl = find_nccl();
    if (nccl != NULL) {
        py_nccl_mem_free(nccl, device, data);
    }
}

PyObject *
py_nccl_allocator(PyObject *module, PyObject *Py_UNUSED(unused))
{
    py_state *state = PyModule_GetState(module);
    const py_nccl *nccl = py_nccl_get(state);
    dd_error err;
    if (nccl == NULL ||
        !py_error_check_of_group(state, dd_nccl_need(nccl->lib, DD_NCCL_CAN_MEM_ALLOC, &err), &err)) {
        return NULL;
    }
    atomic_store_explicit(&loaded, nccl, memory_order_release);
    return Py_BuildValue("(KK)", (unsigned long long)(uintptr_t)torch_allocate,
                         (unsigned long long)(uintptr_t)torch_release);
}

void
py_nccl_allocator_end(void)
{
    atomic_store_explicit(&loaded, NULL, memory_order_release);
}
