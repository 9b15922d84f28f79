"""_coalescing_manager: several collectives as one operation."""

from __future__ import annotations

from _thread import _local
from typing import Any

from dldist import _core
from dldist._api import collectives
from dldist._api.ranks import group_or_default, is_non_member
from dldist._backends import registry
from dldist._base.operations import OPERATIONS
from dldist.types import AnyGroup


class _CoalescingManager:
    """What `with _coalescing_manager() as cm` gives: the works, with async_ops, once the block has ended."""

    def __init__(self, recording: Any = None, group: Any = None) -> None:
        self._recording = recording
        self._group = group
        self.works: list[_core.Work] = []

    def append(self, work: _core.Work | None = None) -> None:
        """Have wait() wait for this one too."""
        if work is not None:
            self.works.append(work)

    def wait(self) -> None:
        """Wait for all of them."""
        for work in self.works:
            work.wait()

    def __enter__(self) -> _CoalescingManager:
        if self._recording is not None:
            self._recording.__enter__()
            recording = self._recording
            registry._world.coalescing[self._group] = lambda: noted_of(recording)
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._recording is not None:
            registry._world.coalescing.pop(self._group, None)
            self._recording.__exit__(*exception)
            self.append(self._recording.work)


class _CollOp:
    """One collective as data: what c10d notes of each while it coalesces."""

    def __init__(self, op: Any, tensor: Any, dst_tensor: Any = None, redop: Any = None, root: int | None = None) -> None:
        self.op = op
        self.tensor = tensor
        self.dst_tensor = dst_tensor
        self.redop = redop
        self.root = root


def noted_of(recording: Any) -> list[_CollOp]:
    """What has been called in a block so far."""
    return [
        _CollOp(getattr(collectives, name), first if OPERATIONS[name].is_in_place else second,
                None if OPERATIONS[name].is_in_place else first, op)
        for name, first, second, op in recording.noted
    ]  # fmt: skip


class _Started:
    """Coalescing by the backend of a device: it makes one operation of whatever is called in the block."""

    noted = ()  # the backend notes them, where nobody looks

    def __init__(self, pg: Any, device: Any, is_async: bool) -> None:
        self._pg = pg
        self._backend = pg._get_backend(device)
        self._is_async = is_async
        self.work: Any = None

    def __enter__(self) -> _Started:
        self._backend._start_coalescing()
        return self

    def __exit__(self, *exception: Any) -> None:
        if exception[0] is not None:
            self._backend._drop_coalesced()
            return
        work = self._pg._end_coalescing_of(self._backend)
        if self._is_async:
            self.work = work
        elif work is not None:
            work.wait()


def _coalescing_manager(group: AnyGroup | None = None, device: Any = None, async_ops: bool = False) -> _CoalescingManager:
    """Make one operation of the calls in a `with` block.

    The calls are all_reduce, or the forms of all_gather and reduce_scatter for single tensors: all of one kind, and of one
    reduction. Nothing runs before the block ends; if it raises, nothing runs at all. A process that is not in the group does nothing,
    and is warned by the calls in the block.

    Args:
        group: None is the default world.
        device: The device whose backend makes one operation of whatever is called, as NCCL does.
        async_ops: Do not wait at the end of the block: wait() of what the block gives does.

    Raises:
        RuntimeError: By a call in the block that is of another kind than the first one.
        ValueError: By a call with another reduction.

    Example:
        >>> tensors = [array("f", [1]), array("f", [2, 3])]
        >>> with dist._coalescing_manager():
        ...     for tensor in tensors:
        ...         dist.all_reduce(tensor)
    """
    if is_non_member(group):
        return _CoalescingManager()
    if device is not None:
        pg = group_or_default(group)
        return _CoalescingManager(_Started(pg, device, async_ops), pg)
    return _CoalescingManager(registry.operations(group).coalesce(async_op=async_ops), group_or_default(group))


coalescing = _coalescing_manager  # the same under a name that is no secret


class _TimeEstimator:
    """How long the calls of a `with` block would take: nothing runs in it, as the backend only estimates.

    `estimated_time` is there after the block: what the backend says, in microseconds.
    """

    def __init__(self, backend: Any = None) -> None:
        self._backend = backend
        self.estimated_time: float | None = None

    def __enter__(self) -> _TimeEstimator:
        self._backend._start_time_estimate()
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        if kind is None:
            self.estimated_time = self._backend._end_time_estimate()
        else:
            self._backend._drop_time_estimate()


def _time_estimator(group: AnyGroup | None = None, device: Any = None) -> _TimeEstimator:
    """Have the backend of a device estimate how long calls would take, where it can, as NCCL's (2.22.3) does for reductions,
    broadcasts and gathers for all. All ranks estimate the same calls."""
    pg = group_or_default(group)
    backend = pg._get_backend(device) if device is not None else pg._backend_serving(None)
    if not backend._supports_time_estimate:
        raise NotImplementedError(f"collective time estimator is not supported in the current version of backend {backend.name()}")
    return _TimeEstimator(backend)


_of_thread = _local()


def _get_comm_profiling_name() -> str:
    """The name that this thread has given to its operations; "" where it has given none."""
    return getattr(_of_thread, "name", "")


def _set_comm_profiling_name(name: str) -> None:
    """Give one, or take it back with ""."""
    if not isinstance(name, str):
        raise TypeError(f"_set_comm_profiling_name(): argument 'name' must be str, not {type(name).__name__}")
    _of_thread.name = name


class record_comm:
    """Name the operations of this thread in a `with` block, for profilers. There is none yet that would show it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._before: list[str] = []

    def __enter__(self) -> record_comm:
        self._before.append(_get_comm_profiling_name())
        _set_comm_profiling_name(self.name)
        return self

    def __exit__(self, *exception: object) -> None:
        _set_comm_profiling_name(self._before.pop())
