"""Hooks of a process group: called before and after each of its operations. Imported when the first is registered."""

from __future__ import annotations

import itertools
import struct
from typing import TYPE_CHECKING, Any

from dldist import _core
from dldist.c10d.options import HookOpName

if TYPE_CHECKING:
    from collections.abc import Callable

# What a low-level call is to a hook. Any: checkers take the members of our enums for the numbers that they are written as.
_NAMES: dict[str, Any] = {
    "send": HookOpName.SEND,
    "recv": HookOpName.RECV,
    "recv_anysource": HookOpName.RECV,
    "broadcast": HookOpName.BROADCAST,
    "allreduce": HookOpName.ALLREDUCE,
    "allreduce_coalesced": HookOpName.ALLREDUCE,
    "allreduce_sparse": HookOpName.ALLREDUCE,
    "reduce": HookOpName.REDUCE,
    "allgather": HookOpName.ALLGATHER,
    "allgather_coalesced": HookOpName.ALLGATHER,
    "all_gather_single": HookOpName.ALLGATHER,
    "all_gather_single_coalesced": HookOpName.ALLGATHER,
    "reduce_scatter": HookOpName.REDUCE_SCATTER,
    "reduce_scatter_single": HookOpName.REDUCE_SCATTER,
    "reduce_scatter_single_coalesced": HookOpName.REDUCE_SCATTER,
    "alltoall": HookOpName.ALLTOALL,
    "all_to_all_single": HookOpName.ALLTOALL,
    "barrier": HookOpName.BARRIER,
    "monitored_barrier": HookOpName.BARRIER,
    "scatter": HookOpName.SCATTER,
    "gather": HookOpName.GATHER,
    "gather_single": HookOpName.GATHER,
    "split": HookOpName.SPLIT,
    "new_window": HookOpName.NEW_WINDOW,
}


def _flat(tensors: Any) -> list[Any]:
    """The tensors of an argument: one, a list, a list of lists or None."""
    if tensors is None:
        return []
    if not isinstance(tensors, (list, tuple)):
        return [tensors]
    return [tensor for item in tensors for tensor in _flat(item)]


# For each low-level call: the places of its inputs and of its outputs among the arguments.
_NO_TENSORS = (None, None)
_PLACES = {
    "send": (0, None),
    "recv": (None, 0),
    "recv_anysource": (None, 0),
    "broadcast": (0, None),
    "allreduce": (0, None),
    "allreduce_coalesced": (0, None),
    "allreduce_sparse": (0, None),
    "reduce": (0, None),
    "barrier": _NO_TENSORS,
    "monitored_barrier": _NO_TENSORS,
    "split": _NO_TENSORS,
    "new_window": _NO_TENSORS,
}
_OUTPUT_FIRST = (1, 0)


