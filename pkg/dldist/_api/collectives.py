"""The collectives of torch.distributed. Ranks are the default world's; groups are new_group's.

- Every rank of the group makes the same calls in the same order, with the same dtypes and sizes.
- A tensor is an array with DLPack or the buffer protocol, strided or not. Outputs are writable.
- A call by a process that is not a member of the group warns, does nothing and returns None.
- With async_op=True the call returns a Work immediately. Do not change inputs or read outputs until
  work.wait() has returned.
- `timeout` limits one call, in seconds or as a timedelta. None is the group's own timeout.
- Wrong arguments raise a ValueError (DistArgumentError) or TypeError before anything is sent. All
  other errors, except in monitored_barrier, end the group. See docs/failures.md.
"""

from __future__ import annotations

from typing import Any

from dldist import _core
from dldist._api.ranks import calls_of, peer_of, root_of
from dldist._backends import registry
from dldist._base import argument_names
from dldist._base.docstrings import completed
from dldist._base.future import Future
from dldist.types import AnyGroup, Op, Tensor, Tensors, Timeout

SUM = _core.ReduceOp.SUM

_ARGUMENTS = {
    "op": "The reduction, a dldist.ReduceOp or its name; the same on all ranks.",
    "group": "The group, or None for the default world.",
    "async_op": "Return a Work immediately, instead of waiting.",
    "group_dst": "The destination's rank in the group, instead of `dst`.",
    "group_src": "The source's rank in the group, instead of `src`.",
    "timeout": "Seconds or a timedelta for this call. None is the group's own; 0 fails immediately if a rank is missing.",
}
_RETURNS = "A Work if async_op is true, else None. Non-members get None and a warning."
_documented = completed(
    _ARGUMENTS, _RETURNS, "DistTimeoutError, DistPeerLostError, DistAbortedError: As for all_reduce: the group cannot be used again."
)


def supports_complex(reduceOp: Op) -> bool:
    """Return True if a reduction is defined for complex numbers.

    Args:
        reduceOp: The reduction, or its name.

    Example:
        >>> dist.supports_complex(dist.ReduceOp.MAX)
        False
    """
    op = reduceOp if isinstance(reduceOp, _core.ReduceOp) else _core.ReduceOp(reduceOp)
    return op.name in ("SUM", "AVG", "PREMUL_SUM")


# ---- collectives with one tensor on every rank


