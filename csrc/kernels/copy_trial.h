/* Repeated measurement of which way to copy is faster (through the caches, or past them), with
 * copies that are made anyway. The result cannot be computed: it depends on the distance between
 * the two cores, which on a virtual machine changes while a program runs. */
#ifndef DD_KERNELS_COPY_TRIAL_H
#define DD_KERNELS_COPY_TRIAL_H

#include <stdbool.h>
#include <stdint.h>

/* The state of the trials, which must be zeroed before the first trial. A trial makes the same
 * number of copies in one way, then in the other. */
typedef struct dd_copy_trial {
    bool is_open;
    int nbefore; /* number of unmeasured copies at the start of each way */
    int ntaken;
    int64_t best[2]; /* lowest cost of a copy: [0] through the caches, [1] past them */
    int64_t begin_ns;
    int64_t last_ns; /* time of the last copy */
    int64_t next_ns; /* earliest time at which the next trial may begin */
} dd_copy_trial;

/* Begin a trial if one is due, or if the open trial was unused for 100 ms. `nbefore` is the number
 * of copies after which the caches contain no data of the other way. It must be at least 1, because
 * the writer may learn late which way to copy. */
void dd_copy_trial_choose(dd_copy_trial *trial, int nbefore, int64_t now_ns);

/* Return true if the open trial is measuring copies past the caches. */
bool dd_copy_trial_is_past(const dd_copy_trial *trial);

/* Record the cost of a copy of the open trial. Return true for its last copy, and then set *is_past
 * to true if copies past the caches were faster. Trials take less than a 60th of the time. */
bool dd_copy_trial_note(dd_copy_trial *trial, int64_t cost, int64_t now_ns, bool *is_past);

#endif