def tensors_of(method: str, arguments: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
    """The inputs and the outputs of a low-level call: its name and arguments as LowLevelCalls._perform gets them.

    What is read and written in place counts as an input.
    """
    inputs, outputs = _PLACES.get(method, _OUTPUT_FIRST if method in _NAMES else _NO_TENSORS)
    return (
        _flat(arguments[inputs]) if inputs is not None else [],
        _flat(arguments[outputs]) if outputs is not None else [],
    )


def root_of(method: str, arguments: tuple[Any, ...]) -> int:
    """The root or the peer of a low-level call; -1 where there is none."""
    if method in ("send", "recv"):
        return int(arguments[1])
    for argument in arguments:
        root = getattr(argument, "rootRank", None)
        if root is not None:
            return int(root)
    return -1


class PreHookArgs:
    """What a pre hook is told: the operation, and its number op_id on this process group, from 0."""

    __slots__ = ("async_op", "input_tensors", "name", "op_id", "output_tensors", "root")

    def __init__(
        self, name: HookOpName, async_op: bool, input_tensors: list[Any], output_tensors: list[Any], root: int, op_id: int
    ) -> None:
        self.name = name
        self.async_op = async_op
        self.input_tensors = input_tensors
        self.output_tensors = output_tensors
        self.root = root
        self.op_id = op_id


class PostHookArgs:
    """What a post hook is told: the operation that has been started, by the op_id of its pre hook, and its work."""

    __slots__ = ("async_op", "name", "op_id", "work")

    def __init__(self, name: HookOpName, async_op: bool, work: Any, op_id: int) -> None:
        self.name = name
        self.async_op = async_op
        self.work = work
        self.op_id = op_id


class Hooks:
    """The hooks of one process group.

    Registering an id again replaces its hook; unregistering an unknown id does nothing. Hooks run in the order of their
    registration, on the thread of the caller. What a hook raises goes to the caller, and a pre hook that raises stops the
    operation.
    """

    def __init__(self) -> None:
        self._pre: dict[int, Callable[[PreHookArgs], object]] = {}
        self._post: dict[int, Callable[[PostHookArgs], object]] = {}
        self._op_id = 0

    def __bool__(self) -> bool:
        return bool(self._pre or self._post)

    def register_pre(self, id: int, fn: Callable[[PreHookArgs], object]) -> None:
        self._pre[id] = _callable("register_pre_hook", fn)

    def register_post(self, id: int, fn: Callable[[PostHookArgs], object]) -> None:
        self._post[id] = _callable("register_post_hook", fn)

    def unregister_pre(self, id: int) -> None:
        self._pre.pop(id, None)

    def unregister_post(self, id: int) -> None:
        self._post.pop(id, None)

    def run(self, method: str, arguments: tuple[Any, ...], call: Callable[[], Any]) -> Any:
        """Call `call`, which starts the low-level call `method` with these arguments, between the hooks; gives its work."""
        name = _NAMES.get(method, HookOpName.UNKNOWN)
        opts = arguments[-1] if arguments else None
        is_async = bool(getattr(opts, "asyncOp", True))
        op_id, self._op_id = self._op_id, self._op_id + 1
        if self._pre:
            inputs, outputs = tensors_of(method, arguments)
            told = PreHookArgs(name, is_async, inputs, outputs, root_of(method, arguments), op_id)
            for pre in list(self._pre.values()):
                pre(told)
        work = call()
        for post in list(self._post.values()):
            post(PostHookArgs(name, is_async, work, op_id))
        return work


def _callable(method: str, fn: Any) -> Any:
    if not callable(fn):
        raise TypeError(f"{method}(): argument 'fn' must be callable, not {type(fn).__name__}")
    return fn


_next_id = itertools.count(1 << 62)  # for hooks of our own; callers choose small numbers


class NanCheckHook:
    """Refuses to send NaN: every input of floating point is looked through before the operation starts."""

    def __init__(self, pg: Any, id: int) -> None:
        self._pg = pg
        self._id = id

    @classmethod
    def attach(cls, pg: Any) -> NanCheckHook:
        """Check all operations of the process group from now on, until remove()."""
        hook = cls(pg, next(_next_id))
        pg.register_pre_hook(hook._id, _refuse_nan)
        return hook

    def remove(self) -> None:
        self._pg.unregister_pre_hook(self._id)


def _refuse_nan(told: PreHookArgs) -> None:
    for index, tensor in enumerate(told.input_tensors):
        if has_nan(tensor):
            raise RuntimeError(f"NaN found in input tensor {index} of {told.name.name} (op_id {told.op_id})")


# Of the dtypes whose bytes struct can read: the format of their parts.
_FORMATS = {"float16": "e", "float32": "f", "float64": "d", "complex64": "f", "complex128": "d"}


def has_nan(tensor: Any) -> bool:
    """Whether an array has NaN in it. Where its library compares elements, it does so, on its device.

    False for dtypes that nobody here can compare: the 8-bit ones of most libraries, and bfloat16 without a library.
    """
    try:
        dtype = _core._describe_tensor(tensor, False)["dtype"]
    except (ValueError, BufferError):
        return False  # no memory to look at
    if "float" not in dtype and "complex" not in dtype:
        return False
    try:
        differs = tensor != tensor  # noqa: PLR0124 - only NaN differs from itself
    except (NotImplementedError, RuntimeError):
        return False
    if hasattr(differs, "any"):
        return bool(differs.any())
    if dtype not in _FORMATS:
        return False
    with memoryview(tensor) as view:
        return any(value != value for (value,) in struct.iter_unpack(f"={_FORMATS[dtype]}", view.tobytes()))
