/* One process with several devices, with the stubs, whose device memory is host memory. */
#include "nccl/comm/team.h"
#include "test_nccl_comm_rig.h"

#include <stdlib.h>
#include <string.h>

#define NEWEST "2.32.3"
#define NDEVICES 3
#define COUNT 4

static const int DEVICES[NDEVICES] = {0, 1, 2};

/* A buffer for each device, with NDEVICES * COUNT floats. */
typedef struct field {
    comm_rig rig;
    dd_nccl_team *team;
    dd_wait wait;
    float *data[NDEVICES];
    dd_cuda_stream streams[NDEVICES];
} field;

static bool
field_open(field *f)
{
    if (!comm_rig_open(&f->rig, NEWEST)) {
        return false;
    }
    f->wait = dd_wait_after(8 * DD_NS_PER_S * check_slow());
    const dd_cuda_api *driver = &f->rig.cuda->api;
    for (int i = 0; i < NDEVICES; i++) {
        dd_cuda_guard guard;
        dd_cuda_ptr data;
        CHECK_OK(dd_cuda_enter(f->rig.cuda, i, &guard, check_err()));
        CHECK_INT(driver->cuMemAlloc(&data, NDEVICES * COUNT * sizeof(float)), DD_CUDA_SUCCESS);
        CHECK_INT(driver->cuStreamCreateWithPriority(&f->streams[i], DD_CUDA_STREAM_NON_BLOCKING, 0),
                  DD_CUDA_SUCCESS);
        dd_cuda_leave(&guard);
        f->data[i] = (float *)(uintptr_t)data;
    }
    return CHECK_OK(
        dd_nccl_team_open(f->rig.lib, f->rig.cuda, DEVICES, NDEVICES, &f->team, &f->wait, check_err()));
}

static void
field_sync(field *f, bool is_default)
{
    for (int i = 0; i < NDEVICES; i++) {
        dd_cuda_guard guard;
        CHECK_OK(dd_cuda_enter(f->rig.cuda, i, &guard, check_err()));
        CHECK_INT(f->rig.cuda->api.cuStreamSynchronize(is_default ? NULL : f->streams[i]), DD_CUDA_SUCCESS);
        dd_cuda_leave(&guard);
    }
}

static void
field_close(field *f)
{
    dd_nccl_team_close(f->team);
    for (int i = 0; i < NDEVICES; i++) {
        CHECK_INT(f->rig.cuda->api.cuMemFree((dd_cuda_ptr)(uintptr_t)f->data[i]), DD_CUDA_SUCCESS);
        CHECK_INT(f->rig.cuda->api.cuStreamDestroy(f->streams[i]), DD_CUDA_SUCCESS);
    }
    comm_rig_close(&f->rig);
}

/* Fill the buffer of device i with i + 1. */
static void
field_fill(field *f)
{
    for (int i = 0; i < NDEVICES; i++) {
        for (int k = 0; k < NDEVICES * COUNT; k++) {
            f->data[i][k] = (float)(i + 1);
        }
    }
}

static void
in_place(field *f, dd_nccl_item_kind kind, int root, dd_nccl_item *items)
{
    for (int i = 0; i < NDEVICES; i++) {
        items[i] = (dd_nccl_item){.kind = kind,
                                  .send = f->data[i],
                                  .recv = f->data[i],
                                  .count = COUNT,
                                  .dtype = DD_NCCL_DTYPE_FLOAT32,
                                  .redop = DD_NCCL_SUM,
                                  .root = root};
    }
}

