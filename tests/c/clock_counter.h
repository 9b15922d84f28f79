/* This program's own clock_gettime: it counts how often the library reads a clock, and may set the calendar
 * wrong. */
#ifndef DD_TESTS_CLOCK_COUNTER_H
#define DD_TESTS_CLOCK_COUNTER_H

#include <stdbool.h>
#include <stdint.h>

/* False: this build does not count. */
bool clock_counter_works(void);
/* By this thread, so far. */
long clock_counter_nreads(void);
/* From now on CLOCK_REALTIME reads as `ns` more than it is, in the whole process. The kernel is right, so a
 * wait until such a time lasts as if the calendar had been set back by `ns` when the wait began. */
void clock_counter_set_calendar_ahead(int64_t ns);

#endif
