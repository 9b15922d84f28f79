/* Streams, including the default ones: queues that have a thread each. */
#include "cuda_stub.h"

#include <stdlib.h>
#include <string.h>

/* under cuda_lock; created when needed, and never destroyed */
static stub_stream *legacy_streams[CUDA_MAX_DEVICES];
/* all except the legacy stream; under cuda_lock; borrowed */
static stub_stream *streams_of[CUDA_MAX_DEVICES];
static pthread_key_t per_thread_key;

typedef struct per_thread {
    stub_stream *streams[CUDA_MAX_DEVICES];
} per_thread;

/* ---- the thread of a stream */

static void *
serve(void *arg)
{
    stub_stream *stream = arg;
    pthread_mutex_lock(&cuda_lock);
    for (;;) {
        while (stream->first == NULL && !stream->is_destroyed) {
            pthread_cond_wait(&stream->has_work, &cuda_lock);
        }
        stub_task *task = stream->first;
        if (task == NULL) {
            break;
        }
        stream->first = task->next;
        pthread_mutex_unlock(&cuda_lock);
        task->work.run(task->work.ctx, task->launched);
        if (task->work.release != NULL) {
            task->work.release(task->work.ctx);
        }
        free(task);
        pthread_mutex_lock(&cuda_lock);
        stream->ndone++;
        pthread_cond_broadcast(&cuda_changed);
    }
    pthread_mutex_unlock(&cuda_lock);
    stub_object_release(&stream->base);
    return NULL;
}

/* Simulate a device that takes no time: callers run the work that they enqueue, and no thread is
 * woken. */
static bool is_instant; /* set once */

static uint64_t
carry_out_locked(stub_stream *stream, const dd_stub_work *work)
{
    void *launched = work->launch != NULL ? work->launch(work->ctx) : NULL;
    pthread_mutex_unlock(&cuda_lock);
    work->run(work->ctx, launched);
    if (work->release != NULL) {
        work->release(work->ctx);
    }
    pthread_mutex_lock(&cuda_lock);
    stream->ndone++;
    return ++stream->nenqueued;
}

static uint64_t
push_locked(stub_stream *stream, const dd_stub_work *work)
{
    if (is_instant) {
        return carry_out_locked(stream, work);
    }
    stub_task *task = stub_zalloc(sizeof *task);
    task->work = *work;
    task->launched = work->launch != NULL ? work->launch(work->ctx) : NULL;
    if (stream->first == NULL) {
        stream->first = task;
    } else {
        stream->last->next = task;
    }
    stream->last = task;
    if (!stream->has_thread) {
        stream->has_thread = true;
        stub_object_acquire(&stream->base);
        stub_thread_start("cuda-stream", serve, stream);
    }
    pthread_cond_signal(&stream->has_work);
    return ++stream->nenqueued;
}

void
cuda_stream_wait_done_locked(stub_stream *stream, uint64_t number)
{
    while (stream->ndone < number) {
        pthread_cond_wait(&cuda_changed, &cuda_lock);
    }
}

typedef struct stub_place {
    stub_stream *stream; /* a reference */
    uint64_t number;
} stub_place;

void
cuda_wait_device(int device)
{
    stub_place *places = NULL;
    size_t n = 0;
    pthread_mutex_lock(&cuda_lock);
    for (int is_legacy = 0; is_legacy < 2; is_legacy++) {
        stub_stream *stream = is_legacy ? legacy_streams[device] : streams_of[device];
        for (; stream != NULL; stream = stream->next_of_device) {
            if (stream->ndone < stream->nenqueued) {
                places = realloc(places, (n + 1) * sizeof *places);
                if (places == NULL) {
                    abort();
                }
                places[n++] = (stub_place){stub_object_acquire(&stream->base), stream->nenqueued};
            }
        }
    }
    for (size_t i = 0; i < n; i++) {
        cuda_stream_wait_done_locked(places[i].stream, places[i].number);
    }
    pthread_mutex_unlock(&cuda_lock);
    for (size_t i = 0; i < n; i++) {
        stub_object_release(&places[i].stream->base);
    }
    free(places);
}

