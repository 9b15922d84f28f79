"""Watches and ends child processes, and says how they ended.

dlrun, spawn() and dldist.testing use this. Each starts processes in its own way, and decides when to end them.
"""

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

    Signals go to this process or to none: another process that gets the same pid later is safe. A selector or
    multiprocessing.connection.wait() can wait for it beside pipes, because its fileno() is readable once it has ended. The end of
    a pipe would not do, since children of the process may keep the pipe open.
    """

    def __init__(self, pid: int, reap: Callable[[], int], leads_session: bool = False) -> None:
        """`reap` waits for the process and returns its code, by the library that started it. If the process cannot be watched, it is
        killed, and OSError is raised."""
        self.pid = pid
        self.code: int | None = None
        """The exit code, or minus the number of the signal; known once has_ended() has returned True."""
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
        """Whether it has ended. It stays a zombie until close(), so that its session can still be signalled."""
        if self.code is None:
            try:
                state = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:  # the library has reaped it already
                self.code = self._reap()
            else:
                if state is not None:
                    # si_code says which of the two si_status is.
                    self.code = state.si_status if state.si_code == os.CLD_EXITED else -state.si_status
        return self.code is not None

    def wait(self, seconds: float) -> bool:
        """Wait for up to `seconds`, and return whether it has ended."""
        connection.wait([self._pidfd], max(seconds, 0.0))
        return self.has_ended()

    def send(self, number: int) -> bool:
        """Send a signal to this process alone. Returns False if it is gone."""
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            return False
        return True

    def send_to_all(self, number: int) -> None:
        """Send a signal to the process, and to its children if it leads a session."""
        if not self._leads_session:
            self.send(number)
            return
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass  # all are gone, or have become somebody else's

    def close(self) -> None:
        """Kill what is left of the process and its session. After that, only its code can be asked for."""
        if self._pidfd < 0:
            return
        self.send_to_all(signal.SIGKILL)
        self.code = self._reap()
        os.close(self._pidfd)
        self._pidfd = -1


def end(children: Iterable[Child], number: int, seconds: float) -> None:
    """Send a signal to all, and close them as they end. Those that are left after `seconds` are killed."""
    told = list(children)
    deadline = time.monotonic() + seconds
    for child in told:
        child.send_to_all(number)
    for child in told:
        child.wait(deadline - time.monotonic())
        child.close()


def die_with(parent: int) -> None:
    """In a child: have the kernel kill it when the thread that started it ends, which belongs to the process `parent`."""
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
