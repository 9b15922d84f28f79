"""The two ends of the data stream from one source to one destination.

The destination requests a version; the source writes the version and notifies the destination. Each
pair of ranks has its own group, so a lost rank affects only its own streams.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from datetime import timedelta
from typing import Any

from dldist import _core
from dldist.reshard import streams
from dldist.reshard.memory import SlotMemory
from dldist.world import World

CONTROL_TAG, DATA_TAG = 0, 1
SLICE_S = 0.002
# Timeout of operations that wait for the peer's next call, which the peer may make at any time.
FOREVER = timedelta(days=3650)
# The largest version, because versions are sent as 64 bits.
LAST_VERSION = 2**64 - 1


class Outgoing:
    """The source's end of a stream, for one destination."""

    def __init__(
        self,
        group: World,
        rank: int,
        stream: streams.Stream,
        slots: int,
        slot_memory: SlotMemory,
        is_near: bool,
        is_delta: bool,
    ) -> None:
        self.rank, self._group, self._stream, self._slots = rank, group, stream, slots
        self._peer = 1 - group.rank
        views = [slot_memory.words_at(rank, slot) for slot in range(slots)] if is_near else []
        self._views = [view for view in views if view is not None]
        self._changes = streams.Changes() if is_delta else None
        self.version = 0
        """The last version that was written to the destination."""
        self.lost: _core.DistPeerLostError | None = None
        self._go = bytearray(8)
        self._work = self._listen()

    def _listen(self) -> _core.Work:
        return self._group.irecv(self._go, self._peer, CONTROL_TAG, timeout=FOREVER)

    def is_asked(self) -> bool:
        if not self._work.is_completed():
            return False
        error = self._work.exception()
        if error is not None:
            self.lost = _lost("push", self.rank, error, "it is left out from now on")
        return error is None

    def wait_a_little(self) -> None:
        try:
            self._work.wait(SLICE_S)
        except _core.DistError:
            pass  # is_asked() will raise or record the error

    def write(self, words: dict[str, Any], version: int, deadline: float) -> int:
        """Write to the slot that the destination has requested. Return the number of bytes."""
        try:
            slot = self._slot_asked_for()
            moved = self._write_near(words, slot) if self._views else self._write_far(words, slot, deadline)
            if self._changes is not None:
                self._changes.note(slot)
            self._work = self._listen()
            self._group.isend(version.to_bytes(8, "little"), self._peer, CONTROL_TAG).wait(_left(deadline))
        except (_core.DistPeerLostError, _core.DistAbortedError, _core.DistTimeoutError, _core.DistMismatchError) as error:
            # Abort, because the next push must not receive the rest of this one.
            self._group.abort(f"a push did not complete: {error}")
            self.lost = _lost("push", self.rank, error, "it is left out from now on")
            return 0
        self.version = version
        return moved

    def _slot_asked_for(self) -> int:
        slot = int.from_bytes(self._go, "little")
        if slot >= self._slots:
            raise _core.DistMismatchError(f"reshard.push: rank {self.rank} asks for slot {slot}, and has {self._slots}")
        return slot

    def _write_near(self, words: dict[str, Any], slot: int) -> int:
        if self._changes is None:
            return self._stream.copy(words, self._views[slot])
        return self._stream.copy_blocks(words, self._views[slot], self._changes.choose(self._stream, words, slot))

    def _write_far(self, words: dict[str, Any], slot: int, deadline: float) -> int:
        import numpy

        chosen = self._choose(words, slot)
        self._group.send(_framed(chosen), self._peer, DATA_TAG, timeout=_left(deadline))
        staging = [numpy.empty(self._stream.parcel_nbytes, "u1") for _ in range(2)]
        under_way: list[_core.Work] = []
        moved = 0
        for number, parcel in enumerate(self._stream.parcels(chosen)):
            if len(under_way) == 2:
                under_way.pop(0).wait(_left(deadline))
            packed = streams.pack(parcel, words, staging[number % 2])
            under_way.append(self._group.isend(packed, self._peer, DATA_TAG, timeout=_left(deadline)))
            moved += packed.nbytes
        for work in under_way:
            work.wait(_left(deadline))
        return moved

    def _choose(self, words: dict[str, Any], slot: int) -> bytearray:
        if self._changes is None:
            return bytearray(b"\1" * len(self._stream.blocks))
        return self._changes.choose(self._stream, words, slot)


