/* Stream-ordered memory and its pools. Memory is allocated immediately: the caller must not use it
 * earlier than the stream allows. A graph keeps its allocations until it is destroyed, even while
 * they count as freed. Other devices of the process can read memory only if its pool is shared. */
#include "cuda_stub.h"

#include <stdlib.h>

typedef struct stub_pool {
    stub_object base;
    int device;
    atomic_bool is_shared; /* all other devices may read */
} stub_pool;

static void
free_pool(stub_object *object)
{
    free(object);
}

CUDA_EXPORT dd_cuda_result
cuMemPoolCreate(dd_cuda_pool *made, const dd_cuda_pool_props *props)
{
    ENTER(cuMemPoolCreate);
    bool is_good = props->allocType == DD_CUDA_ALLOCATION_PINNED && props->handleTypes == 0 &&
                   props->location.type == DD_CUDA_LOCATION_DEVICE && props->location.id >= 0 &&
                   props->location.id < cuda_device_count();
    if (!is_good) {
        return DD_CUDA_INVALID_VALUE;
    }
    stub_pool *pool = stub_zalloc(sizeof *pool);
    stub_object_init(&pool->base, free_pool);
    pool->device = props->location.id;
    *made = stub_table_add(&cuda_pools, &pool->base);
    return DD_CUDA_SUCCESS;
}

/* Destroy a pool. Memory that is still allocated stays valid. */
CUDA_EXPORT dd_cuda_result
cuMemPoolDestroy(dd_cuda_pool handle)
{
    ENTER(cuMemPoolDestroy);
    stub_pool *pool = stub_table_remove(&cuda_pools, handle);
    if (pool == NULL) {
        return DD_CUDA_INVALID_VALUE;
    }
    stub_object_release(&pool->base);
    return DD_CUDA_SUCCESS;
}

CUDA_EXPORT dd_cuda_result
cuMemPoolSetAccess(dd_cuda_pool handle, const dd_cuda_access *accesses, size_t count)
{
    ENTER(cuMemPoolSetAccess);
    stub_pool *pool = stub_table_find(&cuda_pools, handle);
    if (pool == NULL) {
        return DD_CUDA_INVALID_VALUE;
    }
    size_t nshared = 0;
    bool is_good = true;
    for (size_t i = 0; i < count; i++) {
        const dd_cuda_access *access = &accesses[i];
        is_good = is_good && access->location.type == DD_CUDA_LOCATION_DEVICE &&
                  access->location.id < cuda_device_count();
        nshared += access->location.id != pool->device && access->flags == DD_CUDA_ACCESS_READWRITE;
    }
    if (is_good && (int)nshared == cuda_device_count() - 1) {
        atomic_store(&pool->is_shared, true);
    }
    stub_object_release(&pool->base);
    return is_good ? DD_CUDA_SUCCESS : DD_CUDA_INVALID_DEVICE;
}

CUDA_EXPORT dd_cuda_result
cuDeviceCanAccessPeer(int *can, dd_cuda_device device, dd_cuda_device peer)
{
    ENTER(cuDeviceCanAccessPeer);
    *can = device != peer;
    return device >= 0 && peer >= 0 && device < cuda_device_count() && peer < cuda_device_count()
               ? DD_CUDA_SUCCESS
               : DD_CUDA_INVALID_DEVICE;
}

static void
run_nothing(void *ctx, void *launched)
{
    (void)ctx;
    (void)launched;
}

static void
end_with_graph(void *ctx)
{
    (void)cuda_release(ctx, false);
}

static dd_cuda_result
allocate_on(dd_cuda_stream handle, size_t nbytes, bool is_private, dd_cuda_ptr *data)
{
    int result;
    stub_stream *stream = cuda_stream_find(handle, &result);
    if (stream == NULL) {
        return (dd_cuda_result)result;
    }
    void *memory = NULL;
    result = (int)cuda_allocate(stream->device, nbytes, is_private, &memory);
    if (result == 0) {
        pthread_mutex_lock(&cuda_lock);
        if (stream->capture != NULL) {
            result = capture_add_locked(
                stream, &(dd_stub_work){.run = run_nothing, .release = end_with_graph, .ctx = memory}, -1);
        }
        pthread_mutex_unlock(&cuda_lock);
        if (result != 0) {
            (void)cuda_release(memory, false);
            memory = NULL;
        }
    }
    *data = (dd_cuda_ptr)(uintptr_t)memory;
    cuda_stream_release(stream);
    return (dd_cuda_result)result;
}

CUDA_EXPORT dd_cuda_result
cuMemAllocAsync(dd_cuda_ptr *data, size_t nbytes, dd_cuda_stream stream)
{
    ENTER(cuMemAllocAsync);
    return allocate_on(stream, nbytes, true, data);
}

CUDA_EXPORT dd_cuda_result
cuMemAllocFromPoolAsync(dd_cuda_ptr *data, size_t nbytes, dd_cuda_pool handle, dd_cuda_stream stream)
{
    ENTER(cuMemAllocFromPoolAsync);
    stub_pool *pool = stub_table_find(&cuda_pools, handle);
    if (pool == NULL) {
        return DD_CUDA_INVALID_VALUE;
    }
    dd_cuda_result result = allocate_on(stream, nbytes, !atomic_load(&pool->is_shared), data);
    stub_object_release(&pool->base);
    return result;
}

static void
run_free(void *ctx, void *launched)
{
    (void)launched;
    (void)cuda_release(ctx, false);
}

/* Free memory in a capture, which may only free its own allocations. */
static int
capture_free_locked(stub_stream *stream, const void *data)
{
    const stub_capture *capture = stream->capture;
    for (int i = 0; i < capture->nnodes; i++) {
        const dd_stub_work *work = &capture->nodes[i].work;
        if (work->release == end_with_graph && work->ctx == data) {
            return capture_add_locked(stream, &(dd_stub_work){.run = run_nothing}, -1);
        }
    }
    stub_count_bad_use();
    return DD_CUDA_INVALID_VALUE;
}

CUDA_EXPORT dd_cuda_result
cuMemFreeAsync(dd_cuda_ptr data, dd_cuda_stream handle)
{
    ENTER(cuMemFreeAsync);
    int result;
    stub_stream *stream = cuda_stream_find(handle, &result);
    if (stream == NULL) {
        return (dd_cuda_result)result;
    }
    pthread_mutex_lock(&cuda_lock);
    bool is_capturing = stream->capture != NULL;
    if (is_capturing) {
        result = capture_free_locked(stream, (void *)(uintptr_t)data);
    }
    pthread_mutex_unlock(&cuda_lock);
    if (!is_capturing) {
        result = cuda_enqueue(stream, &(dd_stub_work){.run = run_free, .ctx = (void *)(uintptr_t)data});
    }
    cuda_stream_release(stream);
    return (dd_cuda_result)result;
}
