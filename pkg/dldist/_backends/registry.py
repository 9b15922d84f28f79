"""The state of module-level calls, the only global state: the default world and groups."""

from __future__ import annotations

import os
import sys
from _thread import _local, allocate_lock
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dldist import _core
from dldist._base import argument_names

if TYPE_CHECKING:
    from dldist._backends.process_group import ProcessGroup

GroupName = str
"""The type of a group's name in c10d."""

NON_GROUP_MEMBER = -100

NOT_INITIALIZED = "Default process group has not been initialized, please make sure to call init_process_group."


_are_threads_isolated = False


def set_thread_isolation_mode(enable: bool) -> None:
    """Give each thread its own named groups, for tests whose ranks are threads."""
    global _are_threads_isolated
    _are_threads_isolated = bool(enable)


def hash_ranks(ranks: Sequence[int], count: int) -> str:
    """Return a name for the next group of these ranks, after `count` groups of the same ranks."""
    from hashlib import sha1

    return sha1("_".join(map(str, [*ranks, count])).encode(), usedforsecurity=False).hexdigest()


class Registry:
    """The default world and every group made from it: c10d's `_world`, with its attributes.

    A group is a key of `pg_map` until it is destroyed.
    """

    def __init__(self) -> None:
        self._default_pg: ProcessGroup | None = None
        self.operations: Any = None
        """The object that runs the default world's operations, for module-level calls."""
        self._names: dict[str, ProcessGroup] = {}
        self._thread_local = _local()
        self._lock = allocate_lock()
        self.clear()

    def clear(self) -> None:
        """Reset the state to before init_process_group."""
        self.default_pg = None
        self.init_method: str | None = None
        """The argument init_method of init_process_group."""
        self.pg_map: dict[ProcessGroup, tuple[str, Any]] = {}
        self.pg_names: dict[ProcessGroup, str] = {}
        self.pg_group_ranks: dict[ProcessGroup, dict[int, int]] = {}
        self.pg_backend_config: dict[ProcessGroup, str] = {}
        self.pg_to_tag: dict[ProcessGroup, str] = {}
        self.tags_to_pg: dict[str, list[ProcessGroup]] = {}
        self._by_name.clear()
        self.coalescing: dict[Any, Callable[[], list[Any]]] = {}
        """Groups in a _coalescing_manager, each with a function that lists its recorded calls."""
        self.group_count = 0
        """Number of groups that this process has created or tried to create."""
        self.shared_count = 0
        """Number of groups that all ranks of the default world create or count."""
        self.member_counts: dict[tuple[int, ...], int] = {}
        """Number of groups that only their members create, by list of ranks."""

    @property
    def default_pg(self) -> ProcessGroup | None:
        """The group of all ranks, or None before init_process_group."""
        return self._default_pg

    @default_pg.setter
    def default_pg(self, group: ProcessGroup | None) -> None:
        self._default_pg = group
        self.pid = os.getpid()
        self.operations = None if group is None else group.operations
        compiled = sys.modules.get("dldist.functional.jax")
        if compiled is not None:
            compiled.follow_default_world(self.operations)

    def count_group(self) -> None:
        """Count a group of other ranks, so that names of later groups are the same on all ranks."""
        with self._lock:
            self.group_count += 1

    def next_name(self) -> str:
        """Return a name for a group that all ranks create or count, in the same order."""
        with self._lock:
            self.group_count += 1
            self.shared_count += 1
            return str(self.shared_count - 1)

    def next_member_name(self, ranks: Sequence[int]) -> str:
        """Return a name for a group that only its members create."""
        key = tuple(ranks)
        with self._lock:
            self.group_count += 1
            count = self.member_counts.get(key, 0)
            self.member_counts[key] = count + 1
        return hash_ranks(ranks, count)

    def add(
        self,
        group: ProcessGroup,
        *,
        name: str,
        backend: str,
        config: str,
        store: _core.Store | None,
        ranks: list[int],
        tag: str | None,
    ) -> None:
        """Add a new group; `ranks` has its global ranks in group order."""
        self.name_group(name, group)  # raises if another group has this name
        self.pg_map[group] = (backend, store)
        self.pg_names[group] = name
        self.pg_group_ranks[group] = {rank: index for index, rank in enumerate(ranks)}
        self.pg_backend_config[group] = config
        if tag:
            tag = f"user:{tag}"
        else:
            tag = f"ptd:{name}"
            self.tags_to_pg.setdefault("", []).append(group)
        self.tags_to_pg.setdefault(tag, []).append(group)
        self.pg_to_tag[group] = tag

    def remove(self, group: ProcessGroup) -> None:
        """Remove a group that is being destroyed. ValueError if another thread has removed it."""
        if self.pg_map.pop(group, None) is None:
            raise ValueError("Invalid process group specified")
        self.unname_group(self.pg_names[group])
        for tag in (self.pg_to_tag[group], ""):
            tagged = self.tags_to_pg.get(tag, [])
            if group in tagged:
                tagged.remove(group)
        for table in (self.pg_names, self.pg_group_ranks, self.pg_backend_config, self.pg_to_tag):
            del table[group]

    def newest_first(self) -> list[ProcessGroup]:
        """List all groups in the order to end them: newest first, the default group last."""
        return list(self.pg_names)[::-1]  # list() copies atomically, as threads may add groups

    @property
    def _by_name(self) -> dict[str, ProcessGroup]:
        """The groups by name; only this thread's groups if threads are isolated."""
        return vars(self._thread_local).setdefault("names", {}) if _are_threads_isolated else self._names

    def name_group(self, name: str, pg: ProcessGroup) -> None:
        """Give a group a name, by which resolve() finds it."""
        with self._lock:
            if name in self._by_name:
                raise RuntimeError(f"A process group is already registered under the name {name!r}; use another name")
            self._by_name[name] = pg

    def unname_group(self, name: str) -> None:
        """Remove a name. Does nothing if it is unknown."""
        self._by_name.pop(name, None)

    def unname_all(self) -> None:
        """Remove all names."""
        self._by_name.clear()

    def is_named(self, name: str) -> bool:
        """Return True if a group has this name."""
        return name in self._by_name

    def resolve(self, name: str) -> ProcessGroup:
        """Return the group of this name. Raise RuntimeError if there is none."""
        group = self._by_name.get(name)
        if group is None:
            raise RuntimeError(f"Could not resolve the process group registered under the name {name!r}")
        return group

    @property
    def pg_coalesce_state(self) -> dict[Any, list[Any]]:
        """The recorded calls of each group that is in a _coalescing_manager."""
        return {group: list_calls() for group, list_calls in self.coalescing.items()}

    @property
    def pg_config_info(self) -> list[dict[str, Any]]:
        """The name, description, backends, ranks and size of every group."""
        total = self.default_pg.size() if self.default_pg is not None else -1
        return [self.describe(group, total) for group in list(self.pg_map)]

    def describe(self, group: ProcessGroup, total: int) -> dict[str, Any]:
        ranks = list(self.pg_group_ranks[group])
        return {
            "pg_name": self.pg_names[group],
            "pg_desc": group.group_desc,
            "backend_config": self.pg_backend_config[group],
            # Like c10d, omit the ranks if the group has all ranks of the world.
            "ranks": ranks if len(ranks) != total else [],
            "group_size": len(ranks),
            "group_count": self.group_count,
        }


