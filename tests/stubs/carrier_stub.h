/* A library that is oneCCL and UCC, and does nothing by itself: its functions are those that a test gives it. */
#ifndef DD_TESTS_CARRIER_STUB_H
#define DD_TESTS_CARRIER_STUB_H

#include "stub_control.h"
#include "ucc/ucc_api.h"
#include "xccl/xccl_api.h"

/* By its name in the library. All functions of the one that is used are set before it is opened. */
typedef struct carrier_stub {
    xccl_api oneccl;
    dd_ucc_api ucc;
} carrier_stub;

extern DD_STUB_EXPORT carrier_stub dd_stub_carriers;

#endif