TEST(collectives_over_all_devices_of_a_process_are_correct)
{
    field f;
    REQUIRE(field_open(&f));
    CHECK_INT(dd_nccl_team_size(f.team), NDEVICES);
    CHECK_INT(dd_nccl_team_device(f.team, 2), 2);
    dd_nccl_item items[NDEVICES];

    field_fill(&f);
    in_place(&f, DD_NCCL_ITEM_ALL_REDUCE, 0, items);
    CHECK_OK(dd_nccl_team_run(f.team, "all_reduce", items, 1, f.streams, &f.wait, check_err()));
    field_sync(&f, false);
    for (int i = 0; i < NDEVICES; i++) {
        CHECK(f.data[i][0] == 6 && f.data[i][COUNT - 1] == 6 && f.data[i][COUNT] == (float)(i + 1));
    }

    field_fill(&f);
    in_place(&f, DD_NCCL_ITEM_BROADCAST, 2, items);
    CHECK_OK(dd_nccl_team_run(f.team, "broadcast", items, 1, f.streams, &f.wait, check_err()));
    field_sync(&f, false);
    CHECK(f.data[0][0] == 3 && f.data[1][COUNT - 1] == 3);

    field_fill(&f);
    in_place(&f, DD_NCCL_ITEM_REDUCE, 1, items);
    CHECK_OK(dd_nccl_team_run(f.team, "reduce", items, 1, f.streams, &f.wait, check_err()));
    field_sync(&f, false);
    CHECK(f.data[0][0] == 1 && f.data[1][0] == 6 && f.data[2][0] == 3);

    field_fill(&f);
    in_place(&f, DD_NCCL_ITEM_ALL_GATHER, 0, items);
    for (int i = 0; i < NDEVICES; i++) {
        items[i].send = f.data[i] + i * COUNT;
    }
    CHECK_OK(dd_nccl_team_run(f.team, "all_gather", items, 1, f.streams, &f.wait, check_err()));
    field_sync(&f, false);
    for (int i = 0; i < NDEVICES; i++) {
        CHECK(f.data[i][0] == 1 && f.data[i][COUNT] == 2 && f.data[i][3 * COUNT - 1] == 3);
    }

    in_place(&f, DD_NCCL_ITEM_REDUCE_SCATTER, 0, items);
    for (int i = 0; i < NDEVICES; i++) {
        items[i].recv = f.data[i] + i * COUNT;
    }
    CHECK_OK(dd_nccl_team_run(f.team, "reduce_scatter", items, 1, f.streams, &f.wait, check_err()));
    field_sync(&f, false);
    CHECK(f.data[0][0] == 3 && f.data[1][COUNT] == 6 && f.data[2][2 * COUNT] == 9);
    field_close(&f);
}

TEST(without_given_streams_the_default_stream_of_each_device_is_used)
{
    field f;
    REQUIRE(field_open(&f));
    field_fill(&f);
    dd_nccl_item items[NDEVICES];
    in_place(&f, DD_NCCL_ITEM_ALL_REDUCE, 0, items);
    CHECK_OK(dd_nccl_team_run(f.team, "all_reduce", items, 1, NULL, &f.wait, check_err()));
    field_sync(&f, true);
    for (int i = 0; i < NDEVICES; i++) {
        CHECK(f.data[i][0] == 6);
    }
    field_close(&f);
}

/* A ring: each rank sends to the next, in one group. */
TEST(messages_between_devices_of_a_process_arrive)
{
    field f;
    REQUIRE(field_open(&f));
    field_fill(&f);
    dd_nccl_item items[2 * NDEVICES];
    in_place(&f, DD_NCCL_ITEM_SEND, 0, items);
    in_place(&f, DD_NCCL_ITEM_RECV, 0, items + NDEVICES);
    for (int i = 0; i < NDEVICES; i++) {
        items[i].root = (i + 1) % NDEVICES;
        items[NDEVICES + i].root = (i + NDEVICES - 1) % NDEVICES;
        items[NDEVICES + i].recv = f.data[i] + COUNT;
    }
    CHECK_OK(dd_nccl_team_run(f.team, "ring", items, 2, f.streams, &f.wait, check_err()));
    field_sync(&f, false);
    CHECK(f.data[0][COUNT] == 3 && f.data[1][COUNT] == 1 && f.data[2][COUNT] == 2);
    field_close(&f);
}

