#include "collective/conversion.h"

#include "collective/run_internal.h"
#include "core/mem.h"

#include <string.h>

/* One side of a call: this rank's input blocks, or its output blocks. */
typedef struct conversion_side {
    const dd_block *blocks;
    int nblocks;
    size_t size;     /* size of an element of the caller's type */
    size_t total;    /* number of elements in all blocks */
    size_t *counts;  /* [nranks]: number of elements in each block */
    size_t *offsets; /* [nranks + 1]: start of each block, in elements */
    dd_run_buffer buffer;
    bool is_packed; /* the library uses `buffer`, not the caller's blocks */
} conversion_side;

struct dd_conversion {
    int rank;
    int nranks;
    const dd_coll_args *args;
    dd_carried_call call;
    conversion_side in;
    conversion_side out;
    size_t *numbers; /* owned: memory of the counts and offsets of both sides */
};

dd_status
dd_conversion_create(int rank, int nranks, dd_conversion **out, dd_error *err)
{
    size_t count = (size_t)nranks;
    dd_conversion *conversion = dd_mem_zalloc(sizeof *conversion);
    size_t *numbers = dd_mem_alloc_array(4 * count + 2, sizeof *numbers);
    if (conversion == NULL || numbers == NULL) {
        dd_mem_free(conversion);
        dd_mem_free(numbers);
        return dd_error_no_memory(err, sizeof *conversion + (4 * count + 2) * sizeof *numbers);
    }
    conversion->rank = rank;
    conversion->nranks = nranks;
    conversion->numbers = numbers;
    conversion->in.counts = numbers;
    conversion->in.offsets = numbers + count;
    conversion->out.counts = numbers + 2 * count + 1;
    conversion->out.offsets = numbers + 3 * count + 1;
    *out = conversion;
    return DD_OK;
}

void
dd_conversion_destroy(dd_conversion *conversion)
{
    if (conversion != NULL) {
        dd_run_buffer_fini(&conversion->in.buffer);
        dd_run_buffer_fini(&conversion->out.buffer);
        dd_mem_free(conversion->numbers);
        dd_mem_free(conversion);
    }
}

/* ---- plain types and plain reductions */

static dd_dtype
dtype_of_size(size_t size)
{
    switch (size) {
    case 1:
        return DD_DTYPE_UINT8;
    case 2:
        return DD_DTYPE_UINT16;
    case 4:
        return DD_DTYPE_UINT32;
    case 8:
        return DD_DTYPE_UINT64;
    default:
        return DD_DTYPE_COMPLEX128;
    }
}

/* Replace an operation on booleans by one on integers. As booleans are 0 or 1, both agree. */
static dd_redop
redop_of_bools(dd_redop op)
{
    switch (op) {
    case DD_REDOP_PRODUCT:
    case DD_REDOP_MIN:
    case DD_REDOP_BAND:
        return DD_REDOP_MIN;
    case DD_REDOP_BXOR:
        return DD_REDOP_BXOR;
    case DD_REDOP_SUM:
    case DD_REDOP_MAX:
    case DD_REDOP_BOR:
    case DD_REDOP_AVG:
    case DD_REDOP_PREMUL_SUM:
        break;
    }
    return DD_REDOP_MAX;
}

static void
choose_element_type(dd_carried_call *call, const dd_coll_args *args)
{
    dd_redop op = args->reduction.op;
    if (!dd_coll_is_folding(args->coll)) {
        call->dtype = dtype_of_size(dd_dtype_size(args->reduction.dtype));
    } else if (args->reduction.dtype == DD_DTYPE_BOOL) {
        call->dtype = DD_DTYPE_UINT8;
        call->op = redop_of_bools(op);
    } else {
        call->dtype = dd_reduce_accumulator(args->reduction.dtype);
        call->op = op == DD_REDOP_AVG || op == DD_REDOP_PREMUL_SUM ? DD_REDOP_SUM : op;
    }
}

/* Return true if elements are folded in a wider type than their own. */
static bool
widens(const dd_coll_args *args)
{
    dd_dtype dtype = args->reduction.dtype;
    return dd_coll_is_folding(args->coll) && dd_reduce_accumulator(dtype) != dtype;
}

