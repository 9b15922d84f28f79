/* Loading, initialising and finalising MPI. */
#include "core/mem.h"
#include "mpi/mpi_internal.h"

#include <stdio.h>
#include <string.h>

#define MPI_SYMBOL(name, parameters) {#name, offsetof(mpi_api, name), false},
#define MPI_SYMBOL_OPTIONAL(name, parameters) {#name, offsetof(mpi_api, name), true},

static const dd_dylib_symbol SYMBOLS[] = {DD_MPI_REQUIRED(MPI_SYMBOL) DD_MPI_LARGE(MPI_SYMBOL_OPTIONAL)};

dd_status
mpi_check(const mpi_library *library, int code, const char *label, dd_error *err)
{
    if (code == DD_MPI_OK) {
        return DD_OK;
    }
    char text[DD_MPI_TEXT_MAX] = "";
    int len = 0;
    if (library->api.MPI_Error_string(code, text, &len) != DD_MPI_OK) {
        text[0] = '\0';
    }
    text[strcspn(text, "\n")] = '\0';
    return dd_error_set(err, DD_BACKEND, "%s: %.500s (code %d of %s)", label, text, code, library->version);
}

bool
mpi_is_finalized(const mpi_library *library)
{
    int is_ended = 0;
    return library->api.MPI_Finalized(&is_ended) != DD_MPI_OK || is_ended != 0;
}

/* ---- loading */

static bool
has_all_large(const mpi_api *api)
{
    bool has_all = true;
#define HAS_FUNCTION(name, parameters) has_all = has_all && api->name != NULL;
    DD_MPI_LARGE(HAS_FUNCTION)
#undef HAS_FUNCTION
    return has_all;
}

static dd_status
read_mpi_version(mpi_library *library, dd_error *err)
{
    char text[DD_MPI_TEXT_MAX] = "";
    int len = 0;
    dd_status status =
        mpi_check(library, library->api.MPI_Get_library_version(text, &len), "MPI_Get_library_version", err);
    if (status == DD_OK) {
        size_t used = strcspn(text, ",\n");
        for (char *c = text; *c != '\0'; c++) {
            *c = *c == '\t' ? ' ' : *c;
        }
        snprintf(library->version, sizeof library->version, "%.*s", (int)used, text);
    }
    return status;
}

dd_status
dd_mpi_open(const dd_dylib_search *where, dd_carrier_library **opened, dd_error *err)
{
    static const dd_dylib_spec SPEC = {
        .label = "MPI",
        .sonames = {"libmpi_abi.so.1", "libmpi.so.40", "libmpich.so.12", "libmpi.so.12"},
        .probe = "MPI_Init_thread",
        .symbols = SYMBOLS,
        .nsymbols = sizeof SYMBOLS / sizeof SYMBOLS[0]};
    mpi_library *library = dd_mem_zalloc(sizeof *library);
    if (library == NULL) {
        return dd_error_no_memory(err, sizeof *library);
    }
    dd_status status = dd_dylib_load(&SPEC, where, &library->dylib, &library->api, NULL, err);
    if (status == DD_OK) {
        status = read_mpi_version(library, err);
    }
    if (status == DD_OK) {
        status = mpi_find_constants(library, err);
    }
    if (status != DD_OK) {
        dd_dylib_fini(&library->dylib);
        dd_mem_free(library);
        return status;
    }
    library->has_large = has_all_large(&library->api);
    library->base = (dd_carrier_library){.name = "mpi",
                                         .version = library->version,
                                         .path = library->dylib.path,
                                         .yields_core = mpi_is_open_mpi(library),
                                         .make = mpi_make_carrier};
    *opened = &library->base;
    return DD_OK;
}

/* ---- initialisation */

/* Reject MPI below MPI_THREAD_MULTIPLE: concurrent calls by several threads would interfere. */
static dd_status
check_threads(const mpi_library *library, int provided, dd_error *err)
{
    if (provided >= library->constants.thread_multiple) {
        return DD_OK;
    }
    return dd_error_set(
        err, DD_NOT_SUPPORTED,
        "MPI was initialized without MPI_THREAD_MULTIPLE (%s); pass it to MPI_Init_thread, or let dldist "
        "initialize MPI",
        library->version);
}

