/* Conversion of a collective to a carrier's form: blocks are packed, and reductions use plain
 * operations and types. */
#ifndef DD_COLLECTIVE_CARRY_H
#define DD_COLLECTIVE_CARRY_H

#include "collective/carrier.h"

/* Conversion state, one per group, for one collective at a time. Keeps at most 2 MiB of memory. */
typedef struct dd_carry dd_carry;

dd_status dd_carry_create(int rank, int nranks, dd_carry **carry, dd_error *err) DD_MUST_CHECK;
void dd_carry_destroy(dd_carry *carry); /* `carry` may be NULL */

/* Return the carrier's call for `args`, without its memory. The call stays valid until the next
 * dd_carry_describe; `args` must stay valid until the collective ends. */
const dd_carried_call *dd_carry_describe(dd_carry *carry, const dd_coll_args *args);
/* Set the call's memory: the caller's arrays, or buffers into which the input is packed. */
dd_status dd_carry_set_memory(dd_carry *carry, dd_error *err) DD_MUST_CHECK;
void dd_carry_end(dd_carry *carry); /* call when the library has finished: stores the results */
/* Call if the library does not release its memory: leak its buffers, and start with new ones. */
void dd_carry_leak_buffers(dd_carry *carry);

#endif
