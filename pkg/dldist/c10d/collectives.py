"""The collectives of torch.distributed: ranks are those of the default world, groups those of new_group.

A call of a process that is not a member of the group warns, does nothing and returns None. Synchronous calls return None,
those with async_op=True a Work. `timeout=` is of the call alone, in seconds or as a timedelta.
"""

from __future__ import annotations

from dldist import _core
from dldist.c10d import registry
from dldist.c10d.names import warn
from dldist.c10d.ranks import calls_of, canonical_rank, group_or_default

TYPE_CHECKING = False  # typing takes longer to import than all of this package
if TYPE_CHECKING:
    from typing import Any

SUM = _core.ReduceOp.SUM


def supports_complex(reduceOp: Any) -> bool:
    """Whether the reduction makes sense for complex numbers.

    >>> dist.supports_complex(dist.ReduceOp.MAX)
    False
    """
    op = reduceOp if isinstance(reduceOp, _core.ReduceOp) else _core.ReduceOp(reduceOp)
    return op.name in ("SUM", "AVG", "PREMUL_SUM")


# ---- one tensor on every rank


def all_reduce(tensor: Any, op: Any = SUM, group: Any = None, async_op: bool = False, *, timeout: Any = None) -> Any:
    """Reduce the tensors of all ranks, in place, so that all have the result. Sparse ones (torch's COO, SciPy's) are summed up.

    >>> x = array("f", [1, 2])
    >>> dist.all_reduce(x)                                # the sum over all ranks
    >>> dist.all_reduce(x, dist.ReduceOp.MAX, async_op=True).wait()
    True
    >>> x.tolist()                                        # in a world of one
    [1.0, 2.0]
    """
    calls = registry._world.operations if group is None else None
    if calls is None and (calls := calls_of(group, "all_reduce")) is None:
        return None
    try:
        return calls.all_reduce(tensor, op, timeout=timeout, async_op=async_op)
    except (_core.DistArgumentError, TypeError) as refusal:
        from dldist.c10d import sparse

        return sparse.all_reduce(calls, tensor, op, timeout, async_op, refusal)


def broadcast(
    tensor: Any,
    src: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_src: int | None = None,
    *,
    timeout: Any = None,
) -> Any:
    """Have the tensor of rank `src` on all ranks.

    >>> x = array("f", [1, 2])
    >>> dist.broadcast(x, src=0, timeout=30)
    """
    calls = calls_of(group, "broadcast")
    if calls is None:
        return None
    root = canonical_rank(group_or_default(group), src, group_src)
    return calls.broadcast(tensor, root, timeout=timeout, async_op=async_op)


def reduce(
    tensor: Any,
    dst: int | None = None,
    op: Any = SUM,
    group: Any = None,
    async_op: bool = False,
    group_dst: int | None = None,
    *,
    timeout: Any = None,
) -> Any:
    """Reduce the tensors of all ranks on rank `dst`, in place there; those of the others are not changed.

    >>> x = array("i", [1, 2])
    >>> dist.reduce(x, dst=0, op=dist.ReduceOp.BOR)
    """
    calls = calls_of(group, "reduce")
    if calls is None:
        return None
    root = canonical_rank(group_or_default(group), dst, group_dst)
    return calls.reduce(tensor, root, op, timeout=timeout, async_op=async_op)


def barrier(
    group: Any = None, async_op: bool = False, device_ids: Any = None, timeout: Any = None
) -> Any:
    """Wait until all ranks of the group are here. Every earlier operation of the group has ended then.

    >>> dist.barrier()
    """
    calls = calls_of(group, "barrier")
    if calls is None:
        return None
    if isinstance(calls, _core.Group) and not isinstance(calls, _core.NcclGroup):
        beside = calls._device_group if device_ids else None
        if beside is None:  # on the CPU there are no devices to choose from
            return calls.barrier(timeout=timeout, async_op=async_op)
        calls = beside
    if not isinstance(device_ids, list | None):
        raise TypeError("Invalid function argument: device_ids type should be List[int]")
    return calls.barrier(timeout=timeout, async_op=async_op, device_ids=device_ids)


def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
    """A barrier whose failure names the ranks that have not come, on rank 0: the first, or all with wait_all_ranks.

    >>> dist.monitored_barrier(timeout=30, wait_all_ranks=True)
    """
    calls = calls_of(group, "monitored_barrier")
    if calls is not None:
        calls.monitored_barrier(timeout, wait_all_ranks)


# ---- gathering and scattering


def all_gather(
    tensor_list: Any, tensor: Any, group: Any = None, async_op: bool = False, *, timeout: Any = None
) -> Any:
    """Have the tensors of all ranks on every rank: that of rank r in tensor_list[r]. Sizes may differ.

    >>> parts = [array("i", [0, 0]) for _ in range(dist.get_world_size())]
    >>> dist.all_gather(parts, array("i", [3, 4]))
    >>> parts[0].tolist()
    [3, 4]
    """
    calls = calls_of(group, "all_gather")
    return None if calls is None else calls.all_gather(tensor_list, tensor, timeout=timeout, async_op=async_op)


