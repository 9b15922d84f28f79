"""Works by the arrays that they write: c10d's registry, for libraries that hand on an array before its operation has ended."""

from __future__ import annotations

from _thread import allocate_lock
from typing import Any

from dldist import _core

_lock = allocate_lock()
_works: dict[int, list[tuple[Any, _core.Work]]] = {}
"""By the place of its memory: the array, which keeps the memory, and what is under way in it."""

_is_input_allowed = False


def _place_of(tensor: Any) -> int:
    """What tells its memory from all others; of an array without elements, the array itself from all others."""
    found = _core._describe_tensor(tensor, False)
    return found["data"] if found["count"] else -id(tensor)


def _register_work(tensor: Any, work: _core.Work) -> None:
    """Note that a work is under way in an array, until dldist.functional.wait_tensor(tensor) waits for it."""
    if not isinstance(work, _core.Work):
        raise TypeError(f"_register_work(): argument 'work' must be Work, not {type(work).__name__}")
    place = _place_of(tensor)
    with _lock:
        _works.setdefault(place, []).append((tensor, work))


def take(tensor: Any) -> list[_core.Work]:
    """What is under way in an array, which is forgotten."""
    if not _works:
        return []
    with _lock:
        noted = _works.pop(_place_of(tensor), [])
    return [work for _, work in noted]


def _get_work_registry_size() -> int:
    """How many works nobody has waited for."""
    with _lock:
        return sum(map(len, _works.values()))


def _set_allow_inflight_collective_as_graph_input(value: bool) -> None:
    """Say whether compiled functions may be given arrays in which works are under way; kept for those who ask."""
    global _is_input_allowed
    _is_input_allowed = bool(value)


def _allow_inflight_collective_as_graph_input() -> bool:
    """What has been said."""
    return _is_input_allowed
