/* Behaviour of the stub of libnccl that the real library was seen to have, by version: results, warnings and handles of calls
 * that are wrong, and of calls around them (tests/stubs/README.md). */
#include "check.h"
#include "stubs/stub_rig.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define GDRCOPY "RMA/Socket : rma_socket requires GDRCopy; and GDR Copy is not available"

static void
check_last_error(const char *expected)
{
    const char *text = nccl.ncclGetLastError(NULL);
    if (!CHECK(strcmp(text, expected) == 0)) {
        fprintf(stderr, "    \"%s\" instead of \"%s\"\n", text, expected);
    }
}

/* A communicator of one rank on device 0, which becomes current. */
static dd_nccl_comm_handle
make_alone(int blocking)
{
    use_device(0);
    dd_nccl_unique_id id;
    NC(ncclGetUniqueId(&id));
    dd_nccl_comm_handle comm = NULL;
    dd_nccl_abi_config config = make_config(blocking);
    CHECK_INT(nccl.ncclCommInitRankConfig(&comm, 1, id, 0, &config),
              blocking ? DD_NCCL_SUCCESS : DD_NCCL_IN_PROGRESS);
    CHECK_INT(wait_until_ready(comm), DD_NCCL_SUCCESS);
    return comm;
}

/* ---- ncclGetLastError */

static void *
read_last_error(void *arg)
{
    snprintf(arg, 256, "%s", nccl.ncclGetLastError(NULL));
    return NULL;
}

TEST(the_last_error_is_the_last_warning_of_the_process)
{
    load_nccl("2.30.7");
    dd_nccl_comm_handle comm = make_alone(1);
    check_last_error("");
    CHECK_INT(nccl.ncclCommSplit(comm, 0, 0, NULL, NULL), DD_NCCL_INVALID_ARGUMENT);
    check_last_error("ncclCommSplit : newcomm argument is NULL");
    char elsewhere[256] = "";
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, read_last_error, elsewhere) == 0);
    pthread_join(thread, NULL);
    CHECK(strcmp(elsewhere, "ncclCommSplit : newcomm argument is NULL") == 0);
    /* Errors that log nothing, and calls that succeed, leave it. */
    NC(ncclCommFinalize(comm));
    CHECK_INT(nccl.ncclCommFinalize(comm), DD_NCCL_INVALID_ARGUMENT);
    check_last_error("ncclCommSplit : newcomm argument is NULL");
    nccl.dd_stub_fail("ncclCommDestroy", 0, DD_NCCL_SYSTEM_ERROR, NULL);
    CHECK_INT(nccl.ncclCommDestroy(comm), DD_NCCL_SYSTEM_ERROR);
    check_last_error("ncclCommSplit : newcomm argument is NULL");
    NC(ncclCommDestroy(comm));
    nccl.dd_stub_warn("NET/IB : no device found");
    check_last_error("NET/IB : no device found");
}

TEST(a_good_init_warns_of_gdrcopy_since_2_32)
{
    load_nccl("2.32.3");
    dd_nccl_comm_handle comm = make_alone(0);
    check_last_error(GDRCOPY);
    NC(ncclCommAbort(comm));
}

/* ---- ends */

static int64_t
now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static atomic_bool has_first_ended;

/* Rank 1's all_reduce waits for rank 0 on the device, while rank 1 ends; rank 0 calls its own after that. */
static void
run_two_ends(member *self)
{
    int *data = make_memory(sizeof *data);
    *data = 1;
    if (self->rank == 1) {
        NC(ncclAllReduce(data, data, 1, DD_NCCL_DTYPE_INT32, DD_NCCL_SUM, self->comm, self->stream));
        NC(ncclCommDestroy(self->comm));
        CHECK_INT(cuda.cuStreamQuery(self->stream), DD_CUDA_NOT_READY);
        atomic_store(&has_first_ended, true);
    } else {
        while (!atomic_load(&has_first_ended)) {
            sched_yield();
        }
        NC(ncclAllReduce(data, data, 1, DD_NCCL_DTYPE_INT32, DD_NCCL_SUM, self->comm, self->stream));
        NC(ncclCommDestroy(self->comm));
        CHECK_INT(cuda.cuStreamQuery(self->stream), DD_CUDA_SUCCESS);
    }
    self->comm = NULL;
    CU(cuStreamSynchronize(self->stream));
    CHECK_INT(*data, 2);
    free_memory(data);
}

TEST(the_first_rank_of_a_process_ends_without_waiting)
{
    load_nccl("2.27.3");
    setenv("NCCL_RUNTIME_CONNECT", "0", 1); /* else the first call waits on the host */
    run_team(2, 1, run_two_ends);
}

TEST(ends_take_half_a_second_on_demand)
{
    load_nccl("2.30.7");
    nccl.dd_stub_slow_ends(450);
    dd_nccl_comm_handle comms[7];
    for (int i = 0; i < 7; i++) {
        comms[i] = make_alone(1);
    }
    int64_t began = now_ms();
    NC(ncclCommDestroy(comms[0]));
    CHECK(now_ms() - began >= 440);
    began = now_ms();
    NC(ncclCommAbort(comms[1]));
    CHECK(now_ms() - began >= 440);
    began = now_ms();
    NC(ncclGroupStart());
    for (int i = 2; i < 7; i++) {
        CHECK_INT(i % 2 == 0 ? nccl.ncclCommAbort(comms[i]) : nccl.ncclCommDestroy(comms[i]),
                  DD_NCCL_SUCCESS);
    }
    CHECK(now_ms() - began < 440);
    NC(ncclGroupEnd());
    CHECK(now_ms() - began >= 440 && now_ms() - began < 5 * 440); /* side by side */
    nccl.dd_stub_reset();
    began = now_ms();
    NC(ncclCommDestroy(make_alone(1)));
    CHECK(now_ms() - began < 440);
}
