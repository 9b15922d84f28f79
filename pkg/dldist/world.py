"""World: a group of processes that work together, as an object."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Self, TypedDict, TypeVar, Unpack, overload
from weakref import WeakSet

from dldist import _core, carriers, rendezvous
from dldist._base import argument_names, callback_thread, monitor_thread, probes  # noqa: F401 - forked children need both
from dldist._base.array_types import Tensor, Timeout
from dldist._base.options import to_timedelta
from dldist._base.works import ObjectWork
from dldist._objects import codec
from dldist._objects.exchange import Exchange
from dldist._rendezvous import urls
from dldist._windows import symmetric
from dldist._windows.window import Window
from dldist.rendezvous import Meeting

_T = TypeVar("_T")
CLOSE_TIMEOUT_S = 10.0
"""The default timeout of close() for operations in progress, in seconds."""


class _Options(TypedDict, total=False):
    """Keyword arguments of World that do not concern the rendezvous."""

    name: str
    timeout: Timeout | None
    connect_timeout: Timeout | None
    serializer: str
    carrier: str | None


class World(_core.Group):
    """Processes that work together: a Group that does its own rendezvous and also sends objects.

    The rendezvous of the ranks uses `store`, or settings of the launcher (torchrun, dlrun, Slurm,
    mpirun). A process without a launcher is a world of one. A process may be in several worlds, and
    has a rank in each. A `with` block closes it, or aborts it after an exception.

    Args:
        store: The place of the rendezvous: a URL ("env://", "tcp://host:port", "file:///path", or
            of a registered scheme), or a Store, which needs `rank` and `world_size`.
        rank: The rank of this process, from 0. None if the URL or the launcher gives it.
        world_size: The number of ranks. None if the URL or the launcher gives it.
        name: Distinguishes worlds that use the same store or URL. Must be the same on all ranks.
        timeout: Seconds or a timedelta, for rendezvous, and operations without their own timeout;
            None for 30 minutes.
        connect_timeout: Seconds or a timedelta only for the rendezvous; None for `timeout`.
        serializer: The default for objects: "safe" (runs no code from the sender) or "pickle".
        carrier: A library that moves the data instead of dldist: "mpi", "ucc" or "xccl"
            (docs/carriers.md). "mpi" also gives the rank and, without a store or URL, the
            rendezvous.

    Raises:
        NotImplementedError: The carrier's library cannot be loaded; the text names what to install.
        ValueError: `store` is a string but no URL, or the rank or size is missing or invalid.
        DistTimeoutError: Ranks did not join before the timeout; the text names them.
        DistPeerLostError: A rank was lost during the rendezvous.

    Example:
        >>> with World() as world:                       # nothing set: a world of one
        ...     world.all_gather_object("hello")
        ['hello']
    """

    # Defaults for groups that split() creates, because split() does not run __init__.
    _meeting: Meeting | None = None
    _is_monitored = False
    serializer = "safe"
    """The default serializer: "safe", which runs no code from the sender, or "pickle"."""
    carrier: str | None = None
    """The library that moves the data, such as "mpi"; None if dldist moves the data."""

    def __init__(
        self,
        store: _core.Store | str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        *,
        name: str = "default",
        timeout: Timeout | None = None,
        connect_timeout: Timeout | None = None,
        serializer: str = "safe",
        carrier: str | None = None,
    ) -> None:
        _follow_logger()
        self.serializer = codec.check(serializer)
        endpoint: Any = store if isinstance(store, urls.Endpoint) else None  # from from_mpi or from_torch
        if endpoint is None and not isinstance(store, (_core.Store, str, type(None))):
            raise TypeError(f"World(): argument 'store' must be a Store, not {argument_names.type_name(store)}")
        if isinstance(store, str) and "://" not in store:
            raise ValueError(f"World(): argument 'store' is not a URL: got {store!r}, expected for example 'tcp://host:port' or a Store")
        if isinstance(store, _core.Store):
            if rank is None or world_size is None:
                raise ValueError("World(): a Store does not give ranks: got None, expected the arguments 'rank' and 'world_size'")
            super().__init__(store, rank, world_size, timeout=timeout, name=name, connect_timeout=connect_timeout)
            self._activate(carrier)
            return

        timeout = rendezvous.DEFAULT_TIMEOUT_S if timeout is None else timeout
        if connect_timeout is not None:
            to_timedelta(connect_timeout, "World(): argument 'connect_timeout'")
        limit = timeout if connect_timeout is None else connect_timeout
        rank, world_size = (-1 if number is None else number for number in (rank, world_size))
        if carrier == "mpi" and store is None:
            from dldist.carriers import _mpi

            endpoint = _mpi.world_endpoint(rank, world_size)
        meeting = rendezvous.meet(store, rank, world_size, timeout=limit, name=name, endpoint=endpoint)
        with meeting:
            super().__init__(
                meeting.store, meeting.rank, meeting.world_size, timeout=timeout, name=name, connect_timeout=connect_timeout
            )
            meeting.mark_connected()
        self._meeting = meeting
        self._activate(carrier)

    @classmethod
    def from_mpi(cls, comm: Any, *, host: str | None = None, **options: Unpack[_Options]) -> Self:
        """Create a world of the ranks of an mpi4py communicator. All its ranks must call this.

        The ranks have the same numbers in both. Rank 0 serves the store and gives the ranks its
        address and a secret.

        Args:
            comm: An intracommunicator, such as MPI.COMM_WORLD or the result of comm.Split().
            host: On rank 0, a name or address of its host that all ranks can reach; by default the
                host's name, or "localhost" if all ranks are on one host.
            options: As for World: name, timeout, connect_timeout, serializer, carrier. A timeout does
                not limit the calls of the communicator.

        Raises:
            TypeError, ValueError: `comm` is no communicator, MPI.COMM_NULL, or an intercommunicator.
            DistStoreError: Rank 0 could not serve the store; the text has the reason.
            DistTimeoutError: Ranks did not join before the timeout.
        """
        from dldist._rendezvous import communicators

        return cls(communicators.mpi_endpoint(comm, host), **options)  # type: ignore[arg-type]

    @classmethod
    def from_torch(cls, group: Any = None, *, host: str | None = None, **options: Unpack[_Options]) -> Self:
        """Create a world of the ranks of a torch.distributed group. All its ranks must call this.

        Args:
            group: A ProcessGroup of torch.distributed, of any backend that has all_gather_object;
                None for the default group.
            host: As in from_mpi, like `options` and the errors.
        """
        from dldist._rendezvous import communicators

        return cls(communicators.torch_endpoint(group, host), **options)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return super().__repr__().replace("dldist.Group", "dldist.World", 1)

    @property
    def world_size(self) -> int:
        """The number of ranks; the same as `size`."""
        return self.size

    def new_group(self, ranks: Sequence[int], *, name: str | None = None, timeout: Timeout | None = None) -> World | None:
        """Create a group of some ranks. Only the members need to call this; others get None.

        Args:
            ranks: The members, in the order of their ranks in the group.
            name: As in split, like `timeout`.

        Example:
            >>> with World() as world:
            ...     world.new_group([0]).size
            1
        """
        ranks = argument_names.read_ranks(ranks, self.size)
        return self.split(ranks, name, timeout) if self.rank in ranks or len(ranks) > self.size else None

    def split(self, ranks: Sequence[int], name: str | None = None, timeout: Timeout | None = None) -> World:
        """Create a group of some ranks. Only members call this. Closing the parent closes it too.

        Args:
            ranks: The members, including this rank, in order of their new ranks; the same on all.
            name: The name in errors and records; by default derived from the ranks.
            timeout: Seconds or a timedelta for rendezvous and operations; by default this group's.

        Raises:
            ValueError: A rank is repeated or not in this group, or this rank is not a member.
            DistTimeoutError: Members did not join before the timeout.

        Example:
            >>> with World() as world, world.split([0], timeout=10) as alone:
            ...     alone.barrier()
        """
        group = super().split(argument_names.read_ranks(ranks, self.size), name, timeout)
        group.serializer = self.serializer
        group._activate(self.carrier)
        # One set, if several threads call this, of the groups that are still referenced.
        self.__dict__.setdefault("_subgroups", WeakSet()).add(group)
        return group

    def split_by(self, color: Any, key: Any = 0, *, name: str | None = None, timeout: Timeout | None = None) -> World | None:
        """Create a group of the ranks with the same color. All ranks of this group must call this,
        and get None if `color` is None.

        Args:
            color: Any object that all_gather_object sends and that can be compared, such as a
                number or a name; None if this rank takes no part.
            key: The ranks of a group are ordered by key, and by rank if keys are equal.
            name: As in split, like `timeout`.

        Example:
            >>> with World() as world:
            ...     world.split_by(color=world.rank % 2).size
            1
        """
        entries = self.all_gather_object((color, key), timeout=timeout)
        if color is None:
            return None
        members = [rank for rank, (other, _) in enumerate(entries) if other == color]
        return self.split(sorted(members, key=lambda rank: entries[rank][1]), name, timeout)

    def close(self, timeout: Timeout | None = None) -> None:
        """Close the groups made from this group, then this group, once their operations have ended.

        Args:
            timeout: Seconds or a timedelta for the call; by default 10 seconds; 0 does not wait.

        Example:
            >>> world = World()
            >>> world.close()
        """
        remaining = _countdown(timeout)
        _wait_for_compiled_calls()
        try:
            call_all([lambda close=close: close(remaining()) for close in [*self._subgroup_methods("close"), super().close]])
        finally:
            self._stop_monitoring()
            self._close_meeting()

    def abort(self, reason: str = "abort() was called") -> None:
        """Abort this group, the groups made from it and all operations. Callable from any thread.

        Args:
            reason: The text for the DistAbortedError of the other ranks.
        """
        call_all([*self._subgroup_methods("abort"), super().abort], reason)
        self._stop_monitoring()

    def __exit__(self, *exception: object) -> None:
        if exception[0] is None:
            self.close()
            return
        try:
            call_all([*self._subgroup_methods("__exit__"), super().__exit__], *exception)
        finally:
            self._stop_monitoring()
            self._close_meeting()

    def _subgroup_methods(self, method: str) -> list[Callable[..., object]]:
        """Forget the groups made from this group, and return each one's method of this name."""
        return [getattr(group, method) for group in self.__dict__.pop("_subgroups", ())]

    def _activate(self, carrier: str | None) -> None:
        """Set the carrier and start monitoring. Call this once the ranks are connected."""
        if carrier is not None:
            self._use_carrier(carrier)
        self._start_monitoring()

    def _use_carrier(self, carrier: str) -> None:
        carriers.carry(self, carrier)
        self.carrier = carrier

    def _start_monitoring(self) -> None:
        """Make the monitor watch this group, if it has several ranks."""
        if self.size > 1:
            try:
                monitor_thread.add(self)
            except BaseException as error:
                self.abort(f"{type(error).__name__}: {error}")  # abort like a failed `with` block
                raise
            self._is_monitored = True

    def _stop_monitoring(self) -> None:
        if self._is_monitored:
            monitor_thread.remove(self)

    def _close_meeting(self) -> None:
        meeting, self._meeting = self._meeting, None
        if meeting is not None:
            meeting.close()

    # ---- memory of other ranks

    def rendezvous(self, array: Tensor | None) -> symmetric.SymmetricMemory:
        """Make the ranks' arrays accessible to each other: return a SymmetricMemory, with put, get
        and signals (docs/symmetric-memory.md). All ranks must call this.

        Args:
            array: This rank's array, of any size; None if it has no memory to share. On one host,
                arrays from this group's empty() are accessed directly, other arrays by messages.

        Example:
            >>> with World() as world:
            ...     memory = world.rendezvous(world.empty(4, "int32"))
            ...     memory.put(array("i", [7]), rank=0, offset=1)
        """
        return symmetric.rendezvous(self, array)

    def new_window(self, tensor: Tensor | None = None) -> Window:
        """Create c10d's window: memory that other ranks can write. All ranks must call this.

        Args:
            tensor: This rank's memory, or None to set it later with tensor_register().
        """
        return Window(self, tensor)

    # ---- objects

    def all_gather_object(self, obj: _T, *, serializer: str | None = None, timeout: Timeout | None = None) -> list[_T]:
        """Gather the objects of all ranks on every rank. Return a list of copies, by rank.

        Args:
            obj: The object of this rank.
            serializer: "safe" (runs no sender code) or "pickle" on all ranks; None for the world's.
            timeout: Seconds or a timedelta for the whole call. None is the group's own.

        Raises:
            TypeError: The serializer rejects an object. Raised on all ranks; the group stays
                usable.
            DistMismatchError: The ranks differ in the call or the serializer.
            DistTimeoutError, DistPeerLostError, DistAbortedError: As for collectives.

        Example:
            >>> with World() as world:
            ...     world.all_gather_object({"loss": 0.5})
            [{'loss': 0.5}]
        """
        return Exchange(self, "all_gather_object", serializer, timeout).all_gather(obj)

    def gather_object(
        self, obj: _T, root: int = 0, *, serializer: str | None = None, timeout: Timeout | None = None
    ) -> list[_T] | None:
        """Gather the objects of all ranks on one rank. Return a list of copies, by rank, on the
        root; None on other ranks.

        Args:
            obj: The object of this rank.
            root: The rank that receives the objects; the same on all ranks.
            serializer: As in all_gather_object, like `timeout` and the errors.
        """
        return Exchange(self, "gather_object", serializer, timeout).gather(obj, root)

    @overload
    def broadcast_object(
        self, obj: None = None, root: int = 0, *, serializer: str | None = None, timeout: Timeout | None = None
    ) -> Any: ...
    @overload
    def broadcast_object(
        self, obj: _T | None, root: int = 0, *, serializer: str | None = None, timeout: Timeout | None = None
    ) -> _T: ...
    def broadcast_object(
        self, obj: Any = None, root: int = 0, *, serializer: str | None = None, timeout: Timeout | None = None
    ) -> Any:
        """Copy the object of one rank to every rank. Return the copy, or the root's own object.

        Args:
            obj: The object to send on the root; ignored on other ranks.
            root: The rank that sends the object; the same on all ranks.
            serializer: As in all_gather_object, like `timeout` and the errors.

        Example:
            >>> with World() as world:
            ...     world.broadcast_object({"lr": 0.1} if world.rank == 0 else None)
            {'lr': 0.1}
        """
        return Exchange(self, "broadcast_object", serializer, timeout).broadcast(obj, root)

    @overload
    def scatter_objects(
        self, objs: None = None, root: int = 0, *, serializer: str | None = None, timeout: Timeout | None = None
    ) -> Any: ...
    @overload
    def scatter_objects(
        self, objs: Sequence[_T] | None, root: int = 0, *, serializer: str | None = None, timeout: Timeout | None = None
    ) -> _T: ...
    def scatter_objects(
        self, objs: Sequence[Any] | None = None, root: int = 0, *, serializer: str | None = None, timeout: Timeout | None = None
    ) -> Any:
        """Send each rank its own object from one rank. Return this rank's object.

        Args:
            objs: On the root one object for each rank; ignored on other ranks.
            root: The rank that sends the objects; the same on all ranks.
            serializer: As in all_gather_object, like `timeout` and the errors.

        Raises:
            ValueError: There is not one object for each rank.
        """
        return Exchange(self, "scatter_objects", serializer, timeout).scatter(objs, root)

    def all_to_all_objects(
        self, objs: Sequence[_T], *, serializer: str | None = None, timeout: Timeout | None = None
    ) -> list[_T]:
        """Send objs[r] to each rank r, and receive an object from each. Return the copies by sender.

        Args:
            objs: One object for each rank.
            serializer: As in all_gather_object, like `timeout` and the errors.
        """
        return Exchange(self, "all_to_all_objects", serializer, timeout).all_to_all(objs)

    def probe(self, src: int | None = None, tag: int = probes.ANY_TAG, *, timeout: Timeout | None = None) -> probes.MessageInfo:
        """Wait until a message has arrived that a receive with these arguments would get.

        The message stays; receive it with its source and tag. Only one thread may probe for and
        receive the same messages.

        Args:
            src: The sender's rank; None for any rank.
            tag: The tag that the sender passes, or dldist.ANY_TAG.
            timeout: Seconds or a timedelta to wait. None is the group's own.

        Raises:
            DistTimeoutError: No message arrived before the timeout. The group stays usable.
        """
        found = probes.find(self, src, tag, is_waiting=True, timeout=timeout)
        assert found is not None
        return found

    def iprobe(self, src: int | None = None, tag: int = probes.ANY_TAG) -> probes.MessageInfo | None:
        """Return a message that has arrived (`src`, `tag` as in probe), or None. Does not wait."""
        return probes.find(self, src, tag, is_waiting=False)

    def send_object(
        self, obj: Any, dst: int, tag: int = 0, *, serializer: str | None = None, timeout: Timeout | None = None
    ) -> None:
        """Send an object to another rank.

        Args:
            obj: The object to send.
            dst: The receiver's rank, or dldist.NO_RANK to send nothing.
            tag: A number of 0 or more, which the receiver must also give.
            serializer: As in all_gather_object.
            timeout: Seconds or a timedelta for the whole call. None is the group's own.

        Raises:
            TypeError: The serializer rejects the object. Raised on both ranks.
            DistTimeoutError: Not received before the timeout. The group stays usable.
        """
        Exchange(self, "send_object", serializer, timeout).send(obj, dst, tag)

    def isend_object(
        self, obj: Any, dst: int, tag: int = 0, *, serializer: str | None = None, timeout: Timeout | None = None
    ) -> ObjectWork:
        """Start to send an object to another rank. Its arrays must not change before the work ends.

        Args:
            obj: As in send_object, like `dst`, `tag`, `serializer`, `timeout` and the errors.

        Example:
            >>> with World() as world:
            ...     work = world.isend_object({"lr": 0.1}, 0)
            ...     world.irecv_object(0).wait(), work.wait()
            ({'lr': 0.1}, True)
        """
        return Exchange(self, "isend_object", serializer, timeout).isend(obj, dst, tag)

    def irecv_object(
        self, src: int | None = None, tag: int = 0, *, serializer: str | None = None, timeout: Timeout | None = None
    ) -> ObjectWork:
        """Start to receive an object from one rank, or from any rank. Return a work, whose wait()
        and result() return the object, as does `await`.

        Receives of objects and arrays with the same sender and tag get messages in the order of
        the calls.

        Args:
            src: As in recv_object, like `tag`, `serializer`, `timeout` and the errors of wait().
        """
        return Exchange(self, "irecv_object", serializer, timeout).irecv(src, tag)

    def recv_object(
        self, src: int | None = None, tag: int = 0, *, serializer: str | None = None, timeout: Timeout | None = None
    ) -> Any:
        """Receive an object from one rank, or from any rank.

        Args:
            src: The sender's rank; None for any rank; dldist.NO_RANK to receive nothing.
            tag: The tag that the sender passes.
            serializer: As in all_gather_object.
            timeout: Seconds or a timedelta for the whole call. None is the group's own.

        Raises:
            TypeError: The serializer rejects the sender's object.
            DistMismatchError: The sender used another serializer.
            DistTimeoutError: No object was received before the timeout. The group stays usable.
        """
        return Exchange(self, "recv_object", serializer, timeout).recv(src, tag)[0]

    def recv_object_with_source(
        self, src: int | None = None, tag: int = 0, *, serializer: str | None = None, timeout: Timeout | None = None
    ) -> tuple[Any, int]:
        """Run recv_object (`src`, `tag`, `serializer`, `timeout`); return the object and the sender's rank."""
        return Exchange(self, "recv_object_with_source", serializer, timeout).recv(src, tag)


def call_all(calls: list[Callable[..., object]], *arguments: Any) -> None:
    """Call every function, even after exceptions. Then raise the first interrupt or, without one,
    the first exception, with notes about the others."""
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
        del failure  # the traceback keeps this frame and the closed objects alive


def _countdown(timeout: Timeout | None) -> Callable[[], float]:
    """Return a function that returns the remaining seconds of a timeout of close()."""
    seconds = CLOSE_TIMEOUT_S
    if timeout is not None:
        seconds = to_timedelta(timeout, "close(): argument 'timeout'").total_seconds()
    end = time.monotonic() + seconds
    return lambda: max(end - time.monotonic(), 0.0)


def _follow_logger() -> None:
    """Apply the level that the program has set with logging, if it uses logging."""
    if "logging" in sys.modules:
        from dldist._base import log

        log.follow_logger()


def _wait_for_compiled_calls() -> None:
    form = sys.modules.get("dldist.functional.form")  # if not imported, no compiled calls exist
    if form is not None:
        form.wait_for_compiled_calls()
