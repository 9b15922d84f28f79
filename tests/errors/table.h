/* The errors of each system call, from its manual page. */
#ifndef DD_TESTS_ERRORS_TABLE_H
#define DD_TESTS_ERRORS_TABLE_H

#include "core/system.h"
#include "faults/faults.h"

#define ERRORS_OF_A_CALL_MAX 24

/* Return the errnos of a call, ended by a 0, without those that report a wrong argument (EBADF,
 * EFAULT, ...). */
const int *errors_of(dd_sys_call call);
/* Return true if the caller only has to repeat the call. */
bool is_error_ignored(dd_sys_call call, int error_number);
/* Return true if the call can fail repeatedly for lack of a resource or a permission. */
bool is_error_lasting(dd_sys_call call, int error_number);
/* Return true if the error means that a peer has exited or is unreachable. */
bool is_error_of_peer(int error_number);

#endif
