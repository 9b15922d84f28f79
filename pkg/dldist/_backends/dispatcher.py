"""Methods like dldist.Group's, which run a group's operations on arbitrary backends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dldist import _core
from dldist._backends import recorded_calls
from dldist._backends.low_level import CALL_OF
from dldist._base.operations import OPERATIONS, Operation, first_of
from dldist._base.options import to_timedelta
from dldist._base.probes import NO_RANK
from dldist._base.works import skipped_message


class BackendCalls:
    """Runs operations by calling the low-level calls of a backend or of a ProcessGroup's subclass.

    Has a method for each operation, with the parameters of dldist.Group's.
    """

    def __init__(self, target: Any) -> None:
        self._target = target
        self._recorder: Any = None

    @property
    def rank(self) -> int:
        return self._target.rank()  # type: ignore[no-any-return]

    @property
    def size(self) -> int:
        return self._target.size()  # type: ignore[no-any-return]

    @property
    def name(self) -> str:
        return getattr(self._target, "group_name", None) or self._target.name()

    @property
    def _backend_name(self) -> str:
        backends: list[Any] = getattr(self._target, "_distinct_backends", list)()
        return (backends or [self._target])[0].name()  # type: ignore[no-any-return]

    def _call(self, operation: Operation, values: list[Any], timeout: Any, is_async: bool) -> Any:
        # Calls with split sizes are not coalesced, as in the extension.
        has_splits = any(value is not None for value in values[3:])
        if self._recorder is not None and operation.as_one and not has_splits:
            return self._recorder.record(operation.name, *[*values, None][:3], is_async)
        return self._run(operation, values, timeout, is_async)

    def _run(self, operation: Operation, values: list[Any], timeout: Any, is_async: bool) -> Any:
        call = CALL_OF.get(operation.name)
        if call is None:
            raise RuntimeError(f"Backend {self._backend_name} does not support {operation.name}")
        opts = _set_call_options(call.options(), timeout, is_async)
        return _finish(getattr(self._target, call.name)(*call.to_call_arguments(values, opts)), is_async)

    def barrier(self, *, timeout: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
        """Wait until all ranks have called barrier(), on the device in device_ids if given."""
        opts = _set_call_options(CALL_OF["barrier"].options(), timeout, async_op)
        if device_ids is not None:
            opts.device_ids = device_ids
        return _finish(self._target.barrier(opts), async_op)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Like barrier(), but the error names the missing ranks."""
        self._target.monitored_barrier(None if timeout is None else to_timedelta(timeout), wait_all_ranks)

    def _set_recorder(self, recorder: Any) -> Any:
        """Set a recorder for coalesced calls, which are then not run; return the previous one."""
        previous, self._recorder = self._recorder, recorder
        return previous

    def coalesce(self, *, timeout: Any = None, async_op: bool = False) -> Any:
        """Return a context manager that runs the calls in its block as one operation."""
        return recorded_calls.Coalescing(self, timeout, async_op)

    def isend(self, tensor: Any, dst: int, tag: int = 0, *, timeout: Any = None) -> Any:
        """Start to send a tensor to a rank. Return a Work."""
        self._check_no_timeout("isend", timeout)
        return skipped_message() if dst == NO_RANK else self._target.send([tensor], dst, tag)

    def irecv(
        self, tensor: Any, src: int | None = None, tag: int = 0, *, timeout: Any = None, match_dtype: bool = True
    ) -> Any:
        """Start to receive a tensor from a rank, or from any rank. Return a Work."""
        self._check_no_timeout("irecv", timeout)
        if src == NO_RANK:
            return skipped_message(tensor)
        return self._target.recv_anysource([tensor], tag) if src is None else self._target.recv([tensor], src, tag)

    def _check_no_timeout(self, name: str, timeout: Any) -> None:
        if timeout is not None:
            raise _core.DistArgumentError(
                f"{name}(): argument 'timeout': got {timeout}, expected None, as messages of backend {self._backend_name} take "
                "none; pass it to wait()"
            )

    def send(self, tensor: Any, dst: int, tag: int = 0, *, timeout: Any = None) -> None:
        """Send a tensor to a rank."""
        _finish(self.isend(tensor, dst, tag), False, timeout)

    def recv(
        self, tensor: Any, src: int | None = None, tag: int = 0, *, timeout: Any = None, match_dtype: bool = True
    ) -> int:
        """Receive a tensor from a rank, or from any rank. Return the sender's rank."""
        work = self.irecv(tensor, src, tag, match_dtype=match_dtype)
        _finish(work, False, timeout)
        return work._source_rank() if src is None else src

    def batch_isend_irecv(self, p2p_op_list: Any) -> Any:
        """Start the messages of a list of P2POps. Return their Works."""
        return recorded_calls.batch_isend_irecv(self, p2p_op_list)

    def _backend_for(self, tensor: Any) -> Any:
        """Return the backend for a tensor; for None, the CPU's backend if there is one."""
        return self._target

    def _coalescing_backend_of(self, tensor: Any) -> Any:
        """Return a tensor's backend if it can run several messages as one operation, or None."""
        backend = self._backend_for(tensor)
        return backend if getattr(backend, "supports_coalescing", False) else None

    def _end_coalescing_of(self, backend: Any) -> Any:
        return backend._end_coalescing()

    def _host_view(self) -> Any:
        """Return an object whose calls accept host memory: the host view of the only backend, or
        self if there is none."""
        list_backends = getattr(self._target, "_distinct_backends", None)
        backends = [self._target] if list_backends is None else list_backends()
        if len(backends) != 1:
            return self
        group = getattr(getattr(backends[0], "wrapped_pg", backends[0]), "group", None)
        view = getattr(group, "_host_view", None)
        return self if view is None else view()


