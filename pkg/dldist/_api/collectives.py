"""The collectives of torch.distributed: ranks are those of the default world, groups those of new_group.

What is the same for all of them:

- Every rank of the group makes the same calls in the same order, with tensors of the same dtype and number of elements.
- A tensor is an array of any library with DLPack or the buffer protocol, strided or not; what is written to must be writable.
- A call of a process that is not a member of the group warns, does nothing and returns None.
- With async_op=True the call returns a Work at once. Until work.wait() has returned, inputs must not be changed, nor outputs read.
- `timeout` is of this call alone, in seconds or as a timedelta: None is the group's own, and 0 fails at once if somebody is missing.
- What is wrong with arguments is a ValueError (DistArgumentError) or TypeError before anything is sent. Whatever else a call raises
  ends the group: DistMismatchError, DistTimeoutError, DistPeerLostError, DistAbortedError. See docs/failures.md.
"""

from __future__ import annotations

from typing import Any

from dldist import _core
from dldist._api.ranks import calls_of, peer_of, root_of
from dldist._backends import registry
from dldist._backends.backend_names import warn
from dldist._base.docstrings import completed
from dldist._base.future import Future
from dldist.types import AnyGroup, Op, Tensor, Tensors, Timeout

SUM = _core.ReduceOp.SUM

_ARGUMENTS = {
    "op": "The reduction, a dldist.ReduceOp or its name; the same on all ranks.",
    "group": "None is the default world.",
    "async_op": "Return a Work at once, instead of waiting.",
    "group_dst": "The rank in the group, instead of `dst`.",
    "group_src": "The rank in the group, instead of `src`.",
    "timeout": "Seconds or a timedelta for this call. None is the group's own; 0 fails at once if a rank is missing.",
}
_RETURNS = "None, or with async_op a Work; None also if this process is not in the group, after a warning."
_documented = completed(
    _ARGUMENTS, _RETURNS, "DistTimeoutError, DistPeerLostError, DistAbortedError: As in all_reduce: the group is of no more use."
)


def supports_complex(reduceOp: Op) -> bool:
    """Whether a reduction makes sense for complex numbers.

    Args:
        reduceOp: The reduction, or its name.

    Example:
        >>> dist.supports_complex(dist.ReduceOp.MAX)
        False
    """
    op = reduceOp if isinstance(reduceOp, _core.ReduceOp) else _core.ReduceOp(reduceOp)
    return op.name in ("SUM", "AVG", "PREMUL_SUM")


# ---- one tensor on every rank


@completed(_ARGUMENTS, _RETURNS)
def all_reduce(
    tensor: Tensor,
    op: Op = SUM,
    group: AnyGroup | None = None,
    async_op: bool = False,
    *,
    timeout: Timeout | None = None,
) -> _core.Work | None:
    """Reduce the tensors of all ranks, in place, so that all have the result, to the same bits.

    Args:
        tensor: The input, and the result. Of the same dtype and number of elements on all ranks; shapes may differ. Sparse ones
            (torch's COO, SciPy's) are summed up, and of the same shape.
        op: The reduction, a dldist.ReduceOp or its name ("sum", "max", ...); the same on all ranks.

    Raises:
        ValueError: The reduction or dtype is not one that dldist has. The group lives on.
        DistMismatchError: The ranks differ in the call, the dtype, the size or the reduction.
        DistTimeoutError, DistPeerLostError, DistAbortedError: A rank was late, has died, or has given up. As after every
            error that is not about this rank's arguments, the group is of no more use.

    Example:
        >>> x = array("f", [1, 2])
        >>> dist.all_reduce(x)                                # the sum over all ranks
        >>> dist.all_reduce(x, dist.ReduceOp.MAX, async_op=True).wait()
        True
        >>> x.tolist()                                        # in a world of one
        [1.0, 2.0]
    """
    calls = registry._world.operations if group is None else None
    if calls is None:
        calls = calls_of(group)
    try:
        return calls.all_reduce(tensor, op, timeout=timeout, async_op=async_op)
    except (_core.DistArgumentError, TypeError) as refusal:
        from dldist._backends import sparse

        return sparse.all_reduce(calls, [tensor], op, timeout, async_op, refusal)


