"""c10d's low-level calls, shared by backends and process groups: names and argument forms.

Like c10d's overloads, collectives take either lists of tensors and options, or a flat form:

    allreduce([tensor], opts)                     allreduce(tensor or tensors, op=SUM, timeout=None)
    allgather([outputs], [tensor], opts)          allgather(outputs, tensor, timeout=None)

The methods are made from the table of operations; setup writes their types to low_level.pyi.
"""

from __future__ import annotations

from typing import Any

from dldist import _core
from dldist._base import options
from dldist._base.operations import OPERATIONS, Operation
from dldist._base.options import as_timedelta

_OPTIONS = {
    "all_gather": options.AllgatherOptions,
    "all_reduce": options.AllreduceOptions,
    "all_reduce_coalesced": options.AllreduceCoalescedOptions,
    "all_to_all": options.AllToAllOptions,
    "barrier": options.BarrierOptions,
    "broadcast": options.BroadcastOptions,
    "gather": options.GatherOptions,
    "reduce": options.ReduceOptions,
    "reduce_scatter": options.ReduceScatterOptions,
    "scan": options.AllreduceOptions,
    "exscan": options.AllreduceOptions,
    "scatter": options.ScatterOptions,
}
"""The options class of each operation, or of a collective for all of its operations."""

_FIELDS = {"op": "reduceOp", "root": "rootRank", "timeout": "timeout"}

# For each kind of side, c10d's names for the call's argument; the first is the usual name.
_NAMES = {
    "in place": ("tensors", "tensor"),
    "one": ("{}_tensors", "{}_tensor", "{}"),
    "ranks": ("{}_tensors", "{}_tensor", "{}"),
    "whole": ("{}", "{}_tensor", "{}Tensor"),
    "many": ("{}s", "{}_list"),
    "wholes": ("{}s", "{}_list"),
    "lists": ("{}_lists",),
}


def _argument_error(method: str, text: str) -> TypeError:
    return TypeError(f"{method}(): incompatible function arguments: {text}")


class TensorCountError(RuntimeError):
    """Raised if the operation takes one tensor, but the call has several or none."""


class Side:
    """The input side or the output side of a call."""

    kind: str
    """The kind of side in the table of operations, such as "one" or "ranks"."""
    parameter: int
    """The index of the tensors' parameter in the operation's parameters."""
    label: str
    """"input" or "output"; "tensor" if the call is in place."""
    is_wrapped: bool
    """True if the call takes a list of one item, and the operation takes only the item."""
    is_for_root: bool
    """True if only the root passes this argument."""
    names: tuple[str, ...]
    """The names of the call's argument; the first is the usual one."""

    def __init__(self, operation: Operation, label: str, kind: str, parameter: int) -> None:
        self.kind = kind
        self.parameter = parameter
        is_exchange = operation.input[0] == operation.output[0] == "ranks"
        self.is_wrapped = kind == "one" and not operation.is_flat or kind == "ranks" and not is_exchange
        self.is_for_root = kind in ("ranks", "whole") and "root" in operation.parameters
        self.label = label
        names = _NAMES["in place" if operation.is_in_place else "whole" if operation.is_flat else kind]
        self.names = tuple(name.format(label) for name in names)

    def to_list_form(self, method: str, value: Any) -> Any:
        """Convert an argument from the flat form to the form with lists."""
        if not self.is_wrapped:
            return value
        if self.kind == "one":
            return value if isinstance(value, (list, tuple)) else [value]
        if not isinstance(value, (list, tuple)):
            raise _argument_error(method, f"argument {self.names[0]!r} must be a list, not {type(value).__name__}")
        return [value] if value and not isinstance(value[0], (list, tuple)) else value

    def to_call_argument(self, value: Any) -> Any:
        """Convert a value of the operation to an argument of the low-level call."""
        if self.kind in ("many", "wholes", "ranks") and value is not None:
            value = list(value)
        elif self.kind == "lists":
            value = [list(item) for item in value]
        if not self.is_wrapped:
            return value
        return [value] if value is not None and (self.kind == "one" or value) else []

    def to_operation_value(self, call_name: str, argument: Any, is_root: bool) -> Any:
        """Convert an argument of the low-level call to a value of the operation."""
        if not self.is_wrapped:
            return argument
        if self.is_for_root and not is_root:
            if len(argument) != 0:
                raise RuntimeError(f"{call_name}: requires empty {self.label} on non-root: got {len(argument)} tensors")
            return None
        if len(argument) != 1:
            raise TensorCountError(f"{call_name}: requires a single-element {self.label} list: got {len(argument)} tensors")
        return argument[0]


