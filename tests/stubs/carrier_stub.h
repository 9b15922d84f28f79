/* A library that implements oneCCL and UCC with functions set by a test. */
#ifndef DD_TESTS_CARRIER_STUB_H
#define DD_TESTS_CARRIER_STUB_H

#include "stub_control.h"
#include "ucc/ucc_api.h"
#include "xccl/xccl_api.h"

/* The functions by library. Set all functions of a library before it is opened. */
typedef struct carrier_stub {
    xccl_api oneccl;
    dd_ucc_api ucc;
} carrier_stub;

extern DD_STUB_EXPORT carrier_stub dd_stub_carriers;

#endif
