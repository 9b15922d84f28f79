/* Device memory is host memory that is tracked: its device and its amount. */
#include "cuda_stub.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Fill new memory, so that a read before the first write is detected. */
#define FRESH 0xa5
#define FRESH_MAX ((size_t)1 << 20)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static allocation *allocations; /* by address */
static size_t nallocations;
static size_t capacity;
static long long nbytes_allocated;
static long long nbytes_limit = -1;

void
dd_stub_limit_memory(long long nbytes)
{
    pthread_mutex_lock(&lock);
    nbytes_limit = nbytes;
    pthread_mutex_unlock(&lock);
}

/* Return the number of allocations that begin at or before `data`. */
static size_t
rank_locked(const void *data)
{
    size_t low = 0;
    size_t high = nallocations;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if ((uintptr_t)allocations[middle].data <= (uintptr_t)data) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

bool
cuda_find_allocation(const void *data, allocation *found)
{
    pthread_mutex_lock(&lock);
    size_t rank = rank_locked(data);
    bool is_there = false;
    if (rank > 0) {
        *found = allocations[rank - 1];
        is_there = (uintptr_t)data < (uintptr_t)found->data + found->nbytes;
    }
    pthread_mutex_unlock(&lock);
    return is_there;
}

static void
insert_locked(const allocation *made)
{
    if (nallocations == capacity) {
        capacity = capacity == 0 ? 64 : 2 * capacity;
        allocations = realloc(allocations, capacity * sizeof *allocations);
        if (allocations == NULL) {
            abort();
        }
    }
    size_t rank = rank_locked(made->data);
    memmove(allocations + rank + 1, allocations + rank, (nallocations - rank) * sizeof *allocations);
    allocations[rank] = *made;
    nallocations++;
    nbytes_allocated += (long long)made->nbytes;
}

/* Map memory that other processes can map by its file. Return NULL on failure. */
static void *
map_file(size_t nbytes, int *file)
{
    *file = memfd_create("dldist-stub", MFD_CLOEXEC);
    if (*file < 0) {
        return NULL;
    }
    void *memory = ftruncate(*file, (off_t)nbytes) == 0
                       ? mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, *file, 0)
                       : MAP_FAILED;
    if (memory == MAP_FAILED) {
        close(*file);
        return NULL;
    }
    return memory;
}

/* Readable by one device, by all devices of the process, or also by other processes, through a
 * file. */
typedef enum memory_reach {
    REACH_DEVICE,
    REACH_PROCESS,
    REACH_HOST,
} memory_reach;

static dd_cuda_result
allocate_as(int device, size_t nbytes, memory_reach reach, void **data)
{
    if (nbytes == 0) {
        return DD_CUDA_INVALID_VALUE;
    }
    int file = CUDA_NO_FILE;
    pthread_mutex_lock(&lock);
    bool is_too_much = nbytes_limit >= 0 && nbytes_allocated + (long long)nbytes > nbytes_limit;
    void *memory = is_too_much           ? NULL
                   : reach == REACH_HOST ? map_file(nbytes, &file)
                                         : aligned_alloc(256, (nbytes + 255) / 256 * 256);
    if (memory != NULL) {
        memset(memory, FRESH, nbytes < FRESH_MAX ? nbytes : FRESH_MAX);
        insert_locked(&(allocation){.data = memory,
                                    .nbytes = nbytes,
                                    .device = device,
                                    .is_private = reach == REACH_DEVICE,
                                    .file = file});
    }
    pthread_mutex_unlock(&lock);
    if (memory == NULL) {
        return DD_CUDA_ERROR_OUT_OF_MEMORY;
    }
    stub_count_add(device >= 0 ? &cuda_memory : &cuda_host_memory);
    *data = memory;
    return DD_CUDA_SUCCESS;
}

dd_cuda_result
cuda_allocate(int device, size_t nbytes, bool is_private, void **data)
{
    return allocate_as(device, nbytes, is_private ? REACH_DEVICE : REACH_PROCESS, data);
}

static void
free_memory(const allocation *ended)
{
    if (ended->file == CUDA_NO_FILE) {
        free(ended->data);
    } else {
        munmap(ended->data, ended->nbytes);
        close(ended->file);
    }
}

