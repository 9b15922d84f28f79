/* Loading the library: the files that are found, the missing symbols, and the error messages. */
#include "check.h"
#include "nccl/driver/cuda.h"
#include "nccl/driver/lib.h"
#include "test_nccl_comm_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NEWEST "2.32.3"
#define NOWHERE "/nonexistent/folder/libnccl.so.2"

static const char *const ERAS[] = {"2.18.1", "2.19.3", "2.22.3", "2.23.4", "2.24.3", "2.27.3", "2.28.3",
                                   "2.28.7", "2.29.2", "2.29.7", "2.30.7", "2.31.2", "2.32.3"};

static int
code_of(const char *version)
{
    int major = 0;
    int minor = 0;
    int patch = 0;
    CHECK_INT(sscanf(version, "%d.%d.%d", &major, &minor, &patch), 3);
    return major * 10000 + minor * 100 + patch;
}

#define SINCE_OF(name, since, returns, params, capability) since,
static const int SINCE[] = {DD_NCCL_OPTIONAL(SINCE_OF)};

TEST(each_nccl_version_has_its_own_set_of_functions)
{
    for (size_t i = 0; i < sizeof ERAS / sizeof ERAS[0]; i++) {
        dd_dylib_search search = {.explicit_path = comm_rig_nccl_path(ERAS[i])};
        dd_nccl_lib *lib;
        REQUIRE_OK(dd_nccl_lib_open(&search, &lib, check_err()));
        CHECK_INT(lib->version, code_of(ERAS[i]));
        CHECK(strcmp(lib->version_text, ERAS[i]) == 0);
        CHECK(strcmp(lib->path, search.explicit_path) == 0);
        for (int c = 0; c < DD_NCCL_CAPABILITY_COUNT; c++) {
            dd_nccl_capability capability = (dd_nccl_capability)c;
            bool is_due = SINCE[c] <= lib->version;
            CHECK_INT(dd_nccl_has(lib, capability), is_due);
            CHECK_STATUS(dd_nccl_need(lib, capability, check_err()), is_due ? DD_OK : DD_NOT_SUPPORTED);
            if (!is_due) {
                char since[16];
                CHECK_CONTAINS(check_message(), dd_nccl_capability_name(capability));
                CHECK_CONTAINS(check_message(), dd_nccl_version_print(SINCE[c], since));
                CHECK_CONTAINS(check_message(), lib->path);
            }
        }
        dd_nccl_dtype theirs;
        CHECK_STATUS(dd_nccl_dtype_of(lib, DD_DTYPE_FLOAT8_E5M2, &theirs, check_err()),
                     lib->version >= 22403 ? DD_OK : DD_NOT_SUPPORTED);
        dd_nccl_lib_close(lib);
    }
}

TEST(a_copy_of_nccl_that_the_process_has_loaded_is_used)
{
    dd_dylib_search search = {.explicit_path = comm_rig_nccl_path("2.27.3")};
    dd_dylib_search anywhere = {0};
    dd_nccl_lib *first;
    dd_nccl_lib *second;
    REQUIRE_OK(dd_nccl_lib_open(&search, &first, check_err()));
    REQUIRE_OK(dd_nccl_lib_open(&anywhere, &second, check_err()));
    CHECK(first->api.ncclAllReduce == second->api.ncclAllReduce);
    CHECK(strcmp(second->path, first->path) == 0);
    dd_nccl_lib_close(first);
    dd_nccl_lib_close(second);
}

TEST(candidate_paths_of_the_library_are_tried_in_order)
{
    const char *newest = comm_rig_nccl_path(NEWEST);
    const char *candidates[] = {NOWHERE, newest};
    dd_dylib_search search = {.candidates = candidates, .ncandidates = 2};
    dd_nccl_lib *lib;
    REQUIRE_OK(dd_nccl_lib_open(&search, &lib, check_err()));
    CHECK(strcmp(lib->version_text, NEWEST) == 0);
    dd_nccl_lib_close(lib);
}

