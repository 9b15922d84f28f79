"""Small types of torch.distributed: options of calls, enums, and the debug level."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from dldist import _core
from dldist._base import argument_names


class _Numbered(enum.Enum):
    """An enum like pybind11's: int(member) is its number, and a member equals only itself."""

    def __int__(self) -> int:
        return int(self.value)

    __index__ = __int__
    __hash__ = __int__  # type: ignore[assignment]

    @classmethod
    def _missing_(cls, value: object) -> enum.Enum | None:
        return cls._value2member_map_.get(as_int(f"{cls.__name__}(): argument 'value'", value))


class OpType(_Numbered):
    """The kind of a work's operation."""

    BROADCAST, ALLREDUCE, ALLREDUCE_COALESCED, REDUCE, ALLGATHER, _ALLGATHER_BASE, ALLGATHER_COALESCED = range(7)
    GATHER, SCATTER, REDUCE_SCATTER, ALLTOALL_BASE, ALLTOALL, SEND, RECV, RECVANYSOURCE, BARRIER = range(7, 16)
    _REDUCE_SCATTER_BASE, COALESCED, _ALLREDUCE_SPARSE = range(16, 19)
    REDUCE_SCATTER_TENSOR_COALESCED, ALLGATHER_INTO_TENSOR_COALESCED = 19, 20
    UNKNOWN = 100


class WorkResult(_Numbered):
    """The outcome of a work."""

    SUCCESS, TIMEOUT, COMM_ERROR = range(3)
    UNKNOWN = 100


class ErrorType(_Numbered):
    """The result of Backend.get_error()."""

    SUCCESS, TIMEOUT, COMM_ERROR, REMOTE_ERROR = range(4)


class BackendType(_Numbered):
    """ProcessGroup.BackendType. Unlike the other enums here, its members equal their numbers."""

    UNDEFINED, GLOO, NCCL, UCC, MPI, XCCL, CUSTOM = range(7)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, int) and self.value == other)

    __hash__ = _Numbered.__int__  # type: ignore[assignment]


class HookOpName(_Numbered):
    """The kind of operation that a ProcessGroup's hook is called for."""

    SEND, RECV, BROADCAST, ALLREDUCE, REDUCE, ALLGATHER, REDUCE_SCATTER, ALLTOALL, BARRIER, SCATTER, GATHER = range(11)
    SPLIT, NEW_WINDOW, ALLREDUCE_COALESCED, ALLGATHER_BASE, ALLGATHER_COALESCED = range(11, 16)
    ALLGATHER_INTO_TENSOR_COALESCED, REDUCE_SCATTER_BASE, REDUCE_SCATTER_TENSOR_COALESCED = range(16, 19)
    ALLTOALL_BASE, UNKNOWN = 19, 20


class BuiltinCommHookType(_Numbered):
    """The built-in communication hooks of data parallelism."""

    ALLREDUCE, FP16_COMPRESS = 1, 2


class DebugLevel(_Numbered):
    """The level of checking. DETAIL compares each collective between ranks before it runs."""

    OFF, INFO, DETAIL = range(3)


class WindowAccessType(_Numbered):
    """A window's access to a rank's memory: load and store (UNIFIED) or messages (SEPARATE)."""

    UNIFIED, SEPARATE = range(2)


_debug_level: DebugLevel | None = None  # None until it is first read or set


def get_debug_level() -> DebugLevel:
    """Return the debug level that was set, or else TORCH_DISTRIBUTED_DEBUG as first read."""
    if _debug_level is None:
        set_debug_level_from_env()
    return _debug_level  # type: ignore[return-value]


def set_debug_level(level: DebugLevel) -> None:
    """Set the debug level, which affects groups that are created later."""
    global _debug_level
    if not isinstance(level, DebugLevel):
        raise TypeError(f"set_debug_level(): argument 'level' must be DebugLevel, not {type(level).__name__}")
    _debug_level = level


def set_debug_level_from_env() -> None:
    """Set the debug level from TORCH_DISTRIBUTED_DEBUG; OFF if it is unset or empty."""
    text = os.environ.get("TORCH_DISTRIBUTED_DEBUG") or "OFF"
    level = DebugLevel.__members__.get(text.upper())
    if level is None:
        raise ValueError(f"The value of TORCH_DISTRIBUTED_DEBUG must be OFF, INFO, or DETAIL. It is {text!r}.")
    set_debug_level(level)


GROUPS_TIMEOUT = timedelta(milliseconds=-1)
"""The initial value of `timeout` in options. It stands for the group's timeout."""


def timeout_of(opts: _Options) -> timedelta | None:
    """Return the timeout in the options, or None if it is the group's timeout."""
    return None if opts.timeout == GROUPS_TIMEOUT else opts.timeout


def as_timedelta(where: str, value: Any) -> timedelta:
    """Convert a timedelta or float (seconds). Reject an int, which could be milliseconds."""
    if isinstance(value, (timedelta, float)):
        return to_timedelta(value, where)
    raise TypeError(f"{where} must be timedelta, not {type(value).__name__}")


