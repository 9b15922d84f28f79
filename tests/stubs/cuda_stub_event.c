/* Events: marks that streams reach. Each record creates a new mark, so waits for the old one
 * continue. */
#include "cuda_stub.h"

#include <stdlib.h>

typedef struct stub_mark {
    atomic_int refs;
    bool is_done;
    int64_t time_ns;
} stub_mark;

typedef struct stub_event {
    stub_object base;
    int device;
    unsigned flags;
    stub_mark *mark;       /* NULL: never recorded outside a capture */
    stub_capture *capture; /* the capture of the last record, or NULL */
    int node;
} stub_event;

static stub_mark *
acquire_mark(stub_mark *mark)
{
    if (mark != NULL) {
        atomic_fetch_add(&mark->refs, 1);
    }
    return mark;
}

static void
release_mark(void *arg)
{
    stub_mark *mark = arg;
    if (mark != NULL && atomic_fetch_sub(&mark->refs, 1) == 1) {
        free(mark);
    }
}

static void
forget_locked(stub_event *event)
{
    release_mark(event->mark);
    event->mark = NULL;
    if (event->capture != NULL) {
        capture_release_locked(event->capture);
        event->capture = NULL;
    }
}

static void
free_event(stub_object *object)
{
    stub_event *event = (struct stub_event *)object;
    pthread_mutex_lock(&cuda_lock);
    forget_locked(event);
    pthread_mutex_unlock(&cuda_lock);
    free(event);
}

static void
run_mark(void *ctx, void *launched)
{
    (void)launched;
    stub_mark *mark = ctx;
    pthread_mutex_lock(&cuda_lock);
    mark->is_done = true;
    mark->time_ns = stub_now_ns();
    pthread_cond_broadcast(&cuda_changed);
    pthread_mutex_unlock(&cuda_lock);
}

static void
run_wait(void *ctx, void *launched)
{
    (void)launched;
    stub_mark *mark = ctx;
    pthread_mutex_lock(&cuda_lock);
    while (!mark->is_done) {
        pthread_cond_wait(&cuda_changed, &cuda_lock);
    }
    pthread_mutex_unlock(&cuda_lock);
}

CUDA_EXPORT dd_cuda_result
cuEventCreate(dd_cuda_event *made, unsigned int flags)
{
    ENTER(cuEventCreate);
    int device = cuda_current_device();
    if (device < 0) {
        return DD_CUDA_INVALID_CONTEXT;
    }
    stub_event *event = stub_zalloc(sizeof *event);
    stub_object_init(&event->base, free_event);
    event->device = device;
    event->flags = flags;
    *made = stub_table_add(&cuda_events, &event->base);
    return DD_CUDA_SUCCESS;
}

CUDA_EXPORT dd_cuda_result
cuEventDestroy_v2(dd_cuda_event handle)
{
    ENTER(cuEventDestroy);
    stub_event *event = stub_table_remove(&cuda_events, handle);
    if (event == NULL) {
        return DD_CUDA_INVALID_HANDLE;
    }
    stub_object_release(&event->base);
    return DD_CUDA_SUCCESS;
}

static int
record_locked(stub_event *event, stub_stream *stream)
{
    if (event->device != stream->device) {
        return DD_CUDA_INVALID_HANDLE;
    }
    if (stream->capture != NULL) {
        if (stream->capture->is_invalid) {
            return CUDA_CAPTURE_INVALIDATED;
        }
        forget_locked(event);
        event->capture = capture_acquire(stream->capture);
        event->node = capture_last_locked(stream);
        return 0;
    }
    if (stream->is_legacy && capture_check_implicit_locked(stream->device) != 0) {
        return DD_CUDA_STREAM_CAPTURE_IMPLICIT;
    }
    forget_locked(event);
    event->mark = stub_zalloc(sizeof *event->mark);
    atomic_init(&event->mark->refs, 2);
    cuda_queue_locked(stream, &(dd_stub_work){.run = run_mark, .release = release_mark, .ctx = event->mark});
    return 0;
}

int
dd_stub_record(void *handle, void *stream_handle)
{
    stub_event *event = stub_table_find(&cuda_events, handle);
    if (event == NULL) {
        return (int)DD_CUDA_INVALID_HANDLE;
    }
    int result;
    stub_stream *stream = cuda_stream_find(stream_handle, &result);
    if (stream != NULL) {
        pthread_mutex_lock(&cuda_lock);
        result = record_locked(event, stream);
        pthread_mutex_unlock(&cuda_lock);
        cuda_stream_release(stream);
    }
    stub_object_release(&event->base);
    return result;
}

CUDA_EXPORT dd_cuda_result
cuEventRecord(dd_cuda_event handle, dd_cuda_stream stream_handle)
{
    ENTER(cuEventRecord);
    return (dd_cuda_result)dd_stub_record(handle, stream_handle);
}

