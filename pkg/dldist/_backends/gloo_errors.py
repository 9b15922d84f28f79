"""Errors for wrong arguments with the texts of torch's Gloo, which programs search for.

Imported when a group has refused a call, or a call has several tensors per rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from dldist import _core
from dldist._backends import sparse


class _Properties:
    """The properties of a tensor that are compared. For a sparse tensor, `size` is the shape."""

    size: int | tuple[int, ...]

    def __init__(self, tensor: Any) -> None:
        self.layout = sparse.layout_of(tensor)
        if self.layout is None:
            description = _core._describe_tensor(tensor, False)
            self.dtype, self.shape, self.size = description["dtype"], tuple(description["shape"]), description["count"]
        else:
            self.dtype, self.shape = str(tensor.dtype), tuple(tensor.shape)
            self.size = self.shape


def _differences(expected: Any, tensors: Any, first: int = 0) -> Iterator[str]:
    """Yield an error for each tensor that differs from `expected`. Tensors count from `first`."""
    required = _Properties(expected)
    for index, tensor in enumerate(tensors, first):
        actual = _Properties(tensor)
        if actual.layout != required.layout:
            yield f"invalid tensor layout at index {index} (expected {required.layout or 'strided'}, got {actual.layout or 'strided'})"
        if actual.dtype != required.dtype:
            yield f"invalid tensor type at index {index} (expected {required.dtype}, got {actual.dtype})"
        if actual.size != required.size:
            yield f"invalid tensor size at index {index} (expected {required.shape}, got {actual.shape})"


def _root_errors(backend: Any, opts: Any) -> Iterator[str]:
    if opts.rootRank not in range(backend.size()):
        yield f"invalid root rank: {opts.rootRank}"


def _root_tensor_errors(opts: Any, tensors: Any) -> Iterator[str]:
    if opts.rootTensor not in range(len(tensors)):
        yield f"invalid root tensor: {opts.rootTensor}"


def _root_list_errors(label: str, lists: Any, tensor: Any, root: int, backend: Any) -> Iterator[str]:
    """Yield errors in `lists`: the root must pass a list of one tensor per rank, others nothing."""
    size = backend.size()
    if backend.rank() != root:
        if lists:
            yield f"requires empty {label} on non-root"
        return
    if len(lists) != 1:
        yield f"requires a single-element {label} list containing a list with {size} tensors."
    elif len(lists[0]) != size:
        yield (
            f"Incorrect {label} list size {len(lists[0])}. {label.capitalize()} list size should be {size}, same as size of the "
            "process group."
        )
    else:
        yield from _differences(tensor, lists[0])


def _all_reduce(backend: Any, tensors: Any, opts: Any) -> Iterator[str]:
    if not tensors:
        yield "requires non-empty tensor list"
    yield from _differences(tensors[0], tensors[1:], 1)
    op = backend._op(opts).name
    if op in ("BAND", "BOR", "BXOR") and not _Properties(tensors[0]).dtype.startswith(("int", "uint", "bool")):
        yield f"Cannot use ReduceOp.{op} with non-integral dtype"


def _all_reduce_coalesced(backend: Any, tensors: Any, opts: Any) -> Iterator[str]:
    if not tensors:
        yield "requires non-empty tensor list"
    for text in _differences(tensors[0], tensors[1:], 1):
        if "layout" in text:
            yield text
        if "type" in text:
            yield "tensors must all have the same type"
    if sparse.layout_of(tensors[0]) is not None:
        yield "unsupported layout"


def _broadcast(backend: Any, tensors: Any, opts: Any) -> Iterator[str]:
    yield from _root_errors(backend, opts)
    yield from _root_tensor_errors(opts, tensors)
    yield from _differences(tensors[0], tensors[1:], 1)
    if sparse.layout_of(tensors[0]) is not None:
        yield "only supports dense tensors"


def _reduce(backend: Any, tensors: Any, opts: Any) -> Iterator[str]:
    yield from _root_errors(backend, opts)
    yield from _root_tensor_errors(opts, tensors)
    if len(tensors) != 1:
        yield "requires a single-element tensor list"


def _all_gather(backend: Any, outputs: Any, inputs: Any, opts: Any) -> Iterator[str]:
    if not inputs:
        yield "requires non-empty input tensor list"
    if len(outputs) != len(inputs):
        yield "requires input/output tensor lists to have the same length"
    required = len(inputs) * backend.size()
    for index, output in enumerate(outputs):
        if len(output) != required:
            yield f"invalid output tensor list at index {index} (expected length {required}, got {len(output)})"
    yield from _differences(inputs[0], inputs[1:], 1)
    for output in outputs:
        yield from _differences(inputs[0], output)


def _all_gather_coalesced(backend: Any, lists: Any, inputs: Any, opts: Any) -> Iterator[str]:
    if not inputs:
        yield "requires non-empty input tensor list"
    if len(lists) != backend.size():
        yield "output lists should be equal to world size"
    for outputs in lists:
        if len(outputs) != len(inputs):
            yield f"invalid output size: (expected length {len(inputs)}, got {len(outputs)})"
        for index, (tensor, output) in enumerate(zip(inputs, outputs)):
            required, actual = _Properties(tensor), _Properties(output)
            if actual.size != required.size:
                yield f"invalid size of output tensor at index {index} (expected length {required.shape}, got {actual.shape})"
            if actual.dtype != required.dtype:
                yield f"invalid tensor type at index {index} (expected {required.dtype}, got {actual.dtype})"


def _gather(backend: Any, outputs: Any, inputs: Any, opts: Any) -> Iterator[str]:
    yield from _root_errors(backend, opts)
    if len(inputs) != 1:
        yield "requires a single-element input tensor list"
    yield from _root_list_errors("output", outputs, inputs[0], opts.rootRank, backend)


def _scatter(backend: Any, outputs: Any, inputs: Any, opts: Any) -> Iterator[str]:
    yield from _root_errors(backend, opts)
    if len(outputs) != 1:
        yield "requires a single-element output tensor list"
    yield from _root_list_errors("input", inputs, outputs[0], opts.rootRank, backend)


def _reduce_scatter(backend: Any, outputs: Any, inputs: Any, opts: Any) -> Iterator[str]:
    if len(outputs) != 1:
        yield "reduce_scatter only supports 1 output"
    if len(inputs) != 1 or len(inputs[0]) != backend.size():
        yield "invalid input tensor list size, must be world size"
    yield from _differences(outputs[0], inputs[0])


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


def find_error(backend: Any, method: str, arguments: tuple[Any, ...], refusal: Exception | None) -> Exception | None:
    """Return Gloo's error for a refused call, or None if Gloo would accept the call."""
    check = _CHECKS.get(method)
    if check is None:
        return None
    try:
        text = next(check(backend, *arguments), None)
    except (_core.DistArgumentError, TypeError):
        return None  # a tensor cannot be described: the caller raises `refusal`
    if text is None:
        return None
    return _core.DistArgumentError(f"ProcessGroupGloo::{method}: {text}" + (f" ({refusal})" if refusal is not None else ""))
