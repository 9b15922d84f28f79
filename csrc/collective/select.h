/* Which way a collective goes: a table from (collective, ranks, bytes, hosts) to an algorithm. Pure functions. */
#ifndef DD_COLLECTIVE_SELECT_H
#define DD_COLLECTIVE_SELECT_H

#include "collective/plan.h"

/* Overrides, from text like "all_reduce=ring,broadcast=chain": one algorithm a collective. */
typedef struct dd_selection {
    const dd_algorithm *forced[DD_COLL_COUNT]; /* NULL: by the table */
    bool is_flat; /* "flat": no arena and no hierarchy, messages between all ranks */
} dd_selection;

/* "" selects by the table. DD_INVALID_ARGUMENT names what is not known and lists what is. */
dd_status dd_selection_parse(const char *text, dd_selection *selection, dd_error *err) DD_MUST_CHECK;

/* What the choice depends on; the same on every rank, else ranks would choose differently. */
typedef struct dd_select_query {
    dd_coll coll;
    int nranks; /* that exchange messages */
    size_t
        nbytes; /* all_reduce, broadcast, reduce: of the array; others: of the largest block; 0 where not every
                     * rank knows it (gather, scatter, uneven all_to_all) */
    bool is_even;
} dd_select_query;

/* Never NULL. A forced algorithm that cannot do it (is_even_only) is passed over. */
const dd_algorithm *dd_select(const dd_selection *selection, const dd_select_query *query);

/* The segment size for the algorithm; bytes. */
size_t dd_select_segment_nbytes(const dd_select_query *query);

#endif
