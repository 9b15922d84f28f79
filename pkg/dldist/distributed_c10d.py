"""Everything of the module-level calls under c10d's module name, with the private names that programs use."""

from __future__ import annotations

import sys
from types import ModuleType

from dldist._core import DistStoreError
from dldist._core import PrefixStore as PrefixStore
from dldist._core import ReduceOp as ReduceOp
from dldist._core import Store as Store
from dldist._core import Work as Work
from dldist.c10d import collectives, gloo, groups, names, objects, options, p2p, process_group, ranks, registry
from dldist.c10d.backend_base import Backend as _Backend
from dldist.c10d.coalescing import _coalescing_manager, _CoalescingManager, _time_estimator
from dldist.c10d.coalescing import coalescing as coalescing
from dldist.c10d.collectives import *  # noqa: F403
from dldist.c10d.collectives import _all_gather_base, _make_nccl_premul_sum, _reduce_op, _reduce_scatter_base
from dldist.c10d.gloo import *  # noqa: F403
from dldist.c10d.groups import *  # noqa: F403
from dldist.c10d.groups import (
    STORE_BASED_BARRIER_PREFIX,
    _abort_process_group,
    _find_pg_by_ranks_and_tag,
    _new_group_with_tag,
    _set_pg_timeout,
    get_backend_impl,
)
from dldist.c10d.groups import check_timeout as _check_valid_timeout
from dldist.c10d.groups import create_process_group_wrapper as _create_process_group_wrapper
from dldist.c10d.groups import default_timeout as _get_default_timeout
from dldist.c10d.groups import store_based_barrier as _store_based_barrier
from dldist.c10d.names import *  # noqa: F403
from dldist.c10d.names import is_nccl_available
from dldist.c10d.objects import *  # noqa: F403
from dldist.c10d.options import *  # noqa: F403
from dldist.c10d.options import BuiltinCommHookType, ErrorType, OpType, ReconfigureOptions, WorkResult
from dldist.c10d.p2p import *  # noqa: F403
from dldist.c10d.process_group import *  # noqa: F403
from dldist.c10d.process_group import DistributedBackendOptions as _DistributedBackendOptions
from dldist.c10d.process_group import ProcessGroup
from dldist.c10d.ranks import *  # noqa: F403
from dldist.c10d.ranks import get_global_rank, get_world_size
from dldist.c10d.ranks import group_or_default as _group_or_default_group
from dldist.c10d.ranks import is_non_member as _rank_not_in_group
from dldist.c10d.ranks import warn_not_in_group as _warn_not_in_group
from dldist.c10d.registry import *  # noqa: F403
from dldist.c10d.registry import Registry as _World
from dldist.c10d.registry import default_group

TYPE_CHECKING = False  # typing takes longer to import than all of this package
if TYPE_CHECKING:
    from datetime import timedelta
    from typing import Any

    from dldist.c10d.breakpoint import breakpoint
    from dldist.c10d.fake import FakeProcessGroup, FakeStore
    from dldist.c10d.store_collectives import _StoreCollectives
    from dldist.c10d.work import FakeWork, PythonCallbackWork, _create_work_from_future, _IllegalWork
    from dldist.c10d.wrapper import _ProcessGroupWrapper
    from dldist.reducer import (
        GradBucket,
        Logger,
        Reducer,
        _broadcast_coalesced,
        _compute_bucket_assignment_by_size,
        _register_builtin_comm_hook,
        _register_comm_hook,
        _verify_params_across_processes,
    )
    from dldist.rendezvous import _create_store_from_options, register_rendezvous_handler, rendezvous

    default_pg_timeout: timedelta
    default_pg_nccl_timeout: timedelta | None
    _DEFAULT_PG_TIMEOUT: timedelta
    _DEFAULT_NO_TIMEOUT: timedelta

if not TYPE_CHECKING:  # checkers go by the imports: of a list that is put together some know a part alone
    # A public name is listed once, in the module that it comes from.
    __all__ = [
        "GroupName",
        "PrefixStore",
        "ReduceOp",
        "Store",
        "Work",
        "coalescing",
        "record_comm",
        *collectives.__all__,
        *gloo.__all__,
        *groups.__all__,
        *names.__all__,
        *objects.__all__,
        *options.__all__,
        *p2p.__all__,
        *process_group.__all__,
        *ranks.__all__,
        *registry.__all__,
    ]


