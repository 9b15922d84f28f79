/* Timers that a thread runs between its other work. A set is a list sorted by time: the next timer
 * is found immediately, and a timer later than the others, as most are when they are set, is
 * inserted immediately. The owner of a set must guard it and its timers with a lock. */
#ifndef DD_CORE_TIMER_H
#define DD_CORE_TIMER_H

#include "core/clock.h"
#include "core/list.h"

#include <stdint.h>

typedef struct dd_timer dd_timer;
struct dd_timer {
    dd_list link;
    int64_t at_ns; /* DD_NEVER_NS if it is not set */
    void (*on_due)(dd_timer *timer);
};

typedef struct dd_timer_set {
    dd_list timers;
} dd_timer_set;

void dd_timer_set_init(dd_timer_set *set);
/* Return the time of the first timer; DD_NEVER_NS if none is set. */
int64_t dd_timer_set_next_ns(const dd_timer_set *set);
/* Return the first timer if it has expired; it stays set. NULL if none has. */
dd_timer *dd_timer_set_first_due(const dd_timer_set *set, int64_t now_ns);
/* Call on_due of the expired timers, the earliest first; each is cleared before its call. A
 * callback may set, clear and free any timer; expired timers that it sets wait for the next run. */
void dd_timer_set_run(dd_timer_set *set, int64_t now_ns);

void dd_timer_init(dd_timer *timer, void (*on_due)(dd_timer *timer));
/* Set the timer, or change its time. DD_NEVER_NS clears it. */
void dd_timer_start(dd_timer_set *set, dd_timer *timer, int64_t at_ns);

static inline bool
dd_timer_is_set(const dd_timer *timer)
{
    return !dd_list_is_empty(&timer->link);
}

/* The test avoids stores: each small call clears several timers that are not set. */
static inline void
dd_timer_clear(dd_timer *timer)
{
    if (dd_timer_is_set(timer)) {
        dd_list_remove(&timer->link);
        timer->at_ns = DD_NEVER_NS;
    }
}

#endif
