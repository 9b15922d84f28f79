/* A carrier with a fake library: ranks are threads of this process, and data is moved by plain
 * arithmetic. The test decides where it fails, blocks or keeps memory. */
#ifndef DD_TESTS_FAKE_CARRIER_H
#define DD_TESTS_FAKE_CARRIER_H

#include "group/group.h"

#include <stdatomic.h>

#define FAKE_MAX_RANKS 8
#define FAKE_MAX_COMMS 16

/* The faults to inject. Bit masks of ranks and of collectives. */
typedef struct fake_script {
    atomic_uint refused; /* collectives that the library does not offer */
    unsigned failing_makes;
    unsigned failing_starts;
    unsigned failing_looks;
    bool is_alone;              /* each rank has its own communicator, which no other rank joins */
    atomic_bool is_stuck;       /* collectives do not complete */
    atomic_bool ends_when_left; /* a blocked collective ends when its caller stops waiting */
    atomic_bool holds_on;       /* memory of abandoned collectives is kept */
    bool has_messages;
    uint64_t tag_max;
} fake_script;

/* The calls that a rank received from all of its groups. */
typedef struct fake_counts {
    atomic_int nmakes;
    atomic_int nstarts;
    atomic_int nends;
    atomic_int nleaves;
    atomic_int nmessages;
    atomic_int nleft_messages;
    atomic_int nclosed_cleanly; /* closed cleanly */
    atomic_int nclosed_after_failure;
} fake_counts;

typedef struct fake_comm fake_comm;

typedef struct fake_library {
    dd_carrier_library base; /* must be first */
    fake_script script;
    fake_counts counts[FAKE_MAX_RANKS];
    /* guarded by library_mutex */
    fake_comm *comms[FAKE_MAX_COMMS];
    int ncomms;
    /* abandoned collectives whose memory is kept; `output` is NULL if there is none */
    dd_carried_call held[FAKE_MAX_RANKS];
} fake_library;

void fake_library_init(fake_library *library);
void fake_library_fini(fake_library *library); /* all carriers must be closed */
/* Write to the memory that the library keeps, as a library does that has no timeouts. */
void fake_library_touch_held(fake_library *library, int rank);

#endif