TEST(an_error_names_every_path_at_which_the_library_was_searched)
{
    const char *candidates[] = {NOWHERE, "/etc/passwd"};
    dd_dylib_search search = {.candidates = candidates, .ncandidates = 2};
    dd_nccl_lib *lib;
    CHECK_STATUS(dd_nccl_lib_open(&search, &lib, check_err()), DD_NOT_SUPPORTED);
    CHECK_CONTAINS(check_message(), "libnccl.so.2: not loaded in this process");
    CHECK_CONTAINS(check_message(), NOWHERE ": cannot open shared object file");
    CHECK_CONTAINS(check_message(), "/etc/passwd: ");
    CHECK_CONTAINS(check_message(), "libnccl.so: ");

    /* If the path is explicit, no other path is tried. */
    search.explicit_path = NOWHERE;
    CHECK_STATUS(dd_nccl_lib_open(&search, &lib, check_err()), DD_NOT_SUPPORTED);
    CHECK_CONTAINS(check_message(), NOWHERE);
    CHECK_LACKS(check_message(), "/etc/passwd");

    dd_cuda *cuda;
    CHECK_STATUS(dd_cuda_open("/nonexistent/libcuda.so", &cuda, check_err()), DD_NOT_SUPPORTED);
    CHECK_CONTAINS(check_message(), "/nonexistent/libcuda.so");
}

TEST(a_library_that_is_not_nccl_is_refused)
{
    dd_dylib_search search = {.explicit_path = "libm.so.6"};
    dd_nccl_lib *lib;
    CHECK_STATUS(dd_nccl_lib_open(&search, &lib, check_err()), DD_NOT_SUPPORTED);
    CHECK_CONTAINS(check_message(), "ncclGetVersion");
    dd_cuda *cuda;
    CHECK_STATUS(dd_cuda_open("libm.so.6", &cuda, check_err()), DD_NOT_SUPPORTED);
    CHECK_CONTAINS(check_message(), "cuInit, cuDriverGetVersion"); /* lists all missing symbols */
    CHECK_CONTAINS(check_message(), "cuMemsetD8Async");
}

TEST(nccl_errors_contain_the_reason_given_by_nccl)
{
    comm_rig rig;
    REQUIRE(comm_rig_open(&rig, NEWEST));
    rig.on_nccl.fail("ncclGetUniqueId", 0, DD_NCCL_SYSTEM_ERROR, "Bootstrap : no socket interface found");
    dd_nccl_unique_id id;
    CHECK_STATUS(dd_nccl_make_unique_id(rig.lib, &id, check_err()), DD_BACKEND);
    CHECK_CONTAINS(check_message(), "ncclGetUniqueId: ncclSystemError (2): ");
    CHECK_CONTAINS(check_message(), ": Bootstrap : no socket interface found");
    CHECK_OK(dd_nccl_check(rig.lib, NULL, DD_NCCL_IN_PROGRESS, check_err(), "x"));

    dd_nccl_dtype theirs;
    CHECK_STATUS(dd_nccl_dtype_of(rig.lib, DD_DTYPE_COMPLEX64, &theirs, check_err()), DD_NOT_SUPPORTED);
    CHECK_CONTAINS(check_message(), "complex64");
    comm_rig_close(&rig);
}

/* The last error of the process: real NCCLs return it for any call. */
static const char *process_text = "";

static const char *
last_error_of_the_process(dd_nccl_comm_handle comm)
{
    (void)comm;
    return process_text;
}

static dd_nccl_result
fail_silently(dd_nccl_unique_id *id)
{
    (void)id;
    return DD_NCCL_SYSTEM_ERROR;
}

static dd_nccl_result
fail_with_a_text(dd_nccl_unique_id *id)
{
    process_text = "Bootstrap : no socket interface found";
    return fail_silently(id);
}

