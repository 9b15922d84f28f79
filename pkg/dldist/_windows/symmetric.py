"""SymmetricMemory: memory of every rank, and the handles that rendezvous() has returned."""

from __future__ import annotations

from _weakref import ref  # as weakref's, which imports more
from array import array
from typing import TypeVar

from dldist import _core
from dldist._base.array_types import Tensor

TensorT = TypeVar("TensorT", bound=Tensor)

signal_pad_size = 2048
"""Bytes of signals of each rank, in memory that rendezvous() makes; symmetric_memory.set_signal_pad_size() sets it."""

_handles: list[ref[SymmetricMemory]] = []
"""The objects that rendezvous() has returned and that are still referenced; the newest last."""


class SymmetricMemory(_core.Window):
    """Memory of all ranks of a group: what rendezvous() gives.

    What a rank sees of another is all of the array that empty() has made, also where the tensor of the rendezvous is a part of
    it, which begins at byte `offset`.
    """

    @property
    def buffer_ptrs_dev(self) -> int:
        """The address of an array of pointers, `buffer_ptrs`, for code that is not Python."""
        return self._array_of("_buffers", self.buffer_ptrs)

    @property
    def signal_pad_ptrs_dev(self) -> int:
        """The same of `signal_pad_ptrs`."""
        return self._array_of("_pads", self.signal_pad_ptrs)

    def _array_of(self, name: str, addresses: list[int]) -> int:
        pointers: array[int] = self.__dict__.setdefault(name, array("Q", addresses))
        return pointers.buffer_info()[0]

    @property
    def multicast_ptr(self) -> int:
        """0: memory of the CPU has no multicast."""
        return 0

    @property
    def device(self) -> str:
        return "cpu"

    @staticmethod
    def stream_write_value32(input: TensorT, offset: int, val: int) -> TensorT:
        """Write one number of 32 bits, which others see after everything that was written before."""
        _core._write32("stream_write_value32", input, offset, val, 1)
        return input

    @staticmethod
    def memset32(input: TensorT, offset: int, val: int, count: int = 1) -> TensorT:
        """Write `count` times the same number of 32 bits, as stream_write_value32 does."""
        _core._write32("memset32", input, offset, val, count)
        return input


def rendezvous(group: _core.Group, tensor: Tensor | None) -> SymmetricMemory:
    """Make the ranks' tensors reachable. All ranks of the group call it."""
    memory = SymmetricMemory(group, tensor, is_whole=True, pad_size=signal_pad_size)
    _handles[:] = [each for each in _handles if each() is not None] + [ref(memory)]
    return memory


def handle_of(group: _core.Group, address: int, nbytes: int) -> tuple[SymmetricMemory, int]:
    """The newest handle of a group for memory of this rank, and the byte of its array where that begins."""
    for each in reversed(_handles):
        memory = each()
        if memory is not None and memory.group is group:
            place = address - memory.buffer_ptrs[memory.rank]
            if 0 <= place <= memory.buffer_size - nbytes:
                return memory, place
    raise _core.DistArgumentError("get(): argument 'src' is in no memory that rendezvous() with this group gave a handle for")
