/* Behaviour of the stub of libnccl that was observed in the real library, by version: results,
 * warnings and handles of invalid calls, and of calls around them (tests/stubs/README.md). */
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

/* Create a communicator of one rank on device 0, which becomes current. */
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
    /* Errors that log nothing, and successful calls, do not change it. */
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

TEST(a_successful_init_warns_of_gdrcopy_since_nccl_2_32)
{
    load_nccl("2.32.3");
    dd_nccl_comm_handle comm = make_alone(0);
    check_last_error(GDRCOPY);
    NC(ncclCommAbort(comm));
}

/* ---- wrong arguments */

#define SUM(comm, stream, dtype) nccl.ncclAllReduce(data, data, 1, dtype, DD_NCCL_SUM, comm, stream)

/* Check calls on a communicator after a call with a wrong argument. */
static void
check_after_mistake(int blocking)
{
    dd_nccl_comm_handle comm = make_alone(blocking);
    dd_cuda_stream stream = make_stream(DD_CUDA_STREAM_NON_BLOCKING);
    int *data = make_memory(sizeof *data);
    CHECK_INT(SUM(comm, stream, (dd_nccl_dtype)99), DD_NCCL_INVALID_ARGUMENT);
    dd_nccl_result expected = blocking ? DD_NCCL_SUCCESS : DD_NCCL_INVALID_ARGUMENT;
    dd_nccl_result state = DD_NCCL_IN_PROGRESS;
    NC(ncclCommGetAsyncError(comm, &state));
    CHECK_INT(state, expected);
    int rank = -1;
    CHECK_INT(nccl.ncclCommUserRank(comm, &rank), expected);
    CHECK_INT(SUM(comm, stream, DD_NCCL_DTYPE_INT32), expected);
    CHECK_INT(nccl.ncclCommFinalize(comm), expected);
    CHECK_INT(nccl.ncclCommDestroy(comm), expected);
    if (!blocking) {
        CHECK_INT(nccl.dd_stub_live("comm"), 1); /* only an abort ends it */
        NC(ncclCommAbort(comm));
    }
    CHECK_INT(nccl.dd_stub_live("comm"), 0);
    free_memory(data);
    CU(cuStreamDestroy(stream));
}

TEST(a_wrong_argument_makes_a_nonblocking_communicator_unusable)
{
    load_nccl("2.27.3");
    check_after_mistake(1);
    check_after_mistake(0);
    CHECK_INT(nccl.dd_stub_bad_uses(), 0);
}

TEST(a_failed_operation_makes_a_nonblocking_communicator_unusable)
{
    load_nccl("2.30.7");
    dd_nccl_comm_handle comm = make_alone(0);
    int *data = make_memory(sizeof *data);
    nccl.dd_stub_fail("ncclAllReduce", 0, DD_NCCL_SYSTEM_ERROR, NULL);
    CHECK_INT(SUM(comm, NULL, DD_NCCL_DTYPE_INT32), DD_NCCL_SYSTEM_ERROR);
    dd_nccl_result state = DD_NCCL_SUCCESS;
    NC(ncclCommGetAsyncError(comm, &state));
    CHECK_INT(state, DD_NCCL_SYSTEM_ERROR);
    NC(ncclCommAbort(comm));
    free_memory(data);
}

TEST(a_wrong_argument_makes_all_communicators_of_one_group_call_unusable)
{
    load_nccl("2.32.3");
    dd_nccl_comm_handle comm = make_alone(0);
    dd_nccl_comm_handle other = make_alone(0);
    int *data = make_memory(sizeof *data);
    NC(ncclGroupStart());
    CHECK_INT(SUM(other, NULL, DD_NCCL_DTYPE_INT32), DD_NCCL_SUCCESS);
    CHECK_INT(SUM(comm, NULL, (dd_nccl_dtype)99), DD_NCCL_INVALID_ARGUMENT);
    CHECK_INT(nccl.ncclGroupEnd(), DD_NCCL_INVALID_ARGUMENT);
    dd_nccl_result state = DD_NCCL_SUCCESS;
    NC(ncclCommGetAsyncError(other, &state));
    CHECK_INT(state, DD_NCCL_INVALID_ARGUMENT);
    NC(ncclCommAbort(comm));
    NC(ncclCommAbort(other));
    free_memory(data);
}

