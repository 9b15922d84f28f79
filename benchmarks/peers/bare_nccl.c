/* ncclAllReduce in a loop, for benchmarks/nccl.py: the bare cost of a call on the host. The
 * functions are passed as pointers, so that the measured library is the one already loaded. */
#include <stddef.h>
#include <time.h>

typedef int (*all_reduce_fn)(const void *send, void *recv, size_t count, int dtype, int op, void *comm,
                             void *stream);
typedef int (*synchronize_fn)(void *stream);
typedef int (*record_fn)(void *event, void *stream);
typedef int (*wait_fn)(void *stream, void *event, unsigned int flags);

typedef struct bare_call {
    all_reduce_fn all_reduce;
    synchronize_fn synchronize;
    void *data;
    size_t count; /* elements, float32 */
    void *comm;
    void *stream;
    /* Events that order the call with the caller's stream; unused if record is NULL. */
    record_fn record;
    wait_fn wait;
    void *events[2];
    void *user_stream;
} bare_call;

static double
now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Makes `later` wait for the work queued on `earlier`. */
static int
order(const bare_call *call, void *event, void *earlier, void *later)
{
    int result = call->record != NULL ? call->record(event, earlier) : 0;
    return call->record != NULL && result == 0 ? call->wait(later, event, 0) : result;
}

static int
run_once(const bare_call *call)
{
    enum { NCCL_FLOAT32 = 7, NCCL_SUM = 0 };
    int result = order(call, call->events[0], call->user_stream, call->stream);
    if (result == 0) {
        result = call->all_reduce(call->data, call->data, call->count, NCCL_FLOAT32, NCCL_SUM, call->comm,
                                  call->stream);
    }
    return result == 0 ? order(call, call->events[1], call->stream, call->user_stream) : result;
}

/* Makes `ncalls` calls; sets the seconds until the last call returned, and until the device
 * finished. Returns 0, or an error of NCCL or the driver. */
int
bare_run(const bare_call *call, int ncalls, double *host_s, double *all_s)
{
    double start_s = now_s();
    for (int i = 0; i < ncalls; i++) {
        int result = run_once(call);
        if (result != 0) {
            return result;
        }
    }
    *host_s = now_s() - start_s;
    int result = call->synchronize(call->stream);
    *all_s = now_s() - start_s;
    return result;
}
