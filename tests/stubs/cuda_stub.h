/* Internals of the libcuda stub. It has one lock for everything and one condition for every change:
 * it is small, and only tests wait.
 *
 * A stream is a queue with a thread. Work has a number in its queue, and is done when the stream's
 * count of finished work has reached that number. */
#ifndef DD_TESTS_CUDA_STUB_H
#define DD_TESTS_CUDA_STUB_H

#include "cuda_stub_tasks.h"
#include "nccl/driver/cuda_api.h"
#include "stub_internal.h"

#define CUDA_MAX_DEVICES 64
#define CUDA_EXPORT __attribute__((visibility("default")))

/* Results that only tests check. */
enum {
    CUDA_INVALID_PTX = 218,
    CUDA_NOT_FOUND = 500,
    CUDA_CAPTURE_INVALIDATED = 901,
    CUDA_CAPTURE_MERGE = 902,
    CUDA_CAPTURE_UNMATCHED = 903,
    CUDA_CAPTURE_UNJOINED = 904,
    CUDA_CAPTURE_ISOLATION = 905,
    CUDA_CAPTURE_WRONG_THREAD = 908,
};

extern pthread_mutex_t cuda_lock;
extern pthread_cond_t cuda_changed;
bool cuda_is_down(void);

/* The first line of each function of the API. */
#define ENTER(function)                               \
    do {                                              \
        static stub_site site_ = {.name = #function}; \
        stub_fault fault_;                            \
        if (stub_enter(&site_, &fault_)) {            \
            return (dd_cuda_result)fault_.result;     \
        }                                             \
        if (cuda_is_down()) {                         \
            return DD_CUDA_DEINITIALIZED;             \
        }                                             \
    } while (0)

/* ---- exports: the driver's functions, and functions for tests */

#define CUDA_PROTOTYPE(name, symbol, params) CUDA_EXPORT dd_cuda_result symbol params;
DD_CUDA_REQUIRED(CUDA_PROTOTYPE)
DD_CUDA_OPTIONAL(CUDA_PROTOTYPE)

CUDA_EXPORT dd_cuda_result cuMemAllocAsync(dd_cuda_ptr *data, size_t nbytes, dd_cuda_stream stream);
CUDA_EXPORT dd_cuda_result cuEventSynchronize(dd_cuda_event event);
CUDA_EXPORT dd_cuda_result cuMemcpyHtoDAsync_v2(dd_cuda_ptr dst, const void *src, size_t nbytes,
                                                dd_cuda_stream stream);
CUDA_EXPORT dd_cuda_result cuStreamCreate(dd_cuda_stream *made, unsigned int flags);
CUDA_EXPORT dd_cuda_result cuLaunchHostFunc(dd_cuda_stream stream, void (*function)(void *arg), void *arg);
CUDA_EXPORT dd_cuda_result cuStreamBeginCapture_v2(dd_cuda_stream stream, dd_cuda_capture_mode mode);
CUDA_EXPORT dd_cuda_result cuStreamEndCapture(dd_cuda_stream stream, void **made);
CUDA_EXPORT dd_cuda_result cuGraphInstantiateWithFlags(void **made, void *graph, unsigned long long flags);
CUDA_EXPORT dd_cuda_result cuGraphLaunch(void *exec, dd_cuda_stream stream);
CUDA_EXPORT dd_cuda_result cuGraphDestroy(void *graph);
CUDA_EXPORT dd_cuda_result cuGraphExecDestroy(void *exec);

/* ---- contexts (cuda_stub_context.c) */

int cuda_device_count(void);
/* Return the device of the current context, or -1 if there is none or it has been released. */
int cuda_current_device(void);

/* ---- streams (cuda_stub_stream.c) */

typedef struct stub_capture stub_capture;

typedef struct stub_task {
    dd_stub_work work;
    void *launched;
    struct stub_task *next;
} stub_task;

typedef struct stub_stream {
    stub_object base;
    int device;
    unsigned flags;
    int priority;
    bool is_legacy;
    bool is_destroyed;
    bool has_thread;
    pthread_cond_t has_work;
    stub_task *first;
    stub_task *last;
    uint64_t nenqueued;
    uint64_t ndone;
    /* A reference to the open capture that the stream takes part in, or NULL. */
    stub_capture *capture;
    int lane; /* in the capture */
    struct stub_stream *next_of_device;
} stub_stream;

/* Find a stream and acquire it. Return NULL and set DD_CUDA_INVALID_HANDLE or
 * DD_CUDA_INVALID_CONTEXT if there is none. */
stub_stream *cuda_stream_find(const void *handle, int *result);
void cuda_stream_release(stub_stream *stream);
/* Take over the work and add it to a capture or to the queue. */
int cuda_enqueue(stub_stream *stream, const dd_stub_work *work);
/* Add work to the queue even if the stream captures. The caller must hold the lock. Return the
 * number of the work. */
uint64_t cuda_queue_locked(stub_stream *stream, const dd_stub_work *work);
void cuda_stream_wait_done_locked(stub_stream *stream, uint64_t number);
int cuda_join_streams(stub_stream *earlier, stub_stream *later);
/* Wait for all work that streams of the device hold now. */
void cuda_wait_device(int device);

/* ---- captures (cuda_stub_capture.c, cuda_stub_graph.c); callers must hold the lock */

typedef struct stub_node {
    dd_stub_work work; /* run NULL: only waits */
    int lane;
    /* The node to wait for, in addition to earlier nodes of the same lane; -1: none. */
    int after;
} stub_node;

struct stub_capture {
    atomic_int refs;
    dd_cuda_capture_mode mode;
    pthread_t thread;
    /* Borrowed while the capture is open: the stream has a reference to the capture. */
    stub_stream *origin;
    bool is_open;
    bool is_invalid;
    stub_node *nodes;
    int nnodes;
    int ngraphs; /* graphs that run the nodes */
    int nlanes;
    stub_capture *next; /* in the list of open captures */
};

stub_capture *capture_acquire(stub_capture *capture);
void capture_release_locked(stub_capture *capture);
int capture_add_locked(stub_stream *stream, const dd_stub_work *work, int after);
/* Return the last node of the stream's lane, or -1 if there is none. */
int capture_last_locked(const stub_stream *stream);
/* Make the stream wait for a node. A stream that does not capture yet joins the capture. */
int capture_wait_locked(stub_stream *stream, stub_capture *capture, int node);
void capture_invalidate_locked(stub_capture *capture);
/* End the capture of a stream that is destroyed. */
void capture_abandon_locked(stub_stream *stream);
/* Check a call that is not allowed during a capture: invalidate the capture and return the
 * result. */
int capture_check_unsafe(void);
int capture_check_unsafe_locked(void);
/* For calls on the legacy stream. */
int capture_check_implicit_locked(int device);
/* Run the captured nodes once, without the lock. `launched` has one entry per node. */
void capture_run(stub_capture *capture, void **launched);

/* ---- memory (cuda_stub_memory.c) */

#define CUDA_NO_FILE (-1)

typedef struct allocation {
    char *data;
    size_t nbytes;
    int device;      /* -1: host memory */
    bool is_private; /* other devices cannot read it */
    int file;        /* descriptor for other processes to map, or CUDA_NO_FILE */
} allocation;

dd_cuda_result cuda_allocate(int device, size_t nbytes, bool is_private, void **data);
/* Release memory immediately, even if it is in use. */
dd_cuda_result cuda_release(void *data, bool is_host);

/* Return false if data is in no allocation. */
bool cuda_find_allocation(const void *data, allocation *found);

extern stub_table cuda_streams;
extern stub_table cuda_events;
extern stub_table cuda_graphs;
extern stub_table cuda_execs;
extern stub_table cuda_pools;
extern stub_count cuda_contexts_retained;
extern stub_count cuda_memory;
extern stub_count cuda_host_memory;
extern stub_count cuda_modules;

#endif
