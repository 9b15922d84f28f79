"""Waiting for some of several works, which may be of different groups."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event
from time import monotonic
from typing import Any

from dldist import _core
from dldist._base.future import seconds_of
from dldist._base.works import FutureWork, ObjectWork
from dldist.types import Timeout

Works = Sequence[_core.Work | None]

_MAX_NAMED = 4


def wait_any(works: Works, timeout: Timeout | None = None) -> int:
    """Wait until one of the works has ended, and return its index. If it has failed, its exception
    is raised instead.

    All works share one sleep; nothing is polled. Replace a finished work with None, which is
    ignored, to wait for the rest.

    Args:
        works: Works of any groups.
        timeout: Seconds or a timedelta to wait. None waits until a work ends; works have their own
            timeouts.

    Raises:
        ValueError: The list has no work.
        DistTimeoutError: No work has ended. The works continue.

    Example:
        >>> inbox = [array("i", [0]) for _ in range(2)]
        >>> works = [dist.irecv(x, src=dist.get_rank(), tag=tag) for tag, x in enumerate(inbox)]
        >>> sent = dist.isend(array("i", [7]), dst=dist.get_rank(), tag=1)
        >>> dist.wait_any(works)
        1
        >>> works[0].cancel()
        True
    """
    return _raise_failures(works, _wait("wait_any", works, timeout)[:1])[0]


def wait_some(works: Works, timeout: Timeout | None = None) -> list[int]:
    """Wait until at least one of the works has ended. Return the indexes of all that have ended.

    Args:
        works: As in wait_any, like `timeout`.
    """
    return _raise_failures(works, _wait("wait_some", works, timeout))


def test_any(works: Works) -> int | None:
    """Return the index of a work that has ended, or None if there is none. Does not wait.

    Args:
        works: Works of any groups; None is ignored. A failed work's exception is raised.
    """
    _check("test_any", works, (_core.Work,))
    ended = _raise_failures(works, _ended(works)[:1])
    return ended[0] if ended else None


test_any.__test__ = False  # type: ignore[attr-defined]  # pytest must not collect it


def wait_all(works: Sequence[_core.Work | _core.Plan | None], timeout: Timeout | None = None) -> None:
    """Wait until all works, or the last starts of all plans, have ended. Raise the first failure.

    Args:
        works: Works of any groups, or Plans, but not both. None is ignored among Works.
        timeout: Seconds or a timedelta to wait for all of them.

    Raises:
        DistTimeoutError: Some have not ended. They continue.
    """
    _check("wait_all", works, (_core.Work, _core.Plan))
    if timeout is None and works and isinstance(works[0], _core.Plan):
        _core.wait_all(works)  # type: ignore[arg-type]
        return
    deadline = None if timeout is None else monotonic() + seconds_of(timeout)
    for work in works:
        if work is not None:
            work.wait(*([] if deadline is None else [max(deadline - monotonic(), 1e-9)]))


def _check(call: str, works: Any, kinds: tuple[type, ...]) -> None:
    if not isinstance(works, (list, tuple)):
        raise TypeError(f"{call}(): argument 'works' must be a list or tuple, not {type(works).__name__}")
    for index, work in enumerate(works):
        if work is not None and not isinstance(work, kinds):
            names = " or ".join(kind.__name__ for kind in kinds)
            raise TypeError(f"{call}(): argument 'works[{index}]' must be a {names}, or None, not {type(work).__name__}")


def _ended(works: Works) -> list[int]:
    return [index for index, work in enumerate(works) if work is not None and work.is_completed()]


def _raise_failures(works: Works, ended: list[int]) -> list[int]:
    for index in ended:
        work = works[index]
        assert work is not None
        work.wait()
    return ended


def _wait(call: str, works: Works, timeout: Timeout | None) -> list[int]:
    _check(call, works, (_core.Work,))
    pending = tuple(work for work in works if work is not None)
    if not pending:
        raise ValueError(f"{call}(): argument 'works' has no work: got {len(works)} entries, expected at least one that is not None")
    seconds = None if timeout is None else seconds_of(timeout)
    has_ended = _core._wait_any(pending, seconds)
    if has_ended is None:
        has_ended = _wait_for_event(pending, seconds)
    if not has_ended:
        names = ", ".join(map(repr, pending[:_MAX_NAMED])) + (", ..." if len(pending) > _MAX_NAMED else "")
        raise _core.DistTimeoutError(f"{call}(): none of {len(pending)} operations has ended after {seconds:.3g} s: {names} (timeout)")
    return _ended(works)


def _wait_for_event(works: tuple[_core.Work, ...], seconds: float | None) -> bool:
    """Wait for works of other kinds than the core's, or of several engines."""
    event = Event()
    for work in works:
        if isinstance(work, ObjectWork):
            _core._wait_any((work._pending,), 0)  # raises in a forked child, as for works of the core
        if isinstance(work, FutureWork):
            work._watch(event.set)
        else:
            work.get_future().add_done_callback(lambda _: event.set())
    return event.wait(seconds)
