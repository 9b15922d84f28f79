"""Placements: the distribution of an array over a mesh of ranks, with DTensor's terms.

Each mesh axis has a placement. Shard(dim) cuts a dimension by torch.chunk's rule: parts may be
uneven or empty. Replicate() gives all ranks along the axis the same data. If several axes cut one
dimension, each axis divides the parts of the preceding axis. Placements of torch.distributed.tensor
are also accepted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from dldist import _core
from dldist._base import argument_names

Runs: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Shard:
    """Ranks along a mesh axis have consecutive parts of a dimension.

    Args:
        dim: The dimension of the array; negative numbers count from the end.

    Example:
        >>> from dldist.reshard import Shard
        >>> Shard(0)
        Shard(dim=0)
    """

    dim: int


@dataclass(frozen=True)
class StridedShard:
    """Ranks along a mesh axis divide each of `split_factor` parts of a dimension (_StridedShard).

    Args:
        dim: The dimension of the array; negative numbers count from the end.
        split_factor: The number of parts; each rank has a share of every part.

    Example:
        >>> from dldist.reshard import Sharding, StridedShard
        >>> Sharding((2,), [StridedShard(0, split_factor=2)]).runs((8,), 0)   # 0, 1 and 4, 5
        (((0, 2), (4, 2)),)
    """

    dim: int
    split_factor: int


@dataclass(frozen=True)
class Replicate:
    """All ranks along a mesh axis have the same data.

    Example:
        >>> from dldist.reshard import Replicate
        >>> Replicate()
        Replicate()
    """


Placement: TypeAlias = Shard | StridedShard | Replicate


@dataclass(frozen=True, init=False)
class Sharding:
    """A mesh of ranks, numbered in row-major order, and a placement for each mesh axis.

    Args:
        mesh: The lengths of the axes, such as (3,) or (2, 4); a number is a mesh of one axis.
        placements: One per axis, from this module or torch.distributed.tensor.

    Raises:
        ValueError: The numbers of placements and axes differ, or an axis has no ranks.
        TypeError: A placement is of an unknown type, or cannot be resharded, such as Partial.

    Example:
        >>> from dldist.reshard import Replicate, Shard, Sharding
        >>> Sharding((2, 2), [Shard(0), Replicate()]).size
        4
    """

    mesh: tuple[int, ...]
    placements: tuple[Placement, ...]

    def __init__(self, mesh: int | Sequence[int], placements: Sequence[Any]) -> None:
        axes = (mesh,) if isinstance(mesh, int) else argument_names.integers("mesh", mesh)
        if not axes or min(axes) < 1:
            raise _core.DistArgumentError(f"{argument_names.title('mesh')} is not valid: got {axes}, expected axes of 1 rank or more")
        if len(placements) != len(axes):
            raise _core.DistArgumentError(f"Sharding(): argument 'placements' has another length: got {len(placements)}, expected {len(axes)}")
        object.__setattr__(self, "mesh", axes)
        object.__setattr__(self, "placements", tuple(_placement_of(placement) for placement in placements))

    @property
    def size(self) -> int:
        """The number of ranks in the mesh."""
        return math.prod(self.mesh)

    def runs(self, shape: Sequence[int], rank: int) -> tuple[Runs, ...]:
        """Return, by dimension, a rank's runs of indices in a global array: (first index, length),
        in local order.

        Args:
            shape: The shape of the global array.
            rank: The rank's number in the mesh.

        Raises:
            ValueError: A placement's dimension or the rank does not exist.

        Example:
            >>> from dldist.reshard import Shard, Sharding
            >>> Sharding(3, [Shard(0)]).runs((10, 4), 2)
            (((8, 2),), ((0, 4),))
        """
        runs: list[Runs] = [((0, length),) for length in argument_names.integers("shape", shape)]
        for length, coordinate, placement in zip(self.mesh, self._coordinates(rank), self.placements):
            if isinstance(placement, Replicate):
                continue
            dim = self._dim(placement, len(runs))
            runs[dim] = _cut(runs[dim], length, coordinate, getattr(placement, "split_factor", 1))
        return tuple(runs)

    def local_shape(self, shape: Sequence[int], rank: int) -> tuple[int, ...]:
        """Return the shape of a rank's local array.

        Args:
            shape: The shape of the global array.
            rank: The rank's number in the mesh.

        Example:
            >>> from dldist.reshard import Shard, Sharding
            >>> Sharding(3, [Shard(0)]).local_shape((10, 4), 2)
            (2, 4)
        """
        return tuple(sum(length for _, length in runs) for runs in self.runs(shape, rank))

    def _coordinates(self, rank: int) -> list[int]:
        if not 0 <= rank < self.size:
            where = argument_names.title("rank")
            raise _core.DistArgumentError(f"{where} is out of range: got {rank}, expected 0 to {self.size - 1} for a mesh of {self.mesh}")
        coordinates = []
        for length in reversed(self.mesh):
            rank, coordinate = divmod(rank, length)
            coordinates.append(coordinate)
        return coordinates[::-1]

    def _dim(self, placement: Shard | StridedShard, ndim: int) -> int:
        if not -ndim <= placement.dim < ndim:
            raise _core.DistArgumentError(f"the dimension of {placement} is out of range: got {placement.dim}, expected {-ndim} to {ndim - 1}")
        return placement.dim % ndim


def _placement_of(placement: Any) -> Placement:
    if isinstance(placement, (Shard, StridedShard, Replicate)):
        return placement
    if hasattr(placement, "split_factor") and hasattr(placement, "dim"):
        return StridedShard(int(placement.dim), int(placement.split_factor))
    # torch's placements identify themselves through methods.
    if _is_true(placement, "is_replicate"):
        return Replicate()
    if _is_true(placement, "is_shard"):
        return Shard(int(placement.dim))
    raise _core.DistTypeError(f"Sharding(): argument 'placements': got {placement!r}, expected Shard, StridedShard, Replicate; reduce Partial first")


def _is_true(placement: Any, method_name: str) -> bool:
    method = getattr(placement, method_name, None)
    return callable(method) and bool(method())


def chunk(length: int, count: int, index: int) -> tuple[int, int]:
    """Return the first index and the length of part `index` of `count`, by torch.chunk's rule."""
    step = -(-length // count)
    start = min(index * step, length)
    return start, min(step, length - start)


def _cut(runs: Runs, count: int, index: int, split_factor: int) -> Runs:
    """Divide runs into `split_factor` parts, and each part into `count` shares. Return the shares
    with the number `index`."""
    total = sum(length for _, length in runs)
    shares: list[tuple[int, int]] = []
    for part in range(split_factor):
        begin, length = chunk(total, split_factor, part)
        offset, share = chunk(length, count, index)
        shares.extend(_slice(runs, begin + offset, share))
    return tuple(_merge_adjacent(shares))


def _slice(runs: Runs, start: int, length: int) -> list[tuple[int, int]]:
    """Return the elements `start` to `start + length` of the concatenated runs, as runs."""
    result, end = [], start + length
    for first, count in runs:
        begin, stop = max(start, 0), min(end, count)
        if begin < stop:
            result.append((first + begin, stop - begin))
        start, end = start - count, end - count
    return result


def _merge_adjacent(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge adjacent runs."""
    merged: list[tuple[int, int]] = []
    for first, length in runs:
        if merged and sum(merged[-1]) == first:
            merged[-1] = (merged[-1][0], merged[-1][1] + length)
        else:
            merged.append((first, length))
    return merged
