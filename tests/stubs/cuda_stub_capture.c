/* Captures: record the work given to streams, in one lane for each stream, with its
 * dependencies. */
#include "cuda_stub.h"

#include <stdlib.h>

static stub_capture *open_captures; /* under cuda_lock */
static _Thread_local dd_cuda_capture_mode thread_mode = DD_CUDA_CAPTURE_MODE_GLOBAL;

stub_capture *
capture_acquire(stub_capture *capture)
{
    atomic_fetch_add(&capture->refs, 1);
    return capture;
}

/* Close a capture, whether or not it has become a graph. */
static void
close_locked(stub_capture *capture)
{
    stub_capture **link = &open_captures;
    while (*link != NULL && *link != capture) {
        link = &(*link)->next;
    }
    if (*link != NULL) {
        *link = capture->next;
    }
    capture->is_open = false;
}

static void
drop_nodes(stub_capture *capture)
{
    for (int i = 0; i < capture->nnodes; i++) {
        const dd_stub_work *work = &capture->nodes[i].work;
        if (work->release != NULL) {
            work->release(work->ctx);
        }
    }
    free(capture->nodes);
    capture->nodes = NULL;
    capture->nnodes = 0;
}

void
capture_release_locked(stub_capture *capture)
{
    if (atomic_fetch_sub(&capture->refs, 1) == 1) {
        close_locked(capture);
        drop_nodes(capture);
        free(capture);
    }
}

int
capture_add_locked(stub_stream *stream, const dd_stub_work *work, int after)
{
    stub_capture *capture = stream->capture;
    if (capture->is_invalid) {
        return CUDA_CAPTURE_INVALIDATED;
    }
    capture->nodes = realloc(capture->nodes, (size_t)(capture->nnodes + 1) * sizeof(stub_node));
    if (capture->nodes == NULL) {
        abort();
    }
    capture->nodes[capture->nnodes++] = (stub_node){.work = *work, .lane = stream->lane, .after = after};
    return 0;
}

int
capture_last_locked(const stub_stream *stream)
{
    int last = stream->capture->nnodes - 1;
    while (last >= 0 && stream->capture->nodes[last].lane != stream->lane) {
        last--;
    }
    return last;
}

int
capture_wait_locked(stub_stream *stream, stub_capture *capture, int node)
{
    if (stream->capture == NULL) {
        if (stream->is_legacy) {
            capture_invalidate_locked(capture);
            return DD_CUDA_STREAM_CAPTURE_IMPLICIT;
        }
        stream->capture = capture_acquire(capture);
        stream->lane = capture->nlanes++;
    } else if (stream->capture != capture) {
        capture_invalidate_locked(stream->capture);
        capture_invalidate_locked(capture);
        return CUDA_CAPTURE_MERGE;
    }
    if (capture->is_invalid) {
        return CUDA_CAPTURE_INVALIDATED;
    }
    return node >= 0 ? capture_add_locked(stream, &(dd_stub_work){0}, node) : 0;
}

void
capture_invalidate_locked(stub_capture *capture)
{
    capture->is_invalid = true;
}

void
capture_abandon_locked(stub_stream *stream)
{
    stub_capture *capture = stream->capture;
    capture_invalidate_locked(capture);
    if (capture->origin == stream) {
        close_locked(capture);
    }
    stream->capture = NULL;
    capture_release_locked(capture);
}

