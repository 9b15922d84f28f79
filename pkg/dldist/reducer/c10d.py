"""Names that c10d has for what a Reducer does."""

from __future__ import annotations

from dldist.base.future import Future
from dldist.c10d.options import BuiltinCommHookType

TYPE_CHECKING = False  # as in the modules that have to be cheap to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from dldist.reducer import Reducer
    from dldist.reducer.comm import GradBucket
    from dldist.reducer.log import Logger


class C10dNames:
    """The methods of c10d's Reducer that mean something without autograd, in terms of ours."""

    def _autograd_hook(self: Any, index: int) -> None:
        self.mark_ready(index)

    def _check_reducer_finalized(self: Any, call: str = "") -> None:
        if self._is_open:
            text = self._missing_text()
            raise RuntimeError(f"{call}the pass before has not ended: {text}finish() ends it, reset() gives it up")

    def _ddp_graph_static(self: Any) -> bool:
        return bool(self._is_static)

    def _set_static_graph(self: Any) -> None:
        if self._times.passes or self._is_open:
            raise RuntimeError("_set_static_graph(): must be called before the first pass")
        self._is_static = True

    def _get_local_used_map(self: Any) -> Any:
        return self._used

    def _get_zeros_like_grad_buckets(self: Any) -> list[GradBucket]:
        from dldist.reducer.buckets import private_memory

        buckets = [self._grad_bucket(bucket) for bucket in self._buckets]
        for bucket in buckets:
            zeros = private_memory(bucket.memory.shape, bucket.memory.dtype)
            bucket.set_buffer(bucket.view(zeros))
        return buckets

    def _rebuild_buckets(self: Any) -> bool:
        return bool(self._has_rebuilt)

    def _reset_state(self: Any) -> None:
        self.reset()

    def _run_allreduce_hook(self: Any, bucket: GradBucket) -> Future:
        future: Future = self._all_reduce(bucket.buffer()).get_future()
        return future

    def _run_comm_hook(self: Any, bucket: GradBucket) -> Any:
        return self._run_allreduce_hook(bucket) if self._hook is None else self._run_hook(bucket)

    def _update_process_group(self: Any, new_process_group: Any) -> None:
        self.use_group(new_process_group)

    def get_backward_stats(self: Any) -> list[int]:
        """When each gradient of the last pass came, in nanoseconds after prepare_for_backward(); 0 for those that did not."""
        return list(self._times.ready_ns)

    def set_logger(self: Any, logger: Logger) -> None:
        """Nothing to do: a Logger asks its reducer."""


def _register_comm_hook(reducer: Reducer, state: Any, comm_hook: Callable[[Any, GradBucket], Any]) -> None:
    """reducer.register_comm_hook(state, comm_hook)"""
    reducer.register_comm_hook(state, comm_hook)


def _register_builtin_comm_hook(reducer: Reducer, comm_hook_type: Any) -> None:
    """Have buckets reduced as they are (ALLREDUCE), or as float16 (FP16_COMPRESS)."""
    from dldist import comm_hooks

    hooks = {
        BuiltinCommHookType.ALLREDUCE: comm_hooks.allreduce_hook,
        BuiltinCommHookType.FP16_COMPRESS: comm_hooks.fp16_compress_hook,
    }
    if comm_hook_type not in hooks:
        raise TypeError(f"_register_builtin_comm_hook(): {comm_hook_type!r} is no BuiltinCommHookType")
    reducer.register_comm_hook(reducer._operations, hooks[comm_hook_type])
