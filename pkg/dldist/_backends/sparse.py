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


class _TorchSparse:
    """A torch COO tensor as `index_rows`, which has a row of indices for each element, and `values`."""

    def __init__(self, tensor: Any) -> None:
        coalesced = tensor.detach().coalesce()
        self._tensor = tensor
        self.shape = tuple(coalesced.shape)
        self.sparse_dim = coalesced.sparse_dim()
        self.index_rows = coalesced.indices().t().contiguous()
        self.values = coalesced.values().contiguous()

    def append(self, other: _TorchSparse) -> None:
        """Append the elements of another tensor."""
        import torch

        self.index_rows = torch.cat([self.index_rows, other.index_rows])
        self.values = torch.cat([self.values, other.values])

    def replace_elements(self, index_rows: list[Any], values: list[Any]) -> None:
        """Set the tensor's elements to these indices and values; duplicate indices are summed."""
        import torch

        indices = torch.cat(index_rows).t()
        combined = torch.sparse_coo_tensor(indices, torch.cat(values), self.shape, check_invariants=False).coalesce()
        with torch.no_grad():
            self._tensor.copy_(combined)


class _ScipySparse:
    """A SciPy matrix or array as `index_rows` and `values`, as in _TorchSparse."""

    def __init__(self, matrix: Any) -> None:
        import numpy

        coalesced = matrix.tocoo(copy=True)
        coalesced.sum_duplicates()
        coords = coalesced.coords if hasattr(coalesced, "coords") else (coalesced.row, coalesced.col)
        self._matrix = matrix
        self.shape = tuple(coalesced.shape)
        self.sparse_dim = len(self.shape)
        self.index_rows = numpy.stack(coords, axis=1).astype("int64")
        self.values = coalesced.data

    def append(self, other: _ScipySparse) -> None:
        import numpy

        self.index_rows = numpy.concatenate([self.index_rows, other.index_rows])
        self.values = numpy.concatenate([self.values, other.values])

    def replace_elements(self, index_rows: list[Any], values: list[Any]) -> None:
        import numpy

        coords = tuple(numpy.concatenate(index_rows).T)
        combined = type(self._matrix.tocoo())((numpy.concatenate(values), coords), shape=self.shape)
        combined.sum_duplicates()
        vars(self._matrix).update(vars(combined.asformat(self._matrix.format)))


_SCIPY_FORMATS = ("coo", "csr", "csc")


def layout_of(tensor: Any) -> str | None:
    """Return a sparse tensor's layout (torch) or format (SciPy), or None for a dense tensor."""
    torch, scipy = sys.modules.get("torch"), sys.modules.get("scipy.sparse")
    if torch is not None and isinstance(tensor, torch.Tensor):
        return None if tensor.layout is torch.strided else str(tensor.layout)
    return str(tensor.format) if scipy is not None and scipy.issparse(tensor) else None


def _parse(tensor: Any) -> _TorchSparse | _ScipySparse | None:
    """Return a sparse tensor's indices and values, or None for a dense tensor."""
    layout = layout_of(tensor)
    if layout is None or layout == "torch.sparse_coo":
        return None if layout is None else _TorchSparse(tensor)
    if layout.startswith("torch."):
        raise TypeError(f"all_reduce(): unsupported layout: got {layout}, expected torch.sparse_coo; convert it by to_sparse_coo()")
    if layout not in _SCIPY_FORMATS:
        raise TypeError(f"all_reduce(): unsupported SciPy format: got {layout!r}, expected one of {', '.join(_SCIPY_FORMATS)}; convert it by tocoo()")
    return _ScipySparse(tensor)


def all_reduce(calls: Any, tensors: Any, op: Any, timeout: Any, is_async: bool, refusal: Exception) -> Any:
    """Sum all sparse tensors of all ranks, in place. Raise `refusal` if a tensor is dense. Even an
    asynchronous call waits for the other ranks, and returns a work that is done."""
    parts: list[Any] = [_parse(tensor) for tensor in tensors]
    if None in parts:
        raise refusal
    if (op if isinstance(op, _core.ReduceOp) else _core.ReduceOp(op)) != _core.ReduceOp.SUM:
        raise RuntimeError("unsupported reduction operation (allreduce of sparse tensors only works with ReduceOp.SUM)")
    first = parts[0]
    for other in parts[1:]:
        if other.sparse_dim != first.sparse_dim:
            raise ValueError("Sparse dimensions do not match")
        first.append(other)
    counts = _exchange_counts(calls, first, timeout)
    index_rows, values = (_gather(calls, part, counts, timeout) for part in (first.index_rows, first.values))
    for part in parts:
        part.replace_elements(index_rows, values)
    return done_work(list(tensors)) if is_async else None


def _exchange_counts(calls: Any, first: _TorchSparse | _ScipySparse, timeout: Any) -> list[int]:
    """Return the number of elements of each rank. Raise ValueError if shapes differ."""
    rows = _gather_rows(calls, [first.sparse_dim, len(first.shape) - first.sparse_dim, len(first.values)], timeout)
    for sparse_dim, dense_dim, _ in rows:
        if sparse_dim != first.sparse_dim:
            raise ValueError("Sparse dimensions do not match")
        if dense_dim != len(first.shape) - first.sparse_dim:
            raise ValueError("Dense dimensions do not match")
    if any(shape != list(first.shape) for shape in _gather_rows(calls, list(first.shape), timeout)):
        raise ValueError("Sizes do not match")
    return [count for _, _, count in rows]


def _gather_rows(calls: Any, row: list[int], timeout: Any) -> list[list[int]]:
    rows = [array("q", row) for _ in range(calls.size)]
    calls.all_gather(rows, array("q", row), timeout=timeout)
    return [gathered.tolist() for gathered in rows]


def _gather(calls: Any, part: Any, counts: list[int], timeout: Any) -> list[Any]:
    """Gather an array of each rank; `counts` has the number of elements of each rank."""
    family = family_of(part, "all_reduce")
    buffers = [family.empty_like(part, (count, *part.shape[1:])) for count in counts]
    calls.all_gather(buffers, part, timeout=timeout)
    return buffers
