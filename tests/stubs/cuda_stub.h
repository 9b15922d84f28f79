/* The double of libcuda inside. One lock for everything and one condition for every change: it is small, and what waits is a test.
 *
 * A stream is a queue with a thread. What is enqueued has a number; the stream's count of what is done says whether it is. */
#ifndef DD_TESTS_CUDA_STUB_H
#define DD_TESTS_CUDA_STUB_H

#include "cuda_stub_tasks.h"
#include "nccl/driver/cuda_api.h"
#include "stub_internal.h"

#define CUDA_MAX_DEVICES 64
#define CUDA_EXPORT __attribute__((visibility("default")))

/* Results that nobody but tests looks at. */
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

/* ---- what is exported: the list of the driver's functions, and what only tests call */

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
/* The device of the current context; -1 where there is none, or where it has been released. */
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
    stub_capture *capture; /* under way; a reference */
    int lane;              /* in it */
    struct stub_stream *next_of_device;
} stub_stream;

/* NULL and DD_CUDA_INVALID_HANDLE or DD_CUDA_INVALID_CONTEXT. Acquired. */
stub_stream *cuda_stream_find(const void *handle, int *result);
void cuda_stream_release(stub_stream *stream);
/* Takes the work. Puts it into a capture or onto the queue. */
int cuda_enqueue(stub_stream *stream, const dd_stub_work *work);
/* Onto the queue whatever the stream captures; the caller holds the lock. The number that it has. */
uint64_t cuda_queue_locked(stub_stream *stream, const dd_stub_work *work);
void cuda_stream_wait_done_locked(stub_stream *stream, uint64_t number);
int cuda_join_streams(stub_stream *earlier, stub_stream *later);
/* For what all streams of the device hold now. */
void cuda_wait_device(int device);

/* ---- captures (cuda_stub_capture.c, cuda_stub_graph.c). Callers hold the lock */

typedef struct stub_node {
    dd_stub_work work; /* run NULL: only waits */
    int lane;
    int after; /* node to wait for, besides those before it in its lane; -1: none */
} stub_node;

struct stub_capture {
    atomic_int refs;
    dd_cuda_capture_mode mode;
    pthread_t thread;
    stub_stream *origin; /* borrowed, while it is open: the stream has a reference to the stub_capture */
    bool is_open;
    bool is_invalid;
    stub_node *nodes;
    int nnodes;
    int ngraphs; /* that run them */
    int nlanes;
    stub_capture *next; /* of those that are open */
};

stub_capture *capture_acquire(stub_capture *capture);
void capture_release_locked(stub_capture *capture);
int capture_add_locked(stub_stream *stream, const dd_stub_work *work, int after);
/* The last node of the stream's lane; -1 when there is none. */
int capture_last_locked(const stub_stream *stream);
/* Makes the stream wait for a node, and capture, if it does not yet. */
int capture_wait_locked(stub_stream *stream, stub_capture *capture, int node);
void capture_invalidate_locked(stub_capture *capture);
/* The end of a stream that captures. */
void capture_abandon_locked(stub_stream *stream);
/* For calls that are not allowed while somebody captures: the result for the caller, who is the one that has spoiled it. */
int capture_check_unsafe(void);
int capture_check_unsafe_locked(void);
/* For calls on the legacy stream. */
int capture_check_implicit_locked(int device);
/* Runs the nodes that it captured, once; without the lock. `launched` has one for each. */
void capture_run(stub_capture *capture, void **launched);

/* ---- memory (cuda_stub_memory.c) */

#define CUDA_NO_FILE (-1)

typedef struct allocation {
    char *data;
    size_t nbytes;
    int device;      /* -1: of the host */
    bool is_private; /* no other device can read it */
    int file;        /* that others can map it by; or CUDA_NO_FILE */
} allocation;

dd_cuda_result cuda_allocate(int device, size_t nbytes, bool is_private, void **data);
/* At once, whatever uses it. */
dd_cuda_result cuda_release(void *data, bool is_host);

/* False when data is in no allocation. */
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