@_documented
def broadcast(
    tensor: Tensor,
    src: int | None = None,
    group: AnyGroup | None = None,
    async_op: bool = False,
    group_src: int | None = None,
    *,
    timeout: Timeout | None = None,
) -> _core.Work | None:
    """Have the tensor of one rank on all ranks.

    Args:
        tensor: What rank `src` has is sent, and the others' is filled: the same dtype and number of elements everywhere.
        src: The rank in the default world that has the data.

    Raises:
        ValueError: Neither or both of `src` and `group_src` are given, or the rank is not in the group.
        DistMismatchError: The ranks differ in the call, the dtype, the size or the source.

    Example:
        >>> x = array("f", [1, 2])
        >>> dist.broadcast(x, src=0, timeout=30)
    """
    return calls_of(group).broadcast(tensor, peer_of(group, src, group_src), timeout=timeout, async_op=async_op)


@_documented
def reduce(
    tensor: Tensor,
    dst: int | None = None,
    op: Op = SUM,
    group: AnyGroup | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
    *,
    timeout: Timeout | None = None,
) -> _core.Work | None:
    """Reduce the tensors of all ranks on one rank, in place there; those of the others are not changed.

    Args:
        tensor: The input, and on rank `dst` the result. The same dtype and number of elements on all ranks.
        dst: The rank in the default world that gets the result.

    Raises:
        ValueError: Neither or both of `dst` and `group_dst` are given, or the rank is not in the group.
        DistMismatchError: The ranks differ in the call, the dtype, the size, the reduction or the destination.

    Example:
        >>> x = array("i", [1, 2])
        >>> dist.reduce(x, dst=0, op=dist.ReduceOp.BOR)
    """
    return calls_of(group).reduce(tensor, peer_of(group, dst, group_dst), op, timeout=timeout, async_op=async_op)


@_documented
def scan(
    tensor: Tensor,
    op: Op = SUM,
    group: AnyGroup | None = None,
    async_op: bool = False,
    *,
    timeout: Timeout | None = None,
) -> _core.Work | None:
    """Reduce the tensors of ranks 0 to r on each rank r, in place: the inclusive prefix reduction, MPI_Scan.

    Args:
        tensor: The input, and the result. The same dtype and number of elements on all ranks.
        op: As in all_reduce, but not AVG: ranks reduce different numbers of tensors.

    Raises:
        ValueError: The reduction is AVG, or dldist does not have it for the dtype. The group stays usable.
        DistMismatchError: The ranks differ in the call, the dtype, the size or the reduction.
        NotImplementedError: The group is one of NCCL, which has no such call.

    Example:
        >>> x = array("i", [1, 2])
        >>> dist.scan(x)
        >>> x.tolist()                                        # in a world of one
        [1, 2]
    """
    return calls_of(group).scan(tensor, op, timeout=timeout, async_op=async_op)


@completed(_ARGUMENTS, _RETURNS)
def barrier(
    group: AnyGroup | None = None,
    async_op: bool = False,
    device_ids: list[int] | None = None,
    timeout: Timeout | None = None,
) -> _core.Work | None:
    """Wait until all ranks of the group are here. Every earlier operation of the group has ended then.

    Args:
        device_ids: The device with which NCCL makes the barrier, as [0]. On the CPU it is not looked at.

    Raises:
        TypeError: `device_ids` is not a list, and the group is not one of the CPU alone.
        DistMismatchError: A rank called something else.
        DistTimeoutError, DistPeerLostError, DistAbortedError: As in all_reduce: the group is of no more use.
            monitored_barrier asks who is there without such an end.

    Example:
        >>> dist.barrier()
        >>> dist.barrier(async_op=True).wait()
        True
    """
    calls = calls_of(group)
    if _is_group_of_cpu(calls):
        beside = calls._device_group if device_ids else None
        if beside is None:  # on the CPU there are no devices to choose from
            return calls.barrier(timeout=timeout, async_op=async_op)
        calls = beside
    if not isinstance(device_ids, list | None):
        raise TypeError("Invalid function argument: device_ids type should be List[int]")
    return calls.barrier(timeout=timeout, async_op=async_op, device_ids=device_ids)


