"""Aborts the groups of this process when an uncaught exception ends the program.

Without the abort, the other ranks would wait until this process has exited. Python first waits for
threads and runs the functions of atexit, which may take minutes. There are three sources:

- The main thread: Python sets sys.last_value and calls sys.excepthook. An exception that has not
  left the outermost frame, as in a console, and an interactive interpreter do not end the program.
- Other threads: threading.excepthook. The process continues, so the groups are aborted only if the
  flight recorder has a call of this thread since its start. Later threads reuse a thread's id.
- sys.exit() with a failure: Python calls no hook for SystemExit, so a wrapper of sys.exit attaches
  an object to the exception. No caller has caught the exception if both are freed while the main
  thread has no frame. `raise SystemExit(1)`, and exceptions that a variable or a task refers to, are
  not noticed; the groups are then closed at exit.
"""

from __future__ import annotations

import functools
import io
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import redirect_stderr, suppress
from types import FrameType
from typing import Any

from dldist import _core

aborts: dict[Callable[[str], object], None] = {}
"""Functions that abort groups for a reason. The keys are in the order of the calls."""
endings: dict[Callable[[], float], None] = {}
"""Functions to call after the aborts if the program ends. Each returns seconds to delay the exit."""

# Seconds to delay the exit if an error names another process as the cause, because torchrun and
# mpirun blame the rank that exits first.
_DELAY_S = 0.5

_settings: dict[str, Any] = {"prefix": "", "pid": 0, "shown": None}
_hooks: list[object] = []


def install(prefix: str | None = None) -> None:
    """Set the hooks unless they are set. `prefix` starts each line of later tracebacks."""
    _settings["pid"] = os.getpid()
    if prefix is not None:
        _settings["prefix"] = prefix
    _wrap(sys, "excepthook", _on_uncaught)
    _wrap(threading, "excepthook", _on_uncaught_in_thread)
    _wrap(threading.Thread, "start", _start)
    _wrap(sys, "exit", _exit)


def _wrap(owner: object, name: str, hook: Callable[..., None]) -> None:
    previous = getattr(owner, name)
    if previous not in _hooks:
        _hooks.append(functools.wraps(previous)(lambda *arguments: hook(previous, *arguments)))
        setattr(owner, name, _hooks[-1])


def _on_uncaught(show: Callable[..., object], *exception: Any) -> None:
    if _settings["shown"] is exception[1]:  # called by a later hook of this module
        show(*exception)
        return
    _settings["shown"] = exception[1]
    try:
        # The process is about to exit, so print the whole traceback, even if Ctrl-C interrupts.
        _core._call_despite_ctrl_c(_show, show, *exception)
    finally:
        _settings["shown"] = None
        trace = getattr(exception[1], "__traceback__", None)
        if trace is not None and exception[1] is getattr(sys, "last_value", None) and _ends_program(trace.tb_frame):
            _core._call_despite_ctrl_c(_end, exception[1])


def _ends_program(frame: FrameType) -> bool:
    """True if an exception that leaves the frame, or is freed in it, ends the program."""
    is_interactive = sys.flags.inspect or hasattr(sys, "ps1")
    return frame.f_back is None and threading.get_ident() == threading.main_thread().ident and not is_interactive


def _on_uncaught_in_thread(show: Callable[..., object], arguments: Any) -> None:
    try:
        show(arguments)
    finally:
        if not issubclass(arguments.exc_type, SystemExit) and _has_used_groups(arguments.thread):
            abort_groups(arguments.exc_value)


def _start(start: Callable[..., object], thread: Any) -> None:
    thread._dldist_started_ns = time.monotonic_ns()
    start(thread)


def _has_used_groups(thread: threading.Thread | None) -> bool:
    """True if the flight recorder has a call of this thread."""
    import pickle

    entries = pickle.loads(_core._dump_recorder(False, True, False, False))["entries"]
    started_ns = getattr(thread, "_dldist_started_ns", 0) + time.time_ns() - time.monotonic_ns()
    return any(entry["thread_id"] == str(threading.get_ident()) and entry["time_created_ns"] >= started_ns for entry in entries)


def _exit(leave: Callable[..., object], *status: Any) -> None:
    try:
        leave(*status)
    except SystemExit as error:
        if error.code not in (None, 0):
            vars(error).setdefault("_dldist_observer", _ExitObserver(error))
        raise


class _ExitObserver:
    """Aborts the groups if it is freed while the main thread has no frame."""

    def __init__(self, error: SystemExit) -> None:
        self._error = SystemExit(*error.args)
        self._error.__context__ = error.__context__

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing() and _ends_program(sys._getframe()):
            _core._call_despite_ctrl_c(_end, self._error)


def abort_groups(error: BaseException) -> None:
    """Abort all groups of this process. The other ranks receive the type and the text of `error`."""
    if os.getpid() != _settings["pid"]:
        return  # return: a forked child must not end its parent's groups
    for abort in list(aborts):
        with suppress(Exception):
            abort(_describe(error))


def _describe(error: BaseException) -> str:
    name, text = type(error).__name__, ""
    with suppress(Exception):  # a third-party __str__ may raise any exception
        text = str(error)
    return f"{name}: {text}" if text else name


def _end(error: BaseException) -> None:
    import traceback

    abort_groups(error)
    texts = traceback.format_exception(error, limit=0)  # with the exceptions from which it was raised
    own = os.uname().nodename, os.getpid()
    delay_s = _DELAY_S if any(blamed != own for blamed in blamed_processes("".join(texts))) else 0.0
    for function in list(endings):
        with suppress(Exception):
            delay_s += function()
    time.sleep(delay_s)


def blamed_processes(text: str) -> list[tuple[str, int]]:
    """Find the host and pid of each rank that errors, also JAX's and PyTorch's, name as the cause."""
    import re

    ends = " (?:aborted the group|revoked the group|has left the group|has lost the connection to this rank)"
    return [(cause[2], int(cause[3])) for cause in re.finditer(rf"(lost )?rank \d+ \(([^()]*), pid (\d+)\)(?(1)|{ends})", text)]


def _show(show: Callable[..., object], *exception: Any) -> None:
    """Print a traceback with the hook `show`, each line with the prefix."""
    if not (prefix := _settings["prefix"]):
        show(*exception)
        return
    with redirect_stderr(io.StringIO()) as text:
        show(*exception)
    sys.stderr.write("".join(f"{prefix}{line}" if line.strip() else line for line in text.getvalue().splitlines(True)))
    sys.stderr.flush()
