"""Supervises and ends child processes, for dlrun, spawn() and dldist.testing."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable
from multiprocessing import connection

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class Child:
    """A process, from its start until close().

    Signals use a pidfd, so that they never reach another process that got the same pid later. For
    selectors and multiprocessing.connection.wait(), fileno() is readable once the process has
    ended. The end of a pipe is no substitute, because the process's children may keep it open.
    """

    def __init__(self, pid: int, reap: Callable[[], int], leads_session: bool = False) -> None:
        """`reap` waits for the process and returns its code; the library that started it provides
        `reap`. If the process cannot be watched, it is killed, and OSError is raised."""
        self.pid = pid
        self.code: int | None = None
        """The exit code, or the negative number of the signal; set by has_ended()."""
        self._reap = reap
        self._leads_session = leads_session
        try:
            self._pidfd = os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            reap()
            raise

    def fileno(self) -> int:
        return self._pidfd

    def has_ended(self) -> bool:
        """Return True if the process has ended. It stays a zombie until close(), so that its group
        id remains valid."""
        if self.code is None:
            try:
                state = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:  # the library that started the process has reaped it
                self.code = self._reap()
            else:
                if state is not None:
                    # si_status is a signal number, not an exit code, unless the process has exited.
                    self.code = state.si_status if state.si_code == os.CLD_EXITED else -state.si_status
        return self.code is not None

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds`. Return True if the process has ended."""
        connection.wait([self._pidfd], max(seconds, 0.0))
        return self.has_ended()

    def send(self, number: int) -> bool:
        """Send a signal only to this process. Return False if the process no longer exists."""
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            return False
        return True

    def send_to_all(self, number: int) -> None:
        """Send a signal to the process, or to its process group if it leads a session."""
        if not self._leads_session:
            self.send(number)
            return
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass  # no process is left, or they run as another user

    def close(self) -> None:
        """Kill the process and its group, and reap it. Afterwards only `code` is available."""
        if self._pidfd < 0:
            return
        self.send_to_all(signal.SIGKILL)
        self.code = self._reap()
        os.close(self._pidfd)
        self._pidfd = -1


def end(children: Iterable[Child], number: int, seconds: float) -> None:
    """Send a signal to all children, kill the remaining ones after `seconds`, and close all."""
    targets = list(children)
    deadline = time.monotonic() + seconds
    for child in targets:
        child.send_to_all(number)
    for child in targets:
        child.wait(deadline - time.monotonic())
        child.close()


def kill_on_exit_of(parent: int) -> None:
    """Make the kernel kill this child when the thread of `parent` that started it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"<Unknown signal {number}>"


def describe_exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    hint = ", possibly by the kernel, out of memory" if -code == signal.SIGKILL else ""
    return f"killed by {signal_name(-code)}{hint}"
