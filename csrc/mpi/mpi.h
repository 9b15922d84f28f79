/* MPI as a carrier (collective/carrier.h): any MPI library on the machine, loaded on demand. */
#ifndef DD_MPI_MPI_H
#define DD_MPI_MPI_H

#include "collective/carrier.h"
#include "core/dylib.h"

/* Load MPI, or use the copy that is already in the process. Does not initialise MPI, but
 * library->version is valid afterwards. DD_NOT_SUPPORTED if there is no library (the message lists
 * all paths tried) or if the library lacks functions (the message lists them). */
dd_status dd_mpi_open(const dd_dylib_search *search, dd_carrier_library **library,
                      dd_error *err) DD_MUST_CHECK;

/* Initialise MPI unless that has been done; return this process's rank and MPI_COMM_WORLD's size.
 * MPI must offer MPI_THREAD_MULTIPLE. The thread that calls this must also call dd_mpi_end. */
dd_status dd_mpi_begin(dd_carrier_library *library, int *rank, int *size, dd_error *err) DD_MUST_CHECK;
/* Finalise MPI if dd_mpi_begin initialised it. is_well must be false after a failure: MPI is then
 * not finalised, because MPI_Finalize could wait for ever for processes that have exited. */
void dd_mpi_end(dd_carrier_library *library, bool is_well);

/* Copy rank 0's `text` to all ranks of MPI_COMM_WORLD. All must call this with the same nbytes. */
dd_status dd_mpi_share(dd_carrier_library *library, char *text, size_t nbytes, const dd_wait *wait,
                       dd_error *err) DD_MUST_CHECK;

#endif