dd_cuda_result
cuda_release(void *data, bool is_host)
{
    allocation ended = {.data = NULL};
    pthread_mutex_lock(&lock);
    size_t rank = rank_locked(data);
    bool is_ours =
        rank > 0 && allocations[rank - 1].data == data && (allocations[rank - 1].device < 0) == is_host;
    if (is_ours) {
        ended = allocations[rank - 1];
        nbytes_allocated -= (long long)allocations[rank - 1].nbytes;
        memmove(allocations + rank - 1, allocations + rank, (nallocations - rank) * sizeof *allocations);
        nallocations--;
    }
    pthread_mutex_unlock(&lock);
    if (!is_ours) {
        stub_count_bad_use();
        return DD_CUDA_INVALID_VALUE;
    }
    free_memory(&ended);
    stub_count_remove(is_host ? &cuda_host_memory : &cuda_memory);
    return DD_CUDA_SUCCESS;
}

int
dd_stub_alloc(int device, size_t nbytes, void **data)
{
    return (int)(cuda_is_down() ? DD_CUDA_DEINITIALIZED : allocate_as(device, nbytes, REACH_HOST, data));
}

int
dd_stub_free(void *data)
{
    return (int)(cuda_is_down() ? DD_CUDA_DEINITIALIZED : cuda_release(data, false));
}

int
dd_stub_memory_device(const void *data, size_t nbytes)
{
    allocation found;
    if (!cuda_find_allocation(data, &found) ||
        (uintptr_t)data + nbytes > (uintptr_t)found.data + found.nbytes) {
        return -2;
    }
    return found.device;
}

int
dd_stub_is_private(const void *data)
{
    allocation found;
    return cuda_find_allocation(data, &found) && found.is_private;
}

bool
dd_stub_find_file(const void *data, dd_stub_file *found)
{
    allocation memory;
    bool is_there = cuda_find_allocation(data, &memory) && memory.file != CUDA_NO_FILE;
    if (is_there) {
        *found = (dd_stub_file){.file = memory.file,
                                .nbytes = memory.nbytes,
                                .offset = (size_t)((const char *)data - (const char *)memory.data)};
    }
    return is_there;
}

static void *
pointer(dd_cuda_ptr data)
{
    return (void *)(uintptr_t)data;
}

CUDA_EXPORT dd_cuda_result
cuMemAlloc_v2(dd_cuda_ptr *data, size_t nbytes)
{
    ENTER(cuMemAlloc);
    int unsafe = capture_check_unsafe();
    if (unsafe != 0) {
        return (dd_cuda_result)unsafe;
    }
    int device = cuda_current_device();
    void *memory = NULL;
    dd_cuda_result result =
        device < 0 ? DD_CUDA_INVALID_CONTEXT : cuda_allocate(device, nbytes, false, &memory);
    *data = (dd_cuda_ptr)(uintptr_t)memory;
    return result;
}

/* Freeing waits for all work that the device has now, from any thread. */
static dd_cuda_result
free_when_idle(void *data, bool is_host)
{
    int unsafe = capture_check_unsafe();
    if (unsafe != 0) {
        return (dd_cuda_result)unsafe;
    }
    allocation found;
    bool is_known = cuda_find_allocation(data, &found);
    int device = is_known && found.device >= 0 ? found.device : cuda_current_device();
    if (is_known && device >= 0) {
        cuda_wait_device(device);
    }
    return cuda_release(data, is_host);
}

CUDA_EXPORT dd_cuda_result
cuMemFree_v2(dd_cuda_ptr data)
{
    ENTER(cuMemFree);
    return data == 0 ? DD_CUDA_SUCCESS : free_when_idle(pointer(data), false);
}

/* Handles of ncclMemAlloc's memory. */
CUDA_EXPORT dd_cuda_result
cuMemRetainAllocationHandle(dd_cuda_memory_handle *handle, void *data)
{
    ENTER(cuMemRetainAllocationHandle);
    dd_stub_file found;
    if (!dd_stub_find_file(data, &found)) {
        return DD_CUDA_INVALID_VALUE;
    }
    *handle = (dd_cuda_memory_handle)found.file;
    return DD_CUDA_SUCCESS;
}

CUDA_EXPORT dd_cuda_result
cuMemRelease(dd_cuda_memory_handle handle)
{
    ENTER(cuMemRelease);
    (void)handle;
    return DD_CUDA_SUCCESS;
}

CUDA_EXPORT dd_cuda_result
cuMemHostAlloc(void **data, size_t nbytes, unsigned int flags)
{
    ENTER(cuMemHostAlloc);
    (void)flags;
    int unsafe = capture_check_unsafe();
    return unsafe != 0                 ? (dd_cuda_result)unsafe
           : cuda_current_device() < 0 ? DD_CUDA_INVALID_CONTEXT
                                       : cuda_allocate(-1, nbytes, false, data);
}

CUDA_EXPORT dd_cuda_result
cuMemFreeHost(void *data)
{
    ENTER(cuMemFreeHost);
    return free_when_idle(data, true);
}
