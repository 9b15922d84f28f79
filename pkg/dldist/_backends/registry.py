"""The state of the module-level calls: the default world and the groups made from it. There is no other global state."""

from __future__ import annotations

import sys
from _thread import _local, allocate_lock
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dldist import _core

if TYPE_CHECKING:
    from dldist._backends.process_group import ProcessGroup

GroupName = str
"""What c10d calls the name of a group."""

NON_GROUP_MEMBER = -100

NOT_INITIALIZED = "Default process group has not been initialized, please make sure to call init_process_group."


_are_threads_isolated = False


def set_thread_isolation_mode(enable: bool) -> None:
    """Have every thread find the groups alone, by their names, that it has made: for tests whose ranks are threads."""
    global _are_threads_isolated
    _are_threads_isolated = bool(enable)


def hash_of_ranks(ranks: Sequence[int], count: int) -> str:
    """A name for the group of these ranks of which there are `count` already."""
    from hashlib import sha1

    return sha1("_".join(map(str, [*ranks, count])).encode(), usedforsecurity=False).hexdigest()


class Registry:
    """The default world, and every group that was made from it: c10d's `_world`.

    The attributes are c10d's. A group is a key of `pg_map` until it is destroyed.
    """

    def __init__(self) -> None:
        self._default_pg: ProcessGroup | None = None
        self.operations: Any = None
        """The calls of the default world. Module-level calls go straight to them."""
        self._names: dict[str, ProcessGroup] = {}
        self._of_thread = _local()
        self._lock = allocate_lock()
        self.forget_all()

    def forget_all(self) -> None:
        """Return to the state before any initialisation."""
        self.default_pg = None
        self.init_method: str | None = None
        """What init_process_group was given."""
        self.pg_map: dict[ProcessGroup, tuple[str, Any]] = {}
        self.pg_names: dict[ProcessGroup, str] = {}
        self.pg_group_ranks: dict[ProcessGroup, dict[int, int]] = {}
        self.pg_backend_config: dict[ProcessGroup, str] = {}
        self.pg_to_tag: dict[ProcessGroup, str] = {}
        self.tags_to_pg: dict[str, list[ProcessGroup]] = {}
        self._by_name.clear()
        self.coalescing: dict[Any, Callable[[], list[Any]]] = {}
        """The groups inside of a _coalescing_manager, and a function for each that lists its calls so far."""
        self.group_count = 0
        """The number of groups that this process has made or tried to make."""
        self.shared_count = 0
        """The number of them that all ranks know of."""
        self.own_counts: dict[tuple[int, ...], int] = {}
        """The number of the others, for each list of ranks."""

    @property
    def default_pg(self) -> ProcessGroup | None:
        """The group of all ranks, or None."""
        return self._default_pg

    @default_pg.setter
    def default_pg(self, group: ProcessGroup | None) -> None:
        self._default_pg = group
        self.operations = None if group is None else group.operations
        compiled = sys.modules.get("dldist.functional.jax")
        if compiled is not None:
            compiled.follow_default_world(self.operations)

    # ---- the names of future groups

    def count_group(self) -> None:
        """Count a group that this process is no member of, and that takes no name."""
        with self._lock:
            self.group_count += 1

    def next_name(self) -> str:
        """The name of the next group that all ranks make, or at least count. They all do so in the same order."""
        with self._lock:
            self.group_count += 1
            self.shared_count += 1
            return str(self.shared_count - 1)

    def next_name_of(self, ranks: Sequence[int]) -> str:
        """The name of the next group that only its members make. They need not agree with other ranks on anything."""
        key = tuple(ranks)
        with self._lock:
            self.group_count += 1
            count = self.own_counts.get(key, 0)
            self.own_counts[key] = count + 1
        return hash_of_ranks(ranks, count)

    # ---- existing groups

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
        """Enter a group that has been made; `ranks` are its global ranks, in the order of the group's."""
        self.name_group(name, group)  # raises if the name is taken
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

    def forget(self, group: ProcessGroup) -> None:
        """Remove a group that is being destroyed. If two threads destroy it, one of them gets the error."""
        if self.pg_map.pop(group, None) is None:
            raise ValueError("Invalid process group specified")
        self.unname_group(self.pg_names[group])
        for tag in (self.pg_to_tag[group], ""):
            tagged = self.tags_to_pg.get(tag, [])
            if group in tagged:
                tagged.remove(group)
        for of_group in (self.pg_names, self.pg_group_ranks, self.pg_backend_config, self.pg_to_tag):
            del of_group[group]

    def newest_first(self) -> list[ProcessGroup]:
        """All groups in the order in which they are ended: the default group comes last."""
        return list(self.pg_names)[::-1]  # list() copies the dict in one step; reversed() would fail if a thread added a group

    # ---- by name

    @property
    def _by_name(self) -> dict[str, ProcessGroup]:
        """The groups by name; where threads are isolated, this thread's own."""
        return vars(self._of_thread).setdefault("names", {}) if _are_threads_isolated else self._names

    def name_group(self, name: str, pg: ProcessGroup) -> None:
        """Have resolve() find a group by this name."""
        with self._lock:
            if name in self._by_name:
                raise RuntimeError(f"A process group is already registered under the name {name!r}")
            self._by_name[name] = pg

    def unname_group(self, name: str) -> None:
        """Forget a name; one that is not known is fine."""
        self._by_name.pop(name, None)

    def unname_all(self) -> None:
        """Forget all names."""
        self._by_name.clear()

    def is_named(self, name: str) -> bool:
        """Whether there is a group of this name."""
        return name in self._by_name

    def resolve(self, name: str) -> ProcessGroup:
        """The group of this name."""
        group = self._by_name.get(name)
        if group is None:
            raise RuntimeError(f"Could not resolve the process group registered under the name {name!r}")
        return group

    @property
    def pg_coalesce_state(self) -> dict[Any, list[Any]]:
        """The groups inside of a _coalescing_manager, and which calls have been noted of each."""
        return {group: noted_calls() for group, noted_calls in self.coalescing.items()}

    @property
    def pg_config_info(self) -> list[dict[str, Any]]:
        """Name, description, backends, ranks and size of every group."""
        total = self.default_pg.size() if self.default_pg is not None else -1
        return [self.describe(group, total) for group in list(self.pg_map)]

    def describe(self, group: ProcessGroup, total: int) -> dict[str, Any]:
        ranks = list(self.pg_group_ranks[group])
        return {
            "pg_name": self.pg_names[group],
            "pg_desc": group.group_desc,
            "backend_config": self.pg_backend_config[group],
            # Like c10d, leave out the ranks if they are all ranks.
            "ranks": ranks if len(ranks) != total else [],
            "group_size": len(ranks),
            "group_count": self.group_count,
        }


