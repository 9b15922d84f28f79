"""Converts arrays of any library to dtype, shape and bytes and back, for the serializer "safe"."""

from __future__ import annotations

import re
import sys
from math import prod
from pickle import PickleBuffer
from typing import Any

from dldist import _core
from dldist._objects import codec

NUMPY, NUMPY_SCALAR, TORCH, OTHER = b"n", b"s", b"t", b"o"

# For each dtype, bytes per element and memoryview's format or None, for use without NumPy.
_DTYPES: dict[str, tuple[int, Any]] = {
    "bool": (1, "?"),
    "int8": (1, "b"),
    "uint8": (1, "B"),
    "int16": (2, "h"),
    "uint16": (2, "H"),
    "int32": (4, "i"),
    "uint32": (4, "I"),
    "int64": (8, "q"),
    "uint64": (8, "Q"),
    "float8_e4m3fn": (1, None),
    "float8_e5m2": (1, None),
    "float16": (2, None),
    "bfloat16": (2, None),
    "float32": (4, "f"),
    "float64": (8, "d"),
    "complex64": (8, None),
    "complex128": (16, None),
}
# NumPy's strings and dates, which other libraries do not have: the kind, bytes per element, unit.
# NumPy accepts units of 0 seconds, but divides by the 0 when it converts them.
_MOVED_DTYPE = re.compile(r"(<U|\|S)([1-9]\d{0,8})|(<[mM]8)(\[(?:[1-9]\d{0,8})?[a-zA-Z]{1,2}\])?")
_ML_DTYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
_MAX_DIMS = 64


class Array:
    """The parts of an array that are sent; `raw` has the bytes in row-major order."""

    __slots__ = ("dtype", "library", "raw", "shape")

    def __init__(self, library: bytes, dtype: str, shape: tuple[int, ...], raw: memoryview) -> None:
        self.library = library
        self.dtype = dtype
        self.shape = shape
        self.raw = raw


def describe(obj: Any) -> Array | None:
    """Describe the object as an Array; None if it is no array. TypeError for unsupported arrays."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    kind = type(obj)
    if numpy is not None and kind is numpy.ndarray:
        return _describe_numpy(obj, NUMPY)
    if numpy is not None and isinstance(obj, numpy.generic):
        array = numpy.asarray(obj)
        if array.dtype.kind in "US" and array[()] != obj:
            raise TypeError("is a NumPy string that ends with a null character, which NumPy's arrays do not keep; pass a str or bytes")
        return _describe_numpy(array, NUMPY_SCALAR)
    if torch is not None and kind in (torch.Tensor, torch.nn.Parameter):
        return _describe_torch(obj)
    if _is_derived(obj, numpy, torch):
        return None
    if hasattr(kind, "__dlpack__") and hasattr(kind, "__array__"):
        return _describe_other(obj)
    return _describe_buffer(obj)


def _is_derived(obj: Any, numpy: Any, torch: Any) -> bool:
    """True if the object's class means more than its numbers, such as a masked array."""
    array = sys.modules.get("array")
    if array is not None and isinstance(obj, array.array):
        return type(obj) is not array.array
    if isinstance(obj, (bytes, bytearray)):
        return True  # so bytes and bytearray are not sent as arrays
    return (numpy is not None and isinstance(obj, numpy.ndarray)) or (torch is not None and isinstance(obj, torch.Tensor))


def _describe_numpy(array: Any, library: bytes) -> Array:
    dtype = array.dtype
    name = dtype.str if dtype.kind in "USmM" else dtype.name
    if not dtype.isnative or not _itemsize(name):
        solution = "convert it to a list or another dtype, or pass serializer='pickle'"
        if not dtype.isnative and _itemsize(dtype.newbyteorder("=").name):
            solution = f"pass x.astype({dtype.name!r})"
        raise TypeError(f"is an array of dtype {dtype.str!r} ({dtype.name}), which serializer='safe' does not take; {solution}")
    packed = array if array.flags.c_contiguous else array.copy(order="C")
    # View as bytes, because NumPy does not export the dtypes of ml_dtypes.
    return Array(library, name, array.shape, PickleBuffer(packed.reshape(-1).view("uint8")).raw())


