/* Timers that a thread runs between its other work. A set of timers is a list sorted by time, so
 * the next timer is found immediately, and a timer later than all others, as most new timers are,
 * is inserted immediately. The owner of a set must guard the set and its timers with a lock. */
#ifndef DD_CORE_TIMER_H
#define DD_CORE_TIMER_H

#include "core/clock.h"
#include "core/list.h"

#include <stdint.h>

typedef struct dd_timer dd_timer;
struct dd_timer {
    dd_list link;
    int64_t at_ns; /* expiry time; DD_NEVER_NS if the timer is not set */
    void (*on_due)(dd_timer *timer);
};

typedef struct dd_timer_set {
    dd_list timers;
} dd_timer_set;

void dd_timer_set_init(dd_timer_set *set);
/* Return the expiry time of the set's first timer, or DD_NEVER_NS if the set is empty. */
int64_t dd_timer_set_next_ns(const dd_timer_set *set);
/* Return the first timer if it has expired, else NULL. The timer is not cleared. */
dd_timer *dd_timer_set_first_due(const dd_timer_set *set, int64_t now_ns);
/* Call on_due of all expired timers, the earliest first; each timer is cleared before its call. A
 * callback may set, clear and free any timer. Timers that a callback sets do not run in this
 * call. */
void dd_timer_set_run(dd_timer_set *set, int64_t now_ns);

void dd_timer_init(dd_timer *timer, void (*on_due)(dd_timer *timer));
/* Set the timer, or change the expiry time of a set timer. DD_NEVER_NS clears the timer. */
void dd_timer_start(dd_timer_set *set, dd_timer *timer, int64_t at_ns);

static inline bool
dd_timer_is_set(const dd_timer *timer)
{
    return !dd_list_is_empty(&timer->link);
}

/* Clear the timer if it is set. Most calls clear unset timers: the check avoids stores. */
static inline void
dd_timer_clear(dd_timer *timer)
{
    if (dd_timer_is_set(timer)) {
        dd_list_remove(&timer->link);
        timer->at_ns = DD_NEVER_NS;
    }
}

#endif
