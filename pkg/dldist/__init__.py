"""Collective communication for any array library, with no framework underneath."""

from __future__ import annotations

import atexit as _atexit
import os as _os
import sys as _sys

from dldist import _core
from dldist._api import namespace as _namespace

__version__ = "0.1.0"

_TABLES = _namespace.C10D, _namespace.PACKAGE
__all__ = ["__version__", "set_log_level", *(name for name, _, _ in _namespace.parse_names(*_TABLES))]

_MODULES = {"algorithms", "c10d_logger", "constants", "device_mesh", "distributed_c10d"}
_MODULES |= {"functional", "rendezvous", "testing", "types", "world"}
"""Public modules that programs can use as dldist.<module> without importing them."""

_find = _namespace.Finder(__name__, *_TABLES, _namespace.PRIVATE)


def __getattr__(name: str) -> object:
    """Import the module that defines a name, when a program first uses the name."""
    if name in _MODULES:
        __import__(f"{__name__}.{name}")
        return _sys.modules[f"{__name__}.{name}"]  # set even while the module is being imported
    return _find(name)


def __dir__() -> list[str]:
    """List the public names, and the public modules that need no import or have been imported."""
    modules = {name for name, value in globals().items() if isinstance(value, type(_sys)) and not name.startswith("_")}
    return sorted({*__all__, *_MODULES, *modules})


def set_log_level(level: str) -> None:
    """Log dldist's activity to the logger "dldist"; `level` is "off", "info" or "debug".

    The last call counts, of this function and of the logger's setLevel().
    """
    is_on = _core._set_log_level(level)
    if is_on or "logging" in _sys.modules:
        # Import this module only if the program uses logging or the log is on: it imports logging.
        from dldist._base import log

        log.choose(level)
    _log_calls(level)


def _log_calls(level: str) -> None:
    if level.lower() == "debug" or "dldist.c10d_logger" in _sys.modules:
        from dldist import c10d_logger

        c10d_logger.wrap_calls(level.lower() == "debug")


def _stop_threads() -> None:
    for name in ("monitor_thread", "callback_thread"):
        module = _sys.modules.get(f"{__name__}._base.{name}")
        if module is not None:
            _core._call_despite_ctrl_c(module.stop)  # stop is called again if Ctrl-C interrupts it


_atexit.register(_stop_threads)  # registered first, so it runs after all exit functions of programs


def _set_log_level_from_environment() -> None:
    from dldist._base import settings

    try:
        set_log_level(settings.value("log"))
    except ValueError as error:
        import warnings

        warnings.warn(f"DLDIST_LOG: {error}; the log is off", RuntimeWarning, stacklevel=2)


if _os.environ.get("DLDIST_LOG"):
    _set_log_level_from_environment()
elif "logging" in _sys.modules:
    from dldist._base import log as _log

    _log.follow_logger()