int
capture_check_unsafe_locked(void)
{
    int result = 0;
    for (stub_capture *capture = open_captures; capture != NULL; capture = capture->next) {
        bool is_own = pthread_equal(capture->thread, pthread_self());
        bool is_barred =
            is_own
                ? capture->mode != DD_CUDA_CAPTURE_MODE_RELAXED && thread_mode != DD_CUDA_CAPTURE_MODE_RELAXED
                : capture->mode == DD_CUDA_CAPTURE_MODE_GLOBAL && thread_mode == DD_CUDA_CAPTURE_MODE_GLOBAL;
        if (is_barred) {
            capture_invalidate_locked(capture);
            result = DD_CUDA_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    return result;
}

int
capture_check_unsafe(void)
{
    pthread_mutex_lock(&cuda_lock);
    int result = capture_check_unsafe_locked();
    pthread_mutex_unlock(&cuda_lock);
    return result;
}

int
capture_check_implicit_locked(int device)
{
    int result = 0;
    for (stub_capture *capture = open_captures; capture != NULL; capture = capture->next) {
        if (capture->origin->device == device &&
            (capture->origin->flags & DD_CUDA_STREAM_NON_BLOCKING) == 0) {
            capture_invalidate_locked(capture);
            result = DD_CUDA_STREAM_CAPTURE_IMPLICIT;
        }
    }
    return result;
}

CUDA_EXPORT dd_cuda_result
cuThreadExchangeStreamCaptureMode(dd_cuda_capture_mode *mode)
{
    ENTER(cuThreadExchangeStreamCaptureMode);
    dd_cuda_capture_mode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return DD_CUDA_SUCCESS;
}

static int
begin_locked(stub_stream *stream, dd_cuda_capture_mode mode)
{
    if (stream->is_legacy || stream->capture != NULL) {
        return stream->is_legacy ? DD_CUDA_STREAM_CAPTURE_UNSUPPORTED : DD_CUDA_INVALID_VALUE;
    }
    stub_capture *capture = stub_zalloc(sizeof *capture);
    atomic_init(&capture->refs, 1);
    capture->mode = mode;
    capture->thread = pthread_self();
    capture->origin = stream;
    capture->is_open = true;
    capture->nlanes = 1;
    capture->next = open_captures;
    open_captures = capture;
    stream->capture = capture;
    stream->lane = 0;
    return 0;
}

CUDA_EXPORT dd_cuda_result
cuStreamBeginCapture_v2(dd_cuda_stream handle, dd_cuda_capture_mode mode)
{
    ENTER(cuStreamBeginCapture);
    int result;
    stub_stream *stream = cuda_stream_find(handle, &result);
    if (stream == NULL) {
        return (dd_cuda_result)result;
    }
    pthread_mutex_lock(&cuda_lock);
    result = begin_locked(stream, mode);
    pthread_mutex_unlock(&cuda_lock);
    cuda_stream_release(stream);
    return (dd_cuda_result)result;
}

/* Return true if all work of the other lanes precedes a node of the origin's lane. */
static bool
is_joined(const stub_capture *capture)
{
    int nnodes = capture->nnodes;
    /* number of nodes, by lane */
    int *reached_to = stub_zalloc((size_t)capture->nlanes * sizeof(int));
    reached_to[0] = nnodes;
    bool is_joined = true;
    for (int i = nnodes - 1; i >= 0; i--) {
        const stub_node *node = &capture->nodes[i];
        bool is_before = i < reached_to[node->lane];
        if (is_before && node->after >= 0) {
            const struct stub_node *awaited = &capture->nodes[node->after];
            if (reached_to[awaited->lane] <= node->after) {
                reached_to[awaited->lane] = node->after + 1;
            }
        }
        is_joined = is_joined && (is_before || node->work.run == NULL);
    }
    free(reached_to);
    return is_joined;
}

static void
leave_capture(stub_object *object, void *ctx)
{
    stub_stream *other = (stub_stream *)object;
    if (other->capture == ctx) {
        other->capture = NULL;
        capture_release_locked(ctx);
    }
}

static int
end_locked(stub_stream *stream, stub_capture **ended)
{
    stub_capture *capture = stream->capture;
    if (capture == NULL || capture->origin != stream) {
        return capture == NULL ? DD_CUDA_INVALID_VALUE : CUDA_CAPTURE_UNMATCHED;
    }
    if (capture->mode != DD_CUDA_CAPTURE_MODE_RELAXED && !pthread_equal(capture->thread, pthread_self())) {
        capture_invalidate_locked(capture);
        return CUDA_CAPTURE_WRONG_THREAD;
    }
    close_locked(capture);
    *ended = capture_acquire(capture);
    stub_table_each(&cuda_streams, leave_capture, capture);
    if (stream->capture == capture) { /* a default stream, which is in no table */
        leave_capture(&stream->base, capture);
    }
    return capture->is_invalid ? CUDA_CAPTURE_INVALIDATED : is_joined(capture) ? 0 : CUDA_CAPTURE_UNJOINED;
}

/* ---- graphs are captures that have ended */

typedef struct stub_graph {
    stub_object base;
    stub_capture *capture;
} stub_graph;

static void
free_graph(stub_object *object)
{
    stub_graph *graph = (struct stub_graph *)object;
    pthread_mutex_lock(&cuda_lock);
    if (--graph->capture->ngraphs == 0) {
        drop_nodes(graph->capture); /* drops references of events recorded in the capture */
    }
    capture_release_locked(graph->capture);
    pthread_mutex_unlock(&cuda_lock);
    free(graph);
}

/* Create a graph and take over the reference. */
static void *
add_graph(stub_table *table, stub_capture *capture)
{
    stub_graph *graph = stub_zalloc(sizeof *graph);
    stub_object_init(&graph->base, free_graph);
    graph->capture = capture;
    pthread_mutex_lock(&cuda_lock);
    capture->ngraphs++;
    pthread_mutex_unlock(&cuda_lock);
    return stub_table_add(table, &graph->base);
}

CUDA_EXPORT dd_cuda_result
cuStreamEndCapture(dd_cuda_stream handle, void **made)
{
    ENTER(cuStreamEndCapture);
    int result;
    stub_stream *stream = cuda_stream_find(handle, &result);
    if (stream == NULL) {
        return (dd_cuda_result)result;
    }
    stub_capture *ended = NULL;
    *made = NULL;
    pthread_mutex_lock(&cuda_lock);
    result = end_locked(stream, &ended);
    if (result != 0 && ended != NULL) {
        capture_release_locked(ended);
    }
    pthread_mutex_unlock(&cuda_lock);
    if (result == 0) {
        *made = add_graph(&cuda_graphs, ended);
    }
    cuda_stream_release(stream);
    return (dd_cuda_result)result;
}

CUDA_EXPORT dd_cuda_result
cuStreamIsCapturing(dd_cuda_stream handle, dd_cuda_capture_status *status)
{
    ENTER(cuStreamIsCapturing);
    int result;
    stub_stream *stream = cuda_stream_find(handle, &result);
    if (stream == NULL) {
        return (dd_cuda_result)result;
    }
    pthread_mutex_lock(&cuda_lock);
    const stub_capture *capture = stream->capture;
    *status = capture == NULL       ? DD_CUDA_CAPTURE_NONE
              : capture->is_invalid ? DD_CUDA_CAPTURE_INVALIDATED
                                    : DD_CUDA_CAPTURE_ACTIVE;
    if (stream->is_legacy) {
        result = capture_check_implicit_locked(stream->device);
    }
    pthread_mutex_unlock(&cuda_lock);
    cuda_stream_release(stream);
    return (dd_cuda_result)result;
}

bool
dd_stub_is_capturing(void *handle)
{
    int result;
    stub_stream *stream = cuda_stream_find(handle, &result);
    if (stream == NULL) {
        return false;
    }
    pthread_mutex_lock(&cuda_lock);
    bool is_capturing = stream->capture != NULL;
    pthread_mutex_unlock(&cuda_lock);
    cuda_stream_release(stream);
    return is_capturing;
}

CUDA_EXPORT dd_cuda_result
cuGraphInstantiateWithFlags(void **made, void *handle, unsigned long long flags)
{
    ENTER(cuGraphInstantiateWithFlags);
    (void)flags;
    stub_graph *graph = stub_table_find(&cuda_graphs, handle);
    if (graph == NULL) {
        return DD_CUDA_INVALID_HANDLE;
    }
    *made = add_graph(&cuda_execs, capture_acquire(graph->capture));
    stub_object_release(&graph->base);
    return DD_CUDA_SUCCESS;
}

static dd_cuda_result
remove_graph(stub_table *table, void *handle)
{
    stub_graph *graph = stub_table_remove(table, handle);
    if (graph == NULL) {
        return DD_CUDA_INVALID_HANDLE;
    }
    stub_object_release(&graph->base);
    return DD_CUDA_SUCCESS;
}

CUDA_EXPORT dd_cuda_result
cuGraphDestroy(void *handle)
{
    ENTER(cuGraphDestroy);
    return remove_graph(&cuda_graphs, handle);
}

CUDA_EXPORT dd_cuda_result
cuGraphExecDestroy(void *handle)
{
    ENTER(cuGraphExecDestroy);
    return remove_graph(&cuda_execs, handle);
}

/* ---- launches: a graph is one piece of work on a stream, which runs all nodes */

static void *
launch_nodes(void *ctx)
{
    const stub_graph *graph = ctx;
    const stub_capture *capture = graph->capture;
    void **launched = stub_zalloc((size_t)capture->nnodes * sizeof(void *));
    for (int i = 0; i < capture->nnodes; i++) {
        const dd_stub_work *work = &capture->nodes[i].work;
        launched[i] = work->launch != NULL ? work->launch(work->ctx) : NULL;
    }
    return launched;
}

static void
run_graph(void *ctx, void *launched)
{
    capture_run(((stub_graph *)ctx)->capture, launched);
    free(launched);
}

static void
release_graph(void *ctx)
{
    stub_object_release(&((stub_graph *)ctx)->base);
}

CUDA_EXPORT dd_cuda_result
cuGraphLaunch(void *handle, dd_cuda_stream stream)
{
    ENTER(cuGraphLaunch);
    stub_graph *graph = stub_table_find(&cuda_execs, handle);
    if (graph == NULL) {
        return DD_CUDA_INVALID_HANDLE;
    }
    return (dd_cuda_result)dd_stub_enqueue(
        stream,
        &(dd_stub_work){.launch = launch_nodes, .run = run_graph, .release = release_graph, .ctx = graph});
}
