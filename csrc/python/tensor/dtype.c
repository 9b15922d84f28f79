#include "python/tensor/dtype.h"

#include <string.h>

static const struct {
    const char *code;
    size_t itemsize;
    dd_dtype dtype;
} formats[] = {
    {"?", 1, DD_DTYPE_BOOL},         {"b", 1, DD_DTYPE_INT8},        {"B", 1, DD_DTYPE_UINT8},
    {"c", 1, DD_DTYPE_UINT8},        {"h", 2, DD_DTYPE_INT16},       {"H", 2, DD_DTYPE_UINT16},
    {"i", 4, DD_DTYPE_INT32},        {"I", 4, DD_DTYPE_UINT32},      {"l", 8, DD_DTYPE_INT64},
    {"l", 4, DD_DTYPE_INT32},        {"L", 8, DD_DTYPE_UINT64},      {"L", 4, DD_DTYPE_UINT32},
    {"q", 8, DD_DTYPE_INT64},        {"Q", 8, DD_DTYPE_UINT64},      {"n", 8, DD_DTYPE_INT64},
    {"n", 4, DD_DTYPE_INT32},        {"N", 8, DD_DTYPE_UINT64},      {"N", 4, DD_DTYPE_UINT32},
    {"e", 2, DD_DTYPE_FLOAT16},      {"f", 4, DD_DTYPE_FLOAT32},     {"d", 8, DD_DTYPE_FLOAT64},
    {"F", 8, DD_DTYPE_COMPLEX64},    {"D", 16, DD_DTYPE_COMPLEX128}, {"Zf", 8, DD_DTYPE_COMPLEX64},
    {"Zd", 16, DD_DTYPE_COMPLEX128},
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

static py_format_kind
find_letter(char letter, size_t itemsize, dd_dtype *dtype)
{
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        const char *code = formats[i].code;
        if (itemsize == formats[i].itemsize && letter == code[0] && code[1] == '\0') {
            *dtype = formats[i].dtype;
            return PY_FORMAT_NUMBER;
        }
    }
    return PY_FORMAT_UNKNOWN;
}

py_format_kind
py_dtype_of_format(const char *format, size_t itemsize, dd_dtype *dtype)
{
    if (format == NULL) {
        format = "B";
    }
    if (format[0] != '\0' && format[1] == '\0') { /* the usual case */
        return find_letter(format[0], itemsize, dtype);
    }
    bool is_foreign = py_dtype_is_foreign(format);
    if (format[0] != '\0' && strchr("@=<>!", format[0]) != NULL) {
        format++;
    }
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        /* The item size decides between native and standard sizes, because prefixes are not reliable. */
        if (itemsize == formats[i].itemsize && format[0] == formats[i].code[0] &&
            strcmp(format, formats[i].code) == 0) {
            if (is_foreign && itemsize > 1) {
                return PY_FORMAT_FOREIGN;
            }
            *dtype = formats[i].dtype;
            return PY_FORMAT_NUMBER;
        }
    }
    return PY_FORMAT_UNKNOWN;
}

/* DLDataTypeCode */
enum {
    DL_INT = 0,
    DL_UINT = 1,
    DL_FLOAT = 2,
    DL_BFLOAT = 4,
    DL_COMPLEX = 5,
    DL_BOOL = 6,
    DL_FLOAT8_E4M3FN = 10,
    DL_FLOAT8_E5M2 = 12,
};

bool
py_dtype_of_dlpack(unsigned code, unsigned nbits, dd_dtype *dtype)
{
    static const struct {
        unsigned code;
        unsigned nbits;
        dd_dtype dtype;
    } types[] = {
        {DL_FLOAT, 32, DD_DTYPE_FLOAT32},
        {DL_FLOAT, 64, DD_DTYPE_FLOAT64},
        {DL_FLOAT, 16, DD_DTYPE_FLOAT16},
        {DL_BFLOAT, 16, DD_DTYPE_BFLOAT16},
        {DL_FLOAT8_E4M3FN, 8, DD_DTYPE_FLOAT8_E4M3FN},
        {DL_FLOAT8_E5M2, 8, DD_DTYPE_FLOAT8_E5M2},
        {DL_INT, 64, DD_DTYPE_INT64},
        {DL_INT, 32, DD_DTYPE_INT32},
        {DL_INT, 16, DD_DTYPE_INT16},
        {DL_INT, 8, DD_DTYPE_INT8},
        {DL_UINT, 8, DD_DTYPE_UINT8},
        {DL_UINT, 16, DD_DTYPE_UINT16},
        {DL_UINT, 32, DD_DTYPE_UINT32},
        {DL_UINT, 64, DD_DTYPE_UINT64},
        {DL_BOOL, 8, DD_DTYPE_BOOL},
        {DL_COMPLEX, 64, DD_DTYPE_COMPLEX64},
        {DL_COMPLEX, 128, DD_DTYPE_COMPLEX128},
    };
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (types[i].code == code && types[i].nbits == nbits) {
            *dtype = types[i].dtype;
            return true;
        }
    }
    return false;
}

bool
py_dtype_of_extension(const char *name, dd_dtype *dtype)
{
    static const dd_dtype extensions[] = {DD_DTYPE_BFLOAT16, DD_DTYPE_FLOAT8_E4M3FN, DD_DTYPE_FLOAT8_E5M2};
    for (size_t i = 0; i < sizeof extensions / sizeof extensions[0]; i++) {
        if (strcmp(name, dd_dtype_name(extensions[i])) == 0) {
            *dtype = extensions[i];
            return true;
        }
    }
    return false;
}

const char *
py_device_name(int device_type)
{
    /* DLDeviceType */
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
