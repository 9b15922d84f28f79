/* oneCCL as a carrier for arrays in host memory, by its NCCL-like C interface; loaded on demand. */
#ifndef DD_XCCL_XCCL_H
#define DD_XCCL_XCCL_H

#include "collective/carrier.h"
#include "core/dylib.h"

/* Load oneCCL and its plug-in. Returns DD_NOT_SUPPORTED if there is no library (the message lists
 * all that was tried), if it lacks functions (all are named), or if it finds no usable plug-in. */
dd_status dd_xccl_open(const dd_dylib_search *search, dd_carrier_library **library,
                       dd_error *err) DD_MUST_CHECK;

#endif
