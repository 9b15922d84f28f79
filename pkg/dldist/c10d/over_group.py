"""What the backends over a group of the extension have in common: c10d's low-level calls as calls of that group."""

from __future__ import annotations

from dldist.c10d.backend_base import Backend
from dldist.c10d.options import timeout_of

TYPE_CHECKING = False  # typing takes longer to import than all of this package
if TYPE_CHECKING:
    from typing import Any


class OverGroup(Backend):
    """A backend whose `group` has the methods of dldist.Group."""

    group: Any
    _can_match_dtype = True

    def _op(self, opts: Any) -> Any:
        """The reduction that options ask for, as the group takes it."""
        return opts.reduceOp

    def _how(self, opts: Any) -> dict[str, Any]:
        """The time-out of a call and whether the caller waits for it elsewhere, as the group takes them."""
        return {"timeout": timeout_of(opts), "async_op": True}

    def _run_allreduce(self, tensors: Any, opts: Any) -> Any:
        tensor = _single(self, "allreduce", "tensor", tensors)
        return self.group.all_reduce(tensor, self._op(opts), **self._how(opts))

    def _run_allreduce_coalesced(self, tensors: Any, opts: Any) -> Any:
        return self.group.all_reduce_coalesced(tensors, self._op(opts), **self._how(opts))

    def _run_broadcast(self, tensors: Any, opts: Any) -> Any:
        tensor = _single(self, "broadcast", "tensor", tensors)
        if opts.rootTensor != 0:
            raise RuntimeError(f"{type(self).__name__}::broadcast: invalid root tensor: {opts.rootTensor}")
        return self.group.broadcast(tensor, opts.rootRank, **self._how(opts))

    def _run_reduce(self, tensors: Any, opts: Any) -> Any:
        tensor = _single(self, "reduce", "tensor", tensors)
        if opts.rootTensor != 0:
            raise RuntimeError(f"{type(self).__name__}::reduce: invalid root tensor: {opts.rootTensor}")
        return self.group.reduce(tensor, opts.rootRank, self._op(opts), **self._how(opts))

    def _run_allgather(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        tensor = _single(self, "allgather", "input tensor", inputs)
        return self.group.all_gather(
            _single(self, "allgather", "output tensor", outputs), tensor, **self._how(opts)
        )

    def _run_allgather_coalesced(self, output_lists: Any, inputs: Any, opts: Any) -> Any:
        return self.group.all_gather_coalesced(output_lists, inputs, **self._how(opts))

    def _run_all_gather_single(self, output: Any, input: Any, opts: Any) -> Any:
        return self.group.all_gather_single(output, input, **self._how(opts))

    def _run_all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        return self.group.all_gather_single_coalesced(outputs, inputs, **self._how(opts))

    def _run_gather(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        tensor = _single(self, "gather", "input tensor", inputs)
        output_list = self._roots_list("gather", "output", outputs, opts.rootRank)
        return self.group.gather(tensor, output_list, opts.rootRank, **self._how(opts))

    def _run_gather_single(self, output: Any, input: Any, opts: Any) -> Any:
        return self.group.gather_single(input, output, opts.rootRank, **self._how(opts))

    def _run_scatter(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        tensor = _single(self, "scatter", "output tensor", outputs)
        input_list = self._roots_list("scatter", "input", inputs, opts.rootRank)
        return self.group.scatter(tensor, input_list, opts.rootRank, **self._how(opts))

    def _run_reduce_scatter(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        tensor = _single(self, "reduce_scatter", "output tensor", outputs)
        input_list = _single(self, "reduce_scatter", "input tensor", inputs)
        return self.group.reduce_scatter(tensor, input_list, self._op(opts), **self._how(opts))

    def _run_reduce_scatter_single(self, output: Any, input: Any, opts: Any) -> Any:
        return self.group.reduce_scatter_single(output, input, self._op(opts), **self._how(opts))

    def _run_reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        return self.group.reduce_scatter_coalesced(
            outputs, inputs, self._op(opts), **self._how(opts)
        )

    def _run_alltoall(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        return self.group.all_to_all(outputs, inputs, **self._how(opts))

    def _run_all_to_all_single(
        self, output: Any, input: Any, output_split_sizes: Any, input_split_sizes: Any, opts: Any
    ) -> Any:
        return self.group.all_to_all_single(
            output, input, output_split_sizes or None, input_split_sizes or None, **self._how(opts)
        )

    def _run_barrier(self, opts: Any) -> Any:
        return self.group.barrier(**self._how(opts))

    def _run_monitored_barrier(self, timeout: Any, wait_all_ranks: bool) -> None:
        self.group.monitored_barrier(timeout, wait_all_ranks)

    def _run_send(self, tensors: Any, dst: int, tag: int) -> Any:
        return self.group.isend(_message(self, "send", tensors), dst, tag)

    def _run_recv(self, tensors: Any, src: int, tag: int, match_dtype: bool = True) -> Any:
        return self.group.irecv(_message(self, "recv", tensors), src, tag, match_dtype=match_dtype)

    def _run_recv_anysource(self, tensors: Any, tag: int, match_dtype: bool = True) -> Any:
        return self.group.irecv(_message(self, "recv_anysource", tensors), None, tag, match_dtype=match_dtype)

    def _roots_list(self, method: str, side: str, lists: Any, root: int) -> Any:
        if self._rank != root:
            if len(lists) != 0:
                raise RuntimeError(f"{type(self).__name__}::{method}: requires empty {side} on non-root")
            return None
        return _single(self, method, side, lists)


def _single(backend: Backend, method: str, what: str, items: Any) -> Any:
    if len(items) != 1:
        raise RuntimeError(f"{type(backend).__name__}::{method}: requires a single-element {what} list, not one of {len(items)}")
    return items[0]


def _message(backend: Backend, method: str, tensors: Any) -> Any:
    if len(tensors) != 1:
        raise RuntimeError(f"{type(backend).__name__}::{method} takes a single tensor, not {len(tensors)}")
    return tensors[0]
