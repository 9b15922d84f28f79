/* Element types and devices under the names that others use: struct formats, DLPack's codes, NumPy's names. */
#ifndef DD_PYTHON_TENSOR_DTYPE_H
#define DD_PYTHON_TENSOR_DTYPE_H

#include "core/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The values of DLDeviceType that matter here. */
#define PY_DEVICE_CPU 1
#define PY_DEVICE_CUDA_HOST 3
#define PY_DEVICE_ROCM_HOST 11

typedef enum py_format_kind {
    PY_FORMAT_NUMBER,
    PY_FORMAT_FOREIGN, /* a number in the other byte order */
    PY_FORMAT_UNKNOWN,
} py_format_kind;

/* Whether the prefix of a format or a typestr stands for a byte order that is not this machine's. */
bool py_dtype_is_foreign(const char *format);

/* Reads the format of a Py_buffer. Sets *dtype unless it is unknown. */
py_format_kind py_dtype_of_format(const char *format, size_t itemsize, dd_dtype *dtype);

/* The format of a buffer with this dtype; NULL if there is none. */
const char *py_dtype_format(dd_dtype dtype);

/* The dtype of a DLDataType with one lane; false if there is none. */
bool py_dtype_of_dlpack(unsigned code, unsigned nbits, dd_dtype *dtype);
/* The DLDataTypeCode of a dtype. */
uint8_t py_dtype_dlpack_code(dd_dtype dtype);

/* The dtype of this name; false if there is none. */
bool py_dtype_of_name(const char *name, dd_dtype *dtype);

/* One of the dtypes that ml_dtypes adds to NumPy, by name; false for any other name. */
bool py_dtype_of_extension(const char *name, dd_dtype *dtype);

/* "cuda" for 2; NULL if the type has no name here, and the caller then writes its number. */
const char *py_device_name(int device_type);

/* Whether the CPU can read and write the memory: its own, and memory that drivers pin for it. */
bool py_device_is_cpu(int device_type);

#endif
