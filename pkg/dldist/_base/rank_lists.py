"""Lists of ranks that callers pass."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any


def read_ranks(ranks: Iterable[Any], size: int) -> list[Any]:
    """List the ranks that a caller passes for a group of `size` ranks, but at most size + 1 of
    them.

    A longer list has a wrong or repeated rank among these, so the caller's checks still reject it,
    without listing all of an argument such as `range(10**9)`.
    """
    return list(islice(ranks, size + 1))