/* ---- fences: work of one stream that waits for work of another */

typedef struct stub_fence {
    stub_stream *earlier;
    uint64_t number;
} stub_fence;

static void
run_fence(void *ctx, void *launched)
{
    (void)launched;
    stub_fence *fence = ctx;
    pthread_mutex_lock(&cuda_lock);
    cuda_stream_wait_done_locked(fence->earlier, fence->number);
    pthread_mutex_unlock(&cuda_lock);
}

static void
release_fence(void *ctx)
{
    stub_fence *fence = ctx;
    stub_object_release(&fence->earlier->base);
    free(fence);
}

static void
fence_locked(stub_stream *earlier, stub_stream *later)
{
    if (earlier == later || earlier->ndone == earlier->nenqueued) {
        return;
    }
    stub_fence *fence = stub_zalloc(sizeof *fence);
    fence->earlier = stub_object_acquire(&earlier->base);
    fence->number = earlier->nenqueued;
    push_locked(later, &(dd_stub_work){.run = run_fence, .release = release_fence, .ctx = fence});
}

static bool
is_blocking(const stub_stream *stream)
{
    return (stream->flags & DD_CUDA_STREAM_NON_BLOCKING) == 0;
}

/* The legacy stream waits for the blocking streams of its device, and they wait for it. */
uint64_t
cuda_queue_locked(stub_stream *stream, const dd_stub_work *work)
{
    if (stream->is_legacy) {
        for (struct stub_stream *other = streams_of[stream->device]; other != NULL;
             other = other->next_of_device) {
            if (is_blocking(other)) {
                fence_locked(other, stream);
            }
        }
    } else if (is_blocking(stream) && legacy_streams[stream->device] != NULL) {
        fence_locked(legacy_streams[stream->device], stream);
    }
    return push_locked(stream, work);
}

int
cuda_enqueue(stub_stream *stream, const dd_stub_work *work)
{
    int result = 0;
    pthread_mutex_lock(&cuda_lock);
    if (stream->capture != NULL) {
        result = capture_add_locked(stream, work, -1);
    } else if (stream->is_legacy && capture_check_implicit_locked(stream->device) != 0) {
        result = DD_CUDA_STREAM_CAPTURE_IMPLICIT;
    } else {
        cuda_queue_locked(stream, work);
    }
    pthread_mutex_unlock(&cuda_lock);
    if (result != 0 && work->release != NULL) {
        work->release(work->ctx);
    }
    return result;
}

int
cuda_join_streams(stub_stream *earlier, stub_stream *later)
{
    int result = 0;
    pthread_mutex_lock(&cuda_lock);
    if (earlier->capture != NULL) {
        result = capture_wait_locked(later, earlier->capture, capture_last_locked(earlier));
    } else if (later->capture != NULL) {
        capture_invalidate_locked(later->capture);
        result = CUDA_CAPTURE_ISOLATION;
    } else {
        fence_locked(earlier, later);
    }
    pthread_mutex_unlock(&cuda_lock);
    return result;
}

/* ---- creation, lookup, destruction */

static void
free_stream(stub_object *object)
{
    stub_stream *self = (stub_stream *)object;
    if (!self->is_legacy) {
        pthread_mutex_lock(&cuda_lock);
        stub_stream **link = &streams_of[self->device];
        while (*link != self) {
            link = &(*link)->next_of_device;
        }
        *link = self->next_of_device;
        pthread_mutex_unlock(&cuda_lock);
    }
    pthread_cond_destroy(&self->has_work);
    free(self);
}

static stub_stream *
make_stream_locked(int device, unsigned flags, int priority, bool is_legacy)
{
    stub_stream *made = stub_zalloc(sizeof *made);
    stub_object_init(&made->base, free_stream);
    pthread_cond_init(&made->has_work, NULL);
    made->device = device;
    made->flags = flags;
    made->priority = priority;
    made->is_legacy = is_legacy;
    if (!is_legacy) {
        made->next_of_device = streams_of[device];
        streams_of[device] = made;
    }
    return made;
}

