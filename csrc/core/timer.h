/* Timers: points in time that a thread waits for between its other work. A set of them is a list in the order of their times, so
 * the next one is found at once, and a timer that is later than the others, as most are when they are set, is put in its place
 * at once. The owner of a set guards it and its timers with a lock of its own. */
#ifndef DD_CORE_TIMER_H
#define DD_CORE_TIMER_H

#include "core/clock.h"
#include "core/list.h"

#include <stdint.h>

typedef struct dd_timer dd_timer;
struct dd_timer {
    dd_list link;
    int64_t at_ns; /* DD_NEVER_NS: it is not set */
    void (*on_due)(dd_timer *timer);
};

typedef struct dd_timer_set {
    dd_list timers;
} dd_timer_set;

void dd_timer_set_init(dd_timer_set *set);
/* When the first timer is due; DD_NEVER_NS if none is set. */
int64_t dd_timer_set_next_ns(const dd_timer_set *set);
/* The first timer if it is due, which stays set; NULL if none is due. */
dd_timer *dd_timer_set_first_due(const dd_timer_set *set, int64_t now_ns);
/* Calls on_due of the timers that are due, the earliest first; each is unset before. A callback may set, clear and free any timer.
 * Those that it sets wait for the next run, even if they are due. */
void dd_timer_set_run(dd_timer_set *set, int64_t now_ns);

void dd_timer_init(dd_timer *timer, void (*on_due)(dd_timer *timer));
/* Sets it, or moves it if it is set. DD_NEVER_NS clears it. */
void dd_timer_start(dd_timer_set *set, dd_timer *timer, int64_t at_ns);

static inline bool
dd_timer_is_set(const dd_timer *timer)
{
    return !dd_list_is_empty(&timer->link);
}

/* Does nothing if the timer is not set: each small call clears several that are not. */
static inline void
dd_timer_clear(dd_timer *timer)
{
    if (dd_timer_is_set(timer)) {
        dd_list_remove(&timer->link);
        timer->at_ns = DD_NEVER_NS;
    }
}

#endif
