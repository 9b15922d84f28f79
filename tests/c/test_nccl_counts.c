/* The cost of an NCCL operation to the host beyond NCCL itself, in events that can be counted:
 * calls of the driver, allocations, locks. All resources are set up. A change that makes an
 * operation cheaper lowers the limits below; no limit may rise. */
#include "check.h"
#include "core/lock.h"
#include "core/mem.h"
#include "faults/faults.h"
#include "nccl_rig.h"

#include <stdio.h>
#include <string.h>

#define NCALLS 50

/* Each operation records an event on the caller's stream, for the group's stream to wait for, and
 * one at its end, for the caller's stream to wait for; and makes three queries. All other objects
 * are created once. */
typedef struct driver_count {
    const char *function;
    int each; /* per operation */
} driver_count;

static const driver_count drivers[] = {
    {"cuCtxGetCurrent", 2},
    {"cuStreamIsCapturing", 1},
    {"cuEventRecord", 2},
    {"cuStreamWaitEvent", 2},
    {"cuCtxSetCurrent", 0},
    {"cuCtxPushCurrent", 0},
    {"cuCtxPopCurrent", 0},
    {"cuEventCreate", 0},
    {"cuEventDestroy", 0},
    {"cuMemAlloc", 0},
    {"cuMemFree", 0},
    {"cuMemAllocFromPoolAsync", 0},
    {"cuMemFreeAsync", 0},
    {"cuMemcpyAsync", 0},
    {"cuMemcpyDtoHAsync", 0},
    {"cuStreamSynchronize", 0},
    {"cuEventSynchronize", 0},
    {"cuStreamQuery", 0},
    {"cuPointerGetAttribute", 0},
    {"cuStreamCreateWithPriority", 0},
};
#define NDRIVERS (sizeof drivers / sizeof drivers[0])

static const driver_count nccls[] = {
    {"ncclAllReduce", 1},         {"ncclGroupStart", 0},           {"ncclGroupEnd", 0},
    {"ncclCommGetAsyncError", 0}, {"ncclRedOpCreatePreMulSum", 0}, {"ncclCommRegister", 0},
};
#define NNCCLS (sizeof nccls / sizeof nccls[0])

/* The lock of launches; the group's lock for a work from the pool, for an event, for a number, and
 * for the launch; the communicator's lock, on entry and exit. Returning work and event to the pools
 * happens after the end. Only the first lock can be held for long, by a call of the same group. */
#define LOCKS 7

/* Call as Python does, except for the last step: the stream waits, and the work is released. */
static void
call_once(nccl_rig_rank *self, const dd_nccl_call *call)
{
    dd_nccl_work *work;
    REQUIRE_OK(nccl_rig_start(self, call, &work, check_err()));
    CHECK_OK(dd_nccl_work_wait_stream(work, self->stream, check_err()));
    dd_work_release(&work->base);
}

/* Wait until the device has completed all works, so that works and events can be reused. */
static void
catch_up(nccl_rig_rank *self)
{
    CHECK_INT(self->rig->cuda->api.cuStreamSynchronize(self->stream), DD_CUDA_SUCCESS);
    dd_wait wait = nccl_rig_patience();
    CHECK_OK(dd_nccl_group_wait_works(self->group, &wait, check_err()));
}

static void
check_calls(const nccl_rig_stub *stub, const driver_count *counts, size_t n, const long *before)
{
    for (size_t i = 0; i < n; i++) {
        if (!CHECK_INT(stub->calls(counts[i].function) - before[i], (long)counts[i].each * NCALLS)) {
            fprintf(stderr, "    of %s\n", counts[i].function);
        }
    }
}

static void
count_body(nccl_rig_rank *self)
{
    const nccl_rig *rig = self->rig;
    int *data = nccl_rig_alloc(self, sizeof *data);
    memset(data, 0, sizeof *data);
    dd_block block = {data, sizeof *data};
    dd_nccl_op op = nccl_rig_all_reduce(DD_DTYPE_INT32, DD_REDOP_SUM, &block);
    dd_nccl_call call = nccl_rig_call(self, "all_reduce", &op, 1);
    for (int i = 0; i < NCALLS; i++) {
        call_once(self, &call);
    }
    catch_up(self);
    long before[NDRIVERS];
    long before_nccl[NNCCLS];
    for (size_t i = 0; i < NDRIVERS; i++) {
        before[i] = rig->cuda_stub.calls(drivers[i].function);
    }
    for (size_t i = 0; i < NNCCLS; i++) {
        before_nccl[i] = rig->nccl_stub.calls(nccls[i].function);
    }
    unsigned long nlocks = dd_lock_ntaken();
    (void)dd_mem_fail_after(0); /* any allocation makes its call fail */
    for (int i = 0; i < NCALLS; i++) {
        call_once(self, &call);
    }
    CHECK_INT(dd_mem_fail_after(-1), 0);
    CHECK_INT(dd_lock_ntaken() - nlocks, LOCKS * NCALLS);
    check_calls(&rig->cuda_stub, drivers, NDRIVERS, before);
    check_calls(&rig->nccl_stub, nccls, NNCCLS, before_nccl);
    catch_up(self);
    nccl_rig_free(self, data);
}

/* The watchdog, which queries pending works, does not run during the test. */
TEST(an_operation_makes_a_limited_number_of_cuda_and_nccl_calls)
{
    nccl_rig_run(&(nccl_rig_options){.size = 1, .interval_ns = 3600 * DD_NS_PER_S}, count_body, NULL);
}

/* A caller that is faster than the watchdog queries works itself, but only a few of many. */
#define NBURST 1000
#define MAX_EVENTS 70 /* of works that have not been queried */
#define MAX_QUESTIONS 150

static void
burst_body(nccl_rig_rank *self)
{
    const nccl_rig *rig = self->rig;
    int *data = nccl_rig_alloc(self, sizeof *data);
    memset(data, 0, sizeof *data);
    dd_block block = {data, sizeof *data};
    dd_nccl_op op = nccl_rig_all_reduce(DD_DTYPE_INT32, DD_REDOP_SUM, &block);
    dd_nccl_call call = nccl_rig_call(self, "all_reduce", &op, 1);
    call_once(self, &call);
    long nevents = rig->cuda_stub.made("event");
    long nquestions = rig->cuda_stub.calls("cuEventQuery");
    for (int i = 0; i < NBURST; i++) {
        call_once(self, &call);
        CHECK_INT(rig->cuda->api.cuStreamSynchronize(self->stream), DD_CUDA_SUCCESS);
    }
    CHECK(rig->cuda_stub.made("event") - nevents <= MAX_EVENTS);
    CHECK(rig->cuda_stub.calls("cuEventQuery") - nquestions <= MAX_QUESTIONS);
    catch_up(self);
    nccl_rig_free(self, data);
}

TEST(many_operations_in_a_row_use_few_cuda_events_and_event_queries)
{
    nccl_rig_run(&(nccl_rig_options){.size = 1, .interval_ns = 3600 * DD_NS_PER_S}, burst_body, NULL);
}
