#include "check.h"

#include "core/clock.h"
#include "net/admission.h"

#include <string.h>
#include <sys/resource.h>

#define MOST ((size_t)8)
#define NPEERS 12
#define TIMEOUT_NS (60 * DD_NS_PER_S)

typedef struct port {
    dd_admission admission;
    dd_admission_peer peers[NPEERS];
} port;

static dd_admission_peer *late[NPEERS];
static int nlate;

static void
on_late(dd_timer *timer)
{
    late[nlate++] = DD_CONTAINER_OF(timer, dd_admission_peer, timer);
}

static void
port_init(port *self)
{
    memset(self, 0, sizeof *self);
    dd_admission_init(&self->admission, MOST, TIMEOUT_NS, on_late);
}

static void
begin(port *self, int first, int count)
{
    for (int i = first; i < first + count; i++) {
        dd_admission_begin(&self->admission, &self->peers[i], false, TIMEOUT_NS);
    }
}

static void
greet(port *self, int first, int count)
{
    for (int i = first; i < first + count; i++) {
        dd_admission_continue(&self->admission, &self->peers[i], TIMEOUT_NS);
    }
}

static void
let_grace_pass(port *self, int first, int count)
{
    for (int i = first; i < first + count; i++) {
        self->peers[i].since_ns -= 2 * TIMEOUT_NS;
    }
}

/* Ends a peer and returns its number; -1 for NULL. */
static int
end(port *self, dd_admission_peer *peer)
{
    if (peer == NULL) {
        return -1;
    }
    dd_admission_end(&self->admission, peer);
    return (int)(peer - self->peers);
}

TEST(silent_peers_above_the_limit_are_picked_at_random)
{
    bool is_picked[NPEERS] = {false};
    int npicked = 0;
    port self;
    port_init(&self);
    for (int round = 0; round < 500; round++) {
        begin(&self, 0, (int)MOST);
        CHECK(dd_admission_pick_surplus(&self.admission) == NULL);
        begin(&self, (int)MOST, 1);
        CHECK(dd_admission_has_room(&self.admission, false));
        int picked = end(&self, dd_admission_pick_surplus(&self.admission));
        REQUIRE(picked >= 0);
        npicked += is_picked[picked] ? 0 : 1;
        is_picked[picked] = true;
        CHECK(dd_admission_pick_surplus(&self.admission) == NULL);
        for (int i = 0; i <= (int)MOST; i++) {
            dd_admission_end(&self.admission, &self.peers[i]);
        }
    }
    CHECK_INT(npicked, MOST + 1);
}

TEST(greeted_peers_are_kept_for_the_grace_period)
{
    port self;
    port_init(&self);
    begin(&self, 0, (int)MOST + 2);
    greet(&self, 0, (int)MOST + 2);
    CHECK(!dd_admission_has_room(&self.admission, false));
    CHECK(dd_admission_has_room(&self.admission, true));
    CHECK(dd_admission_pick_surplus(&self.admission) == NULL);
    CHECK(dd_admission_pick(&self.admission) == NULL);
    let_grace_pass(&self, 0, 3);
    CHECK_INT(end(&self, dd_admission_pick_surplus(&self.admission)), 0);
    CHECK_INT(end(&self, dd_admission_pick_surplus(&self.admission)), 1);
    CHECK(dd_admission_pick_surplus(&self.admission) == NULL);
    CHECK(dd_admission_has_room(&self.admission, false));
    /* A descriptor is needed: a silent peer goes before a greeted one. */
    begin(&self, 10, 1);
    CHECK_INT(end(&self, dd_admission_pick(&self.admission)), 10);
    CHECK_INT(end(&self, dd_admission_pick(&self.admission)), 2);
    CHECK(dd_admission_pick(&self.admission) == NULL);
}

TEST(trusted_peers_are_never_picked)
{
    port self;
    port_init(&self);
    for (int i = 0; i < (int)MOST; i++) {
        CHECK(dd_admission_has_room(&self.admission, true));
        dd_admission_begin(&self.admission, &self.peers[i], true, TIMEOUT_NS);
    }
    CHECK(!dd_admission_has_room(&self.admission, true));
    CHECK(dd_admission_has_room(&self.admission, false));
    greet(&self, 0, 2);
    let_grace_pass(&self, 0, (int)MOST);
    CHECK(dd_admission_pick_surplus(&self.admission) == NULL);
    CHECK(dd_admission_pick(&self.admission) == NULL);
}

TEST(peers_are_late_after_their_own_deadline)
{
    port self;
    port_init(&self);
    const dd_timer_set *timers = &self.admission.timers;
    CHECK(dd_timer_set_next_ns(timers) == DD_NEVER_NS);
    int64_t now_ns = dd_clock_now_ns();
    begin(&self, 0, 3);
    /* The first message has to come within 2 s. */
    CHECK(dd_timer_set_next_ns(timers) <= now_ns + 10 * DD_NS_PER_S);
    greet(&self, 0, 3);
    CHECK(dd_timer_set_next_ns(timers) >= now_ns + TIMEOUT_NS);
    dd_admission_begin(&self.admission, &self.peers[3], true, TIMEOUT_NS);
    dd_timer_set_run(&self.admission.timers, now_ns + TIMEOUT_NS / 2);
    REQUIRE(nlate == 1 && CHECK(late[0] == &self.peers[3]));
    dd_admission_end(&self.admission, &self.peers[1]);
    dd_timer_set_run(&self.admission.timers, dd_clock_now_ns() + TIMEOUT_NS);
    REQUIRE(nlate == 3);
    CHECK(late[1] == &self.peers[0] && late[2] == &self.peers[2]);
}

TEST(the_limit_is_an_eighth_of_the_descriptors)
{
    struct rlimit old;
    REQUIRE(getrlimit(RLIMIT_NOFILE, &old) == 0);
    struct rlimit few = {48, old.rlim_max};
    REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
    port self;
    port_init(&self);
    begin(&self, 0, 6);
    CHECK(dd_admission_pick_surplus(&self.admission) == NULL);
    begin(&self, 6, 1);
    CHECK(dd_admission_pick_surplus(&self.admission) != NULL);
    REQUIRE(setrlimit(RLIMIT_NOFILE, &old) == 0);
    dd_admission_end(&self.admission, &self.peers[0]);
    begin(&self, 0, 1);
    CHECK(dd_admission_pick_surplus(&self.admission) == NULL);
}
