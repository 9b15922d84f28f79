"""Reads lists of ranks that callers pass."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any


def read_ranks(ranks: Iterable[Any], size: int) -> list[Any]:
    """Return the first size + 1 items of a caller's list of ranks for a group of `size` ranks.

    If the list is longer, these items include a wrong or repeated rank, so that the caller's checks
    reject an argument such as `range(10**9)` without reading all of it.
    """
    return list(islice(ranks, size + 1))