def all_gather_single(
    output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False, *, timeout: Any = None
) -> Any:
    """Have the tensors of all ranks in one: one behind the other along the first dimension, or stacked.

    >>> whole = array("i", [0, 0] * dist.get_world_size())
    >>> dist.all_gather_single(whole, array("i", [3, 4]))
    >>> whole[:2].tolist()
    [3, 4]
    """
    calls = calls_of(group, "all_gather_single")
    if calls is None:
        return None
    return calls.all_gather_single(output_tensor, input_tensor, timeout=timeout, async_op=async_op)


def all_gather_coalesced(
    output_tensor_lists: Any, input_tensor_list: Any, group: Any = None, async_op: bool = False
) -> Any:
    """Deprecated. Several all_gathers in one: output_tensor_lists[r][i] gets input_tensor_list[i] of rank r."""
    _deprecated("all_gather_coalesced", "_coalescing_manager")
    if not isinstance(output_tensor_lists, list):
        raise TypeError("Invalid function argument: output_tensor_lists should be a list")
    calls = calls_of(group, "all_gather_coalesced")
    if calls is None:
        return None
    return _as_future(calls.all_gather_coalesced(output_tensor_lists, input_tensor_list, async_op=async_op))


def gather(
    tensor: Any,
    gather_list: Any = None,
    dst: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_dst: int | None = None,
    *,
    timeout: Any = None,
) -> Any:
    """Have the tensors of all ranks on rank `dst` (0): that of rank r in gather_list[r].

    >>> is_root = dist.get_rank() == 0
    >>> parts = [array("i", [0]) for _ in range(dist.get_world_size())] if is_root else None
    >>> dist.gather(array("i", [5]), parts, dst=0)
    """
    calls = calls_of(group, "gather")
    if calls is None:
        return None
    root = canonical_rank(group_or_default(group), _first_rank(dst, group_dst), group_dst)
    _check_roots_list(gather_list, calls.rank == root, "gather_list", "destination")
    return calls.gather(tensor, gather_list, root, timeout=timeout, async_op=async_op)


def gather_single(
    tensor: Any,
    gather_tensor: Any = None,
    dst: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_dst: int | None = None,
    *,
    timeout: Any = None,
) -> Any:
    """Have the tensors of all ranks in one on rank `dst` (0)."""
    calls = calls_of(group, "gather_single")
    if calls is None:
        return None
    root = canonical_rank(group_or_default(group), _first_rank(dst, group_dst), group_dst)
    if calls.rank == root and gather_tensor is None:
        raise ValueError("gather_tensor must be specified on the destination rank")
    return calls.gather_single(tensor, gather_tensor, root, timeout=timeout, async_op=async_op)


def scatter(
    tensor: Any,
    scatter_list: Any = None,
    src: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_src: int | None = None,
    *,
    timeout: Any = None,
) -> Any:
    """Get the tensor that rank `src` (0) has for this rank: scatter_list[r] goes to rank r.

    >>> is_root = dist.get_rank() == 0
    >>> parts = [array("i", [rank * 10]) for rank in range(dist.get_world_size())] if is_root else None
    >>> mine = array("i", [-1])
    >>> dist.scatter(mine, parts, src=0)
    >>> mine[0] == dist.get_rank() * 10
    True
    """
    calls = calls_of(group, "scatter")
    if calls is None:
        return None
    root = canonical_rank(group_or_default(group), _first_rank(src, group_src), group_src)
    _check_roots_list(scatter_list, calls.rank == root, "scatter_list", "source")
    return calls.scatter(tensor, scatter_list, root, timeout=timeout, async_op=async_op)


def _first_rank(global_rank: int | None, group_rank: int | None) -> int | None:
    return 0 if global_rank is None and group_rank is None else global_rank


def _check_roots_list(tensors: Any, is_root: bool, name: str, role: str) -> None:
    if is_root and not tensors:
        raise ValueError(f"Argument ``{name}`` must be specified on {role} rank.")
    if tensors and not is_root:
        raise ValueError(f"Argument ``{name}`` must NOT be specified on non-{role} ranks.")


def reduce_scatter(
    output: Any, input_list: Any, op: Any = SUM, group: Any = None, async_op: bool = False, *, timeout: Any = None
) -> Any:
    """Reduce input_list[r] of all ranks for rank r.

    >>> mine = array("f", [0])
    >>> dist.reduce_scatter(mine, [array("f", [rank]) for rank in range(dist.get_world_size())])
    >>> mine[0] == dist.get_rank() * dist.get_world_size()
    True
    """
    calls = calls_of(group, "reduce_scatter")
    if calls is None:
        return None
    return calls.reduce_scatter(output, input_list, op, timeout=timeout, async_op=async_op)


