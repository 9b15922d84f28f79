"""Types for annotations: what may be given as a tensor, a group, a reduction, a time-out.

    from dldist.types import AnyGroup

    def step(gradient: dldist.Tensor, group: AnyGroup | None = None) -> None: ...

This module imports typing, which `import dldist` does not; dldist.Tensor is found here when somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol, SupportsFloat, TypeAlias, runtime_checkable

from dldist._backends.backend_base import Backend
from dldist._backends.process_group import ProcessGroup
from dldist._core import Group, ReduceOp

__all__ = ["AnyGroup", "Op", "SupportsBuffer", "SupportsDLPack", "Tensor", "Tensors", "Timeout"]


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

AnyGroup: TypeAlias = Group | ProcessGroup | Backend | int
"""A World or Group, a group of new_group, or a backend by itself. The only int is what new_group gives to those who are not in
the group, GroupMember.NON_GROUP_MEMBER."""
