"""Finding messages that have arrived, without receiving them."""

from __future__ import annotations

from typing import NamedTuple

from dldist import _core
from dldist._base.array_types import Timeout

ANY_TAG = -1
"""The tag of a receive or a probe that accepts messages with any tag."""

NO_RANK = -(1 << 31)
"""The peer of a message that is neither sent nor received, such as the neighbour beyond a border."""


class MessageInfo(NamedTuple):
    """A message that has arrived, and that no receive has taken yet."""

    source: int
    """The sender's rank."""
    tag: int
    """The tag that the sender passed."""
    nbytes: int
    """The size of the message in bytes."""


def find(group: _core.Group, src: int | None, tag: int, *, is_waiting: bool, timeout: Timeout | None = None) -> MessageInfo | None:
    if src == NO_RANK:
        return MessageInfo(NO_RANK, ANY_TAG, 0)
    found = group._probe(src, tag, is_waiting, timeout=timeout)
    return None if found is None else MessageInfo(*found)
