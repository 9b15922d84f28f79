#include "plain_library.h"

#include "check.h"

#include <complex.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- arithmetic of one element: total = total op next. Returns false if there is no such op. */

/* Elements may be unaligned. Integers wrap around; they are computed as `wide`. */
#define ADD_FUNCTION(name, type, wide, ...)                            \
    static bool add_##name(dd_redop op, void *total, const void *next) \
    {                                                                  \
        type a;                                                        \
        type b;                                                        \
        memcpy(&a, total, sizeof a);                                   \
        memcpy(&b, next, sizeof b);                                    \
        switch ((int)op) {                                             \
        case DD_REDOP_SUM:                                             \
            a = (type)((wide)a + (wide)b);                             \
            break;                                                     \
        case DD_REDOP_PRODUCT:                                         \
            a = (type)((wide)a * (wide)b);                             \
            break;                                                     \
            __VA_ARGS__                                                \
        default:                                                       \
            return false;                                              \
        }                                                              \
        memcpy(total, &a, sizeof a);                                   \
        return true;                                                   \
    }

#define WITH_ORDER         \
    case DD_REDOP_MIN:     \
        a = b < a ? b : a; \
        break;             \
    case DD_REDOP_MAX:     \
        a = b > a ? b : a; \
        break;

/* NaN wins, and -0 is less than +0, so no order of the ranks changes the result. */
#define WITH_ORDER_OF_FLOATS                                          \
    case DD_REDOP_MIN:                                                \
        a = isnan(a) || a < b || (a == b && signbit(a) != 0) ? a : b; \
        break;                                                        \
    case DD_REDOP_MAX:                                                \
        a = isnan(a) || a > b || (a == b && signbit(a) == 0) ? a : b; \
        break;

#define WITH_BITS(type)    \
    WITH_ORDER             \
    case DD_REDOP_BAND:    \
        a = (type)(a & b); \
        break;             \
    case DD_REDOP_BOR:     \
        a = (type)(a | b); \
        break;             \
    case DD_REDOP_BXOR:    \
        a = (type)(a ^ b); \
        break;

ADD_FUNCTION(int8, int8_t, uint64_t, WITH_BITS(int8_t))
ADD_FUNCTION(uint8, uint8_t, uint64_t, WITH_BITS(uint8_t))
ADD_FUNCTION(int16, int16_t, uint64_t, WITH_BITS(int16_t))
ADD_FUNCTION(uint16, uint16_t, uint64_t, WITH_BITS(uint16_t))
ADD_FUNCTION(int32, int32_t, uint64_t, WITH_BITS(int32_t))
ADD_FUNCTION(uint32, uint32_t, uint64_t, WITH_BITS(uint32_t))
ADD_FUNCTION(int64, int64_t, uint64_t, WITH_BITS(int64_t))
ADD_FUNCTION(uint64, uint64_t, uint64_t, WITH_BITS(uint64_t))
ADD_FUNCTION(float32, float, float, WITH_ORDER_OF_FLOATS)
ADD_FUNCTION(float64, double, double, WITH_ORDER_OF_FLOATS)
ADD_FUNCTION(complex64, float complex, float complex)
ADD_FUNCTION(complex128, double complex, double complex)

typedef bool add_function(dd_redop op, void *total, const void *next);

/* Return NULL if libraries do not fold this type. */
static add_function *
adder_of(dd_dtype dtype)
{
    static add_function *const adders[DD_DTYPE_COUNT] = {
        [DD_DTYPE_INT8] = add_int8,           [DD_DTYPE_UINT8] = add_uint8,
        [DD_DTYPE_INT16] = add_int16,         [DD_DTYPE_UINT16] = add_uint16,
        [DD_DTYPE_INT32] = add_int32,         [DD_DTYPE_UINT32] = add_uint32,
        [DD_DTYPE_INT64] = add_int64,         [DD_DTYPE_UINT64] = add_uint64,
        [DD_DTYPE_FLOAT32] = add_float32,     [DD_DTYPE_FLOAT64] = add_float64,
        [DD_DTYPE_COMPLEX64] = add_complex64, [DD_DTYPE_COMPLEX128] = add_complex128,
    };
    return adders[dtype];
}

/* ---- addresses of blocks */

/* Return the block to or from `other`, or the only block if there are no offsets. */
static const char *
at(const void *data, const size_t *offsets, int other, size_t unit)
{
    return (const char *)data + (offsets != NULL ? offsets[other] * unit : 0);
}

static size_t
count_at(const dd_carried_call *call, const size_t *counts, int other)
{
    return counts != NULL ? counts[other] : call->count;
}

static const char *
input_for(const dd_carried_call *call, int other)
{
    return at(call->input, call->in_offsets, other, dd_dtype_size(call->dtype));
}

static char *
output_from(const dd_carried_call *call, int other)
{
    return (char *)(uintptr_t)at(call->output, call->out_offsets, other, dd_dtype_size(call->dtype));
}

