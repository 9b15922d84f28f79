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
