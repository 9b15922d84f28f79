"""Types for annotations, used by all layers. The public module is dldist.types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Literal, Protocol, SupportsFloat, TypeAlias, runtime_checkable

from dldist._core import ReduceOp


@runtime_checkable
class SupportsDLPack(Protocol):
    """An object that exports its memory by DLPack, such as an array of NumPy, PyTorch or JAX."""

    def __dlpack__(self) -> Any: ...


@runtime_checkable
class _SupportsDLPackDevice(Protocol):
    # Also matches NumPy's bool arrays and scalars, which lack __dlpack__ in NumPy's type stubs.
    def __dlpack_device__(self) -> tuple[Any, int]: ...


class _BufferType(type(Protocol)):  # type: ignore[misc]
    """The metaclass of SupportsBuffer, as Python before 3.12 has no __buffer__ to check for."""

    def __instancecheck__(cls, instance: object) -> bool:
        try:
            memoryview(instance).release()  # type: ignore[arg-type]
        except (TypeError, ValueError, BufferError):
            return False
        return True


@runtime_checkable
class SupportsBuffer(Protocol, metaclass=_BufferType):
    """An object with the buffer protocol: array.array, bytearray, memoryview, ctypes, bytes."""

    def __buffer__(self, flags: int, /) -> memoryview: ...


Tensor: TypeAlias = SupportsDLPack | _SupportsDLPackDevice | SupportsBuffer
"""An array of any library; isinstance(x, Tensor) works. An output array must also be writable."""

Tensors: TypeAlias = Sequence[Tensor]
"""A list or a tuple of arrays."""

OpName: TypeAlias = Literal[
    "sum", "avg", "mean", "product", "prod", "min", "max", "band", "bor", "bxor",
    "SUM", "AVG", "MEAN", "PRODUCT", "PROD", "MIN", "MAX", "BAND", "BOR", "BXOR",
]  # fmt: skip
"""A name of a reduction. At run time, any case is accepted."""

Op: TypeAlias = ReduceOp | OpName | Callable[..., Any]
"""A reduction: a member such as dldist.ReduceOp.SUM, its name such as "sum", or a function such as
numpy.add or max; in dldist.functional, any function of two arrays, and "land", "minloc" and more."""

Timeout: TypeAlias = timedelta | SupportsFloat
"""Seconds, or a timedelta."""