GroupName = str
"""What c10d calls the name of a group."""


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
_MPI_AVAILABLE = _UCC_AVAILABLE = _XCCL_AVAILABLE = False

_DEFAULT_FIRST_BUCKET_BYTES = 1 << 20

_Work = Work

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
    from dldist.c10d.groups import _nccl_behind

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


# ---- what takes a while to import and few look for

_ELSEWHERE = {
    "GradBucket": "dldist.reducer",
    "Logger": "dldist.reducer",
    "Reducer": "dldist.reducer",
    "_broadcast_coalesced": "dldist.reducer",
    "_compute_bucket_assignment_by_size": "dldist.reducer",
    "_register_builtin_comm_hook": "dldist.reducer",
    "_register_comm_hook": "dldist.reducer",
    "_verify_params_across_processes": "dldist.reducer",
    "FakeProcessGroup": "dldist.c10d.fake",
    "FakeStore": "dldist.c10d.fake",
    "FakeWork": "dldist.c10d.work",
    "PythonCallbackWork": "dldist.c10d.work",
    "_IllegalWork": "dldist.c10d.work",
    "PutOptions": "dldist.c10d.options",
    "SignalOptions": "dldist.c10d.options",
    "WaitSignalOptions": "dldist.c10d.options",
    "Window": "dldist.c10d.window",
    "WindowAccessType": "dldist.c10d.options",
    "WindowAttr": "dldist.c10d.window",
    "_ProcessGroupWrapper": "dldist.c10d.wrapper",
    "_StoreCollectives": "dldist.c10d.store_collectives",
    "_create_store_from_options": "dldist.rendezvous",
    "_create_work_from_future": "dldist.c10d.work",
    "Tensor": "dldist.types",
    "breakpoint": "dldist.c10d.breakpoint",
    "empty": "dldist.c10d.window",
    "register_rendezvous_handler": "dldist.rendezvous",
    "rendezvous": "dldist.rendezvous",
    "spawn": "dldist.launch.spawn",
    "_dump_fr_trace": "dldist.flight_recorder",
    "_dump_fr_trace_json": "dldist.flight_recorder",
    "_dump_nccl_trace": "dldist.flight_recorder",
    "_dump_nccl_trace_json": "dldist.flight_recorder",
    "_reset_fr_recording_nccl": "dldist.flight_recorder",
}
# c10d's names, outside of its registry, for what is in it.
_OF_REGISTRY = {"_pg_map", "_pg_names", "_pg_group_ranks", "_pg_backend_config", "_pg_to_tag", "_tags_to_pg", "_group_count"}
_MINUTES = {"default_pg_timeout": 30, "_DEFAULT_PG_TIMEOUT": 30, "_DEFAULT_NO_TIMEOUT": 0}


def _find(name: str, module: str) -> Any:
    """A public or private name that is not imported with the package; `module` is the one that is asked."""
    if name in _ELSEWHERE:
        return getattr(__import__(_ELSEWHERE[name], fromlist=(name,)), name)
    if name in _OF_REGISTRY:
        return getattr(registry._world, name[1:])
    if name in _MINUTES:
        from datetime import timedelta

        return timedelta(minutes=_MINUTES[name])
    if name == "default_pg_nccl_timeout":
        return _get_default_timeout("nccl") if is_nccl_available() else None
    if name == "ProcessGroupNCCL" and is_nccl_available():
        from dldist.c10d.nccl import ProcessGroupNCCL

        return ProcessGroupNCCL
    if module == __name__:
        from dldist.c10d import private

        return private.find(name, module)
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


def __getattr__(name: str) -> Any:
    return _find(name, __name__)


class _Module(ModuleType):
    """This module, with a `_world` that can be exchanged, as tests with threads for ranks do."""

    @property
    def _world(self) -> _World:
        return registry._world

    @_world.setter
    def _world(self, world: _World) -> None:
        registry._world = world


sys.modules[__name__].__class__ = _Module
