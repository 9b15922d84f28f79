"""c10d's registry of unfinished works by output array, for libraries that pass arrays on."""

from __future__ import annotations

from _thread import allocate_lock
from typing import Any

from dldist import _core

_lock = allocate_lock()
_works: dict[int, list[tuple[Any, _core.Work]]] = {}
"""Works in progress by memory address, each with its array, whose memory it keeps alive."""

_is_input_allowed = False


def _memory_key(tensor: Any) -> int:
    """Return a key for an array: the address of its memory; if empty, a key for the object."""
    description = _core._describe_tensor(tensor, False)
    return description["data"] if description["count"] else -id(tensor)


def _register_work(tensor: Any, work: _core.Work) -> None:
    """Record a work on an array until dldist.functional.wait_tensor(tensor) waits for it."""
    if not isinstance(work, _core.Work):
        raise TypeError(f"_register_work(): argument 'work' must be Work, not {type(work).__name__}")
    key = _memory_key(tensor)
    with _lock:
        _works.setdefault(key, []).append((tensor, work))


def take_works(tensor: Any) -> list[_core.Work]:
    """Remove and return the works in progress on an array."""
    if not _works:
        return []
    with _lock:
        entries = _works.pop(_memory_key(tensor), [])
    return [work for _, work in entries]


def _get_work_registry_size() -> int:
    """Return the number of recorded works."""
    with _lock:
        return sum(map(len, _works.values()))


def _set_allow_inflight_collective_as_graph_input(value: bool) -> None:
    """Set whether compiled functions accept arrays of unfinished works. No effect in dldist."""
    global _is_input_allowed
    _is_input_allowed = bool(value)


def _allow_inflight_collective_as_graph_input() -> bool:
    """Return the setting of _set_allow_inflight_collective_as_graph_input()."""
    return _is_input_allowed
