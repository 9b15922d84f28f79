/* MPI as a carrier: any library that is on the machine, loaded when it is asked for. */
#ifndef DD_MPI_MPI_H
#define DD_MPI_MPI_H

#include "collective/carrier.h"
#include "core/dylib.h"

/* Loads MPI, or finds what is in the process already. DD_NOT_SUPPORTED: there is none (everything that was tried), or it lacks functions
 * (all are named). The library is not begun yet, and the version is known. */
dd_status dd_mpi_open(const dd_dylib_place *search, dd_carrier_library **library,
                      dd_error *err) DD_MUST_CHECK;

/* This process in MPI's world. Begins MPI unless somebody has: with threads, which it must have. On the thread that will end it. */
dd_status dd_mpi_begin(dd_carrier_library *library, int *rank, int *size, dd_error *err) DD_MUST_CHECK;
/* Ends MPI if dd_mpi_begin has begun it; is_well: nothing has failed, else the others could wait for us here for ever, and it is left. */
void dd_mpi_end(dd_carrier_library *library, bool is_well);

/* All ranks of MPI's world: `text`, with nbytes of room on each of them, becomes that of rank 0. */
dd_status dd_mpi_share(dd_carrier_library *library, char *text, size_t nbytes, const dd_wait *wait,
                       dd_error *err) DD_MUST_CHECK;

#endif
