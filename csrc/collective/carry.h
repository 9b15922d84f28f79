/* A collective as libraries want it: blocks that lie apart are packed, reductions become plain ones of plain types. */
#ifndef DD_COLLECTIVE_CARRY_H
#define DD_COLLECTIVE_CARRY_H

#include "collective/carrier.h"

/* One a group, for one collective after the other. It keeps its memory for the next, at most 2 MiB. */
typedef struct dd_carry dd_carry;

dd_status dd_carry_create(int rank, int nranks, dd_carry **carry, dd_error *err) DD_MUST_CHECK;
void dd_carry_destroy(dd_carry *carry); /* NULL is fine */

/* What the library is to do for `args`, which stay until the end, but for where its memory is. Good until the next one is described. */
const dd_carried_call *dd_carry_describe(dd_carry *carry, const dd_coll_args *args);
/* Now it has memory: that of `args`, or of our own, with what goes in. */
dd_status dd_carry_place(dd_carry *carry, dd_error *err) DD_MUST_CHECK;
/* The library has done it: the results go where the caller wants them. */
void dd_carry_end(dd_carry *carry);
/* The library does not let go of its memory: what it was given of ours stays where it is for ever, and the next begins afresh. */
void dd_carry_abandon(dd_carry *carry);

#endif
