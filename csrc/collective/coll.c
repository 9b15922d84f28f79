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

static bool
is_of_root(nblocks which)
{
    return which == ROOT_EACH || which == ROOT_ONE;
}

static bool
is_each(nblocks which)
{
    return which == EACH || which == ROOT_EACH;
}

bool
dd_coll_has_root(dd_coll coll)
{
    return is_of_root(rows[coll].ninputs) || is_of_root(rows[coll].noutputs);
}

bool
dd_coll_is_array(dd_coll coll)
{
    return rows[coll].ninputs != NONE && !is_each(rows[coll].ninputs) && !is_each(rows[coll].noutputs);
}

int
dd_coll_own_input(dd_coll coll, int rank)
{
    return is_each(rows[coll].ninputs) ? rank : 0;
}

int
dd_coll_own_output(dd_coll coll, int rank)
{
    return is_each(rows[coll].noutputs) ? rank : 0;
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
    const coll_row *row = &rows[args->coll];
    bool has_all = (row->ninputs == EACH) != (row->noutputs == EACH); /* all_gather, reduce_scatter */
    bool by_outputs = has_all ? row->noutputs == EACH : is_of_root(row->ninputs);
    const dd_block *blocks = by_outputs ? args->outputs : args->inputs;
    int count = row->ninputs == NONE ? 0 : has_all ? nranks : 1;
    *is_even = has_all || has_equal_blocks || count == 0 || dd_coll_is_array(args->coll);
    count = *is_even ? count : 0;
    size_t largest = 0;
    for (int i = 0; i < count; i++) {
        largest = blocks[i].nbytes > largest ? blocks[i].nbytes : largest;
        *is_even = *is_even && blocks[i].nbytes == blocks[0].nbytes;
    }
    return largest;
}

static size_t
size_of(const dd_coll_args *args, bool is_partial)
{
    dd_dtype dtype = args->reduction.dtype;
    return dd_coll_is_folding(args->coll) ? dd_dtype_size(is_partial ? dd_reduce_accumulator(dtype) : dtype)
                                          : 1;
}

size_t
dd_coll_input_size(const dd_coll_args *args)
{
    return size_of(args, args->stage == DD_STAGE_MIDDLE || args->stage == DD_STAGE_LAST);
}

size_t
dd_coll_output_size(const dd_coll_args *args)
{
    return size_of(args, args->stage == DD_STAGE_FIRST || args->stage == DD_STAGE_MIDDLE);
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
