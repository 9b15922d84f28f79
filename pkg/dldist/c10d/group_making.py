"""How libraries make groups by c10d's private calls: beside the default one, or before there is one."""

from __future__ import annotations

from dldist import _core
from dldist.c10d import groups, registry
from dldist.c10d.maker import Maker, check_backend
from dldist.c10d.names import Backend
from dldist.c10d.options import as_timedelta
from dldist.c10d.ranks import get_rank, is_non_member
from dldist.c10d.registry import NON_GROUP_MEMBER, default_group, hash_of_ranks

TYPE_CHECKING = False  # typing takes longer to import than all of this package
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from dldist.c10d.process_group import ProcessGroup


def _new_process_group_helper(
    group_size: int,
    group_rank: int,
    global_ranks_in_group: Sequence[int],
    backend: str,
    store: _core.Store,
    group_name: str,
    backend_options: Any = None,
    timeout: Any = None,
    pg_tag: str | None = None,
    device_id: Any = None,
    group_desc: str | None = None,
) -> tuple[Any, _core.Store | None]:
    """Make a group whose members meet in `store`: all of them call it. Returns it and the store with the group's prefix.

    Without ranks it is a world of its own, for which there need be no default group. Who is not among the ranks gets
    NON_GROUP_MEMBER and None.
    """
    world = registry._world
    if group_name in world.pg_names.values():
        raise ValueError("The specified group name has already been created, please use a different group name")
    device = groups._check_device_id(device_id)
    limit = as_timedelta("_new_process_group_helper(): argument 'timeout'", timeout)
    name = Backend(backend)
    check_backend(name)
    ranks = list(global_ranks_in_group)
    if pg_tag and (found := groups._find_pg_by_ranks_and_tag(pg_tag, ranks)) is not None:
        return found, world.pg_map[found][1]
    if ranks and default_group().rank() not in ranks:
        groups._skip_nccl_split(default_group(), name)
        return NON_GROUP_MEMBER, None
    maker = Maker(name, limit, backend_options, device, "undefined" if group_desc is None else group_desc)
    if ranks:
        maker.nccl_offspring = groups._nccl_split(default_group(), ranks, maker)
    pg = maker.make(store, group_rank, group_size, ranks or list(range(group_size)), group_name, None, pg_tag or None)
    return pg, world.pg_map[pg][1]


def _update_default_pg(pg: Any) -> None:
    """Have the calls that name no group go to this one; to none with None, and where this process is no member."""
    registry._world.default_pg = None if is_non_member(pg) else pg


def _find_or_create_pg_by_ranks_and_tag(tag: str, ranks: list[int], stride: int) -> ProcessGroup:
    """Of the ranks, cut into rows of `stride`, the group of this process's row: the one with this tag, or a new one."""
    if len(ranks) % stride != 0:
        raise ValueError(f"Ranks length ({len(ranks)}) must be divisible by stride ({stride})")
    rows = [sorted(ranks[first : first + stride]) for first in range(0, len(ranks), stride)]
    mine = next((row for row in rows if get_rank() in row), None)
    if mine is None:
        raise AssertionError("rankset doesn't include the current node")
    found = groups._find_pg_by_ranks_and_tag(tag, mine)
    if found is not None:
        return found
    if not tag:
        raise ValueError("Cannot automatically create PG with empty tag")
    made: ProcessGroup = groups._new_group_with_tag(mine, pg_tag=tag, use_local_synchronization=True)
    return made


# ---- names and colours


def _process_group_name(ranks: Sequence[int], use_hashed_name: bool) -> str:
    """The name of the next group: made of its ranks, or the number that all processes count up to."""
    return registry._world.next_name_of(ranks) if use_hashed_name else registry._world.next_name()


def _hash_ranks_to_str(ranks: Sequence[int]) -> str:
    return hash_of_ranks(ranks, len(registry._world.pg_names))


def _process_group_color(ranks: Sequence[int]) -> int:
    """A number that fits into an int of C, the same for the same ranks."""
    return abs(hash(tuple(ranks))) % (1 << 31)
