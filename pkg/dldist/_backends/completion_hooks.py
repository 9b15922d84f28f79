"""Hooks to call when operations complete. Imported when the first hook is registered."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from dldist import _core
from dldist._backends.hook_args import CompletionHookArgs, WorkInfo, check_hook
from dldist._base import callback_thread
from dldist._base.options import OpType


class Completions:
    """The completion hooks of one process group.

    A hook is called once for each operation that succeeds, on the thread that notices the end. It
    is not called for operations that fail or time out, or whose work has no future. An error of a
    hook goes to sys.unraisablehook, and the other hooks are still called.
    """

    def __init__(self) -> None:
        self._hooks: dict[int, Callable[[CompletionHookArgs], object]] = {}
        self._on_work_info: Callable[[WorkInfo], object] | None = None
        self._pending_count = 0
        self._changed = threading.Condition()

    def __bool__(self) -> bool:
        return bool(self._hooks) or self._on_work_info is not None

    def register(self, id: int, fn: Callable[[CompletionHookArgs], object]) -> None:
        self._hooks[id] = check_hook("register_completion_hook", fn)

    def unregister(self, id: int) -> None:
        self._hooks.pop(id, None)

    def register_on_work_info(self, hook: Callable[[WorkInfo], object]) -> None:
        check_hook("_register_on_completion_hook", hook)
        if self._on_work_info is not None:
            raise RuntimeError("_register_on_completion_hook(): the group already has a hook: got a second, expected one")
        self._on_work_info = hook

    def start(self, start: Callable[[], Any], op_id: int) -> Any:
        """Call `start`, which starts an operation; run the hooks when the operation completes."""
        started_at, start_s = datetime.now(), time.monotonic()
        work = start()
        future = _future_of(work)
        if future is not None:
            with self._changed:
                self._pending_count += 1
            future.add_done_callback(lambda future: self._on_end(future, work, op_id, started_at, start_s))
        return work

    def _on_end(self, future: Any, work: Any, op_id: int, started_at: datetime, start_s: float) -> None:
        elapsed = timedelta(seconds=time.monotonic() - start_s)
        try:
            if future.exception() is None:
                for hook, argument in self._hook_calls(work, op_id, started_at, elapsed):
                    _core._call_and_report(hook, argument)
        finally:
            with self._changed:
                self._pending_count -= 1
                self._changed.notify_all()

    def _hook_calls(self, work: Any, op_id: int, started_at: datetime, elapsed: timedelta) -> list[tuple[Callable[[Any], object], Any]]:
        """List pairs of a hook and its argument for a completed operation."""
        duration_ms = _duration_ms_of(work)
        args = CompletionHookArgs(op_id, duration_ms)
        calls: list[tuple[Callable[[Any], object], Any]] = [(fn, args) for fn in list(self._hooks.values())]
        if self._on_work_info is not None:
            active = elapsed if duration_ms is None else timedelta(milliseconds=duration_ms)
            info = WorkInfo(OpType(work._get_op_type()), _sequence_number(work, op_id), started_at, started_at + elapsed, active)
            calls.append((self._on_work_info, info))
        return calls

    def wait(self, timeout: timedelta) -> None:
        """Wait until started operations have ended and their hooks have returned. On the completion
        thread, which runs hooks, return immediately."""
        if callback_thread.is_completion_thread():
            return
        with self._changed:
            if not self._changed.wait_for(lambda: not self._pending_count, timeout.total_seconds()):
                raise _core.DistTimeoutError(f"_wait_for_pending_works(): {self._pending_count} operations are pending after {timeout} (timeout)")


def _future_of(work: Any) -> Any:
    """Return a work's future, or None if there is no work (the call has ended) or no future."""
    try:
        return None if work is None else work.get_future()
    except (AttributeError, RuntimeError):
        return None


def _duration_ms_of(work: Any) -> float | None:
    """Return the duration that the work measured, in milliseconds, or None if it measured none."""
    try:
        return float(work._get_duration())
    except (AttributeError, RuntimeError):
        return None


def _sequence_number(work: Any, op_id: int) -> int:
    """Return the number that the backend gave a work or, if none, op_id, the group's number."""
    try:
        return int(work._get_sequence_number())
    except RuntimeError:
        return op_id
