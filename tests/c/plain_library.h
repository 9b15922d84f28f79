/* What a carrier's library does, by plain arithmetic: all ranks' calls of one collective are done in one go, in one process. */
#ifndef DD_TESTS_PLAIN_LIBRARY_H
#define DD_TESTS_PLAIN_LIBRARY_H

#include "collective/carrier.h"

#define PLAIN_LIBRARY_MAX_RANKS 8

/* calls[r] is rank r's. CHECKs that they fit together and are what a library is promised; does nothing if they are not. */
void plain_library_do(const dd_carried_call *const *calls, int nranks);

#endif
