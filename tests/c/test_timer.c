#include "check.h"

#include "core/clock.h"
#include "core/timer.h"

#define NTIMERS 4

typedef struct clock_case {
    dd_timer_set set;
    dd_timer timers[NTIMERS];
    int order[2 * NTIMERS]; /* order in which they expired */
    int ndue;
} clock_case;

static clock_case *this_case;

static void
note_due(dd_timer *timer)
{
    CHECK(!dd_timer_is_set(timer));
    CHECK(timer->at_ns == DD_NEVER_NS);
    this_case->order[this_case->ndue++] = (int)(timer - this_case->timers);
}

static void
case_init(clock_case *self, void (*on_due)(dd_timer *timer))
{
    this_case = self;
    self->ndue = 0;
    dd_timer_set_init(&self->set);
    for (int i = 0; i < NTIMERS; i++) {
        dd_timer_init(&self->timers[i], on_due);
    }
}

TEST(timers_expire_in_order)
{
    clock_case self;
    case_init(&self, note_due);
    CHECK(dd_timer_set_next_ns(&self.set) == DD_NEVER_NS);
    dd_timer_start(&self.set, &self.timers[0], 300);
    dd_timer_start(&self.set, &self.timers[1], 100);
    dd_timer_start(&self.set, &self.timers[2], 200);
    dd_timer_start(&self.set, &self.timers[3], 100); /* after the timer that was set before it */
    CHECK_INT(dd_timer_set_next_ns(&self.set), 100);
    dd_timer_set_run(&self.set, 99);
    CHECK_INT(self.ndue, 0);
    dd_timer_set_run(&self.set, 200);
    CHECK_INT(self.ndue, 3);
    CHECK_INT(self.order[0], 1);
    CHECK_INT(self.order[1], 3);
    CHECK_INT(self.order[2], 2);
    CHECK_INT(dd_timer_set_next_ns(&self.set), 300);
}

TEST(a_timer_can_be_set_to_another_time_or_cleared)
{
    clock_case self;
    case_init(&self, note_due);
    dd_timer_start(&self.set, &self.timers[0], 100);
    dd_timer_start(&self.set, &self.timers[1], 200);
    dd_timer_start(&self.set, &self.timers[0], 400);
    CHECK_INT(dd_timer_set_next_ns(&self.set), 200);
    dd_timer_start(&self.set, &self.timers[1], DD_NEVER_NS);
    CHECK(!dd_timer_is_set(&self.timers[1]));
    dd_timer_clear(&self.timers[1]); /* it is not set */
    CHECK_INT(dd_timer_set_next_ns(&self.set), 400);
    dd_timer_clear(&self.timers[0]);
    dd_timer_set_run(&self.set, DD_NEVER_NS);
    CHECK_INT(self.ndue, 0);
}

/* The first timer clears the second, moves the third and restarts itself; all were due. */
static void
meddle(dd_timer *timer)
{
    clock_case *self = this_case;
    note_due(timer);
    if (self->ndue == 1) {
        dd_timer_clear(&self->timers[1]);
        dd_timer_start(&self->set, &self->timers[2], 900);
        dd_timer_start(&self->set, timer, 1);
    }
}

TEST(timers_set_by_a_callback_expire_in_the_next_run)
{
    clock_case self;
    case_init(&self, meddle);
    for (int i = 0; i < NTIMERS; i++) {
        dd_timer_start(&self.set, &self.timers[i], 10 + i);
    }
    dd_timer_set_run(&self.set, 100);
    CHECK_INT(self.ndue, 2);
    CHECK_INT(self.order[0], 0);
    CHECK_INT(self.order[1], 3);
    CHECK_INT(dd_timer_set_next_ns(&self.set), 1);
    dd_timer_set_run(&self.set, 900);
    CHECK_INT(self.ndue, 4);
    CHECK_INT(self.order[2], 0);
    CHECK_INT(self.order[3], 2);
}