_world = Registry()


class _HasWorld(type):
    """The metaclass of classes that have WORLD, the current default group."""

    @property
    def WORLD(cls) -> ProcessGroup | None:
        return _world.default_pg

    @WORLD.setter
    def WORLD(cls, group: ProcessGroup | None) -> None:
        _world.default_pg = group


class group(metaclass=_HasWorld):
    """Namespace: group.WORLD is the default group, or None before init_process_group."""


class GroupMember(metaclass=_HasWorld):
    """Namespace: WORLD is the default group; new_group returns NON_GROUP_MEMBER to non-members."""

    NON_GROUP_MEMBER = NON_GROUP_MEMBER


def default_group() -> ProcessGroup:
    """Return the default group. Raises ValueError before init_process_group."""
    pg = _world.default_pg
    if pg is None:
        raise ValueError(NOT_INITIALIZED)
    return pg


def operations(group: Any = None) -> Any:
    """Return the object, with dldist.Group's methods and ranks, that runs a group's operations.

    `group` is a c10d group or backend, a dldist.Group (returned itself), or None (the default).
    """
    if group is None:
        calls = _world.operations
        if calls is None:
            raise ValueError(NOT_INITIALIZED)
        return calls
    if isinstance(group, _core.Group):
        return group
    # A backend has _operations, all other groups have operations.
    calls = getattr(group, "operations", None) or getattr(group, "_operations", None)
    if calls is None:
        if type(group) is int and group == NON_GROUP_MEMBER:
            raise ValueError(f"{argument_names.title('group')}: Invalid process group specified: this process is not a member of the group")
        got = argument_names.type_name(group)
        raise _core.DistTypeError(f"{argument_names.title('group')}: Invalid process group specified: got {got}, expected a group")
    return calls
