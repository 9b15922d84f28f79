"""Calls that Gloo accepts but a dldist group refuses: several tensors per rank, sparse tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dldist import _core
from dldist._backends import gloo_errors, sparse
from dldist._backends.low_level import TensorCountError
from dldist._base.options import timeout_of
from dldist._base.works import ChainedWork


def run(backend: Any, method: str, arguments: tuple[Any, ...], refusal: Exception) -> Any:
    """Run a low-level call that the group refused, or raise `refusal` if that is impossible."""
    has_several_tensors = isinstance(refusal, TensorCountError)
    is_argument_error = isinstance(refusal, _core.DistArgumentError)
    if is_argument_error or not isinstance(refusal, TypeError):
        error = gloo_errors.find_error(backend, method, arguments, refusal if is_argument_error else None)
        if error is not None:
            raise error from refusal
    function = (_MULTI_TENSOR_CALLS if has_several_tensors else _OTHER_CALLS).get(method)
    if function is None:
        raise refusal
    return function(backend, *arguments, refusal)


def _all_reduce_sparse(backend: Any, tensors: Any, opts: Any, refusal: Exception) -> Any:
    return sparse.all_reduce(backend.group, tensors, backend._op(opts), timeout_of(opts), True, refusal)


def _copy_after(work: Any, sources: list[Any], targets: list[list[Any]], value: list[Any]) -> Any:
    """Return a work that, after `work`, copies the sources to the targets; its result is `value`.
    If `work` is None (a synchronous call), copy now and return None."""

    def copy() -> None:
        for each in targets:
            _core._copy_tensors(each, sources)

    if work is not None:
        return ChainedWork(work, copy, value)
    copy()
    return None


def _check_writable(tensors: Any) -> None:
    """Raise an error for read-only tensors before any data is written or sent."""
    for tensor in tensors:
        _core._describe_tensor(tensor, True)


def _all_reduce(backend: Any, tensors: Any, opts: Any, refusal: Exception) -> Any:
    """Reduce all ranks' tensors to one result in each tensor. AVG divides by the group size."""
    if sparse.layout_of(tensors[0]) is not None:
        return _all_reduce_sparse(backend, tensors, opts, refusal)
    op = backend._op(opts)
    _check_writable(tensors)
    first, *others = tensors
    for each in others:
        _core._reduce_tensor(first, each, int(op))
    work = backend.group.all_reduce(first, op, **backend._call_options(opts))
    return _copy_after(work, [first], [[each] for each in others], list(tensors))


def _all_reduce_repeated(backend: Any, tensors: Any, opts: Any, refusal: Exception) -> Any:
    return all_reduce_repeated(backend.group, tensors, backend._op(opts), backend._call_options(opts), refusal)


def all_reduce_repeated(group: _core.Group, tensors: Any, op: Any, options: dict[str, Any], refusal: Exception) -> Any:
    """Reduce a list that may repeat tensors; each different tensor is reduced once."""
    descriptions = [_core._describe_tensor(each, True) for each in tensors]
    unique = {(each["data"], each["count"], each["strides"]): tensor for each, tensor in zip(descriptions, tensors)}
    if len(unique) == len(descriptions):
        raise refusal
    work = group.all_reduce_coalesced(list(unique.values()), op, **options)
    return _copy_after(work, [], [], list(tensors))


def _broadcast(backend: Any, tensors: Any, opts: Any, refusal: Exception) -> Any:
    """Broadcast the root's tensor number rootTensor to all tensors of all ranks."""
    _check_writable(tensors)
    others = list(tensors)
    source = others.pop(opts.rootTensor)
    work = backend.group.broadcast(source, opts.rootRank, **backend._call_options(opts))
    return _copy_after(work, [source], [[each] for each in others], list(tensors))


def _all_gather(backend: Any, outputs: Any, inputs: Any, opts: Any, refusal: Exception) -> Any:
    """Gather all tensors of all ranks into each list of outputs, ordered by rank."""
    for output in outputs:
        _check_writable(output)
    count = len(inputs)
    rows = [list(outputs[0][start : start + count]) for start in range(0, count * backend.size(), count)]
    work = backend.group.all_gather_coalesced(rows, list(inputs), **backend._call_options(opts))
    return _copy_after(work, list(outputs[0]), [list(output) for output in outputs[1:]], [list(output) for output in outputs])


_MULTI_TENSOR_CALLS: dict[str, Callable[..., Any]] = {"allreduce": _all_reduce, "broadcast": _broadcast, "allgather": _all_gather}
"""Function for each low-level call with several tensors per rank. The arguments are checked."""

_OTHER_CALLS: dict[str, Callable[..., Any]] = {
    "allreduce": _all_reduce_sparse,
    "allreduce_coalesced": _all_reduce_repeated,
    "allreduce_sparse": _all_reduce_sparse,
}
"""Function for each low-level call with other arguments that the group refuses."""
