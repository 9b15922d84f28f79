"""Resharding plans: the boxes of indices that each rank sends, from shapes, placements and hosts.

Source ranks with the same part of the array form a team. Every element belongs to one team's part,
so the elements that a destination lacks are divided within teams:

- Each element that a destination needs and its process lacks is sent exactly once (the minimum).
- A team's elements are sent in equal shares, cut along a box's longest side. If hosts are not
  distinguished, a sender's load exceeds its team's mean by at most one slab: the elements of a box
  that have the same index in the longest side (two cuts of half a slab).
- Members on the destination's host are preferred, which may unbalance a team. Both the elements for
  these members and the rest, for all members, are divided by the rule above, least loaded first.

The cost and the size of a plan grow with the number of boxes, not of elements.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import TypeAlias

from dldist import _core
from dldist._base import argument_names
from dldist.reshard.placements import Sharding

Range: TypeAlias = tuple[int, int, int]  # start at source, start at destination, length

CACHE_SIZE = 4096


@dataclass(frozen=True)
class Piece:
    """A box that one rank has and another needs, with its position in both local arrays.

    Example:
        >>> from dldist.reshard import Shard, Sharding, plan
        >>> plan((4,), Sharding(1, [Shard(0)]), Sharding(2, [Shard(0)])).pieces[1]
        Piece(source=0, destination=2, source_start=(2,), destination_start=(0,), shape=(2,))
    """

    source: int
    destination: int
    source_start: tuple[int, ...]
    destination_start: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of elements in the box."""
        return math.prod(self.shape)

    @property
    def source_box(self) -> tuple[slice, ...]:
        """The slices that select the box in the source's local array."""
        return box(self.source_start, self.shape)

    @property
    def destination_box(self) -> tuple[slice, ...]:
        """The slices that select the box in the destination's local array."""
        return box(self.destination_start, self.shape)


def box(start: Sequence[int], shape: Sequence[int]) -> tuple[slice, ...]:
    """Return the slices that select a box in an array."""
    return tuple(slice(first, first + length) for first, length in zip(start, shape))


@dataclass(frozen=True)
class ReshardPlan:
    """The result of plan(): pieces that fill each element of the destinations' arrays once.

    Example:
        >>> from dldist.reshard import Replicate, Shard, Sharding, plan
        >>> plan((6,), Sharding(3, [Shard(0)]), Sharding(2, [Replicate()])).sent_by(0)
        4
    """

    pieces: tuple[Piece, ...]
    """All pieces, sorted by destination. Ranks are as passed to plan()."""

    def between(self, source: int, destination: int) -> list[Piece]:
        """Return the pieces that one rank sends to another, or that it copies if both are the same.
        The order is the same on both ranks.

        Args:
            source: The sending rank.
            destination: The receiving rank.
        """
        return [piece for piece in self.pieces if (piece.source, piece.destination) == (source, destination)]

    def sent_by(self, rank: int) -> int:
        """Return the number of elements that a rank sends to other ranks.

        Args:
            rank: The rank of the source.
        """
        return sum(piece.size for piece in self.pieces if piece.source == rank != piece.destination)

    @property
    def moved(self) -> int:
        """The number of elements sent between different ranks."""
        return sum(piece.size for piece in self.pieces if piece.source != piece.destination)