static int
wait_locked(stub_stream *stream, stub_event *event)
{
    if (event->capture != NULL) {
        return event->capture->is_open ? capture_wait_locked(stream, event->capture, event->node)
                                       : (int)DD_CUDA_INVALID_VALUE;
    }
    if (stream->capture != NULL) {
        if (event->mark == NULL) {
            return 0;
        }
        capture_invalidate_locked(stream->capture);
        return CUDA_CAPTURE_ISOLATION;
    }
    if (event->mark != NULL && !event->mark->is_done) {
        cuda_queue_locked(
            stream,
            &(dd_stub_work){.run = run_wait, .release = release_mark, .ctx = acquire_mark(event->mark)});
    }
    return 0;
}

CUDA_EXPORT dd_cuda_result
cuStreamWaitEvent(dd_cuda_stream stream_handle, dd_cuda_event handle, unsigned int flags)
{
    ENTER(cuStreamWaitEvent);
    (void)flags;
    stub_event *event = stub_table_find(&cuda_events, handle);
    if (event == NULL) {
        return DD_CUDA_INVALID_HANDLE;
    }
    int result;
    stub_stream *stream = cuda_stream_find(stream_handle, &result);
    if (stream != NULL) {
        pthread_mutex_lock(&cuda_lock);
        result = wait_locked(stream, event);
        pthread_mutex_unlock(&cuda_lock);
        cuda_stream_release(stream);
    }
    stub_object_release(&event->base);
    return (dd_cuda_result)result;
}

/* Check that the host may query the event. */
static int
check_may_ask_locked(stub_event *event)
{
    int result = capture_check_unsafe_locked();
    if (result != 0) {
        return result;
    }
    if (event->capture != NULL) {
        capture_invalidate_locked(event->capture);
        return DD_CUDA_CAPTURED_EVENT;
    }
    return 0;
}

CUDA_EXPORT dd_cuda_result
cuEventQuery(dd_cuda_event handle)
{
    ENTER(cuEventQuery);
    stub_event *event = stub_table_find(&cuda_events, handle);
    if (event == NULL) {
        return DD_CUDA_INVALID_HANDLE;
    }
    pthread_mutex_lock(&cuda_lock);
    int result = check_may_ask_locked(event);
    if (result == 0 && event->mark != NULL && !event->mark->is_done) {
        result = DD_CUDA_NOT_READY;
    }
    pthread_mutex_unlock(&cuda_lock);
    stub_object_release(&event->base);
    return (dd_cuda_result)result;
}

CUDA_EXPORT dd_cuda_result
cuEventSynchronize(dd_cuda_event handle)
{
    ENTER(cuEventSynchronize);
    stub_event *event = stub_table_find(&cuda_events, handle);
    if (event == NULL) {
        return DD_CUDA_INVALID_HANDLE;
    }
    pthread_mutex_lock(&cuda_lock);
    int result = check_may_ask_locked(event);
    stub_mark *mark = result == 0 ? acquire_mark(event->mark) : NULL;
    while (mark != NULL && !mark->is_done) {
        pthread_cond_wait(&cuda_changed, &cuda_lock);
    }
    pthread_mutex_unlock(&cuda_lock);
    release_mark(mark);
    stub_object_release(&event->base);
    return (dd_cuda_result)result;
}

static int
elapsed_locked(const stub_event *start, const stub_event *end, float *ms)
{
    bool has_times = ((start->flags | end->flags) & DD_CUDA_EVENT_DISABLE_TIMING) == 0;
    if (!has_times || start->mark == NULL || end->mark == NULL) {
        return DD_CUDA_INVALID_HANDLE;
    }
    if (!start->mark->is_done || !end->mark->is_done) {
        return DD_CUDA_NOT_READY;
    }
    *ms = (float)(end->mark->time_ns - start->mark->time_ns) * 1e-6f;
    return 0;
}

CUDA_EXPORT dd_cuda_result
cuEventElapsedTime(float *ms, dd_cuda_event start_handle, dd_cuda_event end_handle)
{
    ENTER(cuEventElapsedTime);
    if (cuda_current_device() < 0) {
        return DD_CUDA_INVALID_CONTEXT;
    }
    int result = DD_CUDA_INVALID_HANDLE;
    stub_event *start = stub_table_find(&cuda_events, start_handle);
    stub_event *end = stub_table_find(&cuda_events, end_handle);
    if (start != NULL && end != NULL) {
        pthread_mutex_lock(&cuda_lock);
        result = elapsed_locked(start, end, ms);
        pthread_mutex_unlock(&cuda_lock);
    }
    if (start != NULL) {
        stub_object_release(&start->base);
    }
    if (end != NULL) {
        stub_object_release(&end->base);
    }
    return (dd_cuda_result)result;
}
