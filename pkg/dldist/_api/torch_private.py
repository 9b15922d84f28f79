"""c10d's private names: constants, queries, creation of groups, checks. Imported on demand."""

from __future__ import annotations

from _thread import _local
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from dldist import _core
from dldist._api.group_factory import GroupFactory
from dldist._api.groups import (
    _check_device_id,
    _find_pg_by_ranks_and_tag,
    _nccl_backend,
    _nccl_split,
    _new_group_with_tag,
    _skip_nccl_split,
    get_backend_config,
    get_backend_impl,
)
from dldist._api.p2p import _check_single_tensor
from dldist._api.ranks import (
    canonical_rank,
    check_not_self,
    get_global_rank,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    global_rank_of,
    group_or_default,
    is_non_member,
)
from dldist._backends import nccl, registry
from dldist._backends.backend_base import Backend as BackendImpl
from dldist._backends.backend_names import BackendConfig, default_timeout, device_type_of, is_backend_available, is_nccl_available, warn
from dldist._backends.process_group import ProcessGroup
from dldist._backends.registry import NON_GROUP_MEMBER, default_group, hash_ranks
from dldist._base import argument_names
from dldist._base.options import ReconfigureOptions, as_timedelta

_GLOO_AVAILABLE = True

_DEFAULT_FIRST_BUCKET_BYTES = 1 << 20

default_pg_timeout = _DEFAULT_PG_TIMEOUT = default_timeout("gloo")
_DEFAULT_NO_TIMEOUT = timedelta()

_WorldMeta = type(registry.group)


# ---- names whose values change

# For each module-level name of c10d, the attribute of Registry that has its value.
_REGISTRY_ATTRIBUTES = {
    **{f"_{name}": name for name in ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "pg_to_tag", "tags_to_pg")},
    "_default_pg_init_method": "init_method",
    "_group_count": "group_count",
    "_is_process_group_registered": "is_named",
    "_register_process_group": "name_group",
    "_resolve_process_group": "resolve",
    "_unregister_all_process_groups": "unname_all",
    "_unregister_process_group": "unname_group",
}


_AVAILABLE = {f"_{name.upper()}_AVAILABLE": name for name in ("nccl", "mpi", "ucc", "xccl")}
_CARRIER_CLASSES = {f"ProcessGroup{name.upper()}": name for name in ("mpi", "ucc", "xccl")}


