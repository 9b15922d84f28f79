"""c10d's names that few look for, and where they are: distributed_c10d finds them when it is asked."""

from __future__ import annotations

from dldist.c10d import registry

TYPE_CHECKING = False  # typing takes longer to import than all of this package
if TYPE_CHECKING:
    from typing import Any

_IN = {
    "dldist.c10d.checks": """
        _as_iterable _canonicalize_group_rank _check_not_self_rank _check_op _check_p2p_op_list _check_single_tensor
        _check_tensor_list _ensure_all_tensors_same_dtype _is_fp8
    """,
    "dldist.c10d.coalescing": "_CollOp",
    "dldist.c10d.current": "_current_process_group _set_process_group",
    "dldist.c10d.group_facts": """
        _device_capability _get_all_pg_configs _get_group_size_by_name _get_object_coll_device _get_pg_config
        _get_pg_default_device _get_process_group_uid _get_split_source _is_safe_to_split
        _resolve_group_name_by_ranks_and_tag
    """,
    "dldist.c10d.group_making": """
        _find_or_create_pg_by_ranks_and_tag _hash_ranks_to_str _new_process_group_helper _process_group_color
        _process_group_name _update_default_pg
    """,
    "dldist.c10d.groups": "_is_barrier_after_init",
    "dldist.c10d.maker": "PG_WRAPPER_STORE_PREFIX",
    "dldist.c10d.names": "_check_single_backend_availability",
    "dldist.c10d.object_tensors": "_object_to_tensor _pickler _tensor_to_object _unpickler",
    "dldist.reducer.log": "DDPLoggingData",
    "dldist.c10d_logger": "_exception_logger _time_logger logger",
}
_WHERE = {name: module for module, names in _IN.items() for name in names.split()}


def _backend() -> str | None:
    pg = registry._world.default_pg
    return None if pg is None else registry._world.pg_map[pg][0]


def _nccl_available() -> bool:
    from dldist.c10d.names import is_nccl_available

    return is_nccl_available()


_NOW = {
    "_NCCL_AVAILABLE": _nccl_available,
    "_WorldMeta": lambda: type(registry.group),
    "_backend": _backend,
    "_default_pg_init_method": lambda: registry._world.init_method,
}
"""What depends on the moment."""


def find(name: str, module: str) -> Any:
    """What the name stands for; `module` is the one that is asked."""
    if name in _NOW:
        return _NOW[name]()
    if name in _WHERE:
        return getattr(__import__(_WHERE[name], fromlist=(name,)), name)
    raise AttributeError(f"module {module!r} has no attribute {name!r}")
