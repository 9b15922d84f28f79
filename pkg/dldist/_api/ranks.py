"""Convert between ranks of groups and of the default world; resolve arguments of calls."""

from __future__ import annotations

from typing import Any

from dldist import _core
from dldist._backends import registry
from dldist._backends.backend_base import Backend
from dldist._backends.backend_names import warn
from dldist._backends.registry import NON_GROUP_MEMBER, default_group
from dldist._base import argument_names
from dldist._base.probes import NO_RANK
from dldist._rendezvous import launchers
from dldist.types import AnyGroup


def is_non_member(group: object) -> bool:
    """Return True if the group is new_group's result for a process that is not a member."""
    return type(group) is int and group == NON_GROUP_MEMBER


def group_or_default(group: AnyGroup | None = None) -> Any:
    """Return the group, or the default group for None."""
    return default_group() if group is None else group


def warn_not_in_group(op_name: str) -> None:
    """Warn that a call does nothing, because this process is not a member."""
    world = registry._world.default_pg
    rank = -1 if world is None else world.rank()
    warn(f"Running {op_name} on global rank {rank} which does not belong to the given group.")


class _NonMemberCalls:
    """The operations that non-members get for a group: every call warns and returns None."""

    rank = -1

    def __getattr__(self, name: str) -> Any:
        warn_not_in_group(name)
        return lambda *args, **named: None


_non_member_calls = _NonMemberCalls()


def calls_of(group: AnyGroup | None) -> Any:
    """Return the object that runs a group's operations."""
    if group is not None and is_non_member(group):
        return _non_member_calls
    return registry.operations(group)


def _ranks_of(group: Any) -> dict[int, int]:
    ranks = None if is_non_member(group) else registry._world.pg_group_ranks.get(group)
    if ranks is None:
        text = f"Group {group} is not registered, please create group with dldist.new_group API"
        raise ValueError(f"{argument_names.title('group')}: {text}: got {group!r}, expected a group of this world")
    return ranks


def get_group_rank(group: AnyGroup, global_rank: int) -> int:
    """Return the group rank of a rank of the default world.

    Args:
        group: A group of new_group, or the default group.
        global_rank: The rank in the default world.

    Raises:
        ValueError: The rank is not in the group, or the group is not registered.
    """
    if group is registry._world.default_pg:
        return global_rank
    ranks = _ranks_of(group)
    if global_rank not in ranks:
        raise ValueError(f"{argument_names.title('global_rank')}: Global rank {global_rank!r} is not part of group {group}: expected a member's rank")
    return ranks[global_rank]


def get_global_rank(group: AnyGroup, group_rank: int) -> int:
    """Return the rank in the default world that a rank of a group has.

    Args:
        group: A group of new_group, or the default group.
        group_rank: The rank in the group.

    Raises:
        ValueError: The rank is not in the group, or the group is not registered.
    """
    if group is registry._world.default_pg:
        return group_rank
    for global_rank, rank in _ranks_of(group).items():
        if rank == group_rank:
            return global_rank
    raise ValueError(f"{argument_names.title('group_rank')}: Group rank {group_rank!r} is not part of group {group}: expected a member's rank")


_UNREGISTERED_TYPES = (_core.Group, Backend)
"""Types of groups that are not registered: their ranks are not ranks of the default world."""


def canonical_rank(group: Any, global_rank: int | None, group_rank: int | None) -> int:
    """Return the rank in the group. Pass exactly one of global rank and group rank."""
    if (group_rank is None) == (global_rank is None):
        call, _, name = argument_names.title("global_rank").replace("group_", "").partition(": argument ")
        given = "neither" if group_rank is None else "both"
        raise ValueError(f"{call}: got {given} of {name} and 'group_{name[1:]}, expected one of them")
    if group_rank is not None:
        return group_rank
    assert global_rank is not None
    if global_rank == NO_RANK:
        return NO_RANK
    if isinstance(group, _UNREGISTERED_TYPES):
        raise ValueError(f"{group!r} has no ranks in the default world: got global rank {global_rank}, expected group_src, group_dst or group_peer")
    return get_group_rank(group, global_rank)


def check_not_self(calls: Any, peer: int | None, role: str) -> None:
    if peer == calls.rank:
        where = argument_names.title("dst" if role == "destination" else "src", "_check_not_self_rank")
        text = f"Invalid {role} rank: {role} rank should not be the same as the rank of the current process"
        raise ValueError(f"{where}: {text}: got {peer}, expected another rank")


def peer_of(group: Any, global_rank: int | None, group_rank: int | None) -> Any:
    """Like canonical_rank, but accept None as the default group; return None for non-members."""
    if group is None:
        group = default_group()
    elif is_non_member(group):
        return None
    return canonical_rank(group, global_rank, group_rank)


def root_of(group: Any, global_rank: int | None, group_rank: int | None) -> Any:
    """Return the rank in the group of a collective's root, which is global rank 0 by default."""
    return peer_of(group, 0 if global_rank is None and group_rank is None else global_rank, group_rank)


def source_of(group: Any, global_rank: int | None, group_rank: int | None) -> int | None:
    """Return the rank in the group of a message's source; None (any rank) if not given."""
    return None if global_rank is None and group_rank is None else peer_of(group, global_rank, group_rank)


def global_rank_of(group: Any, group_rank: int) -> int:
    """Return a member's global rank, or the group rank if the group is not registered."""
    return group_rank if group_rank == NO_RANK or isinstance(group, _UNREGISTERED_TYPES) else get_global_rank(group, group_rank)


def get_process_group_ranks(group: AnyGroup | None) -> list[int]:
    """Return the members of a group as ranks of the default world, ordered by group rank.

    Args:
        group: The group, or None for the default world.

    Raises:
        ValueError: The group is not registered.

    Example:
        >>> dist.get_process_group_ranks(None)
        [0]
    """
    return list(_ranks_of(group_or_default(group)))


def get_rank(group: AnyGroup | None = None) -> int:
    """Return the rank of this process in a group, or -1 if the process is not a member.

    Args:
        group: The group, or None for the default world.

    Raises:
        ValueError: There is no default world.

    Example:
        >>> dist.get_rank()
        0
    """
    if is_non_member(group):
        return -1
    if isinstance(group, _core.Group):
        return group.rank
    world = default_group()
    if group is None or group is world:
        return world.rank()
    return get_group_rank(group, world.rank())


def get_world_size(group: AnyGroup | None = None) -> int:
    """Return the number of ranks of a group, or -1 if this process is not a member.

    Args:
        group: The group, or None for the default world.

    Raises:
        ValueError: There is no default world.

    Example:
        >>> dist.get_world_size()
        1
    """
    if is_non_member(group):
        return -1
    if isinstance(group, _core.Group):
        return group.size
    return group_or_default(group).size()


def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """Return the rank of this process on its host, from LOCAL_RANK or a launcher's own variable.

    Args:
        fallback_rank: The result if no launcher sets the rank.

    Raises:
        RuntimeError: No launcher sets the rank, and `fallback_rank` is None.

    Example:
        >>> dist.get_node_local_rank(fallback_rank=0) >= 0
        True
    """
    local = launchers.local_rank()
    if local is not None:
        return local
    if fallback_rank is not None:
        return argument_names.convert("fallback_rank", int, fallback_rank, "an integer")
    raise RuntimeError(
        "LOCAL_RANK is not in the environment, and no other launcher sets a local rank. Consider passing fallback_rank to allow "
        "`get_node_local_rank` to work, assuming you are not running in a multi-device context and want the code to run "
        "locally instead."
    )
