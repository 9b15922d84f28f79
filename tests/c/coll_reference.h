/* The reference result of a collective: the inputs that form each output. The C tests and the
 * simulator derive the expected data from it. */
#ifndef DD_TESTS_COLL_REFERENCE_H
#define DD_TESTS_COLL_REFERENCE_H

#include "collective/coll.h"

/* Input `block` of each rank from `first` to `first + count - 1`: one rank, or the ranks to fold in
 * this order. If count is 0, the output must keep its content. */
typedef struct coll_sources {
    int first;
    int count;
    int block;
} coll_sources;

/* The bytes that the C tests put into outputs before a call. */
#define COLL_UNTOUCHED 0xa5

/* Return the sources of output `output` of a rank. The collective must move data. */
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

/* Find the output that may share memory with an input. Return false if this rank has none. */
static inline bool
coll_find_in_place(dd_coll coll, int root, int rank, int *input, int *output)
{
    *input = dd_coll_own_input(coll, rank);
    *output = dd_coll_own_output(coll, rank);
    bool is_exchange = dd_coll_traits_of[coll].is_split && dd_coll_traits_of[coll].is_collected;
    return dd_coll_traits_of[coll].has_data && !is_exchange && (!dd_coll_has_root(coll) || rank == root);
}

/* Return a number that is equal for blocks that must have equal sizes. */
static inline unsigned
coll_size_key(dd_coll coll, int from, int to)
{
    if (!dd_coll_traits_of[coll].is_split) {
        return (unsigned)from;
    }
    return dd_coll_traits_of[coll].is_collected ? (unsigned)(from * 67 + to) : (unsigned)to;
}

#endif
