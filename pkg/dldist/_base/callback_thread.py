"""Runs works' callbacks on one thread, and closes groups at exit. Imported with a group."""

from __future__ import annotations

import os
import threading

from dldist import _core

_thread: threading.Thread | None = None


def start_completion_thread() -> None:
    """Start the thread. Called from C once per process, when the first callback is registered."""
    global _thread
    _thread = threading.Thread(target=_run, name="dldist-completion", daemon=True)
    _thread.start()


def is_completion_thread() -> bool:
    """True on the completion thread, which runs the callbacks and so must not wait for one."""
    return _thread is not None and _thread.ident == threading.get_ident()


def _run() -> None:
    while _core._take_completions():
        pass


def stop() -> None:
    """Close all groups and stop the thread. Called at exit."""
    global _thread
    _core._shutdown()
    thread, _thread = _thread, None
    _core._stop_completions()
    if thread is not None:
        thread.join(timeout=1.0)


def _forget_in_child() -> None:
    # Called after a fork: the thread exists only in the parent.
    global _thread
    _thread = None


os.register_at_fork(after_in_child=_forget_in_child)
