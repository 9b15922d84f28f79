/* UCC's functions by plain arithmetic, between threads of this process. There are two collectives,
 * all_reduce and barrier, which add FLOAT32 and INT64. The test decides which functions fail or
 * block. */
#ifndef DD_TESTS_PLAIN_UCC_H
#define DD_TESTS_PLAIN_UCC_H

#include "collective/carrier.h"
#include "ucc/ucc_api.h"

#include <stdatomic.h>

/* Set before threads use the library. */
typedef struct plain_ucc_script {
    unsigned minor; /* of version 1.x */
    dd_ucc_thread_mode thread_mode;
    const char *failing; /* name of the function to fail */
    dd_ucc_status failure;
    unsigned failing_ranks; /* bit mask of the ranks that fail */
    bool has_no_end;        /* the creation of teams never completes */
    /* number of times that the destruction of a team is reported as in progress */
    int nlooks_at_end;
    atomic_bool is_stuck;  /* collectives do not complete */
    dd_ucc_status outcome; /* result of collectives */
} plain_ucc_script;

/* The number of objects that exist now. */
typedef struct plain_ucc_counts {
    atomic_int nlibs;
    atomic_int nconfigs;
    atomic_int ncontexts;
    atomic_int nteams;
    atomic_int nrequests;
} plain_ucc_counts;

extern plain_ucc_script plain_ucc;
extern plain_ucc_counts plain_ucc_live;

/* Reset to a library without faults. No other thread may use it. */
void plain_ucc_reset(void);
/* Destroy the contexts that are left, as UCC may when the process exits. */
void plain_ucc_end_contexts(void);
dd_status plain_ucc_open(dd_carrier_library **library, dd_error *err);

#endif
