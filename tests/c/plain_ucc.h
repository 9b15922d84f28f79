/* UCC's functions by plain arithmetic, between threads of this process. It has two collectives, all_reduce and barrier, and adds in
 * FLOAT32 and INT64. Functions fail, or do not come to an end, as the test says. */
#ifndef DD_TESTS_PLAIN_UCC_H
#define DD_TESTS_PLAIN_UCC_H

#include "collective/carrier.h"
#include "ucc/ucc_api.h"

#include <stdatomic.h>

/* Set before threads use it. */
typedef struct plain_ucc_script {
    unsigned minor; /* of version 1.x */
    dd_ucc_thread_mode thread_mode;
    const char *failing; /* a function, by its name: it fails in this way */
    dd_ucc_status failure;
    unsigned failing_ranks; /* bits */
    bool has_no_end;        /* teams are never made */
    int nlooks_at_end;      /* so often the end of a team is not there yet */
    atomic_bool is_stuck;   /* collectives do not end */
    dd_ucc_status outcome;  /* of collectives */
} plain_ucc_script;

/* What there is now: made, and not ended. */
typedef struct plain_ucc_counts {
    atomic_int nlibs;
    atomic_int nconfigs;
    atomic_int ncontexts;
    atomic_int nteams;
    atomic_int nrequests;
} plain_ucc_counts;

extern plain_ucc_script plain_ucc;
extern plain_ucc_counts plain_ucc_live;

/* Back to a library in which all goes well; with no threads. */
void plain_ucc_reset(void);
/* End the contexts that are left, as UCC may do when the process ends. */
void plain_ucc_end_contexts(void);
dd_status plain_ucc_open(dd_carrier_library **library, dd_error *err);

#endif