class Incoming:
    """The destination's end of a stream, for one source."""

    def __init__(self, group: World, rank: int, stream: streams.Stream, is_near: bool, words: list[dict[str, Any]]) -> None:
        self.rank, self._group, self._stream = rank, group, stream
        self._peer = 1 - group.rank
        self._is_near, self._words = is_near, words
        self.version: int | None = None
        self._steps: Generator[_core.Work, None, int] | None = None
        self._work: _core.Work | None = None

    def ask(self, slot: int) -> None:
        """Request the next version into a slot, unless a request is pending."""
        if self._steps is None and self.version is None:
            self._steps = self._take(slot)
            self._go_on(self._steps)

    def abort(self, reason: str) -> None:
        """Abort the group of this rank and the source."""
        self._group.abort(reason)

    def finish(self, deadline: float) -> bool:
        """Receive the requested version. False if the deadline passes: call again to continue."""
        while self._steps is not None:
            assert self._work is not None
            if not _wait("receive", self.rank, self._work, deadline):
                return False
            self._go_on(self._steps)
        return True

    def _go_on(self, steps: Generator[_core.Work, None, int]) -> None:
        """Start the next operation of the group. The operation may raise the group's failure."""
        try:
            self._work = next(steps)
        except StopIteration as end:
            self.version, self._steps = end.value, None
        except (_core.DistPeerLostError, _core.DistAbortedError) as error:
            raise _lost("receive", self.rank, error, "which has a part of what this rank needs") from error

    def _take(self, slot: int) -> Generator[_core.Work, None, int]:
        done = bytearray(8)
        end = self._group.irecv(done, self._peer, CONTROL_TAG, timeout=FOREVER)
        yield self._group.isend(slot.to_bytes(8, "little"), self._peer, CONTROL_TAG, timeout=FOREVER)
        if not self._is_near:
            yield from self._take_parcels(slot)
        yield end
        return int.from_bytes(done, "little")

    def _take_parcels(self, slot: int) -> Generator[_core.Work, None, None]:
        import numpy

        chosen = _framed(bytearray(len(self._stream.blocks)))
        yield self._group.irecv(chosen, self._peer, DATA_TAG, timeout=FOREVER)
        staging = numpy.empty(self._stream.parcel_nbytes, "u1")
        for parcel in self._stream.parcels(chosen[1:]):
            part = staging[: sum(block.nbytes for block in parcel)]
            yield self._group.irecv(part, self._peer, DATA_TAG, timeout=FOREVER)
            streams.unpack(parcel, part, self._words[slot])


def _framed(flags: bytearray) -> bytearray:
    """Prepend a byte, because a message must not be empty."""
    return bytearray(1) + flags


def _lost(call: str, rank: int, error: BaseException, then: str) -> _core.DistPeerLostError:
    """Return an error for a lost peer, with the peer's rank in the link's world."""
    host, pid = getattr(error, "host", None), getattr(error, "pid", None)
    lost = _core.DistPeerLostError(f"reshard.{call}: lost rank {rank} ({host}, pid {pid}), {then}: {error}")
    lost.code, lost.rank, lost.host, lost.pid, lost.op = "PEER_LOST", rank, host, pid, call
    return lost


def _wait(call: str, rank: int, work: _core.Work, deadline: float) -> bool:
    """Return True if the work completes before the deadline, else False."""
    try:
        work.wait(_left(deadline))
    except _core.DistTimeoutError:
        if not work.is_completed():
            return False
        raise
    except (_core.DistPeerLostError, _core.DistAbortedError) as error:
        raise _lost(call, rank, error, "which has a part of what this rank needs") from error
    return True


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.001)
