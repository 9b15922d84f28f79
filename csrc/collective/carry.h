/* A collective in a carrier's form: blocks are packed, reductions use plain operations and
 * types. */
#ifndef DD_COLLECTIVE_CARRY_H
#define DD_COLLECTIVE_CARRY_H

#include "collective/carrier.h"

/* One per group, for one collective at a time. Keeps at most 2 MiB of memory for the next one. */
typedef struct dd_carry dd_carry;

dd_status dd_carry_create(int rank, int nranks, dd_carry **carry, dd_error *err) DD_MUST_CHECK;
void dd_carry_destroy(dd_carry *carry); /* may be NULL */

/* Return the call for `args`, without memory, valid until the next one is described. `args` must
 * stay valid until the end. */
const dd_carried_call *dd_carry_describe(dd_carry *carry, const dd_coll_args *args);
/* Set the call's memory: that of `args`, or own buffers, with the input packed. */
dd_status dd_carry_set_memory(dd_carry *carry, dd_error *err) DD_MUST_CHECK;
void dd_carry_end(dd_carry *carry); /* the library has finished: store the results */
/* The library keeps its memory: leak the buffers that it was given, and start with new ones. */
void dd_carry_leak_buffers(dd_carry *carry);

#endif
