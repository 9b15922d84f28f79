#include "core/dtype.h"

typedef struct dtype_row {
    const char *name;
    size_t size;
    dd_dtype_kind kind;
} dtype_row;

static const dtype_row dtypes[DD_DTYPE_COUNT] = {
#define DTYPE_INFO(name, text, size, kind) [DD_DTYPE_##name] = {text, size, DD_KIND_##kind},
    DD_DTYPE_LIST(DTYPE_INFO)
#undef DTYPE_INFO
};

size_t
dd_dtype_size(dd_dtype dtype)
{
    return dtypes[dtype].size;
}

dd_dtype_kind
dd_dtype_kind_of(dd_dtype dtype)
{
    return dtypes[dtype].kind;
}

const char *
dd_dtype_name(dd_dtype dtype)
{
    return dd_dtype_is_valid((unsigned)dtype) ? dtypes[dtype].name : "unknown dtype";
}

bool
dd_dtype_is_valid(unsigned number)
{
    return number < (unsigned)DD_DTYPE_COUNT;
}
