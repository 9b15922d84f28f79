"""The object collectives of torch.distributed: ranks are those of the default world, objects come in lists.

`serializer` is "pickle", as c10d's, unless the group has one of its own or the call asks for one; weights_only=True is another
way to ask for "safe". What a rank does wrong with its objects or lists the others hear of: the call ends on all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dldist._api.ranks import global_rank_of, group_or_default, is_non_member, peer_of, root_of, source_of, warn_not_in_group
from dldist._backends import registry
from dldist._base.docstrings import completed
from dldist._core import DistError
from dldist._objects.exchange import Exchange
from dldist._objects.frames import Refusal
from dldist.types import AnyGroup, Timeout

_documented = completed(
    {
        "group": "None is the default world.",
        "device": "For programs that pass it: objects travel through the memory of the CPU.",
        "group_dst": "The rank in the group, instead of `dst`.",
        "group_src": "The rank in the group, instead of `src`.",
        "use_batch": "For programs that pass it: there is one way for all.",
        "weights_only": 'The same as serializer="safe".',
        "serializer": '"pickle", or "safe", which runs no code of the sender; the same on all ranks. None is the group\'s own.',
        "timeout": "Seconds or a timedelta for the whole call. None is the group's own.",
    }
)


def _open(
    name: str, group: AnyGroup | None, weights_only: bool, serializer: str | None, timeout: Timeout | None
) -> Exchange | None:
    """What will carry the objects of a call; None, after a warning, where this process is not in the group."""
    if is_non_member(group):
        warn_not_in_group(name)
        return None
    if weights_only and serializer not in (None, "safe"):
        raise ValueError(f"{name}(): weights_only=True means serializer='safe', and serializer={serializer!r} was given, too")
    group = group_or_default(group)
    own = getattr(group, "serializer", None)
    return Exchange(registry.operations(group), name, serializer or ("safe" if weights_only else own or "pickle"), timeout)


def _take_part(operation: Callable[[], Any], wrong: Exception | None) -> Any:
    """Run an operation. What is wrong with this rank's own list is raised when the others have what they need of it."""
    try:
        result = operation()
    except DistError:
        if wrong is None:
            raise
    if wrong is not None:
        raise wrong
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
    """Have the objects of all ranks on every rank: that of rank r in object_list[r].

    Args:
        object_list: A list of at least as many places as there are ranks, which are filled with copies.
        obj: What this rank gives.

    Raises:
        IndexError: `object_list` is too short.
        TypeError: An object is not one that the serializer takes; on all ranks, and the group lives on.
        DistMismatchError: The ranks differ in the call, or in the serializer.
        DistTimeoutError, DistPeerLostError, DistAbortedError: As of collectives: the group is of no more use.

    Example:
        >>> names = [None] * dist.get_world_size()
        >>> dist.all_gather_object(names, f"rank {dist.get_rank()}")
        >>> names[0]
        'rank 0'
    """
    exchange = _open("all_gather_object", group, weights_only, serializer, timeout)
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
    """Have the objects of all ranks on one rank: that of rank r in object_gather_list[r].

    Args:
        obj: What this rank gives.
        object_gather_list: On rank `dst` a list of as many places as there are ranks; None on the others.
        dst: The rank in the default world that gets them: 0 unless given.

    Raises:
        ValueError: The list is missing on rank `dst`, or is there on another one; on all ranks, and the group lives on.
        TypeError, DistMismatchError, DistTimeoutError, DistPeerLostError, DistAbortedError: As of all_gather_object.

    Example:
        >>> losses = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
        >>> dist.gather_object({"loss": 0.5}, losses, dst=0)
    """
    exchange = _open("gather_object", group, weights_only, serializer, timeout)
    if exchange is None:
        return
    root = root_of(group, dst, group_dst)
    if exchange.rank == root and not object_gather_list:
        obj = Refusal(ValueError("Argument ``object_gather_list`` must be specified on destination rank."))
    elif exchange.rank != root and object_gather_list:
        obj = Refusal(ValueError("Argument ``object_gather_list`` must NOT be specified on non-destination ranks."))
    objects = exchange.gather(obj, root)
    if objects is not None and object_gather_list is not None:
        _fill("gather_object", "object_gather_list", object_gather_list, objects)


