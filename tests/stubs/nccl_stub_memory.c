/* NCCL's memory, and buffers that communicators have registered. */
#include "nccl_stub.h"

#include <stdlib.h>
#include <string.h>

stub_count nccl_redop_count = {.kind = "redop"};
stub_count nccl_memory_count = {.kind = "memory"};
static stub_count registration_count = {.kind = "registration"};
stub_count *const stub_counts[] = {&nccl_comm_count,    &nccl_redop_count,  &nccl_memory_count,
                                   &registration_count, &nccl_window_count, NULL};

typedef struct known_buffer {
    stub_object base;
    const void *comm; /* its handle */
    void *data;
    size_t nbytes;
} known_buffer;

static stub_table registrations = STUB_TABLE(&registration_count, 9);

/* An allocation by ncclMemAlloc; under nccl_lock. */
typedef struct mem {
    char *data;
    size_t nbytes;
    struct mem *next;
} mem;
static mem *first_mem;

dd_nccl_result
nccl_mem_alloc(void **data, size_t nbytes)
{
    int device;
    if (data == NULL) {
        return nccl_fail(DD_NCCL_UNHANDLED_CUDA_ERROR, "Cuda failure 1 'invalid argument'");
    }
    if (nbytes == 0) {
        *data = NULL; /* as cudaMalloc does */
        return DD_NCCL_SUCCESS;
    }
    int cuda = dd_stub_current_device(&device);
    cuda = cuda == 0 ? dd_stub_alloc(device, nbytes, data) : cuda;
    if (cuda != 0) {
        return nccl_fail(DD_NCCL_UNHANDLED_CUDA_ERROR, "ncclMemAlloc: Cuda failure %d", cuda);
    }
    mem *made = stub_zalloc(sizeof *made);
    pthread_mutex_lock(&nccl_lock);
    *made = (mem){.data = *data, .nbytes = nbytes, .next = first_mem};
    first_mem = made;
    pthread_mutex_unlock(&nccl_lock);
    stub_count_add(&nccl_memory_count);
    return DD_NCCL_SUCCESS;
}

dd_nccl_result
nccl_mem_free(void *data)
{
    if (data == NULL) {
        return DD_NCCL_SUCCESS;
    }
    pthread_mutex_lock(&nccl_lock);
    mem **link = &first_mem;
    while (*link != NULL && (*link)->data != data) {
        link = &(*link)->next;
    }
    mem *found = *link;
    if (found != NULL) {
        *link = found->next;
    }
    pthread_mutex_unlock(&nccl_lock);
    if (found == NULL) {
        stub_count_bad_use();
        return nccl_fail(DD_NCCL_INVALID_ARGUMENT, "ncclMemFree: not of ncclMemAlloc");
    }
    free(found);
    stub_count_remove(&nccl_memory_count);
    int cuda = dd_stub_free(data);
    return cuda == 0 ? DD_NCCL_SUCCESS
                     : nccl_fail(DD_NCCL_UNHANDLED_CUDA_ERROR, "ncclMemFree: Cuda failure %d", cuda);
}

bool
nccl_is_mem(const void *data, size_t nbytes)
{
    pthread_mutex_lock(&nccl_lock);
    bool is_found = false;
    for (const mem *at = first_mem; at != NULL && !is_found; at = at->next) {
        is_found = (uintptr_t)data >= (uintptr_t)at->data &&
                   (uintptr_t)data + nbytes <= (uintptr_t)at->data + at->nbytes;
    }
    pthread_mutex_unlock(&nccl_lock);
    return is_found;
}

static void
free_known(stub_object *object)
{
    free(object);
}

#define REGISTRATION_LOOKS_SINCE 23003

static dd_nccl_result
add_known(dd_nccl_comm_handle handle, stub_table *table, void *data, size_t nbytes, void **known)
{
    dd_nccl_result result;
    nccl_comm *comm = nccl_comm_find_ready(handle, NCCL_NEED_UNREVOKED, &result);
    if (comm == NULL) {
        return result;
    }
    nccl_comm_release(comm);
    if (known == NULL) {
        stub_count_bad_use(); /* the real library crashes */
        return DD_NCCL_INVALID_ARGUMENT;
    }
    /* Newer versions check the kind of memory, but not its device. */
    if (nccl_stub_version >= REGISTRATION_LOOKS_SINCE && dd_stub_memory_device(data, nbytes) == -2) {
        return nccl_fail(DD_NCCL_UNHANDLED_CUDA_ERROR, "Cuda failure 500 'named symbol not found'");
    }
    known_buffer *made = stub_zalloc(sizeof *made);
    stub_object_init(&made->base, free_known);
    made->comm = handle;
    made->data = data;
    made->nbytes = nbytes;
    *known = stub_table_add(table, &made->base);
    return DD_NCCL_SUCCESS;
}

static dd_nccl_result
remove_known(dd_nccl_comm_handle handle, stub_table *table, void *known)
{
    dd_nccl_result result;
    nccl_comm *comm = nccl_comm_find(handle, &result);
    if (comm == NULL) {
        return result;
    }
    nccl_comm_release(comm);
    known_buffer *found = stub_table_find(table, known);
    bool is_its = found != NULL && found->comm == (const void *)handle;
    if (found != NULL) {
        stub_object_release(&found->base);
    }
    if (!is_its) {
        return nccl_fail(DD_NCCL_INVALID_ARGUMENT, "deregistration of an unknown handle %p", known);
    }
    found = stub_table_remove(table, known);
    if (found != NULL) {
        stub_object_release(&found->base);
    }
    return DD_NCCL_SUCCESS;
}

dd_nccl_result
nccl_register(dd_nccl_comm_handle handle, void *data, size_t nbytes, void **registration)
{
    return add_known(handle, &registrations, data, nbytes, registration);
}

dd_nccl_result
nccl_deregister(dd_nccl_comm_handle handle, void *registration)
{
    if (registration == NULL) {
        return DD_NCCL_SUCCESS;
    }
    return remove_known(handle, &registrations, registration);
}
