/* oneCCL as a carrier for arrays in host memory. Uses its C interface, which resembles NCCL's;
 * loaded on demand. */
#ifndef DD_XCCL_XCCL_H
#define DD_XCCL_XCCL_H

#include "collective/carrier.h"
#include "core/dylib.h"

/* Load oneCCL and the plug-in that oneCCL selects. Returns DD_NOT_SUPPORTED if there is no library
 * (the message lists all that was tried), if it lacks functions (the message names all of them), or
 * if it finds no usable plug-in. */
dd_status dd_xccl_open(const dd_dylib_place *search, dd_carrier_library **library,
                       dd_error *err) DD_MUST_CHECK;

#endif