class Dispatcher(BackendCalls):
    """Runs each call on the ProcessGroup's backend for the tensor's device, with hooks."""

    def _run(self, operation: Operation, values: list[Any], timeout: Any, is_async: bool) -> Any:
        inputs, outputs = operation.tensors(values)
        run = getattr(self._backend_for(first_of(outputs if inputs is None else inputs))._operations, operation.name)
        root = values[operation.parameters.index("root")] if "root" in operation.parameters else -1
        return self._with_hooks(
            operation.name, is_async, inputs, outputs, root, lambda is_async: run(*values, timeout=timeout, async_op=is_async)
        )

    def barrier(self, *, timeout: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
        backend = self._target._backend_of_device("cuda") if device_ids else None
        calls = (self._backend_for(None) if backend is None else backend)._operations
        has_devices = isinstance(calls, _core.NcclGroup) or not isinstance(calls, _core.Group)
        devices = {"device_ids": device_ids} if has_devices and device_ids is not None else {}
        return self._with_hooks(
            "barrier", async_op, None, None, -1, lambda is_async: calls.barrier(timeout=timeout, async_op=is_async, **devices)
        )

    def isend(self, tensor: Any, dst: int, tag: int = 0, *, timeout: Any = None) -> Any:
        start = self._calls_for_message(tensor).isend
        return self._with_hooks("send", True, tensor, None, dst, lambda _: start(tensor, dst, tag, timeout=timeout))

    def irecv(
        self, tensor: Any, src: int | None = None, tag: int = 0, *, timeout: Any = None, match_dtype: bool = True
    ) -> Any:
        start = self._calls_for_message(tensor).irecv
        options = {"timeout": timeout, "match_dtype": match_dtype}
        return self._with_hooks("recv", True, None, tensor, -1 if src is None else src, lambda _: start(tensor, src, tag, **options))

    def send(self, tensor: Any, dst: int, tag: int = 0, *, timeout: Any = None) -> None:
        call_timeout, wait_timeout = self._message_timeouts(tensor, timeout)
        _finish(self.isend(tensor, dst, tag, timeout=call_timeout), False, wait_timeout)

    def recv(
        self, tensor: Any, src: int | None = None, tag: int = 0, *, timeout: Any = None, match_dtype: bool = True
    ) -> int:
        call_timeout, wait_timeout = self._message_timeouts(tensor, timeout)
        work = self.irecv(tensor, src, tag, timeout=call_timeout, match_dtype=match_dtype)
        _finish(work, False, wait_timeout)
        return work._source_rank() if src is None else src

    def _message_timeouts(self, tensor: Any, timeout: Any) -> tuple[Any, Any]:
        """Return the timeouts for the low-level call and, if that takes no timeout, for wait()."""
        return (timeout, None) if isinstance(self._calls_for_message(tensor), _core.Group) else (None, timeout)

    def _backend_for(self, tensor: Any) -> Any:
        return self._target._backend_for_tensor(tensor)

    def _end_coalescing_of(self, backend: Any) -> Any:
        return self._target._end_coalescing_of(backend)

    def _calls_for_message(self, tensor: Any) -> Any:
        backend = self._backend_for(tensor)
        # A wrapper compares only collectives, so messages use the wrapped backend.
        return getattr(backend, "wrapped_pg", backend)._operations

    def _with_hooks(
        self, kind: str, is_async: bool, inputs: Any, outputs: Any, peer: int, run: Callable[[bool], Any]
    ) -> Any:
        hooks = self._target._hooks
        if not hooks:
            return run(is_async)
        return _finish(hooks.run_operation(kind, is_async, inputs, outputs, peer, lambda: run(True)), is_async)


def _set_call_options(opts: Any, timeout: Any, is_async: bool) -> Any:
    opts.asyncOp = is_async
    if timeout is not None:
        opts.timeout = to_timedelta(timeout)
    return opts


def _finish(work: Any, is_async: bool, timeout: Any = None) -> Any:
    """Return the work of an asynchronous call; otherwise wait for it and return None."""
    if is_async:
        return work
    if work is not None:
        work.wait(*([] if timeout is None else [to_timedelta(timeout)]))
    return None


def _method(operation: Operation) -> Any:
    def method(self: BackendCalls, *args: Any, timeout: Any = None, async_op: bool = False, **named: Any) -> Any:
        return self._call(operation, operation.bind(args, named), timeout, async_op)

    method.__name__, method.__qualname__ = operation.name, f"BackendCalls.{operation.name}"
    method.__doc__ = f"As dldist.Group.{operation.name}."
    return method


for _operation in OPERATIONS.values():
    if not hasattr(BackendCalls, _operation.name):
        setattr(BackendCalls, _operation.name, _method(_operation))