TEST(calls_restore_the_callers_current_device)
{
    field f;
    REQUIRE(field_open(&f));
    int device;
    CHECK_OK(dd_cuda_current_device(f.rig.cuda, &device, check_err()));
    CHECK_INT(device, DD_CUDA_NO_CURRENT);
    dd_cuda_guard guard;
    REQUIRE_OK(dd_cuda_enter(f.rig.cuda, 2, &guard, check_err()));
    dd_nccl_item items[NDEVICES];
    in_place(&f, DD_NCCL_ITEM_ALL_REDUCE, 0, items);
    CHECK_OK(dd_nccl_team_run(f.team, "all_reduce", items, 1, f.streams, &f.wait, check_err()));
    CHECK_OK(dd_cuda_current_device(f.rig.cuda, &device, check_err()));
    CHECK_INT(device, 2);
    field_sync(&f, false);
    dd_nccl_team_close(f.team);
    f.team = NULL;
    CHECK_OK(dd_cuda_current_device(f.rig.cuda, &device, check_err()));
    CHECK_INT(device, 2);
    dd_cuda_leave(&guard);
    field_close(&f);
}

/* Two ranks on one device, if NCCL supports it and its environment permits it. */
TEST(two_ranks_may_share_a_device_if_nccl_supports_it)
{
    static const int TWICE[] = {1, 1};
    field f;
    dd_nccl_team *other;
    comm_rig old;
    REQUIRE(comm_rig_open(&old, "2.29.7"));
    dd_wait wait = dd_wait_after(8 * DD_NS_PER_S * check_slow());
    CHECK_STATUS(dd_nccl_team_open(old.lib, old.cuda, TWICE, 2, &other, &wait, check_err()),
                 DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "device 1 appears twice: two ranks on one device need");
    comm_rig_close(&old);

    REQUIRE(field_open(&f));
    CHECK_STATUS(dd_nccl_team_open(f.rig.lib, f.rig.cuda, TWICE, 2, &other, &f.wait, check_err()),
                 DD_BACKEND);
    CHECK_CONTAINS(check_message(), "ncclInvalidUsage");
    CHECK_CONTAINS(check_message(), "device 1 appears twice, which needs NCCL_MULTI_RANK_GPU_ENABLE=1");
    REQUIRE(setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1) == 0);
    REQUIRE_OK(dd_nccl_team_open(f.rig.lib, f.rig.cuda, TWICE, 2, &other, &f.wait, check_err()));
    dd_cuda_stream streams[2];
    dd_nccl_item items[2];
    dd_cuda_guard guard;
    CHECK_OK(dd_cuda_enter(f.rig.cuda, 1, &guard, check_err()));
    for (int i = 0; i < 2; i++) {
        float *data = f.data[1] + (size_t)i * COUNT;
        data[0] = (float)(i + 1);
        items[i] = (dd_nccl_item){.kind = DD_NCCL_ITEM_ALL_REDUCE,
                                  .send = data,
                                  .recv = data,
                                  .count = 1,
                                  .dtype = DD_NCCL_DTYPE_FLOAT32,
                                  .redop = DD_NCCL_SUM};
        CHECK_INT(f.rig.cuda->api.cuStreamCreateWithPriority(&streams[i], DD_CUDA_STREAM_NON_BLOCKING, 0),
                  DD_CUDA_SUCCESS);
    }
    CHECK_STATUS(dd_nccl_team_run(other, "all_reduce", items, 1, NULL, &f.wait, check_err()),
                 DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "ranks 0 and 1 on device 1 use the same stream");
    CHECK_OK(dd_nccl_team_run(other, "all_reduce", items, 1, streams, &f.wait, check_err()));
    for (int i = 0; i < 2; i++) {
        CHECK_INT(f.rig.cuda->api.cuStreamSynchronize(streams[i]), DD_CUDA_SUCCESS);
        CHECK(f.data[1][(size_t)i * COUNT] == 3);
        CHECK_INT(f.rig.cuda->api.cuStreamDestroy(streams[i]), DD_CUDA_SUCCESS);
    }
    dd_cuda_leave(&guard);
    dd_nccl_team_close(other);
    field_close(&f);
}

