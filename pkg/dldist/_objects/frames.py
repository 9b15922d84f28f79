"""The wire format of an object: a prefix of fixed size, then *pieces*: the head, unless the prefix
holds it, and each buffer. All ranks run the same rounds and send one piece in each round, so that
pieces need not be padded or concatenated.

    prefix   32 bytes (see _PREFIX), and the head if it fits into the rest
    round 0  the head: the serializer's output, and the sizes of the buffers, 8 bytes each
    round i  buffer i - 1

A rank that cannot write its object sends the reason as the head.
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

# Magic, version, serializer, first round, last round + 1, buffer count, head bytes, buffer bytes, tag of the pieces.
_PREFIX = struct.Struct("<4sBBxBIIQQq")
_MAGIC = b"dlob"
_VERSION = 1
_FAILED = 0  # replaces the serializer's number if the head is an error text
_INLINE_BYTES = PREFIX_BYTES - _PREFIX.size
ROUNDS_MAX = 1 << 20
"""Maximum number of an object's buffers, as receivers wait for all: 64 GiB of the smallest."""


class Refusal:
    """Sent by a rank instead of an object, so that the other ranks get its error too."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class Outgoing:
    """An object to send."""

    __slots__ = ("_buffers", "_head", "_number", "error", "rounds")

    def __init__(self, obj: Any, serializer: Any) -> None:
        self._buffers: list[memoryview] = []
        self._number = serializer.number
        self.error: Exception | None = None
        """The error if there is no object. Raised once the other ranks have the reason."""
        head = BytesIO()
        try:
            if type(obj) is Refusal:
                raise obj.error
            buffers = serializer.write(obj, head)
            if len(buffers) > ROUNDS_MAX:
                raise ValueError(f"too many arrays of at least {codec.IN_BAND_BYTES} bytes: got {len(buffers)}, expected at most {ROUNDS_MAX}")
            self._buffers = buffers
        except Exception as error:
            self.error = error
            self._number = _FAILED
            head = BytesIO(_describe(error))
        head.seek(0, os.SEEK_END)
        head.write(struct.pack(f"<{len(self._buffers)}Q", *(buffer.nbytes for buffer in self._buffers)))
        # Not getbuffer(): since Python 3.13, freeing a BytesIO with an exported buffer warns.
        self._head = memoryview(head.getvalue())
        self.rounds = _rounds_of(len(self._head), len(self._buffers))

    def prefix(self, rounds: range, tag: int = 0) -> bytes:
        """Return the prefix. `rounds` is the range of rounds of all objects in the same call; `tag`
        is the tag of the pieces in the channel for parts, or 0."""
        nbytes = sum(buffer.nbytes for buffer in self._buffers)
        fields = (_MAGIC, _VERSION, self._number, rounds.start, rounds.stop, len(self._buffers), len(self._head), nbytes, tag)
        inline_head = bytes(self._head) if len(self._head) <= _INLINE_BYTES else b""
        return (_PREFIX.pack(*fields) + inline_head).ljust(PREFIX_BYTES, b"\0")

    def piece(self, index: int) -> memoryview:
        """Return the bytes to send in a round; empty in a round that only other objects need."""
        if index not in self.rounds:
            return memoryview(b"")
        return self._buffers[index - 1] if index else self._head


def _rounds_of(head_bytes: int, buffer_count: int) -> range:
    return range(1 if head_bytes <= _INLINE_BYTES else 0, 1 + buffer_count)


def cover(frames: Sequence[Outgoing | Incoming]) -> range:
    """Return the smallest range of rounds that covers all these objects."""
    return range(min(frame.rounds.start for frame in frames), max(frame.rounds.stop for frame in frames))


def _describe(error: Exception) -> bytes:
    name = type(error).__name__
    try:
        text = f"{name}: {error}"
    except Exception:  # __str__ may raise anything, but the other ranks wait for a reason
        text = f"{name}, whose text could not be made"
    # errors="ignore" drops a character that the limit has cut.
    return text.encode("utf-8", "replace")[:_INLINE_BYTES].decode("utf-8", "ignore").encode()


class Incoming:
    """An object to receive from `rank`. Every field of the object's prefix is checked before use.

    `has_other_objects`: the sender also sends other objects, which may need more rounds."""

    __slots__ = ("_buffer_bytes", "_buffers", "_call", "_count", "_head", "_head_bytes", "_own_rounds", "number", "rank", "rounds", "tag")

    def __init__(self, prefix: memoryview, rank: int, call: str, has_other_objects: bool = False) -> None:
        self.rank = rank
        self._call = call
        fields = _PREFIX.unpack_from(prefix)
        magic, version, self.number, first, stop, self._count, self._head_bytes, self._buffer_bytes, self.tag = fields
        if magic != _MAGIC or version != _VERSION:
            raise self._error("sent a malformed object, or has another version of dldist")
        nbytes = self._head_bytes + self._buffer_bytes
        if nbytes > _memory_limit():
            raise self._error(f"sent an object too large for this machine: got {nbytes} bytes, expected at most {_memory_limit()}")
        self.rounds = range(first, stop)
        self._own_rounds = _rounds_of(self._head_bytes, self._count)
        is_valid = self.tag >= 0 and 8 * self._count <= self._head_bytes and codec.IN_BAND_BYTES * self._count <= self._buffer_bytes
        if not is_valid or not self._has_valid_rounds(has_other_objects):
            raise self._error("sent a malformed object: its sizes do not fit its number of buffers")
        self._buffers: list[memoryview] = []
        self._head: memoryview | None = prefix[_PREFIX.size :][: self._head_bytes] if self._own_rounds.start else None

    def _has_valid_rounds(self, has_other_objects: bool) -> bool:
        """True if the rounds match the sizes. Otherwise a peer could force many empty rounds."""
        if not has_other_objects:
            return self.rounds == self._own_rounds
        return self.rounds.start <= self._own_rounds.start and self._own_rounds.stop <= self.rounds.stop <= ROUNDS_MAX + 1

    def failure(self) -> DistError | None:
        """Return an error with the sender's reason for sending no object; None if it sent one."""
        if self.number != _FAILED:
            return None
        reason = bytes((self._head or b"")[:_INLINE_BYTES]).decode("utf-8", "replace")
        return self._error(f"could not send its object: {reason}")

    def mismatch(self, serializer: Any) -> DistError | None:
        """Return an error if the sender used another serializer; otherwise None."""
        if self.number == serializer.number:
            return None
        names = {codec.find(name).number: name for name in codec.MODULES}
        sender_serializer = repr(names.get(self.number, f"number {self.number}"))
        return self._error(
            f"used another serializer: got serializer={sender_serializer}, expected serializer={serializer.name!r}", DistMismatchError
        )

    def buffer_for(self, index: int) -> memoryview:
        """Return memory, maybe empty, to receive a round's piece. Call once per round, in order."""
        if index not in self._own_rounds:
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
            raise self._error(f"sent a malformed object: got buffers of {sum(sizes)} bytes, expected {self._buffer_bytes}")
        self._buffers = [codec.new_buffer(size) for size in sizes]

    def read(self, serializer: Any) -> Any:
        """Decode the object. Call this after all pieces have been received."""
        assert self._head is not None
        try:
            return serializer.read(self._head[: self._head_bytes - 8 * self._count], self._buffers)
        except Exception as error:
            error.add_note(f"{self._call}(): while reading the object of rank {self.rank} (serializer={serializer.name!r})")
            raise

    def _error(self, text: str, kind: type[DistError] = DistError) -> DistError:
        error = kind(f"{self._call}(): rank {self.rank} {text}")
        error.rank = self.rank
        return error


@cache
def _memory_limit() -> int:
    """Return the physical memory in bytes, or sys.maxsize if /proc does not have it.

    sysconf() is not used: if a sandbox blocks sysinfo, the C library may return any number.
    """
    try:
        with open("/proc/meminfo", "rb") as lines:
            name, number, unit = next(lines).split()
    except (OSError, ValueError, StopIteration):
        return sys.maxsize
    return int(number) << 10 if (name, unit) == (b"MemTotal:", b"kB") else sys.maxsize
