"""Runs calls of groups in Python as PyTorch operations, if anything observes operations.

PyTorch's own groups, and dldist's C++ groups, start every call as an operation (all_reduce as
torch.ops.c10d.allreduce_), whose kernel calls the group's backend. Groups in Python run calls
directly, which is faster than an operation. A dispatch mode, a torch.func transform or a tensor
subclass would not see a direct call: the graph of make_fx() would lack the call. So if any of these
is active, the call is run as its operation here.

The first group in Python replaces the CPU kernels. The new kernels run operations on dldist's
groups, and pass other groups' operations to the groups' backends. So operations that start in C++,
or in a graph of make_fx(), also reach dldist's groups.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import _dldist_torch_names as names
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

import dldist
from dldist._backends.low_level import CALLS, Call
from dldist._base.operations import flat
from dldist.torch._compiler import not_compiled
from dldist.torch._options import OPTIONS
from dldist.torch._tensors import device_type_of, is_lazy
from dldist.torch._work import Work

c10d: Any = _distributed_c10d

if TYPE_CHECKING:
    from dldist.torch._python_group import ProcessGroup


class _Operation(NamedTuple):
    """The name of an operation in torch.ops.c10d, and the class of options of the group's call."""

    name: str
    options: Any = None


def _find_operation(call: Call) -> _Operation:
    # Operations have the calls' former names. A trailing underscore means that tensors are written.
    name = call.former_name or call.name
    return _Operation(f"{name}_" if call.sides else name, getattr(c10d, call.options.__name__))


_OPERATIONS = {
    **{call.name: operation for call in CALLS.values() if hasattr(torch.ops.c10d, (operation := _find_operation(call)).name)},
    "recv": _Operation("recv_"),
    "recv_anysource": _Operation("recv_any_source_"),
    "send": _Operation("send"),
}
"""The operation for each call in dldist's list of calls."""

_FIELDS = {
    "async_op": "asyncOp",
    "device_ids": "device_ids",
    "reduce_op": "reduceOp",
    "root_rank": "rootRank",
    "root_tensor": "rootTensor",
    "timeout": "timeout",
}
"""Maps operations' arguments to attributes of the options; others keep the call's order."""

_can_replace_kernels = names.are_present(
    "torch.library.Library.impl(allow_override)",
    "torch.utils._python_dispatch.TorchDispatchMode",
    "torch._C._DisableFuncTorch",
    "torch._C.Future",
    "torch._C._distributed_c10d._create_work_from_future",
    "torch._C._distributed_c10d.Work.boxed",
    "torch._C._distributed_c10d.Work.unbox",
    "torch.distributed.ProcessGroup.boxed",
    "torch.distributed.ProcessGroup.unbox",
)

_modes: Any = names.find("torch.utils._python_dispatch._get_current_dispatch_mode_stack") or list
_len_of_modes: Any = names.find("torch._C._len_torch_dispatch_stack") or (lambda: len(_modes()))
_transform: Any = names.find("torch._C._functorch.peek_interpreter_stack") or (lambda: None)
_UNOBSERVED_TYPES = OPTIONS | {torch.Tensor, torch.nn.Parameter, int, list}
_no_dispatch: Any = torch.Tensor.__torch_dispatch__  # the default for plain tensors


def is_observed(arguments: tuple[Any, ...]) -> bool:
    """True if a mode or tensor observes operations, so a call must run as one."""
    if _len_of_modes() or _transform() is not None:
        return True
    for item in arguments:
        while isinstance(item, (list, tuple)) and item:  # check only the first tensor of a list
            item = item[0]
        kind = type(item)
        if kind not in _UNOBSERVED_TYPES and getattr(kind, "__torch_dispatch__", _no_dispatch) is not _no_dispatch:
            return True
    return False


# ---- from a call to its operation


class _Call:
    """A call that runs as an operation on this thread. The operation returns only the C++ half of
    dldist's work, so `works` keeps the Python half."""

    def __init__(self, opts: Any, outer: _Call | None) -> None:
        self.opts = opts
        self.outer = outer
        self.works: list[Work] = []


class _ThreadState(threading.local):
    call: _Call | None = None


_thread_state = _ThreadState()


def run(group: ProcessGroup, method: str, arguments: tuple[Any, ...]) -> Any:
    """Run a group's call as an operation. Return the work, which may be another library's."""
    operation = _OPERATIONS.get(method)
    obstacle = _obstacle(method, operation, arguments)
    if operation is None or obstacle:
        raise NotImplementedError(
            f'{method}(): unsupported on a group of the backend "dldist" if {_observer_of(arguments)} must see it as an '
            f"operation of PyTorch: {obstacle}; call it elsewhere, or use torch.distributed._functional_collectives"
        )
    kind = device_type_of(arguments)
    if kind == "cuda":
        replace_kernels(kind)
    torch_operation = getattr(torch.ops.c10d, operation.name).default
    opts = None if operation.options is None else arguments[-1]
    remaining = iter(arguments)
    values: list[Any] = []
    for argument in torch_operation._schema.arguments:
        if argument.name == "process_group":
            values.append(group.boxed())
        elif argument.name == "sparse_indices":
            values.append(None)
        elif argument.name == "tensor":
            values.append(torch.empty(1))  # a barrier has no tensor, but the operation needs one
        elif argument.name in _FIELDS:
            values.append(_operation_value(argument.name, getattr(opts, _FIELDS[argument.name])))
        else:
            values.append(next(remaining))
    call = _thread_state.call = _Call(opts, _thread_state.call)
    try:
        result = torch_operation(*values)
        return dist.Work.unbox(result[-1] if isinstance(result, (list, tuple)) else result)
    finally:
        _thread_state.call = call.outer


