/* Loops of all_reduces on a carrier library, for carriers.py: the same blocks of calls as for
 * dldist, but without Python.
 *
 * carriers.py compiles this at run time and passes the library's functions, so nothing is linked.
 * Arrays are reduced in place, like dldist's all_reduce. A loop returns seconds, or a negative
 * number after an error. */
#include "mpi/mpi_api.h"
#include "ucc/ucc_api.h"

#include <string.h>
#include <time.h>

static double
now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- MPI */

typedef struct bare_mpi {
    int (*allreduce)(const void *in, void *out, int n, mpi_word type, mpi_word op, mpi_word comm);
    int (*iallreduce)(const void *in, void *out, int n, mpi_word type, mpi_word op, mpi_word comm,
                      mpi_word *request);
    int (*test)(mpi_word *request, int *flag, mpi_status *status);
    mpi_word comm;
    mpi_word type;
    mpi_word op;
    void *in_place;
    mpi_status *status_ignore;
} bare_mpi;

double
bare_mpi_blocking(const bare_mpi *mpi, void *data, int n, long ncalls)
{
    double began = now_s();
    for (long i = 0; i < ncalls; i++) {
        if (mpi->allreduce(mpi->in_place, data, n, mpi->type, mpi->op, mpi->comm) != DD_MPI_OK) {
            return -1;
        }
    }
    return now_s() - began;
}

double
bare_mpi_tested(const bare_mpi *mpi, void *data, int n, long ncalls)
{
    double began = now_s();
    for (long i = 0; i < ncalls; i++) {
        mpi_word request = 0;
        int is_done = 0;
        int code = mpi->iallreduce(mpi->in_place, data, n, mpi->type, mpi->op, mpi->comm, &request);
        while (code == DD_MPI_OK && !is_done) {
            code = mpi->test(&request, &is_done, mpi->status_ignore);
        }
        if (code != DD_MPI_OK) {
            return -1;
        }
    }
    return now_s() - began;
}

/* ---- UCC */

typedef struct bare_ucc {
    dd_ucc_api api; /* must be first, in the order of DD_UCC_FUNCTIONS */
    dd_ucc_lib_handle lib;
    dd_ucc_context_handle context;
    dd_ucc_team_handle team;
} bare_ucc;

size_t
bare_ucc_nbytes(void)
{
    return sizeof(bare_ucc);
}

/* Returns the name of the function at `index` of dd_ucc_api, or NULL after the last. */
const char *
bare_ucc_function(size_t index)
{
#define NAME(name, returns, params) #name,
    static const char *const NAMES[] = {DD_UCC_FUNCTIONS(NAME)};
#undef NAME
    return index < sizeof NAMES / sizeof NAMES[0] ? NAMES[index] : NULL;
}

static dd_ucc_status
open_context(bare_ucc *ucc, const dd_ucc_oob_coll *oob)
{
    const dd_ucc_api *api = &ucc->api;
    dd_ucc_lib_config lib_config;
    dd_ucc_context_config config;
    dd_ucc_lib_params lib_params = {.mask = DD_UCC_LIB_THREAD_MODE, .thread_mode = DD_UCC_THREAD_MULTIPLE};
    dd_ucc_context_params params = {.mask = DD_UCC_CONTEXT_OOB, .oob = *oob};
    dd_ucc_status status = api->ucc_lib_config_read("TORCH", NULL, &lib_config);
    if (status == DD_UCC_OK) {
        status = api->ucc_init_version(DD_UCC_MAJOR, DD_UCC_MINOR_MIN, &lib_params, lib_config, &ucc->lib);
        api->ucc_lib_config_release(lib_config);
    }
    if (status == DD_UCC_OK) {
        status = api->ucc_context_config_read(ucc->lib, NULL, &config);
    }
    if (status == DD_UCC_OK) {
        status = api->ucc_context_create(ucc->lib, &params, config, &ucc->context);
        api->ucc_context_config_release(config);
    }
    return status;
}

/* oob->allgather must block, as req_test and req_free do nothing. */
int
bare_ucc_open(bare_ucc *ucc, const dd_ucc_oob_coll *oob)
{
    dd_ucc_team_params params = {
        .mask = DD_UCC_TEAM_EP | DD_UCC_TEAM_EP_RANGE | DD_UCC_TEAM_SIZE | DD_UCC_TEAM_OOB,
        .ep = oob->oob_ep,
        .ep_range = DD_UCC_EP_RANGE_CONTIG,
        .team_size = oob->n_oob_eps,
        .oob = *oob,
    };
    dd_ucc_status status = open_context(ucc, oob);
    if (status == DD_UCC_OK) {
        status = ucc->api.ucc_team_create_post(&ucc->context, 1, &params, &ucc->team);
    }
    if (status != DD_UCC_OK) {
        return (int)status;
    }
    while ((status = ucc->api.ucc_team_create_test(ucc->team)) == DD_UCC_INPROGRESS) {
        (void)ucc->api.ucc_context_progress(ucc->context);
    }
    return (int)status;
}

double
bare_ucc_tested(bare_ucc *ucc, void *data, size_t n, int datatype, long ncalls)
{
    const dd_ucc_api *api = &ucc->api;
    double began = now_s();
    for (long i = 0; i < ncalls; i++) {
        dd_ucc_buffer buffer = {.buffer = data, .count = n, .datatype = DD_UCC_DATATYPE(datatype)};
        dd_ucc_coll_args args = {.mask = DD_UCC_ARGS_FLAGS,
                                 .coll_type = DD_UCC_ALLREDUCE,
                                 .src.info = buffer,
                                 .dst.info = buffer,
                                 .op = DD_UCC_SUM,
                                 .flags = DD_UCC_FLAG_IN_PLACE};
        dd_ucc_request *request = NULL;
        dd_ucc_status status = api->ucc_collective_init(&args, &request, ucc->team);
        if (status == DD_UCC_OK) {
            status = api->ucc_collective_post(request);
        }
        while (status == DD_UCC_OK && request->status > 0) {
            status = api->ucc_context_progress(ucc->context);
        }
        if (status != DD_UCC_OK || request->status != DD_UCC_OK ||
            api->ucc_collective_finalize(request) != DD_UCC_OK) {
            return -1;
        }
    }
    return now_s() - began;
}
