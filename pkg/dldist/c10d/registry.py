"""What the module-level calls know: the default world and the groups made from it. The only global state there is."""

from __future__ import annotations

from _thread import allocate_lock

from dldist import _core

TYPE_CHECKING = False  # typing takes longer to import than all of this package
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from dldist.c10d.coalescing import _CollOp
    from dldist.c10d.process_group import ProcessGroup

__all__ = ["GroupMember", "group"]

NON_GROUP_MEMBER = -100

NOT_INITIALIZED = "Default process group has not been initialized, please make sure to call init_process_group."


def hash_of_ranks(ranks: Sequence[int], count: int) -> str:
    """A name for the group of these ranks of which there are `count` already."""
    from hashlib import sha1

    return sha1("_".join(map(str, [*ranks, count])).encode(), usedforsecurity=False).hexdigest()


class Registry:
    """The default world, and every group that was made from it: c10d's `_world`.

    Attributes are c10d's. A group is a key of `pg_map` for as long as it has not been destroyed.
    """

    def __init__(self) -> None:
        self._default_pg: ProcessGroup | None = None
        self.operations: Any = None
        """The calls of the default world, which is where the module-level ones go without a look at anything else."""
        self._by_name: dict[str, ProcessGroup] = {}
        self._counting = allocate_lock()
        self.forget_all()

    def forget_all(self) -> None:
        """As when nothing was ever initialised."""
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
        self.coalescing: dict[Any, Any] = {}
        """The groups inside of a _coalescing_manager, and what records their calls."""
        self.group_count = 0
        """How many groups have been made or attempted."""
        self.shared_count = 0
        """How many of them all ranks know of."""
        self.own_counts: dict[tuple[int, ...], int] = {}
        """How many of the others there were of each list of ranks."""

    @property
    def default_pg(self) -> ProcessGroup | None:
        """The group of all ranks, or None."""
        return self._default_pg

    @default_pg.setter
    def default_pg(self, group: ProcessGroup | None) -> None:
        self._default_pg = group
        self.operations = None if group is None else group.operations

    # ---- the names of groups to come

    def next_name(self) -> str:
        """The name of the next group of those that all ranks make, or count: they do it in the same order."""
        with self._counting:
            self.group_count += 1
            self.shared_count += 1
            return str(self.shared_count - 1)

    def next_name_of(self, ranks: Sequence[int]) -> str:
        """The name of the next group that its members make, who need not agree with the others on anything."""
        key = tuple(ranks)
        with self._counting:
            self.group_count += 1
            count = self.own_counts.get(key, 0)
            self.own_counts[key] = count + 1
        return hash_of_ranks(ranks, count)

    # ---- the groups there are

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
        """Note a group that has been made; `ranks` are the global ones, in the order of the group's."""
        self.name_group(name, group)  # which may refuse
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
        """A group that has been destroyed, once: of two threads that do it one gets the error."""
        if self.pg_map.pop(group, None) is None:
            raise ValueError("Invalid process group specified")
        self.unname_group(self.pg_names[group])
        tag = self.pg_to_tag[group]
        for known in {tag, ""} & self.tags_to_pg.keys():
            if group in self.tags_to_pg[known]:
                self.tags_to_pg[known].remove(group)
        for of_group in (self.pg_names, self.pg_group_ranks, self.pg_backend_config, self.pg_to_tag):
            del of_group[group]

    def newest_first(self) -> list[ProcessGroup]:
        """The order in which all groups are ended: the default one last."""
        return list(reversed(self.pg_names))

    # ---- by name

    def name_group(self, name: str, group: ProcessGroup) -> None:
        if name in self._by_name:
            raise RuntimeError(f"A process group is already registered under the name {name!r}")
        self._by_name[name] = group

    def unname_group(self, name: str) -> None:
        self._by_name.pop(name, None)

    def unname_all(self) -> None:
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
    def pg_coalesce_state(self) -> dict[Any, list[_CollOp]]:
        """The groups inside of a _coalescing_manager, and which calls have been noted of each."""
        from dldist.c10d.coalescing import noted_of

        return {group: noted_of(recording) for group, recording in self.coalescing.items()}

    @property
    def pg_config_info(self) -> list[dict[str, Any]]:
        """Name, description, backends, ranks and size of every group."""
        total = self.default_pg.size() if self.default_pg is not None else -1
        return [self.describe(group, total) for group in self.pg_map]

    def describe(self, group: ProcessGroup, total: int) -> dict[str, Any]:
        ranks = list(self.pg_group_ranks[group])
        return {
            "pg_name": self.pg_names[group],
            "pg_desc": group.group_desc,
            "backend_config": self.pg_backend_config[group],
            # c10d leaves out what is obvious.
            "ranks": ranks if len(ranks) != total else [],
            "group_size": len(ranks),
            "group_count": self.group_count,
        }


_world = Registry()


class _HasWorld(type):
    """The attribute WORLD of a class: the default group, whatever it is at the moment."""

    @property
    def WORLD(cls) -> ProcessGroup | None:
        return _world.default_pg

    @WORLD.setter
    def WORLD(cls, group: ProcessGroup | None) -> None:
        _world.default_pg = group


class group(metaclass=_HasWorld):
    """group.WORLD is the default group, None before init_process_group."""


class GroupMember(metaclass=_HasWorld):
    """GroupMember.WORLD is the default group; NON_GROUP_MEMBER what new_group gives to those who are not in the group."""

    NON_GROUP_MEMBER = NON_GROUP_MEMBER


def default_group() -> ProcessGroup:
    """The default group; a ValueError before init_process_group."""
    pg = _world.default_pg
    if pg is None:
        raise ValueError(NOT_INITIALIZED)
    return pg


def operations(group: Any = None) -> Any:
    """What runs the operations of a group (methods as those of dldist.Group, group ranks): of the default world, of a group or a
    backend of c10d, or the dldist.Group itself."""
    if group is None:
        calls = _world.operations
        if calls is None:
            raise ValueError(NOT_INITIALIZED)
        return calls
    if isinstance(group, _core.Group):
        return group
    calls = getattr(group, "operations", None)
    if calls is None:
        if type(group) is int and group == NON_GROUP_MEMBER:
            raise ValueError("Invalid process group specified: this process is not a member of the group")
        from dldist.c10d.backend_base import Backend

        if isinstance(group, Backend):
            from dldist.c10d.dispatch import BackendCalls

            # The same each time: coalescing leaves a note in it.
            calls = vars(group).get("_calls_as_group")
            return vars(group).setdefault("_calls_as_group", BackendCalls(group)) if calls is None else calls
        raise _core.DistTypeError(f"Invalid process group specified: {type(group).__name__} is no group")
    return calls
