"""The monitor's thread (docs/watchdog.md). Imported with the first group of several ranks."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found, unused-ignore]
import _thread
import _weakref
import os
import sys
import weakref
from contextlib import suppress
from types import SimpleNamespace

from dldist import _core
from dldist._base import settings, uncaught
from dldist._base.options import DebugLevel, get_debug_level

STOP_TIMEOUT_S = 1.0
"""Seconds that the exit of the process waits for the monitor's thread."""

_DUMPING_OFF, _DUMPING_DEVICES, _DUMPING_ON = range(3)

_lock = _thread.allocate_lock()
_is_started = False
_numbers: dict[weakref.ref[_core.Group], int] = {}
"""The groups that the monitor watches, each with its number in the C monitor."""


def add(group: _core.Group) -> None:
    """Make the monitor watch a group until remove() or until the group is garbage-collected."""
    number = _core._monitor_add_group(group)
    _numbers[_weakref.ref(group, _forget)] = number
    uncaught.aborts[abort_all] = None
    uncaught.install()


def remove(group: _core.Group) -> None:
    """Stop watching a group that has ended. The monitor first reports its failure, if any."""
    _forget(_weakref.ref(group))


def abort_all(reason: str) -> None:
    """Abort all groups that the monitor watches."""
    for group in [reference() for reference in list(_numbers)]:
        if group is not None:
            with suppress(Exception):
                group.abort(reason)


def _forget(reference: weakref.ref[_core.Group]) -> None:
    number = _numbers.pop(reference, None)
    if number is not None and not sys.is_finalizing():  # modules may be empty while Python exits
        _core._monitor_remove_group(number)


def start(rank: int) -> None:
    """Start the process's monitor, once; `rank` is its rank in the first group. Called from C."""
    global _is_started
    with _lock:
        if _is_started:
            return
        failure_settings = settings.failure_settings()
        _core._monitor_open(*_options(failure_settings, rank))
        number = dump_signal()
        if number:
            # A program's own handler for the default signal has precedence.
            _core._monitor_on_signal(number, not failure_settings.dump_signal)
        _thread.start_new_thread(_core._monitor_run, ())  # five times as fast as threading.Thread
        _is_started = True


def _options(failure_settings: SimpleNamespace, rank: int) -> tuple[int | str, ...]:
    is_json = failure_settings.dump_format == "json"
    return (
        failure_settings.coord_check_ms,
        failure_settings.dump_timeout_ms,
        failure_settings.heartbeat_timeout_s,
        _dump_mode(failure_settings),
        failure_settings.propagate_error,
        failure_settings.desync_debug or get_debug_level() is DebugLevel.DETAIL,
        failure_settings.extra_dump_on_exec,
        is_json,
        failure_settings.include_stacks,
        failure_settings.only_active,
        settings.dump_prefix() + str(rank) + (".json" if is_json else ""),
        f"{failure_settings.dump_pipe}{rank}.pipe" if failure_settings.dump_pipe else "",
        failure_settings.enable_monitoring,
        failure_settings.async_error_handling in (1, 3),
    )


def _dump_mode(failure_settings: SimpleNamespace) -> int:
    if failure_settings.dump_on_timeout is not None:
        return _DUMPING_ON if failure_settings.dump_on_timeout else _DUMPING_OFF
    return _DUMPING_ON if failure_settings.dump_file else _DUMPING_DEVICES


def dump_signal() -> int:
    """Return the number of the signal for dumps: DLDIST_DUMP_SIGNAL, or SIGUSR2; 0 for none."""
    name = settings.value("dump_signal")
    signal_name = name.upper() or "SIGUSR2"
    if signal_name == "NONE":
        return 0
    is_name = signal_name.startswith("SIG") and not signal_name.startswith("SIG_")
    number = int(signal_name) if signal_name.isdecimal() else getattr(_signal, signal_name, None) if is_name else None
    if number and (number not in _signal.valid_signals() or number in (_signal.SIGKILL, _signal.SIGSTOP)):
        number = None
    if not isinstance(number, int):
        raise _core.DistArgumentError(f"Invalid value for environment variable: DLDIST_DUMP_SIGNAL ({name!r})")
    return number


def stop() -> None:
    """Stop the monitor. Called at exit."""
    _core._monitor_stop(STOP_TIMEOUT_S)


def _forget_in_child() -> None:
    # Called after a fork: the thread and the groups exist only in the parent.
    global _is_started, _lock
    _lock = _thread.allocate_lock()
    _is_started = False
    _numbers.clear()


os.register_at_fork(after_in_child=_forget_in_child)
