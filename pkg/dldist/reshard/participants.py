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


class Participants:
    """The sources, the destinations and their layouts. All ranks must construct it.

    Raises:
        DistMismatchError: The descriptions of the ranks do not match. Raised on all ranks.
    """

    def __init__(
        self, world: World, source: Layout | None, destination: Layout | None, in_place: bool, delta: bool, timeout: float
    ) -> None:
        description = {
            "source": None if source is None else layouts.layout_to_dict(source),
            "destination": None if destination is None else layouts.layout_to_dict(destination),
            "slots": 1 if in_place else 2,
            "delta": bool(delta),
            "host": min(member.rank for member in world.members if member.is_same_host),
        }
        self._descriptions: list[dict[str, Any]] = world.all_gather_object(description, timeout=timeout)
        self.sources = self._ranks("source")
        self.destinations = self._ranks("destination")
        self.layout = self._common_layout("source", self.sources)
        self.destination_layout = self._common_layout("destination", self.destinations)
        mismatch = layouts.difference(self.layout, self.destination_layout) if self.layout and self.destination_layout else None
        if mismatch is not None:
            _mismatch(f"array {mismatch}, on the source (ranks {self.sources}) and on the destination (ranks {self.destinations})")
        self.layout = self.layout or self.destination_layout
        self.slots = {rank: self._descriptions[rank]["slots"] for rank in self.destinations}
        self.deltas = [rank for rank in self.sources if self._descriptions[rank]["delta"]]
        self._hosts = {rank: item["host"] for rank, item in enumerate(self._descriptions)}

    def _ranks(self, side: str) -> list[int]:
        return [rank for rank, description in enumerate(self._descriptions) if description[side] is not None]

    def _common_layout(self, side: str, ranks: list[int]) -> Any:
        """Return the layout of a side of the link, or None if the side has no ranks."""
        if not ranks:
            return None
        first_description = self._descriptions[ranks[0]][side]
        for rank in ranks[1:]:
            if self._descriptions[rank][side] != first_description:
                other_layout = layouts.layout_from_dict(self._descriptions[rank][side])
                text = layouts.difference(layouts.layout_from_dict(first_description), other_layout)
                _mismatch(f"layouts of the {side} differ between ranks {ranks[0]} and {rank}: {text or 'placements or meshes differ'}")
        layout = layouts.layout_from_dict(first_description)
        if layout.size != len(ranks):
            mesh = next(iter(layout.arrays.values())).sharding.mesh
            _mismatch(f"the {side} has another number of ranks: got {len(ranks)} ({ranks}), expected {layout.size} for the mesh {mesh}")
        return layout

    def are_on_same_host(self, rank: int, other_rank: int) -> bool:
        """Return True if both ranks are on one host."""
        return bool(self._hosts[rank] == self._hosts[other_rank])

    def destination_shapes(self) -> dict[int, dict[str, tuple[int, ...]]]:
        return {rank: self.destination_layout.local_shapes(number) for number, rank in enumerate(self.destinations)}

    def streams(self, itemsizes: Mapping[str, int]) -> dict[tuple[int, int], streams.Stream]:
        """Return the stream of each pair. The first source also has streams, without blocks, to
        destinations that need no data, to notify them."""
        pieces: dict[tuple[int, int], dict[str, list[plans.Piece]]] = defaultdict(lambda: defaultdict(list))
        if not self.sources or not self.destinations:
            return {}
        for name in self.layout.arrays:
            for piece in self._plan(self.layout.arrays[name].shape, self._sharding(self.layout, name), self._sharding(self.destination_layout, name)):
                pieces[piece.source, piece.destination][name].append(piece)
        for rank in self.destinations:
            if rank not in self.sources and not any(pair[1] == rank for pair in pieces):
                pieces[self.sources[0], rank] = defaultdict(list)
        streams_by_pair = {}
        for pair in sorted(pieces):
            limit = streams.DELTA_BLOCK_NBYTES if pair[0] in self.deltas else streams.BLOCK_NBYTES
            streams_by_pair[pair] = streams.Stream(pieces[pair], itemsizes, limit)
        return streams_by_pair

    def _sharding(self, layout: Layout, name: str) -> Sharding:
        return layout.arrays[name].sharding

    def _plan(self, shape: tuple[int, ...], source: Sharding, destination: Sharding) -> tuple[plans.Piece, ...]:
        plan = plans.plan(
            shape, source, destination, source_ranks=self.sources, destination_ranks=self.destinations, hosts=self._hosts
        )
        return plan.pieces


def _mismatch(text: str) -> NoReturn:
    raise _core.DistMismatchError(f"reshard.Link: {text}; no link was created")
