/* oneCCL's functions by plain arithmetic, between processes of this host. A process creates one
 * communicator at a time, so ranks cannot be threads. The test decides which functions fail or
 * block. */
#ifndef DD_TESTS_PLAIN_ONECCL_H
#define DD_TESTS_PLAIN_ONECCL_H

#include "collective/carrier.h"

#define PLAIN_ONECCL_MAX_RANKS 3

/* Open the library in this process, and create the memory shared with processes forked later. */
dd_status plain_oneccl_open(dd_carrier_library **library, dd_error *err);

/* Set the rank of this process. */
void plain_oneccl_be(int rank);

/* Make a function fail in this process from now on, named as in oneCCL. Its last error is `text`.
 * NULL to make none fail. */
void plain_oneccl_fail(const char *function, int result, const char *text);
/* Make the function block until plain_oneccl_release. */
void plain_oneccl_hang(const char *function);
void plain_oneccl_release(void);

/* Return the number of calls of the function in this process. */
int plain_oneccl_calls(const char *function);

#endif
