"""Lists of ranks that callers pass."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any


def read_ranks(ranks: Iterable[Any], size: int) -> list[Any]:
    """List the ranks that a caller passes for a group of `size` ranks, and at most one more.

    A list that is longer has a rank that is wrong or repeated among its first `size` + 1, so the checks that follow still refuse
    it, without the time and the memory for the rest: `range(10**9)` is a valid argument to Python.
    """
    return list(islice(ranks, size + 1))
