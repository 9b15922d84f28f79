/* oneCCL's functions by plain arithmetic, between processes of this host: a process makes one communicator at a time, so ranks cannot be
 * threads. Functions fail, or hang, as the test says. */
#ifndef DD_TESTS_PLAIN_ONECCL_H
#define DD_TESTS_PLAIN_ONECCL_H

#include "collective/carrier.h"

#define PLAIN_ONECCL_MAX_RANKS 3

/* Opens the library in this process, and gives it memory for what processes that are forked from now on have in common. */
dd_status plain_oneccl_open(dd_carrier_library **library, dd_error *err);

/* Which rank this process is. */
void plain_oneccl_be(int rank);

/* A function of this process, by oneCCL's name: from now on it fails in this way, and its last error is `text`; NULL: none fails. */
void plain_oneccl_fail(const char *function, int result, const char *text);
/* It does not come back before plain_oneccl_let_go. */
void plain_oneccl_hang(const char *function);
void plain_oneccl_let_go(void);

/* Of this process. */
int plain_oneccl_calls(const char *function);

#endif
