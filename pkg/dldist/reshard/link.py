"""A link: sharded arrays go from the sources of a world to its destinations, again and again.

A destination has a slot of memory that its program sees, and one that is written to meanwhile (or, in place, one for both). It asks
each of its sources to write (GO: the slot), and each says when it has (DONE: the version). On one host sources write to the slot
itself; to other hosts the blocks go by messages between GO and DONE. Each pair of ranks has a group of its own, so that a rank that
dies ends nothing but what needs it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

from dldist import _core
from dldist._base import arrays
from dldist._base.array_types import Tensor, Timeout
from dldist.reshard import memory
from dldist.reshard.ends import FOREVER, LAST_VERSION, Incoming, Outgoing
from dldist.reshard.layouts import Layout
from dldist.reshard.placements import Sharding
from dldist.reshard.sides import Sides
from dldist.reshard.streams import Stream
from dldist.world import World


@dataclass(frozen=True)
class Pushed:
    """What push() has done.

    Example:
        >>> from dldist.reshard import Pushed
        >>> Pushed(version=3, nbytes=4096, lost=()).version
        3
    """

    version: int
    nbytes: int
    """How many bytes this rank has written to others."""
    lost: tuple[_core.DistPeerLostError, ...]
    """The destinations that have died or cannot go on, now or before: each error has the `rank`, the `host` and the `pid`."""


class Link:
    """Sharded arrays from the sources of a world to its destinations. All ranks of the world make it together.

    A rank gives the layout of the side on which it is, or both. The ranks that give `source` are the source's mesh, in the order of
    their ranks, and so are those that give `destination`.

    Args:
        world: Who takes part. Two worlds that meet make a third one of both.
        source: How the arrays lie that this rank and the other sources push; the same on all of them.
        destination: How they shall lie on this rank and the other destinations; the same on all of them. Names, shapes and dtypes
            are those of the source.
        in_place: Of destinations: write to the memory that the program sees; while receive() runs, it must not be read. Otherwise
            there are two slots, and receive() flips.
        delta: Of sources: send only blocks that have changed since they were last written to that slot.
        timeout: Seconds or a timedelta for making the link and for each call; the world's unless given.

    Raises:
        ValueError: This rank gives no layout.
        DistMismatchError: The layouts do not fit together; on all ranks, and the text names both sides.
        DistTimeoutError, DistPeerLostError: Ranks have not come, or have died meanwhile.

    Example:
        >>> from dldist.reshard import Layout, Link, Shard
        >>> layout = Layout({"w": ((4,), "int8", [Shard(0)])}, mesh=1)
        >>> with World() as world, Link(world, source=layout, destination=layout) as link:
        ...     link.exchange({"w": bytearray(b"abcd")}, version=1)
        ...     bytes(link.arrays["w"])
        1
        b'abcd'
    """

    def __init__(
        self,
        world: World,
        *,
        source: Layout | None = None,
        destination: Layout | None = None,
        in_place: bool = False,
        delta: bool = False,
        timeout: Timeout | None = None,
    ) -> None:
        if source is None and destination is None:
            raise _core.DistArgumentError("Link(): give 'source' or 'destination', or both where this rank is on both sides")
        self._world, self._timeout = world, _seconds(world.timeout if timeout is None else timeout)
        sides = Sides(world, source, destination, in_place, delta, self._timeout)
        self._layout: Layout = sides.layout
        self._source_number = sides.sources.index(world.rank) if source is not None else None
        self.is_source, self.is_destination = source is not None, destination is not None
        dtypes = {name: spec.dtype for name, spec in sides.layout.arrays.items()}
        self._memory = memory.SlotMemory(world, dtypes, sides.destination_shapes(), sides.slots)
        itemsizes = {name: self._memory.itemsizes[dtype] for name, dtype in dtypes.items()}
        found = sides.streams(itemsizes)
        groups = self._pair_up(found)
        self._own = found.get((world.rank, world.rank))
        self._outgoing = [
            Outgoing(groups[pair], pair[1], stream, sides.slots[pair[1]], self._memory, sides.is_near(*pair), pair[0] in sides.deltas)
            for pair, stream in found.items()
            if pair[0] == world.rank != pair[1]
        ]
        self._slots: int = sides.slots.get(world.rank, 0)
        self._words = [self._memory.words_at(world.rank, slot) or {} for slot in range(self._slots)]
        self._arrays = [{name: self._memory.array(name, slot) for name in dtypes} for slot in range(self._slots)]
        self._incoming = [
            Incoming(groups[pair], pair[0], stream, sides.is_near(*pair), self._words)
            for pair, stream in found.items()
            if pair[1] == world.rank != pair[0]
        ]
        self._groups = groups
        self._visible, self._version, self._arrived = 0, 0, 0
        self._begun, self._pushed = 0, 0
        """The last push, and the last that all destinations have."""
        self._broken: _core.DistPeerLostError | None = None

    def _pair_up(self, found: Mapping[tuple[int, int], Stream]) -> dict[tuple[int, int], World]:
        """A group for each pair, made in one order everywhere, so that nobody waits in a circle."""
        rank = self._world.rank
        return {
            (source, destination): self._world.split([source, destination], f"reshard {source}-{destination}", timeout=self._timeout)
            for source, destination in sorted(found)
            if source != destination and rank in (source, destination)
        }

    def __repr__(self) -> str:
        return f"<dldist.reshard.Link of {self._world.name!r}: rank {self._world.rank}, {len(self._layout.arrays)} arrays, version {self._version}>"

    @property
    def local_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of what this rank pushes by name, of sources; of destinations alone those of `arrays`."""
        if self._source_number is not None:
            return self._layout.local_shapes(self._source_number)
        return {name: x.shape for name, x in self.arrays.items()}

    # ---- what a destination sees

    @property
    def arrays(self) -> dict[str, _core.SharedArray]:
        """The local arrays of the visible version, of destinations. Views by numpy.asarray(x) or torch.from_dlpack(x) are good until
        the receive() after the next flip begins; nobody may write to them."""
        return dict(self._arrays[self._visible]) if self._slots else {}

    @property
    def version(self) -> int:
        """The version that `arrays` shows; 0 before the first."""
        return self._version

    # ---- the calls

    def push(self, arrays: Mapping[str, Tensor], version: int | None = None, *, timeout: Timeout | None = None) -> Pushed:
        """Give the destinations a new version. Waits until all that live have asked for it and have it.

        A destination that has died is left out, and told in the result.

        Args:
            arrays: The local arrays of this rank by name. They are not written to, and not needed when the call has returned.
            version: A number above that of the push before, the same on all sources; one more than that unless given. After a
                time-out that of the push which has failed, too: destinations that have it already are left alone.
            timeout: Seconds or a timedelta; the link's unless given.

        Returns:
            A Pushed.

        Raises:
            ValueError: The arrays are not those of the layout, or the version is not new.
            DistTimeoutError: Destinations have not asked in time; the text names them. All others have the version.

        Example:
            >>> from dldist.reshard import Layout, Link, Shard
            >>> layout = Layout({"w": ((2,), "int8", [Shard(0)])}, mesh=1)
            >>> with World() as world, Link(world, source=layout) as link:
            ...     link.push({"w": bytearray(2)})
            Pushed(version=1, nbytes=0, lost=())
        """
        if self.is_destination:
            raise _core.DistArgumentError("push(): this rank is on both sides; call exchange()")
        return self._push(self._checked("push", arrays), self._next_version(version), self._deadline(timeout))

    def receive(self, *, timeout: Timeout | None = None, flip: bool = True) -> int:
        """Wait for a new version and make it visible.

        With two slots `arrays` may be read meanwhile, from any thread; views of the version before it no longer. A version that
        has not been made visible yet is given up for the new one. After a time-out the next receive() goes on.

        Args:
            timeout: Seconds or a timedelta; the link's unless given.
            flip: False leaves the old version visible until flip() is called.

        Returns:
            The version that has come.

        Raises:
            DistTimeoutError: A source has not pushed in time; the text names it.
            DistPeerLostError: A source has died that has a part of what this rank needs; `rank`, `host`, `pid` say which. The visible
                version stays, unless it is written in place; nothing more comes over this link, and the other sources leave this
                rank out.
        """
        if not self.is_destination or self.is_source:
            raise _core.DistArgumentError("receive(): only for ranks that are destinations alone; on both sides call exchange()")
        return self._receive(None, 0, self._deadline(timeout), flip)

    def flip(self) -> int:
        """Make the version visible that receive(flip=False) has brought.

        Returns:
            The version.
        """
        if self._arrived > self._version:
            self._visible, self._version = self._next_slot(), self._arrived
        return self._version

    def exchange(
        self, arrays: Mapping[str, Tensor] | None = None, version: int | None = None, *, timeout: Timeout | None = None
    ) -> int:
        """Push and receive, whichever this rank does: for programs in which ranks are on both sides.

        Args:
            arrays: Of sources: as of push().
            version: As of push().
            timeout: Seconds or a timedelta; the link's unless given.

        Returns:
            The version.

        Raises:
            DistTimeoutError, DistPeerLostError: As of push() and receive(); of push() also for a destination that has died.
        """
        if not self.is_source:
            return self.receive(timeout=timeout)
        words, number, deadline = self._checked("exchange", arrays or {}), self._next_version(version), self._deadline(timeout)
        if not self.is_destination:
            return self._without_losses(self._push(words, number, deadline))
        outcome: list[Pushed | BaseException] = []
        pusher = threading.Thread(target=_into, args=(outcome, self._push, words, number, deadline))
        pusher.start()
        try:
            received = self._receive(words, number, deadline, True)
        finally:
            pusher.join()
        pushed = outcome[0]
        if isinstance(pushed, BaseException):
            raise pushed
        self._without_losses(pushed)
        return received

    def close(self) -> None:
        """End the link. The world goes on; arrays that somebody holds stay readable."""
        for group in self._groups.values():
            try:
                group.close(0)
            except _core.DistTimeoutError:
                pass  # that this rank was still listening, which it always is

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # ---- pushing

    def _push(self, words: dict[str, Any], version: int, deadline: float) -> Pushed:
        self._begun = version  # before it may fail: some have it then, and the next one must be another
        waiting = [one for one in self._outgoing if one.lost is None and one.version != version]
        moved = 0
        while waiting:
            for one in list(waiting):
                if one.is_asked():
                    moved += one.write(words, version, deadline)
                    waiting.remove(one)
                elif one.lost is not None:
                    waiting.remove(one)
            if waiting and time.monotonic() >= deadline:
                self._raise_late("push", f"version {version}", [one.rank for one in waiting], "not asked for it: call receive() there")
            if waiting:
                waiting[0].wait_a_little()
        self._pushed = version
        return Pushed(version, moved, tuple(one.lost for one in self._outgoing if one.lost is not None))

    def _next_version(self, version: int | None) -> int:
        number = self._begun + 1 if version is None else int(version)
        if number <= self._pushed or number < self._begun:
            raise _core.DistArgumentError(f"push(): argument 'version' is {number}, and {self._begun} has been pushed; it has to grow")
        if number > LAST_VERSION:
            raise _core.DistArgumentError(f"push(): argument 'version' is {number}: more than {LAST_VERSION}")
        return number

    def _checked(self, call: str, arrays: Mapping[str, Tensor]) -> dict[str, Any]:
        """The arrays as words, if they are those of the layout."""
        wanted = self._layout.arrays
        if set(arrays) != set(wanted):
            wrong = sorted(set(arrays) ^ set(wanted))
            raise _core.DistArgumentError(f"{call}(): argument 'arrays' and the layout differ in {', '.join(map(repr, wrong))}")
        assert self._source_number is not None
        made = {}
        for name, spec in wanted.items():
            shape, array = spec.sharding.local_shape(spec.shape, self._source_number), memory.words(arrays[name])
            has = memory.dtype_of(arrays[name])
            is_bytes = array.itemsize == 1 and not hasattr(arrays[name], "dtype")  # Python's own, which have one type
            if array.shape != shape or not (has == spec.dtype or is_bytes and self._memory.itemsizes[spec.dtype] == 1):
                raise _core.DistArgumentError(
                    f"{call}(): array {name!r} is {array.shape} of {has}, and by the layout this rank's part is {shape} of {spec.dtype}"
                )
            made[name] = array
        return made

    def _without_losses(self, pushed: Pushed) -> int:
        if pushed.lost:
            raise pushed.lost[0]
        return pushed.version

    # ---- receiving

    def _next_slot(self) -> int:
        return (self._visible + 1) % self._slots

    def _receive(self, own: dict[str, Any] | None, own_version: int, deadline: float, flip: bool) -> int:
        if self._broken is not None:
            raise self._broken
        try:
            self._take(own, own_version, deadline)
        except _core.DistPeerLostError as error:
            self._broken = error
            for one in self._incoming:  # which else would wait for this rank to ask
                one.abort(f"it cannot go on: {error}")
            raise
        return self.flip() if flip else self._arrived

    def _take(self, own: dict[str, Any] | None, own_version: int, deadline: float) -> None:
        """Fill the next slot with one version from all sources."""
        slot = self._next_slot()
        self._arrived = self._version  # until all is there, there is nothing to flip to
        if own is not None and self._own is not None:
            self._own.copy(own, self._words[slot])
        while True:
            for one in self._incoming:
                one.ask(slot)
            for one in self._incoming:
                if not one.finish(deadline):
                    self._raise_late("receive", "the next version", [o.rank for o in self._incoming if o.version is None], "not pushed it")
            versions = [one.version or 0 for one in self._incoming] + ([own_version] if own is not None else [])
            newest = max(versions)
            # A source whose push has ended too early for this rank is asked for the next one.
            behind = [one for one in self._incoming if one.version != newest]
            if not behind:
                break
            for one in behind:
                one.version = None
        sources = [one.rank for one in self._incoming]
        for one in self._incoming:
            one.version = None
        if own is not None and own_version != newest:
            raise _core.DistMismatchError(
                f"exchange(): rank {self._world.rank} gave version {own_version}, and ranks {sources} gave {newest}: "
                "nothing is made visible; give the same on all sources"
            )
        self._arrived = newest

    # ---- words and time

    def _deadline(self, timeout: Timeout | None) -> float:
        return time.monotonic() + (self._timeout if timeout is None else _seconds(timeout))

    def _raise_late(self, call: str, what: str, ranks: list[int], why: str) -> NoReturn:
        names = ", ".join(self._describe(rank) for rank in ranks)
        raise _core.DistTimeoutError(
            f"reshard.{call} of {what} on {self._world.name!r} (rank {self._world.rank}): timed out; {names} has {why} (timeout)"
        )

    def _describe(self, rank: int) -> str:
        member = self._world.members[rank]
        return f"rank {rank} ({member.host}, pid {member.pid})"


