#include "python/tensor/dtype.h"

#include <string.h>

/* The names and numbers of dtypes in other libraries. */
static const struct {
    const char *format; /* format of an exported buffer; NULL if there is none */
    char letters[3];    /* other one-letter formats of the dtype, valid if the item size matches */
    uint8_t code;       /* the dtype's DLDataTypeCode */
    /* element size in bytes; copied here, because every call with a tensor searches for it */
    uint8_t nbytes;
} dtypes[DD_DTYPE_COUNT] = {
    [DD_DTYPE_BOOL] = {"?", "", 6, 1},          [DD_DTYPE_INT8] = {"b", "", 0, 1},
    [DD_DTYPE_UINT8] = {"B", "c", 1, 1},        [DD_DTYPE_INT16] = {"h", "", 0, 2},
    [DD_DTYPE_UINT16] = {"H", "", 1, 2},        [DD_DTYPE_INT32] = {"i", "ln", 0, 4},
    [DD_DTYPE_UINT32] = {"I", "LN", 1, 4},      [DD_DTYPE_INT64] = {"q", "ln", 0, 8},
    [DD_DTYPE_UINT64] = {"Q", "LN", 1, 8},      [DD_DTYPE_FLOAT16] = {"e", "", 2, 2},
    [DD_DTYPE_BFLOAT16] = {NULL, "", 4, 2},     [DD_DTYPE_FLOAT8_E4M3FN] = {NULL, "", 10, 1},
    [DD_DTYPE_FLOAT8_E5M2] = {NULL, "", 12, 1}, [DD_DTYPE_FLOAT32] = {"f", "", 2, 4},
    [DD_DTYPE_FLOAT64] = {"d", "", 2, 8},       [DD_DTYPE_COMPLEX64] = {"Zf", "F", 5, 8},
    [DD_DTYPE_COMPLEX128] = {"Zd", "D", 5, 16},
};

static bool
is_little_endian(void)
{
    const unsigned one = 1;
    unsigned char first;
    memcpy(&first, &one, 1);
    return first == 1;
}

bool
py_dtype_is_foreign(const char *format)
{
    return is_little_endian() ? format[0] == '>' || format[0] == '!' : format[0] == '<';
}

static bool
has_format(int dtype, const char *format)
{
    const char *ours = dtypes[dtype].format;
    if (ours != NULL && ours[0] == format[0] && strcmp(ours, format) == 0) {
        return true;
    }
    const char *letters = dtypes[dtype].letters;
    return format[0] != '\0' && format[1] == '\0' && (letters[0] == format[0] || letters[1] == format[0]);
}

py_format_kind
py_dtype_of_format(const char *format, size_t itemsize, dd_dtype *dtype)
{
    bool has_prefix = format[0] != '\0' && format[1] != '\0' && strchr("@=<>!", format[0]) != NULL;
    bool is_foreign = has_prefix && py_dtype_is_foreign(format) && itemsize > 1;
    format += has_prefix ? 1 : 0;
    for (int i = 0; i < DD_DTYPE_COUNT; i++) {
        /* Choose by item size, because prefixes for native or standard sizes are not reliable. */
        if (dtypes[i].nbytes == itemsize && has_format(i, format)) {
            *dtype = (dd_dtype)i;
            return is_foreign ? PY_FORMAT_FOREIGN : PY_FORMAT_NUMBER;
        }
    }
    return PY_FORMAT_UNKNOWN;
}

const char *
py_dtype_format(dd_dtype dtype)
{
    return dtypes[dtype].format;
}

bool
py_dtype_of_dlpack(unsigned code, unsigned nbits, dd_dtype *dtype)
{
    for (int i = 0; i < DD_DTYPE_COUNT; i++) {
        if (dtypes[i].code == code && 8U * dtypes[i].nbytes == nbits) {
            *dtype = (dd_dtype)i;
            return true;
        }
    }
    return false;
}

uint8_t
py_dtype_dlpack_code(dd_dtype dtype)
{
    return dtypes[dtype].code;
}

bool
py_dtype_of_name(const char *name, dd_dtype *dtype)
{
    for (int i = 0; i < DD_DTYPE_COUNT; i++) {
        if (strcmp(name, dd_dtype_name((dd_dtype)i)) == 0) {
            *dtype = (dd_dtype)i;
            return true;
        }
    }
    return false;
}

bool
py_dtype_of_extension(const char *name, dd_dtype *dtype)
{
    return py_dtype_of_name(name, dtype) && dtypes[*dtype].format == NULL;
}

const char *
py_device_name(int device_type)
{
    /* The names of devices, indexed by DLDeviceType. */
    static const char *const names[] = {
        [PY_DEVICE_CPU] = "cpu",
        [2] = "cuda",
        [PY_DEVICE_CUDA_HOST] = "cuda_host",
        [4] = "opencl",
        [7] = "vulkan",
        [8] = "metal",
        [9] = "vpi",
        [10] = "rocm",
        [PY_DEVICE_ROCM_HOST] = "rocm_host",
        [12] = "ext_dev",
        [13] = "cuda_managed",
        [14] = "oneapi",
        [15] = "webgpu",
        [16] = "hexagon",
        [17] = "maia",
        [18] = "trn",
    };
    bool is_known = device_type >= 0 && device_type < (int)(sizeof names / sizeof names[0]);
    return is_known ? names[device_type] : NULL;
}

bool
py_device_is_cpu(int device_type)
{
    return device_type == PY_DEVICE_CPU || device_type == PY_DEVICE_CUDA_HOST ||
           device_type == PY_DEVICE_ROCM_HOST;
}
