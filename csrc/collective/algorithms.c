/* The table of algorithms: who chooses one looks here, and those who build one do not. */
#include "collective/plan_internal.h"

#include <string.h>

const dd_algorithm dd_algorithms[] = {
    {"dissemination", DD_COLL_BARRIER, DD_ORDER_NONE, false, dd_build_barrier},
    {"binomial", DD_COLL_BROADCAST, DD_ORDER_NONE, false, dd_build_broadcast_binomial},
    {"chain", DD_COLL_BROADCAST, DD_ORDER_NONE, false, dd_build_broadcast_chain},
    {"scatter_all_gather", DD_COLL_BROADCAST, DD_ORDER_NONE, false, dd_build_broadcast_shares},
    {"direct", DD_COLL_REDUCE, DD_ORDER_LINEAR, false, dd_build_fold_whole},
    {"direct_scatter_gather", DD_COLL_REDUCE, DD_ORDER_LINEAR, false, dd_build_fold_shares},
    {"binomial", DD_COLL_REDUCE, DD_ORDER_TREE, false, dd_build_fold_tree},
    {"exchange", DD_COLL_ALL_REDUCE, DD_ORDER_LINEAR, false, dd_build_fold_whole},
    {"direct", DD_COLL_ALL_REDUCE, DD_ORDER_LINEAR, false, dd_build_fold_shares},
    {"ring", DD_COLL_ALL_REDUCE, DD_ORDER_RING, false, dd_build_fold_ring},
    {"doubling", DD_COLL_ALL_REDUCE, DD_ORDER_TREE, false, dd_build_fold_tree},
    {"direct", DD_COLL_GATHER, DD_ORDER_NONE, false, dd_build_move_direct},
    {"binomial", DD_COLL_GATHER, DD_ORDER_NONE, true, dd_build_move_binomial},
    {"direct", DD_COLL_SCATTER, DD_ORDER_NONE, false, dd_build_move_direct},
    {"binomial", DD_COLL_SCATTER, DD_ORDER_NONE, true, dd_build_move_binomial},
    {"direct", DD_COLL_ALL_GATHER, DD_ORDER_NONE, false, dd_build_all_gather_direct},
    {"ring", DD_COLL_ALL_GATHER, DD_ORDER_NONE, false, dd_build_all_gather_ring},
    {"bruck", DD_COLL_ALL_GATHER, DD_ORDER_NONE, true, dd_build_all_gather_bruck},
    {"direct", DD_COLL_REDUCE_SCATTER, DD_ORDER_LINEAR, false, dd_build_fold_shares},
    {"ring", DD_COLL_REDUCE_SCATTER, DD_ORDER_RING, false, dd_build_fold_ring},
    {"pairwise", DD_COLL_ALL_TO_ALL, DD_ORDER_NONE, false, dd_build_move_direct},
    {"bruck", DD_COLL_ALL_TO_ALL, DD_ORDER_NONE, true, dd_build_all_to_all_bruck},
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
