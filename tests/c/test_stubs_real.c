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
