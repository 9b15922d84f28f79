"""Messages between two ranks: send, recv and their kin. `timeout=` is of the call alone, in seconds or as a timedelta."""

from __future__ import annotations

from dldist.c10d import registry
from dldist.c10d.ranks import calls_of, canonical_rank, get_rank, global_rank_of, group_or_default

TYPE_CHECKING = False  # typing takes longer to import than all of this package
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from dldist import _core
    from dldist.types import AnyGroup, Tensor, Timeout

__all__ = ["P2POp", "batch_isend_irecv", "irecv", "isend", "recv", "send"]


def isend(
    tensor: Tensor,
    dst: int | None = None,
    group: AnyGroup | None = None,
    tag: int = 0,
    group_dst: int | None = None,
    *,
    timeout: Timeout | None = None,
) -> _core.Work:
    """Start to send a tensor to rank `dst`; it must not change before the work that is returned has ended."""
    calls = calls_of(group, "isend")
    if calls is None:
        return None  # type: ignore[return-value]  # seldom, and after a warning: others need no check for it
    return calls.isend(tensor, canonical_rank(group_or_default(group), dst, group_dst), tag, **_limit(timeout))


def _limit(timeout: Timeout | None) -> dict[str, Any]:
    return {} if timeout is None else {"timeout": timeout}


def irecv(
    tensor: Tensor,
    src: int | None = None,
    group: AnyGroup | None = None,
    tag: int = 0,
    group_src: int | None = None,
    *,
    timeout: Timeout | None = None,
    match_dtype: bool = True,
) -> _core.Work:
    """Start to receive a tensor from rank `src`, or from the first that sends when none is given.

    A message of another dtype is a DistMismatchError, unless one side has bytes (uint8, int8) or match_dtype is False.

    >>> x = array("i", [0])
    >>> work = dist.irecv(x, src=dist.get_rank())         # from this rank itself
    >>> dist.isend(array("i", [7]), dst=dist.get_rank()).wait()
    True
    >>> work.wait(), x[0]
    (True, 7)
    """
    calls = calls_of(group, "irecv")
    if calls is None:
        return None  # type: ignore[return-value]  # as of isend
    return calls.irecv(tensor, _source(group, src, group_src), tag, **_limit(timeout), **_match(match_dtype))


def _match(match_dtype: bool) -> dict[str, Any]:
    return {} if match_dtype else {"match_dtype": False}


def _source(group: AnyGroup | None, src: int | None, group_src: int | None) -> int | None:
    return None if src is None and group_src is None else canonical_rank(group_or_default(group), src, group_src)


def send(
    tensor: Tensor,
    dst: int | None = None,
    group: AnyGroup | None = None,
    tag: int = 0,
    group_dst: int | None = None,
    *,
    timeout: Timeout | None = None,
) -> None:
    """Send a tensor to rank `dst`, which is another one."""
    calls = calls_of(group, "send")
    if calls is None:
        return
    rank = canonical_rank(group_or_default(group), dst, group_dst)
    if rank == calls.rank:
        raise ValueError(
            "Invalid destination rank: destination rank should not be the same as the rank of the current process."
        )
    calls.send(tensor, rank, tag, **_limit(timeout))


def recv(
    tensor: Tensor,
    src: int | None = None,
    group: AnyGroup | None = None,
    tag: int = 0,
    group_src: int | None = None,
    *,
    timeout: Timeout | None = None,
    match_dtype: bool = True,
) -> int:
    """Receive a tensor from rank `src`, or from the first that sends when none is given. Returns the sender's global rank.

    A message of another dtype is a DistMismatchError, unless one side has bytes (uint8, int8) or match_dtype is False.
    """
    calls = calls_of(group, "recv")
    if calls is None:
        return -1
    source = calls.recv(tensor, _source(group, src, group_src), tag, **_limit(timeout), **_match(match_dtype))
    return global_rank_of(group_or_default(group), source) if src is None else src