def plan(
    shape: Sequence[int],
    source: Sharding,
    destination: Sharding,
    *,
    source_ranks: Sequence[int] | None = None,
    destination_ranks: Sequence[int] | None = None,
    hosts: Mapping[int, Hashable] | None = None,
) -> ReshardPlan:
    """Compute the ReshardPlan: the boxes that each source rank sends to each destination rank.

    Plans are cached.

    Args:
        shape: The shape of the global array.
        source: The sharding on the source.
        destination: The sharding on the destination.
        source_ranks: The ranks of the source's mesh. None means 0, 1, ...
        destination_ranks: The ranks of the destination's mesh. None means the numbers after the
            source's. A rank in both meshes is one process, which sends nothing to itself.
        hosts: The host of each rank; ranks without an entry are taken to be on one host.

    Raises:
        ValueError: Ranks repeat or do not match the mesh, or a placement is invalid for the shape.

    Example:
        >>> from dldist.reshard import Shard, Sharding, plan
        >>> plan((4, 6), Sharding(2, [Shard(0)]), Sharding(3, [Shard(1)])).moved
        24
    """
    source_numbers = range(source.size) if source_ranks is None else source_ranks
    sources = _check_ranks("source", source_numbers, source)
    start = max(sources) + 1
    destination_numbers = range(start, start + destination.size) if destination_ranks is None else destination_ranks
    destinations = _check_ranks("destination", destination_numbers, destination)
    host_by_rank = hosts or {}
    rank_hosts = tuple(host_by_rank.get(rank) for rank in (*sources, *destinations))
    return _plan(argument_names.integers("shape", shape), source, destination, sources, destinations, rank_hosts)


def _check_ranks(side: str, ranks: Sequence[int], sharding: Sharding) -> tuple[int, ...]:
    ranks = argument_names.integers(f"{side}_ranks", argument_names.read_ranks(ranks, sharding.size))
    if len(ranks) != sharding.size or len(set(ranks)) != len(ranks):
        raise _core.DistArgumentError(f"plan(): argument '{side}_ranks': got {ranks}, expected {sharding.size} different ranks")
    return ranks


@lru_cache(maxsize=CACHE_SIZE)
def _plan(
    shape: tuple[int, ...],
    source: Sharding,
    destination: Sharding,
    source_ranks: tuple[int, ...],
    destination_ranks: tuple[int, ...],
    rank_hosts: tuple[Hashable, ...],
) -> ReshardPlan:
    hosts = dict(zip((*source_ranks, *destination_ranks), rank_hosts))
    parts = _SourceParts(shape, source, source_ranks)
    pieces: list[Piece] = []
    missing: dict[tuple[int, ...], list[Piece]] = defaultdict(list)  # pieces to send, by team
    for number, rank in enumerate(destination_ranks):
        for team, piece in parts.find_sources(rank, destination.runs(shape, number)):
            if rank in team:
                pieces.append(_with_source(rank, piece))
            else:
                missing[team].append(piece)
    for team, requested in missing.items():
        pieces.extend(_divide_by_host(team, requested, hosts))
    pieces.sort(key=lambda piece: (piece.destination, piece.destination_start))
    return ReshardPlan(tuple(pieces))


class _SourceParts:
    """The parts of the global array, and the team of ranks that have each part."""

    def __init__(self, shape: tuple[int, ...], sharding: Sharding, ranks: tuple[int, ...]) -> None:
        teams: dict[tuple[int, ...], list[int]] = defaultdict(list)
        # For each dimension, a number for each different part.
        self._numbers: list[dict[object, int]] = [{} for _ in shape]
        for number, rank in enumerate(ranks):
            runs = sharding.runs(shape, number)
            teams[tuple(known.setdefault(part, len(known)) for known, part in zip(self._numbers, runs))].append(rank)
        self._teams = {parts: tuple(team) for parts, team in teams.items()}
        self._runs = [sorted(_local_runs(known)) for known in self._numbers]

    def find_sources(self, rank: int, missing: Sequence[Sequence[tuple[int, int]]]) -> Iterator[tuple[tuple[int, ...], Piece]]:
        """Yield boxes that make up the wanted parts, each box with the team that has it."""
        overlaps = [list(self._overlaps(dim, runs)) for dim, runs in enumerate(missing)]
        for choice in product(*overlaps):
            team = self._teams[tuple(part for part, _ in choice)]
            source_start, destination_start, lengths = zip(*(ranges for _, ranges in choice)) if choice else ((), (), ())
            yield team, Piece(team[0], rank, source_start, destination_start, lengths)

    def _overlaps(self, dim: int, missing: Sequence[tuple[int, int]]) -> Iterator[tuple[int, Range]]:
        runs, offset = self._runs[dim], 0
        for first, length in missing:
            index = bisect_right(runs, first, key=lambda run: run[0]) - 1
            while length and index < len(runs) and runs[index][0] < first + length:
                start, count, local, part = runs[index]
                begin, end = max(first, start), min(first + length, start + count)
                if begin < end:
                    yield part, (local + begin - start, offset + begin - first, end - begin)
                index += 1
            offset += length


