"""Supervises and ends child processes, which dlrun, spawn() and dldist.testing start."""

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

    Signals use a pidfd, so they never reach another process that got the same pid later. fileno()
    becomes readable when the process ends, for selectors and multiprocessing.connection.wait(). The
    end of a pipe is no substitute, since children of the process may keep the pipe open.
    """

    def __init__(self, pid: int, reap: Callable[[], int], leads_session: bool = False) -> None:
        """`reap` waits for the process and returns its code; it is the starting library's own. If
        the process cannot be watched, it is killed, and OSError is raised."""
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
        """Return True if it has ended. A zombie until close(), so its group id stays valid."""
        if self.code is None:
            try:
                state = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:  # the library has already reaped it
                self.code = self._reap()
            else:
                if state is not None:
                    # si_status is an exit code or a signal number, depending on si_code.
                    self.code = state.si_status if state.si_code == os.CLD_EXITED else -state.si_status
        return self.code is not None

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds`. Return True if the process has ended."""
        connection.wait([self._pidfd], max(seconds, 0.0))
        return self.has_ended()

    def send(self, number: int) -> bool:
        """Send a signal to this process only. Return False if it no longer exists."""
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            return False
        return True

    def send_to_all(self, number: int) -> None:
        """Send a signal to the process; if it leads a session, to its process group."""
        if not self._leads_session:
            self.send(number)
            return
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass  # all have ended or changed their user

    def close(self) -> None:
        """Kill the process and its group, and reap it. Afterwards only its code is available."""
        if self._pidfd < 0:
            return
        self.send_to_all(signal.SIGKILL)
        self.code = self._reap()
        os.close(self._pidfd)
        self._pidfd = -1


def end(children: Iterable[Child], number: int, seconds: float) -> None:
    """Send a signal to all children and close each; `seconds` later, remaining ones are killed."""
    told = list(children)
    deadline = time.monotonic() + seconds
    for child in told:
        child.send_to_all(number)
    for child in told:
        child.wait(deadline - time.monotonic())
        child.close()


def die_with(parent: int) -> None:
    """Request SIGKILL for this child when the thread of `parent` that started it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"<Unknown signal {number}>"


def how_it_ended(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    hint = ", as the kernel does where memory runs out" if -code == signal.SIGKILL else ""
    return f"killed by {signal_name(-code)}{hint}"
