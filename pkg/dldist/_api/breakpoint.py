"""dldist.breakpoint: run the debugger on one rank while the other ranks wait."""

from __future__ import annotations

import pdb
import sys
from typing import Any

from dldist._api.collectives import barrier
from dldist._api.ranks import get_rank

_calls: dict[tuple[str, int], int] = {}


class _Pdb(pdb.Pdb):
    """A debugger that reads /dev/stdin, because children of multiprocessing have no sys.stdin."""

    def interaction(self, *args: Any, **kwargs: Any) -> None:
        previous = sys.stdin
        with open("/dev/stdin", encoding="utf-8") as terminal:
            sys.stdin = terminal
            try:
                super().interaction(*args, **kwargs)
            finally:
                sys.stdin = previous


def breakpoint(rank: int = 0, skip: int = 0, timeout_s: float | None = 3600) -> None:
    """Start the debugger on one rank; the other ranks make the same call and wait.

    Args:
        rank: The rank in the default world that runs the debugger.
        skip: The number of calls from the same line to ignore first.
        timeout_s: Seconds that the other ranks wait; None for the group's own timeout.

    Raises:
        DistTimeoutError: On waiting ranks, if the debugger runs longer. The group is unusable.
    """
    caller = sys._getframe(1)
    location = caller.f_code.co_filename, caller.f_lineno
    _calls[location] = _calls.get(location, 0) + 1
    if _calls[location] <= skip:
        return
    if get_rank() == rank:
        debugger = _Pdb()
        debugger.message(f"\nType 'up' to get to the frame that called dldist.breakpoint(rank={rank})\n")
        debugger.set_trace()
    barrier(timeout=timeout_s)
