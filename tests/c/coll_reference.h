/* The reference result of a collective: the inputs that each output is made of. The oracles of the C tests and of the simulator
 * derive their expected data from it. */
#ifndef DD_TESTS_COLL_REFERENCE_H
#define DD_TESTS_COLL_REFERENCE_H

#include "collective/coll.h"

/* The input `block` of each of the ranks from `first` to `first + count - 1`: one rank, or the ranks to fold in this order. */
typedef struct coll_sources {
    int first;
    int count;
    int block;
} coll_sources;

/* The sources of output `output` of a rank. The kind must have data. */
static inline coll_sources
coll_sources_of(dd_coll coll, int root, int nranks, int rank, int output)
{
    int block = dd_coll_own_input(coll, rank);
    if (dd_coll_is_folding(coll)) {
        return (coll_sources){.first = 0, .count = dd_coll_nfolded(coll, rank, nranks), .block = block};
    }
    return (coll_sources){
        .first = dd_coll_traits_of[coll].is_from_root ? root : output, .count = 1, .block = block};
}

/* Find the output that may be the memory of an input. False if this rank has none. */
static inline bool
coll_find_in_place(dd_coll coll, int root, int rank, int *input, int *output)
{
    *input = dd_coll_own_input(coll, rank);
    *output = dd_coll_own_output(coll, rank);
    bool is_exchange = dd_coll_traits_of[coll].is_split && dd_coll_traits_of[coll].is_collected;
    return dd_coll_traits_of[coll].has_data && !is_exchange && (!dd_coll_has_root(coll) || rank == root);
}

/* A number for the size of the block from one rank to another: equal for blocks that must have one size. */
static inline unsigned
coll_size_key(dd_coll coll, int from, int to)
{
    if (!dd_coll_traits_of[coll].is_split) {
        return (unsigned)from;
    }
    return dd_coll_traits_of[coll].is_collected ? (unsigned)(from * 67 + to) : (unsigned)to;
}

#endif
