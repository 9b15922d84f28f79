/* A collective as data: its kind, blocks and arguments, independent of the algorithm. */
#ifndef DD_COLLECTIVE_COLL_H
#define DD_COLLECTIVE_COLL_H

#include "core/dtype.h"
#include "core/status.h"
#include "kernels/reduce.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A rank's blocks of memory on one side of a collective (inputs or outputs): NONE, ONE, EACH (one
 * for each rank); on the root, ROOT_ONE and ROOT_EACH are ONE and EACH, elsewhere NONE. */
typedef enum dd_coll_blocks {
    DD_BLOCKS_NONE,
    DD_BLOCKS_ONE,
    DD_BLOCKS_EACH,
    DD_BLOCKS_ROOT_ONE,
    DD_BLOCKS_ROOT_EACH,
} dd_coll_blocks;

/* The ranks whose inputs are reduced into a rank's output. */
typedef enum dd_coll_fold {
    DD_FOLDS_NOTHING,
    DD_FOLDS_ALL,
    DD_FOLDS_PREFIX, /* the inputs of rank 0 up to the rank itself */
    DD_FOLDS_LOWER,  /* the inputs of all lower ranks; rank 0 folds none, and its output is not written */
} dd_coll_fold;

/* The kinds of collectives: X(name, text, input blocks, output blocks, fold, support). The fold is
 * NOTHING, ALL, PREFIX or LOWER. The support is COMMON if carriers and NCCL have such a call, OWN if only
 * dldist has it. All other traits follow from the row. The order of rows is part of the wire
 * format: add new kinds at the end. */
#define DD_COLL_LIST(X)                                       \
    X(BARRIER, barrier, NONE, NONE, NOTHING, COMMON)          \
    X(BROADCAST, broadcast, ROOT_ONE, ONE, NOTHING, COMMON)   \
    X(REDUCE, reduce, ONE, ROOT_ONE, ALL, COMMON)             \
    X(ALL_REDUCE, all_reduce, ONE, ONE, ALL, COMMON)          \
    X(GATHER, gather, ONE, ROOT_EACH, NOTHING, COMMON)        \
    X(SCATTER, scatter, ROOT_EACH, ONE, NOTHING, COMMON)      \
    X(ALL_GATHER, all_gather, ONE, EACH, NOTHING, COMMON)     \
    X(REDUCE_SCATTER, reduce_scatter, EACH, ONE, ALL, COMMON) \
    X(ALL_TO_ALL, all_to_all, EACH, EACH, NOTHING, COMMON)    \
    X(SCAN, scan, ONE, ONE, PREFIX, OWN)                      \
    X(EXSCAN, exscan, ONE, ONE, LOWER, OWN)

typedef enum dd_coll {
#define DD_COLL_ENUM(name, ...) DD_COLL_##name,
    DD_COLL_LIST(DD_COLL_ENUM)
#undef DD_COLL_ENUM
} dd_coll;

enum {
#define DD_COLL_ONE_MORE(...) +1
    DD_COLL_COUNT = 0 DD_COLL_LIST(DD_COLL_ONE_MORE)
#undef DD_COLL_ONE_MORE
};

/* The `case` labels of the OWN kinds, for a switch over another library's collectives. */
#define DD_COLL_CASES_OWN DD_COLL_LIST(DD_COLL_CASE)
#define DD_COLL_CASE(name, text, inputs, outputs, fold, support) DD_COLL_CASE_##support(name)
#define DD_COLL_CASE_COMMON(name)
#define DD_COLL_CASE_OWN(name) case DD_COLL_##name:

/* DD_COLL_COMMON is the bit set of the COMMON kinds. */
enum {
    DD_COLL_SUPPORT_OWN,
    DD_COLL_SUPPORT_COMMON,
#define DD_COLL_BIT(name, text, inputs, outputs, fold, support) | DD_COLL_SUPPORT_##support << DD_COLL_##name
    DD_COLL_COMMON = 0 DD_COLL_LIST(DD_COLL_BIT)
#undef DD_COLL_BIT
};