/* Return true if elements must be converted before they are folded. */
static bool
converts_input(const dd_coll_args *args)
{
    bool is_bool = args->reduction.dtype == DD_DTYPE_BOOL;
    bool is_product = args->reduction.op == DD_REDOP_PREMUL_SUM;
    return widens(args) || (dd_coll_is_folding(args->coll) && (is_bool || is_product));
}

/* ---- memory of the blocks */

static void
measure(conversion_side *side, int nblocks, int nranks, size_t size, const dd_block *blocks)
{
    size_t offset = 0;
    side->blocks = blocks;
    side->nblocks = nblocks;
    side->size = size;
    side->is_packed = false;
    for (int i = 0; i < nblocks; i++) {
        side->counts[i] = blocks[i].nbytes / size;
        side->offsets[i] = offset;
        offset += side->counts[i];
    }
    side->total = offset;
    if (nblocks == nranks) {
        side->offsets[nranks] = offset;
    }
}

/* Return the first block's address if all blocks are adjacent, else NULL. Empty blocks fit. */
static char *
find_base(const conversion_side *side)
{
    char *base = NULL;
    for (int i = 0; i < side->nblocks; i++) {
        const dd_block *block = &side->blocks[i];
        if (block->nbytes == 0) {
            continue;
        }
        size_t offset = side->offsets[i] * side->size;
        if (base == NULL) {
            base = (char *)((uintptr_t)block->data - offset);
        } else if ((uintptr_t)block->data != (uintptr_t)base + offset) {
            return NULL;
        }
    }
    return base != NULL ? base : (char *)side->counts; /* without data, any address will do */
}

static void
pack(const dd_conversion *conversion, bool is_first)
{
    const conversion_side *in = &conversion->in;
    size_t unit = dd_dtype_size(conversion->call.dtype);
    for (int i = 0; i < in->nblocks; i++) {
        char *to = in->buffer.data + in->offsets[i] * unit;
        const void *from = in->blocks[i].data;
        if (in->counts[i] == 0) {
            continue;
        }
        if (is_first) {
            dd_reduce(&conversion->args->reduction, DD_STAGE_FIRST, to, &from, 1, in->counts[i]);
        } else {
            memcpy(to, from, in->blocks[i].nbytes);
        }
    }
}

static dd_status
reserve(conversion_side *side, size_t unit, dd_error *err)
{
    size_t nbytes = side->total * unit;
    dd_status status = dd_run_buffer_reserve(&side->buffer, nbytes > 0 ? nbytes : 1, err);
    side->is_packed = status == DD_OK;
    return status;
}

static dd_status
choose_input(dd_conversion *conversion, dd_error *err)
{
    conversion_side *in = &conversion->in;
    bool is_first = converts_input(conversion->args);
    char *base = is_first ? NULL : find_base(in);
    if (base == NULL) {
        dd_status status = reserve(in, dd_dtype_size(conversion->call.dtype), err);
        if (status != DD_OK) {
            return status;
        }
        base = in->buffer.data;
        pack(conversion, is_first);
    }
    conversion->call.input = base;
    return DD_OK;
}

/* Libraries differ in how they pass a reduce_scatter in place, so write its output to a buffer. */
static bool
needs_own_output(const dd_conversion *conversion, const char *base)
{
    const conversion_side *in = &conversion->in;
    return conversion->call.coll == DD_COLL_REDUCE_SCATTER && !in->is_packed &&
           in->blocks[conversion->rank].data == (const void *)base;
}

static dd_status
choose_output(dd_conversion *conversion, dd_error *err)
{
    conversion_side *out = &conversion->out;
    char *base = widens(conversion->args) ? NULL : find_base(out);
    if (base == NULL || needs_own_output(conversion, base)) {
        dd_status status = reserve(out, dd_dtype_size(conversion->call.dtype), err);
        if (status != DD_OK) {
            return status;
        }
        base = out->buffer.data;
    }
    conversion->call.output = base;
    return DD_OK;
}

/* Return true if input and output share memory, as dd_carried_call.is_in_place describes. */
static bool
conversion_is_in_place(const dd_conversion *conversion)
{
    const dd_carried_call *call = &conversion->call;
    const dd_coll_traits *traits = &dd_coll_traits_of[call->coll];
    size_t unit = dd_dtype_size(call->dtype);
    const char *input = call->input;
    const char *output = call->output;
    if (input == NULL || output == NULL || (traits->is_split && (traits->is_collected || traits->is_fold))) {
        return false;
    }
    return input + (traits->is_split ? conversion->in.offsets[conversion->rank] * unit : 0) ==
           output + (traits->is_collected ? conversion->out.offsets[conversion->rank] * unit : 0);
}

