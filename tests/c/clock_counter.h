/* A clock_gettime that replaces the C library's in the test program. It counts the clock reads of
 * the library, and can set the calendar clock wrong. */
#ifndef DD_TESTS_CLOCK_COUNTER_H
#define DD_TESTS_CLOCK_COUNTER_H

#include <stdbool.h>
#include <stdint.h>

/* Return false if this build does not count. */
bool clock_counter_works(void);
/* Return the number of clock reads of this thread so far. */
long clock_counter_nreads(void);
/* Make CLOCK_REALTIME read `ns` ahead in the whole process from now on. The kernel's clock stays
 * right, so a wait until such a time lasts as if the calendar had been set back by `ns` when the
 * wait began. */
void clock_counter_set_calendar_ahead(int64_t ns);

#endif