/* Fail to compile if a table with a row for each kind, or COMMON kind, lacks the newest kind. */
#define DD_COLL_CHECK_TABLE(table)                                      \
    _Static_assert(sizeof(table) / sizeof((table)[0]) == DD_COLL_COUNT, \
                   #table " must have a row for each kind")
#define DD_COLL_CHECK_COMMON_TABLE(table)                                     \
    _Static_assert(DD_COLL_COMMON >> sizeof(table) / sizeof((table)[0]) == 0, \
                   #table " must have a row for each COMMON kind")

typedef struct dd_coll_traits {
    bool has_data;
    bool is_from_root; /* only the root has inputs */
    bool is_to_root;   /* only the root has outputs */
    bool is_split;     /* a sender has one input block for each rank */
    bool is_collected; /* a receiver has one output block from each rank */
    bool is_fold;      /* elements are reduced */
    bool is_prefix;    /* a rank's result covers only a prefix of the ranks (scan, exscan) */
    bool is_exclusive; /* a prefix without the rank itself (exscan) */
    bool is_common;    /* carriers and NCCL have such a call */
    bool has_uneven;   /* blocks may differ in size */
} dd_coll_traits;

extern const dd_coll_traits dd_coll_traits_of[DD_COLL_COUNT];

const char *dd_coll_name(dd_coll coll); /* never NULL */
bool dd_coll_is_folding(dd_coll coll);
bool dd_coll_has_root(dd_coll coll);
/* Return true if the collective supports the reduction. A prefix does not support AVG,
 * because its ranks would divide by different numbers. */
bool dd_coll_has_reduction(dd_coll coll, dd_dtype dtype, dd_redop op);
/* Return the number of ranks, from 0 on, whose inputs are reduced into the output of `rank`. */
int dd_coll_nfolded(dd_coll coll, int rank, int nranks);
/* Return true if all ranks pass arrays of one size: broadcast, reduce, all_reduce, scan,
 * exscan. */
bool dd_coll_is_array(dd_coll coll);
/* Return true if every rank knows the sizes of all blocks, because it has a block for or from each
 * rank on one side only: all_gather, reduce_scatter. */
bool dd_coll_knows_all_sizes(dd_coll coll);

/* A block of contiguous memory. data may be NULL if nbytes is 0. */
typedef struct dd_block {
    void *data;
    size_t nbytes;
} dd_block;

/* One rank's part of a collective. Input block k is for rank k (scatter, reduce_scatter,
 * all_to_all); output block k is from rank k (gather, all_gather, all_to_all). Inputs are written
 * only if they share memory with an output. In a call in place, an output is the same memory as its
 * input: outputs[0] == inputs[0] (all_reduce, scan, exscan, broadcast, reduce), inputs[0] ==
 * outputs[rank] (all_gather, gather), outputs[0] == inputs[rank] (scatter, reduce_scatter). Otherwise blocks must
 * not overlap.
 *
 * A reduction may be one stage of a larger reduction: `stage` determines whether inputs and outputs
 * are elements or partial results (reduce.h). If elements and partial results differ in size, no
 * output may share memory with an input. */
typedef struct dd_coll_args {
    dd_coll coll;
    int root;               /* rank of the root, for kinds that have one */
    dd_reduction reduction; /* for folding kinds; other kinds use only its dtype */
    uint64_t foreign_dtype; /* name of the elements, compared by all ranks (dd_signature); 0 if none */
    dd_stage stage;         /* for folding kinds: WHOLE, which is 0, in all calls of users */
    const dd_block *inputs;
    const dd_block *outputs;
} dd_coll_args;

/* Return the number of a rank's input blocks, or of its output blocks. */
int dd_coll_ninputs(dd_coll coll, bool is_root, int nranks);
int dd_coll_noutputs(dd_coll coll, bool is_root, int nranks);
/* Return the index of a rank's own block among its inputs, or among its outputs. */
int dd_coll_own_input(dd_coll coll, int rank);
int dd_coll_own_output(dd_coll coll, int rank);
/* Return the size in bytes of the array or of the largest block, as far as all ranks know it. Set
 * *is_even to true if all blocks have one size. For a kind whose ranks know only their own blocks,
 * pass has_equal_blocks, on which all ranks must agree; if it is false, return 0. */
size_t dd_coll_known_nbytes(const dd_coll_args *args, int nranks, bool has_equal_blocks, bool *is_even);
/* Return the size in bytes of one input element, or of one output element; 1 without a fold. */
size_t dd_coll_input_size(const dd_coll_args *args);
size_t dd_coll_output_size(const dd_coll_args *args);
/* Return the size in bytes of all blocks of `rank`. */
size_t dd_coll_nbytes(const dd_coll_args *args, int rank, int nranks);

#endif
