/* Conversion of a collective to a carrier's form: blocks are packed, and reductions use plain
 * operations and types. */
#ifndef DD_COLLECTIVE_CONVERSION_H
#define DD_COLLECTIVE_CONVERSION_H

#include "collective/carrier.h"

/* Conversion state, one per group, for one collective at a time. Keeps at most 2 MiB of memory. */
typedef struct dd_conversion dd_conversion;

dd_status dd_conversion_create(int rank, int nranks, dd_conversion **conversion, dd_error *err) DD_MUST_CHECK;
void dd_conversion_destroy(dd_conversion *conversion); /* `conversion` may be NULL */

/* Return the carrier's call for `args`, with its memory not set yet. The call stays valid until the
 * next dd_conversion_describe; `args` must stay valid until the collective ends. */
const dd_carried_call *dd_conversion_describe(dd_conversion *conversion, const dd_coll_args *args);
/* Set the call's memory: the caller's arrays, or buffers into which the input is packed. */
dd_status dd_conversion_set_memory(dd_conversion *conversion, dd_error *err) DD_MUST_CHECK;
void dd_conversion_end(dd_conversion *conversion); /* call when the library has finished */
/* Call if the library does not release its memory: leaks the buffers and starts with new ones. */
void dd_conversion_leak_buffers(dd_conversion *conversion);

#endif
