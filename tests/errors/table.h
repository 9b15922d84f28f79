/* What can go wrong with each call of the system, as its manual page says. */
#ifndef DD_TESTS_ERRORS_TABLE_H
#define DD_TESTS_ERRORS_TABLE_H

#include "core/system.h"
#include "faults/faults.h"

#define ERRORS_OF_A_CALL_MAX 24

/* The errnos that a call may fail with, ended by a 0; without those that say that the caller is wrong (EBADF, EFAULT, ...). */
const int *errors_of(dd_sys_call call);
/* Whether the call is just to be made again: nothing has gone wrong. */
bool is_error_harmless(dd_sys_call call, int error_number);
/* Whether the call asks for what the process may be short of, or not allowed to have, and then again and again. */
bool is_error_lasting(dd_sys_call call, int error_number);
/* Whether it says that the other end of a connection has gone or cannot be reached. */
bool is_error_of_peer(int error_number);

#endif