static void
end_stream(stub_stream *stream)
{
    pthread_mutex_lock(&cuda_lock);
    stream->is_destroyed = true;
    if (stream->capture != NULL) {
        capture_abandon_locked(stream);
    }
    pthread_cond_signal(&stream->has_work);
    pthread_mutex_unlock(&cuda_lock);
    stub_object_release(&stream->base);
}

static void
end_per_thread(void *arg)
{
    per_thread *own = arg;
    for (int device = 0; device < CUDA_MAX_DEVICES; device++) {
        if (own->streams[device] != NULL) {
            end_stream(own->streams[device]);
        }
    }
    free(own);
}

__attribute__((constructor)) static void
start(void)
{
    pthread_key_create(&per_thread_key, end_per_thread);
    is_instant = getenv("DLDIST_STUB_INSTANT") != NULL;
}

static stub_stream *
default_stream(bool is_per_thread, int device)
{
    stub_stream **place = &legacy_streams[device];
    if (is_per_thread) {
        per_thread *own = pthread_getspecific(per_thread_key);
        if (own == NULL) {
            own = stub_zalloc(sizeof *own);
            pthread_setspecific(per_thread_key, own);
        }
        place = &own->streams[device];
    }
    pthread_mutex_lock(&cuda_lock);
    if (*place == NULL) {
        *place = make_stream_locked(device, 0, 0, !is_per_thread);
    }
    stub_stream *found = stub_object_acquire(&(*place)->base);
    pthread_mutex_unlock(&cuda_lock);
    return found;
}

stub_stream *
cuda_stream_find(const void *handle, int *result)
{
    uintptr_t number = (uintptr_t)handle;
    if (number > (uintptr_t)DD_CUDA_STREAM_PER_THREAD) {
        stub_stream *found = stub_table_find(&cuda_streams, handle);
        *result = found != NULL ? DD_CUDA_SUCCESS : DD_CUDA_INVALID_HANDLE;
        return found;
    }
    int device = cuda_current_device();
    *result = device >= 0 ? DD_CUDA_SUCCESS : DD_CUDA_INVALID_CONTEXT;
    return device >= 0 ? default_stream(number == (uintptr_t)DD_CUDA_STREAM_PER_THREAD, device) : NULL;
}

void
cuda_stream_release(stub_stream *stream)
{
    stub_object_release(&stream->base);
}

CUDA_EXPORT dd_cuda_result
cuStreamCreateWithPriority(dd_cuda_stream *made, unsigned int flags, int priority)
{
    ENTER(cuStreamCreateWithPriority);
    int device = cuda_current_device();
    if (device < 0) {
        return DD_CUDA_INVALID_CONTEXT;
    }
    if (flags > DD_CUDA_STREAM_NON_BLOCKING) {
        return DD_CUDA_INVALID_VALUE;
    }
    pthread_mutex_lock(&cuda_lock);
    stub_stream *stream = make_stream_locked(device, flags, priority, false);
    pthread_mutex_unlock(&cuda_lock);
    *made = stub_table_add(&cuda_streams, &stream->base);
    return DD_CUDA_SUCCESS;
}

CUDA_EXPORT dd_cuda_result
cuStreamCreate(dd_cuda_stream *made, unsigned int flags)
{
    return cuStreamCreateWithPriority(made, flags, 0);
}

CUDA_EXPORT dd_cuda_result
cuStreamDestroy_v2(dd_cuda_stream handle)
{
    ENTER(cuStreamDestroy);
    stub_stream *stream = stub_table_remove(&cuda_streams, handle);
    if (stream == NULL) {
        return DD_CUDA_INVALID_HANDLE;
    }
    end_stream(stream);
    return DD_CUDA_SUCCESS;
}

