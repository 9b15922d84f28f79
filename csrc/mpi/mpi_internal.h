/* Declarations shared by the files of csrc/mpi. */
#ifndef DD_MPI_MPI_INTERNAL_H
#define DD_MPI_MPI_INTERNAL_H

#include "core/dylib.h"
#include "mpi/mpi.h"
#include "mpi/mpi_api.h"

/* Constants that differ between the families of libraries. */
typedef struct mpi_constants {
    mpi_word comm_world;
    mpi_word comm_self;
    mpi_word errors_return;
    mpi_word byte;
    mpi_word types[DD_DTYPE_COUNT]; /* 0 if there is none */
    mpi_word ops[DD_REDOP_COUNT];   /* 0 if there is none */
    void *in_place;
    mpi_status *status_ignore;
    int any_source;
    int tag_ub; /* the key of the attribute MPI_TAG_UB */
    int thread_multiple;
    int err_truncate;
    int source_at; /* index of the source in mpi_status.words */
} mpi_constants;

/* dldist's MIN and MAX of floats: the result is NaN if any operand is, in any order. */
typedef struct mpi_float_ops {
    mpi_word min32;
    mpi_word max32;
    mpi_word min64;
    mpi_word max64;
} mpi_float_ops;

typedef struct mpi_library {
    dd_carrier_library base; /* must be first */
    dd_dylib dylib;
    mpi_api api;
    mpi_constants constants;
    bool has_large;
    char version[256]; /* the first line of MPI_Get_library_version */
    /* The fields below are valid once has_begun is true. */
    bool has_begun;
    bool is_ours; /* dldist initialised MPI and must finalise it */
    int rank;
    int size;
    uint64_t tag_max;
    mpi_float_ops float_ops;
} mpi_library;

/* ---- mpi_lib.c */

/* Return DD_OK, or DD_BACKEND with a message like "MPI_Ibcast: <MPI's text> (Open MPI v4.1.4)". */
dd_status mpi_check(const mpi_library *library, int code, const char *what, dd_error *err) DD_MUST_CHECK;
/* Return true if MPI has been finalised; then no MPI function may be called. */
bool mpi_is_finalized(const mpi_library *library);

/* ---- mpi_constants.c */

/* These identify the library's family by its version text and its file name. */
bool mpi_is_open_mpi(const mpi_library *library);
dd_status mpi_find_constants(mpi_library *library, dd_error *err) DD_MUST_CHECK;

/* ---- mpi_carrier.c */

dd_status mpi_make_carrier(dd_carrier_library *library, struct dd_group *group, dd_carrier **carrier,
                           const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* ---- mpi_start.c: collectives */

typedef struct mpi_carrier {
    dd_carrier base; /* must be first */
    mpi_library *library;
    mpi_word comm;
    int nranks;
    int *numbers; /* [4 * nranks]: counts and offsets as ints, if there are no large counts */
} mpi_carrier;

bool mpi_has(const dd_carrier *base, const dd_carried_call *call);
dd_status mpi_start(mpi_carrier *carrier, const dd_carried_call *call, mpi_word *request,
                    dd_error *err) DD_MUST_CHECK;

#endif
