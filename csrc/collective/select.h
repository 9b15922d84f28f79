/* Selection of an algorithm: a table by collective, ranks and bytes. Pure functions. */
#ifndef DD_COLLECTIVE_SELECT_H
#define DD_COLLECTIVE_SELECT_H

#include "collective/plan.h"

/* Overrides, from text like "all_reduce=ring,broadcast=chain": one algorithm per collective. */
typedef struct dd_selection {
    const dd_algorithm *forced[DD_COLL_COUNT]; /* algorithm to use; NULL to choose by the table */
    bool is_flat; /* "flat": use only messages between all ranks, no arena or hierarchy */
} dd_selection;

/* Parse overrides; "" forces none. DD_INVALID_ARGUMENT names an unknown word and the known ones. */
dd_status dd_selection_parse(const char *text, dd_selection *selection, dd_error *err) DD_MUST_CHECK;

/* The facts that decide the choice. They must be equal on all ranks, so that all ranks choose
 * alike. nbytes is the size of the array (broadcast, reduce, all_reduce, scan, exscan) or of the largest
 * block; 0 if some rank does not know it (gather, scatter, uneven all_to_all). */
typedef struct dd_select_query {
    dd_coll coll;
    int nranks; /* number of ranks that exchange messages */
    size_t nbytes;
    bool is_even;
} dd_select_query;

/* Return the algorithm to use; never NULL. A forced algorithm that needs even blocks is ignored if
 * the blocks are uneven. */
const dd_algorithm *dd_select(const dd_selection *selection, const dd_select_query *query);

size_t dd_select_segment_nbytes(const dd_select_query *query);

#endif
