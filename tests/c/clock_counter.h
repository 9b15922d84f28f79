/* How often the library asks for the time, counted at clock_gettime, which this program has of its own. */
#ifndef DD_TESTS_CLOCK_COUNTER_H
#define DD_TESTS_CLOCK_COUNTER_H

#include <stdbool.h>

/* False: this build does not count. */
bool clock_counter_works(void);
/* By this thread, so far. */
long clock_counter_nreads(void);

#endif
