"""Hooks in PyTorch's autograd, which pass gradients to a Reducer and receive the averages.

This module does not import torch when loaded: a program with torch parameters has imported it.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from dldist import _core
from dldist._base.arrays import private_memory
from dldist.reducer.buckets import Parameter, Slot, SparseSlot

if TYPE_CHECKING:
    from dldist.reducer import Reducer


def are_leaves(parameters: Iterable[Parameter]) -> bool:
    """Return True if all parameters are leaves for which torch's autograd accumulates gradients."""
    torch = sys.modules.get("torch")
    return torch is not None and all(
        isinstance(parameter.like, torch.Tensor) and parameter.like.is_leaf and parameter.like.requires_grad
        for parameter in parameters
    )


class Autograd:
    """The hooks on a Reducer's parameters, and their state in the backward pass.

    The hooks are on the graph nodes that accumulate gradients, which run also for parameters
    without a gradient. The hooks hold no strong reference to the Reducer.
    """

    def __init__(self, reducer: Reducer) -> None:
        import torch

        self._torch = torch
        self._reducer_ref = weakref.ref(reducer)  # weak: a cycle would delay freeing the Reducer
        self.has_begun = False
        """True once the first hook was called in this pass."""
        self.optimizer_in_backward = False
        self.futures: list[Any] = []
        """Futures to wait for at the end of the pass."""
        self.sparse_metadata: dict[str, Any] = {}
        """The rows of sparse gradients that may be non-zero on any rank, by parameter name."""
        self._used_earlier: set[int] = set()
        """Parameters whose gradients of unsynchronised passes must be sent in this pass."""
        self.has_outputs = False
        """True if prepare_for_backward() got the tensors from which backward() starts."""
        self._is_finish_queued = False
        self._call_counts = [0] * len(reducer._slots)
        """The number of calls of each hook in the first pass of a static graph."""
        self._calls_left: list[int] = []
        """The remaining calls of each hook in this pass, with a static graph."""
        with torch.enable_grad():
            self._nodes = [torch.autograd.graph.get_gradient_edge(slot.parameter.like).node for slot in reducer._slots]
        self._handles = [
            node.register_hook(functools.partial(_on_gradient, weakref.ref(self), index)) for index, node in enumerate(self._nodes)
        ]

    @property
    def _reducer(self) -> Any:
        return self._reducer_ref()

    def remove_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def begin_pass(self, outputs: list[Any]) -> None:
        """Begin a pass. Parameters on which `outputs` do not depend are unused."""
        self.has_begun = self._is_finish_queued = False
        self.has_outputs = bool(outputs)
        reducer = self._reducer
        self._calls_left = list(self._call_counts) if reducer._static_unused is not None else []
        if not outputs or not reducer._is_sync:
            return
        if reducer._is_static:
            if reducer._static_unused is None:
                self._delay_until_end_of(outputs)
        elif reducer._finds_unused:
            used = _reachable_nodes(self._torch, outputs)
            reducer._deferred = [index for index, node in enumerate(self._nodes) if node not in used]

    def _delay_until_end_of(self, outputs: list[Any]) -> None:
        """End the first pass of a static graph when the outermost backward pass ends."""

        def queue_finish(_gradient: Any) -> None:
            if not self._is_finish_queued:
                self._queue(self.finish_first_static_pass)

        for output in outputs:
            if output.requires_grad:
                output.register_hook(queue_finish)

    def _queue(self, function: Any) -> None:
        self._is_finish_queued = True
        self._torch.autograd.Variable._execution_engine.queue_callback(function)

    def on_gradient(self, index: int) -> None:
        """Handle a parameter whose gradient was accumulated, or is known not to exist."""
        reducer = self._reducer
        slot = reducer._slots[index]
        if not reducer._is_open or not reducer._is_sync:
            reducer._is_open = False
            if reducer._detects_unused and slot.parameter.like.grad is not None:
                self._used_earlier.add(index)
            return
        is_first, self.has_begun = not self.has_begun, True
        if reducer._is_static and reducer._static_unused is None:
            self._call_counts[index] += 1
            return
        if self._calls_left:
            self._calls_left[index] -= 1
            if self._calls_left[index] > 0:
                return
        self._take_gradient("autograd", slot)
        if self._is_finish_queued or reducer._is_finished_manually:
            return
        if reducer._next_index == len(reducer._buckets) or (is_first and reducer._finds_unused and not self.has_outputs):
            self._queue(reducer.finish)

    def _take_gradient(self, call: str, slot: Slot) -> None:
        reducer = self._reducer
        reducer._unmarked_slot(call, slot.parameter.index)
        self.fill(slot)
        reducer._mark_slot_ready(slot, slot.gradient is not None)

    def fill(self, slot: Slot) -> None:
        """Copy the parameter's gradient, or zeros if it has none, into the bucket."""
        grad = slot.parameter.like.grad
        if isinstance(slot, SparseSlot):
            self._fill_sparse(slot, grad)
            return
        if grad is None:
            _core._copy_tensor(slot.part, private_memory(slot.parameter.shape, slot.part.dtype))
            return
        if grad.layout is not self._torch.strided:
            raise RuntimeError(f"the gradient of parameter {slot.parameter} is sparse, expected dense; pass expect_sparse_gradients to Reducer")
        if self._reducer._is_view:
            self._use_view_as_gradient(slot, grad)
        else:
            self._reducer._copy_into_bucket(slot, grad)
        slot.gradient = slot.parameter.like.grad

    def _use_view_as_gradient(self, slot: Slot, grad: Any) -> None:
        view = slot.get_view()
        if grad.data_ptr() != view.data_ptr():
            self._reducer._copy_into_bucket(slot, grad)
            slot.parameter.like.grad = view

    def _fill_sparse(self, slot: SparseSlot, grad: Any) -> None:
        like = slot.parameter.like
        slot.gradient = grad
        if grad is None:
            grad = self._torch.sparse_coo_tensor(
                self._torch.empty((1, 0), dtype=self._torch.int64), like.detach().new_empty((0, *like.shape[1:])), like.shape
            )
        elif grad.layout is not self._torch.sparse_coo:
            raise RuntimeError(f"the gradient of parameter {slot.parameter} is dense, expected sparse, as expect_sparse_gradients was passed")
        slot.sent = grad
        if self.sparse_metadata:
            slot.rows, slot.sent = self._rows_of(slot, grad.coalesce())

    def _rows_of(self, slot: Slot, grad: Any) -> tuple[Any, Any]:
        """Return the rows that may be non-zero on any rank, and this rank's gradient in them."""
        name = slot.parameter.name
        rows = self.sparse_metadata.get(name or "")
        if rows is None:
            raise RuntimeError(f"_set_sparse_metadata(): argument 'metadata' lacks parameter {slot.parameter}")
        torch = self._torch
        rows = rows.to(torch.int64).flatten()
        own_rows = grad.indices().flatten()
        positions = torch.searchsorted(rows, own_rows).clamp(max=max(len(rows) - 1, 0))
        if len(own_rows) and (not len(rows) or not torch.equal(rows[positions], own_rows)):
            raise RuntimeError(f"the gradient of parameter {slot.parameter} has unexpected rows: expected only rows passed to _set_sparse_metadata()")
        values = grad.values().new_zeros((len(rows), *grad.values().shape[1:]))
        values[positions] = grad.values()
        return rows, values

    def mark_unused(self, slot: Slot) -> None:
        """Send the gradient that an unused parameter may still have from unsynchronised passes."""
        self.fill(slot)
        if slot.gradient is not None and not isinstance(slot, SparseSlot) and self._reducer._is_view:
            self._reducer._buckets[slot.bucket_index].fill()
            slot.save()
        if slot.parameter.index in self._used_earlier:
            self._reducer._used_map[slot.parameter.index] = 1

    def finish_first_static_pass(self) -> None:
        """Take the complete gradients, and finish the pass unless the caller will finish it."""
        reducer = self._reducer
        if not reducer._is_open or reducer._static_unused is not None:
            return
        self.has_begun = True
        for bucket in reducer._buckets:
            for slot in bucket.slots:
                if self._call_counts[slot.parameter.index]:
                    self._take_gradient("_delay_all_reduce", slot)
        if not reducer._is_finished_manually:
            reducer.finish()

    def wait_for_futures(self) -> None:
        futures, self.futures = self.futures, []
        for future in futures:
            future.wait()

    def restore_gradients(self, is_used: Any) -> None:
        """Store the averages as gradients of the parameters that any rank has used."""
        self._used_earlier.clear()
        if self.optimizer_in_backward or not self.has_begun:
            return
        for slot in self._reducer._slots:
            like = slot.parameter.like
            if not is_used(slot):
                continue
            if isinstance(slot, SparseSlot):
                like.grad = slot.result(self._torch)
            elif self._reducer._is_view:
                if like.grad is None or like.grad.data_ptr() != slot.get_view().data_ptr():
                    like.grad = slot.get_view()
            elif like.grad is not slot.gradient:
                like.grad = slot.gradient


def _on_gradient(autograd: weakref.ref[Autograd], index: int, *_gradients: Any) -> None:
    autograd_object = autograd()
    if autograd_object is not None:
        autograd_object.on_gradient(index)


def _reachable_nodes(torch: Any, outputs: Iterable[Any]) -> set[Any]:
    """Return the graph nodes that a backward pass from these tensors may reach."""
    reachable = {torch.autograd.graph.get_gradient_edge(output).node for output in outputs if output.requires_grad}
    pending = list(reachable)
    while pending:
        for node, _ in pending.pop().next_functions:
            if node is not None and node not in reachable:
                reachable.add(node)
                pending.append(node)
    return reachable


def tensors_of(output: Any) -> list[Any]:
    """Return the argument of prepare_for_backward(), one tensor or several, as a list."""
    torch = sys.modules.get("torch")
    tensor: Any = () if torch is None else torch.Tensor
    outputs = [output] if isinstance(output, tensor) else list(output)
    for each in outputs:
        if not isinstance(each, tensor):
            raise TypeError(
                f"prepare_for_backward(): argument 'output' must be tensors of PyTorch, not {type(each).__name__}; "
                "pass indices of parameters without a gradient as 'unused'"
            )
    return outputs
