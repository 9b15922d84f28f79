/* Declarations shared by the files of csrc/ucc. */
#ifndef DD_UCC_UCC_INTERNAL_H
#define DD_UCC_UCC_INTERNAL_H

#include "collective/carrier.h"
#include "core/background_task.h"
#include "core/dylib.h"
#include "ucc/ucc_api.h"

/* The loaded library. Constant once dd_ucc_open has returned. */
typedef struct dd_ucc_lib {
    dd_carrier_library base; /* must be first, for casts */
    dd_ucc_api api;
    dd_dylib dylib;
    dd_ucc_lib_handle handle;
    uint64_t coll_types; /* set of the dd_ucc_coll_type bits that UCC's components support */
    char version[64];
} dd_ucc_lib;

/* Convert a UCC result: DD_OK unless the result is an error, DD_NOT_SUPPORTED if UCC lacks support,
 * otherwise DD_BACKEND. The message is "<label>: <UCC's text> (-6), says <version> (<path>)". */
dd_status dd_ucc_check(const dd_ucc_lib *lib, dd_ucc_status ucc_status, dd_error *err, const char *label, ...)
    DD_PRINTF(4, 5) DD_MUST_CHECK;

/* State of the all_gathers with which UCC bootstraps while the carrier is created. */
typedef struct dd_ucc_oob {
    struct dd_group *group; /* runs UCC's all_gathers; NULL once the carrier exists */
    const dd_wait *wait;
    dd_error error; /* error of an all_gather that failed; code is DD_OK if none has failed */
} dd_ucc_oob;

dd_ucc_oob_coll dd_ucc_oob_calls(dd_ucc_oob *oob, int rank, int nranks);

typedef struct dd_ucc_carrier {
    dd_carrier base; /* must be first, for casts */
    const dd_ucc_lib *lib;
    dd_ucc_context_handle context;
    dd_ucc_team_handle team;
    int rank;
    int nranks;
    bool has_leftover; /* a collective that was cancelled still runs in UCC */
    dd_ucc_oob oob;
    dd_background_task end;
} dd_ucc_carrier;

/* Implement dd_carrier_library.make. */
dd_status dd_ucc_make(dd_carrier_library *library, struct dd_group *group, dd_carrier **carrier,
                      const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
/* Implement dd_carrier_ops.close. */
void dd_ucc_close(dd_carrier *carrier, bool is_well);

extern const dd_carrier_ops dd_ucc_ops;

#endif
