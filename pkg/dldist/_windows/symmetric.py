"""SymmetricMemory: memory of a group's ranks, and the handles that rendezvous() returns."""

from __future__ import annotations

from _weakref import ref  # weakref.ref, without the slow import of weakref
from array import array
from typing import TypeVar

from dldist import _core
from dldist._base.array_types import Tensor

TensorT = TypeVar("TensorT", bound=Tensor)

signal_pad_size = 2048
"""Bytes of each rank's signal pad, set by symmetric_memory.set_signal_pad_size()."""

_handles: list[ref[SymmetricMemory]] = []
"""Weak references to the results of rendezvous(), newest last."""


class SymmetricMemory(_core.Window):
    """Memory of all ranks of a group; the result of rendezvous().

    If rendezvous() was passed a part of an array from empty(), which starts at byte `offset`, other
    ranks can access the whole array.
    """

    @property
    def buffer_ptrs_dev(self) -> int:
        """The address of an array of the pointers in `buffer_ptrs`, for native code."""
        return self._address_of_array("_buffers", self.buffer_ptrs)

    @property
    def signal_pad_ptrs_dev(self) -> int:
        """The address of an array of the pointers in `signal_pad_ptrs`, for native code."""
        return self._address_of_array("_pads", self.signal_pad_ptrs)

    def _address_of_array(self, name: str, addresses: list[int]) -> int:
        pointers: array[int] = self.__dict__.setdefault(name, array("Q", addresses))
        return pointers.buffer_info()[0]

    @property
    def multicast_ptr(self) -> int:
        """Always 0, because CPU memory has no multicast."""
        return 0

    @property
    def device(self) -> str:
        return "cpu"

    @staticmethod
    def stream_write_value32(input: TensorT, offset: int, val: int) -> TensorT:
        """Write a 32-bit number. Ranks that read it also see everything written before it."""
        _core._write32("stream_write_value32", input, offset, val, 1)
        return input

    @staticmethod
    def memset32(input: TensorT, offset: int, val: int, count: int = 1) -> TensorT:
        """Write a 32-bit number `count` times, with the memory order of stream_write_value32."""
        _core._write32("memset32", input, offset, val, count)
        return input


def rendezvous(group: _core.Group, tensor: Tensor | None) -> SymmetricMemory:
    """Make the ranks' tensors accessible to each other. All ranks of the group must call this."""
    memory = SymmetricMemory(group, tensor, is_whole=True, pad_size=signal_pad_size)
    _handles[:] = [handle for handle in _handles if handle() is not None] + [ref(memory)]
    return memory


def handle_of(group: _core.Group, address: int, nbytes: int) -> tuple[SymmetricMemory, int]:
    """Find a group's newest handle that has this rank's memory, and the offset in its array."""
    for handle in reversed(_handles):
        memory = handle()
        if memory is not None and memory.group is group:
            offset = address - memory.buffer_ptrs[memory.rank]
            if 0 <= offset <= memory.buffer_size - nbytes:
                return memory, offset
    raise _core.DistArgumentError("get(): argument 'src' has no handle of this group: got other memory, expected a tensor of rendezvous()")