@completed(_ARGUMENTS, _RETURNS)
def all_reduce(
    tensor: Tensor,
    op: Op = SUM,
    group: AnyGroup | None = None,
    async_op: bool = False,
    *,
    timeout: Timeout | None = None,
) -> _core.Work | None:
    """Reduce the tensors of all ranks, in place, with bitwise the same result on all ranks.

    Args:
        tensor: The input, and the result. Same dtype and number of elements on all ranks. Sparse
            tensors (torch's COO, SciPy's) can only be summed, and must have the same shape.
        op: The reduction, a dldist.ReduceOp or its name ("sum", "max", ...); the same on all ranks.

    Raises:
        ValueError: dldist does not have the reduction or the dtype. The group stays usable.
        DistMismatchError: The ranks differ in the call, the dtype, the size or the reduction.
        DistTimeoutError, DistPeerLostError, DistAbortedError: A rank was late, was lost, or aborted
            the group. After any error except about arguments, the group cannot be used again.

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
    """Copy the tensor of one rank to all ranks.

    Args:
        tensor: The input on rank `src`, the output on others. Same dtype and size on all ranks.
        src: The source's rank in the default world.

    Raises:
        ValueError: Both or none of `src`, `group_src` are given, or the rank is not in the group.
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
    """Reduce the tensors of all ranks to one rank, in place. Other ranks' tensors do not change.

    Args:
        tensor: The input, and on rank `dst` the result. Same dtype and size on all ranks.
        dst: The destination's rank in the default world.

    Raises:
        ValueError: Both or none of `dst`, `group_dst` are given, or the rank is not in the group.
        DistMismatchError: The ranks differ in the call, dtype, size, reduction or destination.

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
    """Reduce the tensors of ranks 0 to r on each rank r, in place, like MPI_Scan (inclusive).

    Args:
        tensor: The input, and the result. Same dtype and size on all ranks.
        op: As in all_reduce, but not AVG, because each rank reduces a different number of tensors.

    Raises:
        ValueError: The reduction is AVG, or does not support the dtype. The group stays usable.
        DistMismatchError: The ranks differ in the call, the dtype, the size or the reduction.
        NotImplementedError: The group uses NCCL, which has no such call.

    Example:
        >>> x = array("i", [1, 2])
        >>> dist.scan(x)
        >>> x.tolist()                                        # in a world of one
        [1, 2]
    """
    return calls_of(group).scan(tensor, op, timeout=timeout, async_op=async_op)


@_documented
def exscan(
    tensor: Tensor,
    op: Op = SUM,
    group: AnyGroup | None = None,
    async_op: bool = False,
    *,
    timeout: Timeout | None = None,
) -> _core.Work | None:
    """Reduce the tensors of ranks 0 to r - 1 on each rank r, in place, like MPI_Exscan (exclusive).

    Args:
        tensor: The input, and the result. On rank 0, it does not change. Same dtype and size on all
            ranks.
        op: As in scan.

    Raises:
        ValueError, DistMismatchError, NotImplementedError: As for scan.

    Example:
        >>> x = array("i", [1, 2])
        >>> dist.exscan(x)
        >>> x.tolist()                                        # rank 0 has no lower ranks
        [1, 2]
    """
    return calls_of(group).exscan(tensor, op, timeout=timeout, async_op=async_op)


@completed(_ARGUMENTS, _RETURNS)
def barrier(
    group: AnyGroup | None = None,
    async_op: bool = False,
    device_ids: list[int] | None = None,
    timeout: Timeout | None = None,
) -> _core.Work | None:
    """Wait until all ranks have called barrier() and earlier operations of the group have ended.

    Args:
        device_ids: A list of the device that runs NCCL's barrier, such as [0]. Ignored on the CPU.

    Raises:
        TypeError: `device_ids` is not a list, and the group does not serve only the CPU.
        DistMismatchError: A rank made another call.
        DistTimeoutError, DistPeerLostError, DistAbortedError: As for all_reduce: the group cannot
            be used again. monitored_barrier finds missing ranks without ending the group.

    Example:
        >>> dist.barrier()
        >>> dist.barrier(async_op=True).wait()
        True
    """
    calls = calls_of(group)
    if _is_cpu_group(calls):
        device_group = calls._device_group if device_ids else None
        if device_group is None:  # the CPU ignores device_ids
            return calls.barrier(timeout=timeout, async_op=async_op)
        calls = device_group
    if not isinstance(device_ids, list | None):
        raise TypeError(f"Invalid function argument: device_ids type should be List[int], got {device_ids!r}")
    return calls.barrier(timeout=timeout, async_op=async_op, device_ids=device_ids)


def _is_cpu_group(calls: Any) -> bool:
    return isinstance(calls, _core.Group) and not isinstance(calls, _core.NcclGroup)


def monitored_barrier(
    group: AnyGroup | None = None, timeout: Timeout | None = None, wait_all_ranks: bool = False
) -> None:
    """Wait for all ranks. If ranks are missing, rank 0 names them, and the group stays usable.

    Args:
        group: The group, or None for the default world.
        timeout: Seconds or a timedelta that rank 0 waits. None is the group's own; 0 does not wait.
        wait_all_ranks: Name all missing ranks; otherwise stop at the first.

    Raises:
        DistTimeoutError: Rank 0 lists the missing ranks; others report that rank 0 stopped waiting.
        DistPeerLostError, DistAbortedError: A rank was lost, or aborted the group.

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
    """Gather the tensors of all ranks on every rank: tensor_list[r] receives the tensor of rank r.

    Args:
        tensor_list: A list or tuple of one output for each rank, as large as that rank's input.
        tensor: The input of this rank. Same dtype on all ranks; sizes may differ.

    Raises:
        ValueError: The list's length is not the group's size, dtypes differ, or outputs overlap.
        DistMismatchError: The ranks differ in the call or the dtype, or expect other sizes.

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
    """Gather the tensors of all ranks in one tensor, concatenated along dimension 0 or stacked.

    Args:
        output_tensor: The result, with as many elements as all inputs together.
        input_tensor: The input of this rank. Same dtype and size on all ranks.

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
    """Run several all_gathers as one. New programs use all_gather_single in dldist.coalescing().

    Args:
        output_tensor_lists: Item [r][i] receives input_tensor_list[i] of rank r.
        input_tensor_list: The inputs of this rank.
        group: The group, or None for the default world.
        async_op: Return a Future immediately, instead of waiting.
    """
    if not isinstance(output_tensor_lists, list):
        raise TypeError(f"all_gather_coalesced(): argument 'output_tensor_lists' must be a list, not {type(output_tensor_lists).__name__}")
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
    """Gather the tensors of all ranks on one rank: gather_list[r] receives the tensor of rank r.

    Args:
        tensor: The input of this rank. Same dtype on all ranks; sizes may differ.
        gather_list: On rank `dst` a list or tuple of one output for each rank; None on others.
        dst: The destination's rank in the default world; 0 by default.

    Raises:
        ValueError: Rank `dst` gives no list or one of wrong length, or another rank gives one.
        DistMismatchError: The ranks differ in the call, the dtype, a size or the destination.

    Example:
        >>> is_root = dist.get_rank() == 0
        >>> parts = [array("i", [0]) for _ in range(dist.get_world_size())] if is_root else None
        >>> dist.gather(array("i", [5]), parts, dst=0)
    """
    calls, root = calls_of(group), root_of(group, dst, group_dst)
    _check_roots_list(gather_list, calls, root, "gather_list", "destination")
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
    """Gather the tensors of all ranks in one tensor on one rank, in the order of the ranks.

    Args:
        tensor: The input of this rank. Same dtype and size on all ranks.
        gather_tensor: On rank `dst` the result, as large as all inputs together; None on others.
        dst: The destination's rank in the default world; 0 by default.

    Raises:
        ValueError: The result's tensor is missing on rank `dst`, or sizes or dtypes do not fit.
        DistMismatchError: The ranks differ in the call, the dtype, the size or the destination.

    Example:
        >>> whole = array("i", [0] * dist.get_world_size()) if dist.get_rank() == 0 else None
        >>> dist.gather_single(array("i", [5]), whole, dst=0)
    """
    calls, root = calls_of(group), root_of(group, dst, group_dst)
    if calls.rank == root and gather_tensor is None:
        raise ValueError(f"{argument_names.title('gather_tensor')} must be specified on the destination rank: got None, expected a tensor")
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
    """Send each rank its own tensor from one rank: scatter_list[r] goes to rank r.

    Args:
        tensor: The result, with the size of this rank's item in the list of rank `src`.
        scatter_list: On rank `src` a list or tuple of one input for each rank; None on others.
        src: The source's rank in the default world; 0 by default.

    Raises:
        ValueError: Rank `src` gives no list or one of wrong length, or another rank gives one.
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
    _check_roots_list(scatter_list, calls, root, "scatter_list", "source")
    return calls.scatter(tensor, scatter_list, root, timeout=timeout, async_op=async_op)


def _check_roots_list(tensors: Tensors | None, calls: Any, root: int | None, name: str, role: str) -> None:
    if calls.rank == root and not tensors:
        raise ValueError(f"{argument_names.title(name)} must be specified on {role} rank: got {tensors!r}, expected a list of tensors")
    if tensors and root is not None and calls.rank != root in range(calls.size):
        raise ValueError(f"{argument_names.title(name)} must NOT be specified on non-{role} ranks: got {tensors!r:.99}, expected None")


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
    """Reduce lists of tensors and scatter the results: rank r receives the reduction of item r.

    Args:
        output: The result for this rank, with the size of input_list[rank].
        input_list: A list or tuple of one tensor for each rank; same sizes and dtype on all ranks.

    Raises:
        ValueError: The list's length is not the group's size, or sizes or dtypes do not fit.
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
    """Reduce the tensors of all ranks, and scatter the result: rank r receives its r-th part.

    Args:
        output: The result for this rank: an equal part of the input.
        input: The parts for all ranks, concatenated. Same dtype and size on all ranks.

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
    """Send input_tensor_list[r] to each rank r; receive output_tensor_list[r] from each rank r.

    Args:
        output_tensor_list: One output for each rank (list or tuple), as large as that rank's input.
        input_tensor_list: A list or tuple of one input for each rank, all of one dtype.

    Raises:
        ValueError: A list's length is not the group's size, dtypes differ, or outputs overlap.
        DistMismatchError: The ranks differ in the call or the dtype, or expect other sizes.

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
    """Send part r of the input's first dimension to each rank r, and receive a part from each.

    Args:
        output: The parts received, in the order of the ranks.
        input: The parts to send, in the order of the ranks. Same dtype as the output, on all ranks.
        output_split_sizes: The lengths of the output's parts; None for equal parts.
        input_split_sizes: The lengths of the input's parts; None for equal parts.

    Raises:
        ValueError: There is not one size for each rank, or the sizes do not fit the tensors.
        DistMismatchError: The ranks differ in the call or the dtype, or expect other sizes.

    Example:
        >>> by = array("i", [-1] * dist.get_world_size())
        >>> dist.all_to_all_single(by, array("i", [dist.get_rank()] * dist.get_world_size()))
        >>> by.tolist() == list(range(dist.get_world_size()))
        True
    """
    return calls_of(group).all_to_all_single(
        output, input, output_split_sizes or None, input_split_sizes or None, timeout=timeout, async_op=async_op
    )