TEST(an_error_has_no_text_left_by_an_earlier_call)
{
    comm_rig rig;
    REQUIRE(comm_rig_open(&rig, NEWEST));
    dd_nccl_lib lib = *rig.lib;
    lib.api.ncclGetLastError = last_error_of_the_process;
    lib.api.ncclGetUniqueId = fail_silently;
    dd_nccl_unique_id id;
    process_text = "RMA/Socket : rma_socket requires GDRCopy"; /* left by a call that succeeded */
    CHECK_STATUS(dd_nccl_make_unique_id(&lib, &id, check_err()), DD_BACKEND);
    CHECK(strstr(check_message(), "GDRCopy") == NULL);
    lib.api.ncclGetUniqueId = fail_with_a_text;
    for (int i = 0; i < 2; i++) { /* the second time the text is the same as before */
        CHECK_STATUS(dd_nccl_make_unique_id(&lib, &id, check_err()), DD_BACKEND);
        CHECK_CONTAINS(check_message(), ": Bootstrap : no socket interface found");
    }
    dd_nccl_last_error before;
    dd_nccl_note_last_error(&lib, NULL, &before);
    static const dd_nccl_result RESULTS[] = {DD_NCCL_SYSTEM_ERROR, DD_NCCL_INTERNAL_ERROR,
                                             DD_NCCL_INVALID_USAGE};
    for (int i = 0; i < 3; i++) {
        CHECK_STATUS(dd_nccl_check(&lib, &before, RESULTS[i], check_err(), "ncclCommFinalize"), DD_BACKEND);
        CHECK((strstr(check_message(), "Bootstrap") != NULL) == (i == 0));
    }
    /* Wrong arguments of two different functions. */
    process_text = "ncclCommSplit : newcomm argument is NULL";
    CHECK_STATUS(dd_nccl_check(&lib, &before, DD_NCCL_INVALID_ARGUMENT, check_err(), "ncclCommSplit"),
                 DD_BACKEND);
    CHECK_CONTAINS(check_message(), "newcomm argument");
    dd_nccl_note_last_error(&lib, NULL, &before);
    CHECK_STATUS(dd_nccl_check(&lib, &before, DD_NCCL_INVALID_ARGUMENT, check_err(), "ncclCommFinalize"),
                 DD_BACKEND);
    CHECK(strstr(check_message(), "newcomm") == NULL);
    comm_rig_close(&rig);
}

TEST(a_communicator_remembers_the_last_error_text_before_its_own_calls)
{
    comm_rig rig;
    REQUIRE(comm_rig_open(&rig, NEWEST));
    comm_rig_rank rank;
    REQUIRE(comm_rig_connect(&rig, &rank, 1, false));
    rig.lib->api.ncclGetLastError = last_error_of_the_process;
    dd_nccl_comm_handle handle;
    process_text = "a first call";
    CHECK_OK(comm_rig_enter(rank.comm, &handle));
    dd_nccl_comm_leave(rank.comm);
    process_text = "the cable was pulled";
    CHECK_OK(comm_rig_enter(rank.comm, &handle));
    CHECK(strcmp(dd_nccl_comm_before(rank.comm, DD_NCCL_INVALID_USAGE)->text, "the cable was pulled") == 0);
    CHECK(strcmp(dd_nccl_comm_before(rank.comm, DD_NCCL_REMOTE_ERROR)->text, "a first call") == 0);
    dd_nccl_comm_leave(rank.comm);
    process_text = "a second call";
    CHECK_OK(dd_nccl_comm_check(rank.comm, check_err())); /* no error is reported */
    CHECK(strcmp(dd_nccl_comm_before(rank.comm, DD_NCCL_REMOTE_ERROR)->text, "a second call") == 0);
    comm_rig_release(&rank, 1);
    comm_rig_close(&rig);
}

