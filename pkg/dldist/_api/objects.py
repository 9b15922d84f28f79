"""The object collectives of torch.distributed. Ranks are ranks of the default world.

`serializer` defaults to the group's serializer, else to "pickle", as in c10d. weights_only=True is
the same as serializer="safe". If a rank's objects or lists are wrong, the call fails on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dldist._api.ranks import check_not_self, global_rank_of, group_or_default, is_non_member, peer_of, root_of, source_of, warn_not_in_group
from dldist._backends import registry
from dldist._base.docstrings import completed
from dldist._base.probes import NO_RANK
from dldist._base.works import ObjectWork
from dldist._core import DistError
from dldist._objects.exchange import Exchange
from dldist._objects.frames import Refusal
from dldist.types import AnyGroup, Timeout

_documented = completed(
    {
        "group": "The group, or None for the default world.",
        "tag": "A number of 0 or more, the same on both sides.",
        "device": "Ignored; accepted for compatibility. Objects use CPU memory.",
        "group_dst": "The destination's rank in the group, instead of `dst`.",
        "group_src": "The source's rank in the group, instead of `src`.",
        "use_batch": "Ignored; accepted for compatibility.",
        "weights_only": 'The same as serializer="safe".',
        "serializer": '"pickle", or "safe", which runs no code from the sender; the same on all ranks. None is the group\'s own.',
        "timeout": "Seconds or a timedelta for the whole call. None is the group's own.",
    }
)


def _make_exchange(
    name: str, group: AnyGroup | None, weights_only: bool, serializer: str | None, timeout: Timeout | None, default: str = "pickle"
) -> Exchange | None:
    """Return the Exchange for an object collective. For a non-member, warn and return None."""
    if is_non_member(group):
        warn_not_in_group(name)
        return None
    if weights_only and serializer not in (None, "safe"):
        raise ValueError(f"{name}(): weights_only=True conflicts with serializer={serializer!r}: expected 'safe' or None")
    group = group_or_default(group)
    group_serializer = getattr(group, "serializer", None)
    return Exchange(registry.operations(group), name, serializer or ("safe" if weights_only else group_serializer or default), timeout)


def _run_then_raise(operation: Callable[[], Any], list_error: Exception | None) -> Any:
    """Run an operation even if this rank's list is wrong, so that other ranks do not hang; then
    raise `list_error`, if any."""
    try:
        result = operation()
    except DistError:
        if list_error is None:
            raise
    if list_error is not None:
        raise list_error
    return result


@_documented
def all_gather_object(
    object_list: list[Any],
    obj: Any,
    group: AnyGroup | None = None,
    weights_only: bool = False,
    *,
    serializer: str | None = None,
    timeout: Timeout | None = None,
) -> None:
    """Gather the objects of all ranks on every rank: object_list[r] receives the object of rank r.

    Args:
        object_list: A list of at least the group's size, to fill with copies of the objects.
        obj: The object of this rank.

    Raises:
        IndexError: `object_list` is too short.
        TypeError: The serializer rejects an object. Raised on all ranks; the group stays usable.
        DistMismatchError: The ranks differ in the call or the serializer.
        DistTimeoutError, DistPeerLostError, DistAbortedError: As for all_reduce.

    Example:
        >>> names = [None] * dist.get_world_size()
        >>> dist.all_gather_object(names, f"rank {dist.get_rank()}")
        >>> names[0]
        'rank 0'
    """
    exchange = _make_exchange("all_gather_object", group, weights_only, serializer, timeout)
    if exchange is None:
        return
    _fill("all_gather_object", "object_list", object_list, exchange.all_gather(obj))


@_documented
def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: AnyGroup | None = None,
    group_dst: int | None = None,
    weights_only: bool = False,
    *,
    serializer: str | None = None,
    timeout: Timeout | None = None,
) -> None:
    """Gather the objects of all ranks on one rank: object_gather_list[r] receives rank r's object.

    Args:
        obj: The object of this rank.
        object_gather_list: On rank `dst` a list of the group's size, to fill; None on others.
        dst: The destination's rank in the default world; 0 by default.

    Raises:
        ValueError: Rank `dst` passes no list, or another rank passes one. Raised on all ranks.
        TypeError, DistError: As for all_gather_object.

    Example:
        >>> losses = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
        >>> dist.gather_object({"loss": 0.5}, losses, dst=0)
    """
    exchange = _make_exchange("gather_object", group, weights_only, serializer, timeout)
    if exchange is None:
        return
    root, where = root_of(group, dst, group_dst), "gather_object(): argument 'object_gather_list'"
    if exchange.rank == root and not object_gather_list:
        obj = Refusal(ValueError(f"{where} must be specified on destination rank: got {object_gather_list!r}, expected a list of {exchange.size}"))
    elif exchange.rank != root in range(exchange.size) and object_gather_list:
        obj = Refusal(ValueError(f"{where} must NOT be specified on non-destination ranks: got {object_gather_list!r:.99}, expected None"))
    objects = exchange.gather(obj, root)
    if objects is not None and object_gather_list is not None:
        _fill("gather_object", "object_gather_list", object_gather_list, objects)


def _fill(name: str, argument: str, output: list[Any], objects: list[Any]) -> None:
    if len(output) < len(objects):
        raise IndexError(f"{name}(): argument '{argument}' is too short: got {len(output)} items, expected {len(objects)} (one for each rank)")
    for rank, obj in enumerate(objects):
        output[rank] = obj


@_documented
def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: AnyGroup | None = None,
    device: Any = None,
    group_src: int | None = None,
    weights_only: bool = False,
    *,
    serializer: str | None = None,
    timeout: Timeout | None = None,
) -> None:
    """Copy the objects in the list of one rank to the lists of all ranks.

    Args:
        object_list: The objects to send on rank `src`; a list of the same length to fill on others.
        src: The source's rank in the default world; 0 by default.

    Raises:
        ValueError: A list is empty, or its length is not the length of rank `src`'s list.
        TypeError, DistError: As for all_gather_object.

    Example:
        >>> settings = [{"lr": 0.1}] if dist.get_rank() == 0 else [None]
        >>> dist.broadcast_object_list(settings, src=0)
        >>> settings
        [{'lr': 0.1}]
    """
    exchange = _make_exchange("broadcast_object_list", group, weights_only, serializer, timeout)
    if exchange is None:
        return
    root = root_of(group, src, group_src)
    list_error = _check_not_empty("broadcast_object_list", object_list)
    if exchange.rank == root:
        exchange.broadcast(Refusal(list_error) if list_error else list(object_list), root)
    else:
        _replace("broadcast_object_list", object_list, _run_then_raise(lambda: exchange.broadcast(None, root), list_error))


def _check_not_empty(name: str, objects: list[Any]) -> ValueError | None:
    return None if objects else ValueError(f"{name}(): argument 'object_list' is empty: got 0 items, expected at least 1")


def _replace(name: str, object_list: list[Any], objects: Any) -> None:
    if not isinstance(objects, list) or len(objects) != len(object_list):
        sent = f"{len(objects)}" if isinstance(objects, list) else f"a {type(objects).__name__}"
        raise ValueError(f"{name}(): argument 'object_list' has another length: got {len(object_list)}, expected {sent}, as sent")
    for index, obj in enumerate(objects):
        object_list[index] = obj


@_documented
def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int | None = None,
    group: AnyGroup | None = None,
    group_src: int | None = None,
    weights_only: bool = False,
    *,
    serializer: str | None = None,
    timeout: Timeout | None = None,
) -> None:
    """Send each rank its own object from one rank.

    Args:
        scatter_object_output_list: A list of at least one item; the object replaces the first.
        scatter_object_input_list: On rank `src` one object for each rank; ignored on others.
        src: The source's rank in the default world; 0 by default.

    Raises:
        ValueError: The output list is empty, or the input list is missing or of wrong length.
        TypeError, DistError: As for all_gather_object.

    Example:
        >>> parts = [f"part {rank}" for rank in range(dist.get_world_size())]
        >>> mine = [None]
        >>> dist.scatter_object_list(mine, parts if dist.get_rank() == 0 else None, src=0)
        >>> mine[0] == parts[dist.get_rank()]
        True
    """
    exchange = _make_exchange("scatter_object_list", group, weights_only, serializer, timeout)
    if exchange is None:
        return
    root = root_of(group, src, group_src)
    objects: Any = scatter_object_input_list
    if objects is None:
        objects = Refusal(ValueError("source rank must provide non-None scatter_object_input_list"))
    list_error = None
    if not isinstance(scatter_object_output_list, list) or not scatter_object_output_list:
        text = "Expected argument scatter_object_output_list to be a list of size at least 1"
        list_error = ValueError(f"scatter_object_list(): {text}, got {scatter_object_output_list!r:.100}")
        objects = Refusal(list_error)
    obj = _run_then_raise(lambda: exchange.scatter(objects, root), list_error)
    scatter_object_output_list[0] = obj


@_documented
def send_object_list(
    object_list: list[Any],
    dst: int | None = None,
    group: AnyGroup | None = None,
    device: Any = None,
    group_dst: int | None = None,
    use_batch: bool = False,
    weights_only: bool = False,
    *,
    serializer: str | None = None,
    timeout: Timeout | None = None,
) -> None:
    """Send a list of objects to a rank, which calls recv_object_list with an equally long list.

    Args:
        object_list: The objects to send.
        dst: The destination's rank in the default world.

    Raises:
        ValueError: The list is empty, or `dst` is this rank, not in the group, or missing.
        TypeError: The serializer rejects an object. Raised on both ranks.
        DistTimeoutError: The receiver did not receive before the timeout. The group stays usable.

    Example:
        >>> if dist.get_world_size() > 1 and dist.get_rank() == 0:
        ...     dist.send_object_list([{"lr": 0.1}], dst=1)
    """
    exchange = _make_exchange("send_object_list", group, weights_only, serializer, timeout)
    if exchange is None:
        return
    peer = peer_of(group, dst, group_dst)
    check_not_self(exchange, peer, "destination")
    list_error = _check_not_empty("send_object_list", object_list)
    exchange.send(Refusal(list_error) if list_error else list(object_list), peer, 0)


@_documented
def recv_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: AnyGroup | None = None,
    device: Any = None,
    group_src: int | None = None,
    use_batch: bool = False,
    weights_only: bool = False,
    *,
    serializer: str | None = None,
    timeout: Timeout | None = None,
) -> int:
    """Receive the objects of one send_object_list, from one rank or any rank. Return the sender's
    rank in the default world; -1, after a warning, for non-members.

    Args:
        object_list: A list to fill, as long as the sender's list.
        src: The source's rank in the default world; None for any rank.

    Raises:
        ValueError: The list is empty or of wrong length, or `src` is this rank or not in the group.
        TypeError: The serializer rejects the sender's object.
        DistMismatchError: The sender used another serializer.
        DistTimeoutError: No object was received before the timeout. The group stays usable.

    Example:
        >>> if dist.get_world_size() > 1 and dist.get_rank() == 1:
        ...     settings = [None]
        ...     sender = dist.recv_object_list(settings, src=0)
    """
    exchange = _make_exchange("recv_object_list", group, weights_only, serializer, timeout)
    if exchange is None:
        return -1
    peer = source_of(group, src, group_src)
    check_not_self(exchange, peer, "source")
    objects, source = _run_then_raise(lambda: exchange.recv(peer, 0), _check_not_empty("recv_object_list", object_list))
    if source == NO_RANK:
        return NO_RANK
    _replace("recv_object_list", object_list, objects)
    return global_rank_of(group_or_default(group), source)


@_documented
def isend_object(
    obj: Any,
    dst: int | None = None,
    group: AnyGroup | None = None,
    tag: int = 0,
    group_dst: int | None = None,
    *,
    serializer: str | None = None,
    timeout: Timeout | None = None,
) -> ObjectWork:
    """Start to send an object to a rank, which receives it by irecv_object. The default is "safe".
    Return a Work; for non-members None, after a warning.

    Args:
        obj: The object to send. Its arrays must not change before the work has ended.
        dst: The destination's rank in the default world, or NO_RANK.

    Raises:
        TypeError: The serializer rejects the object. Raised on both ranks.
        ValueError: The rank or the tag is invalid, or the group has a third-party backend.

    Example:
        >>> work = dist.isend_object({"lr": 0.1}, dist.get_rank())
        >>> dist.irecv_object(dist.get_rank()).wait(), work.wait()
        ({'lr': 0.1}, True)
    """
    exchange = _make_exchange("isend_object", group, False, serializer, timeout, "safe")
    # The annotation omits None, although non-members get None, so that callers need no check.
    return exchange and exchange.isend(obj, peer_of(group, dst, group_dst), tag)  # type: ignore[return-value]


@_documented
def irecv_object(
    src: int | None = None,
    group: AnyGroup | None = None,
    tag: int = 0,
    group_src: int | None = None,
    *,
    serializer: str | None = None,
    timeout: Timeout | None = None,
) -> ObjectWork:
    """Start to receive the object of one isend_object, from one rank or any rank. Return a Work,
    whose wait() and result() return the object, like `await`; for non-members None, with a warning.

    Args:
        src: The source's rank in the default world; None for any rank; NO_RANK for none.

    Raises:
        TypeError, DistError: From wait(), as for recv_object_list.
    """
    exchange = _make_exchange("irecv_object", group, False, serializer, timeout, "safe")
    return exchange and exchange.irecv(source_of(group, src, group_src), tag)  # type: ignore[return-value]
