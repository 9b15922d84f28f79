/* NCCL's dtypes and operations for reductions of dldist's dtypes. */
#include "nccl/call/internal.h"

/* Return the dtype to reduce with: uint8 for bool, the real dtype for a complex one. */
static dd_dtype
wire_part(dd_dtype dtype)
{
    if (dtype == DD_DTYPE_BOOL) {
        return DD_DTYPE_UINT8;
    }
    if (dtype == DD_DTYPE_COMPLEX64) {
        return DD_DTYPE_FLOAT32;
    }
    return dtype == DD_DTYPE_COMPLEX128 ? DD_DTYPE_FLOAT64 : dtype;
}

/* Choose the operation for bool: bytes are 0 or 1, so "or" is the maximum, "and" the minimum. */
static dd_status
bool_wire(dd_redop op, nccl_wire *wire, dd_error *err)
{
    switch (op) {
    case DD_REDOP_SUM:
    case DD_REDOP_MAX:
    case DD_REDOP_BOR:
        wire->op = DD_NCCL_MAX;
        return DD_OK;
    case DD_REDOP_PRODUCT:
    case DD_REDOP_MIN:
    case DD_REDOP_BAND:
        wire->op = DD_NCCL_MIN;
        return DD_OK;
    case DD_REDOP_AVG:
    case DD_REDOP_BXOR:
    case DD_REDOP_PREMUL_SUM:
        break;
    }
    return dd_error_set(err, DD_INVALID_ARGUMENT, "Cannot use ReduceOp.%s with bool on NCCL",
                        dd_redop_name(op));
}

static dd_status
premul_wire(const dd_reduction *reduction, const void *factor, nccl_wire *wire, dd_error *err)
{
    bool is_float = reduction->dtype == DD_DTYPE_FLOAT16 || reduction->dtype == DD_DTYPE_BFLOAT16 ||
                    reduction->dtype == DD_DTYPE_FLOAT32 || reduction->dtype == DD_DTYPE_FLOAT64;
    bool is_scaled_complex = dd_dtype_kind_of(reduction->dtype) == DD_KIND_COMPLEX && factor == NULL;
    if (!is_float && !is_scaled_complex) {
        return dd_error_set(
            err, DD_INVALID_ARGUMENT,
            "ReduceOp.PREMUL_SUM with NCCL: got %s, expected half, float, bfloat16 or double%s",
            dd_dtype_name(reduction->dtype), factor == NULL ? " (or a complex dtype)" : "");
    }
    wire->is_premul = true;
    return DD_OK;
}

static dd_status
op_wire(const dd_reduction *reduction, const void *factor, nccl_wire *wire, dd_error *err)
{
    bool is_complex = dd_dtype_kind_of(reduction->dtype) == DD_KIND_COMPLEX;
    switch (reduction->op) {
    case DD_REDOP_SUM:
        wire->op = DD_NCCL_SUM;
        return DD_OK;
    case DD_REDOP_AVG:
        wire->op = DD_NCCL_AVG;
        return DD_OK;
    case DD_REDOP_PRODUCT:
        wire->op = DD_NCCL_PROD;
        break;
    case DD_REDOP_MIN:
        wire->op = DD_NCCL_MIN;
        break;
    case DD_REDOP_MAX:
        wire->op = DD_NCCL_MAX;
        break;
    case DD_REDOP_PREMUL_SUM:
        return premul_wire(reduction, factor, wire, err);
    case DD_REDOP_BAND:
    case DD_REDOP_BOR:
    case DD_REDOP_BXOR:
        return dd_error_set(err, DD_INVALID_ARGUMENT, "Cannot use ReduceOp.%s with NCCL",
                            dd_redop_name(reduction->op));
    }
    if (is_complex) {
        return dd_error_set(err, DD_INVALID_ARGUMENT,
                            "Cannot use ReduceOp.%s on %s with NCCL, which has no complex numbers",
                            dd_redop_name(reduction->op), dd_dtype_name(reduction->dtype));
    }
    return DD_OK;
}

dd_status
nccl_wire_of(const dd_nccl_lib *lib, const dd_reduction *reduction, const void *factor, nccl_wire *wire,
             dd_error *err)
{
    if ((unsigned)reduction->op >= DD_REDOP_COUNT) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "unknown reduction: got %d, expected 0 to %d",
                            (int)reduction->op, DD_REDOP_COUNT - 1);
    }
    dd_dtype part = wire_part(reduction->dtype);
    dd_nccl_dtype nccl_dtype;
    int since;
    if (!dd_nccl_dtype_find(part, &nccl_dtype, &since)) {
        return dd_error_set(err, DD_NOT_SUPPORTED, "NCCL cannot reduce %s: it has no such dtype",
                            dd_dtype_name(reduction->dtype));
    }
    if (lib->version < since) {
        char text[16];
        return dd_error_set(err, DD_NOT_SUPPORTED, "reducing %s needs NCCL %s or newer, this is %s",
                            dd_dtype_name(reduction->dtype), dd_nccl_version_print(since, text),
                            lib->version_text);
    }
    *wire = (nccl_wire){.dtype = nccl_dtype, .element = dd_dtype_size(part), .op = DD_NCCL_SUM};
    if (reduction->dtype == DD_DTYPE_BOOL) {
        return bool_wire(reduction->op, wire, err);
    }
    return op_wire(reduction, factor, wire, err);
}
