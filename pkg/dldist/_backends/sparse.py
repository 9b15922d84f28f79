"""All-reduce of sparse tensors: the sum over all ranks, coalesced.

Supports torch's COO tensors, and SciPy's matrices and arrays in the formats COO, CSR and CSC. The
tensors are changed in place, and may get more or fewer elements.
"""

from __future__ import annotations

import sys
from array import array
from typing import Any

from dldist import _core
from dldist._base.arrays import family_of
from dldist._base.works import done_work


class _OfTorch:
    """A torch COO tensor as `places`, which has a row of indices for each element, and `values`."""

    def __init__(self, tensor: Any) -> None:
        own = tensor.detach().coalesce()
        self._tensor = tensor
        self.shape = tuple(own.shape)
        self.sparse_dim = own.sparse_dim()
        self.places = own.indices().t().contiguous()
        self.values = own.values().contiguous()

    def add(self, other: _OfTorch) -> None:
        """Append the elements of another tensor."""
        import torch

        self.places = torch.cat([self.places, other.places])
        self.values = torch.cat([self.values, other.values])

    def put(self, places: list[Any], values: list[Any]) -> None:
        """Set the elements of the tensor to these; values at duplicate indices are summed."""
        import torch

        indices = torch.cat(places).t()
        whole = torch.sparse_coo_tensor(indices, torch.cat(values), self.shape, check_invariants=False).coalesce()
        with torch.no_grad():
            self._tensor.copy_(whole)


class _OfScipy:
    """A SciPy matrix or array as `places` and `values`, as in _OfTorch."""

    def __init__(self, matrix: Any) -> None:
        import numpy

        own = matrix.tocoo(copy=True)
        own.sum_duplicates()
        coords = own.coords if hasattr(own, "coords") else (own.row, own.col)
        self._matrix = matrix
        self.shape = tuple(own.shape)
        self.sparse_dim = len(self.shape)
        self.places = numpy.stack(coords, axis=1).astype("int64")
        self.values = own.data

    def add(self, other: _OfScipy) -> None:
        import numpy

        self.places = numpy.concatenate([self.places, other.places])
        self.values = numpy.concatenate([self.values, other.values])

    def put(self, places: list[Any], values: list[Any]) -> None:
        import numpy

        coords = tuple(numpy.concatenate(places).T)
        whole = type(self._matrix.tocoo())((numpy.concatenate(values), coords), shape=self.shape)
        whole.sum_duplicates()
        vars(self._matrix).update(vars(whole.asformat(self._matrix.format)))


_OF_SCIPY = ("coo", "csr", "csc")


def layout_of(tensor: Any) -> str | None:
    """Return a sparse tensor's layout (torch) or format (SciPy), or None for a dense tensor."""
    torch, scipy = sys.modules.get("torch"), sys.modules.get("scipy.sparse")
    if torch is not None and isinstance(tensor, torch.Tensor):
        return None if tensor.layout is torch.strided else str(tensor.layout)
    return str(tensor.format) if scipy is not None and scipy.issparse(tensor) else None


def _taken_apart(tensor: Any) -> _OfTorch | _OfScipy | None:
    """Return a sparse tensor's indices and values, or None for a dense tensor."""
    layout = layout_of(tensor)
    if layout is None or layout == "torch.sparse_coo":
        return None if layout is None else _OfTorch(tensor)
    if layout.startswith("torch."):
        raise TypeError(
            f"unsupported layout: all_reduce of a {layout} tensor: of torch's sparse tensors only COO can be reduced (to_sparse_coo())"
        )
    if layout not in _OF_SCIPY:
        raise TypeError(f"all_reduce of SciPy's format {layout!r}: only {', '.join(_OF_SCIPY)} can be reduced (tocoo())")
    return _OfScipy(tensor)


def all_reduce(calls: Any, tensors: Any, op: Any, timeout: Any, is_async: bool, refusal: Exception) -> Any:
    """Sum all sparse tensors of all ranks, in place. Raise `refusal` if a tensor is dense. Even an
    asynchronous call waits for the other ranks, and returns a work that is done."""
    parts: list[Any] = [_taken_apart(tensor) for tensor in tensors]
    if None in parts:
        raise refusal
    if (_core.ReduceOp(op) if isinstance(op, str) else op) != _core.ReduceOp.SUM:
        raise RuntimeError("unsupported reduction operation (allreduce of sparse tensors only works with ReduceOp.SUM)")
    own = parts[0]
    for other in parts[1:]:
        if other.sparse_dim != own.sparse_dim:
            raise ValueError("Sparse dimensions do not match")
        own.add(other)
    counts = _agree(calls, own, timeout)
    places, values = (_gather(calls, part, counts, timeout) for part in (own.places, own.values))
    for part in parts:
        part.put(places, values)
    return done_work(list(tensors)) if is_async else None


def _agree(calls: Any, own: _OfTorch | _OfScipy, timeout: Any) -> list[int]:
    """Return the number of elements of each rank. Raise ValueError if shapes differ."""
    rows = _all_rows(calls, [own.sparse_dim, len(own.shape) - own.sparse_dim, len(own.values)], timeout)
    for sparse_dim, dense_dim, _ in rows:
        if sparse_dim != own.sparse_dim:
            raise ValueError("Sparse dimensions do not match")
        if dense_dim != len(own.shape) - own.sparse_dim:
            raise ValueError("Dense dimensions do not match")
    if any(shape != list(own.shape) for shape in _all_rows(calls, list(own.shape), timeout)):
        raise ValueError("Sizes do not match")
    return [count for _, _, count in rows]


def _all_rows(calls: Any, row: list[int], timeout: Any) -> list[list[int]]:
    rows = [array("q", row) for _ in range(calls.size)]
    calls.all_gather(rows, array("q", row), timeout=timeout)
    return [each.tolist() for each in rows]


def _gather(calls: Any, part: Any, counts: list[int], timeout: Any) -> list[Any]:
    """Gather an array of each rank; `counts` has the number of elements of each rank."""
    family = family_of(part, "all_reduce")
    rooms = [family.empty_like(part, (count, *part.shape[1:])) for count in counts]
    calls.all_gather(rooms, part, timeout=timeout)
    return rooms
