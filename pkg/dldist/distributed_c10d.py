"""Everything of the module-level calls under c10d's module name, with the private names that programs use."""

from __future__ import annotations

import sys
from types import ModuleType

from dldist._core import PrefixStore, ReduceOp, Store, Work
from dldist.c10d import registry
from dldist.c10d.coalescing import _coalescing_manager, _CoalescingManager, _time_estimator
from dldist.c10d.collectives import (
    _all_gather_base,
    _reduce_scatter_base,
    all_gather,
    all_gather_coalesced,
    all_gather_into_tensor,
    all_gather_single,
    all_reduce,
    all_reduce_coalesced,
    all_to_all,
    all_to_all_single,
    barrier,
    broadcast,
    gather,
    gather_into_tensor,
    gather_single,
    monitored_barrier,
    reduce,
    reduce_op,
    reduce_scatter,
    reduce_scatter_single,
    reduce_scatter_tensor,
    scatter,
    supports_complex,
)
from dldist.c10d.gloo import ProcessGroupGloo
from dldist.c10d.groups import (
    SHRINK_ABORT,
    SHRINK_DEFAULT,
    STORE_BASED_BARRIER_PREFIX,
    _abort_process_group,
    _find_pg_by_ranks_and_tag,
    _new_group_with_tag,
    _set_pg_timeout,
    abort,
    default_world,
    destroy_process_group,
    get_backend,
    get_backend_config,
    get_backend_impl,
    get_pg_count,
    init_process_group,
    is_initialized,
    new_group,
    new_subgroups,
    new_subgroups_by_enumeration,
    set_timeout,
    shrink_group,
    split_group,
)
from dldist.c10d.groups import create_process_group_wrapper as _create_process_group_wrapper
from dldist.c10d.groups import store_based_barrier as _store_based_barrier
from dldist.c10d.names import (
    Backend,
    BackendConfig,
    get_default_backend_for_device,
    is_available,
    is_backend_available,
    is_gloo_available,
    is_mpi_available,
    is_nccl_available,
    is_torchelastic_launched,
    is_ucc_available,
    is_xccl_available,
)
from dldist.c10d.objects import (
    all_gather_object,
    broadcast_object_list,
    gather_object,
    recv_object_list,
    scatter_object_list,
    send_object_list,
)
from dldist.c10d.options import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    DebugLevel,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
    get_debug_level,
    set_debug_level,
    set_debug_level_from_env,
)
from dldist.c10d.p2p import P2POp, batch_isend_irecv, irecv, isend, recv, send
from dldist.c10d.process_group import DistributedBackendOptions as _DistributedBackendOptions
from dldist.c10d.process_group import ProcessGroup
from dldist.c10d.ranks import (
    get_global_rank,
    get_group_rank,
    get_node_local_rank,
    get_process_group_ranks,
    get_rank,
    get_world_size,
)
from dldist.c10d.ranks import is_non_member as _rank_not_in_group
from dldist.c10d.registry import GroupMember, default_group, group
from dldist.c10d.registry import Registry as _World

TYPE_CHECKING = False  # typing takes longer to import than all of this package
if TYPE_CHECKING:
    from datetime import timedelta
    from typing import Any

__all__ = [
    "AllToAllOptions",
    "AllgatherOptions",
    "AllreduceCoalescedOptions",
    "AllreduceOptions",
    "Backend",
    "BackendConfig",
    "BarrierOptions",
    "BroadcastOptions",
    "DebugLevel",
    "GatherOptions",
    "GroupMember",
    "P2POp",
    "PrefixStore",
    "ProcessGroup",
    "ProcessGroupGloo",
    "ReduceOp",
    "ReduceOptions",
    "ReduceScatterOptions",
    "SHRINK_ABORT",
    "SHRINK_DEFAULT",
    "ScatterOptions",
    "Store",
    "Work",
    "abort",
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_gather_single",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_object_list",
    "default_world",
    "destroy_process_group",
    "gather",
    "gather_into_tensor",
    "gather_object",
    "gather_single",
    "get_backend",
    "get_backend_config",
    "get_backend_impl",
    "get_debug_level",
    "get_default_backend_for_device",
    "get_global_rank",
    "get_group_rank",
    "get_node_local_rank",
    "get_pg_count",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "group",
    "init_process_group",
    "irecv",
    "is_available",
    "is_backend_available",
    "is_gloo_available",
    "is_initialized",
    "is_mpi_available",
    "is_nccl_available",
    "is_torchelastic_launched",
    "is_ucc_available",
    "is_xccl_available",
    "isend",
    "monitored_barrier",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "record_comm",
    "recv",
    "recv_object_list",
    "reduce",
    "reduce_op",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object_list",
    "set_debug_level",
    "set_debug_level_from_env",
    "set_timeout",
    "shrink_group",
    "split_group",
    "supports_complex",
]


class record_comm:
    """Name the operations of a `with` block, for profilers. There is none yet that would show it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> record_comm:
        return self

    def __exit__(self, *exception: object) -> None:
        pass


# ---- private names of c10d

_GLOO_AVAILABLE = True
_MPI_AVAILABLE = _NCCL_AVAILABLE = _UCC_AVAILABLE = _XCCL_AVAILABLE = False

_get_default_group = default_group


def _get_default_store() -> Store:
    """The store of the default group."""
    return registry._world.pg_map[default_group()][1]


def _get_process_group_store(pg: ProcessGroup) -> Store:
    """The store of a group."""
    return registry._world.pg_map[pg][1]


def _get_process_group_name(pg: ProcessGroup) -> str:
    """The name of a group; "None" of one that is not known."""
    return registry._world.pg_names.get(pg, "None")


def _get_global_rank(group: Any, rank: int) -> int:
    """Deprecated name of get_global_rank."""
    from dldist.c10d.names import warn

    warn("_get_global_rank is deprecated, please use get_global_rank instead", FutureWarning)
    return get_global_rank(group, rank)


def _register_process_group(name: str, pg: ProcessGroup) -> None:
    registry._world.name_group(name, pg)


def _unregister_process_group(name: str) -> None:
    registry._world.unname_group(name)


def _unregister_all_process_groups() -> None:
    registry._world.unname_all()


def _resolve_process_group(name: str) -> ProcessGroup:
    return registry._world.resolve(name)


def _add_ephemeral_timeout_for_all_pgs(timeout: timedelta) -> None:
    """NCCL's groups alone have time-outs of that kind."""


def __getattr__(name: str) -> Any:
    # datetime takes a while to import, and few look.
    if name == "default_pg_timeout":
        from datetime import timedelta

        return timedelta(minutes=30)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _Module(ModuleType):
    """This module, with a `_world` that can be exchanged, as tests with threads for ranks do."""

    @property
    def _world(self) -> _World:
        return registry._world

    @_world.setter
    def _world(self, world: _World) -> None:
        registry._world = world


sys.modules[__name__].__class__ = _Module
