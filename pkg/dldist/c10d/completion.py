"""A hook that is called whenever an operation of a process group has ended. Imported when one is registered."""

from __future__ import annotations

import threading
import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from dldist import _core
from dldist.base import completions
from dldist.c10d.options import OpType

if TYPE_CHECKING:
    from collections.abc import Callable


class WorkInfo:
    """An operation that has ended: what the hook gets.

    It was called at time_started and seen to have ended at time_finished. active_duration is the time that the operation itself took: on
    a device by its events if the group measures times, and otherwise all of the time between the two.
    """

    def __init__(
        self, op_type: Any, seq: int, time_started: datetime, time_finished: datetime, active_duration: timedelta
    ) -> None:
        self.op_type = op_type
        self.seq = seq
        self.time_started = time_started
        self.time_finished = time_finished
        self.active_duration = active_duration

    def __repr__(self) -> str:
        return f"<WorkInfo {self.op_type.name} {self.seq}: {self.active_duration.total_seconds():.6f} s>"


class CompletionHook:
    """The hook of a process group. It is told of operations that have ended well, on the thread that notices the end."""

    def __init__(self, hook: Callable[[WorkInfo], object]) -> None:
        if not callable(hook):
            raise TypeError(f"_register_on_completion_hook(): argument 'hook' must be callable, not {type(hook).__name__}")
        self._hook = hook
        self._under_way = 0
        self._changed = threading.Condition()

    def start(self, start: Callable[[], Any], op_id: int) -> Any:
        """Start an operation, and tell the hook when it has ended."""
        at, tick = datetime.now(), time.monotonic()
        work = start()
        if work is None:  # monitored_barrier has ended, and makes none
            return None
        with self._changed:
            self._under_way += 1
        work.get_future().add_done_callback(lambda future: self._ended(future, work, op_id, at, tick))
        return work

    def _ended(self, future: Any, work: Any, op_id: int, at: datetime, tick: float) -> None:
        try:
            if future.exception() is None:
                elapsed = timedelta(seconds=time.monotonic() - tick)
                active = _active_duration_of(work)
                kind, number = OpType(work._get_op_type()), _number_of(work, op_id)
                self._hook(WorkInfo(kind, number, at, at + elapsed, elapsed if active is None else active))
        finally:
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()

    def wait(self, timeout: timedelta) -> None:
        """Wait until all operations that have begun have ended, and the hook knows. The hook itself, which calls this on the thread that
        tells it, does not wait."""
        if completions.is_completion_thread():
            return
        with self._changed:
            if not self._changed.wait_for(lambda: not self._under_way, timeout.total_seconds()):
                raise _core.DistTimeoutError(
                    f"_wait_for_pending_works(): {self._under_way} operations have not ended in {timeout} (timeout)"
                )


def _active_duration_of(work: Any) -> timedelta | None:
    """What the work itself has measured; None if it has not."""
    try:
        return timedelta(milliseconds=work._get_duration())
    except RuntimeError:
        return None


def _number_of(work: Any, op_id: int) -> int:
    """The number of a work, of a backend that counts; else that of the process group."""
    try:
        return int(work._get_sequence_number())
    except RuntimeError:
        return op_id
