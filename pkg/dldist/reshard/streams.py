"""Streams: the blocks sent from one source to one destination, by shared memory or messages.

Both sides cut arrays into the same blocks, so only blocks and a flag byte per block (sent or not)
are transferred. Between hosts, blocks are combined into batches (one message each), so that many
small arrays need few messages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from dldist import _core
from dldist.reshard.memory import split_box
from dldist.reshard.plans import Piece

DELTA_BLOCK_NBYTES = 64 << 10
BLOCK_NBYTES = 4 << 20
BATCH_NBYTES = 8 << 20


class Block:
    """A box of an array, as slices of the source's and the destination's local arrays."""

    __slots__ = ("name", "source", "destination", "nbytes")

    def __init__(self, name: str, source: tuple[slice, ...], destination: tuple[slice, ...], nbytes: int) -> None:
        self.name, self.source, self.destination, self.nbytes = name, source, destination, nbytes


class Stream:
    """The data that one rank sends to another, as pieces and as blocks.

    Args:
        pieces: The pieces that the source sends, by array name.
        itemsizes: The element size, by array name.
        limit: The maximum size of a block in bytes.
    """

    def __init__(self, pieces: Mapping[str, Sequence[Piece]], itemsizes: Mapping[str, int], limit: int) -> None:
        self.pieces = pieces
        self.nbytes = sum(piece.size * itemsizes[name] for name, array_pieces in pieces.items() for piece in array_pieces)
        self._itemsizes, self._limit = itemsizes, limit
        self._blocks: list[Block] | None = None

    @property
    def blocks(self) -> list[Block]:
        if self._blocks is None:
            self._blocks = [block for name, pieces in self.pieces.items() for piece in pieces for block in self._cut(name, piece)]
        return self._blocks

    def _cut(self, name: str, piece: Piece) -> Iterator[Block]:
        size = self._itemsizes[name]
        sources = split_box(piece.source_start, piece.shape, size, self._limit)
        destinations = split_box(piece.destination_start, piece.shape, size, self._limit)
        for source, destination in zip(sources, destinations):
            nbytes = size
            for extent in source:
                nbytes *= extent.stop - extent.start
            yield Block(name, source, destination, nbytes)

    def copy(self, sources: Mapping[str, Any], destinations: Mapping[str, Any]) -> int:
        """Copy all pieces. Return the number of bytes."""
        for name, pieces in self.pieces.items():
            for piece in pieces:
                copy_box(destinations[name], piece.destination_box, sources[name], piece.source_box)
        return self.nbytes

    def copy_blocks(self, sources: Mapping[str, Any], destinations: Mapping[str, Any], selected: bytearray) -> int:
        """Copy the blocks whose byte in `selected` is 1. Return the number of bytes."""
        nbytes = 0
        for block, is_selected in zip(self.blocks, selected):
            if is_selected:
                copy_box(destinations[block.name], block.destination, sources[block.name], block.source)
                nbytes += block.nbytes
        return nbytes

    def batches(self, selected: bytearray) -> Iterator[list[Block]]:
        """Yield the blocks whose byte in `selected` is 1, grouped into batches."""
        batch: list[Block] = []
        nbytes = 0
        for block, is_selected in zip(self.blocks, selected):
            if not is_selected:
                continue
            if batch and nbytes + block.nbytes > BATCH_NBYTES:
                yield batch
                batch, nbytes = [], 0
            batch.append(block)
            nbytes += block.nbytes
        if batch:
            yield batch

    @property
    def batch_nbytes(self) -> int:
        """The size of the largest batch in bytes."""
        return max((sum(block.nbytes for block in batch) for batch in self.batches(bytearray(b"\1" * len(self.blocks)))), default=0)


def view(array: Any, box: tuple[slice, ...]) -> Any:
    """Return a view of a box in an array. The view is an array even if it has no dimensions."""
    return array[(*box, ...)]


def copy_box(destination: Any, destination_box: tuple[slice, ...], source: Any, source_box: tuple[slice, ...]) -> None:
    """Copy a box of a raw view. Large contiguous copies release the GIL."""
    target, values = view(destination, destination_box), view(source, source_box)
    if target.size and target.itemsize <= 8 and target.flags.c_contiguous and values.flags.c_contiguous:
        _core._copy_tensor(target, values)
    else:
        target[...] = values


def pack(batch: Sequence[Block], sources: Mapping[str, Any], staging: Any) -> Any:
    """Copy blocks contiguously into `staging`; return the part of it that they fill."""
    offset = 0
    for block in batch:
        values = view(sources[block.name], block.source)
        staging[offset : offset + block.nbytes].view(values.dtype).reshape(values.shape)[...] = values
        offset += block.nbytes
    return staging[:offset]


def unpack(batch: Sequence[Block], staging: Any, destinations: Mapping[str, Any]) -> None:
    """Copy blocks from `staging` to the destinations' arrays."""
    offset = 0
    for block in batch:
        values = view(destinations[block.name], block.destination)
        values[...] = staging[offset : offset + block.nbytes].view(values.dtype).reshape(values.shape)
        offset += block.nbytes


@cache
def _keys() -> bytes:
    """Return this process's two random keys for digests, which must never leave the process."""
    return os.urandom(DELTA_BLOCK_NBYTES)


class Changes:
    """Tracks which blocks have changed since the last write to each slot.

    128-bit digests miss a block's change with probability at most 2^-64: see csrc/kernels/digest.h.
    """

    def __init__(self) -> None:
        self._digests: dict[int, list[bytes]] = {}
        self._new_digests: list[bytes] = []

    def select(self, stream: Stream, sources: Mapping[str, Any], slot: int) -> bytearray:
        """Return a byte per block: 1 to write it. The slot's content is unknown until commit()."""
        import numpy

        keys = _keys()
        self._new_digests = [
            _core._digest(numpy.ascontiguousarray(view(sources[block.name], block.source)).reshape(-1).view("u1"), keys)
            for block in stream.blocks
        ]
        previous = self._digests.pop(slot, None)
        if previous is None:
            return bytearray(b"\1" * len(self._new_digests))
        return bytearray(digest != previous_digest for digest, previous_digest in zip(self._new_digests, previous))

    def commit(self, slot: int) -> None:
        """Record that the slot now holds the blocks that were passed to select()."""
        self._digests[slot] = self._new_digests
