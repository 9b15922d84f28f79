/* What others call the element types and devices: struct formats, DLPack's codes, NumPy's names. */
#ifndef DD_PYTHON_TENSOR_DTYPE_H
#define DD_PYTHON_TENSOR_DTYPE_H

#include "core/dtype.h"

#include <stdbool.h>
#include <stddef.h>

/* DLDeviceType, as far as it matters here. */
#define PY_DEVICE_CPU 1
#define PY_DEVICE_CUDA_HOST 3
#define PY_DEVICE_ROCM_HOST 11

typedef enum py_format_kind {
    PY_FORMAT_NUMBER,
    PY_FORMAT_FOREIGN, /* a number in the other byte order */
    PY_FORMAT_UNKNOWN,
} py_format_kind;

/* Whether the prefix of a format or of a typestr asks for the byte order this machine does not have. */
bool py_dtype_is_foreign(const char *format);

/* Of the format of a Py_buffer, NULL for bytes. Sets *dtype for PY_FORMAT_NUMBER only. */
py_format_kind py_dtype_of_format(const char *format, size_t itemsize, dd_dtype *dtype);

/* Of DLDataType with one lane; false when there is none. */
bool py_dtype_of_dlpack(unsigned code, unsigned nbits, dd_dtype *dtype);

/* Of the dtypes that ml_dtypes adds to NumPy, by name; false for any other. */
bool py_dtype_of_extension(const char *name, dd_dtype *dtype);

/* "cuda" for 2; "device type 99" is for the caller to write when it is NULL. */
const char *py_device_name(int device_type);

/* Whether the CPU reads and writes the memory like any other: its own, and what drivers pin for it. */
bool py_device_is_cpu(int device_type);

#endif