def _is_group_of_cpu(calls: Any) -> bool:
    return isinstance(calls, _core.Group) and not isinstance(calls, _core.NcclGroup)


def monitored_barrier(
    group: AnyGroup | None = None, timeout: Timeout | None = None, wait_all_ranks: bool = False
) -> None:
    """Wait until all ranks are here; where some are not, rank 0 says which, and the group lives on.

    Args:
        group: None is the default world.
        timeout: Seconds or a timedelta that rank 0 waits. None is the group's own; 0 looks who is here already.
        wait_all_ranks: Wait for all, and name all that are missing; else the first one that is missing ends the wait.

    Raises:
        DistTimeoutError: Ranks have not come, on rank 0, which names them; or rank 0 has given up, on the others.
        DistPeerLostError, DistAbortedError: A rank has died, or given up.

    Example:
        >>> dist.monitored_barrier(timeout=30, wait_all_ranks=True)
    """
    calls_of(group).monitored_barrier(timeout, wait_all_ranks)


# ---- gathering and scattering


@_documented
def all_gather(
    tensor_list: Tensors,
    tensor: Tensor,
    group: AnyGroup | None = None,
    async_op: bool = False,
    *,
    timeout: Timeout | None = None,
) -> _core.Work | None:
    """Have the tensors of all ranks on every rank: that of rank r in tensor_list[r].

    Args:
        tensor_list: The outputs, a list or tuple of one for each rank, each with the size of what that rank gives.
        tensor: What this rank gives. All ranks give the same dtype; sizes may differ.

    Raises:
        ValueError: The list has another length than the group, dtypes differ, or outputs overlap.
        DistMismatchError: The ranks differ in the call, the dtype, or what sizes they expect of each other.

    Example:
        >>> parts = [array("i", [0, 0]) for _ in range(dist.get_world_size())]
        >>> dist.all_gather(parts, array("i", [3, 4]))
        >>> parts[0].tolist()
        [3, 4]
    """
    return calls_of(group).all_gather(tensor_list, tensor, timeout=timeout, async_op=async_op)


@_documented
def all_gather_single(
    output_tensor: Tensor,
    input_tensor: Tensor,
    group: AnyGroup | None = None,
    async_op: bool = False,
    *,
    timeout: Timeout | None = None,
) -> _core.Work | None:
    """Have the tensors of all ranks in one: one behind the other along the first dimension, or stacked.

    Args:
        output_tensor: The result, with as many elements as all inputs together.
        input_tensor: What this rank gives: the same dtype and number of elements on all ranks.

    Raises:
        ValueError: The sizes or dtypes of input and output do not fit.
        DistMismatchError: The ranks differ in the call, the dtype or the size.

    Example:
        >>> whole = array("i", [0, 0] * dist.get_world_size())
        >>> dist.all_gather_single(whole, array("i", [3, 4]))
        >>> whole[:2].tolist()
        [3, 4]
    """
    return calls_of(group).all_gather_single(output_tensor, input_tensor, timeout=timeout, async_op=async_op)


def all_gather_coalesced(
    output_tensor_lists: list[Tensors],
    input_tensor_list: Tensors,
    group: AnyGroup | None = None,
    async_op: bool = False,
) -> Future | None:
    """Deprecated: several all_gathers in one. all_gather in a `with dldist._coalescing_manager()` block is the same.

    Args:
        output_tensor_lists: output_tensor_lists[r][i] gets input_tensor_list[i] of rank r.
        input_tensor_list: What this rank gives.
        group: None is the default world.
        async_op: Return a Future at once, instead of waiting.

    Returns:
        None, or with async_op a Future.
    """
    _deprecated("all_gather_coalesced", "_coalescing_manager")
    if not isinstance(output_tensor_lists, list):
        raise TypeError("Invalid function argument: output_tensor_lists should be a list")
    return _as_future(calls_of(group).all_gather_coalesced(output_tensor_lists, input_tensor_list, async_op=async_op))


