"""c10d's private functions and constants that need nothing but the registry and a group's backend. Imported when first used."""

from __future__ import annotations

from datetime import timedelta

from dldist import _core
from dldist.c10d import registry
from dldist.c10d.groups import _nccl_behind, get_backend_impl
from dldist.c10d.maker import default_timeout
from dldist.c10d.names import is_nccl_available, warn
from dldist.c10d.options import ReconfigureOptions
from dldist.c10d.ranks import get_global_rank, get_world_size
from dldist.c10d.registry import default_group

TYPE_CHECKING = False  # typing takes longer to import than all of this package
if TYPE_CHECKING:
    from typing import Any

    from dldist.c10d.process_group import ProcessGroup

_GLOO_AVAILABLE = True
_MPI_AVAILABLE = _UCC_AVAILABLE = _XCCL_AVAILABLE = False

_DEFAULT_FIRST_BUCKET_BYTES = 1 << 20

default_pg_timeout = _DEFAULT_PG_TIMEOUT = default_timeout("gloo")
_DEFAULT_NO_TIMEOUT = timedelta()

_WorldMeta = type(registry.group)


# ---- what depends on the moment

# c10d's names, outside of its registry, for what is in it.
_OF_REGISTRY = {"_pg_map", "_pg_names", "_pg_group_ranks", "_pg_backend_config", "_pg_to_tag", "_tags_to_pg", "_group_count"}


def __getattr__(name: str) -> Any:
    world = registry._world
    if name in _OF_REGISTRY:
        return getattr(world, name[1:])
    if name == "_default_pg_init_method":
        return world.init_method
    if name == "_backend":
        return None if world.default_pg is None else world.pg_map[world.default_pg][0]
    if name == "_NCCL_AVAILABLE":
        return is_nccl_available()
    if name == "default_pg_nccl_timeout":
        return default_timeout("nccl") if is_nccl_available() else None
    if name == "ProcessGroupNCCL" and is_nccl_available():
        from dldist.c10d.nccl import ProcessGroupNCCL

        return ProcessGroupNCCL
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# ---- the registry


def _get_default_store() -> _core.Store:
    """The store of the default group."""
    return _get_process_group_store(default_group())


def _get_process_group_store(pg: ProcessGroup) -> _core.Store:
    """The store of a group."""
    return registry._world.pg_map[pg][1]  # type: ignore[no-any-return]


def _get_process_group_name(pg: ProcessGroup) -> str:
    """The name of a group; "None" of one that is not known."""
    return registry._world.pg_names.get(pg, "None")


def _get_global_rank(group: Any, rank: int) -> int:
    """Deprecated name of get_global_rank."""
    warn("_get_global_rank is deprecated, please use get_global_rank instead", FutureWarning)
    return get_global_rank(group, rank)


def _register_process_group(name: str, pg: ProcessGroup) -> None:
    """Have _resolve_process_group() find a group by this name."""
    registry._world.name_group(name, pg)


def _unregister_process_group(name: str) -> None:
    """Forget a name; one that is not known is fine."""
    registry._world.unname_group(name)


def _unregister_all_process_groups() -> None:
    """Forget all names."""
    registry._world.unname_all()


def _resolve_process_group(name: str) -> ProcessGroup:
    """The group of this name."""
    return registry._world.resolve(name)


def _add_ephemeral_timeout_for_all_pgs(timeout: timedelta) -> None:
    """Give what is called in all groups of NCCL from now on so much more time, on this rank, until one of its operations has ended."""
    for pg in registry._world.pg_map:
        backend = _nccl_behind(pg)
        if backend is not None:
            backend._add_ephemeral_timeout(timeout)


def _get_group_size(group: Any) -> int:
    """The size of a group."""
    return get_world_size(group)


def _get_group_tag(pg: ProcessGroup) -> str:
    """The tag of a group; "" where it was given none."""
    tag = registry._world.pg_to_tag[pg]
    return tag.removeprefix("user:") if tag.startswith("user:") else ""


# ---- groups whose members change, and windows


def _supports_reconfigure(group: Any = None) -> bool:
    """Whether the members of the group can be exchanged."""
    return get_backend_impl(group).supports_reconfigure


def _get_reconfigure_handle(group: Any = None) -> Any:
    """What the others need to know of this process for _reconfigure()."""
    return get_backend_impl(group).get_reconfigure_handle()


def _reconfigure(
    uuid: int, handles: Any, timeout: timedelta | None = None, hints: dict[str, str] | None = None, group: Any = None
) -> Any:
    """Make the group one of the processes of these handles: a list has them in the order of ranks, a set in none."""
    opts = ReconfigureOptions()
    opts.uuid, opts.handles = uuid, handles
    if timeout is not None:
        opts.timeout = timeout
    if hints is not None:
        opts.hints = hints
    return get_backend_impl(group).reconfigure(opts)


def _supports_window(group: Any = None) -> bool:
    """Whether ranks can write into each other's memory."""
    return get_backend_impl(group).supports_window


def _new_window(tensor: Any = None, group: Any = None) -> Any:
    """Memory of every rank that the others put into. All ranks call it."""
    return get_backend_impl(group).new_window(tensor)
