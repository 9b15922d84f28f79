/* oneCCL as a carrier (collective/carrier.h) for host memory, by its C API; loaded on demand. */
#ifndef DD_XCCL_XCCL_H
#define DD_XCCL_XCCL_H

#include "collective/carrier.h"
#include "core/dylib.h"

/* Load oneCCL and its plug-in. DD_NOT_SUPPORTED if there is no library (the message lists all paths
 * tried), if it lacks functions (the message lists them), or if it finds no usable plug-in. */
dd_status dd_xccl_open(const dd_dylib_search *search, dd_carrier_library **library,
                       dd_error *err) DD_MUST_CHECK;

#endif
