"""Hooks around every operation of a process group. Imported with the first hook."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from dldist import _core
from dldist._backends.completion_hooks import Completions
from dldist._backends.group_backend import GroupBackend
from dldist._backends.hook_args import PostHookArgs, PreHookArgs, check_hook
from dldist._backends.low_level import CALLS
from dldist._base.operations import OPERATIONS, Operation, flat
from dldist._base.options import HookOpName, OpType

# The HookOpName of each call that is not in the table of operations.
_NAMES = {"all_reduce_sparse": "ALLREDUCE", "monitored_barrier": "BARRIER", "recv_anysource": "RECV"}


def _name_of(operation: Operation) -> Any:
    """Return the HookOpName of a collective, which is the name of its OpType."""
    return HookOpName.__members__[OpType(operation.op_type).name.lstrip("_")]


def _name_of_call(kind: str) -> Any:
    """Return the HookOpName of a collective, a message or another low-level call."""
    if kind in OPERATIONS:
        return _name_of(OPERATIONS[kind])
    return HookOpName.__members__.get(_NAMES.get(kind, kind.upper()), HookOpName.UNKNOWN)


class Hooks:
    """The hooks of one process group.

    Registering an id again replaces its hook; unregistering an unknown id does nothing. Hooks run
    in registration order, on the caller's thread, and their errors propagate to the caller. If a
    pre hook raises, the operation does not start.
    """

    def __init__(self) -> None:
        self._pre: dict[int, Callable[[PreHookArgs], object]] = {}
        self._post: dict[int, Callable[[PostHookArgs], object]] = {}
        self._op_id = 0
        self.completion: Completions | None = None
        """The completion hooks; None until the first one is registered."""

    def __bool__(self) -> bool:
        return bool(self._pre or self._post or self.completion)

    def register_pre(self, id: int, fn: Callable[[PreHookArgs], object]) -> None:
        self._pre[id] = check_hook("register_pre_hook", fn)

    def register_post(self, id: int, fn: Callable[[PostHookArgs], object]) -> None:
        self._post[id] = check_hook("register_post_hook", fn)

    def ensure_completion(self) -> Completions:
        if self.completion is None:
            self.completion = Completions()
        return self.completion

    def unregister_pre(self, id: int) -> None:
        self._pre.pop(id, None)

    def unregister_post(self, id: int) -> None:
        self._post.pop(id, None)

    def run_call(self, method: str, arguments: tuple[Any, ...], start: Callable[[], Any]) -> Any:
        """Run a low-level call by calling `start`, with pre and post hooks; return its work."""
        call = CALLS.get(method)
        if call is not None:
            opts = arguments[-1]
            root = getattr(opts, "rootRank", -1)
            return self.run_operation(call.operation.name, bool(opts.asyncOp), *call.tensors(arguments), root, start)
        sent = arguments[0] if method == "send" else None
        received = arguments[0] if method in ("recv", "recv_anysource") else None
        peer = int(arguments[1]) if method in ("send", "recv") else -1
        return self.run_operation(method, True, sent, received, peer, start)

    def run_operation(
        self, kind: str, is_async: bool, inputs: Any, outputs: Any, root: int, start: Callable[[], Any]
    ) -> Any:
        """Run a collective or message by calling `start`, with pre and post hooks; return its work.

        Inputs and outputs are tensors or lists of them. In-place tensors count as inputs.
        """
        name, op_id = _name_of_call(kind), self._next_op_id()
        if self._pre:
            args = PreHookArgs(name, is_async, flat(inputs), flat(outputs), -1 if root is None else root, op_id)
            for pre in list(self._pre.values()):
                pre(args)
        work = self._start(start, op_id)
        for post in list(self._post.values()):
            post(PostHookArgs(name, is_async, work, op_id))
        return work

    def start_coalesced(self, start: Callable[[], Any]) -> Any:
        """Start one operation for several coalesced calls by calling `start`, and return its work.

        Only completion hooks run for this operation. Pre and post hooks have run for each call.
        """
        return self._start(start, self._next_op_id())

    def _start(self, start: Callable[[], Any], op_id: int) -> Any:
        return self.completion.start(start, op_id) if self.completion else start()

    def _next_op_id(self) -> int:
        op_id, self._op_id = self._op_id, self._op_id + 1
        return op_id


_next_id = itertools.count(1 << 62)  # far from the small numbers that programs choose as ids


class NanCheckHook:
    """Rejects NaN in the floating-point inputs of operations, before they start.

    TORCH_DIST_NAN_CHECK=1 attaches one to every new group.
    """

    def __init__(self, pg: Any, id: int) -> None:
        self._pg = weakref.ref(pg)  # weak, because the group owns the hook
        self._id = id

    @classmethod
    def attach(cls, pg: Any) -> NanCheckHook:
        """Check the inputs of all later operations of the process group for NaN, until remove()."""
        hook = cls(pg, next(_next_id))
        pg.register_pre_hook(hook._id, hook._check_inputs)
        return hook

    def remove(self) -> None:
        pg = self._pg()
        if pg is not None:
            pg.unregister_pre_hook(self._id)

    def _check_inputs(self, args: PreHookArgs) -> None:
        pg = self._pg()
        is_written = args.name is HookOpName.BROADCAST and pg is not None and pg.rank() != args.root
        for index, tensor in enumerate(() if is_written else args.input_tensors):
            if has_nan(tensor):
                raise RuntimeError(f"NaN found in input tensor {index} of {args.name.name} (op_id {args.op_id})")


class FlightRecorderHook:
    """Records, in the flight recorder, operations of backends that do not record their own.

    The extension records the calls of CPU and NCCL backends, so this hook records only the other
    backends' operations. A record ends with its work or, without a future, when the operation has
    started.
    """

    def __init__(self, pg: Any, id: int, global_ranks: Sequence[int] = ()) -> None:
        self._pg = weakref.ref(pg)  # weak, because the group owns the hook
        self._id = id
        ranks = list(global_ranks) or list(range(pg.size()))
        if len(ranks) != pg.size():
            raise ValueError(f"FlightRecorderHook.attach(): argument 'global_ranks' has another length: got {len(ranks)}, expected {pg.size()}")
        self._group = _core._add_recorded_group(pg.group_name or pg.name(), pg.group_desc, pg.rank(), ranks)
        self._records: dict[int, int] = {}
        """Records by op_id, of operations that are being started."""

    @classmethod
    def attach(cls, pg: Any, global_ranks: Sequence[int] = ()) -> FlightRecorderHook:
        """Record all later operations of the process group, until remove(). Attach only one hook.

        Args:
            pg: A process group.
            global_ranks: The members' ranks in the default group, for dumps. Empty for 0 to size -
                1.

        Example:
            >>> from dldist._backends.hooks import FlightRecorderHook
            >>> hook = FlightRecorderHook.attach(dist.group.WORLD)
            >>> hook.remove()
        """
        hook = cls(pg, next(_next_id), global_ranks)
        pg.register_pre_hook(hook._id, hook._on_pre_hook)
        pg.register_post_hook(hook._id, hook._on_post_hook)
        return hook

    def remove(self) -> None:
        """Stop recording new operations. The ends of unfinished operations are still recorded."""
        pg = self._pg()
        if pg is not None:
            pg.unregister_pre_hook(self._id)
            pg.unregister_post_hook(self._id)

    def _on_pre_hook(self, args: PreHookArgs) -> None:
        pg = self._pg()
        tensors = [*args.input_tensors, *args.output_tensors]
        if pg is None or args.name not in _RECORDED:
            return
        backend = pg._backend_for_tensor(tensors[0] if tensors else None)
        if isinstance(getattr(backend, "wrapped_pg", backend), GroupBackend):  # the extension records its calls
            return
        for op_id in list(self._records):
            _core._end_record(self._group, self._records.pop(op_id), "it was not started")
        is_p2p = args.name in (HookOpName.SEND, HookOpName.RECV)
        self._records[args.op_id] = _core._begin_record(
            self._group,
            _RECORDED[args.name],
            is_p2p,
            args.root if is_p2p else -1,
            int(pg.get_timeout().total_seconds() * 1e9),
            _shapes(args.input_tensors),
            _shapes(args.output_tensors or args.input_tensors),
        )

    def _on_post_hook(self, args: PostHookArgs) -> None:
        record = self._records.pop(args.op_id, None)
        if record is None:
            return
        try:
            future = args.work.get_future()
            add_callback = future.add_done_callback
        except (AttributeError, RuntimeError):
            _core._end_record(self._group, record)
            return

        def end(done: Any) -> None:
            error = done.exception() if hasattr(done, "exception") else None
            _core._end_record(self._group, record, None if error is None else f"{type(error).__name__}: {error}")

        add_callback(end)


_RECORDED: dict[Any, str] = {
    **{name: operation.recorded for operation in OPERATIONS.values() if (name := _name_of(operation)) is not HookOpName.UNKNOWN},
    HookOpName.SEND: "send",
    HookOpName.RECV: "recv",
}
"""Operations' names in the flight recorder. Operations that c10d does not name are not recorded."""


def _shapes(tensors: list[Any]) -> list[tuple[str, tuple[int, ...]]]:
    """List the dtype and shape of each tensor that has memory."""
    shapes = []
    for tensor in tensors:
        try:
            description = _core._describe_tensor(tensor, False)
        except (TypeError, ValueError, BufferError):
            continue
        shapes.append((description["dtype"], tuple(description["shape"])))
    return shapes


def has_nan(tensor: Any) -> bool:
    """Return True if an array contains NaN. If possible, the array's library compares on its
    device.
    """
    try:
        dtype = _core._describe_tensor(tensor, False)["dtype"]
    except (ValueError, BufferError):
        return False  # the array has no memory to search
    if "float" not in dtype and "complex" not in dtype:
        return False
    try:
        is_nan = tensor != tensor  # noqa: PLR0124 - only NaN differs from itself
    except (NotImplementedError, RuntimeError):
        return False
    if hasattr(is_nan, "any"):
        return bool(is_nan.any())
    return hasattr(tensor, "tolist") and any(value != value for value in flat(tensor.tolist()))