def _local_runs(parts: Mapping[object, int]) -> Iterator[tuple[int, int, int, int]]:
    """Yield each run of a dimension as (first index, length, local offset, part number)."""
    for runs, number in parts.items():
        local = 0
        for first, length in runs:  # type: ignore[attr-defined]
            if length:
                yield first, length, local, number
            local += length


def _divide_by_host(team: tuple[int, ...], requested: list[Piece], hosts: Mapping[int, Hashable]) -> list[Piece]:
    """Divide boxes, which all members of a team have, among the members."""
    loads = dict.fromkeys(team, 0)
    by_members: dict[tuple[int, ...], list[Piece]] = defaultdict(list)
    for piece in requested:
        local_members = tuple(rank for rank in team if hosts[rank] == hosts[piece.destination])
        by_members[local_members or team].append(piece)
    assigned: list[Piece] = []
    for members in sorted(by_members, key=len):  # smallest sets first
        assigned.extend(_divide_by_load(by_members[members], members, loads))
    return assigned


def _divide_by_load(pieces: list[Piece], members: tuple[int, ...], loads: dict[int, int]) -> Iterator[Piece]:
    """Divide boxes, in order, among members, so that the highest load is as low as possible."""
    ends = _balanced_ends(sum(piece.size for piece in pieces), members, loads)
    end, index = 0, 0
    for piece in pieces:
        begin = end
        remaining: Piece | None = piece
        end += piece.size
        while remaining is not None and index < len(ends) - 1 and ends[index][1] < end:
            head, remaining = _cut(remaining, ends[index][1] - begin)
            index += 1
            if head is not None:
                begin += head.size
                yield _assign(head, ends[index - 1][0], loads)
        if remaining is not None:
            yield _assign(remaining, ends[index][0], loads)


def _balanced_ends(total: int, members: tuple[int, ...], loads: Mapping[int, int]) -> list[tuple[int, int]]:
    """Return the end offset of each member's elements, chosen to minimise the highest load."""
    order = sorted(members, key=lambda rank: loads[rank])
    count, level = len(order), 0
    while count:
        level = -(-(total + sum(loads[rank] for rank in order[:count])) // count)
        if loads[order[count - 1]] <= level:
            break
        count -= 1
    ends, end = [], 0
    for rank in order[:count]:
        end = min(end + level - loads[rank], total)
        ends.append((rank, end))
    return ends


def _cut(piece: Piece, size: int) -> tuple[Piece | None, Piece | None]:
    """Cut a box in two along its longest side; the first part has about `size` elements."""
    dim = max(range(len(piece.shape)), key=lambda d: piece.shape[d], default=None)
    if dim is None:
        return (None, piece) if size <= 0 else (piece, None)
    length = piece.shape[dim]
    slab = piece.size // length
    cut = min(max((2 * size + slab) // (2 * slab), 0), length)
    return _part(piece, dim, 0, cut), _part(piece, dim, cut, length)


def _part(piece: Piece, dim: int, start: int, stop: int) -> Piece | None:
    if start == stop:
        return None
    old_starts = (piece.source_start, piece.destination_start)
    starts = [tuple(first + start * (d == dim) for d, first in enumerate(old)) for old in old_starts]
    shape = tuple(stop - start if d == dim else length for d, length in enumerate(piece.shape))
    return Piece(piece.source, piece.destination, starts[0], starts[1], shape)


def _assign(piece: Piece, rank: int, loads: dict[int, int]) -> Piece:
    loads[rank] += piece.size
    return _with_source(rank, piece)


def _with_source(rank: int, piece: Piece) -> Piece:
    return Piece(rank, piece.destination, piece.source_start, piece.destination_start, piece.shape)
