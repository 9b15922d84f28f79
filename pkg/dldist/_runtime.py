"""The thread that calls back when works end, and the end of the process. Imported with the first group."""

import atexit
import os
import threading

from dldist import _core

_thread: threading.Thread | None = None


def start_completion_thread() -> None:
    """Called by the C side once a process, when somebody first wants to be called back."""
    global _thread
    _thread = threading.Thread(target=_run, name="dldist-completion", daemon=True)
    _thread.start()


def _run() -> None:
    while _core._take_completions():
        pass


def _stop() -> None:
    global _thread
    _core._shutdown()
    thread, _thread = _thread, None
    _core._stop_completions()
    if thread is not None:
        thread.join(timeout=1.0)


def _forget_in_child() -> None:
    # The thread is the parent's.
    global _thread
    _thread = None


atexit.register(_stop)
os.register_at_fork(after_in_child=_forget_in_child)
