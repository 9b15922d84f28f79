"""Processes that this one has started: watched, told to end, and what is said of their end.

dlrun, spawn() and dldist.testing stand on this; each starts interpreters in its own way, and has its own idea of when to end them.
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

    What is sent goes to this process, or to nobody once it is gone: its number may be another's by then. It can be waited for
    beside pipes, by a selector or multiprocessing.connection.wait: it has a fileno(), which is readable when it has ended. A pipe
    would tell less, since children of its own may keep that open.
    """

    def __init__(self, pid: int, reap: Callable[[], int], leads_session: bool = False) -> None:
        """`reap` waits for it and gives its code, as the library that has started it does. Raises OSError, and ends it, when it
        cannot be watched."""
        self.pid = pid
        self.code: int | None = None
        """How it has ended, once has_ended() has said so: exit code, or minus the number of the signal."""
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
        """Whether it has. It stays a zombie until close(), so that its session, too, can be told something."""
        if self.code is None:
            try:
                state = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:  # the library has reaped it meanwhile
                self.code = self._reap()
            else:
                if state is not None:
                    # si_code says which of the two si_status is.
                    self.code = state.si_status if state.si_code == os.CLD_EXITED else -state.si_status
        return self.code is not None

    def wait(self, seconds: float) -> bool:
        """Whether it has ended within so many seconds."""
        connection.wait([self._pidfd], max(seconds, 0.0))
        return self.has_ended()

    def send(self, number: int) -> bool:
        """Sends a signal to it alone. False: it is gone."""
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            return False
        return True

    def send_to_all(self, number: int) -> None:
        """Sends a signal to it, and to its children if it leads a session."""
        if not self._leads_session:
            self.send(number)
            return
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass  # all gone, or somebody else by now

    def close(self) -> None:
        """Ends at once what is left of it and of its session. Nothing can be asked afterwards but its code."""
        if self._pidfd < 0:
            return
        self.send_to_all(signal.SIGKILL)
        self.code = self._reap()
        os.close(self._pidfd)
        self._pidfd = -1


def end(children: Iterable[Child], number: int, seconds: float) -> None:
    """Sends all of them a signal, and closes them as they end; those that have not after so many seconds are killed."""
    told = list(children)
    deadline = time.monotonic() + seconds
    for child in told:
        child.send_to_all(number)
    for child in told:
        child.wait(deadline - time.monotonic())
        child.close()


def die_with(parent: int) -> None:
    """In a child: have it killed when the thread that has started it ends; `parent` is the process of that."""
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
