"""Object collectives: like collectives of tensors, but with Python objects. See docs/objects.md."""

from __future__ import annotations

import os
from _thread import _local
from collections.abc import Generator, Iterable
from functools import cached_property
from itertools import count
from time import monotonic
from typing import Any

from dldist import _core
from dldist._base import argument_names
from dldist._base.array_types import Timeout
from dldist._base.future import seconds_of
from dldist._base.probes import NO_RANK
from dldist._base.works import ObjectWork
from dldist._core import DistArgumentError
from dldist._objects import codec
from dldist._objects.frames import PREFIX_BYTES, Incoming, Outgoing, Refusal, cover

DEFAULT_SERIALIZER = "safe"


class _PartTags(_local):
    """Tags for the pieces of the objects that this process sends, so that each object has its own.
    Each thread has a range, because count() may repeat a number in free-threaded Python 3.13."""

    def __init__(self) -> None:
        self.numbers = count(int.from_bytes(os.urandom(7), "little") + 1)


_part_tags = _PartTags()


class Exchange:
    """One object collective or message. `name` is the call's name in error messages.

    `group` must have the operations of dldist.Group; ranks are group ranks. `serializer` is "safe",
    "pickle", or None for `group.serializer` (else "safe"). `timeout` limits the whole call.

    So that the group stays usable, every participating rank runs the same operations even after an
    error: a rank that cannot write its object sends the reason in its prefix, and a rank that
    rejects an object still receives it, then drops it.
    """

    def __init__(self, group: Any, name: str, serializer: str | None = None, timeout: Timeout | None = None) -> None:
        # Objects are bytes in host memory, which a group of devices accepts only through its host
        # view.
        host_view = getattr(group, "_host_view", None)
        self._group = group if host_view is None else host_view()
        self.rank: int = group.rank
        self.size: int = group.size
        self._name = name
        self._serializer = codec.find(serializer or getattr(group, "serializer", None) or DEFAULT_SERIALIZER)
        self._deadline = None if timeout is None else monotonic() + seconds_of(timeout)

    def all_gather(self, obj: Any) -> Any:
        return self.gather(obj, None)

    def gather(self, obj: Any, root: int | None) -> list[Any] | None:
        """Gather the objects of all ranks on the root, or on all ranks if root is None."""
        if root is not None and root not in range(self.size):
            raise DistArgumentError(f"{argument_names.title('root')} is an invalid root rank: got {root!r}, expected 0 to {self.size - 1}")
        outgoing = Outgoing(obj, self._serializer)
        prefixes = bytearray(PREFIX_BYTES * self.size)
        self._group.all_gather_single(prefixes, outgoing.prefix(outgoing.rounds), **self._remaining_timeout())
        incoming = self._incoming(prefixes, [outgoing], has_other_objects=False)
        is_receiver = root is None or root == self.rank
        for index in cover(incoming):
            buffers = [each.buffer_for(index) for each in incoming] if is_receiver else None
            if root is None:
                self._group.all_gather(buffers, outgoing.piece(index), **self._remaining_timeout())
            else:
                self._group.gather(outgoing.piece(index), buffers, root, **self._remaining_timeout())
        return self._read_all(incoming) if is_receiver else None

    def broadcast(self, obj: Any, root: int) -> Any:
        if self.rank == root:
            outgoing = Outgoing(obj, self._serializer)
            self._group.broadcast(outgoing.prefix(outgoing.rounds), root, **self._remaining_timeout())
            for index in outgoing.rounds:
                self._group.broadcast(outgoing.piece(index), root, **self._remaining_timeout())
            _raise_first([outgoing.error])
            return obj
        prefix = bytearray(PREFIX_BYTES)
        self._group.broadcast(prefix, root, **self._remaining_timeout())
        incoming = Incoming(memoryview(prefix), root, self._name)
        for index in incoming.rounds:
            self._group.broadcast(incoming.buffer_for(index), root, **self._remaining_timeout())
        return self._read(incoming)

    def scatter(self, objs: Any, root: int) -> Any:
        outgoing = self._outgoing(objs) if self.rank == root else []
        prefix = bytearray(PREFIX_BYTES)
        prefixes = [each.prefix(cover(outgoing)) for each in outgoing] or None
        self._group.scatter(prefix, prefixes, root, **self._remaining_timeout())
        incoming = Incoming(memoryview(prefix), root, self._name, has_other_objects=True)
        for index in incoming.rounds:
            pieces = [each.piece(index) for each in outgoing] or None
            self._group.scatter(incoming.buffer_for(index), pieces, root, **self._remaining_timeout())
        _raise_first(each.error for each in outgoing)
        return self._read(incoming)

    def all_to_all(self, objs: Any) -> list[Any]:
        outgoing = self._outgoing(objs)
        rounds = cover(outgoing)
        prefixes = bytearray(PREFIX_BYTES * self.size)
        self._group.all_to_all_single(prefixes, b"".join(each.prefix(rounds) for each in outgoing), **self._remaining_timeout())
        incoming = self._incoming(prefixes, outgoing, has_other_objects=True)
        for index in cover(incoming):
            buffers = [each.buffer_for(index) for each in incoming]
            self._group.all_to_all(buffers, [each.piece(index) for each in outgoing], **self._remaining_timeout())
        return self._read_all(incoming)

    def send(self, obj: Any, dst: int, tag: int) -> None:
        outgoing = Outgoing(obj, self._serializer)
        part_tag = next(_part_tags.numbers) if self._parts is not None else 0
        self._group.send(outgoing.prefix(outgoing.rounds, part_tag), dst, tag, **self._remaining_timeout())
        for index in outgoing.rounds:
            if self._parts is not None:
                self._parts._isend_part(outgoing.piece(index), dst, part_tag, **self._remaining_timeout()).wait()
            else:
                self._group.send(outgoing.piece(index), dst, tag, **self._remaining_timeout())
        _raise_first([outgoing.error])

    def isend(self, obj: Any, dst: int, tag: int) -> ObjectWork:
        parts = self._require_parts()
        outgoing = Outgoing(obj, self._serializer)
        part_tag = next(_part_tags.numbers)
        works = [self._group.isend(outgoing.prefix(outgoing.rounds, part_tag), dst, tag, **self._remaining_timeout())]
        works += [parts._isend_part(outgoing.piece(index), dst, part_tag, **self._remaining_timeout()) for index in outgoing.rounds]
        _raise_first([outgoing.error])
        return ObjectWork(self._name, (work for work in works), lambda _: True)

    def irecv(self, src: int | None, tag: int) -> ObjectWork:
        self._require_parts()
        return ObjectWork(self._name, self._receive(src, tag), lambda incoming: incoming and self._read(incoming))

    def _receive(self, src: int | None, tag: int) -> Generator[Any, None, Incoming | None]:
        """Yield the works of an object's messages, and return the object."""
        prefix = bytearray(PREFIX_BYTES)
        message = self._group.irecv(prefix, src, tag, **self._remaining_timeout())
        yield message
        if src == NO_RANK:
            return None
        incoming = Incoming(memoryview(prefix), message.source_rank(), self._name)
        for index in incoming.rounds:
            yield self._receive_part(incoming, index)
        return incoming

    def _receive_part(self, incoming: Incoming, index: int) -> Any:
        return self._require_parts()._irecv_part(
            incoming.buffer_for(index), incoming.rank, incoming.tag, **self._remaining_timeout()
        )

    @cached_property
    def _parts(self) -> _core.Group | None:
        """The group that sends and receives an object's pieces apart from messages with the same tag."""
        find_calls = getattr(self._group, "_calls_for_message", None)
        calls = self._group if find_calls is None else find_calls(b"")
        return calls if isinstance(calls, _core.Group) else None

    def _require_parts(self) -> _core.Group:
        if self._parts is None:
            raise DistArgumentError(f"{self._name}(): got a group of another backend, expected a group whose messages dldist sends on the CPU")
        return self._parts

    def recv(self, src: int | None, tag: int) -> tuple[Any, int]:
        if src == NO_RANK:
            return None, NO_RANK
        prefix = bytearray(PREFIX_BYTES)
        source = self._group.recv(prefix, src, tag, **self._remaining_timeout())
        incoming = Incoming(memoryview(prefix), source, self._name)
        for index in incoming.rounds:
            if incoming.tag:
                self._receive_part(incoming, index).wait()
            else:
                self._group.recv(incoming.buffer_for(index), source, tag, **self._remaining_timeout())
        return self._read(incoming), source

    def _outgoing(self, objs: Any) -> list[Outgoing]:
        """Encode the object for each rank. If one cannot be encoded, all ranks get its error."""
        size = self.size
        if isinstance(objs, (list, tuple)) and len(objs) == size:
            outgoing = [Outgoing(obj, self._serializer) for obj in objs]
            error = next((each.error for each in outgoing if each.error is not None), None)
        elif isinstance(objs, Refusal):
            error = objs.error
        else:
            description = f"{len(objs)}" if isinstance(objs, (list, tuple)) else f"a {type(objs).__name__}"
            where = argument_names.title("objs", self._name)
            error = ValueError(f"{where} has another number of objects: got {description}, expected a list of {size}, one for each rank")
        if error is not None:
            outgoing = [Outgoing(Refusal(error), self._serializer)] * size
        return outgoing

    def _incoming(self, prefixes: bytearray, outgoing: list[Outgoing], has_other_objects: bool) -> list[Incoming]:
        """Parse the prefixes of all ranks. If one has an error, raise the error on all ranks."""
        view = memoryview(prefixes)
        starts = range(0, len(view), PREFIX_BYTES)
        incoming = [Incoming(view[start : start + PREFIX_BYTES], rank, self._name, has_other_objects) for rank, start in enumerate(starts)]
        _raise_first(each.error for each in outgoing)
        self._check(incoming)
        return incoming

    def _check(self, incoming: list[Incoming]) -> None:
        _raise_first(each.failure() for each in incoming)
        _raise_first(each.mismatch(self._serializer) for each in incoming)

    def _read(self, incoming: Incoming) -> Any:
        self._check([incoming])
        return incoming.read(self._serializer)

    def _read_all(self, incoming: list[Incoming]) -> list[Any]:
        return [each.read(self._serializer) for each in incoming]

    def _remaining_timeout(self) -> dict[str, Any]:
        """Return the next operation's timeout: the call's remaining time, or the group's."""
        # If no time is left, let the operation time out, because its error names the late ranks.
        return {} if self._deadline is None else {"timeout": max(self._deadline - monotonic(), 1e-3)}


def _raise_first(errors: Iterable[Exception | None]) -> None:
    for error in errors:
        if error is not None:
            raise error