def __getattr__(name: str) -> Any:
    world = registry._world
    if name in _REGISTRY_ATTRIBUTES:
        return getattr(world, _REGISTRY_ATTRIBUTES[name])
    if name == "_backend":
        return None if world.default_pg is None else world.pg_map[world.default_pg][0]
    if name in _AVAILABLE:
        return is_backend_available(_AVAILABLE[name])
    if name in ("default_pg_nccl_timeout", "_DEFAULT_PG_NCCL_TIMEOUT"):
        return default_timeout("nccl") if is_nccl_available() else None
    if name == "ProcessGroupNCCL" and is_nccl_available():
        return nccl.ProcessGroupNCCL
    if name in _CARRIER_CLASSES and is_backend_available(_CARRIER_CLASSES[name]):
        from dldist._backends import carrier_backends

        return getattr(carrier_backends, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# ---- the registry


def _get_default_store() -> _core.Store:
    """Return the store of the default group."""
    return _get_process_group_store(default_group())


def _get_process_group_store(pg: ProcessGroup) -> _core.Store:
    """Return the store of a group."""
    return registry._world.pg_map[pg][1]  # type: ignore[no-any-return]


def _get_process_group_name(pg: ProcessGroup) -> str:
    """Return the name of a group, or "None" if the group is not registered."""
    return registry._world.pg_names.get(pg, "None")


def _get_global_rank(group: Any, rank: int) -> int:
    """Former name of get_global_rank."""
    return get_global_rank(group, rank)


def _add_ephemeral_timeout_for_all_pgs(timeout: timedelta) -> None:
    """Extend the timeout of each NCCL group's new operations, until one of them has ended."""
    for pg in registry._world.pg_map:
        backend = _nccl_backend(pg)
        if backend is not None:
            backend._add_ephemeral_timeout(timeout)


def _get_group_size(group: Any) -> int:
    """Return the size of a group."""
    return get_world_size(group)


def _get_group_tag(pg: ProcessGroup) -> str:
    """Return the tag of a group, or "" if it has none."""
    tag = registry._world.pg_to_tag[pg]
    return tag.removeprefix("user:") if tag.startswith("user:") else ""


# ---- groups whose members change, and windows


def _supports_reconfigure(group: Any = None) -> bool:
    """Return True if the members of the group can be changed."""
    return get_backend_impl(group).supports_reconfigure


def _get_reconfigure_handle(group: Any = None) -> Any:
    """Return the handle that names this process in _reconfigure()."""
    return get_backend_impl(group).get_reconfigure_handle()


def _reconfigure(
    uuid: int, handles: Any, group: Any = None, timeout: timedelta | None = None, hints: dict[str, str] | None = None
) -> Any:
    """Change the members to the processes of these handles: a list in rank order, or a set."""
    opts = ReconfigureOptions()
    opts.uuid, opts.handles = uuid, handles
    if timeout is not None:
        opts.timeout = timeout
    if hints is not None:
        opts.hints = hints
    return get_backend_impl(group).reconfigure(opts)


def _supports_window(group: Any = None) -> bool:
    """Return True if the group's ranks can write to each other's memory."""
    return get_backend_impl(group).supports_window


def _new_window(tensor: Any = None, group: Any = None) -> Any:
    """Create a window: memory of every rank that other ranks write to. All ranks call it."""
    return get_backend_impl(group).new_window(tensor)


# ---- device types


def _device_capability(group: Any = None) -> list[str]:
    """Return the device types that a group serves."""
    return list(group_or_default(group)._device_types)


def _choose_device_type(kinds: list[str]) -> str:
    """Return "cpu" if it is among the types, because objects are in CPU memory; else the first."""
    return "cpu" if "cpu" in kinds else kinds[0]


def _get_object_coll_device(group: Any = None) -> str:
    """Return the type of device on which a library should put tensors made from objects."""
    pg = group_or_default(group)
    if isinstance(pg, ProcessGroup):
        return _choose_device_type(pg._device_types or ["cpu"])
    return "cuda" if isinstance(pg, nccl.ProcessGroupNCCL) else "cpu"


def _get_pg_default_device(group: Any = None) -> str:
    """Return the device type that a group serves; of several, the one of _get_object_coll_device."""
    pg = group_or_default(group)
    if not isinstance(pg, ProcessGroup):
        return _get_object_coll_device(pg)
    kinds = pg._device_types
    if not kinds:
        raise RuntimeError("Default device not found, because no backend has been registered with this ProcessGroup.")
    if len(kinds) > 1:
        warn(f"_get_pg_default_device(): got several device types, {', '.join(kinds)}: returning {_choose_device_type(kinds)!r}", UserWarning)
    return _choose_device_type(kinds)


# ---- NCCL


def _get_process_group_uid(pg: Any) -> Any:
    """Return the name of a group's NCCL communicators in the store, or -1 without NCCL."""
    backend = _nccl_backend(pg)
    return -1 if backend is None else backend.uid


def _is_safe_to_split() -> bool:
    """Return True if the default group is bound to a device, so that its communicators exist."""
    return default_group().bound_device_id is not None


def _backend_name(config: str, kind: str) -> str | None:
    """Return the name of the backend that a configuration has for a device type."""
    return BackendConfig(config).get_device_backend_map().get(kind)


def _get_split_source(pg: Any, requested_backend: str | None = None) -> Any:
    """Return the backend to split groups from: for the group's bound device or, in the default
    group, for any GPU. Return None if there is none, it cannot split, or `requested_backend` names
    another backend for the device."""
    device = pg.bound_device_id or ("cuda" if pg is registry._world.default_pg else None)
    if device is None:
        return None
    kind = device_type_of(device)
    backend = pg._backend_of_device(kind)
    if backend is None or not backend.supports_splitting:
        return None
    if requested_backend is not None and _backend_name(requested_backend, kind) != _backend_name(registry._world.pg_map[pg][0], kind):
        return None
    return getattr(backend, "wrapped_pg", backend)


# ---- members


def _get_pg_config(group: Any = None) -> dict[str, Any]:
    """Return the name, description, backends, size and ranks of a group."""
    pg = group_or_default(group)
    return {
        "pg_name": registry._world.pg_names.get(pg, "None"),
        "pg_desc": pg.group_desc,
        "backend_config": get_backend_config(pg),
        "pg_size": pg.size(),
        "ranks": get_process_group_ranks(pg),
    }


def _get_all_pg_configs() -> list[dict[str, Any]]:
    return [_get_pg_config(pg) for pg in registry._world.pg_map]


def _get_group_size_by_name(group_name: str | ProcessGroup | BackendImpl) -> int:
    """Return the size of a group, which is given as an object or by name."""
    group: Any = registry._world.resolve(group_name) if isinstance(group_name, str) else group_name
    return int(group.size())


def _resolve_group_name_by_ranks_and_tag(ranks: list[int], tag: str) -> str:
    group = _find_pg_by_ranks_and_tag(tag, ranks)
    if group is None:
        raise ValueError(f"_resolve_group_name_by_ranks_and_tag(): no such group: got ranks {ranks} and tag {tag!r}, expected a group of new_group()")
    return group.group_name


# ---- creation of any group, also before the default group


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
    enable_reconfigure: bool = False,
    *,
    pg_options: Any = None,
) -> tuple[Any, _core.Store | None]:
    """Create a group by a rendezvous in `store`, and return the group and its prefixed store.

    All members must call this. Without ranks, the group is an independent world that needs no
    default group. Non-members get NON_GROUP_MEMBER and None. `pg_options` is the name of
    `backend_options` before torch 2.6.
    """
    world = registry._world
    if backend_options is not None and pg_options is not None:
        raise TypeError("_new_process_group_helper(): got both backend_options and pg_options, its old name: expected one")
    if group_name in world.pg_names.values():
        raise ValueError("The specified group name has already been created, please use a different group name")
    device = _check_device_id(device_id)
    limit = as_timedelta("_new_process_group_helper(): argument 'timeout'", timeout)
    options = pg_options if backend_options is None else backend_options
    factory = GroupFactory(backend, limit, options, device, group_desc, is_reconfigurable=enable_reconfigure)
    ranks = list(global_ranks_in_group)
    if pg_tag and (found := _find_pg_by_ranks_and_tag(pg_tag, ranks)) is not None:
        return found, world.pg_map[found][1]
    if ranks and default_group().rank() not in ranks:
        _skip_nccl_split(default_group(), factory)
        return NON_GROUP_MEMBER, None
    if ranks:
        factory.create_nccl_from_parent = _nccl_split(default_group(), ranks, factory)
    pg = factory.create(store, group_rank, ranks or list(range(group_size)), group_name, pg_tag or None)
    return pg, world.pg_map[pg][1]