@_documented
def gather(
    tensor: Tensor,
    gather_list: Tensors | None = None,
    dst: int | None = None,
    group: AnyGroup | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
    *,
    timeout: Timeout | None = None,
) -> _core.Work | None:
    """Have the tensors of all ranks on one rank: that of rank r in gather_list[r].

    Args:
        tensor: What this rank gives. All ranks give the same dtype; sizes may differ.
        gather_list: On rank `dst` the outputs, a list or tuple of one for each rank; None on the others.
        dst: The rank in the default world that gets all: 0 unless given.

    Raises:
        ValueError: The list is missing on rank `dst`, is there on another one, or has another length than the group.
        DistMismatchError: The ranks differ in the call, the dtype, a size or the destination.

    Example:
        >>> is_root = dist.get_rank() == 0
        >>> parts = [array("i", [0]) for _ in range(dist.get_world_size())] if is_root else None
        >>> dist.gather(array("i", [5]), parts, dst=0)
    """
    calls, root = calls_of(group), root_of(group, dst, group_dst)
    _check_roots_list(gather_list, calls.rank, root, "gather_list", "destination")
    return calls.gather(tensor, gather_list, root, timeout=timeout, async_op=async_op)


@_documented
def gather_single(
    tensor: Tensor,
    gather_tensor: Tensor | None = None,
    dst: int | None = None,
    group: AnyGroup | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
    *,
    timeout: Timeout | None = None,
) -> _core.Work | None:
    """Have the tensors of all ranks in one on one rank, in the order of the ranks.

    Args:
        tensor: What this rank gives: the same dtype and number of elements on all ranks.
        gather_tensor: On rank `dst` the result, with as many elements as all inputs together; None on the others.
        dst: The rank in the default world that gets all: 0 unless given.

    Raises:
        ValueError: The result's tensor is missing on rank `dst`, or sizes or dtypes do not fit.
        DistMismatchError: The ranks differ in the call, the dtype, the size or the destination.

    Example:
        >>> whole = array("i", [0] * dist.get_world_size()) if dist.get_rank() == 0 else None
        >>> dist.gather_single(array("i", [5]), whole, dst=0)
    """
    calls, root = calls_of(group), root_of(group, dst, group_dst)
    if calls.rank == root and gather_tensor is None:
        raise ValueError("gather_tensor must be specified on the destination rank")
    return calls.gather_single(tensor, gather_tensor, root, timeout=timeout, async_op=async_op)


@_documented
def scatter(
    tensor: Tensor,
    scatter_list: Tensors | None = None,
    src: int | None = None,
    group: AnyGroup | None = None,
    async_op: bool = False,
    group_src: int | None = None,
    *,
    timeout: Timeout | None = None,
) -> _core.Work | None:
    """Get the tensor that one rank has for this rank: scatter_list[r] goes to rank r.

    Args:
        tensor: The result, with the size of what rank `src` has for this rank.
        scatter_list: On rank `src` the inputs, a list or tuple of one for each rank; None on the others.
        src: The rank in the default world that has them: 0 unless given.

    Raises:
        ValueError: The list is missing on rank `src`, is there on another one, or has another length than the group.
        DistMismatchError: The ranks differ in the call, the dtype, a size or the source.

    Example:
        >>> is_root = dist.get_rank() == 0
        >>> parts = [array("i", [rank * 10]) for rank in range(dist.get_world_size())] if is_root else None
        >>> mine = array("i", [-1])
        >>> dist.scatter(mine, parts, src=0)
        >>> mine[0] == dist.get_rank() * 10
        True
    """
    calls, root = calls_of(group), root_of(group, src, group_src)
    _check_roots_list(scatter_list, calls.rank, root, "scatter_list", "source")
    return calls.scatter(tensor, scatter_list, root, timeout=timeout, async_op=async_op)


