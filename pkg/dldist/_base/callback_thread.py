"""The thread that runs callbacks when works end, and the cleanup when the process ends. Imported with the first group."""

from __future__ import annotations

import os
import threading

from dldist import _core

_thread: threading.Thread | None = None


def start_completion_thread() -> None:
    """Start the thread. The C side calls this once per process, when the first callback is registered."""
    global _thread
    _thread = threading.Thread(target=_run, name="dldist-completion", daemon=True)
    _thread.start()


def is_completion_thread() -> bool:
    """Whether the caller runs on this thread. Code that waits there for a callback would wait for itself."""
    return _thread is not None and _thread.ident == threading.get_ident()


def _run() -> None:
    while _core._take_completions():
        pass


def stop() -> None:
    """End all groups and the thread, when the process ends."""
    global _thread
    _core._shutdown()
    thread, _thread = _thread, None
    _core._stop_completions()
    if thread is not None:
        thread.join(timeout=1.0)


def _forget_in_child() -> None:
    # The thread belongs to the parent.
    global _thread
    _thread = None


os.register_at_fork(after_in_child=_forget_in_child)