static dd_status
mpi_begin(mpi_library *library, dd_error *err)
{
    const mpi_api *api = &library->api;
    int is_begun = 0;
    int provided = 0;
    dd_status status = mpi_check(library, api->MPI_Initialized(&is_begun), "MPI_Initialized", err);
    if (status != DD_OK) {
        return status;
    }
    if (mpi_is_finalized(library)) {
        return dd_error_set(err, DD_BACKEND,
                            "MPI was finalized in this process and cannot be initialized again (%s)",
                            library->version);
    }
    if (is_begun) {
        status = mpi_check(library, api->MPI_Query_thread(&provided), "MPI_Query_thread", err);
    } else {
        int wanted = library->constants.thread_multiple;
        status =
            mpi_check(library, api->MPI_Init_thread(NULL, NULL, wanted, &provided), "MPI_Init_thread", err);
        library->owns_mpi = status == DD_OK;
    }
    return status == DD_OK ? check_threads(library, provided, err) : status;
}

/* Read the largest tag that the library accepts; MPI guarantees at least 32767. */
static dd_status
read_tag_max(mpi_library *library, dd_error *err)
{
    int *value = NULL;
    int is_set = 0;
    dd_status status = mpi_check(library,
                                 library->api.MPI_Comm_get_attr(library->constants.comm_world,
                                                                library->constants.tag_ub, &value, &is_set),
                                 "MPI_Comm_get_attr", err);
    library->tag_max = status == DD_OK && is_set && value != NULL && *value > 0 ? (uint64_t)*value : 32767;
    return status;
}

