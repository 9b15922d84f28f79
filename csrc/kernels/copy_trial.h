/* Periodic measurement of the faster of the two ways to copy, with copies that are made anyway. The
 * reader of another core's data cannot compute this: it depends on the distance between the two
 * cores, and on a virtual machine that changes while a program runs. */
#ifndef DD_KERNELS_COPY_TRIAL_H
#define DD_KERNELS_COPY_TRIAL_H

#include <stdbool.h>
#include <stdint.h>

/* All zero before the first trial. A trial makes equally many copies in one way, then the other. */
typedef struct dd_copy_trial {
    bool is_open;
    int nbefore; /* first copies of each way, which do not count */
    int ntaken;
    int64_t best[2]; /* costs: [0] through the caches, [1] past them */
    int64_t begin_ns;
    int64_t last_ns; /* time of the last copy */
    int64_t next_ns; /* when the next trial may begin */
} dd_copy_trial;

/* Begin a trial if it is due, or the open one was unused for 100 ms. `nbefore`: copies until the
 * caches have no data of the other way; at least 1, since the writer may learn the way late. */
void dd_copy_trial_choose(dd_copy_trial *trial, int nbefore, int64_t now_ns);

/* Return true if the open trial is measuring copies past the caches. */
bool dd_copy_trial_is_past(const dd_copy_trial *trial);

/* Record the cost of a copy of the open trial. Returns true for the last copy, and sets *is_past if
 * copying past the caches was faster. Trials take less than a sixtieth of the time. */
bool dd_copy_trial_note(dd_copy_trial *trial, int64_t cost, int64_t now_ns, bool *is_past);

#endif
