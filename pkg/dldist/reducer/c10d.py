"""torch.distributed's names for the methods of a Reducer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from dldist import comm_hooks
from dldist._base.arrays import private_memory
from dldist._base.options import BuiltinCommHookType
from dldist.reducer.comm import GradBucket
from dldist.reducer.log import Logger

if TYPE_CHECKING:
    from dldist.reducer import Reducer


class C10dMethods:
    """The methods of torch's Reducer, as a base class of dldist's Reducer."""

    _bucket_dtype: str | None
    """The dtype of all buckets, or None if each bucket has its parameters' dtype."""
    _is_finished_manually: bool
    """False if autograd ends the pass when the last bucket is full."""
    _forward_work: tuple[Any, bool] | None
    """For torch's join: the work that counts active ranks; True to divide by the group's size."""

    def _autograd_hook(self: Any, index: int) -> None:
        if self._autograd is None:
            self.mark_ready(index)
        else:
            self._autograd.on_gradient(index)

    def _check_reducer_finalized(self: Any, call: str = "") -> None:
        has_begun = self._autograd is None or self._autograd.has_begun or self._order
        if self._is_open and has_begun:
            raise RuntimeError(
                f"{call}Expected to have finished reduction in the prior iteration before starting a new one: "
                f"{self._missing_text()}if this is intended, create the Reducer with find_unused_parameters=True; finish() "
                "ends the prior pass, reset() discards it"
            )

    def _ddp_graph_static(self: Any) -> bool:
        return bool(self._is_static)

    def _set_static_graph(self: Any) -> None:
        if self._times.passes or self._is_open:
            raise RuntimeError("_set_static_graph(): must be called before the first pass")
        self._is_static = True

    def _set_manual_finalization_required(self: Any, required: bool) -> None:
        """Require _finalize_backward_manual() to end later passes, instead of autograd."""
        if self._is_open:
            raise RuntimeError("_set_manual_finalization_required(): got a call during a pass, expected it between passes")
        self._is_finished_manually = bool(required)

    def _should_finalize_after_backward(self: Any) -> bool:
        """Return True if the pass cannot end in a hook, but only after backward() has returned."""
        return bool(self._may_rebuild or self._finds_unused_at_end)

    def _finalize_backward_manual(self: Any) -> None:
        """Wait for all buckets, and store the averages in the parameters' gradients."""
        call = "_finalize_backward_manual()"
        if not self._is_finished_manually:
            raise RuntimeError(f"{call}: autograd ends passes; call _set_manual_finalization_required(True) first")
        if not self._is_open or not self._is_sync:
            raise RuntimeError(f"{call}: no pass to end: it has already ended, or no_sync() is active")
        if self._next_index < len(self._buckets) and not (self._finds_unused_at_end and self._autograd.has_begun):
            raise RuntimeError(
                f"{call}: incomplete pass: got {self._next_index} full buckets, expected {len(self._buckets)}: {self._missing_text()}call it later"
            )
        self.finish()

    @property
    def _finds_unused_at_end(self: Any) -> bool:
        """True if unused parameters are known only at the end of the pass."""
        if self._autograd is None or not self._detects_unused:
            return False
        return bool(self._is_static or not self._autograd.has_outputs)

    def _delay_all_reduce(self: Any) -> None:
        _autograd_of(self, "_delay_all_reduce").finish_first_static_pass()

    def _remove_autograd_hooks(self: Any) -> None:
        if self._autograd is not None:
            self._autograd.remove_hooks()

    def _install_post_backward_futures(self: Any, futures: Iterable[Any]) -> None:
        _autograd_of(self, "_install_post_backward_futures").futures += futures

    def _set_optimizer_in_backward(self: Any) -> None:
        _autograd_of(self, "_set_optimizer_in_backward").optimizer_in_backward = True

    def _set_sparse_metadata(self: Any, global_unique_ids: dict[str, Any]) -> None:
        _autograd_of(self, "_set_sparse_metadata").sparse_metadata.update(global_unique_ids)

    def _set_mixed_precision_param_dtype(self: Any, dtype: Any) -> None:
        self._check_reducer_finalized("_set_mixed_precision_param_dtype(): ")
        self._bucket_dtype = str(dtype).rpartition(".")[2]
        members = [[slot.parameter.index for slot in bucket.slots] for bucket in self._buckets]
        self._make_buckets(members, [bucket.limit for bucket in self._buckets])

    def _set_forward_pass_work_handle(self: Any, work: Any, use_static_world_size: bool) -> None:
        self._forward_work = (work, use_static_world_size)

    def _set_ddp_runtime_logging_sample_rate(self: Any, sample_rate: int) -> None:
        if sample_rate < 1:
            raise ValueError(f"_set_ddp_runtime_logging_sample_rate(): argument 'sample_rate' must be 1 or more, not {sample_rate}")
        self._times.sample_rate = sample_rate

    def _get_local_used_map(self: Any) -> Any:
        """Return the parameters that this rank has used in the current pass."""
        if self._autograd is None:
            return self._used
        used_map = self._buckets[0].view_of(self._used)
        return used_map if self._is_open else used_map.new_zeros(used_map.shape)

    def _get_zeros_like_grad_buckets(self: Any) -> list[GradBucket]:
        buckets = [self._grad_bucket(bucket) for bucket in self._buckets]
        for bucket in buckets:
            zeros = private_memory(bucket.memory.shape, bucket.memory.dtype)
            bucket.set_buffer(bucket.view(zeros))
        return buckets

    def _rebuild_buckets(self: Any) -> bool:
        """Rebuild buckets if pending, and return True if this call rebuilt them. Without autograd,
        return True if buckets were ever rebuilt."""
        if self._autograd is None:
            return bool(self._has_rebuilt)
        self._check_reducer_finalized()
        if not self._may_rebuild or not self._has_order:
            return False
        self._rebuild_if_pending()
        return True

    def _push_all_rebuilt_params(self: Any) -> None:
        """On a joined rank, let the next _rebuild_buckets() rebuild buckets here too."""
        self._has_order = True

    def _reset_state(self: Any) -> None:
        self.reset()

    def _run_allreduce_hook(self: Any, bucket: GradBucket) -> Any:
        """All-reduce to the sum, even if the Reducer averages, because torch divides afterwards."""
        work = self._operations.all_reduce(bucket.buffer(), "sum", timeout=self._timeout, async_op=True)
        return work.get_future()

    def _run_comm_hook(self: Any, bucket: GradBucket) -> Any:
        return self._run_allreduce_hook(bucket) if self._hook is None else self._run_hook(bucket)

    def _update_process_group(self: Any, new_process_group: Any) -> None:
        self.use_group(new_process_group)

    def get_backward_stats(self: Any) -> list[int]:
        """Return the time at which each gradient of the last pass was ready, in nanoseconds after
        prepare_for_backward(); 0 for a parameter without a gradient."""
        return list(self._times.ready_ns)

    def set_logger(self: Any, logger: Logger) -> None:
        """Do nothing, because a Logger reads from its Reducer."""


def _autograd_of(reducer: Any, call: str) -> Any:
    if reducer._autograd is None:
        raise RuntimeError(f"{call}(): the Reducer has no hooks in autograd: expected only leaves of PyTorch's autograd as parameters")
    return reducer._autograd


def _register_comm_hook(reducer: Reducer, state: Any, comm_hook: Callable[[Any, GradBucket], Any]) -> None:
    """Call reducer.register_comm_hook(state, comm_hook)."""
    reducer.register_comm_hook(state, comm_hook)


def _register_builtin_comm_hook(reducer: Reducer, comm_hook_type: Any) -> None:
    """Register a built-in hook: ALLREDUCE sends buckets unchanged, FP16_COMPRESS as float16."""
    hooks = {
        BuiltinCommHookType.ALLREDUCE: comm_hooks.allreduce_hook,
        BuiltinCommHookType.FP16_COMPRESS: comm_hooks.fp16_compress_hook,
    }
    if comm_hook_type not in hooks:
        raise TypeError(f"_register_builtin_comm_hook(): argument 'comm_hook_type' must be a BuiltinCommHookType, not {comm_hook_type!r}")
    reducer.register_comm_hook(reducer._operations, hooks[comm_hook_type])