# ---- names that torch.distributed has replaced


def _as_future(work: _core.Work | None) -> Future | None:
    return None if work is None else work.get_future()


def all_reduce_coalesced(
    tensors: Tensor | Tensors, op: Op = SUM, group: AnyGroup | None = None, async_op: bool = False
) -> Future | None:
    """Run several all_reduces as one. New programs use all_reduce in dldist.coalescing().

    Args:
        tensors: A list or tuple of tensors of one dtype, or one tensor. Repeated tensors are
            reduced once.
        op: The reduction, a dldist.ReduceOp or its name; the same on all ranks.
        group: The group, or None for the default world.
        async_op: Return a Future of the tensors immediately, instead of waiting.
    """
    tensor_list: Any = tensors if isinstance(tensors, (list, tuple)) else [tensors]
    calls = calls_of(group)
    try:
        return _as_future(calls.all_reduce_coalesced(tensor_list, op, async_op=async_op))
    except _core.DistArgumentError as refusal:
        if not _is_cpu_group(calls):
            raise
        from dldist._backends.gloo_collectives import all_reduce_repeated

        return _as_future(all_reduce_repeated(calls, tensor_list, op, {"async_op": async_op}, refusal))


def _former_name(name: str, call: Any) -> Any:
    """Create a function under a former name of torch's, which calls `call`."""

    def renamed(*args: Any, **named: Any) -> Any:
        return call(*args, **named)

    renamed.__name__ = renamed.__qualname__ = name
    renamed.__code__ = renamed.__code__.replace(co_name=name)  # in tracebacks, and argument_names
    renamed.__doc__ = f"Former name of {call.__name__}."
    renamed.__wrapped__ = call  # type: ignore[attr-defined]  # gives the signature
    return renamed


all_gather_into_tensor = _former_name("all_gather_into_tensor", all_gather_single)
_all_gather_base = _former_name("_all_gather_base", all_gather_single)
gather_into_tensor = _former_name("gather_into_tensor", gather_single)
reduce_scatter_tensor = _former_name("reduce_scatter_tensor", reduce_scatter_single)
_reduce_scatter_base = _former_name("_reduce_scatter_base", reduce_scatter_single)


reduce_op = _reduce_op = _core.ReduceOp


def _make_nccl_premul_sum(factor: float | Tensor) -> _core.ReduceOp:
    """Make a PREMUL_SUM: multiply by a number or one-element tensor (also on a GPU), then sum."""
    return _core.ReduceOp.PREMUL_SUM(factor)