TEST(a_refused_registration_leaves_the_communicator_usable)
{
    load_nccl("2.30.7");
    dd_nccl_comm_handle comm = make_alone(0);
    void *registration = NULL;
    CHECK_INT(nccl.ncclCommRegister(comm, NULL, 8, &registration), DD_NCCL_UNHANDLED_CUDA_ERROR);
    CHECK_INT(wait_until_ready(comm), DD_NCCL_SUCCESS);
    NC(ncclCommDestroy(comm));
}

TEST(wrong_arguments_cause_the_same_warnings_as_in_nccl)
{
    load_nccl("2.30.7");
    dd_nccl_comm_handle comm = make_alone(1);
    int *data = make_memory(sizeof *data);
    CHECK_INT(SUM(comm, NULL, (dd_nccl_dtype)99), DD_NCCL_INVALID_ARGUMENT);
    check_last_error("AllReduce : invalid type 99");
    CHECK_INT(nccl.ncclSend(data, 1, DD_NCCL_DTYPE_INT32, 1, comm, NULL), DD_NCCL_INVALID_ARGUMENT);
    check_last_error("Send : invalid root 1 (root should be in the 0..1 range)");
    CHECK_INT(nccl.ncclAllReduce(data, data, 1, DD_NCCL_DTYPE_INT32, (dd_nccl_redop)77, comm, NULL),
              DD_NCCL_INVALID_ARGUMENT);
    check_last_error("AllReduce : reduction operation 77 unknown to this communicator");
    dd_nccl_unique_id id;
    NC(ncclGetUniqueId(&id));
    dd_nccl_comm_handle none = NULL;
    CHECK_INT(nccl.ncclCommInitRank(&none, 1, id, 1), DD_NCCL_INVALID_ARGUMENT);
    check_last_error("Invalid rank requested : 1/1");
    dd_nccl_abi_config config = make_config(7);
    CHECK_INT(nccl.ncclCommInitRankConfig(&none, 1, id, 0, &config), DD_NCCL_INVALID_ARGUMENT);
    check_last_error("Invalid config blocking attribute value 7");
    NC(ncclCommDestroy(comm));
    free_memory(data);
}

