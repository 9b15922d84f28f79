"""A process group for each thread to have at hand: c10d's current one, which calls that name no group do not use."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dldist.c10d.process_group import ProcessGroup

_of_thread = threading.local()


def _current_process_group() -> ProcessGroup | None:
    """The group that this thread has set; None before."""
    return getattr(_of_thread, "group", None)


def _set_process_group(pg: ProcessGroup | None) -> None:
    """Set it, or forget it with None."""
    _of_thread.group = pg