_world = Registry()


class _HasWorld(type):
    """Gives a class the attribute WORLD, which is always the current default group."""

    @property
    def WORLD(cls) -> ProcessGroup | None:
        return _world.default_pg

    @WORLD.setter
    def WORLD(cls, group: ProcessGroup | None) -> None:
        _world.default_pg = group


class group(metaclass=_HasWorld):
    """group.WORLD is the default group, None before init_process_group."""


class GroupMember(metaclass=_HasWorld):
    """GroupMember.WORLD is the default group. NON_GROUP_MEMBER is what new_group returns on ranks that are not in the group."""

    NON_GROUP_MEMBER = NON_GROUP_MEMBER


def default_group() -> ProcessGroup:
    """The default group. Raises ValueError before init_process_group."""
    pg = _world.default_pg
    if pg is None:
        raise ValueError(NOT_INITIALIZED)
    return pg


def operations(group: Any = None) -> Any:
    """The object that runs the operations of a group, with methods like those of dldist.Group, and with group ranks.

    `group` is a group or a backend of c10d, a dldist.Group, which is returned itself, or None for the default world.
    """
    if group is None:
        calls = _world.operations
        if calls is None:
            raise ValueError(NOT_INITIALIZED)
        return calls
    if isinstance(group, _core.Group):
        return group
    calls = getattr(group, "operations", None) or getattr(group, "_operations", None)  # the latter of a backend
    if calls is None:
        if type(group) is int and group == NON_GROUP_MEMBER:
            raise ValueError("Invalid process group specified: this process is not a member of the group")
        raise _core.DistTypeError(f"Invalid process group specified: {type(group).__name__} is not a group")
    return calls