class Call:
    """The low-level call of a collective, and the conversion of its arguments."""

    def __init__(self, operation: Operation) -> None:
        self.name = operation.call
        self.former_name = operation.former_call
        self.operation = operation
        self.options: Any = _OPTIONS.get(operation.name) or _OPTIONS[operation.collective]
        if operation.is_in_place:
            self.sides = [Side(operation, "tensor", *operation.input)]
        elif operation.input[0] == "nothing":
            self.sides = []
        else:
            self.sides = [Side(operation, "output", *operation.output), Side(operation, "input", *operation.input)]
        self.splits = [name for name in operation.parameters if name.endswith("put_split_sizes")]
        replaced = [name for name in ("root", "op") if name in operation.parameters]
        self.flat = [*replaced, "timeout"]
        """Names of the flat form's arguments that replace `opts`; the first takes its position."""

        positional = [*(side.names for side in self.sides), *((name,) for name in self.splits), ("opts",)]
        if self.sides and not operation.is_flat:
            positional += [(name,) for name in self.flat[1:]]
        self._positional = positional
        """Positional arguments, in order, each as a tuple of its names."""
        self._aliases = {name: (name,) for name in self.flat} | {name: names for names in positional for name in names}

    def describe(self, method: str) -> str:
        names = [side.names[0] for side in self.sides] + self.splits
        return f"{method}({', '.join([*names, 'opts'])}) | {method}({', '.join([*names, *self.flat])})"

    def parameters(self) -> tuple[list[str], list[str]]:
        """Return two lists: the names of positional parameters, and of keyword-only parameters."""
        positional = [names[0] for names in self._positional]
        aliases = [name for names in self._positional for name in names[1:]]
        return positional, [*aliases, *(name for name in self.flat if name not in positional)]

    def to_list_form(self, method: str, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """Convert arguments of any form to the form with lists and options, with none missing."""
        if len(args) > len(self._positional):
            raise _argument_error(method, f"got {len(args)} positional arguments, expected at most {len(self._positional)}")
        values = {names[0]: value for names, value in zip(self._positional, args) if value is not None}
        for name, value in named.items():
            if name not in self._aliases:
                raise _argument_error(method, f"unknown argument {name!r}: expected one of {', '.join(self._aliases)}")
            names = self._aliases[name]
            if value is not None and names[0] in values:
                raise _argument_error(method, f"expected one of {', '.join(names)}, got {names[0]} and {name}")
            if value is not None:
                values[names[0]] = value
        return (
            *(self._side_argument(method, side, values) for side in self.sides),
            *(list(values.get(name) or ()) for name in self.splits),
            self._make_options(method, values),
        )

    def _side_argument(self, method: str, side: Side, values: dict[str, Any]) -> Any:
        name = side.names[0]
        if name not in values and not (side.is_for_root and not side.is_wrapped):
            raise _argument_error(method, f"expected one of {', '.join(side.names)}, got none")
        return side.to_list_form(method, values.get(name))

    def _make_options(self, method: str, values: dict[str, Any]) -> Any:
        opts = values.get("opts")
        flat = {name: values[name] for name in self.flat if name in values}
        if isinstance(opts, self.options):
            if flat:
                raise _argument_error(method, f"got both {' and '.join(flat)} and {self.options.__name__}, expected one of them")
            return opts
        if opts is not None:
            if self.flat[0] in flat:
                raise _argument_error(method, f"argument {self.flat[0]!r}: got 2 values, expected 1")
            flat[self.flat[0]] = opts
        result = self.options()
        for name, value in flat.items():
            try:
                setattr(result, _FIELDS[name], value)
            except TypeError as error:
                raise _argument_error(method, f"argument {name!r}: {error}") from None
        return result

    def to_call_arguments(self, values: list[Any], opts: Any) -> tuple[Any, ...]:
        """Convert an operation's values to the call's arguments, and to attributes of `opts`."""
        parameters = self.operation.parameters
        handled = {*self.flat, *self.splits, *(parameters[side.parameter] for side in self.sides)}
        for name, value in zip(parameters, values):
            if value is not None and name not in handled:
                raise RuntimeError(f"{self.name}(): argument {name!r}: got {value!r}, expected None, as torch.distributed's low-level call lacks it")
        for name in self.flat[:-1]:
            value = values[parameters.index(name)]
            if value is not None:
                setattr(opts, _FIELDS[name], _core.ReduceOp(value) if isinstance(value, str) or hasattr(value, "__name__") else value)
        splits = (list(values[parameters.index(name)] or ()) for name in self.splits)
        return (*(side.to_call_argument(values[side.parameter]) for side in self.sides), *splits, opts)

    def to_operation_values(self, backend: Any, arguments: tuple[Any, ...], op: Any) -> list[Any]:
        """Convert a call's arguments to the operation's values; `op` is the reduction to use."""
        call_name = f"{type(backend).__name__}::{self.name}"
        opts, values = arguments[-1], [None] * len(self.operation.parameters)
        root = getattr(opts, "rootRank", None)
        is_root = root is not None and root == backend.rank()
        for side, argument in zip(self.sides, arguments):
            values[side.parameter] = side.to_operation_value(call_name, argument, is_root)
        if getattr(opts, "rootTensor", 0) != 0:
            raise RuntimeError(f"{call_name}: invalid root tensor: {opts.rootTensor}")
        for name, split in zip(self.splits, arguments[len(self.sides) :]):
            values[self.operation.parameters.index(name)] = split or None
        for name, value in (("root", root), ("op", op)):
            if name in self.operation.parameters:
                values[self.operation.parameters.index(name)] = value
        return values

    def tensors(self, arguments: tuple[Any, ...]) -> tuple[Any, Any]:
        """Return the inputs and outputs of a call. In-place tensors count as inputs."""
        return (arguments[1], arguments[0]) if len(self.sides) == 2 else (arguments[0] if self.sides else None, None)


_SPARSE = Operation(
    ("all_reduce_sparse", "all_reduce", 18, "", "allreduce_sparse", "", "", ("tensor", "op"), 1, ("one", 0), ("one", 0))
)
"""c10d's call for sparse tensors, which only the tensors' own library can read."""

_CALLS = [Call(operation) for operation in (*OPERATIONS.values(), _SPARSE) if operation.call]

CALLS = {name: call for call in _CALLS for name in (call.former_name, call.name) if name}
"""The calls by name, current and former."""

CALL_OF = {call.operation.name: call for call in _CALLS}
"""The calls by the name of their operation."""


class LowLevelCalls:
    """The collectives and messages of c10d's Backend and ProcessGroup, under current and former
    names.

    Each method converts its arguments to the form with lists and options, with none missing, and
    calls `_perform(method, *arguments)` with the method's canonical name (c10d 2.14).

    A subclass may instead override the calls, with positional parameters (lists, opts). If it
    overrides one of a call's two names, the other name calls the override.
    """

    def _perform(self, method: str, *arguments: Any) -> Any:
        raise NotImplementedError

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Wait for all ranks; errors name missing ranks. None or -1 ms is the group's timeout."""
        if timeout is not None:
            timeout = as_timedelta("monitored_barrier(): argument 'timeout'", timeout)
            timeout = None if timeout.days < 0 else timeout
        self._perform("monitored_barrier", timeout, bool(wait_all_ranks))

    def send(self, tensors: Any, dstRank: int, tag: int) -> Any:
        """send(tensors, dstRank, tag): send the only tensor in the list `tensors`."""
        return self._perform("send", tensors, dstRank, tag)

    def recv(self, tensors: Any, srcRank: int, tag: int) -> Any:
        """recv(tensors, srcRank, tag): receive into the only tensor in the list `tensors`."""
        return self._perform("recv", tensors, srcRank, tag)

    def recv_anysource(self, tensors: Any, tag: int) -> Any:
        """recv_anysource(tensors, tag): like recv, but from the first rank that sends."""
        return self._perform("recv_anysource", tensors, tag)


class _Method:
    """A descriptor for a method of LowLevelCalls: a call, under its current or former name."""

    def __init__(self, name: str, call: Call) -> None:
        self.__name__, self.__qualname__, self.__module__ = name, f"LowLevelCalls.{name}", __name__
        self.__doc__ = call.describe(name)
        self._call = call
        self._alternative = call.former_name if name == call.name else call.name

    def __get__(self, calls: Any, kind: Any = None) -> Any:
        return self if calls is None else MethodType(self, calls)

    def __call__(self, calls: Any, *args: Any, **named: Any) -> Any:
        name, alternative, kind = self.__name__, self._alternative, type(calls)
        arguments = self._call.to_list_form(name, args, named)
        # Forward only from an inherited name to an overridden name, as super() must not recurse.
        if alternative and getattr(kind, name) is self and getattr(kind, alternative) is not getattr(LowLevelCalls, alternative):
            return getattr(calls, alternative)(*arguments)
        return calls._perform(self._call.name, *arguments)

    @property
    def __signature__(self) -> Any:
        from inspect import Parameter, Signature

        positional_names, keyword_names = self._call.parameters()
        named = [Parameter(name, Parameter.KEYWORD_ONLY, default=None) for name in keyword_names]
        positional = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=None) for name in ("self", *positional_names)]
        return Signature([positional[0].replace(default=Parameter.empty), *positional[1:], *named])


MethodType = type(LowLevelCalls().send)

for _name, _call in CALLS.items():
    setattr(LowLevelCalls, _name, _Method(_name, _call))
