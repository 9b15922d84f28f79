"""Collective communication for any array library, with no framework underneath."""

from __future__ import annotations

import sys as _sys

# Much of this is for the first group of several ranks: it is here so that forked processes need not import it themselves.
from dldist import _core, distributed_c10d, rendezvous  # noqa: F401
from dldist._core import (
    DistAbortedError,
    DistArgumentError,
    DistAuthError,
    DistBackendError,
    DistError,
    DistMismatchError,
    DistNetworkError,
    DistNetworkTimeoutError,
    DistPeerLostError,
    DistQueueEmptyError,
    DistStoreError,
    DistStoreTimeoutError,
    DistTimeoutError,
    DistTypeError,
    FileStore,
    Group,
    HashStore,
    Member,
    Plan,
    QueueEmptyError,
    SharedArray,
    TCPStore,
    start_all,
    wait_all,
)
from dldist.base import completions, settings, watch  # noqa: F401
from dldist.base.future import Future
from dldist.distributed_c10d import *  # type: ignore[no-redef]  # noqa: F403  # rendezvous is the module here
from dldist.distributed_c10d import (
    _DEFAULT_FIRST_BUCKET_BYTES,
    BuiltinCommHookType,
    _all_gather_base,
    _Backend,
    _coalescing_manager,
    _CoalescingManager,
    _create_process_group_wrapper,
    _find,
    _get_process_group_name,
    _get_reconfigure_handle,
    _make_nccl_premul_sum,
    _new_window,
    _rank_not_in_group,
    _reconfigure,
    _reduce_scatter_base,
    _supports_reconfigure,
    _supports_window,
    _time_estimator,
    _Work,
)
from dldist.world import World

TYPE_CHECKING = False  # typing takes longer to import than all of this package
if TYPE_CHECKING:
    from typing import Any

    from dldist.c10d.breakpoint import breakpoint
    from dldist.c10d.fake import FakeProcessGroup, FakeStore
    from dldist.c10d.options import PutOptions, SignalOptions, WaitSignalOptions, WindowAccessType
    from dldist.c10d.store_collectives import _StoreCollectives
    from dldist.c10d.window import Window, WindowAttr, empty
    from dldist.c10d.wrapper import _ProcessGroupWrapper
    from dldist.launch.spawn import spawn
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
    from dldist.rendezvous import _create_store_from_options, register_rendezvous_handler
    from dldist.types import Tensor

__version__ = "0.1.0"

__all__ = [
    "BuiltinCommHookType",
    "DistAbortedError",
    "DistArgumentError",
    "DistAuthError",
    "DistBackendError",
    "DistError",
    "DistMismatchError",
    "DistNetworkError",
    "DistNetworkTimeoutError",
    "DistPeerLostError",
    "DistQueueEmptyError",
    "DistStoreError",
    "DistStoreTimeoutError",
    "DistTimeoutError",
    "DistTypeError",
    "FileStore",
    "Future",
    "GradBucket",
    "Group",
    "HashStore",
    "Logger",
    "Member",
    "Plan",
    "PutOptions",
    "QueueEmptyError",
    "Reducer",
    "SharedArray",
    "SignalOptions",
    "TCPStore",
    "Tensor",
    "WaitSignalOptions",
    "Window",
    "WindowAccessType",
    "WindowAttr",
    "World",
    "__version__",
    "default_pg_timeout",
    "empty",
    "register_rendezvous_handler",
    "set_log_level",
    "spawn",
    "start_all",
    "wait_all",
]
if not TYPE_CHECKING:  # as in distributed_c10d
    __all__ += distributed_c10d.__all__


def __getattr__(name: str) -> Any:
    return _find(name, __name__)


def set_log_level(level: str) -> None:
    """Send what dldist does to the logger "dldist": level is "off", "info" or "debug"."""
    if _core._set_log_level(level):
        # Imports logging and starts a thread: only for those who want the log.
        from dldist.base import log

        log.start(level)
    if level.lower() == "debug" or "dldist.c10d_logger" in _sys.modules:
        from dldist import c10d_logger

        c10d_logger.watch_calls(level.lower() == "debug")


def _set_log_level_from_environment() -> None:
    level = settings.value("log")
    if level == "off":
        return
    try:
        set_log_level(level)
    except ValueError as error:
        import warnings

        warnings.warn(f"DLDIST_LOG: {error}; the log stays off", RuntimeWarning, stacklevel=2)


_set_log_level_from_environment()
