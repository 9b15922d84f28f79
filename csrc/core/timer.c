#include "core/timer.h"

#include "core/clock.h"

void
dd_timer_set_init(dd_timer_set *set)
{
    dd_list_init(&set->timers);
}

int64_t
dd_timer_set_next_ns(const dd_timer_set *set)
{
    return dd_list_is_empty(&set->timers) ? DD_NEVER_NS
                                          : DD_CONTAINER_OF(set->timers.next, dd_timer, link)->at_ns;
}

void
dd_timer_init(dd_timer *timer, void (*on_due)(dd_timer *timer))
{
    dd_list_init(&timer->link);
    timer->at_ns = DD_NEVER_NS;
    timer->on_due = on_due;
}

void
dd_timer_start(dd_timer_set *set, dd_timer *timer, int64_t at_ns)
{
    dd_timer_clear(timer);
    if (at_ns == DD_NEVER_NS) {
        return;
    }
    dd_list *last = set->timers.prev;
    while (last != &set->timers && DD_CONTAINER_OF(last, dd_timer, link)->at_ns > at_ns) {
        last = last->prev;
    }
    timer->at_ns = at_ns;
    dd_list_insert_before(last->next, &timer->link);
}

dd_timer *
dd_timer_set_first_due(const dd_timer_set *set, int64_t now_ns)
{
    bool is_due = dd_timer_set_next_ns(set) <= now_ns && !dd_list_is_empty(&set->timers);
    return is_due ? DD_CONTAINER_OF(set->timers.next, dd_timer, link) : NULL;
}

void
dd_timer_set_run(dd_timer_set *set, int64_t now_ns)
{
    dd_list due;
    dd_list_init(&due);
    dd_timer *first;
    while ((first = dd_timer_set_first_due(set, now_ns)) != NULL) {
        dd_list_remove(&first->link);
        dd_list_push_back(&due, &first->link);
    }
    while (!dd_list_is_empty(&due)) {
        dd_timer *timer = DD_CONTAINER_OF(due.next, dd_timer, link);
        dd_timer_clear(timer);
        timer->on_due(timer);
    }
}