def redistribute(
    world: World, x: Any, shape: Any, source: Sharding, destination: Sharding, *, timeout: Timeout | None = None
) -> Any:
    """Lay an array out over the same ranks in another way, once. All ranks of the world call it.

    Args:
        world: Who takes part.
        x: This rank's part of the array.
        shape: The shape of the global array.
        source: How it lies.
        destination: How it shall lie.
        timeout: Seconds or a timedelta; the world's unless given.

    Returns:
        This rank's part by the new placements, a new array of x's library.

    Raises:
        DistMismatchError: The ranks differ in shapes, dtypes or placements.
        DistTimeoutError, DistPeerLostError: As of collectives.

    Example:
        >>> from dldist.reshard import Replicate, Shard, Sharding, redistribute
        >>> with World() as world:
        ...     redistribute(world, bytearray(b"ab"), (2,), Sharding(1, [Shard(0)]), Sharding(1, [Replicate()]))
        bytearray(b'ab')
    """
    family = arrays.family_of(x, "redistribute")
    dtype = memory.dtype_of(x)
    sides = [Layout({"x": (shape, dtype, side.placements)}, side.mesh) for side in (source, destination)]
    with Link(world, source=sides[0], destination=sides[1], in_place=True, timeout=timeout) as link:
        link.exchange({"x": x})
        result = arrays.new_array(family, x, link.arrays["x"])
        world.barrier()  # nobody leaves while others still hear from it
        return result


def _into(outcome: list[Any], call: Any, *arguments: Any) -> None:
    try:
        outcome.append(call(*arguments))
    except BaseException as error:
        outcome.append(error)


def _seconds(timeout: Timeout) -> float:
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    if math.isnan(seconds):
        raise _core.DistArgumentError("argument 'timeout' must be a number of seconds, not nan")
    return seconds if math.isfinite(seconds) else FOREVER.total_seconds()
