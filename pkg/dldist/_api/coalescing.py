"""_coalescing_manager: run several collectives as one operation."""

from __future__ import annotations

from _thread import _local
from typing import Any, NamedTuple

from dldist import _core
from dldist._api import collectives
from dldist._api.ranks import group_or_default, is_non_member
from dldist._backends import registry
from dldist._base.operations import OPERATIONS
from dldist.types import AnyGroup


class _CoalescingManager:
    """The value of `with _coalescing_manager() as x`; wait() waits for the block's works."""

    def __init__(self, recording: Any = None, group: Any = None) -> None:
        self._recording = recording
        self._group = group
        self.works: list[_core.Work] = []

    def append(self, work: _core.Work | None = None) -> None:
        """Add a work to the works that wait() waits for."""
        if work is not None:
            self.works.append(work)

    def wait(self) -> None:
        """Wait for all works."""
        for work in self.works:
            work.wait()

    def __enter__(self) -> _CoalescingManager:
        if self._recording is not None:
            self._recording.__enter__()
            recording = self._recording
            registry._world.coalescing[self._group] = lambda: recorded_calls_of(recording)
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._recording is not None:
            registry._world.coalescing.pop(self._group, None)
            self._recording.__exit__(*exception)
            self.append(self._recording.work)


class _CollOp(NamedTuple):
    """One recorded collective, with the attributes of c10d's _CollOp."""

    op: Any
    tensor: Any
    dst_tensor: Any = None
    redop: Any = None
    root: int | None = None


def recorded_calls_of(recording: Any) -> list[_CollOp]:
    """List the calls that a coalescing block has recorded so far."""
    return [
        _CollOp(getattr(collectives, name), first if OPERATIONS[name].is_in_place else second,
                None if OPERATIONS[name].is_in_place else first, op)
        for name, first, second, op in recording.calls
    ]  # fmt: skip


class _BackendCoalescing:
    """A coalescing block whose calls the backend of one device combines itself."""

    calls = ()  # always empty: the backend records the calls and does not list them

    def __init__(self, pg: Any, device: Any, is_async: bool) -> None:
        self._pg = pg
        self._backend = pg._get_backend(device)
        self._is_async = is_async
        self.work: Any = None

    def __enter__(self) -> _BackendCoalescing:
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


def coalescing(group: AnyGroup | None = None, device: Any = None, async_ops: bool = False) -> _CoalescingManager:
    """Run the calls in a `with` block as one operation.

    Without `device`, all calls must be of one kind (all_reduce, all_gather_single or
    reduce_scatter_single) and have the same reduction. They run when the block ends, unless the
    block raises. A process that is not in the group does nothing; the calls in the block warn.

    Args:
        group: The group, or None for the default world.
        device: A device whose backend combines the calls itself; NCCL combines calls of any kind.
        async_ops: If True, the end of the block does not wait; call wait() of the `with` value.

    Raises:
        RuntimeError: A call in the block is of another kind than the first call.
        ValueError: A call in the block has another reduction than the first call.

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
        return _CoalescingManager(_BackendCoalescing(pg, device, async_ops), pg)
    return _CoalescingManager(registry.operations(group).coalesce(async_op=async_ops), group_or_default(group))


_coalescing_manager = coalescing  # torch's name


class _TimeEstimator:
    """A `with` block that estimates its calls without running them. Sets `estimated_time` (us)."""

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
    """Estimate the time of calls in a `with` block. All ranks must make the calls. Only NCCL's
    backend (2.22.3 and newer) supports this, for reductions, broadcasts and all-gathers."""
    pg = group_or_default(group)
    backend = pg._get_backend(device) if device is not None else pg._backend_for_tensor(None)
    if not backend._supports_time_estimate:
        raise NotImplementedError(f"collective time estimator is not supported in the current version of backend {backend.name()}")
    return _TimeEstimator(backend)


_thread_local = _local()


def _get_comm_profiling_name() -> str:
    """Return the profiling name that this thread has set, or ""."""
    return getattr(_thread_local, "name", "")


def _set_comm_profiling_name(name: str) -> None:
    """Set this thread's profiling name; "" removes it."""
    if not isinstance(name, str):
        raise TypeError(f"_set_comm_profiling_name(): argument 'name' must be str, not {type(name).__name__}")
    _thread_local.name = name


class record_comm:
    """Set this thread's profiling name within a `with` block. No profiler shows the name yet."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._previous_names: list[str] = []

    def __enter__(self) -> record_comm:
        self._previous_names.append(_get_comm_profiling_name())
        _set_comm_profiling_name(self.name)
        return self

    def __exit__(self, *exception: object) -> None:
        _set_comm_profiling_name(self._previous_names.pop())