def _update_default_pg(pg: Any) -> None:
    """Set the default group; None or NON_GROUP_MEMBER unsets it."""
    registry._world.default_pg = None if is_non_member(pg) else pg


def _find_or_create_pg_by_ranks_and_tag(tag: str, ranks: list[int], stride: int) -> ProcessGroup:
    """Split `ranks` into rows of `stride`, and find or create this process's row's group by tag."""
    if len(ranks) % stride != 0:
        raise ValueError(f"Ranks length ({len(ranks)}) must be divisible by stride ({stride})")
    rows = [sorted(ranks[first : first + stride]) for first in range(0, len(ranks), stride)]
    own_row = next((row for row in rows if get_rank() in row), None)
    if own_row is None:
        raise AssertionError("rankset doesn't include the current node")
    found = _find_pg_by_ranks_and_tag(tag, own_row)
    if found is not None:
        return found
    if not tag:
        raise ValueError("Cannot automatically create PG with empty tag")
    group: ProcessGroup = _new_group_with_tag(own_row, pg_tag=tag, use_local_synchronization=True)
    return group


# ---- names and colours


def _process_group_name(ranks: Sequence[int], use_hashed_name: bool) -> str:
    """Return the name of the next group: a hash of its ranks, or the next number."""
    return registry._world.next_member_name(ranks) if use_hashed_name else registry._world.next_name()


def _hash_ranks_to_str(ranks: Sequence[int]) -> str:
    return hash_ranks(ranks, len(registry._world.pg_names))


def _process_group_color(ranks: Sequence[int]) -> int:
    """Return a non-negative C int that is equal for equal ranks."""
    return abs(hash(tuple(ranks))) % (1 << 31)


# ---- c10d's current group of each thread; calls without a group do not use it

_thread_local = _local()


def _current_process_group() -> ProcessGroup | None:
    """Return the group that this thread has set, or None."""
    return getattr(_thread_local, "group", None)


def _set_process_group(pg: ProcessGroup | None) -> None:
    """Set this thread's current group; None removes it."""
    _thread_local.group = pg


# ---- checks of arguments, for libraries that call them; tensors are arrays of any library

_COMPONENT_DTYPES = {"complex64": "float32", "complex128": "float64"}
_FP8 = {"float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"}


def _as_iterable(obj: Any) -> Sequence[Any]:
    return obj if isinstance(obj, list) else (obj,)


def _check_tensor_list(param: Any, param_name: str) -> None:
    """Raise a TypeError unless the argument is a list or tuple of tensors."""
    if not isinstance(param, (list, tuple)):
        raise TypeError(f"{argument_names.title(param_name, '_check_tensor_list')} must be a list of tensors, not {type(param).__name__}")
    for index, each in enumerate(param):
        _check_single_tensor(each, f"{param_name}[{index}]")


def _dtype_of(tensor: Any) -> str:
    return _core._describe_tensor(tensor, False)["dtype"]


def _ensure_all_tensors_same_dtype(*tensors: Any) -> None:
    """Raise unless all tensors (or lists of them) have one dtype; complex64 counts as float32."""
    first = None
    for item in tensors:
        for tensor in _as_iterable(item):
            dtype = _dtype_of(tensor)
            component = _COMPONENT_DTYPES.get(dtype, dtype)
            first = component if first is None else first
            if component != first:
                raise ValueError(f"Invalid usage of tensors with different dtypes: found {first} and {dtype}")


def _is_fp8(tensor: Any) -> bool:
    return _dtype_of(tensor) in _FP8


def _canonicalize_group_rank(
    group: Any, global_rank: int | None = None, group_rank: int | None = None, return_global: bool = False
) -> int:
    """Convert a global or group rank to a group rank, or to a global rank (return_global)."""
    rank = canonical_rank(group, global_rank, group_rank)
    return global_rank_of(group, rank) if return_global else rank


def _check_not_self_rank(group: Any, rank: int, rank_type: str) -> None:
    check_not_self(registry.operations(group), rank, rank_type)
