"""dldist.breakpoint: run the debugger on one rank while the other ranks wait."""

from __future__ import annotations

import os
import pdb
import sys
from functools import cache, partial
from typing import Any, TextIO

from dldist._api.collectives import barrier
from dldist._api.ranks import get_rank

_calls: dict[tuple[str, int], int] = {}


class _Pdb(pdb.Pdb):
    """A debugger that calls the barrier after its first commands, so that the other ranks wait."""

    def __init__(self, rank: int, timeout_s: float | None) -> None:
        keyboard, screen = _open_keyboard(rank)
        super().__init__(stdin=keyboard, stdout=screen or sys.stdout)
        self._timeout_s = timeout_s
        self._has_waiting_ranks = True
        self.message(f"rank {rank} is in the debugger; the other ranks wait for its first command that continues or steps")

    def interaction(self, *args: Any, **kwargs: Any) -> None:
        super().interaction(*args, **kwargs)
        if self._has_waiting_ranks and not self.quitting:
            self._has_waiting_ranks = False
            barrier(timeout=self._timeout_s)


@cache  # because the debugger may have read ahead
def _open_keyboard(rank: int) -> tuple[TextIO, TextIO | None]:
    """Open stdin, the terminal, or the launcher's stdin; if it is a terminal, also for output."""
    open_file = partial(open, encoding="utf-8", opener=lambda path, flags: os.open(path, flags | os.O_NOCTTY))
    for path in ("/dev/stdin", "/dev/tty", f"/proc/{os.getppid()}/fd/0"):
        try:
            keyboard = open_file(path)
        except OSError:
            continue
        try:
            is_usable = os.tcgetpgrp(keyboard.fileno()) == os.getpgrp()  # otherwise reading would stop this process
        except OSError:  # not a terminal, or the terminal of another session
            is_usable = not os.path.samestat(os.fstat(keyboard.fileno()), os.stat(os.devnull))
        if is_usable:
            return keyboard, open_file(path, "w") if keyboard.isatty() else None
        keyboard.close()
    raise RuntimeError(
        f"breakpoint(): rank {rank} has no keyboard: stdin is empty, and there is no terminal; start the program in a terminal, "
        f"or attach a debugger with dlrun --debug {rank}"
    )


def breakpoint(rank: int = 0, skip: int = 0, timeout_s: float | None = 3600) -> None:
    """Start the debugger on one rank, in the calling frame; the other ranks make the same call and wait.

    The debugger uses the terminal of the program or of its launcher. The other ranks continue after
    the first command that continues or steps.

    Args:
        rank: The rank in the default world that runs the debugger.
        skip: The number of calls from the same line to ignore first.
        timeout_s: Seconds that the other ranks wait; None for the group's own timeout.

    Raises:
        RuntimeError: The rank has no terminal and no other input.
        DistTimeoutError: On waiting ranks, if the debugger runs longer. The group is unusable.
    """
    caller = sys._getframe(1)
    location = caller.f_code.co_filename, caller.f_lineno
    _calls[location] = _calls.get(location, 0) + 1
    if _calls[location] <= skip:
        return
    if get_rank() != rank:
        barrier(timeout=timeout_s)
        return
    # No call may follow, because the debugger would stop in it, and not in the caller.
    _Pdb(rank, timeout_s).set_trace(caller)