def _fill(name: str, argument: str, output: list[Any], objects: list[Any]) -> None:
    if len(output) < len(objects):
        raise IndexError(f"{name}(): argument '{argument}' has {len(output)} places for the objects of {len(objects)} ranks")
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
    """Have the objects in the list of one rank in the lists of all.

    Args:
        object_list: What is sent, on rank `src`; on the others places for as many objects.
        src: The rank in the default world that has them: 0 unless given.

    Raises:
        ValueError: A list is empty, or has another length than that of rank `src`.
        TypeError, DistMismatchError, DistTimeoutError, DistPeerLostError, DistAbortedError: As of all_gather_object.

    Example:
        >>> settings = [{"lr": 0.1}] if dist.get_rank() == 0 else [None]
        >>> dist.broadcast_object_list(settings, src=0)
        >>> settings
        [{'lr': 0.1}]
    """
    exchange = _open("broadcast_object_list", group, weights_only, serializer, timeout)
    if exchange is None:
        return
    root = root_of(group, src, group_src)
    wrong = _refuse_empty("broadcast_object_list", object_list)
    if exchange.rank == root:
        exchange.broadcast(Refusal(wrong) if wrong else list(object_list), root)
    else:
        _replace("broadcast_object_list", object_list, _take_part(lambda: exchange.broadcast(None, root), wrong))


def _refuse_empty(name: str, objects: list[Any]) -> ValueError | None:
    return None if objects else ValueError(f"{name}(): argument 'object_list' is empty")


def _replace(name: str, object_list: list[Any], objects: Any) -> None:
    if not isinstance(objects, list) or len(objects) != len(object_list):
        count = len(objects) if isinstance(objects, list) else f"a {type(objects).__name__} instead of a list of"
        raise ValueError(f"{name}(): {count} objects were sent, and argument 'object_list' has {len(object_list)} places")
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
    """Get the object that one rank has for this rank.

    Args:
        scatter_object_output_list: A list of one place or more; the object is in the first one then.
        scatter_object_input_list: On rank `src` an object for each rank; it is not looked at on the others.
        src: The rank in the default world that has them: 0 unless given.

    Raises:
        ValueError: The output list is empty, or the input list is missing or of another length than the group.
        TypeError, DistMismatchError, DistTimeoutError, DistPeerLostError, DistAbortedError: As of all_gather_object.

    Example:
        >>> parts = [f"part {rank}" for rank in range(dist.get_world_size())]
        >>> mine = [None]
        >>> dist.scatter_object_list(mine, parts if dist.get_rank() == 0 else None, src=0)
        >>> mine[0] == parts[dist.get_rank()]
        True
    """
    exchange = _open("scatter_object_list", group, weights_only, serializer, timeout)
    if exchange is None:
        return
    root = root_of(group, src, group_src)
    objects: Any = scatter_object_input_list
    if objects is None:
        objects = Refusal(ValueError("source rank must provide non-None scatter_object_input_list"))
    wrong = None
    if not isinstance(scatter_object_output_list, list) or not scatter_object_output_list:
        wrong = ValueError("Expected argument scatter_object_output_list to be a list of size at least 1.")
        objects = Refusal(wrong)
    obj = _take_part(lambda: exchange.scatter(objects, root), wrong)
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
    """Send the objects of a list to another rank, which calls recv_object_list with a list of the same length.

    Args:
        object_list: What is sent.
        dst: The rank in the default world.

    Raises:
        ValueError: The list is empty, or the rank is this one, not in the group, or not given.
        TypeError: An object is not one that the serializer takes; on both sides.
        DistTimeoutError: Nobody has received them in time. The group lives on.

    Example:
        >>> if dist.get_world_size() > 1 and dist.get_rank() == 0:
        ...     dist.send_object_list([{"lr": 0.1}], dst=1)
    """
    exchange = _open("send_object_list", group, weights_only, serializer, timeout)
    if exchange is None:
        return
    peer = peer_of(group, dst, group_dst)
    _check_not_self(exchange, peer, "destination")
    wrong = _refuse_empty("send_object_list", object_list)
    exchange.send(Refusal(wrong) if wrong else list(object_list), peer, 0)


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
    """Receive what a rank, or any rank, sends with send_object_list.

    Args:
        object_list: Places for as many objects as are sent.
        src: The rank in the default world; None: any rank.

    Returns:
        The sender's rank in the default world; -1 where this process is not in the group, after a warning.

    Raises:
        ValueError: The list is empty or of another length than what was sent, or the rank is this one or not in the group.
        TypeError: The sender's object is not one that the serializer takes.
        DistMismatchError: The sender has taken another serializer.
        DistTimeoutError: Nothing has come in time. The group lives on.

    Example:
        >>> if dist.get_world_size() > 1 and dist.get_rank() == 1:
        ...     settings = [None]
        ...     sender = dist.recv_object_list(settings, src=0)
    """
    exchange = _open("recv_object_list", group, weights_only, serializer, timeout)
    if exchange is None:
        return -1
    peer = source_of(group, src, group_src)
    _check_not_self(exchange, peer, "source")
    objects, source = _take_part(lambda: exchange.recv(peer, 0), _refuse_empty("recv_object_list", object_list))
    _replace("recv_object_list", object_list, objects)
    return global_rank_of(group_or_default(group), source)


def _check_not_self(calls: Any, peer: int | None, role: str) -> None:
    if peer == calls.rank:
        raise ValueError(f"Invalid {role} rank: {role} rank should not be the same as the rank of the current process.")
