/* UCC (Unified Collective Communication) as a carrier (collective/carrier.h). */
#ifndef DD_UCC_UCC_H
#define DD_UCC_UCC_H

#include "collective/carrier.h"
#include "core/dylib.h"

/* Load and initialise UCC. UCC reads its own environment variables; TORCH_UCC_TLS, which programs
 * for torch.distributed set, overrides UCC_TLS. DD_NOT_SUPPORTED if there is no library (the
 * message lists each path tried and why it failed), or if it is too old or was built without
 * threads. */
dd_status dd_ucc_open(const dd_dylib_search *search, dd_carrier_library **library,
                      dd_error *err) DD_MUST_CHECK;

#endif
