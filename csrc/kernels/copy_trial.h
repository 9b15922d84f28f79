/* Which of the two ways of copying is faster, found by trying, now and then, with copies that are made anyway. One who reads
 * what another has written cannot know it otherwise: it depends on how far apart their cores are, and on a virtual machine
 * that changes while a program runs. */
#ifndef DD_KERNELS_COPY_TRIAL_H
#define DD_KERNELS_COPY_TRIAL_H

#include <stdbool.h>
#include <stdint.h>

/* All zero: there has been none. A trial tries one way and then the other, with as many copies. */
typedef struct dd_copy_trial {
    bool is_open;
    int nbefore; /* copies of each way that do not count */
    int ntaken;
    int64_t best[2]; /* costs: through the caches, past them */
    int64_t begin_ns;
    int64_t last_ns; /* copy */
    int64_t next_ns; /* trial */
} dd_copy_trial;

/* Begins one if it is time, or if the one that is open has been left alone for long. `nbefore`: as many copies as it takes
 * until what the other way has left in the caches no longer matters; at least 1, since others may not have heard yet. */
void dd_copy_trial_look(dd_copy_trial *trial, int nbefore, int64_t now_ns);

/* The way that is tried now: past the caches? */
bool dd_copy_trial_is_past(const dd_copy_trial *trial);

/* What a copy of the open trial has cost. True: it was the last one, and *is_past says which way was faster. The next trial
 * comes when this one has cost less than a hundredth of the time. */
bool dd_copy_trial_note(dd_copy_trial *trial, int64_t cost, int64_t now_ns, bool *is_past);

#endif
