/* NumPy arrays that are exported neither as a buffer of a dd_dtype nor by DLPack: extension dtypes
 * of ml_dtypes, and *foreign* dtypes, whose elements are moved and not reduced: structured,
 * datetime64 and timedelta64, byte-swapped, strings of fixed length, long double.
 *
 * Foreign elements of 1, 2, 4 or 8 bytes are read as integers of this size. Others are read as bytes,
 * with one more dimension. Ranks compare the names of the dtypes, in up to eight characters: NumPy's
 * own name, such as ">i4" or "<M8[ns]", or a letter and a hash. */
#ifndef DD_PYTHON_TENSOR_FOREIGN_H
#define DD_PYTHON_TENSOR_FOREIGN_H

#include "python/tensor/tensor.h"

/* Read an array of an extension dtype, or, if tensor->takes_foreign, of a foreign dtype. Return 1 on
 * success, 0 without an exception if the object is no such array, -1 with an exception. */
int py_foreign_try_read(py_tensor *tensor, const py_argument *argument);

/* Raise DistTypeError "<title> <problem>: got dtype <NumPy's name>, expected <expected>; <remedy>".
 * Return false, without an exception, if the argument is no array of NumPy. */
bool py_foreign_raise(const py_argument *argument, const char *problem, const char *expected);

#endif
