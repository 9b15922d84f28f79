/* The table of algorithms: who chooses one looks here, and those who build one do not. */
#include "collective/plan_internal.h"

#include <stdbool.h>
#include <string.h>

#define ROW(coll, order, is_even_only, name)                                           \
    {                                                                                  \
#name, DD_COLL_##coll, DD_ORDER_##order, is_even_only, BUILDER_OF_##coll(name) \
    }
#define BUILDER_OF_BARRIER(name) dd_plan_build_barrier_##name
#define BUILDER_OF_BROADCAST(name) dd_plan_build_broadcast_##name
#define BUILDER_OF_REDUCE(name) dd_plan_build_reduce_##name
#define BUILDER_OF_ALL_REDUCE(name) dd_plan_build_all_reduce_##name
#define BUILDER_OF_GATHER(name) dd_plan_build_gather_##name
#define BUILDER_OF_SCATTER(name) dd_plan_build_scatter_##name
#define BUILDER_OF_ALL_GATHER(name) dd_plan_build_all_gather_##name
#define BUILDER_OF_REDUCE_SCATTER(name) dd_plan_build_reduce_scatter_##name
#define BUILDER_OF_ALL_TO_ALL(name) dd_plan_build_all_to_all_##name

const dd_algorithm dd_algorithms[] = {
    ROW(BARRIER, NONE, false, dissemination),
    ROW(BROADCAST, NONE, false, binomial),
    ROW(BROADCAST, NONE, false, chain),
    ROW(BROADCAST, NONE, false, scatter_all_gather),
    ROW(REDUCE, LINEAR, false, direct),
    ROW(REDUCE, LINEAR, false, direct_scatter_gather),
    ROW(REDUCE, TREE, false, binomial),
    ROW(ALL_REDUCE, LINEAR, false, exchange),
    ROW(ALL_REDUCE, LINEAR, false, direct),
    ROW(ALL_REDUCE, RING, false, ring),
    ROW(ALL_REDUCE, TREE, false, doubling),
    ROW(GATHER, NONE, false, direct),
    ROW(GATHER, NONE, true, binomial),
    ROW(SCATTER, NONE, false, direct),
    ROW(SCATTER, NONE, true, binomial),
    ROW(ALL_GATHER, NONE, false, direct),
    ROW(ALL_GATHER, NONE, false, ring),
    ROW(ALL_GATHER, NONE, true, bruck),
    ROW(REDUCE_SCATTER, LINEAR, false, direct),
    ROW(REDUCE_SCATTER, RING, false, ring),
    ROW(ALL_TO_ALL, NONE, false, pairwise),
    ROW(ALL_TO_ALL, NONE, true, bruck),
    {NULL, DD_COLL_BARRIER, DD_ORDER_NONE, false, NULL},
};

const dd_algorithm *
dd_algorithm_find(dd_coll coll, const char *name)
{
    for (const dd_algorithm *row = dd_algorithms; row->name != NULL; row++) {
        if (row->coll == coll && strcmp(row->name, name) == 0) {
            return row;
        }
    }
    return NULL;
}
