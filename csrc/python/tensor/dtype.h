/* Element types and devices by external names: struct formats, DLPack's codes, NumPy's names. */
#ifndef DD_PYTHON_TENSOR_DTYPE_H
#define DD_PYTHON_TENSOR_DTYPE_H

#include "core/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Values of DLDeviceType for memory that the CPU can access. */
#define PY_DEVICE_CPU 1
#define PY_DEVICE_CUDA_HOST 3
#define PY_DEVICE_ROCM_HOST 11

typedef enum py_format_kind {
    PY_FORMAT_NUMBER,
    PY_FORMAT_FOREIGN, /* a number in the other byte order */
    PY_FORMAT_UNKNOWN,
} py_format_kind;

/* Return true if the prefix of a format or typestr denotes the other byte order. */
bool py_dtype_is_foreign(const char *format);

/* Read the format of a Py_buffer. Sets *dtype unless the format is unknown. */
py_format_kind py_dtype_of_format(const char *format, size_t itemsize, dd_dtype *dtype);

/* Return the format of a buffer with this dtype, or NULL if there is none. */
const char *py_dtype_format(dd_dtype dtype);

/* Find the dtype of a DLDataType with one lane. Return false if there is none. */
bool py_dtype_of_dlpack(unsigned code, unsigned nbits, dd_dtype *dtype);
/* Return the DLDataTypeCode of a dtype. */
uint8_t py_dtype_dlpack_code(dd_dtype dtype);

/* Find the dtype with this name. Return false if there is none. */
bool py_dtype_of_name(const char *name, dd_dtype *dtype);

/* Find a dtype that ml_dtypes adds to NumPy. Return false for any other name. */
bool py_dtype_of_extension(const char *name, dd_dtype *dtype);

/* Return the name of a DLDeviceType, like "cuda" for 2, or NULL if it has none here. */
const char *py_device_name(int device_type);

/* Return true if the CPU can access the memory: CPU memory, or memory pinned by a driver. */
bool py_device_is_cpu(int device_type);

#endif
