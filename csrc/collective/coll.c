#include "collective/coll.h"

typedef struct coll_row {
    const char *name;
    dd_coll_blocks inputs;
    dd_coll_blocks outputs;
} coll_row;

static const coll_row rows[] = {
#define COLL_ROW(name, text, inputs, outputs, fold, support) {#text, DD_BLOCKS_##inputs, DD_BLOCKS_##outputs},
    DD_COLL_LIST(COLL_ROW)
#undef COLL_ROW
};

#define IS_OF_ROOT(blocks) ((blocks) == DD_BLOCKS_ROOT_ONE || (blocks) == DD_BLOCKS_ROOT_EACH)
#define IS_EACH(blocks) ((blocks) == DD_BLOCKS_EACH || (blocks) == DD_BLOCKS_ROOT_EACH)

const dd_coll_traits dd_coll_traits_of[DD_COLL_COUNT] = {
#define COLL_TRAITS(name, text, inputs, outputs, fold, support)        \
    {.has_data = DD_BLOCKS_##inputs != DD_BLOCKS_NONE,                 \
     .is_from_root = IS_OF_ROOT(DD_BLOCKS_##inputs),                   \
     .is_to_root = IS_OF_ROOT(DD_BLOCKS_##outputs),                    \
     .is_split = IS_EACH(DD_BLOCKS_##inputs),                          \
     .is_collected = IS_EACH(DD_BLOCKS_##outputs),                     \
     .is_fold = DD_FOLDS_##fold != DD_FOLDS_NOTHING,                   \
     .is_prefix = DD_FOLDS_##fold >= DD_FOLDS_PREFIX,                  \
     .is_exclusive = DD_FOLDS_##fold == DD_FOLDS_LOWER,                \
     .is_common = DD_COLL_SUPPORT_##support == DD_COLL_SUPPORT_COMMON, \
     .has_uneven = IS_EACH(DD_BLOCKS_##inputs) || IS_EACH(DD_BLOCKS_##outputs)},
    DD_COLL_LIST(COLL_TRAITS)
#undef COLL_TRAITS
};

static int
count_blocks(dd_coll_blocks which, bool is_root, int nranks)
{
    switch (which) {
    case DD_BLOCKS_ONE:
        return 1;
    case DD_BLOCKS_EACH:
        return nranks;
    case DD_BLOCKS_ROOT_EACH:
        return is_root ? nranks : 0;
    case DD_BLOCKS_ROOT_ONE:
        return is_root ? 1 : 0;
    case DD_BLOCKS_NONE:
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
    return is_coll(coll) && dd_coll_traits_of[coll].is_fold;
}

bool
dd_coll_has_root(dd_coll coll)
{
    return dd_coll_traits_of[coll].is_from_root || dd_coll_traits_of[coll].is_to_root;
}

bool
dd_coll_has_reduction(dd_coll coll, dd_dtype dtype, dd_redop op)
{
    bool is_refused = dd_coll_traits_of[coll].is_prefix && op == DD_REDOP_AVG;
    return dd_coll_is_folding(coll) && !is_refused && dd_reduce_is_supported(dtype, op);
}

int
dd_coll_nfolded(dd_coll coll, int rank, int nranks)
{
    return dd_coll_traits_of[coll].is_prefix ? rank + !dd_coll_traits_of[coll].is_exclusive : nranks;
}

bool
dd_coll_is_array(dd_coll coll)
{
    return dd_coll_traits_of[coll].has_data && !dd_coll_traits_of[coll].has_uneven;
}

bool
dd_coll_knows_all_sizes(dd_coll coll)
{
    return (rows[coll].inputs == DD_BLOCKS_EACH) != (rows[coll].outputs == DD_BLOCKS_EACH);
}

int
dd_coll_own_input(dd_coll coll, int rank)
{
    return dd_coll_traits_of[coll].is_split ? rank : 0;
}

int
dd_coll_own_output(dd_coll coll, int rank)
{
    return dd_coll_traits_of[coll].is_collected ? rank : 0;
}

int
dd_coll_ninputs(dd_coll coll, bool is_root, int nranks)
{
    return is_coll(coll) ? count_blocks(rows[coll].inputs, is_root, nranks) : 0;
}

int
dd_coll_noutputs(dd_coll coll, bool is_root, int nranks)
{
    return is_coll(coll) ? count_blocks(rows[coll].outputs, is_root, nranks) : 0;
}

size_t
dd_coll_known_nbytes(const dd_coll_args *args, int nranks, bool has_equal_blocks, bool *is_even)
{
    const coll_row *row = &rows[args->coll];
    bool has_all = dd_coll_knows_all_sizes(args->coll);
    bool by_outputs = has_all ? row->outputs == DD_BLOCKS_EACH : dd_coll_traits_of[args->coll].is_from_root;
    const dd_block *blocks = by_outputs ? args->outputs : args->inputs;
    int count = !dd_coll_traits_of[args->coll].has_data ? 0 : has_all ? nranks : 1;
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
    if (!dd_coll_is_folding(args->coll)) {
        return 1;
    }
    return is_partial ? dd_reduce_partial_size(dtype, args->reduction.op) : dd_dtype_size(dtype);
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