_FOREVER_S = 86400.0 * 999_999_999  # the maximum seconds of a timedelta


def to_timedelta(value: Any, where: str = "") -> timedelta:
    """Convert a timedelta or any number of seconds to a timedelta."""
    if isinstance(value, timedelta):
        return value
    if not hasattr(value, "__float__") and not hasattr(value, "__index__"):  # float() would also take text
        where = where or argument_names.title("timeout")
        raise TypeError(f"{where} must be timedelta or a number of seconds, not {type(value).__name__}")
    seconds = float(value)
    if not seconds >= 0:  # rejects NaN too, unlike `seconds < 0`
        where = where or argument_names.title("timeout")
        raise _core.DistArgumentError(f"{where} is not a valid time: got {value!r}, expected 0 or more")
    return timedelta(seconds=seconds) if seconds < _FOREVER_S else timedelta.max


def _as_reduce_op(where: str, value: Any) -> _core.ReduceOp:
    if not isinstance(value, _core.ReduceOp):
        raise TypeError(f"{where} must be ReduceOp, not {type(value).__name__}")
    return value


def as_int(where: str, value: Any) -> int:
    if not hasattr(value, "__index__"):
        raise TypeError(f"{where} must be int, not {type(value).__name__}")
    return int(value.__index__())


def _as_ints(where: str, value: Any) -> list[int]:
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{where} must be a list of int, not {type(value).__name__}")
    return [as_int(f"{where}[{index}]", item) for index, item in enumerate(value)]


class Checked:
    """An object whose attributes are checked or converted when they are set."""

    _checks: Mapping[str, Callable[[str, Any], Any]] = {}
    """For each checked attribute: a function that gets the name for error messages and the value,
    and returns the value to set. Other attributes accept any value."""

    def __setattr__(self, name: str, value: Any) -> None:
        check = self._checks.get(name)
        super().__setattr__(name, value if check is None else check(f"{type(self).__name__}.{name}", value))


class _Options(Checked):
    """The base class of options: no constructor arguments, and fixed attributes of fixed types.

    An attribute that is not set has the class attribute's value.
    """

    _checks = {
        "asyncOp": lambda where, value: bool(value),
        "device_ids": _as_ints,
        "reduceOp": _as_reduce_op,
        "rootRank": as_int,
        "rootTensor": as_int,
        "timeout": as_timedelta,
        "uuid": as_int,
    }

    timeout: timedelta
    asyncOp: bool = True

    def __init__(self) -> None:
        vars(self)["timeout"] = GROUPS_TIMEOUT

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in vars(self) and not hasattr(type(self), name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        fields = (f"{name}={getattr(self, name)!r}" for name in dir(self) if not name.startswith("_"))
        return f"{type(self).__name__}({', '.join(fields)})"


class _OptionsWithOp(_Options):
    reduceOp: _core.ReduceOp = _core.ReduceOp.SUM


class _OptionsWithRoot(_Options):
    rootRank: int = 0


class BroadcastOptions(_OptionsWithRoot):
    """Options of broadcast: the root's rank in the group."""

    rootTensor: int = 0


class AllreduceOptions(_OptionsWithOp):
    """Options of allreduce: the reduction."""


class AllreduceCoalescedOptions(_OptionsWithOp):
    """Options of allreduce_coalesced: the reduction."""


class ReduceOptions(_OptionsWithOp, _OptionsWithRoot):
    """Options of reduce: the reduction, and the root's rank in the group."""

    rootTensor: int = 0


class AllgatherOptions(_Options):
    """Options of allgather and its variants."""


class GatherOptions(_OptionsWithRoot):
    """Options of gather: the root's rank in the group."""


class ScatterOptions(_OptionsWithRoot):
    """Options of scatter: the root's rank in the group."""


class ReduceScatterOptions(_OptionsWithOp):
    """Options of reduce_scatter and its variants: the reduction."""


class AllToAllOptions(_Options):
    """Options of alltoall and alltoall_base."""


class BarrierOptions(_Options):
    """Options of barrier."""

    device: Any = None
    device_ids: list[int] = []

    def __init__(self) -> None:
        super().__init__()
        self.device_ids = []


class _OptionsWithHints(_Options):
    """Hints are accepted but have no effect."""

    hints: dict[str, str] = {}

    def __init__(self) -> None:
        super().__init__()
        self.hints = {}


class PutOptions(_OptionsWithHints):
    """Options of Window.put."""


class SignalOptions(_OptionsWithHints):
    """Options of Window.signal."""


class WaitSignalOptions(_OptionsWithHints):
    """Options of Window.wait_signal."""


class ReconfigureOptions(_OptionsWithHints):
    """Options of reconfigure: a uuid, and the members' handles (a list is in rank order)."""

    uuid: int = 0
    handles: Any = ()

    def __init__(self) -> None:
        super().__init__()
        self.handles = []
