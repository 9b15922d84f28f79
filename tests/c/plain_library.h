/* Carry out collectives for a carrier's library by plain arithmetic: the calls of all ranks at
 * once, in one process. */
#ifndef DD_TESTS_PLAIN_LIBRARY_H
#define DD_TESTS_PLAIN_LIBRARY_H

#include "collective/carrier.h"

#define PLAIN_LIBRARY_MAX_RANKS 8

/* calls[r] is rank r's call. CHECK that the calls match and keep the guarantees to a library; do
 * nothing if not. */
void plain_library_do(const dd_carried_call *const *calls, int nranks);

#endif
