"""How an object travels: as a prefix of fixed size and then its *pieces*. These are the head, if the prefix had no room for it,
and each of the buffers. All ranks go through the same rounds and send one piece in each, so nothing is padded or concatenated.

    prefix   32 bytes (see _PREFIX), and the head if it fits into the rest
    round 0  the head: what the serializer wrote, and the sizes of the buffers, 8 bytes each
    round i  buffer i - 1

A rank that cannot write its object sends the reason instead.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Sequence
from functools import cache
from io import BytesIO
from typing import Any

from dldist._core import DistError, DistMismatchError
from dldist._objects import codec

PREFIX_BYTES = 512

# Magic, version, serializer, first round, last round + 1, number of buffers, bytes of the head, bytes of all buffers.
_PREFIX = struct.Struct("<4sBBxBIIQQ")
_MAGIC = b"dlob"
_VERSION = 1
_FAILED = 0  # instead of a serializer's number: there is no object, and the head is the reason
_ROOM = PREFIX_BYTES - _PREFIX.size
ROUNDS_MAX = 1 << 20
"""An object has no more buffers: 64 GiB of the smallest ones. What a rank announces is waited for, until the call's time is over."""


class Refusal:
    """Sent instead of an object: an error on this rank, so that the other ranks get it too."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class Outgoing:
    """An object on its way out."""

    __slots__ = ("_buffers", "_head", "_number", "error", "rounds")

    def __init__(self, obj: Any, serializer: Any) -> None:
        self._buffers: list[memoryview] = []
        self._number = serializer.number
        self.error: Exception | None = None
        """Why there is no object. It is raised once the other ranks have been told."""
        head = BytesIO()
        try:
            if type(obj) is Refusal:
                raise obj.error
            buffers = serializer.write(obj, head)
            if len(buffers) > ROUNDS_MAX:
                raise ValueError(f"{len(buffers)} arrays of {codec.IN_BAND_BYTES} bytes or more in an object: at most {ROUNDS_MAX} can be sent")
            self._buffers = buffers
        except Exception as error:
            self.error = error
            self._number = _FAILED
            head = BytesIO(_describe(error))
        head.seek(0, os.SEEK_END)
        head.write(struct.pack(f"<{len(self._buffers)}Q", *(buffer.nbytes for buffer in self._buffers)))
        # Not getbuffer(): since Python 3.13 the file complains of a buffer in use if it is collected as part of a cycle.
        self._head = memoryview(head.getvalue())
        self.rounds = _rounds_of(len(self._head), len(self._buffers))

    def prefix(self, rounds: range) -> bytes:
        """The bytes that are sent first. `rounds` are this object's, or more if another object of the same call needs more."""
        nbytes = sum(buffer.nbytes for buffer in self._buffers)
        fields = (_MAGIC, _VERSION, self._number, rounds.start, rounds.stop, len(self._buffers), len(self._head), nbytes)
        inline = bytes(self._head) if len(self._head) <= _ROOM else b""
        return (_PREFIX.pack(*fields) + inline).ljust(PREFIX_BYTES, b"\0")

    def piece(self, index: int) -> memoryview:
        """The bytes that are sent in a round: none in rounds that only other objects need."""
        if index not in self.rounds:
            return memoryview(b"")
        return self._buffers[index - 1] if index else self._head


def _rounds_of(head_bytes: int, buffer_count: int) -> range:
    return range(1 if head_bytes <= _ROOM else 0, 1 + buffer_count)


def cover(frames: Sequence[Outgoing | Incoming]) -> range:
    """The rounds that these objects need between them."""
    return range(min(frame.rounds.start for frame in frames), max(frame.rounds.stop for frame in frames))


def _describe(error: Exception) -> bytes:
    name = type(error).__name__
    try:
        text = f"{name}: {error}"
    except Exception:  # __str__ may fail in any way, and the other ranks are still waiting for the reason
        text = f"{name}, whose text could not be made"
    # Cut between characters, not inside one.
    return text.encode("utf-8", "replace")[:_ROOM].decode("utf-8", "ignore").encode()