static void
set_block_tables(dd_conversion *conversion)
{
    dd_carried_call *call = &conversion->call;
    const conversion_side *in = &conversion->in;
    const conversion_side *out = &conversion->out;
    bool has_many_in = dd_coll_traits_of[call->coll].is_split && in->nblocks > 0;
    bool has_many_out = dd_coll_traits_of[call->coll].is_collected && out->nblocks > 0;
    call->in_counts = has_many_in ? in->counts : NULL;
    call->in_offsets = has_many_in ? in->offsets : NULL;
    call->out_counts = has_many_out ? out->counts : NULL;
    call->out_offsets = has_many_out ? out->offsets : NULL;
    bool is_own_in = !has_many_in && in->nblocks == 1;
    bool is_own_out = !has_many_out && out->nblocks == 1;
    call->count = is_own_in ? in->counts[0] : is_own_out ? out->counts[0] : 0;
    (void)dd_coll_known_nbytes(conversion->args, conversion->nranks, false, &call->is_even);
}

const dd_carried_call *
dd_conversion_describe(dd_conversion *conversion, const dd_coll_args *args)
{
    bool is_root = args->root == conversion->rank;
    size_t size = dd_dtype_size(args->reduction.dtype);
    conversion->args = args;
    conversion->call = (dd_carried_call){.coll = args->coll, .root = args->root};
    choose_element_type(&conversion->call, args);
    measure(&conversion->in, dd_coll_ninputs(args->coll, is_root, conversion->nranks), conversion->nranks,
            size, args->inputs);
    measure(&conversion->out, dd_coll_noutputs(args->coll, is_root, conversion->nranks), conversion->nranks,
            size, args->outputs);
    set_block_tables(conversion);
    return &conversion->call;
}

/* Libraries broadcast from the root's output, so copy the root's input to its output. */
static void
move_broadcast(dd_carried_call *call)
{
    if (call->coll == DD_COLL_BROADCAST && call->input != NULL && !call->is_in_place) {
        memcpy(call->output, call->input, call->count * dd_dtype_size(call->dtype));
        call->input = call->output;
        call->is_in_place = true;
    }
}

dd_status
dd_conversion_set_memory(dd_conversion *conversion, dd_error *err)
{
    dd_status status = conversion->in.nblocks > 0 ? choose_input(conversion, err) : DD_OK;
    if (status == DD_OK && conversion->out.nblocks > 0) {
        status = choose_output(conversion, err);
    }
    if (status == DD_OK) {
        conversion->call.is_in_place = conversion_is_in_place(conversion);
        move_broadcast(&conversion->call);
    }
    return status;
}

/* ---- the end */

static void
finish_block(const dd_conversion *conversion, const dd_block *block, const void *from, size_t count)
{
    if (count > 0 && dd_coll_is_folding(conversion->call.coll)) {
        dd_reduce(&conversion->args->reduction, DD_STAGE_LAST, block->data, &from, 1, count);
    } else if (count > 0) {
        memcpy(block->data, from, block->nbytes);
    }
}

void
dd_conversion_end(dd_conversion *conversion)
{
    const conversion_side *out = &conversion->out;
    const char *base = conversion->call.output;
    size_t unit = dd_dtype_size(conversion->call.dtype);
    bool is_average =
        dd_coll_is_folding(conversion->call.coll) && conversion->args->reduction.op == DD_REDOP_AVG;
    for (int i = 0; i < out->nblocks && (out->is_packed || is_average); i++) {
        finish_block(conversion, &out->blocks[i], base + out->offsets[i] * unit, out->counts[i]);
    }
    dd_run_buffer_trim(&conversion->in.buffer);
    dd_run_buffer_trim(&conversion->out.buffer);
}

void
dd_conversion_leak_buffers(dd_conversion *conversion)
{
    conversion->in.buffer = (dd_run_buffer){0};
    conversion->out.buffer = (dd_run_buffer){0};
}
