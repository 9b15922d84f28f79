/* Declarations shared by the files of csrc/mpi. */
#ifndef DD_MPI_MPI_INTERNAL_H
#define DD_MPI_MPI_INTERNAL_H

#include "core/dylib.h"
#include "mpi/mpi.h"
#include "mpi/mpi_api.h"

/* Constants that differ between MPICH, Open MPI and MPI's standard ABI. */
typedef struct mpi_constants {
    mpi_word comm_world;
    mpi_word comm_self;
    mpi_word errors_return;
    mpi_word byte;
    mpi_word types[DD_DTYPE_COUNT]; /* MPI's handle for each dldist dtype; 0 if there is none */
    mpi_word ops[DD_REDOP_COUNT];   /* MPI's handle for each dldist reduction; 0 if there is none */
    void *in_place;
    mpi_status *status_ignore;
    int any_source;
    int tag_ub; /* key of the attribute that holds the largest tag */
    int thread_multiple;
    int err_truncate;
    int source_at; /* index of the sender's rank in mpi_status.words */
} mpi_constants;

/* User-defined MIN and MAX of floats: the result is NaN if any operand is NaN. */
typedef struct mpi_float_ops {
    mpi_word min32;
    mpi_word max32;
    mpi_word min64;
    mpi_word max64;
} mpi_float_ops;

typedef struct mpi_library {
    dd_carrier_library base; /* must be first, for casts */
    dd_dylib dylib;
    mpi_api api;
    mpi_constants constants;
    bool has_large;
    char version[256]; /* first line of MPI_Get_library_version */
    /* true after dd_mpi_begin; the fields below it are valid only then */
    bool has_begun;
    bool owns_mpi; /* dldist initialised MPI and must finalise it */
    int rank;
    int size;
    uint64_t tag_max;
    mpi_float_ops float_ops;
} mpi_library;

/* ---- mpi_lib.c */

/* Convert an MPI code: DD_OK, or DD_BACKEND "MPI_Ibcast: <MPI's text> (code 15 of <version>)". */
dd_status mpi_check(const mpi_library *library, int code, const char *label, dd_error *err) DD_MUST_CHECK;
/* Return true if MPI has been finalised; MPI must not be called then. */
bool mpi_is_finalized(const mpi_library *library);

/* ---- mpi_constants.c */

/* The next two functions identify the MPI library by its version text and file name. */
bool mpi_is_open_mpi(const mpi_library *library);
dd_status mpi_find_constants(mpi_library *library, dd_error *err) DD_MUST_CHECK;

/* ---- mpi_carrier.c */

dd_status mpi_make_carrier(dd_carrier_library *library, struct dd_group *group, dd_carrier **carrier,
                           const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* ---- mpi_start.c: starting collectives */

typedef struct mpi_carrier {
    dd_carrier base; /* must be first, for casts */
    mpi_library *library;
    mpi_word comm;
    int nranks;
    int *numbers; /* 4 * nranks elements: block counts and offsets; for MPI without 64-bit counts */
} mpi_carrier;

bool mpi_has(const dd_carrier *base, const dd_carried_call *call);
dd_status mpi_start(mpi_carrier *carrier, const dd_carried_call *call, mpi_word *request,
                    dd_error *err) DD_MUST_CHECK;

#endif
