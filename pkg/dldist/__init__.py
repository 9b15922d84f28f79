"""Collective communication for any array library, with no framework underneath."""

from __future__ import annotations

import sys as _sys

# Much of this is for the first group of several ranks: it is here so that forked processes need not import it themselves.
from dldist import _core, distributed_c10d, rendezvous, world  # noqa: F401
from dldist._api import namespace as _namespace
from dldist._base import callback_thread as _callback_thread  # noqa: F401
from dldist._base import monitor_thread as _monitor_thread  # noqa: F401
from dldist._base import settings as _settings

__version__ = "0.1.0"

__all__ = ["__version__", "set_log_level", *distributed_c10d.__all__]
__all__ += [name for name, _, _ in _namespace.names_of(_namespace.PACKAGE)]

_namespace.bind(__name__, _namespace.C10D, _namespace.PACKAGE, _namespace.BESIDE)


_LATER = {"algorithms", "c10d_logger", "constants", "device_mesh"}
"""Modules that programs take from torch.distributed without importing them."""


def __getattr__(name: str) -> object:
    if name in _LATER:
        return getattr(__import__(f"{__name__}.{name}"), name)
    return _namespace.find(name, __name__)


def __dir__() -> list[str]:
    """List the public names and the public modules that have been imported."""
    modules = {name for name, value in globals().items() if isinstance(value, type(_sys)) and not name.startswith("_")}
    return sorted({*__all__, *modules})


def set_log_level(level: str) -> None:
    """Send what dldist does to the logger "dldist": level is "off", "info" or "debug"."""
    if _core._set_log_level(level):
        # Imports logging and starts a thread: only for those who want the log.
        from dldist._base import log

        log.start(level)
    if level.lower() == "debug" or "dldist.c10d_logger" in _sys.modules:
        from dldist import c10d_logger

        c10d_logger.watch_calls(level.lower() == "debug")


def _set_log_level_from_environment() -> None:
    level = _settings.value("log")
    if level == "off":
        return
    try:
        set_log_level(level)
    except ValueError as error:
        import warnings

        warnings.warn(f"DLDIST_LOG: {error}; the log stays off", RuntimeWarning, stacklevel=2)


_set_log_level_from_environment()
