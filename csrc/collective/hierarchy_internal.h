/* What the files of the hierarchy share. */
#ifndef DD_COLLECTIVE_HIERARCHY_INTERNAL_H
#define DD_COLLECTIVE_HIERARCHY_INTERNAL_H

#include "collective/hierarchy.h"
#include "collective/plan_internal.h"

/* Of a rank that carries nothing. */
#define DD_NO_SHARE (-1)

size_t dd_hierarchy_block_slots(const dd_topology *topology);

/* broadcast and reduce: they have a root. */
bool dd_hierarchy_is_rooted(const dd_hierarchy *hierarchy);
int dd_hierarchy_root_host(const dd_hierarchy *hierarchy);
int dd_hierarchy_root_place(const dd_hierarchy *hierarchy);
/* False where there is no root. */
bool dd_hierarchy_is_on_root_host(const dd_hierarchy *hierarchy);
bool dd_hierarchy_is_root(const dd_hierarchy *hierarchy);

/* Where on a host the carrier of a share sits, and the share that a place of this host carries, or
 * DD_NO_SHARE. */
int dd_hierarchy_place_of_share(const dd_hierarchy *hierarchy, int host, int share);
int dd_hierarchy_share_of_place(const dd_hierarchy *hierarchy, int place);

/* That piece of nbytes; empty past the end. */
dd_span dd_hierarchy_piece(const dd_hierarchy *hierarchy, size_t nbytes, uint64_t piece);
/* A carrier's share of a piece of the array, in bytes of the array. */
dd_span dd_hierarchy_share(const dd_hierarchy *hierarchy, uint64_t piece, int share);

/* Whether partial results are larger than elements, and how many bytes of them nbytes of elements make. */
bool dd_hierarchy_is_wide(const dd_hierarchy *hierarchy);
size_t dd_hierarchy_widen(const dd_hierarchy *hierarchy, size_t nbytes);

/* The legs of a piece: in the arena before its plan (number below nbefore) and after it (below nafter),
 * the plan, and what follows the plan on the spot. */
dd_leg dd_hierarchy_leg_before(const dd_hierarchy *hierarchy, uint64_t piece, uint64_t number);
dd_leg dd_hierarchy_leg_after(const dd_hierarchy *hierarchy, uint64_t piece, uint64_t number);
dd_leg dd_hierarchy_leg_between(const dd_hierarchy *hierarchy, uint64_t piece);
dd_leg dd_hierarchy_leg_rounding(const dd_hierarchy *hierarchy, uint64_t piece);

#endif