def _check_roots_list(tensors: Tensors | None, rank: int, root: int | None, name: str, role: str) -> None:
    if rank == root and not tensors:
        raise ValueError(f"Argument ``{name}`` must be specified on {role} rank.")
    if tensors and rank != root and root is not None:
        raise ValueError(f"Argument ``{name}`` must NOT be specified on non-{role} ranks.")


@_documented
def reduce_scatter(
    output: Tensor,
    input_list: Tensors,
    op: Op = SUM,
    group: AnyGroup | None = None,
    async_op: bool = False,
    *,
    timeout: Timeout | None = None,
) -> _core.Work | None:
    """Reduce input_list[r] of all ranks for rank r.

    Args:
        output: The result for this rank, with the size of input_list[rank].
        input_list: A list or tuple of one tensor for each rank; all ranks give the same sizes and dtype.

    Raises:
        ValueError: The list has another length than the group, or sizes or dtypes do not fit.
        DistMismatchError: The ranks differ in the call, the dtype, a size or the reduction.

    Example:
        >>> mine = array("f", [0])
        >>> dist.reduce_scatter(mine, [array("f", [rank]) for rank in range(dist.get_world_size())])
        >>> mine[0] == dist.get_rank() * dist.get_world_size()
        True
    """
    return calls_of(group).reduce_scatter(output, input_list, op, timeout=timeout, async_op=async_op)


@_documented
def reduce_scatter_single(
    output: Tensor,
    input: Tensor,
    op: Op = SUM,
    group: AnyGroup | None = None,
    async_op: bool = False,
    *,
    timeout: Timeout | None = None,
) -> _core.Work | None:
    """Reduce the r-th part of all ranks' tensors for rank r.

    Args:
        output: The result for this rank: an equal part of the input.
        input: The parts for all ranks, one behind the other; the same dtype and number of elements on all ranks.

    Raises:
        ValueError: The sizes or dtypes of input and output do not fit.
        DistMismatchError: The ranks differ in the call, the dtype, the size or the reduction.

    Example:
        >>> mine = array("f", [0])
        >>> dist.reduce_scatter_single(mine, array("f", range(dist.get_world_size())))
    """
    return calls_of(group).reduce_scatter_single(output, input, op, timeout=timeout, async_op=async_op)


@_documented
def all_to_all(
    output_tensor_list: Tensors,
    input_tensor_list: Tensors,
    group: AnyGroup | None = None,
    async_op: bool = False,
    *,
    timeout: Timeout | None = None,
) -> _core.Work | None:
    """Give input_tensor_list[r] to rank r, and get output_tensor_list[r] from it.

    Args:
        output_tensor_list: A list or tuple of one tensor for each rank, with the size of what that rank gives to this one.
        input_tensor_list: A list or tuple of one tensor for each rank. All are of one dtype; sizes may differ.

    Raises:
        ValueError: A list has another length than the group, dtypes differ, or outputs overlap.
        DistMismatchError: The ranks differ in the call, the dtype, or what one sends and the other expects.

    Example:
        >>> to = [array("i", [dist.get_rank()]) for _ in range(dist.get_world_size())]
        >>> by = [array("i", [-1]) for _ in to]
        >>> dist.all_to_all(by, to)
        >>> [part[0] for part in by] == list(range(dist.get_world_size()))
        True
    """
    return calls_of(group).all_to_all(output_tensor_list, input_tensor_list, timeout=timeout, async_op=async_op)


