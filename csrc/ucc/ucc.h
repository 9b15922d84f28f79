/* UCC (Unified Collective Communication) as a carrier. */
#ifndef DD_UCC_UCC_H
#define DD_UCC_UCC_H

#include "collective/carrier.h"
#include "core/dylib.h"

/* Loads UCC and starts it. It is configured by its own variables: what c10d's programs call TORCH_UCC_TLS counts, and then UCC_TLS.
 * DD_NOT_SUPPORTED: there is none (everything tried and why it failed), or one that is too old or does not do with threads. */
dd_status dd_ucc_open(const dd_dylib_place *search, dd_carrier_library **library,
                      dd_error *err) DD_MUST_CHECK;

#endif
