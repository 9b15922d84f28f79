/* MPI as a carrier: any MPI library on the machine, loaded on demand. */
#ifndef DD_MPI_MPI_H
#define DD_MPI_MPI_H

#include "collective/carrier.h"
#include "core/dylib.h"

/* Load MPI, or use the copy that is already in the process. Does not initialise MPI; the version is
 * known afterwards. Returns DD_NOT_SUPPORTED if there is no library (the message lists all that was
 * tried) or if it lacks functions (the message names all of them). */
dd_status dd_mpi_open(const dd_dylib_search *search, dd_carrier_library **library,
                      dd_error *err) DD_MUST_CHECK;

/* Return this process's rank and the size of MPI's world. Initialises MPI unless that has been
 * done; MPI_THREAD_MULTIPLE is required. Call on the thread that will call dd_mpi_end. */
dd_status dd_mpi_begin(dd_carrier_library *library, int *rank, int *size, dd_error *err) DD_MUST_CHECK;
/* Finalise MPI if dd_mpi_begin initialised it. Pass is_well false after a failure: MPI is then left
 * running, because MPI_Finalize could make the other ranks wait for this one for ever. */
void dd_mpi_end(dd_carrier_library *library, bool is_well);

/* Copy rank 0's `text` to all ranks of MPI's world. Collective; each rank's buffer has nbytes. */
dd_status dd_mpi_share(dd_carrier_library *library, char *text, size_t nbytes, const dd_wait *wait,
                       dd_error *err) DD_MUST_CHECK;

#endif
