"""The two sides of a link, which every rank derives from the same exchanged descriptions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NoReturn

from dldist import _core
from dldist.reshard import layouts, plans, streams
from dldist.reshard.layouts import Layout
from dldist.reshard.placements import Sharding
from dldist.world import World


class Sides:
    """The sources, the destinations and their layouts. All ranks must construct it.

    Raises:
        DistMismatchError: The descriptions of the ranks do not match. Raised on all ranks.
    """

    def __init__(
        self, world: World, source: Layout | None, destination: Layout | None, in_place: bool, delta: bool, timeout: float
    ) -> None:
        said = {
            "source": None if source is None else layouts.words_of(source),
            "destination": None if destination is None else layouts.words_of(destination),
            "slots": 1 if in_place else 2,
            "delta": bool(delta),
            "host": min(member.rank for member in world.members if member.is_same_host),
        }
        self._said: list[dict[str, Any]] = world.all_gather_object(said, timeout=timeout)
        self.sources = self._ranks("source")
        self.destinations = self._ranks("destination")
        self.layout = self._agreed("source", self.sources)
        self.wanted = self._agreed("destination", self.destinations)
        differs = layouts.difference(self.layout, self.wanted) if self.layout and self.wanted else None
        if differs is not None:
            _mismatch(f"array {differs}, on the source (ranks {self.sources}) and on the destination (ranks {self.destinations})")
        self.layout = self.layout or self.wanted
        self.slots = {rank: self._said[rank]["slots"] for rank in self.destinations}
        self.deltas = [rank for rank in self.sources if self._said[rank]["delta"]]
        self._hosts = {rank: one["host"] for rank, one in enumerate(self._said)}

    def _ranks(self, side: str) -> list[int]:
        return [rank for rank, one in enumerate(self._said) if one[side] is not None]

    def _agreed(self, side: str, ranks: list[int]) -> Any:
        """Return the layout of a side, or None if it has no ranks."""
        if not ranks:
            return None
        first = self._said[ranks[0]][side]
        for rank in ranks[1:]:
            if self._said[rank][side] != first:
                theirs = layouts.layout_of(self._said[rank][side])
                what = layouts.difference(layouts.layout_of(first), theirs)
                _mismatch(f"ranks {ranks[0]} and {rank} are of one {side}, and give different layouts: {what or 'placements or meshes differ'}")
        layout = layouts.layout_of(first)
        if layout.size != len(ranks):
            mesh = next(iter(layout.arrays.values())).sharding.mesh
            _mismatch(f"the {side} has a mesh of {mesh}, of {layout.size} ranks, and {len(ranks)} ranks give it: {ranks}")
        return layout

    def is_near(self, one: int, other: int) -> bool:
        """Return True if both ranks are on one host."""
        return bool(self._hosts[one] == self._hosts[other])

    def destination_shapes(self) -> dict[int, dict[str, tuple[int, ...]]]:
        return {rank: self.wanted.local_shapes(number) for number, rank in enumerate(self.destinations)}

    def streams(self, itemsizes: Mapping[str, int]) -> dict[tuple[int, int], streams.Stream]:
        """Return the stream of each pair. The first source also has streams, without blocks, to
        destinations that need no data, to notify them."""
        pieces: dict[tuple[int, int], dict[str, list[plans.Piece]]] = defaultdict(lambda: defaultdict(list))
        if not self.sources or not self.destinations:
            return {}
        for name in self.layout.arrays:
            for piece in self._plan(self.layout.arrays[name].shape, self._sharding(self.layout, name), self._sharding(self.wanted, name)):
                pieces[piece.source, piece.destination][name].append(piece)
        for rank in self.destinations:
            if rank not in self.sources and not any(pair[1] == rank for pair in pieces):
                pieces[self.sources[0], rank] = defaultdict(list)
        found = {}
        for pair in sorted(pieces):
            limit = streams.DELTA_BLOCK_NBYTES if pair[0] in self.deltas else streams.BLOCK_NBYTES
            found[pair] = streams.Stream(pieces[pair], itemsizes, limit)
        return found

    def _sharding(self, layout: Layout, name: str) -> Sharding:
        return layout.arrays[name].sharding

    def _plan(self, shape: tuple[int, ...], source: Sharding, destination: Sharding) -> tuple[plans.Piece, ...]:
        made = plans.plan(
            shape, source, destination, source_ranks=self.sources, destination_ranks=self.destinations, hosts=self._hosts
        )
        return made.pieces


def _mismatch(text: str) -> NoReturn:
    raise _core.DistMismatchError(f"reshard.Link: {text}; nothing has been made, give layouts that fit")
