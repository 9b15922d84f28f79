"""Types for annotations of what all layers take. dldist.types is their public name."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol, SupportsFloat, TypeAlias, runtime_checkable

from dldist._core import ReduceOp


@runtime_checkable
class SupportsDLPack(Protocol):
    """What exports its memory by DLPack, as the arrays of NumPy, PyTorch, JAX and CuPy do."""

    def __dlpack__(self) -> Any: ...


@runtime_checkable
class _SupportsDLPackDevice(Protocol):
    # The same arrays: NumPy's types give __dlpack__ to those of numbers alone, and not to those of bool.
    def __dlpack_device__(self) -> tuple[Any, int]: ...


class _BufferType(type(Protocol)):  # type: ignore[misc]
    """The type of SupportsBuffer. Python before 3.12 has no `__buffer__` that isinstance() could find."""

    def __instancecheck__(cls, instance: object) -> bool:
        try:
            memoryview(instance).release()  # type: ignore[arg-type]
        except (TypeError, ValueError, BufferError):
            return False
        return True


@runtime_checkable
class SupportsBuffer(Protocol, metaclass=_BufferType):
    """An object with the buffer protocol: array.array, bytearray, memoryview, ctypes; bytes, if nothing is written."""

    def __buffer__(self, flags: int, /) -> memoryview: ...


Tensor: TypeAlias = SupportsDLPack | _SupportsDLPackDevice | SupportsBuffer
"""An array of any library. isinstance(x, Tensor) works. Outputs must be writable; types cannot express this."""

Tensors: TypeAlias = Sequence[Tensor]
"""A list or a tuple of arrays."""

Op: TypeAlias = ReduceOp | str
"""A reduction: dldist.ReduceOp.SUM, or its name in any case, "sum"."""

Timeout: TypeAlias = timedelta | SupportsFloat
"""Seconds, or a timedelta."""
