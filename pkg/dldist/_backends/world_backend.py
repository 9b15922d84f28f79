"""Backends over a World, with methods to create, split, merge and shut down."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Self

from dldist import _core
from dldist._backends.group_backend import GroupBackend
from dldist._backends.process_group import ProcessGroup
from dldist._base.argument_names import read_ranks
from dldist._windows.window import Window
from dldist.world import CLOSE_TIMEOUT_S, World


class WorldBackend(GroupBackend):
    """A backend whose `group` is a World. Subclasses set the name and options."""

    supports_window = True

    _name: str
    """The backend's name."""
    group: Any
    """The World that runs the calls, or None before reconfigure()."""

    def _create_group(self, store: _core.Store, opts: Any) -> World | None:
        return self._join(store, self._rank, self._size, opts._timeout, self._name)

    @classmethod
    def _join(cls, store: _core.Store | None, rank: int, size: int, timeout: timedelta, label: str) -> World:
        """Create the World; `store` is used for the rendezvous of its ranks."""
        if size == 1:
            store = _core.HashStore()
        return cls._prepare_world(World(store, rank, size, timeout=timeout, name=label))

    @classmethod
    def _split_world(cls, group: _core.Group, ranks: list[int], label: str | None, timeout: timedelta | None) -> World:
        """Split off a World that can outlive `group`, as c10d's groups live until destroyed."""
        return cls._prepare_world(_core.Group.split(group, ranks, label, timeout))  # type: ignore[arg-type]

    @classmethod
    def _prepare_world(cls, group: World) -> World:
        """Add what the backend needs to a new group, and return the group."""
        return group

    @classmethod
    def _make(
        cls,
        store: _core.Store | None,
        pg: ProcessGroup,
        timeout: timedelta,
        source: tuple[_core.Group, list[int]] | None,
        ranks: list[int],
    ) -> Self:
        """Create a new group's backend: split off `source` if given, else created via the store."""
        desc = pg.group_desc
        label = "default" if desc == "default_pg" else pg.group_name if desc in ("", "undefined") else desc
        if source is not None:
            group = cls._split_world(source[0], source[1], label, timeout)
        else:
            group = cls._join(store, pg.rank(), pg.size(), timeout, label)
        group._describe(pg.group_name, desc, ranks)
        return cls._from_group(group, cls.Options()._set_identity(timeout, ranks, pg.group_name))

    def getBackendName(self) -> str:
        return self._name

    def shutdown(self) -> None:
        if self.group is not None:
            close(self.group, CLOSE_TIMEOUT_S)

    def new_window(self, tensor: Any = None) -> Window:
        return Window(self._require_group(), tensor)

    def split(self, store: _core.Store | None, ranks: list[int], opts: Any = None) -> Self | None:
        """Create a backend for some of the ranks. Only its members must call this."""
        group = self._require_group()
        ranks = read_ranks(ranks, self._size)
        if self._rank not in ranks and len(ranks) <= self._size:
            return None
        group_part = self._split_world(group, ranks, None, None if opts is None else opts._timeout)
        name = "" if opts is None else opts.group_name
        return self._from_group(group_part, self.Options()._set_identity(group_part.timeout, ranks, name))

    def merge(self, store: _core.Store, opts: Any, rank: int, size: int) -> Self:
        """Create a backend of these and other ranks, which must all call this with one `store`."""
        return type(self)(store, rank, size, self.options._timeout if opts is None else opts._timeout)


def close(group: World, timeout_s: float) -> None:
    try:
        group.close(timeout_s)
    except _core.DistTimeoutError as error:
        import logging

        # Waiters for the unfinished works also receive an error, but there may be none.
        logging.getLogger("dldist").warning("%s", error)


def world_of_group(pg: ProcessGroup) -> World | None:
    """Return the World of a process group, or None if its CPU backend is not dldist's."""
    backend = pg._backend_of_device("cpu")
    backend = getattr(backend, "wrapped_pg", backend)
    return backend.group if isinstance(backend, WorldBackend) else None
