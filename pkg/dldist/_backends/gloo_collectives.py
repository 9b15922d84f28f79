"""What Gloo's backend takes besides one dense tensor: several in a call, which the group runs as one, and sparse ones.

Imported when the group has refused a call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dldist import _core
from dldist._backends import gloo_errors, sparse
from dldist._backends.low_level import NotOneTensor
from dldist._base.options import timeout_of
from dldist._base.works import FollowedWork


def run(backend: Any, method: str, arguments: tuple[Any, ...], refusal: Exception) -> Any:
    """Run a call otherwise; raises where that cannot be."""
    is_several = isinstance(refusal, NotOneTensor)
    is_of_arguments = isinstance(refusal, _core.DistArgumentError)
    if is_of_arguments or not isinstance(refusal, TypeError):
        error = gloo_errors.error_of(backend, method, arguments, refusal if is_of_arguments else None)
        if error is not None:
            raise error from refusal
    form = (_OF_SEVERAL if is_several else _OTHERWISE).get(method)
    if form is None:
        raise refusal
    return form(backend, *arguments, refusal)


def _all_reduce_sparse(backend: Any, tensors: Any, opts: Any, refusal: Exception) -> Any:
    return sparse.all_reduce(backend.group, tensors, backend._op(opts), timeout_of(opts), True, refusal)


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


def _check_writable(tensors: Any) -> None:
    """Raises before anything is written or sent."""
    for tensor in tensors:
        _core._describe_tensor(tensor, True)


def _all_reduce(backend: Any, tensors: Any, opts: Any, refusal: Exception) -> Any:
    """What all tensors of all ranks are reduced to, in each of them. An average is over the ranks."""
    if sparse.layout_of(tensors[0]) is not None:
        return _all_reduce_sparse(backend, tensors, opts, refusal)
    op = backend._op(opts)
    _check_writable(tensors)
    first, *others = tensors
    for each in others:
        _core._reduce_tensor(first, each, int(op))
    work = backend.group.all_reduce(first, op, **backend._call_options(opts))
    return _then_copied(work, [first], [[each] for each in others], list(tensors))


def _all_reduce_repeated(backend: Any, tensors: Any, opts: Any, refusal: Exception) -> Any:
    return all_reduce_repeated(backend.group, tensors, backend._op(opts), backend._call_options(opts), refusal)


def all_reduce_repeated(group: _core.Group, tensors: Any, op: Any, options: dict[str, Any], refusal: Exception) -> Any:
    """The same tensor in several places is reduced once. `options` are those of the group's all_reduce_coalesced, which has refused."""
    seen = [_core._describe_tensor(each, True) for each in tensors]
    different = {(each["data"], each["count"], each["strides"]): tensor for each, tensor in zip(seen, tensors)}
    if len(different) == len(seen):
        raise refusal
    work = group.all_reduce_coalesced(list(different.values()), op, **options)
    return _then_copied(work, [], [], list(tensors))


def _broadcast(backend: Any, tensors: Any, opts: Any, refusal: Exception) -> Any:
    """The tensor number rootTensor of the root, in all tensors of all ranks."""
    _check_writable(tensors)
    others = list(tensors)
    source = others.pop(opts.rootTensor)
    work = backend.group.broadcast(source, opts.rootRank, **backend._call_options(opts))
    return _then_copied(work, [source], [[each] for each in others], list(tensors))


def _all_gather(backend: Any, outputs: Any, inputs: Any, opts: Any, refusal: Exception) -> Any:
    """All tensors of all ranks, in each list of outputs: those of a rank one after another."""
    for output in outputs:
        _check_writable(output)
    count = len(inputs)
    rows = [list(outputs[0][start : start + count]) for start in range(0, count * backend.size(), count)]
    work = backend.group.all_gather_coalesced(rows, list(inputs), **backend._call_options(opts))
    return _then_copied(work, list(outputs[0]), [list(output) for output in outputs[1:]], [list(output) for output in outputs])


_OF_SEVERAL: dict[str, Callable[..., Any]] = {"allreduce": _all_reduce, "broadcast": _broadcast, "allgather": _all_gather}
"""For several tensors of a rank. Their arguments have been looked at."""

_OTHERWISE: dict[str, Callable[..., Any]] = {
    "allreduce": _all_reduce_sparse,
    "allreduce_coalesced": _all_reduce_repeated,
    "allreduce_sparse": _all_reduce_sparse,
}
"""For what the group itself has refused."""
