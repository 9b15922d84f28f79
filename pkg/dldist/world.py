"""World: processes that work together, as an object."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

from dldist import _core, carriers, rendezvous
from dldist._base import callback_thread, monitor_thread  # noqa: F401 - processes that are forked later need both
from dldist._base.array_types import Tensor, Timeout
from dldist._base.options import to_timedelta
from dldist._base.rank_lists import read_ranks
from dldist._objects.exchange import Exchange
from dldist._windows import symmetric
from dldist._windows.window import Window
from dldist.rendezvous import Meeting

CLOSE_TIMEOUT_S = 10.0
"""How long operations under way may hold up the end of a group that is closed without saying."""


class World(_core.Group):
    """Processes that work together: a Group that finds its ranks by itself, makes groups of its members and moves objects.

    The ranks meet in `store`, at `init_method`, or else where the launcher says: torchrun, dlrun, Slurm, mpirun; a process that
    nobody has launched is a world of one. A process may be in any number of worlds. All ranks are those of the world. As a
    context manager it is closed at the end of the block, and aborted where an exception leaves it.

    Args:
        store: Where the ranks meet, with `rank` and `world_size`.
        rank: The rank of this process, from 0, where nothing else says so.
        world_size: How many ranks there are, where nothing else says so.
        name: Tells worlds apart that meet in one place; the same on all ranks.
        timeout: Seconds or a timedelta, for meeting and for each operation that has none of its own.
        connect_timeout: For meeting alone; None is `timeout`.
        init_method: A URL instead of a store: "env://", "tcp://host:port", "file:///path", or of a registered scheme.
        serializer: How objects travel when a call does not say: "safe", which executes no code of the sender, or "pickle".
        carrier: The library that moves the data instead of dldist: "mpi", "ucc" or "xccl" (docs/carriers.md). With "mpi", MPI says who
            this rank is, and where ranks meet unless a store or a URL does.

    Raises:
        NotImplementedError: The carrier's library cannot be loaded; the text says what to install.
        ValueError: Both a store and a URL are given, or rank and size are not known or do not fit.
        DistTimeoutError: Ranks have not come in time; the text names them.
        DistPeerLostError: A rank has died meanwhile.

    Example:
        >>> with World() as world:                       # nothing set: a world of one
        ...     world.all_gather_object("hello")
        ['hello']
    """

    # Of groups that split() makes, for which __init__ does not run, too.
    _meeting: Meeting | None = None
    _is_watched = False
    serializer = "safe"
    """How objects travel when a call does not say: "safe", which executes no code of the sender, or "pickle"."""
    carrier: str | None = None
    """The library that moves the data, such as "mpi"; None if dldist does."""

    def __init__(
        self,
        store: _core.Store | None = None,
        rank: int = -1,
        world_size: int = -1,
        *,
        name: str = "default",
        timeout: Timeout = 1800.0,
        connect_timeout: Timeout | None = None,
        init_method: str | None = None,
        serializer: str = "safe",
        carrier: str | None = None,
    ) -> None:
        if store is not None and init_method is not None:
            raise ValueError("World(): give 'store' or 'init_method', not both")
        self.serializer = _check_serializer(serializer)
        if store is not None:
            super().__init__(store, rank, world_size, timeout=timeout, name=name, connect_timeout=connect_timeout)
            self._begin(carrier)
            return

        limit = timeout if connect_timeout is None else connect_timeout
        place = None
        if carrier == "mpi" and init_method is None:
            from dldist.carriers import _mpi

            place = _mpi.place(rank, world_size)
        meeting = rendezvous.meet(init_method, rank, world_size, timeout=limit, name=name, place=place)
        with meeting:
            super().__init__(
                meeting.store, meeting.rank, meeting.world_size, timeout=timeout, name=name, connect_timeout=connect_timeout
            )
            meeting.met()
        self._meeting = meeting
        self._begin(carrier)

    def __repr__(self) -> str:
        return super().__repr__().replace("dldist.Group", "dldist.World", 1)

    @property
    def world_size(self) -> int:
        """How many ranks there are; also `size`."""
        return self.size

    def new_group(self, ranks: Sequence[int], *, name: str | None = None, timeout: Timeout | None = None) -> World | None:
        """A group of some ranks, made by them alone; the others may call it, too.

        Args:
            ranks: The members, in the order of their ranks in the group.
            name: As in split.
            timeout: As in split.

        Returns:
            The group; None where this rank is not in it.

        Example:
            >>> with World() as world:
            ...     world.new_group([0]).size
            1
        """
        ranks = read_ranks(ranks, self.size)
        return self.split(ranks, name, timeout) if self.rank in ranks or len(ranks) > self.size else None

    def split(self, ranks: Sequence[int], name: str | None = None, timeout: Timeout | None = None) -> World:
        """A group of some ranks, made by them alone. It ends with this one at the latest.

        Args:
            ranks: The members, this rank among them, in the order of their ranks in the group; the same on all of them.
            name: For errors and records; made from the ranks unless given.
            timeout: Seconds or a timedelta for meeting and for the group's operations; this group's unless given.

        Raises:
            ValueError: A rank is not in this group or is there twice, or this rank is not a member.
            DistTimeoutError: Members have not come in time.

        Example:
            >>> with World() as world, world.split([0], timeout=10) as alone:
            ...     alone.barrier()
        """
        part = super().split(read_ranks(ranks, self.size), name, timeout)
        part.serializer = self.serializer
        part._begin(self.carrier)
        self._parts().add(part)
        return part

    def close(self, timeout: Timeout | None = None) -> None:
        """Say goodbye, after the operations under way have ended or the time is up; first of all in the groups made from this one.

        Args:
            timeout: Seconds or a timedelta for all of them together: 10 seconds unless given; 0 waits for nothing.

        Example:
            >>> world = World()
            >>> world.close()
        """
        left = _countdown(timeout)
        _let_compiled_calls_finish()
        try:
            call_all([lambda close=close: close(left()) for close in [*self._of_parts("close"), super().close]])
        finally:
            self._unwatch()
            self._leave_meeting()

    def abort(self, reason: str = "abort() was called") -> None:
        """End this group, those made from it, and what is under way in them, at once, from any thread.

        Args:
            reason: What the DistAbortedError of the other ranks says.
        """
        call_all([*self._of_parts("abort"), super().abort], reason)
        self._unwatch()

    def __exit__(self, *exception: object) -> None:
        if exception[0] is None:
            self.close()
            return
        try:
            call_all([*self._of_parts("__exit__"), super().__exit__], *exception)
        finally:
            self._unwatch()
            self._leave_meeting()

    def _parts(self) -> WeakSet[World]:
        """The groups made from this one that somebody still holds."""
        return self.__dict__.setdefault("_made", WeakSet())  # one set, whichever thread comes first

    def _of_parts(self, method: str) -> list[Callable[..., object]]:
        """The methods that end the groups made from this one, which are forgotten."""
        return [getattr(part, method) for part in self.__dict__.pop("_made", ())]

    def _begin(self, carrier: str | None) -> None:
        """What is left to do once the ranks have found each other."""
        if carrier is not None:
            self._carry_by(carrier)
        self._watch()

    def _carry_by(self, carrier: str) -> None:
        carriers.carry(self, carrier)
        self.carrier = carrier

    def _watch(self) -> None:
        """Let the monitor look after this group, if others are in it."""
        if self.size > 1:
            try:
                monitor_thread.add(self)
            except BaseException as error:
                self.abort(f"{type(error).__name__}: {error}")  # as a `with` block does
                raise
            self._is_watched = True

    def _unwatch(self) -> None:
        if self._is_watched:
            monitor_thread.remove(self)

    def _leave_meeting(self) -> None:
        meeting, self._meeting = self._meeting, None
        if meeting is not None:
            meeting.close()

    # ---- memory of the others

    def rendezvous(self, array: Tensor | None) -> symmetric.SymmetricMemory:
        """Let the ranks reach each other's arrays. All ranks call it.

        Args:
            array: What the others reach, for each rank one of its own, of any size; None: nothing. Those that this group's empty()
                has made are reached directly on one host, others by messages.

        Returns:
            A SymmetricMemory, with put, get and signals. docs/symmetric-memory.md says what is promised.

        Example:
            >>> with World() as world:
            ...     memory = world.rendezvous(world.empty(4, "int32"))
            ...     memory.put(array("i", [7]), rank=0, offset=1)
        """
        return symmetric.rendezvous(self, array)

    def new_window(self, tensor: Tensor | None = None) -> Window:
        """c10d's window: memory of every rank that the others put into. All ranks call it.

        Args:
            tensor: This rank's memory; without it tensor_register() gives it later.
        """
        return Window(self, tensor)

    # ---- objects

    def all_gather_object(self, obj: Any, *, serializer: str | None = None, timeout: Timeout | None = None) -> list[Any]:
        """The objects of all ranks, on every rank.

        Args:
            obj: What this rank gives.
            serializer: "safe", which executes no code of the sender, or "pickle"; the same on all ranks. None is the world's.
            timeout: Seconds or a timedelta for the whole call. None is the group's own.

        Returns:
            A list of copies, by rank.

        Raises:
            TypeError: An object is not one that the serializer takes; on all ranks, and the group lives on.
            DistMismatchError: The ranks differ in the call, or in the serializer.
            DistTimeoutError, DistPeerLostError, DistAbortedError: As of collectives: the group is of no more use.

        Example:
            >>> with World() as world:
            ...     world.all_gather_object({"loss": 0.5})
            [{'loss': 0.5}]
        """
        return Exchange(self, "all_gather_object", serializer, timeout).all_gather(obj)

    def gather_object(
        self, obj: Any, root: int = 0, *, serializer: str | None = None, timeout: Timeout | None = None
    ) -> list[Any] | None:
        """The objects of all ranks, on one rank.

        Args:
            obj: What this rank gives.
            root: The rank that gets them; the same on all ranks.
            serializer: As in all_gather_object, as are `timeout` and the errors.

        Returns:
            A list of copies, by rank, on the root; None on the others.
        """
        return Exchange(self, "gather_object", serializer, timeout).gather(obj, root)

    def broadcast_object(
        self, obj: Any = None, root: int = 0, *, serializer: str | None = None, timeout: Timeout | None = None
    ) -> Any:
        """The object of one rank, on every rank.

        Args:
            obj: What the root gives; that of the others is not looked at.
            root: The rank that has it; the same on all ranks.
            serializer: As in all_gather_object, as are `timeout` and the errors.

        Returns:
            A copy; on the root the object itself.

        Example:
            >>> with World() as world:
            ...     world.broadcast_object({"lr": 0.1} if world.rank == 0 else None)
            {'lr': 0.1}
        """
        return Exchange(self, "broadcast_object", serializer, timeout).broadcast(obj, root)

    def scatter_objects(
        self, objs: Sequence[Any] | None = None, root: int = 0, *, serializer: str | None = None, timeout: Timeout | None = None
    ) -> Any:
        """The object that one rank has for this rank.

        Args:
            objs: On the root an object for each rank; those of the others are not looked at.
            root: The rank that has them; the same on all ranks.
            serializer: As in all_gather_object, as are `timeout` and the errors.

        Raises:
            ValueError: There is not one object for each rank.
        """
        return Exchange(self, "scatter_objects", serializer, timeout).scatter(objs, root)

    def all_to_all_objects(
        self, objs: Sequence[Any], *, serializer: str | None = None, timeout: Timeout | None = None
    ) -> list[Any]:
        """Give objs[r] to rank r, and get one from each.

        Args:
            objs: An object for each rank.
            serializer: As in all_gather_object, as are `timeout` and the errors.

        Returns:
            A list of copies: what each rank had for this one.
        """
        return Exchange(self, "all_to_all_objects", serializer, timeout).all_to_all(objs)

    def send_object(
        self, obj: Any, dst: int, tag: int = 0, *, serializer: str | None = None, timeout: Timeout | None = None
    ) -> None:
        """Send an object to another rank. One thread at a time may send objects to one rank with one tag.

        Args:
            obj: What is sent.
            dst: The rank.
            tag: A number of 0 or more that the receiver has to name as well.
            serializer: As in all_gather_object.
            timeout: Seconds or a timedelta for the whole call. None is the group's own.

        Raises:
            TypeError: The object is not one that the serializer takes; on both sides.
            DistTimeoutError: Nobody has received it in time. The group lives on.
        """
        Exchange(self, "send_object", serializer, timeout).send(obj, dst, tag)

    def recv_object(
        self, src: int | None = None, tag: int = 0, *, serializer: str | None = None, timeout: Timeout | None = None
    ) -> Any:
        """An object that a rank, or any rank, has sent.

        Args:
            src: The rank; None: any.
            tag: The number that the sender has given.
            serializer: As in all_gather_object.
            timeout: Seconds or a timedelta for the whole call. None is the group's own.

        Raises:
            TypeError: The sender's object is not one that the serializer takes.
            DistMismatchError: The sender has taken another serializer.
            DistTimeoutError: Nothing has come in time. The group lives on.
        """
        return Exchange(self, "recv_object", serializer, timeout).recv(src, tag)[0]

    def recv_object_with_source(
        self, src: int | None = None, tag: int = 0, *, serializer: str | None = None, timeout: Timeout | None = None
    ) -> tuple[Any, int]:
        """The same as recv_object, with the same arguments (`src`, `tag`, `serializer`, `timeout`), and the rank that has sent it.

        Returns:
            The object, and the sender's rank.
        """
        return Exchange(self, "recv_object_with_source", serializer, timeout).recv(src, tag)


def call_all(calls: list[Callable[..., object]], *arguments: Any) -> None:
    """Call each, whatever the others do; the first exception is raised in the end, or the first interrupt if there was one.

    Notes of the first exception name the others."""
    failure: BaseException | None = None
    for call in calls:
        try:
            call(*arguments)
        except Exception as error:
            if failure is None:
                failure = error
            else:
                failure.add_note("\n".join([f"and {type(error).__name__}: {error}", *getattr(error, "__notes__", ())]))
        except BaseException as interrupt:
            failure = interrupt if isinstance(failure, Exception | None) else failure
    try:
        if failure is not None:
            raise failure
    finally:
        del failure  # its traceback has this frame, and with it what is ended here


def _countdown(timeout: Timeout | None) -> Callable[[], float]:
    """What is left of the time of close(), whenever that is asked."""
    seconds = CLOSE_TIMEOUT_S
    if timeout is not None:
        seconds = to_timedelta(timeout, "close(): argument 'timeout'").total_seconds()
    end = time.monotonic() + seconds
    return lambda: max(end - time.monotonic(), 0.0)


def _let_compiled_calls_finish() -> None:
    form = sys.modules.get("dldist.functional.form")  # without it there is nothing compiled
    if form is not None:
        form.let_compiled_calls_finish()


def _check_serializer(name: str) -> str:
    if name not in ("pickle", "safe"):
        raise ValueError(f'World(): argument \'serializer\' must be "pickle" or "safe", not {name!r}')
    return name
