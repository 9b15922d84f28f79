/* The element types of tensors: names, sizes and kinds of numbers. */
#ifndef DD_CORE_DTYPE_H
#define DD_CORE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>

typedef enum dd_dtype_kind {
    DD_KIND_BOOL,
    DD_KIND_INT,
    DD_KIND_UINT,
    DD_KIND_FLOAT,
    DD_KIND_COMPLEX,
} dd_dtype_kind;

/* X(name, text, size in bytes, kind). The order is part of the wire format: only append types. */
#define DD_DTYPE_LIST(X)                        \
    X(BOOL, "bool", 1, BOOL)                    \
    X(INT8, "int8", 1, INT)                     \
    X(UINT8, "uint8", 1, UINT)                  \
    X(INT16, "int16", 2, INT)                   \
    X(UINT16, "uint16", 2, UINT)                \
    X(INT32, "int32", 4, INT)                   \
    X(UINT32, "uint32", 4, UINT)                \
    X(INT64, "int64", 8, INT)                   \
    X(UINT64, "uint64", 8, UINT)                \
    X(FLOAT16, "float16", 2, FLOAT)             \
    X(BFLOAT16, "bfloat16", 2, FLOAT)           \
    X(FLOAT8_E4M3FN, "float8_e4m3fn", 1, FLOAT) \
    X(FLOAT8_E5M2, "float8_e5m2", 1, FLOAT)     \
    X(FLOAT32, "float32", 4, FLOAT)             \
    X(FLOAT64, "float64", 8, FLOAT)             \
    X(COMPLEX64, "complex64", 8, COMPLEX)       \
    X(COMPLEX128, "complex128", 16, COMPLEX)

typedef enum dd_dtype {
#define DD_DTYPE_ENUM(name, text, size, kind) DD_DTYPE_##name,
    DD_DTYPE_LIST(DD_DTYPE_ENUM)
#undef DD_DTYPE_ENUM
} dd_dtype;

#define DD_DTYPE_COUNT ((int)DD_DTYPE_COMPLEX128 + 1)
#define DD_DTYPE_MAX_SIZE 16

/* The caller must pass a valid dtype: these two functions do not check it. */
size_t dd_dtype_size(dd_dtype dtype);
dd_dtype_kind dd_dtype_kind_of(dd_dtype dtype);

/* Return the dtype's name, such as "float32"; "unknown dtype" for an invalid number. */
const char *dd_dtype_name(dd_dtype dtype);

/* Return true if a number received from a peer is a valid dtype. */
bool dd_dtype_is_valid(unsigned number);

#endif