def _observer_of(arguments: tuple[Any, ...]) -> str:
    if _len_of_modes():
        return type(_modes()[-1]).__name__ if _modes() else "a dispatch mode"
    return "torch.func" if _transform() is not None else type(flat(arguments[0])[0]).__name__


def _obstacle(method: str, operation: _Operation | None, arguments: tuple[Any, ...]) -> str:
    if operation is None:
        return "PyTorch has no such operation"
    if not _backend_method(method):
        return "PyTorch's own backends have it only in C++"
    if not _can_replace_kernels:
        return "that takes PyTorch 2.8 or newer"
    # The dispatcher would pass copies of lazy tensors: results in these would be lost.
    return "a tensor is conjugated or negated lazily (resolve_conj() and resolve_neg() help)" if is_lazy(arguments) else ""


def _operation_value(name: str, value: Any) -> Any:
    if name == "timeout":
        return -1 if value.days < 0 else round(value.total_seconds() * 1000)
    return _boxed_reduction(value) if name == "reduce_op" else value


class _ArgumentsCaptured(Exception):
    """Raised to end an operation once its arguments are known."""


_Mode: Any = names.find("torch.utils._python_dispatch.TorchDispatchMode") or object


class _StopAtArguments(_Mode):  # type: ignore[misc]
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _ArgumentsCaptured(args)


_EMPTY_TENSOR = torch.zeros(0)


def _boxed_reduction(op: Any) -> Any:
    """Convert a reduction to an operation's argument, which only a C++ group can create."""
    opts = c10d.AllreduceOptions()
    opts.reduceOp = getattr(dist.ReduceOp, op.name) if type(op) is dldist.ReduceOp else op
    try:
        with torch._C._DisableFuncTorch(), _StopAtArguments():
            dist.ProcessGroup(0, 1).allreduce([_EMPTY_TENSOR], opts)  # type: ignore[call-arg]
    except _ArgumentsCaptured as captured:
        return captured.args[0][2]
    raise AssertionError("an operation continued after a mode had ended it")


# ---- from an operation to its call


def _kernel(method: str, operation: _Operation, kind: str) -> Callable[..., Any]:
    """Create an operation's kernel for a device type, which calls `method` on dldist's groups."""
    torch_operation = getattr(torch.ops.c10d, operation.name).default
    names = [argument.name for argument in torch_operation._schema.arguments]
    group_index = names.index("process_group")
    has_outputs = len(torch_operation._schema.returns) == 2

    @not_compiled
    def kernel(*values: Any) -> Any:
        group = dist.ProcessGroup.unbox(values[group_index])
        call = _thread_state.call
        opts = operation.options and operation.options()
        arguments = []
        for name, value in zip(names, values):  # trailing default values may be missing
            if name in _FIELDS:
                setattr(opts, _FIELDS[name], _option_value(name, value, call))
            elif name not in ("process_group", "sparse_indices", "tensor"):
                arguments.append(value)
        arguments += [opts] if opts is not None else []
        if not hasattr(group, "_run_call"):
            # Call the group's backend, which, unlike PyTorch's kernel, releases the GIL.
            backend = group._get_backend(torch.device(kind))
            work = getattr(backend, _backend_method(method))(*arguments) or _completed_work()
        else:
            work = group._run_call(method, tuple(arguments))
            if call is not None:
                call.works.append(work)
            else:  # the operation started in C++, which drops the work's Python half
                work = c10d._create_work_from_future(work.get_future())
        return (values[0], work.boxed()) if has_outputs else work.boxed()

    return kernel


def _completed_work() -> Any:
    """Return a completed work, for backends whose synchronous calls return None."""
    future: Any = torch._C.Future([])
    future.set_result(None)
    return c10d._create_work_from_future(future)


def _backend_method(method: str) -> str:
    """Return a call's name in the backends of PyTorch, or "" if only C++ can call it."""
    call = CALLS.get(method)
    names = (method, call.former_name if call is not None else "")
    return next((name for name in names if name and hasattr(c10d.Backend, name)), "")


def _option_value(name: str, value: Any, call: _Call | None) -> Any:
    if name == "timeout":
        return timedelta(milliseconds=value)
    if name != "reduce_op":
        return value
    kind = dist.ReduceOp.RedOpType(value.op())
    if kind != dist.ReduceOp.PREMUL_SUM:
        return dist.ReduceOp(kind)
    if call is None:
        raise NotImplementedError("argument 'op': got PREMUL_SUM, whose factor a group's method does not get; use the function of torch.distributed")
    return call.opts.reduceOp


_library: Any = None
_replaced: set[str] = set()


def replace_kernels(kind: str) -> None:
    """Replace the kernels of a device type, so that operations reach dldist's groups."""
    global _library
    key = kind.upper()
    if key in _replaced or not _can_replace_kernels:
        return
    _replaced.add(key)
    _library = _library or torch.library.Library("c10d", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the kernel already exists
        for method, operation in _OPERATIONS.items():
            if hasattr(torch.ops.c10d, operation.name) and _backend_method(method):
                _replace(method, operation, key)
        _replace("allreduce", _OPERATIONS["allreduce"], f"Sparse{key}")


def _replace(method: str, operation: _Operation, key: str) -> None:
    kernel = _kernel(method, operation, key.removeprefix("Sparse").lower())
    _library.impl(operation.name, kernel, key, allow_override=True)
