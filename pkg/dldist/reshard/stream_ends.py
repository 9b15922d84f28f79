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


class StreamSender:
    """The source's end of a stream, for one destination."""

    def __init__(
        self,
        group: World,
        rank: int,
        stream: streams.Stream,
        slots: int,
        slot_memory: SlotMemory,
        is_on_same_host: bool,
        is_delta: bool,
    ) -> None:
        self.rank, self._group, self._stream, self._slots = rank, group, stream, slots
        self._peer = 1 - group.rank
        views = [slot_memory.slot_views(rank, slot) for slot in range(slots)] if is_on_same_host else []
        self._views = [view for view in views if view is not None]
        self._changes = streams.Changes() if is_delta else None
        self.version = 0
        """The last version that was written to the destination."""
        self.lost: _core.DistPeerLostError | None = None
        self._request = bytearray(8)
        self._work = self._receive_request()

    def _receive_request(self) -> _core.Work:
        return self._group.irecv(self._request, self._peer, CONTROL_TAG, timeout=FOREVER)

    def is_requested(self) -> bool:
        if not self._work.is_completed():
            return False
        error = self._work.exception()
        if error is not None:
            self.lost = _peer_lost_error("push", self.rank, error, "it is left out from now on")
        return error is None

    def wait_slice(self) -> None:
        try:
            self._work.wait(SLICE_S)
        except _core.DistError:
            pass  # is_requested() will raise or record the error

    def write(self, arrays: dict[str, Any], version: int, deadline: float) -> int:
        """Write to the slot that the destination has requested. Return the number of bytes."""
        try:
            slot = self._requested_slot()
            nbytes = self._write_to_memory(arrays, slot) if self._views else self._send_blocks(arrays, slot, deadline)
            if self._changes is not None:
                self._changes.commit(slot)
            self._work = self._receive_request()
            self._group.isend(version.to_bytes(8, "little"), self._peer, CONTROL_TAG).wait(_remaining_s(deadline))
        except (_core.DistPeerLostError, _core.DistAbortedError, _core.DistTimeoutError, _core.DistMismatchError) as error:
            # Abort the group, or the destination would get the rest of this push with the next one.
            self._group.abort(f"a push did not complete: {error}")
            self.lost = _peer_lost_error("push", self.rank, error, "it is left out from now on")
            return 0
        self.version = version
        return nbytes

    def _requested_slot(self) -> int:
        slot = int.from_bytes(self._request, "little")
        if slot >= self._slots:
            raise _core.DistMismatchError(f"reshard.push: malformed request of rank {self.rank}: got slot {slot}, expected 0 to {self._slots - 1}")
        return slot

    def _write_to_memory(self, arrays: dict[str, Any], slot: int) -> int:
        if self._changes is None:
            return self._stream.copy(arrays, self._views[slot])
        return self._stream.copy_blocks(arrays, self._views[slot], self._changes.select(self._stream, arrays, slot))

    def _send_blocks(self, arrays: dict[str, Any], slot: int, deadline: float) -> int:
        import numpy

        selected = self._select(arrays, slot)
        self._group.send(_with_padding(selected), self._peer, DATA_TAG, timeout=_remaining_s(deadline))
        staging = [numpy.empty(self._stream.batch_nbytes, "u1") for _ in range(2)]
        pending: list[_core.Work] = []
        nbytes = 0
        for number, batch in enumerate(self._stream.batches(selected)):
            if len(pending) == 2:
                pending.pop(0).wait(_remaining_s(deadline))
            packed = streams.pack(batch, arrays, staging[number % 2])
            pending.append(self._group.isend(packed, self._peer, DATA_TAG, timeout=_remaining_s(deadline)))
            nbytes += packed.nbytes
        for work in pending:
            work.wait(_remaining_s(deadline))
        return nbytes

    def _select(self, arrays: dict[str, Any], slot: int) -> bytearray:
        if self._changes is None:
            return bytearray(b"\1" * len(self._stream.blocks))
        return self._changes.select(self._stream, arrays, slot)


