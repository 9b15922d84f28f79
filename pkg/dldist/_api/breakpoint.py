"""dldist.breakpoint: the debugger on one rank, while the others wait."""

from __future__ import annotations

import pdb
import sys
from typing import Any

from dldist._api.collectives import barrier
from dldist._api.ranks import get_rank

_calls: dict[tuple[str, int], int] = {}


class _Pdb(pdb.Pdb):
    """Reads from the terminal also where the process was started without one of its own, as children of multiprocessing are."""

    def interaction(self, *args: Any, **kwargs: Any) -> None:
        before = sys.stdin
        with open("/dev/stdin", encoding="utf-8") as terminal:
            sys.stdin = terminal
            try:
                super().interaction(*args, **kwargs)
            finally:
                sys.stdin = before


def breakpoint(rank: int = 0, skip: int = 0, timeout_s: float | None = 3600) -> None:
    """Start the debugger on one rank; the others wait until it goes on. All ranks make the call.

    Args:
        rank: The rank of the default world that gets the debugger.
        skip: How many calls from the same line do nothing before.
        timeout_s: How many seconds the others wait. None is the group's own time-out.

    Raises:
        DistTimeoutError: On the others: the debugger took longer. The group is of no more use.
    """
    caller = sys._getframe(1)
    place = caller.f_code.co_filename, caller.f_lineno
    _calls[place] = _calls.get(place, 0) + 1
    if _calls[place] <= skip:
        return
    if get_rank() == rank:
        debugger = _Pdb()
        debugger.message(f"\nType 'up' to get to the frame that called dldist.breakpoint(rank={rank})\n")
        debugger.set_trace()
    barrier(timeout=timeout_s)