TEST(error_strings_are_the_long_texts_of_nccl)
{
    load_nccl("2.18.1");
    static const struct {
        dd_nccl_result result;
        const char *text;
    } rows[] = {
        {DD_NCCL_SUCCESS, "no error"},
        {DD_NCCL_UNHANDLED_CUDA_ERROR, "unhandled cuda error (run with NCCL_DEBUG=INFO for details)"},
        {DD_NCCL_SYSTEM_ERROR, "unhandled system error (run with NCCL_DEBUG=INFO for details)"},
        {DD_NCCL_INTERNAL_ERROR, "internal error - please report this issue to the NCCL developers"},
        {DD_NCCL_INVALID_ARGUMENT, "invalid argument (run with NCCL_DEBUG=WARN for details)"},
        {DD_NCCL_INVALID_USAGE, "invalid usage (run with NCCL_DEBUG=WARN for details)"},
        {DD_NCCL_REMOTE_ERROR, "remote process exited or there was a network error"},
        {DD_NCCL_IN_PROGRESS, "NCCL operation in progress"},
        {DD_NCCL_TIMEOUT, "unknown result code"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        CHECK(strcmp(nccl.ncclGetErrorString(rows[i].result), rows[i].text) == 0);
    }
}

TEST(a_null_pointer_for_a_result_is_an_error)
{
    load_nccl("2.32.3");
    dd_nccl_comm_handle comm = make_alone(1);
    CHECK_INT(nccl.ncclGetVersion(NULL), DD_NCCL_INVALID_ARGUMENT);
    check_last_error(GDRCOPY);
    CHECK_INT(nccl.ncclCommCount(comm, NULL), DD_NCCL_INVALID_ARGUMENT);
    check_last_error("CommCount : count argument is NULL");
    CHECK_INT(nccl.ncclCommCuDevice(comm, NULL), DD_NCCL_INVALID_ARGUMENT);
    check_last_error("CommCuDevice : devid argument is NULL");
    CHECK_INT(nccl.ncclCommUserRank(comm, NULL), DD_NCCL_INVALID_ARGUMENT);
    check_last_error("CommUserRank : rank argument is NULL");
    CHECK_INT(nccl.ncclCommGetAsyncError(comm, NULL), DD_NCCL_INVALID_ARGUMENT);
    check_last_error("ncclGetAsyncError : asyncError argument is NULL");
    CHECK_INT(nccl.ncclGetUniqueId(NULL), DD_NCCL_INVALID_ARGUMENT);
    check_last_error("GetUniqueId : out argument is NULL");
    CHECK_INT(nccl.ncclCommSplit(comm, 0, 0, NULL, NULL), DD_NCCL_INVALID_ARGUMENT);
    check_last_error("ncclCommSplit : newcomm argument is NULL");
    NC(ncclCommDestroy(comm));
}

/* ---- inits that fail */

typedef struct same_gpu_rank {
    int rank;
    dd_nccl_unique_id id;
    dd_nccl_comm_handle comm;
    dd_nccl_result result;
    pthread_t thread;
} same_gpu_rank;

static void *
init_on_device_0(void *arg)
{
    same_gpu_rank *self = arg;
    use_device(0);
    self->result = nccl.ncclCommInitRank(&self->comm, 2, self->id, self->rank);
    return NULL;
}

/* Init two ranks on one device; `handles` communicators are left. */
static void
check_same_gpu(const char *version, const char *warning, int handles)
{
    load_nccl(version);
    (void)unsetenv("DLDIST_STUB_ALLOW_SAME_GPU");
    same_gpu_rank ranks[2] = {{.rank = 0}, {.rank = 1}};
    NC(ncclGetUniqueId(&ranks[0].id));
    ranks[1].id = ranks[0].id;
    for (int i = 0; i < 2; i++) {
        REQUIRE(pthread_create(&ranks[i].thread, NULL, init_on_device_0, &ranks[i]) == 0);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(ranks[i].thread, NULL);
        CHECK_INT(ranks[i].result, DD_NCCL_INVALID_USAGE);
        CHECK_INT(ranks[i].comm != NULL, handles > 0);
    }
    check_last_error(warning);
    CHECK_INT(nccl.dd_stub_live("comm"), handles);
    for (int i = 0; i < 2; i++) {
        CHECK_INT(nccl.ncclCommDestroy(ranks[i].comm), handles > 0 ? DD_NCCL_INVALID_USAGE : DD_NCCL_SUCCESS);
        NC(ncclCommAbort(ranks[i].comm));
    }
    CHECK_INT(nccl.dd_stub_live("comm"), 0);
}

TEST(two_ranks_on_one_gpu_are_refused)
{
    static const char newer[] = "Multiple Ranks are using the same GPU/Partition. Set "
                                "NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this configuration.";
    check_same_gpu("2.27.3", "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 10", 0);
    check_same_gpu("2.30.7", newer, 0);
    check_same_gpu("2.32.3", newer, 2);
    int devices[] = {0, 0};
    dd_nccl_comm_handle comms[2] = {NULL, NULL};
    nccl.dd_stub_warn("before");
    CHECK_INT(nccl.ncclCommInitAll(comms, 2, devices), DD_NCCL_INVALID_USAGE);
    check_last_error("before");
    CHECK(comms[0] == NULL && comms[1] == NULL);
}

static void
check_unknown_net(const char *version, int blocking, bool is_left)
{
    load_nccl(version);
    use_device(0);
    dd_nccl_unique_id id;
    NC(ncclGetUniqueId(&id));
    dd_nccl_abi_config config = make_config(blocking);
    config.netName = "socket";
    dd_nccl_comm_handle comm = NULL;
    (void)nccl.ncclCommInitRankConfig(&comm, 1, id, 0, &config);
    CHECK_INT(wait_until_ready(comm), DD_NCCL_SUCCESS);
    NC(ncclCommDestroy(comm));
    config.netName = "carrier pigeon";
    comm = NULL;
    NC(ncclGetUniqueId(&id));
    CHECK_INT(nccl.ncclCommInitRankConfig(&comm, 1, id, 0, &config),
              blocking ? DD_NCCL_INVALID_USAGE : DD_NCCL_IN_PROGRESS);
    if (CHECK_INT(comm != NULL, is_left) && is_left) {
        CHECK_INT(wait_until_ready(comm), DD_NCCL_INVALID_USAGE);
        NC(ncclCommAbort(comm));
    }
    check_last_error("Failed to initialize any NET plugin");
    CHECK_INT(nccl.dd_stub_live("comm"), 0);
}

TEST(an_unknown_network_is_refused)
{
    check_unknown_net("2.27.3", 1, false);
    check_unknown_net("2.30.7", 1, true);
    check_unknown_net("2.30.7", 0, true);
    check_unknown_net("2.32.3", 1, true);
}

TEST(a_unique_id_of_zeros_is_an_internal_error)
{
    load_nccl("2.30.7");
    use_device(0);
    dd_nccl_unique_id id = {""};
    dd_nccl_comm_handle comm = NULL;
    CHECK_INT(nccl.ncclCommInitRank(&comm, 1, id, 0), DD_NCCL_INTERNAL_ERROR);
    CHECK(comm == NULL);
}

/* ---- calls that accept more than documented */

TEST(a_split_accepts_any_color)
{
    load_nccl("2.27.3");
    dd_nccl_comm_handle comm = make_alone(1);
    dd_nccl_comm_handle child = NULL;
    NC(ncclCommSplit(comm, -2, 0, &child, NULL));
    CHECK(child != NULL);
    NC(ncclCommDestroy(child));
    NC(ncclCommDestroy(comm));
}

TEST(a_communicator_of_one_rank_works_after_finalize)
{
    load_nccl("2.30.7");
    NC(ncclCommFinalize(NULL));
    dd_nccl_comm_handle comm = make_alone(1);
    int *data = make_memory(sizeof *data);
    NC(ncclCommFinalize(comm));
    CHECK_INT(SUM(comm, NULL, DD_NCCL_DTYPE_INT32), DD_NCCL_SUCCESS);
    CHECK_INT(nccl.ncclCommFinalize(comm), DD_NCCL_INVALID_ARGUMENT);
    NC(ncclCommDestroy(comm));
    free_memory(data);
}

TEST(numbers_of_user_created_reductions_are_large)
{
    load_nccl("2.24.3");
    dd_nccl_comm_handle comm = make_alone(1);
    int *data = make_memory(sizeof *data);
    int two = 2;
    dd_nccl_redop ops[2] = {DD_NCCL_SUM, DD_NCCL_SUM};
    CHECK_INT(nccl.ncclRedOpCreatePreMulSum(&ops[0], &two, (dd_nccl_dtype)99, DD_NCCL_SCALAR_HOST, comm),
              DD_NCCL_INTERNAL_ERROR);
    check_last_error("");
    for (int i = 0; i < 2; i++) {
        NC(ncclRedOpCreatePreMulSum(&ops[i], &two, DD_NCCL_DTYPE_INT32, DD_NCCL_SCALAR_HOST, comm));
        CHECK((int)ops[i] > 1000000);
        *data = 4;
        NC(ncclAllReduce(data, data, 1, DD_NCCL_DTYPE_INT32, ops[i], comm, NULL));
        CU(cuStreamSynchronize(NULL));
        CHECK_INT(*data, 8);
    }
    CHECK(ops[0] != ops[1]);
    CHECK_INT(nccl.ncclAllReduce(data, data, 1, DD_NCCL_DTYPE_FLOAT32, ops[0], comm, NULL),
              DD_NCCL_INVALID_ARGUMENT);
    check_last_error(
        "Data type supplied to user-created ncclRedOp_t does not match type given to reduction operation");
    NC(ncclRedOpDestroy(ops[0], comm));
    NC(ncclRedOpDestroy(ops[1], comm));
    CHECK_INT(nccl.dd_stub_live("redop"), 0);
    NC(ncclCommDestroy(comm));
    free_memory(data);
}

/* Register a symmetric window of memory from cuMemAlloc. */
static void
check_plain_window(const char *version, dd_nccl_result expected)
{
    load_nccl(version);
    dd_nccl_comm_handle comm = make_alone(1);
    int *data = make_memory(sizeof *data);
    dd_nccl_window window = (dd_nccl_window)(void *)data;
    CHECK_INT(nccl.ncclCommWindowRegister(comm, data, sizeof *data, &window, DD_NCCL_WIN_COLL_SYMMETRIC),
              expected);
    CHECK(window == NULL);
    NC(ncclCommDestroy(comm));
    free_memory(data);
}

TEST(windows_of_plain_memory_are_refused_since_nccl_2_30)
{
    check_plain_window("2.27.3", DD_NCCL_SUCCESS);
    check_plain_window("2.30.7", DD_NCCL_UNHANDLED_CUDA_ERROR);
    check_plain_window("2.32.3", DD_NCCL_UNHANDLED_CUDA_ERROR);
}

TEST(an_operation_does_not_check_its_buffers)
{
    load_nccl("2.30.7");
    dd_nccl_comm_handle comm = make_alone(1);
    int *data = make_memory(sizeof *data);
    int on_host[] = {1, 0};
    *data = 0;
    long bad = nccl.dd_stub_bad_uses();
    NC(ncclAllReduce(on_host, data, 1, DD_NCCL_DTYPE_INT32, DD_NCCL_SUM, comm, NULL));
    CHECK_INT(nccl.dd_stub_bad_uses(), ++bad);
    NC(ncclAllReduce(NULL, data, 1, DD_NCCL_DTYPE_INT32, DD_NCCL_SUM, comm, NULL));
    CHECK_INT(nccl.dd_stub_bad_uses(), ++bad);
    /* the memory is too short */
    NC(ncclAllReduce(data, data, 1000, DD_NCCL_DTYPE_INT32, DD_NCCL_SUM, comm, NULL));
    CHECK_INT(nccl.dd_stub_bad_uses(), bad + 2);
    CU(cuStreamSynchronize(NULL));
    CHECK_INT(*data, 0); /* their kernels had no effect */
    NC(ncclAllReduce(NULL, NULL, 0, DD_NCCL_DTYPE_INT32, DD_NCCL_SUM, comm, NULL));
    CHECK_INT(nccl.dd_stub_bad_uses(), bad + 2);
    NC(ncclCommDestroy(comm));
    free_memory(data);
}

TEST(allocating_0_bytes_returns_null_and_0_bytes_can_be_registered)
{
    load_nccl("2.32.3");
    dd_nccl_comm_handle comm = make_alone(1);
    void *data = &data;
    NC(ncclMemAlloc(&data, 0));
    CHECK(data == NULL);
    NC(ncclMemFree(data));
    int *known = make_memory(sizeof *known);
    void *registration = NULL;
    NC(ncclCommRegister(comm, known, 0, &registration));
    CHECK(registration != NULL);
    NC(ncclCommDeregister(comm, registration));
    NC(ncclCommDeregister(comm, NULL));
    NC(ncclCommDestroy(comm));
    free_memory(known);
}

/* ---- destroy and abort */

static int64_t
now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static atomic_bool has_first_ended;

/* Rank 1's all_reduce waits for rank 0 on the device while rank 1 destroys its communicator; rank 0
 * calls all_reduce after that. */
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

TEST(destroying_the_first_communicator_of_a_process_does_not_wait)
{
    load_nccl("2.27.3");
    setenv("NCCL_RUNTIME_CONNECT", "0", 1); /* else the first call waits on the host */
    run_team(2, 1, run_two_ends);
}

TEST(destroying_a_communicator_takes_half_a_second_on_request)
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
    CHECK(now_ms() - began >= 440 && now_ms() - began < 5 * 440); /* the two overlap */
    nccl.dd_stub_reset();
    began = now_ms();
    NC(ncclCommDestroy(make_alone(1)));
    CHECK(now_ms() - began < 440);
}
