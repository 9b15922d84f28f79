#include "collective/coll.h"

typedef enum nblocks {
    NONE,
    ONE,
    EACH,
    ROOT_EACH,
    ROOT_ONE,
} nblocks;

typedef struct coll_row {
    const char *name;
    nblocks ninputs;
    nblocks noutputs;
} coll_row;

static const coll_row rows[] = {
#define COLL_ROW(id, text, ninputs, noutputs) {text, ninputs, noutputs},
    DD_COLL_LIST(COLL_ROW)
#undef COLL_ROW
};

static int
count_blocks(nblocks which, bool is_root, int nranks)
{
    switch (which) {
    case ONE:
        return 1;
    case EACH:
        return nranks;
    case ROOT_EACH:
        return is_root ? nranks : 0;
    case ROOT_ONE:
        return is_root ? 1 : 0;
    case NONE:
        break;
    }
    return 0;
}

static bool
is_coll(dd_coll coll)
{
    return (unsigned)coll < DD_COLL_COUNT;
}

const char *
dd_coll_name(dd_coll coll)
{
    return is_coll(coll) ? rows[coll].name : "unknown";
}

bool
dd_coll_is_folding(dd_coll coll)
{
    return coll == DD_COLL_REDUCE || coll == DD_COLL_ALL_REDUCE || coll == DD_COLL_REDUCE_SCATTER;
}

int
dd_coll_ninputs(dd_coll coll, bool is_root, int nranks)
{
    return is_coll(coll) ? count_blocks(rows[coll].ninputs, is_root, nranks) : 0;
}

int
dd_coll_noutputs(dd_coll coll, bool is_root, int nranks)
{
    return is_coll(coll) ? count_blocks(rows[coll].noutputs, is_root, nranks) : 0;
}

size_t
dd_coll_known_nbytes(const dd_coll_args *args, int nranks, bool has_equal_blocks, bool *is_even)
{
    *is_even = true;
    bool has_each = rows[args->coll].ninputs == EACH || rows[args->coll].noutputs == EACH;
    bool has_one = rows[args->coll].ninputs == ONE || rows[args->coll].noutputs == ONE;
    if (args->coll == DD_COLL_BARRIER) {
        return 0;
    }
    const dd_block *blocks = rows[args->coll].ninputs == ONE ? args->inputs : args->outputs;
    if (has_each && has_one) {
        /* all_gather, reduce_scatter: every rank has all of them */
        blocks = rows[args->coll].ninputs == EACH ? args->inputs : args->outputs;
        size_t largest = 0;
        for (int i = 0; i < nranks; i++) {
            largest = blocks[i].nbytes > largest ? blocks[i].nbytes : largest;
            *is_even = *is_even && blocks[i].nbytes == blocks[0].nbytes;
        }
        return largest;
    }
    /* broadcast, reduce, all_reduce: an array; gather, scatter, all_to_all: blocks that one rank has for another */
    bool is_array =
        has_one && rows[args->coll].ninputs != ROOT_EACH && rows[args->coll].noutputs != ROOT_EACH;
    *is_even = is_array || has_equal_blocks;
    return *is_even ? blocks[0].nbytes : 0;
}

size_t
dd_coll_nbytes(const dd_coll_args *args, int rank, int nranks)
{
    bool is_root = args->root == rank;
    int ninputs = dd_coll_ninputs(args->coll, is_root, nranks);
    int noutputs = dd_coll_noutputs(args->coll, is_root, nranks);
    size_t nbytes = 0;
    for (int i = 0; i < ninputs; i++) {
        nbytes += args->inputs[i].nbytes;
    }
    for (int i = 0; i < noutputs; i++) {
        nbytes += args->outputs[i].nbytes;
    }
    return nbytes;
}