class StreamReceiver:
    """The destination's end of a stream, for one source."""

    def __init__(self, group: World, rank: int, stream: streams.Stream, is_on_same_host: bool, slot_views: list[dict[str, Any]]) -> None:
        self.rank, self._group, self._stream = rank, group, stream
        self._peer = 1 - group.rank
        self._is_on_same_host, self._slot_views = is_on_same_host, slot_views
        self.version: int | None = None
        self._steps: Generator[_core.Work, None, int] | None = None
        self._work: _core.Work | None = None

    def request(self, slot: int) -> None:
        """Request the next version into a slot, unless a request is pending."""
        if self._steps is None and self.version is None:
            self._steps = self._receive_steps(slot)
            self._advance(self._steps)

    def abort(self, reason: str) -> None:
        """Abort the group of this rank and the source."""
        self._group.abort(reason)

    def finish(self, deadline: float) -> bool:
        """Receive the requested version. False if the deadline passes: call again to continue."""
        while self._steps is not None:
            assert self._work is not None
            if not _wait("receive", self.rank, self._work, deadline):
                return False
            self._advance(self._steps)
        return True

    def _advance(self, steps: Generator[_core.Work, None, int]) -> None:
        """Start the next operation of the group. The operation may raise the group's failure."""
        try:
            self._work = next(steps)
        except StopIteration as stop:
            self.version, self._steps = stop.value, None
        except (_core.DistPeerLostError, _core.DistAbortedError) as error:
            raise _peer_lost_error("receive", self.rank, error, "which has data that this rank needs") from error

    def _receive_steps(self, slot: int) -> Generator[_core.Work, None, int]:
        reply = bytearray(8)
        reply_work = self._group.irecv(reply, self._peer, CONTROL_TAG, timeout=FOREVER)
        yield self._group.isend(slot.to_bytes(8, "little"), self._peer, CONTROL_TAG, timeout=FOREVER)
        if not self._is_on_same_host:
            yield from self._receive_batches(slot)
        yield reply_work
        return int.from_bytes(reply, "little")

    def _receive_batches(self, slot: int) -> Generator[_core.Work, None, None]:
        import numpy

        selected = _with_padding(bytearray(len(self._stream.blocks)))
        yield self._group.irecv(selected, self._peer, DATA_TAG, timeout=FOREVER)
        staging = numpy.empty(self._stream.batch_nbytes, "u1")
        for batch in self._stream.batches(selected[1:]):
            data = staging[: sum(block.nbytes for block in batch)]
            yield self._group.irecv(data, self._peer, DATA_TAG, timeout=FOREVER)
            streams.unpack(batch, data, self._slot_views[slot])


def _with_padding(flags: bytearray) -> bytearray:
    """Prepend a byte, because a message must not be empty."""
    return bytearray(1) + flags


def _peer_lost_error(call: str, rank: int, error: BaseException, consequence: str) -> _core.DistPeerLostError:
    """Return an error for a lost peer, with the peer's rank in the link's world."""
    host, pid = getattr(error, "host", None), getattr(error, "pid", None)
    lost = _core.DistPeerLostError(f"reshard.{call}: lost rank {rank} ({host}, pid {pid}), {consequence}: {error}")
    lost.code, lost.rank, lost.host, lost.pid, lost.op = "PEER_LOST", rank, host, pid, call
    return lost


def _wait(call: str, rank: int, work: _core.Work, deadline: float) -> bool:
    """Return True if the work completes before the deadline, else False."""
    try:
        work.wait(_remaining_s(deadline))
    except _core.DistTimeoutError:
        if not work.is_completed():
            return False
        raise
    except (_core.DistPeerLostError, _core.DistAbortedError) as error:
        raise _peer_lost_error(call, rank, error, "which has data that this rank needs") from error
    return True


def _remaining_s(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.001)