#define DEFINE_FOLDS(name, dtype_name, op_name)                                                        \
    static void fold_##name##_large(void *in, void *inout, const int64_t *count, const mpi_word *type) \
    {                                                                                                  \
        const dd_reduction reduction = {.dtype = DD_DTYPE_##dtype_name, .op = DD_REDOP_##op_name};     \
        const void *srcs[] = {in, inout};                                                              \
        (void)type;                                                                                    \
        dd_reduce(&reduction, DD_STAGE_WHOLE, inout, srcs, 2, (size_t)*count);                         \
    }                                                                                                  \
    static void fold_##name(void *in, void *inout, const int *count, const mpi_word *type)             \
    {                                                                                                  \
        int64_t wide = *count;                                                                         \
        fold_##name##_large(in, inout, &wide, type);                                                   \
    }

DEFINE_FOLDS(min32, FLOAT32, MIN)
DEFINE_FOLDS(max32, FLOAT32, MAX)
DEFINE_FOLDS(min64, FLOAT64, MIN)
DEFINE_FOLDS(max64, FLOAT64, MAX)

static dd_status
create_op(const mpi_library *library, mpi_fold *fold, mpi_fold_large *large, mpi_word *op, dd_error *err)
{
    int code = library->has_large ? library->api.MPI_Op_create_c(large, 1, op)
                                  : library->api.MPI_Op_create(fold, 1, op);
    return mpi_check(library, code, "MPI_Op_create", err);
}

static dd_status
make_ops(mpi_library *library, dd_error *err)
{
    mpi_float_ops *ops = &library->float_ops;
    dd_status status = create_op(library, fold_min32, fold_min32_large, &ops->min32, err);
    if (status == DD_OK) {
        status = create_op(library, fold_max32, fold_max32_large, &ops->max32, err);
    }
    if (status == DD_OK) {
        status = create_op(library, fold_min64, fold_min64_large, &ops->min64, err);
    }
    return status == DD_OK ? create_op(library, fold_max64, fold_max64_large, &ops->max64, err) : status;
}

/* Make MPI return errors instead of ending the process. Errors of completed requests belong to no
 * communicator: MPI reports them to the error handler of MPI_COMM_WORLD, since MPI 4 to that of
 * MPI_COMM_SELF, and the default handler ends the process. If the program initialised MPI, keep the
 * program's handlers. */
static dd_status
return_errors(const mpi_library *library, dd_error *err)
{
    const mpi_constants *constants = &library->constants;
    const mpi_word comms[] = {constants->comm_world, constants->comm_self};
    dd_status status = DD_OK;
    for (int i = 0; library->owns_mpi && i < 2 && status == DD_OK; i++) {
        status = mpi_check(library, library->api.MPI_Comm_set_errhandler(comms[i], constants->errors_return),
                           "MPI_Comm_set_errhandler", err);
    }
    return status;
}

static dd_status
find_world(mpi_library *library, dd_error *err)
{
    const mpi_api *api = &library->api;
    mpi_word world = library->constants.comm_world;
    dd_status status = mpi_check(library, api->MPI_Comm_rank(world, &library->rank), "MPI_Comm_rank", err);
    if (status == DD_OK) {
        status = mpi_check(library, api->MPI_Comm_size(world, &library->size), "MPI_Comm_size", err);
    }
    return status == DD_OK ? return_errors(library, err) : status;
}

dd_status
dd_mpi_begin(dd_carrier_library *base, int *rank, int *size, dd_error *err)
{
    mpi_library *library = (mpi_library *)base;
    dd_status status = library->has_begun ? DD_OK : mpi_begin(library, err);
    if (status == DD_OK && !library->has_begun) {
        status = find_world(library, err);
        if (status == DD_OK) {
            status = read_tag_max(library, err);
        }
        if (status == DD_OK) {
            status = make_ops(library, err);
        }
        library->has_begun = status == DD_OK;
    }
    *rank = library->rank;
    *size = library->size;
    return status;
}

void
dd_mpi_end(dd_carrier_library *base, bool is_well)
{
    mpi_library *library = (mpi_library *)base;
    if (library->owns_mpi && is_well && !mpi_is_finalized(library)) {
        (void)library->api.MPI_Finalize();
    }
}

/* ---- sharing a text between all processes */

#define POLL_NS (100 * DD_NS_PER_US)

/* Broadcast `room` from rank 0. Sets *is_in_use if MPI may still write to `room` after a timeout;
 * the caller must then leak `room`. */
static dd_status
broadcast_bytes(const mpi_library *library, char *room, size_t nbytes, bool *is_in_use, const dd_wait *wait,
                dd_error *err)
{
    const mpi_api *api = &library->api;
    const mpi_constants *constants = &library->constants;
    mpi_word request = 0;
    int is_done = 0;
    dd_status status = mpi_check(
        library, api->MPI_Ibcast(room, (int)nbytes, constants->byte, 0, constants->comm_world, &request),
        "MPI_Ibcast", err);
    *is_in_use = status == DD_OK;
    while (status == DD_OK) {
        status =
            mpi_check(library, api->MPI_Test(&request, &is_done, constants->status_ignore), "MPI_Test", err);
        if (status != DD_OK || is_done) {
            *is_in_use = false;
            break;
        }
        if (dd_wait_has_expired(wait)) {
            return dd_error_set(
                err, DD_TIMED_OUT,
                "not all %d processes of MPI's world joined within %.3g s: all of them must create the "
                "first group, and none may exit before",
                library->size, dd_wait_elapsed_s(wait));
        }
        status = dd_wait_sleep(wait, POLL_NS, err);
    }
    return status;
}

dd_status
dd_mpi_share(dd_carrier_library *base, char *text, size_t nbytes, const dd_wait *wait, dd_error *err)
{
    const mpi_library *library = (mpi_library *)base;
    bool is_in_use = false;
    char *room = dd_mem_alloc(nbytes);
    if (room == NULL) {
        return dd_error_no_memory(err, nbytes);
    }
    memcpy(room, text, nbytes);
    dd_status status = broadcast_bytes(library, room, nbytes, &is_in_use, wait, err);
    if (status == DD_OK) {
        memcpy(text, room, nbytes);
    }
    if (!is_in_use) {
        dd_mem_free(room);
    }
    return status;
}