TEST(an_encryption_key_is_set_once_and_before_the_first_unique_id)
{
    comm_rig rig;
    REQUIRE(comm_rig_open(&rig, NEWEST));
    CHECK_STATUS(dd_nccl_set_encryption(rig.lib, "short", 7, check_err()), DD_INVALID_ARGUMENT);
    CHECK(rig.lib->encryption == 0);
    CHECK_OK(dd_nccl_set_encryption(rig.lib, "0123456789abcdef0123456789abcdef", 7, check_err()));
    CHECK(rig.lib->encryption == 7);
    dd_nccl_unique_id id;
    CHECK_OK(dd_nccl_make_unique_id(rig.lib, &id, check_err()));
    CHECK_STATUS(dd_nccl_set_encryption(rig.lib, "another key, that comes too late", 8, check_err()),
                 DD_BACKEND);
    CHECK(rig.lib->encryption == 7);
    comm_rig_close(&rig);

    REQUIRE(comm_rig_open(&rig, "2.27.3"));
    CHECK_STATUS(dd_nccl_set_encryption(rig.lib, "0123456789abcdef0123456789abcdef", 7, check_err()),
                 DD_NOT_SUPPORTED);
    CHECK_CONTAINS(check_message(), "ncclSetEncryption needs NCCL 2.32.3 or newer, this is 2.27.3");
    comm_rig_close(&rig);
}

/* ---- the driver */

TEST(the_callers_cuda_context_is_restored)
{
    comm_rig rig;
    REQUIRE(comm_rig_open(&rig, NEWEST));
    int device;
    CHECK_OK(dd_cuda_current_device(rig.cuda, &device, check_err()));
    CHECK_INT(device, DD_CUDA_NO_CURRENT);

    dd_cuda_guard outer;
    dd_cuda_guard inner;
    REQUIRE_OK(dd_cuda_enter(rig.cuda, 1, &outer, check_err()));
    REQUIRE_OK(dd_cuda_enter(rig.cuda, 2, &inner, check_err()));
    CHECK_OK(dd_cuda_current_device(rig.cuda, &device, check_err()));
    CHECK_INT(device, 2);
    dd_cuda_leave(&inner);
    dd_cuda_leave(&inner); /* a second call has no effect */
    CHECK_OK(dd_cuda_current_device(rig.cuda, &device, check_err()));
    CHECK_INT(device, 1);
    CHECK_STATUS(dd_cuda_enter(rig.cuda, 4, &inner, check_err()), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "unknown CUDA device: got 4, expected 0 to 3");
    dd_cuda_leave(&inner);
    dd_cuda_leave(&outer);
    CHECK_OK(dd_cuda_current_device(rig.cuda, &device, check_err()));
    CHECK_INT(device, DD_CUDA_NO_CURRENT);

    CHECK_INT(rig.on_cuda.live("context"), 2);
    comm_rig_close(&rig);
}

TEST(cuda_driver_errors_contain_the_name_of_the_error)
{
    comm_rig rig;
    REQUIRE(comm_rig_open(&rig, NEWEST));
    CHECK_STATUS(dd_cuda_check(rig.cuda, DD_CUDA_INVALID_VALUE, check_err(), "cuEventRecord on device %d", 3),
                 DD_BACKEND);
    CHECK_CONTAINS(check_message(), "cuEventRecord on device 3: CUDA_ERROR_INVALID_VALUE (1): ");
    CHECK(!dd_cuda_is_shut_down(rig.cuda));
    rig.on_cuda.shut_down(1);
    CHECK(dd_cuda_is_shut_down(rig.cuda));
    rig.on_cuda.shut_down(0);
    comm_rig_close(&rig);
}

TEST(opening_cuda_on_a_machine_without_gpus_is_refused)
{
    (void)setenv("DLDIST_STUB_DEVICES", "0", 1);
    dd_cuda *cuda;
    CHECK_STATUS(dd_cuda_open(DD_STUBS_DIR "/libcuda.so.1", &cuda, check_err()), DD_NOT_SUPPORTED);
    CHECK_CONTAINS(check_message(), "the CUDA driver cannot be used");
}
