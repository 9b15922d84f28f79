#include "kernels/copy_trial.h"

#include "core/clock.h"

/* Number of measured copies in each way; the lowest cost counts. */
#define NCOUNTED 3
/* Pause after a trial: EVERY_NS, or EVERY_TIMES the trial's duration, whichever is longer. */
#define EVERY_NS (100 * DD_NS_PER_MS)
#define EVERY_TIMES 60

void
dd_copy_trial_choose(dd_copy_trial *trial, int nbefore, int64_t now_ns)
{
    bool is_stale = trial->is_open && now_ns - trial->last_ns > EVERY_NS;
    if ((!trial->is_open && now_ns >= trial->next_ns) || is_stale) {
        *trial = (dd_copy_trial){.is_open = true,
                                 .nbefore = nbefore,
                                 .best = {INT64_MAX, INT64_MAX},
                                 .begin_ns = now_ns,
                                 .last_ns = now_ns};
    }
}

static int
count_each(const dd_copy_trial *trial)
{
    return trial->nbefore + NCOUNTED;
}

bool
dd_copy_trial_is_past(const dd_copy_trial *trial)
{
    return trial->ntaken >= count_each(trial);
}

bool
dd_copy_trial_note(dd_copy_trial *trial, int64_t cost, int64_t now_ns, bool *is_past)
{
    int64_t *best = &trial->best[dd_copy_trial_is_past(trial)];
    if (trial->ntaken % count_each(trial) >= trial->nbefore && cost < *best) {
        *best = cost;
    }
    trial->last_ns = now_ns;
    if (++trial->ntaken < 2 * count_each(trial)) {
        return false;
    }
    int64_t pause_ns = EVERY_TIMES * (now_ns - trial->begin_ns);
    trial->next_ns = now_ns + (pause_ns > EVERY_NS ? pause_ns : EVERY_NS);
    trial->is_open = false;
    *is_past = trial->best[1] < trial->best[0];
    return true;
}