TEST(invalid_lists_of_devices_and_invalid_calls_are_refused)
{
    static const int TWICE[] = {1, 1};
    field f;
    REQUIRE(field_open(&f));
    dd_nccl_team *other;
    CHECK_STATUS(dd_nccl_team_open(f.rig.lib, f.rig.cuda, TWICE, 0, &other, &f.wait, check_err()),
                 DD_INVALID_ARGUMENT);
    dd_nccl_item items[NDEVICES];
    in_place(&f, DD_NCCL_ITEM_BROADCAST, NDEVICES, items);
    CHECK_STATUS(dd_nccl_team_run(f.team, "broadcast", items, 1, NULL, &f.wait, check_err()),
                 DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "broadcast: invalid rank: got 3, expected 0 to 2");

    in_place(&f, DD_NCCL_ITEM_ALL_REDUCE, 0, items);
    f.rig.on_nccl.fail("ncclAllReduce", 1, DD_NCCL_INVALID_ARGUMENT, "the second is wrong");
    CHECK_STATUS(dd_nccl_team_run(f.team, "all_reduce", items, 1, f.streams, &f.wait, check_err()),
                 DD_BACKEND);
    CHECK_CONTAINS(check_message(), "all_reduce of rank 1 of 3: ncclInvalidArgument (4)");
    CHECK_CONTAINS(check_message(), "the second is wrong");
    CHECK_OK(dd_nccl_team_run(f.team, "all_reduce", items, 1, f.streams, &f.wait,
                              check_err())); /* the group was closed */
    field_sync(&f, false);
    field_close(&f);
}

TEST(a_team_may_have_only_one_device)
{
    static const int ONE[] = {2};
    field f;
    REQUIRE(field_open(&f));
    dd_nccl_team *team;
    REQUIRE_OK(dd_nccl_team_open(f.rig.lib, f.rig.cuda, ONE, 1, &team, &f.wait, check_err()));
    CHECK_INT(dd_nccl_team_device(team, 0), 2);
    dd_nccl_team_close(team);
    field_close(&f);
}

/* ---- ranks used separately */

typedef struct worker {
    field *f;
    dd_nccl_comm *comm;
    int rank;
    bool is_default; /* use the default stream */
    dd_status status;
    dd_error error;
    pthread_t thread;
} worker;

/* Reduce two tensors in one group, in a thread for each rank. */
static void *
reduce_two(void *arg)
{
    worker *w = arg;
    float *data = w->f->data[w->rank];
    dd_nccl_item item = {.kind = DD_NCCL_ITEM_ALL_REDUCE,
                         .send = data,
                         .recv = data,
                         .count = COUNT,
                         .dtype = DD_NCCL_DTYPE_FLOAT32,
                         .redop = DD_NCCL_AVG};
    dd_nccl_item items[2] = {item, item};
    items[1].send = data + COUNT;
    items[1].recv = data + COUNT;
    dd_cuda_stream stream = w->is_default ? NULL : w->f->streams[w->rank];
    w->status = dd_nccl_comm_run(w->comm, "all_reduce", items, 2, stream, &w->f->wait, &w->error);
    return NULL;
}

static void
take_apart(field *f, worker *workers)
{
    dd_nccl_comm *comms[NDEVICES];
    REQUIRE_OK(dd_nccl_team_take_apart(f->team, comms, &f->wait, check_err()));
    for (int i = 0; i < NDEVICES; i++) {
        workers[i] = (worker){.f = f, .comm = comms[i], .rank = i};
        CHECK_INT(dd_nccl_comm_rank(comms[i]), i);
    }
}

static void
run_workers(worker *workers, int n)
{
    for (int i = 0; i < n; i++) {
        CHECK_OK(dd_thread_start(&workers[i].thread, "worker", reduce_two, &workers[i], check_err()));
    }
    for (int i = 0; i < n; i++) {
        pthread_join(workers[i].thread, NULL);
    }
}

