/* oneCCL as a carrier, for arrays in the host's memory: its C interface, which is shaped like NCCL's, loaded when it is asked for. */
#ifndef DD_XCCL_XCCL_H
#define DD_XCCL_XCCL_H

#include "collective/carrier.h"
#include "core/dylib.h"

/* Loads oneCCL and the plug-in that it takes by its own rules. DD_NOT_SUPPORTED: there is none (everything that was tried), it lacks
 * functions (all are named), or it finds no plug-in that works here. */
dd_status dd_xccl_open(const dd_dylib_place *search, dd_carrier_library **library,
                       dd_error *err) DD_MUST_CHECK;

#endif