/* ---- collectives */

/* An in-place block stays where it is. There is no other overlap. */
static void
move(const dd_carried_call *const *calls, int from, int to)
{
    const dd_carried_call *giver = calls[from];
    const dd_carried_call *taker = calls[to];
    size_t count = count_at(giver, giver->in_counts, to);
    if (CHECK_INT(count_at(taker, taker->out_counts, from), count) && count > 0) {
        memmove(output_from(taker, from), input_for(giver, to), count * dd_dtype_size(giver->dtype));
    }
}

static void *
fold(const dd_carried_call *const *calls, int nranks, int to)
{
    const dd_carried_call *first = calls[0];
    size_t unit = dd_dtype_size(first->dtype);
    size_t count = count_at(first, first->in_counts, to);
    char *total = malloc(count * unit + 1);
    add_function *add = adder_of(first->dtype);
    bool is_good = CHECK(add != NULL);
    memcpy(total, input_for(first, to), count * unit);
    for (int rank = 1; rank < nranks && is_good; rank++) {
        const char *next = input_for(calls[rank], to);
        is_good = CHECK_INT(count_at(calls[rank], calls[rank]->in_counts, to), count);
        for (size_t i = 0; i < count && is_good; i++) {
            is_good = CHECK(add(first->op, total + i * unit, next + i * unit));
        }
    }
    return total;
}

static bool
receives(const dd_carried_call *call, int rank)
{
    bool is_of_root = call->coll == DD_COLL_GATHER || call->coll == DD_COLL_REDUCE;
    return !is_of_root || call->root == rank;
}

static void
fold_all(const dd_carried_call *const *calls, int nranks)
{
    void *totals[PLAIN_LIBRARY_MAX_RANKS];
    /* before any output is written, because an output may also be an input */
    for (int rank = 0; rank < nranks; rank++) {
        totals[rank] = fold(calls, nranks, rank);
    }
    for (int rank = 0; rank < nranks; rank++) {
        const dd_carried_call *call = calls[rank];
        if (receives(call, rank)) {
            memcpy(call->output, totals[rank],
                   call->coll == DD_COLL_REDUCE_SCATTER
                       ? calls[0]->in_counts[rank] * dd_dtype_size(call->dtype)
                       : call->count * dd_dtype_size(call->dtype));
        }
        free(totals[rank]);
    }
}

static void
move_all(const dd_carried_call *const *calls, int nranks)
{
    dd_coll coll = calls[0]->coll;
    bool is_from_root = coll == DD_COLL_BROADCAST || coll == DD_COLL_SCATTER;
    for (int to = 0; to < nranks; to++) {
        for (int from = 0; from < nranks && receives(calls[to], to); from++) {
            if (!is_from_root || from == calls[to]->root) {
                move(calls, from, to);
            }
        }
    }
}

/* ---- guarantees to the library */

static bool
is_plain(const dd_carried_call *call)
{
    switch ((int)call->dtype) {
    case DD_DTYPE_UINT8:
    case DD_DTYPE_UINT16:
    case DD_DTYPE_UINT32:
    case DD_DTYPE_UINT64:
    case DD_DTYPE_COMPLEX128:
        return true;
    default:
        return dd_coll_is_folding(call->coll);
    }
}

static bool
are_offsets_right(const size_t *counts, const size_t *offsets, int nranks)
{
    if (counts == NULL || offsets == NULL) {
        return counts == NULL && offsets == NULL;
    }
    size_t offset = 0;
    bool is_right = true;
    for (int rank = 0; rank < nranks; rank++) {
        is_right = is_right && offsets[rank] == offset;
        offset += counts[rank];
    }
    return is_right && offsets[nranks] == offset;
}

static bool
check_promises(const dd_carried_call *const *calls, int nranks)
{
    bool is_good = true;
    for (int rank = 0; rank < nranks; rank++) {
        const dd_carried_call *call = calls[rank];
        is_good = CHECK_INT(call->coll, calls[0]->coll) && CHECK_INT(call->root, calls[0]->root) &&
                  CHECK_INT(call->dtype, calls[0]->dtype) && CHECK_INT(call->op, calls[0]->op) &&
                  CHECK_INT(call->is_even, calls[0]->is_even) && CHECK(is_plain(call)) &&
                  CHECK(are_offsets_right(call->in_counts, call->in_offsets, nranks)) &&
                  CHECK(are_offsets_right(call->out_counts, call->out_offsets, nranks)) && is_good;
    }
    return is_good;
}

void
plain_library_do(const dd_carried_call *const *calls, int nranks)
{
    if (!check_promises(calls, nranks) || calls[0]->coll == DD_COLL_BARRIER) {
        return;
    }
    if (dd_coll_is_folding(calls[0]->coll)) {
        fold_all(calls, nranks);
    } else {
        move_all(calls, nranks);
    }
}
