"""Views of arrays as NumPy integers, and the destinations' memory, which sources on the host write."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dldist import _core
from dldist.reshard.layouts import dtype_name
from dldist.symmetric_memory import SymmetricMemory
from dldist.world import World

_RAW_DTYPES = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}
ALIGNMENT = 64


def raw_view(x: Any) -> Any:
    """Return a NumPy view of any library's array, with a NumPy dtype of the same element size."""
    import numpy

    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        resolved = x.detach().resolve_conj().resolve_neg()
        size = resolved.element_size()
        by_size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        return (resolved.view(by_size[size]) if size in by_size else resolved).numpy().view(_RAW_DTYPES[size])
    if isinstance(x, _core.SharedArray):
        count = math.prod(x.shape)
        return shared_view(x, x.shape, x.nbytes // count if count else 1)
    array = numpy.asarray(x)
    return array.view(_RAW_DTYPES[array.itemsize])


def shared_view(memory: Any, shape: Sequence[int], itemsize: int) -> Any:
    """Return a NumPy view of memory with the buffer protocol; the dtype has this itemsize."""
    import numpy

    if not math.prod(shape):
        return numpy.empty(shape, _RAW_DTYPES[itemsize])
    return numpy.frombuffer(memoryview(memory).cast("B"), _RAW_DTYPES[itemsize]).reshape(shape)


def dtype_of(x: Any) -> str:
    """Return the name of an array's dtype."""
    return dtype_name(x.dtype) if hasattr(x, "dtype") else str(_core._describe_tensor(x, False)["dtype"])


def split_box(start: Sequence[int], shape: Sequence[int], itemsize: int, limit: int) -> Iterator[tuple[slice, ...]]:
    """Split a box into boxes of at most `limit` bytes, in row-major order."""
    dim = next((d for d, length in enumerate(shape) if length > 1), None)
    nbytes = math.prod(shape) * itemsize
    if dim is None or nbytes <= limit:
        yield tuple(slice(first, first + length) for first, length in zip(start, shape))
        return
    part_length = max(limit * shape[dim] // nbytes, 1)
    for begin in range(0, shape[dim], part_length):
        part_start = (*start[:dim], start[dim] + begin, *start[dim + 1 :])
        part_shape = (*shape[:dim], min(part_length, shape[dim] - begin), *shape[dim + 1 :])
        yield from split_box(part_start, part_shape, itemsize, limit)


class ArrayOffsets:
    """For each local array, its offset in its dtype's memory, and each such memory's length."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, str]) -> None:
        self.lengths = dict.fromkeys(sorted(set(dtypes.values())), 0)
        self.starts: dict[str, int] = {}
        for name, shape in shapes.items():
            self.starts[name] = self.lengths[dtypes[name]]
            self.lengths[dtypes[name]] += -(-math.prod(shape) // ALIGNMENT) * ALIGNMENT


class SlotMemory:
    """The slots of all destinations, one shared array per dtype. All ranks must construct it."""

    def __init__(
        self, world: World, dtypes: Mapping[str, str], shapes: Mapping[int, Mapping[str, tuple[int, ...]]], slots: Mapping[int, int]
    ) -> None:
        self._dtypes, self._shapes = dtypes, shapes
        self._offsets = {rank: ArrayOffsets(its, dtypes) for rank, its in shapes.items()}
        self.itemsizes = {dtype: _core._describe_tensor(world.empty(1, dtype), False)["itemsize"] for dtype in set(dtypes.values())}
        self._local_memory: dict[str, _core.SharedArray] = {}
        self._windows: dict[str, SymmetricMemory] = {}
        for dtype in sorted(self.itemsizes):
            length = slots.get(world.rank, 0) * (self._offsets[world.rank].lengths[dtype] if world.rank in shapes else 0)
            if length:
                self._local_memory[dtype] = world.empty(length, dtype)
            self._windows[dtype] = world.rendezvous(self._local_memory.get(dtype))
        self._world, self._slots = world, slots

    def array(self, name: str, slot: int) -> _core.SharedArray:
        """Return a local array of this rank in a slot."""
        rank, dtype = self._world.rank, self._dtypes[name]
        shape = self._shapes[rank][name]
        if not math.prod(shape):
            return self._world.empty(shape, dtype)
        return self._local_memory[dtype].part(self._start(rank, name, slot), shape)

    def slot_views(self, rank: int, slot: int) -> dict[str, Any] | None:
        """Return a rank's local arrays in a slot as raw views, or None if this rank cannot map them."""
        views: dict[str, Any] = {}
        memory_views: dict[str, Any] = {}
        for name, shape in self._shapes[rank].items():
            dtype, size = self._dtypes[name], math.prod(shape)
            itemsize = self.itemsizes[dtype]
            if not size:
                views[name] = shared_view(None, shape, itemsize)
                continue
            if dtype not in memory_views:
                length = self._slots[rank] * self._offsets[rank].lengths[dtype]
                if not self._windows[dtype].buffer_ptrs[rank]:
                    return None
                memory_views[dtype] = shared_view(self._windows[dtype].get_buffer(rank, [length * itemsize], "uint8"), [length], itemsize)
            start = self._start(rank, name, slot)
            views[name] = memory_views[dtype][start : start + size].reshape(shape)
        return views

    def _start(self, rank: int, name: str, slot: int) -> int:
        offsets = self._offsets[rank]
        return slot * offsets.lengths[self._dtypes[name]] + offsets.starts[name]
