"""The arguments of a process group's hooks. The modules that call hooks are imported when the first one is registered."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NamedTuple

from dldist._base.options import HookOpName


class PreHookArgs(NamedTuple):
    """The argument of a pre hook: the operation, and op_id, its number on this process group, from 0."""

    name: HookOpName
    async_op: bool
    input_tensors: list[Any]
    output_tensors: list[Any]
    root: int
    op_id: int


class PostHookArgs(NamedTuple):
    """The argument of a post hook: the started operation, with the same op_id as its pre hook got, and its work."""

    name: HookOpName
    async_op: bool
    work: Any
    op_id: int


class WorkInfo:
    """An operation that has ended: the argument of the hook of `_register_on_completion_hook`.

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


class CompletionHookArgs(NamedTuple):
    """The argument of a completion hook.

    completion_key is the op_id that the pre and post hooks of the operation get. duration_ms is the time that the work has measured,
    None if it measures none.
    """

    completion_key: int
    duration_ms: float | None