def reduce_scatter_single(
    output: Any, input: Any, op: Any = SUM, group: Any = None, async_op: bool = False, *, timeout: Any = None
) -> Any:
    """Reduce the r-th part of all ranks' tensors for rank r.

    >>> mine = array("f", [0])
    >>> dist.reduce_scatter_single(mine, array("f", range(dist.get_world_size())))
    """
    calls = calls_of(group, "reduce_scatter_single")
    if calls is None:
        return None
    return calls.reduce_scatter_single(output, input, op, timeout=timeout, async_op=async_op)


def all_to_all(
    output_tensor_list: Any, input_tensor_list: Any, group: Any = None, async_op: bool = False, *, timeout: Any = None
) -> Any:
    """Give input_tensor_list[r] to rank r, and get output_tensor_list[r] from it.

    >>> to = [array("i", [dist.get_rank()]) for _ in range(dist.get_world_size())]
    >>> by = [array("i", [-1]) for _ in to]
    >>> dist.all_to_all(by, to)
    >>> [part[0] for part in by] == list(range(dist.get_world_size()))
    True
    """
    calls = calls_of(group, "all_to_all")
    if calls is None:
        return None
    return calls.all_to_all(output_tensor_list, input_tensor_list, timeout=timeout, async_op=async_op)


def all_to_all_single(
    output: Any,
    input: Any,
    output_split_sizes: Any = None,
    input_split_sizes: Any = None,
    group: Any = None,
    async_op: bool = False,
    *,
    timeout: Any = None,
) -> Any:
    """Give the r-th part of the first dimension to rank r, and get one from it: equal parts, or of the sizes given.

    >>> by = array("i", [-1] * dist.get_world_size())
    >>> dist.all_to_all_single(by, array("i", [dist.get_rank()] * dist.get_world_size()))
    >>> by.tolist() == list(range(dist.get_world_size()))
    True
    """
    calls = calls_of(group, "all_to_all_single")
    if calls is None:
        return None
    return calls.all_to_all_single(
        output, input, output_split_sizes or None, input_split_sizes or None, timeout=timeout, async_op=async_op
    )


# ---- deprecated names


def _deprecated(name: str, instead: str) -> None:
    warn(f"`dldist.{name}` is deprecated, please use `dldist.{instead}` instead", FutureWarning)


def _as_future(work: Any) -> Any:
    return None if work is None else work.get_future()


def all_reduce_coalesced(tensors: Any, op: Any = SUM, group: Any = None, async_op: bool = False) -> Any:
    """Deprecated. Several all_reduces in one; a Future with async_op."""
    _deprecated("all_reduce_coalesced", "_coalescing_manager")
    calls = calls_of(group, "all_reduce_coalesced")
    if calls is None:
        return None
    tensors = tensors if isinstance(tensors, (list, tuple)) else [tensors]
    return _as_future(calls.all_reduce_coalesced(tensors, op, async_op=async_op))


def all_gather_into_tensor(output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False) -> Any:
    """Deprecated name of all_gather_single."""
    _deprecated("all_gather_into_tensor", "all_gather_single")
    return all_gather_single(output_tensor, input_tensor, group, async_op)


def _all_gather_base(output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False) -> Any:
    """Deprecated name of all_gather_single."""
    _deprecated("_all_gather_base", "all_gather_single")
    return all_gather_single(output_tensor, input_tensor, group, async_op)


def gather_into_tensor(
    tensor: Any,
    gather_tensor: Any = None,
    dst: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Any:
    """Deprecated name of gather_single."""
    _deprecated("gather_into_tensor", "gather_single")
    return gather_single(tensor, gather_tensor, dst, group, async_op, group_dst)


def reduce_scatter_tensor(output: Any, input: Any, op: Any = SUM, group: Any = None, async_op: bool = False) -> Any:
    """Deprecated name of reduce_scatter_single."""
    _deprecated("reduce_scatter_tensor", "reduce_scatter_single")
    return reduce_scatter_single(output, input, op, group, async_op)


def _reduce_scatter_base(output: Any, input: Any, op: Any = SUM, group: Any = None, async_op: bool = False) -> Any:
    """Deprecated name of reduce_scatter_single."""
    _deprecated("_reduce_scatter_base", "reduce_scatter_single")
    return reduce_scatter_single(output, input, op, group, async_op)


class _reduce_op:
    """Deprecated: the reductions, as attributes."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("SUM", "PRODUCT", "MIN", "MAX", "AVG", "BAND", "BOR", "BXOR"):
            _deprecated("reduce_op", "ReduceOp")
            return getattr(_core.ReduceOp, name)
        return super().__getattribute__(name)


reduce_op = _reduce_op()


def _make_nccl_premul_sum(factor: Any) -> _core.ReduceOp:
    """The reduction that sums what has been multiplied by this factor: a number, or a tensor of one element, on NCCL's device, too."""
    return _core.ReduceOp.PREMUL_SUM(factor)
