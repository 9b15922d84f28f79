"""Arguments of process groups' hooks. Modules that call hooks are imported with the first hook."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NamedTuple

from dldist._base.options import HookOpName


class PreHookArgs(NamedTuple):
    """The argument of a pre hook. op_id is the operation's number in its process group, from 0."""

    name: HookOpName
    async_op: bool
    input_tensors: list[Any]
    output_tensors: list[Any]
    root: int
    op_id: int


class PostHookArgs(NamedTuple):
    """The argument of a post hook: a started operation, its work, and the pre hook's op_id."""

    name: HookOpName
    async_op: bool
    work: Any
    op_id: int


class WorkInfo(NamedTuple):
    """A completed operation: the argument of the hook of `_register_on_completion_hook`.

    time_started is the time of the call; time_finished is when its end was noticed. active_duration
    is measured by device events if the group measures time; otherwise it is the difference of these
    times.
    """

    op_type: Any
    seq: int
    time_started: datetime
    time_finished: datetime
    active_duration: timedelta

    def __repr__(self) -> str:
        return f"<WorkInfo {self.op_type.name} {self.seq}: {self.active_duration.total_seconds():.6f} s>"


class CompletionHookArgs(NamedTuple):
    """The argument of a completion hook.

    completion_key is the op_id of pre and post hooks. duration_ms is measured by the work, or None.
    """

    completion_key: int
    duration_ms: float | None


def check_hook(method: str, hook: Any) -> Any:
    """Return the hook. Raise TypeError, in the name of `method`, if it is not callable."""
    if not callable(hook):
        raise TypeError(f"{method}(): argument 'hook' must be callable, not {type(hook).__name__}")
    return hook
