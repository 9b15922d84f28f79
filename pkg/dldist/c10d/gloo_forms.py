"""What Gloo's backend takes besides one dense tensor: several in a call, which the group runs as one, and sparse ones.

Imported when the group has refused a call.
"""

from __future__ import annotations

from dldist import _core
from dldist.c10d import sparse
from dldist.c10d.low_level import NotOneTensor
from dldist.c10d.options import timeout_of
from dldist.c10d.work import FollowedWork

TYPE_CHECKING = False  # typing takes longer to import than all of this package
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def run(backend: Any, method: str, arguments: tuple[Any, ...], refusal: Exception) -> Any:
    """Run a call otherwise; raises the refusal where that cannot be."""
    if isinstance(refusal, NotOneTensor):
        form = _FORMS.get(method)
        if form is None or not arguments[0]:
            raise refusal
        return form(backend, *arguments)
    if method == "allreduce":
        return all_reduce_sparse(backend, arguments[0], arguments[-1], refusal)
    raise refusal


def all_reduce_sparse(backend: Any, tensors: Any, opts: Any, refusal: Exception) -> Any:
    if len(tensors) != 1:
        raise RuntimeError(f"allreduce of sparse tensors takes a single tensor, not {len(tensors)}")
    return sparse.all_reduce(backend.group, tensors[0], backend._op(opts), timeout_of(opts), True, refusal)


def _then_copied(work: Any, sources: list[Any], targets: list[list[Any]], value: list[Any]) -> Any:
    """A call, and its results in other tensors of this rank, too; `value` is what its future has. There is no work where it has been
    waited for."""

    def copy() -> None:
        for each in targets:
            _core._copy_tensors(each, sources)

    if work is not None:
        return FollowedWork(work, copy, value)
    copy()
    return None


def _check_alike(method: str, written: list[Any], read: list[Any]) -> None:
    found = [_core._describe_tensor(each, True) for each in written] + [_core._describe_tensor(each, False) for each in read]
    first, *others = ((each["dtype"], tuple(each["shape"])) for each in found)
    for other in others:
        if other != first:
            raise ValueError(
                f"ProcessGroupGloo::{method}: several tensors of a rank are alike: one is {first[0]} of shape {first[1]}, and another "
                f"{other[0]} of shape {other[1]}"
            )


def _all_reduce(backend: Any, tensors: Any, opts: Any) -> Any:
    """The sum over all tensors of all ranks, in each of them."""
    op = backend._op(opts)
    if op != _core.ReduceOp.SUM:
        raise RuntimeError(f"ProcessGroupGloo::allreduce: several tensors of a rank can be summed, and not reduced by {op.name}")
    _check_alike("allreduce", tensors, [])
    first, *others = tensors
    for each in others:
        _core._add_tensor(first, each)
    work = backend.group.all_reduce(first, op, **backend._call_options(opts))
    return _then_copied(work, [first], [[each] for each in others], list(tensors))


def _broadcast(backend: Any, tensors: Any, opts: Any) -> Any:
    """The tensor number rootTensor of the root, in all tensors of all ranks."""
    if opts.rootTensor not in range(len(tensors)):
        raise RuntimeError(f"ProcessGroupGloo::broadcast: invalid root tensor: {opts.rootTensor} of {len(tensors)}")
    _check_alike("broadcast", tensors, [])
    others = list(tensors)
    source = others.pop(opts.rootTensor)
    work = backend.group.broadcast(source, opts.rootRank, **backend._call_options(opts))
    return _then_copied(work, [source], [[each] for each in others], list(tensors))


def _all_gather(backend: Any, outputs: Any, inputs: Any, opts: Any) -> Any:
    """All tensors of all ranks, in each list of outputs: those of a rank one after another."""
    if len(outputs) != len(inputs):
        raise RuntimeError(f"ProcessGroupGloo::allgather: {len(inputs)} inputs want as many lists of outputs, not {len(outputs)}")
    _check_alike("allgather", [each for output in outputs for each in output], list(inputs))
    count, size = len(inputs), backend.size()
    for index, output in enumerate(outputs):
        if len(output) != count * size:
            raise RuntimeError(f"ProcessGroupGloo::allgather: outputs[{index}] has {len(output)} tensors, and there are {count * size}")
    rows = [list(outputs[0][start : start + count]) for start in range(0, count * size, count)]
    work = backend.group.all_gather_coalesced(rows, list(inputs), **backend._call_options(opts))
    return _then_copied(work, list(outputs[0]), [list(output) for output in outputs[1:]], [list(output) for output in outputs])


_FORMS: dict[str, Callable[..., Any]] = {"allreduce": _all_reduce, "broadcast": _broadcast, "allgather": _all_gather}