@_documented
def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: list[int] | tuple[int, ...] | None = None,
    input_split_sizes: list[int] | tuple[int, ...] | None = None,
    group: AnyGroup | None = None,
    async_op: bool = False,
    *,
    timeout: Timeout | None = None,
) -> _core.Work | None:
    """Give the r-th part of the first dimension to rank r, and get one from it.

    Args:
        output: What comes from the ranks, in their order.
        input: What goes to the ranks, in their order; of the output's dtype, which is the same on all ranks.
        output_split_sizes: How long in the first dimension what comes from each rank is; None: equal parts.
        input_split_sizes: How long what goes to each rank is; None: equal parts.

    Raises:
        ValueError: Sizes are not one for each rank, or not the tensor's length together; or it has no equal parts.
        DistMismatchError: The ranks differ in the call, the dtype, or what one sends and the other expects.

    Example:
        >>> by = array("i", [-1] * dist.get_world_size())
        >>> dist.all_to_all_single(by, array("i", [dist.get_rank()] * dist.get_world_size()))
        >>> by.tolist() == list(range(dist.get_world_size()))
        True
    """
    return calls_of(group).all_to_all_single(
        output, input, output_split_sizes or None, input_split_sizes or None, timeout=timeout, async_op=async_op
    )


# ---- deprecated names


def _deprecated(name: str, instead: str) -> None:
    warn(f"`dldist.{name}` is deprecated, please use `dldist.{instead}` instead", FutureWarning)


def _as_future(work: _core.Work | None) -> Future | None:
    return None if work is None else work.get_future()


def all_reduce_coalesced(
    tensors: Tensor | Tensors, op: Op = SUM, group: AnyGroup | None = None, async_op: bool = False
) -> Future | None:
    """Deprecated: several all_reduces in one. all_reduce in a `with dldist._coalescing_manager()` block is the same.

    Args:
        tensors: A list or tuple of tensors of one dtype, or one tensor; reduced in place. One that is there twice is reduced once.
        op: The reduction, a dldist.ReduceOp or its name; the same on all ranks.
        group: None is the default world.
        async_op: Return a Future at once, instead of waiting.

    Returns:
        None, or with async_op a Future of the tensors.
    """
    _deprecated("all_reduce_coalesced", "_coalescing_manager")
    many: Any = tensors if isinstance(tensors, (list, tuple)) else [tensors]
    calls = calls_of(group)
    try:
        return _as_future(calls.all_reduce_coalesced(many, op, async_op=async_op))
    except _core.DistArgumentError as refusal:
        if not _is_group_of_cpu(calls):
            raise
        from dldist._backends.gloo_collectives import all_reduce_repeated

        return _as_future(all_reduce_repeated(calls, many, op, {"async_op": async_op}, refusal))


def _former_name(name: str, call: Any) -> Any:
    """The call under a name that it had before."""

    def renamed(*args: Any, **named: Any) -> Any:
        _deprecated(name, call.__name__)
        return call(*args, **named)

    renamed.__name__ = renamed.__qualname__ = name
    renamed.__doc__ = f"Deprecated name of {call.__name__}."
    renamed.__wrapped__ = call  # type: ignore[attr-defined]  # which has the signature
    return renamed


all_gather_into_tensor = _former_name("all_gather_into_tensor", all_gather_single)
_all_gather_base = _former_name("_all_gather_base", all_gather_single)
gather_into_tensor = _former_name("gather_into_tensor", gather_single)
reduce_scatter_tensor = _former_name("reduce_scatter_tensor", reduce_scatter_single)
_reduce_scatter_base = _former_name("_reduce_scatter_base", reduce_scatter_single)


class _reduce_op:
    """Deprecated: the reductions, as attributes."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("SUM", "PRODUCT", "MIN", "MAX", "AVG", "BAND", "BOR", "BXOR"):
            _deprecated("reduce_op", "ReduceOp")
            return getattr(_core.ReduceOp, name)
        return super().__getattribute__(name)


reduce_op = _reduce_op()


def _make_nccl_premul_sum(factor: float | Tensor) -> _core.ReduceOp:
    """The reduction that sums what has been multiplied by this factor: a number, or a tensor of one element, on NCCL's device, too."""
    return _core.ReduceOp.PREMUL_SUM(factor)
