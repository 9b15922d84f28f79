/* ncclAllReduce in a loop, for benchmarks/nccl.py: what a call costs the host with nothing around it. The functions come as pointers, so
 * that nothing is linked and the library that is measured is the one that is loaded already. */
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
    size_t count; /* of float32 */
    void *comm;
    void *stream;
    /* What orders the stream of a caller, before and after; record may be NULL: nothing does. */
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

/* Makes one stream wait for what the other holds. */
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

/* `ncalls` of them: seconds that the host was in the calls, and until the device was through with them. Nonzero: NCCL's or the driver's
 * error. */
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
