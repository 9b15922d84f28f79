"""Sources of a mesh's ranks and groups: the default world, a World, or given groups.

A mesh stores the name of a c10d group, so that the mesh can be copied and pickled, and never finds
a destroyed group. For a World, the mesh stores the object.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dldist import _core
from dldist._api.groups import abort, init_process_group, is_initialized, new_group, split_group
from dldist._api.ranks import get_rank, is_non_member
from dldist._backends import registry
from dldist._backends.backend_names import device_type_of
from dldist._backends.registry import default_group
from dldist.world import World

Override = tuple[str | None, Any]
"""A backend and its options, which override the default world's for a dimension's groups."""

DEFAULT_OVERRIDE: Override = (None, None)


def find_group(reference: Any) -> Any:
    """Return the group that a mesh has stored, by name or as a World."""
    return registry._world.resolve(reference) if isinstance(reference, str) else reference


def abort_groups(references: Iterable[Any]) -> None:
    """Abort each of the groups that a mesh stores, once."""
    groups: list[Any] = [find_group(each) for each in dict.fromkeys(references)]
    default: Any = registry._world.default_pg
    for group in [default] if default in groups else groups:  # aborting the default ends all groups
        if is_world(group):
            group.abort()
        else:
            abort(group)


class DefaultWorldGroups:
    """Source of ranks: the default world. The groups of a mesh are created by new_group."""

    def initialize(self, count: int) -> None:
        """Create the default world if needed, and check that it has `count` ranks for a mesh."""
        if not is_initialized():
            init_process_group()
        _check_size(count, default_group().size())

    def check_size(self, count: int) -> None:
        """Raise if the default world exists and is smaller than `count`."""
        if is_initialized():
            _check_size(count, default_group().size())

    def rank(self) -> int:
        return get_rank()

    def make_groups(self, rows: list[list[int]], desc: str, override: Override) -> Any:
        """Create a group per row; all ranks call this. Return this rank's group name, or None."""
        backend, options = override
        pg = default_group()
        if len(rows[0]) == pg.size() and override == DEFAULT_OVERRIDE:
            return pg.group_name
        timeout = None if options is None else options._timeout
        if _is_bound_to_gpu(pg, backend):  # one NCCL call creates the groups of all rows
            own_group = split_group(split_ranks=rows, timeout=timeout, pg_options=options, group_desc=desc, backend=backend)
            return None if own_group is None else own_group.group_name
        groups = [new_group(row, timeout, backend, options, group_desc=desc) for row in rows]
        return next((group.group_name for group in groups if not is_non_member(group)), None)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    def __hash__(self) -> int:
        return 0


def _is_bound_to_gpu(pg: Any, backend: str | None) -> bool:
    device = pg.bound_device_id
    return device is not None and (backend is None or pg._get_backend(device_type_of(device)).name() == backend)


def _check_size(count: int, size: int) -> None:
    if count > size:
        raise RuntimeError(f"Mesh should not be bigger than default world size {size}, but found {count} ranks!")


class WorldGroups:
    """Source of ranks: a World. The groups of a mesh are split from the World."""

    def __init__(self, world: World) -> None:
        self._world = world

    def check_size(self, count: int) -> None:
        _check_size(count, self._world.size)

    initialize = check_size

    def rank(self) -> int:
        return self._world.rank

    def make_groups(self, rows: list[list[int]], desc: str, override: Override) -> Any:
        if override != DEFAULT_OVERRIDE:
            raise ValueError(f"{desc}: a mesh of a World has no backend to override: got {override}, expected None")
        own_row = next((row for row in rows if self._world.rank in row), None)
        if own_row is None or len(own_row) == self._world.size:
            return None if own_row is None else self._world
        return self._world.split(sorted(own_row), desc)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WorldGroups) and other._world is self._world

    def __hash__(self) -> int:
        return id(self._world)


class ExistingGroups:
    """Source of ranks: the Worlds given for a mesh. Raises if the mesh needs other groups."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def rank(self) -> int:
        return self._rank

    def make_groups(self, rows: list[list[int]], desc: str, override: Override) -> Any:
        raise RuntimeError(
            f"{desc}: a mesh of several Worlds cannot create groups of other ranks; "
            "create it by init_device_mesh(..., world=...) with a World of all ranks"
        )


GroupSource = DefaultWorldGroups | WorldGroups | ExistingGroups


def is_world(group: Any) -> bool:
    return isinstance(group, _core.Group)
