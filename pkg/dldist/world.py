"""World: processes that work together, as an object."""

from __future__ import annotations

import time

from dldist import _core

TYPE_CHECKING = False  # typing takes longer to import than all of this package
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any
    from weakref import WeakSet

    from dldist.c10d.window import Window
    from dldist.rendezvous import Meeting
    from dldist.symmetric_memory import SymmetricMemory
    from dldist.types import Tensor, Timeout


CLOSE_TIMEOUT_S = 10.0
"""How long operations under way may hold up the end of a group that is closed without saying."""


class World(_core.Group):
    """Processes that work together: a Group that finds its ranks by itself, makes groups of its members and moves objects.

    Of `store`, `rank` and `world_size`, or where the launcher says (torchrun, dlrun, Slurm, mpirun), or `init_method`: a URL
    as init_process_group takes. A process may be in any number of worlds. All ranks are those of the world.

    >>> with World() as world:                       # nothing set: a world of one
    ...     world.all_gather_object("hello")
    ['hello']
    """

    # Of groups that split() makes, for which __init__ does not run, too.
    _meeting: Meeting | None = None
    _is_watched = False
    serializer = "safe"
    """How objects travel when a call does not say: "safe", which executes no code of the sender, or "pickle"."""

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
    ) -> None:
        if store is not None and init_method is not None:
            raise ValueError("World(): give 'store' or 'init_method', not both")
        self.serializer = _check_serializer(serializer)
        if store is not None:
            super().__init__(store, rank, world_size, timeout=timeout, name=name, connect_timeout=connect_timeout)
            self._watch()
            return
        from dldist import rendezvous

        limit = timeout if connect_timeout is None else connect_timeout
        meeting = rendezvous.meet(init_method, rank, world_size, timeout=limit, name=name)
        try:
            super().__init__(
                meeting.store, meeting.rank, meeting.world_size, timeout=timeout, name=name, connect_timeout=connect_timeout
            )
            meeting.met()
        except BaseException as error:
            failure = meeting.explain(error)
            meeting.give_up()
            if failure is error:
                raise
            raise failure from error
        self._meeting = meeting
        self._watch()

    def __repr__(self) -> str:
        return super().__repr__().replace("dldist.Group", "dldist.World", 1)

    @property
    def world_size(self) -> int:
        """How many ranks there are; also `size`."""
        return self.size

    def new_group(self, ranks: Sequence[int], *, name: str | None = None, timeout: Timeout | None = None) -> World | None:
        """A group of these ranks, in this order; None for those that are not among them, who need not call it."""
        ranks = list(ranks)
        return self.split(ranks, name, timeout) if self.rank in ranks else None

    def split(self, ranks: Sequence[int], name: str | None = None, timeout: Timeout | None = None) -> World:
        """A group of these ranks, in this order, made by them alone. It ends with this one at the latest."""
        part = super().split(list(ranks), name, timeout)
        part.serializer = self.serializer
        part._watch()
        self._parts().add(part)
        return part

    def close(self, timeout: Timeout | None = None) -> None:
        """Say goodbye, after the operations under way have ended or the time is up; first of all in the groups of this one.

        The time is 10 seconds unless given, and that of all of them together.
        """
        left = _countdown(timeout)
        _let_compiled_calls_finish()
        try:
            call_all([lambda close=close: close(left()) for close in [*self._of_parts("close"), super().close]])
        finally:
            self._unwatch()
            self._leave_meeting()

    def abort(self, reason: str = "abort() was called") -> None:
        """End this group, those made from it, and what is under way in them, at once; the other ranks hear the reason."""
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
        from weakref import WeakSet

        return self.__dict__.setdefault("_made", WeakSet())  # one set, whichever thread comes first

    def _of_parts(self, method: str) -> list[Callable[..., object]]:
        """The methods that end the groups made from this one, which are forgotten."""
        return [getattr(part, method) for part in self.__dict__.pop("_made", ())]

    def _watch(self) -> None:
        """Let the monitor look after this group, if others are in it."""
        if self.size > 1:
            from dldist.base import watch

            watch.add(self)
            self._is_watched = True

    def _unwatch(self) -> None:
        if self._is_watched:
            from dldist.base import watch

            watch.remove(self)

    def _leave_meeting(self) -> None:
        meeting, self._meeting = self._meeting, None
        if meeting is not None:
            meeting.close()

    # ---- memory of the others

    def rendezvous(self, array: Tensor | None) -> SymmetricMemory:
        """Let the ranks reach each other's arrays, those of one host directly if empty() has made them. All ranks call it."""
        from dldist import symmetric_memory

        return symmetric_memory.rendezvous(array, self)

    def new_window(self, tensor: Tensor | None = None) -> Window:
        """c10d's window: memory of every rank that the others put into. All ranks call it."""
        from dldist.c10d.window import Window

        return Window(self, tensor)

    # ---- objects

    def all_gather_object(self, obj: Any, *, serializer: str | None = None, timeout: Timeout | None = None) -> list[Any]:
        """The objects of all ranks."""
        from dldist.objects import exchange

        return exchange.all_gather_object(self, obj, serializer=serializer, timeout=timeout)

    def gather_object(
        self, obj: Any, root: int = 0, *, serializer: str | None = None, timeout: Timeout | None = None
    ) -> list[Any] | None:
        """The objects of all ranks, on rank `root`; None on the others."""
        from dldist.objects import exchange

        return exchange.gather_object(self, obj, root, serializer=serializer, timeout=timeout)

    def broadcast_object(
        self, obj: Any = None, root: int = 0, *, serializer: str | None = None, timeout: Timeout | None = None
    ) -> Any:
        """The object of rank `root`."""
        from dldist.objects import exchange

        return exchange.broadcast_object(self, obj, root, serializer=serializer, timeout=timeout)

    def scatter_objects(
        self, objs: Sequence[Any] | None = None, root: int = 0, *, serializer: str | None = None, timeout: Timeout | None = None
    ) -> Any:
        """The object that rank `root` has for this rank."""
        from dldist.objects import exchange

        return exchange.scatter_objects(self, objs, root, serializer=serializer, timeout=timeout)

    def all_to_all_objects(
        self, objs: Sequence[Any], *, serializer: str | None = None, timeout: Timeout | None = None
    ) -> list[Any]:
        """Give objs[r] to rank r, and get one from each."""
        from dldist.objects import exchange

        return exchange.all_to_all_objects(self, objs, serializer=serializer, timeout=timeout)

    def send_object(
        self, obj: Any, dst: int, tag: int = 0, *, serializer: str | None = None, timeout: Timeout | None = None
    ) -> None:
        """Send an object to rank `dst`."""
        from dldist.objects import exchange

        exchange.send_object(self, obj, dst, tag, serializer=serializer, timeout=timeout)

    def recv_object(
        self, src: int | None = None, tag: int = 0, *, serializer: str | None = None, timeout: Timeout | None = None
    ) -> Any:
        """An object that rank `src`, or any, has sent."""
        from dldist.objects import exchange

        return exchange.recv_object(self, src, tag, serializer=serializer, timeout=timeout)

    def recv_object_with_source(
        self, src: int | None = None, tag: int = 0, *, serializer: str | None = None, timeout: Timeout | None = None
    ) -> tuple[Any, int]:
        """The same, and the rank that has sent it."""
        from dldist.objects import exchange

        return exchange.recv_object_with_source(self, src, tag, serializer=serializer, timeout=timeout)


def call_all(calls: list[Callable[..., object]], *arguments: Any) -> None:
    """Call each, whatever the others do; the first exception is raised in the end, or the first interrupt if there was one."""
    failure: BaseException | None = None
    for call in calls:
        try:
            call(*arguments)
        except Exception as error:
            failure = failure or error
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
        from dldist.c10d.options import to_timedelta

        seconds = to_timedelta(timeout, "close(): argument 'timeout'").total_seconds()
    end = time.monotonic() + seconds
    return lambda: max(end - time.monotonic(), 0.0)


def _let_compiled_calls_finish() -> None:
    import sys

    form = sys.modules.get("dldist.functional.form")  # without it there is nothing compiled
    if form is not None:
        form.let_compiled_calls_finish()


def _check_serializer(name: str) -> str:
    if name not in ("pickle", "safe"):
        raise ValueError(f'World(): argument \'serializer\' must be "pickle" or "safe", not {name!r}')
    return name
