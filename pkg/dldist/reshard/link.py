"""Links: repeated transfer of sharded arrays from a world's source ranks to its destination ranks.

A destination has two slots of memory: one visible to its program, and one being written (with
in_place, one for both). The destination sends each of its sources a request with the slot number
(GO), and each source replies with the version once it is written (DONE). On one host, sources write
directly into the slot; to other hosts, blocks are sent as messages between GO and DONE. Each pair
of ranks has its own group, so a lost rank affects only the ranks that need it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from dldist import _core
from dldist._base import argument_names, arrays
from dldist._base.array_types import Tensor, Timeout
from dldist._base.options import as_int, to_timedelta
from dldist.reshard import memory
from dldist.reshard.layouts import Layout
from dldist.reshard.participants import Participants
from dldist.reshard.placements import Sharding
from dldist.reshard.stream_ends import FOREVER, LAST_VERSION, StreamReceiver, StreamSender
from dldist.reshard.streams import Stream
from dldist.world import World


@dataclass(frozen=True)
class Pushed:
    """The result of push(): the version, and what was sent.

    Example:
        >>> from dldist.reshard import Pushed
        >>> Pushed(version=3, nbytes=4096, lost=()).version
        3
    """

    version: int
    nbytes: int
    """The number of bytes that this rank wrote to other ranks."""
    lost: tuple[_core.DistPeerLostError, ...]
    """Destinations lost in this push or before; the errors have `rank`, `host` and `pid`."""


class Link:
    """Transfers sharded arrays from sources to destinations, which must all construct it.

    Each rank passes the layout of its side, `source` or `destination`, or both. The ranks that pass
    `source` form the source's mesh, in rank order; likewise for `destination`.

    Args:
        world: The world of all sources and destinations. To connect two worlds, create a third
            that contains both.
        source: The layout of the arrays on the sources; the same on all sources.
        destination: The layout of the arrays on the destinations; the same on all destinations.
            Names, shapes and dtypes must match the source's.
        in_place: For destinations. True writes into the visible memory, which must not be read
            during receive(). False uses two slots, which receive() flips.
        delta: For sources. True sends only blocks changed since they were last written to the slot.
        timeout: Seconds or a timedelta for construction and each call. None is the world's.

    Raises:
        ValueError: This rank passes no layout.
        DistMismatchError: The layouts do not match. Raised on all ranks; the text names both sides.
        DistTimeoutError, DistPeerLostError: A rank did not join before the timeout, or was lost.

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
            raise _core.DistArgumentError("Link(): got neither 'source' nor 'destination', expected one, or both if this rank is on both sides")
        self._world, self._timeout = world, _seconds(world.timeout if timeout is None else timeout)
        participants = Participants(world, source, destination, in_place, delta, self._timeout)
        self._layout: Layout = participants.layout
        self._source_number = participants.sources.index(world.rank) if source is not None else None
        self.is_source, self.is_destination = source is not None, destination is not None
        dtypes = {name: spec.dtype for name, spec in participants.layout.arrays.items()}
        self._memory = memory.SlotMemory(world, dtypes, participants.destination_shapes(), participants.slots)
        itemsizes = {name: self._memory.itemsizes[dtype] for name, dtype in dtypes.items()}
        streams = participants.streams(itemsizes)
        groups = self._make_pair_groups(streams)
        self._local_stream = streams.get((world.rank, world.rank))
        self._senders = [
            StreamSender(
                groups[sender, rank], rank, stream, participants.slots[rank], self._memory,
                participants.are_on_same_host(sender, rank), sender in participants.deltas,
            )  # fmt: skip
            for (sender, rank), stream in streams.items()
            if sender == world.rank != rank
        ]
        self._slots: int = participants.slots.get(world.rank, 0)
        self._slot_views = [self._memory.slot_views(world.rank, slot) or {} for slot in range(self._slots)]
        self._arrays = [{name: self._memory.array(name, slot) for name in dtypes} for slot in range(self._slots)]
        self._receivers = [
            StreamReceiver(groups[pair], pair[0], stream, participants.are_on_same_host(*pair), self._slot_views)
            for pair, stream in streams.items()
            if pair[1] == world.rank != pair[0]
        ]
        self._groups = groups
        self._visible, self._version, self._received_version = 0, 0, 0
        self._started_version, self._pushed_version = 0, 0
        """The last version that this source began to push, and the last that it pushed to all."""
        self._loss: _core.DistPeerLostError | None = None

    def _make_pair_groups(self, streams: Mapping[tuple[int, int], Stream]) -> dict[tuple[int, int], World]:
        """Create a group for each pair of ranks, in one order on all ranks to avoid deadlock."""
        rank = self._world.rank
        return {
            (source, destination): self._world.split([source, destination], f"reshard {source}-{destination}", timeout=self._timeout)
            for source, destination in sorted(streams)
            if source != destination and rank in (source, destination)
        }

    def __repr__(self) -> str:
        return f"<dldist.reshard.Link of {self._world.name!r}: rank {self._world.rank}, {len(self._layout.arrays)} arrays, version {self._version}>"

    @property
    def local_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes, by name, of the arrays to push on a source; on a destination, of `arrays`."""
        if self._source_number is not None:
            return self._layout.local_shapes(self._source_number)
        return {name: x.shape for name, x in self.arrays.items()}

    @property
    def arrays(self) -> dict[str, _core.SharedArray]:
        """The destination's local arrays in the visible version, read-only. Views of these arrays
        (by numpy.asarray or torch.from_dlpack) are valid until the receive() after the next flip.
        """
        return dict(self._arrays[self._visible]) if self._slots else {}

    @property
    def version(self) -> int:
        """The visible version; 0 before the first version."""
        return self._version

    def push(self, arrays: Mapping[str, Tensor], version: int | None = None, *, timeout: Timeout | None = None) -> Pushed:
        """Push a new version. Blocks until every destination has requested and received it.

        Lost destinations are skipped, and listed in the returned Pushed.

        Args:
            arrays: This rank's local arrays by name. The call does not modify or keep the arrays.
            version: A number above the previous version, the same on all sources. None adds 1.
                After a timeout, pass the failed version to retry; destinations that have it are
                skipped.
            timeout: Seconds or a timedelta. None is the link's.

        Raises:
            ValueError: The arrays do not match the layout, or the version is not new.
            DistTimeoutError: Destinations, which the message names, made no request before the
                timeout. All other destinations have the version.

        Example:
            >>> from dldist.reshard import Layout, Link, Shard
            >>> layout = Layout({"w": ((2,), "int8", [Shard(0)])}, mesh=1)
            >>> with World() as world, Link(world, source=layout) as link:
            ...     link.push({"w": bytearray(2)})
            Pushed(version=1, nbytes=0, lost=())
        """
        if self.is_destination:
            raise _core.DistArgumentError("push(): this rank is a source and a destination, expected only a source; call exchange()")
        return self._push(self._check_arrays("push", arrays), self._next_version(version), self._deadline(timeout))

    def receive(self, *, timeout: Timeout | None = None, flip: bool = True) -> int:
        """Wait for a new version, make it visible, and return it.

        With two slots, `arrays` may be read during the call from any thread, but not older views. A
        version that was received but never made visible is discarded. After a timeout, call
        receive() again to continue.

        Args:
            timeout: Seconds or a timedelta. None is the link's.
            flip: False keeps the old version visible until flip() is called.

        Raises:
            DistTimeoutError: A source, which the text names, did not push before the timeout.
            DistPeerLostError: A source with needed data was lost; see `rank`, `host` and `pid`. The
                visible version stays, except with in_place. The link receives no more versions, and
                the other sources skip this rank.
        """
        if not self.is_destination or self.is_source:
            raise _core.DistArgumentError("receive(): this rank is a source, expected only a destination; a rank that is both calls exchange()")
        return self._receive(None, 0, self._deadline(timeout), flip)

    def flip(self) -> int:
        """Make the version visible that receive(flip=False) received, and return it."""
        if self._received_version > self._version:
            self._visible, self._version = self._next_slot(), self._received_version
        return self._version

    def exchange(
        self, arrays: Mapping[str, Tensor] | None = None, version: int | None = None, *, timeout: Timeout | None = None
    ) -> int:
        """Push, receive or both, as this rank's sides require, and return the version. For programs
        with ranks on both sides.

        Args:
            arrays: On sources, as in push(), like `version` and `timeout`.

        Raises:
            DistTimeoutError, DistPeerLostError: As in push() and receive(); also for a lost
                destination.
        """
        if not self.is_source:
            return self.receive(timeout=timeout)
        views, number, deadline = self._check_arrays("exchange", arrays or {}), self._next_version(version), self._deadline(timeout)
        if not self.is_destination:
            return self._raise_if_lost(self._push(views, number, deadline))
        outcome: list[Pushed | BaseException] = []
        pusher = threading.Thread(target=_append_outcome, args=(outcome, self._push, views, number, deadline))
        pusher.start()
        try:
            received = self._receive(views, number, deadline, True)
        finally:
            pusher.join()
        pushed = outcome[0]
        if isinstance(pushed, BaseException):
            raise pushed
        self._raise_if_lost(pushed)
        return received

    def close(self) -> None:
        """Close the link. The world stays usable, and referenced arrays stay readable."""
        for group in self._groups.values():
            try:
                group.close(0)
            except _core.DistTimeoutError:
                pass  # expected, because a receive is always pending

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _push(self, views: dict[str, Any], version: int, deadline: float) -> Pushed:
        self._started_version = version  # recorded first: on failure, some destinations may have it
        waiting = [sender for sender in self._senders if sender.lost is None and sender.version != version]
        nbytes = 0
        while waiting:
            for sender in list(waiting):
                if sender.is_requested():
                    nbytes += sender.write(views, version, deadline)
                    waiting.remove(sender)
                elif sender.lost is not None:
                    waiting.remove(sender)
            if waiting and time.monotonic() >= deadline:
                self._raise_timeout("push", f"version {version}", [sender.rank for sender in waiting], "not requested it (call receive() there)")
            if waiting:
                waiting[0].wait_slice()
        self._pushed_version = version
        return Pushed(version, nbytes, tuple(sender.lost for sender in self._senders if sender.lost is not None))

    def _next_version(self, version: int | None) -> int:
        where = argument_names.title("version")
        number = self._started_version + 1 if version is None else as_int(where, version)
        if number <= self._pushed_version or number < self._started_version:
            least = max(self._pushed_version + 1, self._started_version)
            raise _core.DistArgumentError(f"{where} must grow: got {number}, expected {least} or more")
        if number > LAST_VERSION:
            raise _core.DistArgumentError(f"{where} is too large: got {number}, expected at most {LAST_VERSION}")
        return number

    def _check_arrays(self, call: str, arrays: Mapping[str, Tensor]) -> dict[str, Any]:
        """Check the arrays against the layout, and return them as NumPy views (memory.raw_view)."""
        specs = self._layout.arrays
        if set(arrays) != set(specs):
            raise _core.DistArgumentError(f"{call}(): argument 'arrays' has other names: got {sorted(arrays)}, expected {sorted(specs)}")
        assert self._source_number is not None
        views = {}
        for name, spec in specs.items():
            shape, array = spec.sharding.local_shape(spec.shape, self._source_number), memory.raw_view(arrays[name])
            dtype = memory.dtype_of(arrays[name])
            # Raw bytes, such as a bytes object, have no dtype to check.
            is_bytes = array.itemsize == 1 and not hasattr(arrays[name], "dtype")
            if array.shape != shape or not (dtype == spec.dtype or is_bytes and self._memory.itemsizes[spec.dtype] == 1):
                raise _core.DistArgumentError(
                    f"{call}(): argument 'arrays': {name!r} does not fit the layout: got {dtype} {array.shape}, expected {spec.dtype} {shape}"
                )
            views[name] = array
        return views

    def _raise_if_lost(self, pushed: Pushed) -> int:
        if pushed.lost:
            raise pushed.lost[0]
        return pushed.version

    def _next_slot(self) -> int:
        return (self._visible + 1) % self._slots

    def _receive(self, local_views: dict[str, Any] | None, local_version: int, deadline: float, flip: bool) -> int:
        if self._loss is not None:
            raise self._loss
        try:
            self._fill_slot(local_views, local_version, deadline)
        except _core.DistPeerLostError as error:
            self._loss = error
            for receiver in self._receivers:  # abort, because the sources would wait for a request
                receiver.abort(f"it cannot go on: {error}")
            raise
        return self.flip() if flip else self._received_version

    def _fill_slot(self, local_views: dict[str, Any] | None, local_version: int, deadline: float) -> None:
        """Fill the next slot with the same version from all sources."""
        slot = self._next_slot()
        self._received_version = self._version  # flip() must not show an incomplete version
        if local_views is not None and self._local_stream is not None:
            self._local_stream.copy(local_views, self._slot_views[slot])
        while True:
            for receiver in self._receivers:
                receiver.request(slot)
            for receiver in self._receivers:
                if not receiver.finish(deadline):
                    late = [receiver.rank for receiver in self._receivers if receiver.version is None]
                    self._raise_timeout("receive", "the next version", late, "not pushed it")
            versions = [receiver.version or 0 for receiver in self._receivers] + ([local_version] if local_views is not None else [])
            newest = max(versions)
            # Some sources have an older version than others: request their next version.
            outdated = [receiver for receiver in self._receivers if receiver.version != newest]
            if not outdated:
                break
            for receiver in outdated:
                receiver.version = None
        sources = [receiver.rank for receiver in self._receivers]
        for receiver in self._receivers:
            receiver.version = None
        if local_views is not None and local_version != newest:
            raise _core.DistMismatchError(
                f"exchange(): argument 'version' differs between sources: got {local_version} on rank {self._world.rank}, expected "
                f"{newest}, as on ranks {sources}; no version is visible"
            )
        self._received_version = newest

    def _deadline(self, timeout: Timeout | None) -> float:
        return time.monotonic() + (self._timeout if timeout is None else _seconds(timeout))

    def _raise_timeout(self, call: str, subject: str, ranks: list[int], reason: str) -> NoReturn:
        names = ", ".join(self._describe(rank) for rank in ranks)
        raise _core.DistTimeoutError(
            f"reshard.{call} of {subject} on {self._world.name!r} (rank {self._world.rank}): timed out; {names} has {reason} (timeout)"
        )

    def _describe(self, rank: int) -> str:
        member = self._world.members[rank]
        return f"rank {rank} ({member.host}, pid {member.pid})"


def redistribute(
    world: World, x: Any, shape: Any, source: Sharding, destination: Sharding, *, timeout: Timeout | None = None
) -> Any:
    """Change an array's sharding over the same ranks, once, and return this rank's new part, a new
    array of x's library. All ranks must call this.

    Args:
        world: The world of the ranks.
        x: This rank's part of the array.
        shape: The shape of the global array.
        source: The current sharding.
        destination: The new sharding.
        timeout: Seconds or a timedelta. None is the world's.

    Raises:
        DistMismatchError: Shapes, dtypes or placements differ between ranks.
        DistTimeoutError, DistPeerLostError: As in collectives.

    Example:
        >>> from dldist.reshard import Replicate, Shard, Sharding, redistribute
        >>> with World() as world:
        ...     redistribute(world, bytearray(b"ab"), (2,), Sharding(1, [Shard(0)]), Sharding(1, [Replicate()]))
        bytearray(b'ab')
    """
    family = arrays.family_of(x, "redistribute")
    dtype = memory.dtype_of(x)
    layouts = [Layout({"x": (shape, dtype, sharding.placements)}, sharding.mesh) for sharding in (source, destination)]
    with Link(world, source=layouts[0], destination=layouts[1], in_place=True, timeout=timeout) as link:
        link.exchange({"x": x})
        result = arrays.new_array(family, x, link.arrays["x"])
        world.barrier()  # keep links open until all ranks have received
        return result


def _append_outcome(outcome: list[Any], call: Any, *arguments: Any) -> None:
    try:
        outcome.append(call(*arguments))
    except BaseException as error:
        outcome.append(error)


def _seconds(timeout: Timeout) -> float:
    return min(to_timedelta(timeout), FOREVER).total_seconds()