TEST(communicators_taken_out_of_a_team_work_in_separate_threads)
{
    field f;
    REQUIRE(field_open(&f));
    field_fill(&f);
    worker workers[NDEVICES];
    take_apart(&f, workers);
    dd_nccl_item items[NDEVICES];
    in_place(&f, DD_NCCL_ITEM_ALL_REDUCE, 0, items);
    CHECK_STATUS(dd_nccl_team_run(f.team, "all_reduce", items, 1, NULL, &f.wait, check_err()), DD_CLOSED);
    CHECK_CONTAINS(check_message(), "was destroyed");
    dd_nccl_comm *none[NDEVICES];
    CHECK_STATUS(dd_nccl_team_take_apart(f.team, none, &f.wait, check_err()), DD_CLOSED);
    CHECK(dd_nccl_team_acquire_comm(f.team, 0) == NULL);
    CHECK_OK(dd_nccl_team_abort(f.team, "nothing is left to abort", check_err()));
    dd_nccl_team_close(f.team); /* the ranks stay usable */
    f.team = NULL;

    for (int is_default = 0; is_default < 2; is_default++) {
        field_fill(&f);
        for (int i = 0; i < NDEVICES; i++) {
            workers[i].is_default = is_default;
        }
        run_workers(workers, NDEVICES);
        for (int i = 0; i < NDEVICES; i++) {
            CHECK_INT(workers[i].status, DD_OK);
        }
        field_sync(&f, is_default);
        for (int i = 0; i < NDEVICES; i++) {
            CHECK(f.data[i][0] == 2 && f.data[i][2 * COUNT - 1] == 2 &&
                  f.data[i][2 * COUNT] == (float)(i + 1));
        }
    }
    for (int i = 0; i < NDEVICES; i++) {
        dd_nccl_comm_release(workers[i].comm);
    }
    field_close(&f);
}

static void
check_stuck_rank(bool is_connected)
{
    field f;
    REQUIRE(field_open(&f));
    worker workers[NDEVICES];
    take_apart(&f, workers);
    if (is_connected) {
        run_workers(workers, NDEVICES);
        field_sync(&f, false);
    }
    dd_nccl_comm *handle = dd_nccl_comm_acquire(workers[0].comm);
    long ncalls = f.rig.on_nccl.calls("ncclGroupEnd");
    CHECK_OK(dd_thread_start(&workers[0].thread, "worker", reduce_two, &workers[0], check_err()));
    if (is_connected) { /* the other ranks never call: the kernel waits, */
        pthread_join(workers[0].thread, NULL);
        CHECK_INT(workers[0].status, DD_OK);
        CHECK_INT(f.rig.cuda->api.cuStreamQuery(f.streams[0]), DD_CUDA_NOT_READY);
    }
    while (f.rig.on_nccl.calls("ncclGroupEnd") == ncalls && !dd_wait_has_expired(&f.wait)) {
        (void)!dd_wait_sleep(&f.wait, DD_NS_PER_MS, NULL);
    }
    CHECK_OK(dd_nccl_comm_abort(handle, "a rank is gone", check_err()));
    if (!is_connected) { /* or, in its first collective, the host */
        pthread_join(workers[0].thread, NULL);
        CHECK_INT(workers[0].status, DD_BACKEND);
    }
    CHECK_INT(f.rig.cuda->api.cuStreamSynchronize(f.streams[0]), DD_CUDA_SUCCESS);
    reduce_two(&workers[0]);
    CHECK_INT(workers[0].status, DD_ABORTED);
    CHECK_CONTAINS(workers[0].error.message, "a rank is gone");
    for (int i = 0; i < NDEVICES; i++) {
        dd_nccl_comm_release(workers[i].comm);
    }
    CHECK_OK(dd_nccl_comm_abort(handle, "again, after the end", check_err()));
    CHECK(dd_nccl_comm_has_ended(handle));
    dd_nccl_comm_release(handle);
    field_close(&f);
}

TEST(aborting_by_a_handle_ends_a_call_that_waits_for_missing_ranks)
{
    check_stuck_rank(true);
    check_stuck_rank(false);
}

static void *
run_a_call(void *arg)
{
    field *f = arg;
    dd_nccl_item items[NDEVICES];
    in_place(f, DD_NCCL_ITEM_ALL_REDUCE, 0, items);
    CHECK_OK(dd_nccl_team_run(f->team, "all_reduce", items, 1, f->streams, &f->wait, check_err()));
    return NULL;
}

static bool
wants_out(void *ctx)
{
    (void)ctx;
    return true;
}