/* A stream that captures must not be queried. */
static int
check_not_capturing_locked(stub_stream *stream)
{
    if (stream->capture != NULL) {
        capture_invalidate_locked(stream->capture);
        return DD_CUDA_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (stream->is_legacy) {
        int result = capture_check_implicit_locked(stream->device);
        return result != 0 ? result : capture_check_unsafe_locked();
    }
    return capture_check_unsafe_locked();
}

static bool
is_busy(const stub_stream *stream)
{
    return stream->ndone < stream->nenqueued;
}

/* Return a busy stream that must finish before this stream is synchronized: a blocking stream, if
 * this is the legacy stream. Otherwise NULL. */
static stub_stream *
busy_before_locked(const stub_stream *stream)
{
    stub_stream *other = stream->is_legacy ? streams_of[stream->device] : NULL;
    while (other != NULL && !(is_blocking(other) && is_busy(other))) {
        other = other->next_of_device;
    }
    return other;
}

CUDA_EXPORT dd_cuda_result
cuStreamSynchronize(dd_cuda_stream handle)
{
    ENTER(cuStreamSynchronize);
    int result;
    stub_stream *stream = cuda_stream_find(handle, &result);
    if (stream == NULL) {
        return (dd_cuda_result)result;
    }
    pthread_mutex_lock(&cuda_lock);
    result = check_not_capturing_locked(stream);
    if (result == 0) {
        /* The list may change during a wait: start again after each. */
        for (stub_stream *other; (other = busy_before_locked(stream)) != NULL;) {
            stub_object_acquire(&other->base);
            cuda_stream_wait_done_locked(other, other->nenqueued);
            pthread_mutex_unlock(&cuda_lock);
            stub_object_release(&other->base);
            pthread_mutex_lock(&cuda_lock);
        }
        cuda_stream_wait_done_locked(stream, stream->nenqueued);
    }
    pthread_mutex_unlock(&cuda_lock);
    cuda_stream_release(stream);
    return (dd_cuda_result)result;
}

CUDA_EXPORT dd_cuda_result
cuStreamQuery(dd_cuda_stream handle)
{
    ENTER(cuStreamQuery);
    int result;
    stub_stream *stream = cuda_stream_find(handle, &result);
    if (stream == NULL) {
        return (dd_cuda_result)result;
    }
    pthread_mutex_lock(&cuda_lock);
    result = check_not_capturing_locked(stream);
    if (result == 0) {
        bool is_done = !is_busy(stream) && busy_before_locked(stream) == NULL;
        result = is_done ? DD_CUDA_SUCCESS : DD_CUDA_NOT_READY;
    }
    pthread_mutex_unlock(&cuda_lock);
    cuda_stream_release(stream);
    return (dd_cuda_result)result;
}

/* ---- for the NCCL stub */

int
dd_stub_enqueue(void *handle, const dd_stub_work *work)
{
    int result = DD_CUDA_DEINITIALIZED;
    stub_stream *stream = cuda_is_down() ? NULL : cuda_stream_find(handle, &result);
    if (stream == NULL) {
        if (work->release != NULL) {
            work->release(work->ctx);
        }
        return result;
    }
    result = cuda_enqueue(stream, work);
    cuda_stream_release(stream);
    return result;
}

int
dd_stub_join(void *earlier_handle, void *later_handle)
{
    int result;
    stub_stream *earlier = cuda_stream_find(earlier_handle, &result);
    stub_stream *later = earlier != NULL ? cuda_stream_find(later_handle, &result) : NULL;
    if (later != NULL) {
        result = cuda_join_streams(earlier, later);
        cuda_stream_release(later);
    }
    if (earlier != NULL) {
        cuda_stream_release(earlier);
    }
    return result;
}

int
dd_stub_stream_device(void *handle, int *device)
{
    int result;
    stub_stream *stream = cuda_stream_find(handle, &result);
    if (stream != NULL) {
        *device = stream->device;
        cuda_stream_release(stream);
    }
    return result;
}

void
dd_stub_wait_device(int device)
{
    cuda_wait_device(device);
}

int
dd_stub_check_unsafe(void)
{
    return capture_check_unsafe();
}
