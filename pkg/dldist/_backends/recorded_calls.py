"""Coalesced calls and batches of messages. Imported when first used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dldist import _core
from dldist._base.array_types import Tensor, Timeout
from dldist._base.future import wait_for
from dldist._base.operations import OPERATIONS
from dldist._base.probes import NO_RANK
from dldist._base.works import _IllegalWork, skipped_message


class Message:
    """One message of a batch, with group ranks; the base class of P2POp."""

    __slots__ = ("__weakref__", "group_peer", "match_dtype", "op", "tag", "tensor")

    op: Callable[..., Any] | str
    tensor: Tensor
    group_peer: int | None
    tag: int
    match_dtype: bool

    @property
    def kind(self) -> str:
        """"isend" or "irecv"."""
        return self.op if isinstance(self.op, str) else self.op.__name__

    def _call_options(self) -> dict[str, Any]:
        return {"match_dtype": self.match_dtype} if self.kind == "irecv" else {}


class Coalescing:
    """The result of Group.coalesce(): records calls of one kind, and runs them as one on exit."""

    def __init__(self, group: Any, timeout: Any, async_op: bool) -> None:
        self._group = group
        self._timeout = timeout
        self._is_async = async_op
        self.calls: list[tuple[str, Any, Any, Any]] = []
        self._is_open = False
        self.work: _core.Work | None = None
        """The operation that an async_op block has started; None if the block had no calls."""

    def __enter__(self) -> Coalescing:
        if self._is_open:
            raise RuntimeError("coalesce(): the context is already entered; create another")
        previous = self._group._set_recorder(self)
        if previous is not None:
            self._group._set_recorder(previous)
            raise RuntimeError("coalesce(): got a block inside another block of the group, expected no nesting")
        self._is_open = True
        self.calls.clear()
        self.work = None
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._group._set_recorder(None)
        self._is_open = False
        calls, self.calls = self.calls, []
        if kind is None and calls:
            self.work = self._run(calls)

    def record(self, name: str, first: Any, second: Any, third: Any, is_async: bool) -> Any:
        """Record a call instead of running it. Return a placeholder for its work, or None."""
        op = (second if OPERATIONS[name].is_in_place else third) or _core.ReduceOp.SUM
        if not isinstance(op, _core.ReduceOp):
            op = _core.ReduceOp(op)
        if self.calls and self.calls[0][0] != name:
            raise RuntimeError(f"coalesce(): the block's calls must be of the same type: got {name}(), expected {self.calls[0][0]}(), as before")
        if self.calls and self.calls[0][3] != op:
            raise ValueError(f"{name}(): argument 'op' differs within coalesce(): got {op}, expected {self.calls[0][3]}, as before")
        self.calls.append((name, first, second, op))
        if not is_async:
            return None
        return _IllegalWork()

    def _run(self, calls: list[tuple[str, Any, Any, Any]]) -> _core.Work | None:
        name, _, _, op = calls[0]
        operation = OPERATIONS[name]
        arguments: list[Any] = [[call[1] for call in calls]]
        if not operation.is_in_place:
            arguments.append([call[2] for call in calls])
        if "op" in operation.parameters:
            arguments.append(op)
        run = getattr(self._group, operation.as_one)
        return run(*arguments, timeout=self._timeout, async_op=self._is_async)  # type: ignore[no-any-return]

    def wait(self, timeout: Timeout | None = None) -> bool:
        """Wait for the operation, if any. timeout=None is its own timeout; 0 checks once."""
        if self.work is not None:
            wait_for(self.work, timeout)
        return True


def coalesce(group: _core.Group, *, timeout: Any = None, async_op: bool = False) -> Coalescing:
    return Coalescing(group, timeout, async_op)


def batch_isend_irecv(group: Any, p2p_op_list: Any) -> list[Any]:
    if not isinstance(p2p_op_list, (list, tuple)) or not all(isinstance(op, Message) for op in p2p_op_list):
        raise ValueError(f"batch_isend_irecv(): argument 'p2p_op_list' is not valid: got {p2p_op_list!r:.100}, expected a list of P2POp")
    # Check all messages before any starts, because a started message cannot be withdrawn.
    tensors = [
        _check_message(f"batch_isend_irecv(): argument 'p2p_op_list[{index}]'", group, op)
        for index, op in enumerate(p2p_op_list)
    ]
    _check_no_overlap([index for index, op in enumerate(p2p_op_list) if op.kind == "irecv"], tensors)
    if p2p_op_list and isinstance(group, _core.Group):
        group = group._serving(p2p_op_list[0].tensor)
    if isinstance(group, _core.NcclGroup):
        return _run_batch_as_one(group, p2p_op_list, group.start_coalescing, group.end_coalescing, group.drop_coalesced)
    get_backend = getattr(group, "_coalescing_backend_of", None)
    backend = get_backend(p2p_op_list[0].tensor) if get_backend is not None and p2p_op_list else None
    if backend is not None:
        cancel = getattr(backend, "_drop_coalesced", backend._end_coalescing)
        return _run_batch_as_one(group, p2p_op_list, backend._start_coalescing, lambda: group._end_coalescing_of(backend), cancel)
    # Start receives first, so that incoming messages are received directly.
    works: list[Any] = [None] * len(p2p_op_list)
    for kind in ("irecv", "isend"):
        for index, op in enumerate(p2p_op_list):
            if op.kind == kind:
                works[index] = getattr(group, kind)(op.tensor, op.group_peer, op.tag, **op._call_options())
    return works


def _run_batch_as_one(group: Any, p2p_op_list: Any, start: Any, finish: Any, cancel: Any) -> list[Any]:
    """Run all messages as one operation. Return its work once for each message."""
    if all(op.group_peer == NO_RANK for op in p2p_op_list):
        return [skipped_message(op.tensor) for op in p2p_op_list]
    start()
    try:
        for op in p2p_op_list:
            getattr(group, op.kind)(op.tensor, op.group_peer, op.tag, **op._call_options())
    except BaseException:
        cancel()
        raise
    return [finish()] * len(p2p_op_list)


def _check_message(where: str, group: Any, op: Message) -> Any:
    """Check a message. Return its tensor's description, or {} if only the backend can check it."""
    is_from_any = op.group_peer is None and op.kind == "irecv"
    if not is_from_any and op.group_peer != NO_RANK and op.group_peer not in range(group.size):
        raise ValueError(f"{where}: invalid rank: got {op.group_peer!r}, expected 0 to {group.size - 1}, or dldist.NO_RANK")
    if not hasattr(op.tag, "__index__") or op.tag.__index__() < 0:
        raise ValueError(f"{where}: invalid tag: got {op.tag!r}, expected an int of 0 or more")
    if not isinstance(group, _core.Group):
        return {}  # unknown here: only the backend can check the tensor
    try:
        return _core._describe_tensor(op.tensor, op.kind == "irecv")
    except (TypeError, ValueError, BufferError) as error:
        text = str(error).partition("' ")[2]
        raise type(error)(f"{where}: its tensor {text}") from error


def _check_no_overlap(indices: list[int], tensors: list[Any]) -> None:
    """Reject receives into overlapping memory, whose result would depend on the messages' order."""
    extents = []
    for index in indices:
        tensor = tensors[index]
        if tensor.get("count"):
            # Check only the first element of a strided tensor: interleaved tensors share no memory.
            nelements = tensor["count"] if tensor["is_contiguous"] else 1
            extents.append((tensor["data"], tensor["data"] + nelements * tensor["itemsize"], index))
    extents.sort()
    for (_, end, one), (start, _, other) in zip(extents, extents[1:]):
        if start < end:
            first, second = sorted((one, other))
            raise _core.DistArgumentError(
                f"batch_isend_irecv(): argument 'p2p_op_list': p2p_op_list[{first}] and p2p_op_list[{second}] receive into "
                "the same or overlapping memory: expected separate memory"
            )
