"""c10d's private questions about groups: which devices, which backends, which ranks."""

from __future__ import annotations

from dldist.c10d import groups, registry
from dldist.c10d.backend_base import Backend
from dldist.c10d.names import warn
from dldist.c10d.process_group import ProcessGroup
from dldist.c10d.ranks import get_process_group_ranks, group_or_default

TYPE_CHECKING = False  # typing takes longer to import than all of this package
if TYPE_CHECKING:
    from typing import Any


# ---- devices, by the names of their types


def _device_capability(group: Any = None) -> list[str]:
    """The types of device that a group serves."""
    return list(group_or_default(group)._device_types)


def _preferred(kinds: list[str]) -> str:
    """The CPU where it is among several: objects are in its memory."""
    return "cpu" if "cpu" in kinds else kinds[0]


def _get_object_coll_device(group: Any = None) -> str:
    """The type of device of the tensors that a library puts objects into, to send them by a group; the object collectives find
    their way through any."""
    pg = group_or_default(group)
    if isinstance(pg, ProcessGroup):
        return _preferred(pg._device_types or ["cpu"])
    return "cuda" if _is_nccl(pg) else "cpu"


def _get_pg_default_device(group: Any = None) -> str:
    """Deprecated: the type of device that a group serves."""
    warn("_get_pg_default_device is deprecated: ask _get_object_coll_device or _device_capability", UserWarning)
    pg = group_or_default(group)
    if not isinstance(pg, ProcessGroup):
        return _get_object_coll_device(pg)
    kinds = pg._device_types
    if not kinds:
        raise RuntimeError("Default device not found, because no backend has been registered with this ProcessGroup.")
    if len(kinds) > 1:
        warn(f"The group serves {', '.join(kinds)}, and none of them is the default: {_preferred(kinds)} is taken.", UserWarning)
    return _preferred(kinds)


# ---- NCCL


def _is_nccl(backend: Any) -> bool:
    from dldist.c10d.nccl import ProcessGroupNCCL

    return isinstance(backend, ProcessGroupNCCL)


def _get_process_group_uid(pg: Any) -> Any:
    """What tells a group of NCCL from others; -1 of one without NCCL."""
    backend = groups._nccl_behind(pg)
    return -1 if backend is None else backend.uid


def _is_safe_to_split() -> bool:
    """Whether the default group is bound to a device, so that its communicators are there."""
    return registry.default_group().bound_device_id is not None


def _get_split_source(pg: Any) -> Any:
    """The backend that others are split off from: that of the device which the group is bound to, or of the default group's GPU."""
    device = pg.bound_device_id or ("cuda" if pg is registry._world.default_pg else None)
    backend = None if device is None else pg._backend_of_device(groups.device_type_of(device))
    if backend is None or not backend.supports_splitting:
        return None
    return getattr(backend, "wrapped_pg", backend)


# ---- who is in it


def _get_pg_config(group: Any = None) -> dict[str, Any]:
    """Name, description, backends, size and ranks of a group."""
    pg = group_or_default(group)
    return {
        "pg_name": registry._world.pg_names.get(pg, "None"),
        "pg_desc": pg.group_desc,
        "backend_config": groups.get_backend_config(pg),
        "pg_size": pg.size(),
        "ranks": get_process_group_ranks(pg),
    }


def _get_all_pg_configs() -> list[dict[str, Any]]:
    return [_get_pg_config(pg) for pg in registry._world.pg_map]


def _get_group_size_by_name(group_name: str | ProcessGroup | Backend) -> int:
    """The size of a group, of its name or of the group itself."""
    group: Any = registry._world.resolve(group_name) if isinstance(group_name, str) else group_name
    return int(group.size())


def _resolve_group_name_by_ranks_and_tag(ranks: list[int], tag: str) -> str:
    group = groups._find_pg_by_ranks_and_tag(tag, ranks)
    if group is None:
        raise ValueError(f"there is no group of the ranks {ranks} with the tag {tag!r}")
    return group.group_name