def _itemsize(name: str) -> int:
    """Return the bytes of an element of a dtype, or 0 if it is unsupported."""
    if name in _DTYPES:
        return _DTYPES[name][0]
    found = _MOVED_DTYPE.fullmatch(name)
    if found is None:
        return 0
    return 8 if found[3] else int(found[2]) * (4 if found[1] == "<U" else 1)


def _describe_torch(tensor: Any) -> Array:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.device.type != "cpu":
        raise TypeError(f"is a tensor on another device: got {tensor.device}, expected cpu")
    if dtype not in _DTYPES or tensor.layout is not sys.modules["torch"].strided:
        raise TypeError(f"is a tensor of {tensor.dtype}, {tensor.layout}, which serializer='safe' does not take")
    packed = tensor.detach().resolve_conj().resolve_neg().contiguous()
    memory = codec.memory_at(packed.data_ptr(), packed.numel() * packed.element_size(), packed)
    return Array(TORCH, dtype, tuple(tensor.shape), PickleBuffer(memory).raw())


def _describe_other(obj: Any) -> Array:
    """Describe an array that NumPy can read, such as JAX's."""
    try:
        import numpy

        array = numpy.asarray(obj)
    except Exception as error:
        raise TypeError(f"is unreadable for NumPy: got a {type(obj).__name__} ({error})") from error
    return _describe_numpy(array, OTHER)


def _describe_buffer(obj: Any) -> Array | None:
    """Describe an object with the buffer protocol: array.array, memoryview, SharedArray, ctypes."""
    try:
        view = memoryview(obj)
    except (TypeError, BufferError):
        return None
    try:
        description = _core._describe_tensor(obj, False)
    except (TypeError, ValueError) as error:
        raise TypeError(f"is an unsupported buffer: got a {type(obj).__name__} ({error})") from error
    raw = PickleBuffer(view).raw() if view.c_contiguous else memoryview(view.tobytes())
    return Array(OTHER, description["dtype"], description["shape"], raw)


def count_bytes(library: bytes, dtype: str, shape: tuple[int, ...]) -> int:
    """Return the size in bytes of an array that a peer describes. ValueError if impossible."""
    if library not in (NUMPY, NUMPY_SCALAR, TORCH, OTHER):
        raise ValueError(f"unknown array library: got {library!r}")
    if not _itemsize(dtype) or len(shape) > _MAX_DIMS or (shape and library == NUMPY_SCALAR):
        raise ValueError(f"invalid array: got dtype {dtype!r} and {len(shape)} dimensions")
    return prod(shape) * _itemsize(dtype)


def make(library: bytes, dtype: str, shape: tuple[int, ...], raw: memoryview) -> Any:
    """Make an array in the memory of `raw`: a torch tensor if one was sent and torch is imported
    here; otherwise a NumPy array if NumPy is installed, or an object of torch or a memoryview."""
    torch = sys.modules.get("torch")
    if library == TORCH and hasattr(torch, dtype):
        return _make_torch(torch, dtype, shape, raw)
    numpy_dtype = _find_numpy_dtype(dtype)
    if numpy_dtype is not None:
        import numpy

        array = numpy.ndarray(shape, numpy_dtype, raw)
        if numpy_dtype.kind == "U" and array.size and numpy.frombuffer(raw, "<u4").max() > sys.maxunicode:
            raise ValueError("an array of strings has an invalid character")
        return array[()] if library == NUMPY_SCALAR else array
    if hasattr(torch, dtype):
        return _make_torch(torch, dtype, shape, raw)
    _, format_code = _DTYPES.get(dtype, (0, None))
    if format_code is None:
        raise _core.DistError(f"received an array of {dtype}: no library for it; install NumPy (with ml_dtypes) or torch")
    flat = raw.cast(format_code)
    # Keep an empty array one-dimensional: cast() cannot make dimensions of size 0.
    return flat.cast("B").cast(format_code, shape) if raw.nbytes else flat


def _make_torch(torch: Any, dtype: str, shape: tuple[int, ...], raw: memoryview) -> Any:
    if raw.nbytes == 0:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    return torch.frombuffer(raw, dtype=getattr(torch, dtype)).reshape(shape)


def _find_numpy_dtype(name: str) -> Any:
    try:
        import numpy

        if name not in _ML_DTYPES:
            return numpy.dtype(name)
        import ml_dtypes
    except ImportError:
        return None
    return numpy.dtype(getattr(ml_dtypes, name))
