"""All-reduce of sparse COO tensors: the sum of what all ranks have, as one coalesced tensor."""

from __future__ import annotations

from typing import Any

import torch

import dldist
from dldist.c10d.options import timeout_of
from dldist.torch._options import reduction_of


def all_reduce(world: dldist.World, tensors: list[Any], opts: Any) -> None:
    """Reduce tensors[0] in place. It waits for the other ranks, whatever opts say of that."""
    if len(tensors) != 1:
        raise RuntimeError(f"allreduce of sparse tensors takes a single tensor, not {len(tensors)}")
    if reduction_of(opts.reduceOp) != dldist.ReduceOp.SUM:
        raise RuntimeError("unsupported reduction operation (allreduce of sparse tensors only works with ReduceOp.SUM)")
    timeout = timeout_of(opts)
    own = tensors[0].coalesce()
    counts = _agree(world, own, timeout)
    indices = _gather(world, own.indices().t().contiguous(), counts, timeout).t()
    values = _gather(world, own.values(), counts, timeout)
    tensors[0].copy_(torch.sparse_coo_tensor(indices, values, own.size(), check_invariants=False).coalesce())


def _agree(world: dldist.World, own: Any, timeout: Any) -> list[int]:
    """How many elements each rank has; raises unless the shapes of all are the same."""
    rows = _all_rows(world, [own.sparse_dim(), own.dense_dim(), own._nnz()], timeout)
    for dims in rows:
        if dims[0] != own.sparse_dim():
            raise ValueError("Sparse dimensions do not match")
        if dims[1] != own.dense_dim():
            raise ValueError("Dense dimensions do not match")
    if any(shape != list(own.shape) for shape in _all_rows(world, list(own.shape), timeout)):
        raise ValueError("Sizes do not match")
    return [row[2] for row in rows]


def _all_rows(world: dldist.World, row: list[int], timeout: Any) -> list[list[int]]:
    rows = torch.empty(world.size, len(row), dtype=torch.int64)
    world.all_gather_single(rows, torch.tensor([row], dtype=torch.int64), timeout=timeout)
    return rows.tolist()  # type: ignore[no-any-return]


def _gather(world: dldist.World, part: Any, counts: list[int], timeout: Any) -> Any:
    """The rows of all ranks, one after another; each sends as many as the one with most has."""
    most = max(counts)
    padded = part.new_zeros(most, *part.shape[1:])
    padded[: len(part)] = part
    gathered = part.new_empty(world.size * most, *part.shape[1:])
    world.all_gather_single(gathered, padded, timeout=timeout)
    return torch.cat([gathered[rank * most : rank * most + count] for rank, count in enumerate(counts)])