class P2POp:
    """One message of batch_isend_irecv: op is dldist.isend or dldist.irecv, peer a global rank (group_peer: one of the group).

    For Group.batch_isend_irecv, op is "isend" or "irecv" (or the method of Group) and peer a rank of that group. match_dtype is
    that of irecv.
    """

    __slots__ = ("__weakref__", "group", "group_peer", "match_dtype", "op", "peer", "tag", "tensor")

    def __init__(
        self,
        op: Callable[..., Any] | str,
        tensor: Tensor,
        peer: int | None = None,
        group: AnyGroup | None = None,
        tag: int = 0,
        group_peer: int | None = None,
        *,
        match_dtype: bool = True,
    ) -> None:
        self.op = op
        self.match_dtype = match_dtype
        self.tensor = tensor
        self.tag = tag
        self.peer: int | None
        self.group_peer: int | None
        _check_op(op)
        _check_single_tensor(tensor, "tensor")
        if op is isend or op is irecv:
            self.group = group_or_default(group)
            rank = canonical_rank(self.group, peer, group_peer)
            self.group_peer, self.peer = rank, global_rank_of(self.group, rank) if peer is None else peer
            return
        self.group = group
        self.group_peer = self.peer = peer if group_peer is None else group_peer

    @property
    def kind(self) -> str:
        """"isend" or "irecv"."""
        return self.op if isinstance(self.op, str) else self.op.__name__

    def _how(self) -> dict[str, Any]:
        return _match(self.match_dtype) if self.kind == "irecv" else {}

    def __repr__(self) -> str:
        if self.group is None:
            return f"P2POp({self.kind!r}, peer={self.peer}, tag={self.tag})"
        me = get_rank(self.group)
        src, dst = (me, self.group_peer) if self.kind == "isend" else (self.group_peer, me)
        name = getattr(self.group, "group_name", None) or getattr(self.group, "name", "")
        shape, dtype = (getattr(self.tensor, attribute, None) for attribute in ("shape", "dtype"))
        return f"P2POp({self.kind} pg={name}, group_src={src}, group_dst={dst},  {shape}, {dtype})"


def _check_op(op: Any) -> None:
    """Refuse what is no message."""
    if (op if isinstance(op, str) else getattr(op, "__name__", None)) not in ("isend", "irecv"):
        raise ValueError("Invalid ``op``. Expected ``op`` to be of type ``dldist.isend`` or ``dldist.irecv``.")


def _check_single_tensor(param: Any, param_name: str) -> None:
    """Refuse what is no tensor: for P2POp, before other messages of the batch are under way, which nothing could take back."""
    if hasattr(param, "__dlpack__"):
        return
    try:
        memoryview(param)
    except TypeError:
        raise TypeError(
            f"Invalid function argument. Expected parameter `{param_name}` to be an object with __dlpack__ or the buffer protocol, "
            f"but got {type(param).__name__} instead."
        ) from None


def _check_p2p_op_list(p2p_op_list: Any) -> None:
    """Refuse what is no list of messages of one group."""
    if not isinstance(p2p_op_list, list) or not all(isinstance(op, P2POp) for op in p2p_op_list):
        raise ValueError("Invalid ``p2p_op_list``. Each op is expected to be of type ``dldist.P2POp``.")
    if not p2p_op_list:
        raise IndexError("batch_isend_irecv(): the list is empty")
    group = p2p_op_list[0].group
    if not all(op.group is group for op in p2p_op_list):
        raise ValueError("All ops need to use the same group.")


def batch_isend_irecv(p2p_op_list: list[P2POp]) -> list[_core.Work]:
    """Start all of these messages, which are of one group. Returns a work for each, in order.

    >>> size, rank, x = dist.get_world_size(), dist.get_rank(), array("i", [0])
    >>> to_the_right = dist.P2POp(dist.isend, array("i", [rank]), (rank + 1) % size)
    >>> from_the_left = dist.P2POp(dist.irecv, x, (rank - 1) % size)
    >>> for work in dist.batch_isend_irecv([to_the_right, from_the_left]):
    ...     _ = work.wait()
    >>> x[0] == (rank - 1) % size
    True
    """
    _check_p2p_op_list(p2p_op_list)
    return registry.operations(p2p_op_list[0].group).batch_isend_irecv(p2p_op_list)
