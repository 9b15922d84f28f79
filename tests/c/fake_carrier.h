/* A carrier whose library is the test's own: ranks are threads of this process, data is moved by plain arithmetic, and it fails, is
 * stuck or holds on to memory as the test says. */
#ifndef DD_TESTS_FAKE_CARRIER_H
#define DD_TESTS_FAKE_CARRIER_H

#include "group/group.h"

#include <stdatomic.h>

#define FAKE_MAX_RANKS 8
#define FAKE_MAX_COMMS 16

/* What goes wrong. Ranks are bits, collectives too. */
typedef struct fake_script {
    atomic_uint refused; /* collectives that the library has not */
    unsigned failing_makes;
    unsigned failing_starts;
    unsigned failing_looks;
    bool is_alone;              /* each rank has a world of its own, in which nobody else ever comes */
    atomic_bool is_stuck;       /* collectives do not end */
    atomic_bool ends_when_left; /* what is stuck ends when nobody waits for it any more */
    atomic_bool holds_on;       /* what is left is not let go of */
    bool has_messages;
    uint64_t tag_max;
} fake_script;

/* How often a rank was asked for something, by all of its groups. */
typedef struct fake_counts {
    atomic_int nmakes;
    atomic_int nstarts;
    atomic_int nends;
    atomic_int nleaves;
    atomic_int nmessages;
    atomic_int nleft_messages;
    atomic_int nwell; /* closed in good order */
    atomic_int nill;
} fake_counts;

typedef struct fake_comm fake_comm;

typedef struct fake_library {
    dd_carrier_library base; /* first */
    fake_script script;
    fake_counts counts[FAKE_MAX_RANKS];
    /* guarded by a mutex of its own */
    fake_comm *comms[FAKE_MAX_COMMS];
    int ncomms;
    dd_carried_call held[FAKE_MAX_RANKS]; /* collectives that were not let go of; `output` NULL: none */
} fake_library;

void fake_library_init(fake_library *library);
void fake_library_fini(fake_library *library); /* all carriers are closed */
/* Works on in what it has not let go of, as a library does that knows nothing of time-outs. */
void fake_library_touch_held(fake_library *library, int rank);

#endif