class Incoming:
    """An object on its way in, from `rank`. Nothing in its prefix is trusted before it has been checked.

    `has_company`: its sender sends objects to others in the same rounds, and they may need more of them."""

    __slots__ = ("_buffer_bytes", "_buffers", "_call", "_count", "_head", "_head_bytes", "_own", "number", "rank", "rounds")

    def __init__(self, prefix: memoryview, rank: int, call: str, has_company: bool = False) -> None:
        self.rank = rank
        self._call = call
        fields = _PREFIX.unpack_from(prefix)
        magic, version, self.number, first, stop, self._count, self._head_bytes, self._buffer_bytes = fields
        if magic != _MAGIC or version != _VERSION:
            raise self._error("sent something that is not an object, or comes from another version of dldist")
        nbytes = self._head_bytes + self._buffer_bytes
        if nbytes > _memory_limit():
            raise self._error(f"announces an object of {nbytes} bytes, more than this machine has memory")
        self.rounds = range(first, stop)
        self._own = _rounds_of(self._head_bytes, self._count)
        is_large_enough = 8 * self._count <= self._head_bytes and codec.IN_BAND_BYTES * self._count <= self._buffer_bytes
        if not is_large_enough or not self._is_right(has_company):
            raise self._error("sent a malformed object: its sizes contradict each other")
        self._buffers: list[memoryview] = []
        self._head: memoryview | None = prefix[_PREFIX.size :][: self._head_bytes] if self._own.start else None

    def _is_right(self, has_company: bool) -> bool:
        """Whether the rounds are those that the sizes want, and not many more that all would go through with nothing in them."""
        if not has_company:
            return self.rounds == self._own
        return self.rounds.start <= self._own.start and self._own.stop <= self.rounds.stop <= ROUNDS_MAX + 1

    def failure(self) -> DistError | None:
        """An error with the other rank's reason for not sending its object, or None if it sent one."""
        if self.number != _FAILED:
            return None
        reason = bytes((self._head or b"")[:_ROOM]).decode("utf-8", "replace")
        return self._error(f"could not send its object: {reason}")

    def mismatch(self, serializer: Any) -> DistError | None:
        """An error if the other rank uses another serializer than this one, else None."""
        if self.number == serializer.number:
            return None
        names = {codec.find(name).number: name for name in codec.MODULES}
        theirs = repr(names.get(self.number, f"number {self.number}"))
        return self._error(
            f"uses serializer={theirs}, and this rank serializer={serializer.name!r}: nothing was decoded", DistMismatchError
        )

    def place(self, index: int) -> memoryview:
        """The memory for the piece of a round: none in rounds that only other objects need. Rounds must be taken in order."""
        if index not in self._own:
            return memoryview(bytearray())
        if index == 0:
            self._head = codec.new_buffer(self._head_bytes)
            return self._head
        if not self._buffers:
            self._make_buffers()
        return self._buffers[index - 1]

    def _make_buffers(self) -> None:
        assert self._head is not None
        sizes = struct.unpack(f"<{self._count}Q", self._head[self._head_bytes - 8 * self._count :])
        if sum(sizes) != self._buffer_bytes:
            raise self._error("sent a malformed object: its sizes contradict each other")
        self._buffers = [codec.new_buffer(size) for size in sizes]

    def read(self, serializer: Any) -> Any:
        """The object, once all pieces have arrived."""
        assert self._head is not None
        try:
            return serializer.read(self._head[: self._head_bytes - 8 * self._count], self._buffers)
        except Exception as error:
            error.add_note(f"{self._call}(): while the object of rank {self.rank} was read (serializer={serializer.name!r})")
            raise

    def _error(self, text: str, kind: type[DistError] = DistError) -> DistError:
        error = kind(f"{self._call}(): rank {self.rank} {text}")
        error.rank = self.rank
        return error


@cache
def _memory_limit() -> int:
    """The physical memory in bytes; what a process can address if the system does not report it.

    Not from sysconf(): where a sandbox forbids sysinfo, the C library may return any number.
    """
    try:
        with open("/proc/meminfo", "rb") as lines:
            name, number, unit = next(lines).split()
    except (OSError, ValueError, StopIteration):
        return sys.maxsize
    return int(number) << 10 if (name, unit) == (b"MemTotal:", b"kB") else sys.maxsize
