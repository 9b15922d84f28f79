"""Aborts the groups of this process when an uncaught exception ends the program.

Without the abort, the other ranks would wait until this process has exited. Python first waits for
threads and runs the functions of atexit, which may take minutes. There are three sources:

- The main thread: Python sets sys.last_value and calls sys.excepthook. A program that calls the
  hook itself, and an interactive interpreter, continue; they keep their groups.
- Other threads: threading.excepthook. The process continues, so the groups are aborted only if the
  flight recorder has a call of this thread.
- sys.exit() with a failure: Python calls no hook for SystemExit, so a wrapper of sys.exit records
  the position of the outermost frame. If the frame ends there, no caller has caught the exception.
  `raise SystemExit(1)` is not seen; the groups are then closed at exit.
"""

from __future__ import annotations

import atexit
import functools
import io
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

from dldist import _core

aborts: dict[Callable[[str], object], None] = {}
"""Functions that abort groups for a reason. The keys are in the order of the calls."""
endings: dict[Callable[[], float], None] = {}
"""Functions to call after the aborts if the program ends. Each returns seconds to delay the exit."""

# The texts that name another rank as the cause, also in exceptions of JAX and PyTorch; and seconds
# to delay the exit then, because torchrun and mpirun blame the rank that exits first.
_CONSEQUENCES, _DELAY_S = ("lost rank ", ") aborted the group", ") has left the group"), 0.5

_settings: dict[str, Any] = {"prefix": "", "pid": 0}
_last_exit: tuple[object, FrameType, int]
"""The last call of sys.exit(): its argument, the outermost frame and the position there."""


def install(prefix: str | None = None) -> None:
    """Set the hooks, once per process. `prefix` starts each line of later tracebacks."""
    _settings["pid"] = os.getpid()
    if prefix is not None:
        _settings["prefix"] = prefix
    token = object()
    if _settings.setdefault("token", token) is not token:
        return  # return: this or another thread has set the hooks
    show, show_of_thread, leave = sys.excepthook, threading.excepthook, sys.exit

    def on_uncaught(*exception: Any) -> None:
        try:
            # The process is about to exit, so print the whole traceback, even if Ctrl-C interrupts.
            _core._call_despite_ctrl_c(_show, show, *exception)
        finally:
            if exception[1] is getattr(sys, "last_value", None) and not (sys.flags.inspect or hasattr(sys, "ps1")):
                _core._call_despite_ctrl_c(_end, exception[1])

    def on_uncaught_in_thread(arguments: Any) -> None:
        try:
            show_of_thread(arguments)
        finally:
            if not issubclass(arguments.exc_type, SystemExit) and _has_used_groups():
                abort_groups(arguments.exc_value)

    @functools.wraps(leave)
    def record_and_exit(*status: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            _record_exit(status[0] if status else None)
        leave(*status)

    sys.excepthook, threading.excepthook = on_uncaught, on_uncaught_in_thread
    sys.exit = record_and_exit  # type: ignore[assignment]


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
    abort_groups(error)
    text = _describe(error)
    delay_s = _DELAY_S if any(words in text for words in _CONSEQUENCES) and f"pid {os.getpid()})" not in text else 0.0
    for function in list(endings):
        with suppress(Exception):
            delay_s += function()
    time.sleep(delay_s)
    atexit.unregister(_on_exit)


def _show(show: Callable[..., object], *exception: Any) -> None:
    """Print a traceback with the hook `show`, each line with the prefix."""
    if not (prefix := _settings["prefix"]):
        show(*exception)
        return
    stderr, sys.stderr = sys.stderr, io.StringIO()
    try:
        show(*exception)
    finally:
        text, sys.stderr = sys.stderr.getvalue(), stderr
    sys.stderr.write("".join(f"{prefix}{line}" if line.strip() else line for line in text.splitlines(True)))
    sys.stderr.flush()


def _has_used_groups() -> bool:
    """True if the flight recorder has a call of this thread."""
    import pickle

    entries = pickle.loads(_core._dump_recorder(False, True, False, False))["entries"]
    return str(threading.get_ident()) in {entry["thread_id"] for entry in entries}


def _record_exit(status: object) -> None:
    global _last_exit
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    _last_exit = status, frame, frame.f_lasti
    atexit.unregister(_on_exit)
    atexit.register(_on_exit)  # registered last, so it runs before all other exit functions


def _on_exit() -> None:
    """End like after an uncaught exception if sys.exit() has ended the program with a failure."""
    from opcode import opname

    status, frame, position = _last_exit
    # A frame with `finally` or `with` ends at the instruction that raises the exception again.
    is_uncaught = frame.f_lasti == position or opname[frame.f_code.co_code[frame.f_lasti]] == "RERAISE"
    if is_uncaught and not (status is None or (isinstance(status, int) and status == 0)):
        _end(SystemExit(status))