TEST(a_call_that_hangs_does_not_delay_another_call_past_its_deadline)
{
    field f;
    pthread_t thread;
    REQUIRE(field_open(&f));
    field_fill(&f);
    f.rig.on_nccl.hang("ncclGroupEnd", 0, -1);
    REQUIRE_OK(dd_thread_start(&thread, "call", run_a_call, &f, check_err()));
    while (f.rig.on_nccl.hanging() == 0 && !dd_wait_has_expired(&f.wait)) {
        (void)!dd_wait_sleep(&f.wait, DD_NS_PER_MS, NULL);
    }
    dd_nccl_item items[NDEVICES];
    dd_nccl_comm *comms[NDEVICES];
    in_place(&f, DD_NCCL_ITEM_ALL_REDUCE, 0, items);
    dd_wait brief = dd_wait_after(30 * DD_NS_PER_MS);
    CHECK_STATUS(dd_nccl_team_run(f.team, "all_reduce", items, 1, f.streams, &brief, check_err()),
                 DD_OP_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "waiting for another call of the NCCL communicators timed out");
    dd_wait interrupted = dd_wait_after(DD_NEVER_NS);
    interrupted.is_interrupted = wants_out;
    CHECK_STATUS(dd_nccl_team_take_apart(f.team, comms, &interrupted, check_err()), DD_INTERRUPTED);
    f.rig.on_nccl.release();
    pthread_join(thread, NULL);
    field_sync(&f, false);
    field_close(&f);
}

static void *
abort_team(void *arg)
{
    CHECK_OK(dd_nccl_team_abort(arg, "enough", check_err()));
    return NULL;
}

TEST(an_abort_that_hangs_on_one_device_does_not_prevent_it_on_others)
{
    field f;
    pthread_t thread;
    REQUIRE(field_open(&f));
    f.rig.on_nccl.hang("ncclCommAbort", 0, -1);
    REQUIRE_OK(dd_thread_start(&thread, "abort", abort_team, f.team, check_err()));
    while (f.rig.on_nccl.calls("ncclCommAbort") < NDEVICES && !dd_wait_has_expired(&f.wait)) {
        (void)!dd_wait_sleep(&f.wait, DD_NS_PER_MS, NULL);
    }
    CHECK_INT(f.rig.on_nccl.calls("ncclCommAbort"), NDEVICES);
    CHECK_INT(f.rig.on_nccl.hanging(), 1);
    f.rig.on_nccl.release();
    pthread_join(thread, NULL);
    field_close(&f);
}

TEST(communicator_handles_stay_valid_after_their_team_is_aborted_or_closed)
{
    field f;
    REQUIRE(field_open(&f));
    dd_nccl_comm *handle = dd_nccl_team_acquire_comm(f.team, 1);
    CHECK_OK(dd_nccl_team_abort(f.team, "enough", check_err()));
    CHECK_OK(dd_nccl_team_abort(f.team, "more than enough", check_err()));
    CHECK_INT(f.rig.on_nccl.calls("ncclCommAbort"), NDEVICES);
    dd_nccl_item items[NDEVICES];
    in_place(&f, DD_NCCL_ITEM_ALL_REDUCE, 0, items);
    CHECK_STATUS(dd_nccl_team_run(f.team, "all_reduce", items, 1, NULL, &f.wait, check_err()), DD_ABORTED);
    CHECK_CONTAINS(check_message(), "enough");
    dd_nccl_team_close(f.team);
    f.team = NULL;
    CHECK_OK(dd_nccl_comm_abort(handle, "after the end", check_err()));
    dd_nccl_comm_release(handle);

    REQUIRE_OK(dd_nccl_team_open(f.rig.lib, f.rig.cuda, DEVICES, NDEVICES, &f.team, &f.wait, check_err()));
    handle = dd_nccl_team_acquire_comm(f.team, 0);
    dd_nccl_team_close(f.team); /* destroys it, even if there are handles */
    f.team = NULL;
    CHECK_INT(f.rig.on_nccl.live("comm"), 0);
    CHECK_OK(dd_nccl_comm_abort(handle, "after the end", check_err()));
    dd_nccl_comm_release(handle);
    field_close(&f);
}
