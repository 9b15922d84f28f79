"""Messages between two ranks: send, recv and related calls. `timeout` limits one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dldist import _core
from dldist._api.ranks import calls_of, canonical_rank, check_not_self, get_rank, global_rank_of, group_or_default, peer_of, source_of
from dldist._api.shared_arrays import group_of
from dldist._backends import registry
from dldist._backends.recorded_calls import Message
from dldist._base import argument_names, probes
from dldist._base.probes import ANY_TAG
from dldist.types import AnyGroup, Tensor, Timeout


def isend(
    tensor: Tensor,
    dst: int | None = None,
    group: AnyGroup | None = None,
    tag: int = 0,
    group_dst: int | None = None,
    *,
    timeout: Timeout | None = None,
) -> _core.Work:
    """Start to send a tensor to a rank. Return a Work; for non-members None, after a warning.

    Args:
        tensor: The tensor to send; it must not change before the work has ended.
        dst: The receiver's rank in the default world, or NO_RANK to send nothing. This rank can
            send to itself if it receives with irecv.
        group: The group, or None for the default world.
        tag: A number of 0 or more, which the receiver must also give.
        group_dst: The receiver's rank in the group, instead of `dst`.
        timeout: Seconds or a timedelta until the message must be received. None is the group's own.

    Raises:
        ValueError: Both or none of `dst`, `group_dst` are given, or the rank or tag is invalid.
        DistTimeoutError: From work.wait(): not received before the timeout. The group stays usable.
        DistMismatchError: From work.wait(): the receiver's dtype differs. The group stays usable.
        DistPeerLostError, DistAbortedError: The receiver was lost, or the group was aborted.

    Example:
        >>> work = dist.isend(array("i", [7]), dst=dist.get_rank())
        >>> x = array("i", [0])
        >>> dist.irecv(x, src=dist.get_rank()).wait(), work.wait()
        (True, True)
    """
    # The annotation omits None, although non-members get None, so that callers need no check.
    return calls_of(group).isend(tensor, peer_of(group, dst, group_dst), tag, timeout=timeout)


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
    """Start to receive a tensor from a rank, or from the first rank that sends. Return a Work; for
    non-members None, after a warning.

    Args:
        tensor: The tensor to fill. A shorter message fills a part; a longer one is an error.
        src: The sender's rank in the default world; None for any rank (see Work.source_rank);
            NO_RANK to receive nothing.
        group: The group, or None for the default world.
        tag: The tag of the sender's call.
        group_src: The sender's rank in the group, instead of `src`.
        timeout: Seconds or a timedelta to wait. None is the group's own; 0 does not wait.
        match_dtype: Reject a message of another dtype, unless one side has bytes (uint8, int8).

    Raises:
        ValueError: Both `src` and `group_src` are given, the rank is not in the group, or tag < 0.
        DistTimeoutError: From work.wait(): no message before the timeout. The group stays usable.
        DistMismatchError: From work.wait(): the message's dtype differs. The group stays usable.
        DistPeerLostError, DistAbortedError: The sender was lost, or the group was aborted.

    Example:
        >>> x = array("i", [0])
        >>> work = dist.irecv(x, src=dist.get_rank())         # from this rank itself
        >>> dist.isend(array("i", [7]), dst=dist.get_rank()).wait()
        True
        >>> work.wait(), x[0]
        (True, 7)
    """
    calls, source = calls_of(group), source_of(group, src, group_src)
    return calls.irecv(tensor, source, tag, timeout=timeout, match_dtype=match_dtype)


def send(
    tensor: Tensor,
    dst: int | None = None,
    group: AnyGroup | None = None,
    tag: int = 0,
    group_dst: int | None = None,
    *,
    timeout: Timeout | None = None,
) -> None:
    """Send a tensor to another rank, and return once the tensor may be changed.

    When send returns, a small message may not have been received yet.

    Args:
        tensor: The tensor to send.
        dst: As in isend, like `group`, `tag`, `group_dst`, `timeout` and the errors, which send
            itself raises. This rank is an error.

    Example:
        >>> if dist.get_world_size() > 1:
        ...     dist.send(array("i", [7]), dst=1) if dist.get_rank() == 0 else dist.recv(array("i", [0]), src=0)
    """
    calls, rank = calls_of(group), peer_of(group, dst, group_dst)
    check_not_self(calls, rank, "destination")
    calls.send(tensor, rank, tag, timeout=timeout)


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
    """Receive a tensor from a rank, or from the first rank that sends. Return the sender's rank in
    the default world; -1, after a warning, for non-members.

    Args:
        tensor: The tensor to fill. A shorter message fills a part; a longer one is an error.
        src: As in irecv, like `group`, `tag`, `group_src`, `timeout`, `match_dtype` and the errors,
            which recv itself raises.

    Example:
        >>> work = dist.isend(array("i", [7]), dst=dist.get_rank())
        >>> x = array("i", [0])
        >>> dist.recv(x) == dist.get_rank(), x[0]
        (True, 7)
    """
    calls, source = calls_of(group), source_of(group, src, group_src)
    source = calls.recv(tensor, source, tag, timeout=timeout, match_dtype=match_dtype)
    if source is None:  # None: this process is not a member
        return -1
    return global_rank_of(group_or_default(group), source) if src is None else src


def probe(
    src: int | None = None,
    group: AnyGroup | None = None,
    tag: int = ANY_TAG,
    group_src: int | None = None,
    *,
    timeout: Timeout | None = None,
) -> probes.MessageInfo:
    """Wait until a message has arrived that a receive with these arguments would get.

    The message stays; receive it with its source and tag. Only one thread may probe for and receive
    the same messages.

    Args:
        src: As in irecv, like `group` and `group_src`.
        tag: The tag of the sender's call, or ANY_TAG.
        timeout: Seconds or a timedelta to wait. None is the group's own.

    Raises:
        ValueError: The rank or the tag is invalid, or a carrier moves the group's messages.
        DistTimeoutError: No message arrived before the timeout. The group stays usable.
        DistPeerLostError, DistAbortedError: The sender was lost, or the group was aborted.

    Example:
        >>> work = dist.isend(array("i", [7, 8]), dst=dist.get_rank(), tag=3)
        >>> dist.probe(dist.get_rank())
        MessageInfo(source=0, tag=3, nbytes=8)
        >>> x = array("i", [0, 0])
        >>> dist.irecv(x, dist.get_rank(), tag=3).wait(), work.wait()
        (True, True)
    """
    found = _probe("probe", src, group, tag, group_src, True, timeout)
    assert found is not None
    return found


def iprobe(
    src: int | None = None, group: AnyGroup | None = None, tag: int = ANY_TAG, group_src: int | None = None
) -> probes.MessageInfo | None:
    """Return a message that has arrived, or None. Does not wait.

    Args:
        src: As in probe, like `group`, `tag`, `group_src` and the errors.
    """
    return _probe("iprobe", src, group, tag, group_src, False, None)


def _probe(
    call: str,
    src: int | None,
    group: AnyGroup | None,
    tag: int,
    group_src: int | None,
    is_waiting: bool,
    timeout: Timeout | None,
) -> probes.MessageInfo | None:
    found = probes.find(group_of(call, group), source_of(group, src, group_src), tag, is_waiting=is_waiting, timeout=timeout)
    if found is None:
        return None
    return found._replace(source=global_rank_of(group_or_default(group), found.source) if src is None else src)


class P2POp(Message):
    """One message of batch_isend_irecv.

    Args:
        op: dldist.isend or dldist.irecv. For Group.batch_isend_irecv: the group's method, or its
            name.
        tensor: The tensor to send or fill.
        peer: The other rank, in the default world; for Group.batch_isend_irecv, in that group.
            NO_RANK to do nothing.
        group: The group, or None for the default world.
        tag: A number of 0 or more, the same on both sides.
        group_peer: The other rank in the group, instead of `peer`.
        match_dtype: For irecv: reject a message of another dtype.

    Raises:
        ValueError: `op` is another function, or the rank is not in the group.
        TypeError: `tensor` is not a tensor.

    Example:
        >>> dist.P2POp(dist.isend, array("i", [7]), peer=0, tag=2).kind
        'isend'
    """

    __slots__ = ("group", "peer")

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
        _check_op(op)
        _check_single_tensor(tensor, "tensor")
        if op is isend or op is irecv:
            self.group = group_or_default(group)
            rank = canonical_rank(self.group, peer, group_peer)
            self.group_peer, self.peer = rank, global_rank_of(self.group, rank) if peer is None else peer
            return
        self.group = group
        self.group_peer = self.peer = peer if group_peer is None else group_peer

    def __repr__(self) -> str:
        if self.group is None:
            return f"P2POp({self.kind!r}, peer={self.peer}, tag={self.tag})"
        me = get_rank(self.group)
        src, dst = (me, self.group_peer) if self.kind == "isend" else (self.group_peer, me)
        name = getattr(self.group, "group_name", None) or getattr(self.group, "name", "")
        shape, dtype = (getattr(self.tensor, attribute, None) for attribute in ("shape", "dtype"))
        return f"P2POp({self.kind} pg={name}, group_src={src}, group_dst={dst},  {shape}, {dtype})"


def _check_op(op: Any) -> None:
    """Raise a ValueError unless the operation is isend or irecv."""
    if (op if isinstance(op, str) else getattr(op, "__name__", None)) not in ("isend", "irecv"):
        raise ValueError(f"Invalid ``op``. Expected ``op`` to be of type ``dldist.isend`` or ``dldist.irecv``, got {op!r}")


def _check_single_tensor(param: Any, param_name: str) -> None:
    """Raise a TypeError unless the argument is a tensor. Call it before the first message of a batch."""
    if hasattr(param, "__dlpack__"):
        return
    try:
        memoryview(param)
    except TypeError:
        where = argument_names.title(param_name, "_check_single_tensor")
        raise TypeError(f"{where} must be an object with __dlpack__ or the buffer protocol, not {type(param).__name__}") from None


def _check_p2p_op_list(p2p_op_list: Any) -> None:
    """Raise unless the argument is a list of messages of one group."""
    if not isinstance(p2p_op_list, list) or not all(isinstance(op, P2POp) for op in p2p_op_list):
        raise ValueError(f"Invalid ``p2p_op_list``. Each op is expected to be of type ``dldist.P2POp``, got {p2p_op_list!r:.100}")
    if not p2p_op_list:
        raise IndexError("batch_isend_irecv(): argument 'p2p_op_list' is empty: got 0 items, expected at least 1")
    group = p2p_op_list[0].group
    if not all(op.group is group for op in p2p_op_list):
        raise ValueError("All ops need to use the same group.")


def batch_isend_irecv(p2p_op_list: list[P2POp]) -> list[_core.Work]:
    """Start several sends and receives of one group. Return their Works, in the same order.

    Args:
        p2p_op_list: A list of P2POp. Two receives must not use the same memory.

    Raises:
        ValueError: The argument is not a list of P2POp of one group. Nothing has been started.
        IndexError: The list is empty.

    Example:
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
