"""The operations of a group with any backends, as methods like those of dldist.Group.

One of our backends is called through the methods of its group, any other backend through c10d's low-level calls.
"""

from __future__ import annotations

from dldist import _core
from dldist.c10d.low_level import CALL_OF
from dldist.c10d.operations import OPERATIONS, Operation, first_of
from dldist.c10d.options import to_timedelta
from dldist.c10d.over_group import OverGroup

TYPE_CHECKING = False  # typing takes longer to import than all of this package
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from dldist.c10d.backend_base import Backend
    from dldist.c10d.hooks import Hooks
    from dldist.c10d.process_group import ProcessGroup


class Dispatcher:
    """Chooses the backend for each call on a ProcessGroup, calls its hooks, and waits unless the call is asynchronous.

    It has a method for each operation, with the same parameters as dldist.Group's.
    """

    def __init__(self, pg: ProcessGroup) -> None:
        self._pg = pg
        self._recorder: Any = None

    @property
    def rank(self) -> int:
        return self._pg.rank()

    @property
    def size(self) -> int:
        return self._pg.size()

    @property
    def name(self) -> str:
        return self._pg.group_name

    def _target(self, tensor: Any) -> Any:
        """The backend that runs a call with this tensor, or the process group itself if that overrides calls."""
        return self._pg._backend_serving(tensor) if self._pg._is_plain else self._pg

    def _hooks(self) -> Hooks | None:
        """The hooks to call here. A process group that overrides calls runs its hooks itself."""
        return self._pg._hooks if self._pg._is_plain else None

    # ---- collectives

    def _call(self, operation: Operation, values: list[Any], timeout: Any, is_async: bool) -> Any:
        has_splits = any(value is not None for value in values[3:])  # such a call runs by itself, as in C
        if self._recorder is not None and operation.as_one and not has_splits:
            return self._recorder.record(operation.name, *[*values, None][:3], is_async)
        inputs, outputs = operation.tensors(values)
        target = self._target(first_of(outputs if inputs is None else inputs))
        hooks = self._hooks()
        if not hooks:
            return _run(target, operation, values, timeout, is_async)
        root = values[operation.parameters.index("root")] if "root" in operation.parameters else -1
        work = hooks.around(
            operation.collective, is_async, inputs, outputs, root, lambda: _run(target, operation, values, timeout, True)
        )
        return _end(work, is_async)

    def barrier(self, *, timeout: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
        """Wait until all ranks have called this; on a device if device_ids names one."""
        target = self._pg._backend_of_device("cuda") if device_ids and self._pg._is_plain else None
        target = self._target(None) if target is None else target
        devices = {} if device_ids is None else {"device_ids": device_ids}
        hooks = self._hooks()
        if not hooks:
            return _run_barrier(target, timeout, async_op, devices)
        work = hooks.around("barrier", async_op, None, None, -1, lambda: _run_barrier(target, timeout, True, devices))
        return _end(work, async_op)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """A barrier whose error names the missing ranks."""
        self._pg.monitored_barrier(None if timeout is None else to_timedelta(timeout), wait_all_ranks)

    # ---- several calls as one

    def _set_recorder(self, recorder: Any) -> Any:
        """As dldist.Group's: calls that can be coalesced go to the recorder instead of running. Returns the former recorder."""
        before, self._recorder = self._recorder, recorder
        return before

    def coalesce(self, *, timeout: Any = None, async_op: bool = False) -> Any:
        """A `with` block whose calls become one operation."""
        from dldist.base.group import Coalescing

        return Coalescing(self, timeout, async_op)

    # ---- messages

    def isend(self, tensor: Any, dst: int, tag: int = 0, *, timeout: Any = None) -> Any:
        """Start sending to a rank; returns a Work."""

        def start(target: Any) -> Any:
            if isinstance(target, OverGroup):
                return target._require_group().isend(tensor, dst, tag, timeout=timeout)
            self._refuse_timeout("isend", timeout)
            return target.send([tensor], dst, tag)

        return self._message("send", tensor, dst, start)

    def irecv(
        self, tensor: Any, src: int | None = None, tag: int = 0, *, timeout: Any = None, match_dtype: bool = True
    ) -> Any:
        """Start receiving from a rank, or from any; returns a Work."""

        def start(target: Any) -> Any:
            if isinstance(target, OverGroup):
                return target._require_group().irecv(tensor, src, tag, timeout=timeout, match_dtype=match_dtype)
            self._refuse_timeout("irecv", timeout)
            return target.recv_anysource([tensor], tag) if src is None else target.recv([tensor], src, tag)

        return self._message("recv", tensor, -1 if src is None else src, start)

    def _message(self, name: str, tensor: Any, peer: int, start: Callable[[Any], Any]) -> Any:
        target = self._target(tensor)
        target = getattr(target, "wrapped_pg", target)  # messages are not compared
        hooks = self._hooks()
        if not hooks:
            return start(target)
        inputs, outputs = (tensor, None) if name == "send" else (None, tensor)
        return hooks.around(name, True, inputs, outputs, peer, lambda: start(target))

    def _refuse_timeout(self, name: str, timeout: Any) -> None:
        if timeout is not None:
            raise _core.DistArgumentError(
                f"{name}(): argument 'timeout': the low-level calls of backend {self._pg.name()} take none for messages: pass it "
                "to wait()"
            )

    def send(self, tensor: Any, dst: int, tag: int = 0, *, timeout: Any = None) -> None:
        """Send to a rank."""
        _end(self.isend(tensor, dst, tag), False, timeout)

    def recv(
        self, tensor: Any, src: int | None = None, tag: int = 0, *, timeout: Any = None, match_dtype: bool = True
    ) -> int:
        """Receive from a rank, or from any; returns the sender's rank."""
        work = self.irecv(tensor, src, tag, match_dtype=match_dtype)
        _end(work, False, timeout)
        return work._source_rank() if src is None else src

    def batch_isend_irecv(self, p2p_op_list: Any) -> Any:
        """Start the P2POps of a list; returns their Works."""
        from dldist.base.group import batch_isend_irecv

        return batch_isend_irecv(self, p2p_op_list)

    def _coalescing_backend_of(self, tensor: Any) -> Any:
        """The backend for the tensor's device, if it can run several messages as one operation; else None."""
        target = self._target(tensor)
        return target if getattr(target, "supports_coalescing", False) else None

    def _host_view(self) -> Any:
        """An object that can move host memory: this one, or a view of the group behind the only backend if that serves another
        device."""
        backends = self._backends()
        if len(backends) != 1:
            return self
        group = getattr(getattr(backends[0], "wrapped_pg", backends[0]), "group", None)
        view = getattr(group, "_host_view", None)
        return self if view is None else view()

    def _backends(self) -> list[Any]:
        return self._pg._distinct_backends()


class BackendCalls(Dispatcher):
    """The same for a backend in the place of a group, as in dist.barrier(group=backend)."""

    def __init__(self, backend: Backend) -> None:
        import weakref

        # The backend keeps this object alive, and has to end when its last user lets it go.
        self._backend = weakref.ref(backend)
        self._recorder = None

    @property
    def _pg(self) -> Any:  # type: ignore[override]
        return self._backend()

    @property
    def name(self) -> str:
        return self._pg.name()

    def _target(self, tensor: Any) -> Any:
        return self._pg

    def _hooks(self) -> None:
        return None

    def barrier(self, *, timeout: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
        return _run_barrier(self._pg, timeout, async_op, {} if device_ids is None else {"device_ids": device_ids})

    def _backends(self) -> list[Any]:
        return [self._pg]


def _run(target: Any, operation: Operation, values: list[Any], timeout: Any, is_async: bool) -> Any:
    if isinstance(target, OverGroup):
        return getattr(target._require_group(), operation.name)(*values, timeout=timeout, async_op=is_async)
    call = CALL_OF.get(operation.name)
    if call is None:
        raise RuntimeError(f"Backend {target.name()} does not support {operation.name}")
    opts = _prepared(call.options(), timeout, is_async)
    return _end(getattr(target, call.name)(*call.lowered(values, opts)), is_async)


def _run_barrier(target: Any, timeout: Any, is_async: bool, devices: dict[str, Any]) -> Any:
    if isinstance(target, OverGroup):
        devices = devices if isinstance(target._require_group(), _core.NcclGroup) else {}  # other groups have none to choose from
        return target.group.barrier(timeout=timeout, async_op=is_async, **devices)
    opts = _prepared(CALL_OF["barrier"].options(), timeout, is_async)
    for name, value in devices.items():
        setattr(opts, name, value)
    return _end(target.barrier(opts), is_async)


def _prepared(opts: Any, timeout: Any, is_async: bool) -> Any:
    opts.asyncOp = is_async
    if timeout is not None:
        opts.timeout = to_timedelta(timeout)
    return opts


def _end(work: Any, is_async: bool, timeout: Any = None) -> Any:
    """The result of a call: the work if it is asynchronous; else None, after waiting for it."""
    if is_async:
        return work
    if work is not None:
        work.wait(*([] if timeout is None else [to_timedelta(timeout)]))
    return None


def _method(operation: Operation) -> Any:
    def method(self: Dispatcher, *args: Any, timeout: Any = None, async_op: bool = False, **named: Any) -> Any:
        return self._call(operation, operation.bind(args, named), timeout, async_op)

    method.__name__, method.__qualname__ = operation.name, f"Dispatcher.{operation.name}"
    method.__doc__ = f"As dldist.Group.{operation.name}."
    return method


for _operation in OPERATIONS.values():
    if not hasattr(Dispatcher, _operation.name):
        setattr(Dispatcher, _operation.name, _method(_operation))
