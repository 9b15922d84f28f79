"""Errors for wrong arguments with the texts of torch's Gloo, which programs search for.

Imported when a group has refused a call, or a call has several tensors per rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from dldist import _core
from dldist._backends import sparse


class _Facts:
    """The properties of a tensor that are compared. For a sparse tensor, `size` is the shape."""

    size: int | tuple[int, ...]

    def __init__(self, tensor: Any) -> None:
        self.layout = sparse.layout_of(tensor)
        if self.layout is None:
            seen = _core._describe_tensor(tensor, False)
            self.dtype, self.shape, self.size = seen["dtype"], tuple(seen["shape"]), seen["count"]
        else:
            self.dtype, self.shape = str(tensor.dtype), tuple(tensor.shape)
            self.size = self.shape


def _unlike(expected: Any, tensors: Any, first: int = 0) -> Iterator[str]:
    """Yield an error for each tensor that differs from `expected`; numbers start at `first`."""
    wanted = _Facts(expected)
    for index, tensor in enumerate(tensors, first):
        found = _Facts(tensor)
        if found.layout != wanted.layout:
            yield f"invalid tensor layout at index {index} (expected {wanted.layout or 'strided'}, got {found.layout or 'strided'})"
        if found.dtype != wanted.dtype:
            yield f"invalid tensor type at index {index} (expected {wanted.dtype}, got {found.dtype})"
        if found.size != wanted.size:
            yield f"invalid tensor size at index {index} (expected {wanted.shape}, got {found.shape})"


def _root(backend: Any, opts: Any) -> Iterator[str]:
    if opts.rootRank not in range(backend.size()):
        yield f"invalid root rank: {opts.rootRank}"


def _root_tensor(opts: Any, tensors: Any) -> Iterator[str]:
    if opts.rootTensor not in range(len(tensors)):
        yield f"invalid root tensor: {opts.rootTensor}"


def _roots_lists(what: str, lists: Any, tensor: Any, root: int, backend: Any) -> Iterator[str]:
    """Yield the errors in the root's list of a tensor per rank, which other ranks must not pass."""
    size = backend.size()
    if backend.rank() != root:
        if lists:
            yield f"requires empty {what} on non-root"
        return
    if len(lists) != 1:
        yield f"requires a single-element {what} list containing a list with {size} tensors."
    elif len(lists[0]) != size:
        yield (
            f"Incorrect {what} list size {len(lists[0])}. {what.capitalize()} list size should be {size}, same as size of the "
            "process group."
        )
    else:
        yield from _unlike(tensor, lists[0])


def _all_reduce(backend: Any, tensors: Any, opts: Any) -> Iterator[str]:
    if not tensors:
        yield "requires non-empty tensor list"
    yield from _unlike(tensors[0], tensors[1:], 1)
    op = backend._op(opts).name
    if op in ("BAND", "BOR", "BXOR") and not _Facts(tensors[0]).dtype.startswith(("int", "uint", "bool")):
        yield f"Cannot use ReduceOp.{op} with non-integral dtype"


def _all_reduce_coalesced(backend: Any, tensors: Any, opts: Any) -> Iterator[str]:
    if not tensors:
        yield "requires non-empty tensor list"
    for complaint in _unlike(tensors[0], tensors[1:], 1):
        if "layout" in complaint:
            yield complaint
        if "type" in complaint:
            yield "tensors must all have the same type"
    if sparse.layout_of(tensors[0]) is not None:
        yield "unsupported layout"


def _broadcast(backend: Any, tensors: Any, opts: Any) -> Iterator[str]:
    yield from _root(backend, opts)
    yield from _root_tensor(opts, tensors)
    yield from _unlike(tensors[0], tensors[1:], 1)
    if sparse.layout_of(tensors[0]) is not None:
        yield "only supports dense tensors"


def _reduce(backend: Any, tensors: Any, opts: Any) -> Iterator[str]:
    yield from _root(backend, opts)
    yield from _root_tensor(opts, tensors)
    if len(tensors) != 1:
        yield "requires a single-element tensor list"


def _all_gather(backend: Any, outputs: Any, inputs: Any, opts: Any) -> Iterator[str]:
    if not inputs:
        yield "requires non-empty input tensor list"
    if len(outputs) != len(inputs):
        yield "requires input/output tensor lists to have the same length"
    wanted = len(inputs) * backend.size()
    for index, output in enumerate(outputs):
        if len(output) != wanted:
            yield f"invalid output tensor list at index {index} (expected length {wanted}, got {len(output)})"
    yield from _unlike(inputs[0], inputs[1:], 1)
    for output in outputs:
        yield from _unlike(inputs[0], output)


def _all_gather_coalesced(backend: Any, lists: Any, inputs: Any, opts: Any) -> Iterator[str]:
    if not inputs:
        yield "requires non-empty input tensor list"
    if len(lists) != backend.size():
        yield "output lists should be equal to world size"
    for outputs in lists:
        if len(outputs) != len(inputs):
            yield f"invalid output size: (expected length {len(inputs)}, got {len(outputs)})"
        for index, (tensor, output) in enumerate(zip(inputs, outputs)):
            wanted, found = _Facts(tensor), _Facts(output)
            if found.size != wanted.size:
                yield f"invalid size of output tensor at index {index} (expected length {wanted.shape}, got {found.shape})"
            if found.dtype != wanted.dtype:
                yield f"invalid tensor type at index {index} (expected {wanted.dtype}, got {found.dtype})"


def _gather(backend: Any, outputs: Any, inputs: Any, opts: Any) -> Iterator[str]:
    yield from _root(backend, opts)
    if len(inputs) != 1:
        yield "requires a single-element input tensor list"
    yield from _roots_lists("output", outputs, inputs[0], opts.rootRank, backend)


def _scatter(backend: Any, outputs: Any, inputs: Any, opts: Any) -> Iterator[str]:
    yield from _root(backend, opts)
    if len(outputs) != 1:
        yield "requires a single-element output tensor list"
    yield from _roots_lists("input", inputs, outputs[0], opts.rootRank, backend)


def _reduce_scatter(backend: Any, outputs: Any, inputs: Any, opts: Any) -> Iterator[str]:
    if len(outputs) != 1:
        yield "reduce_scatter only supports 1 output"
    if len(inputs) != 1 or len(inputs[0]) != backend.size():
        yield "invalid input tensor list size, must be world size"
    yield from _unlike(outputs[0], inputs[0])


_CHECKS: dict[str, Callable[..., Iterator[str]]] = {
    "allreduce": _all_reduce,
    "allreduce_coalesced": _all_reduce_coalesced,
    "allreduce_sparse": _all_reduce,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "allgather": _all_gather,
    "allgather_coalesced": _all_gather_coalesced,
    "gather": _gather,
    "scatter": _scatter,
    "reduce_scatter": _reduce_scatter,
}


def error_of(backend: Any, method: str, arguments: tuple[Any, ...], refusal: Exception | None) -> Exception | None:
    """Return Gloo's error for a refused call, or None if Gloo would accept the call."""
    check = _CHECKS.get(method)
    if check is None:
        return None
    try:
        complaint = next(check(backend, *arguments), None)
    except (_core.DistArgumentError, TypeError):
        return None  # a tensor cannot be described; `refusal` has the reason
    if complaint is None:
        return None
    return _core.DistArgumentError(f"ProcessGroupGloo::{method}: {complaint}" + (f" ({refusal})" if refusal is not None else ""))
