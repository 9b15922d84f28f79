"""Collective communication for any array library, with no framework underneath."""

import os as _os

from dldist import _core
from dldist._core import (
    DistAbortedError,
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
    FileStore,
    Group,
    HashStore,
    Member,
    PrefixStore,
    QueueEmptyError,
    ReduceOp,
    SharedArray,
    Store,
    TCPStore,
    Work,
)
from dldist._future import Future
from dldist.distributed_c10d import *  # noqa: F403
from dldist.distributed_c10d import (
    _all_gather_base,
    _coalescing_manager,
    _rank_not_in_group,
    _reduce_scatter_base,
)
from dldist.distributed_c10d import __all__ as _c10d_names
from dldist.world import World

__version__ = "0.1.0"

__all__ = [
    *_c10d_names,
    "DistAbortedError",
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
    "FileStore",
    "Future",
    "Group",
    "HashStore",
    "Member",
    "QueueEmptyError",
    "SharedArray",
    "TCPStore",
    "World",
    "__version__",
    "set_log_level",
]


def set_log_level(level: str) -> None:
    """Send what dldist does to the logger "dldist": level is "off", "info" or "debug"."""
    if _core._set_log_level(level):
        # Imports logging and starts a thread: only for those who want the log.
        from dldist import _log

        _log.start(level)


def _set_log_level_from_environment() -> None:
    level = _os.environ.get("DLDIST_LOG")
    if not level:
        return
    try:
        set_log_level(level)
    except ValueError as error:
        import warnings

        warnings.warn(f"DLDIST_LOG: {error}; the log stays off", RuntimeWarning, stacklevel=2)


_set_log_level_from_environment()
