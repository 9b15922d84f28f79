"""Average the gradients of data-parallel training in buckets, while gradients are still computed.

    reducer = dldist.Reducer(parameters)
    parameters = reducer.broadcast_parameters()
    for batch in batches:
        reducer.prepare_for_backward()
        for index in reversed(range(len(parameters))):        # in any order
            reducer.mark_ready(index, gradient_of(index))
        reducer.finish()
        update(parameters, reducer.gradients())

Parameters and gradients are arrays of any library. For PyTorch's parameters, a backward pass makes
the calls of mark_ready() and finish().
"""

from __future__ import annotations

import array
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from dldist import _core
from dldist._api.groups import get_backend
from dldist._backends import sparse
from dldist._base import argument_names, arrays
from dldist._base.options import as_int
from dldist.functional.form import as_index, operations_of
from dldist.reducer.autograd import Autograd, are_leaves, tensors_of
from dldist.reducer.buckets import BUCKET_BYTES, FIRST_BUCKET_BYTES, Bucket, Parameter, Slot, SparseBucket, SparseSlot, allocator_of
from dldist.reducer.buckets import compute_bucket_assignment_by_size as _compute_bucket_assignment_by_size
from dldist.reducer.c10d import C10dMethods, _register_builtin_comm_hook, _register_comm_hook
from dldist.reducer.comm import GradBucket, collect, is_pending
from dldist.reducer.log import Logger, Times
from dldist.reducer.verify import BROADCAST_BYTES, broadcast, verify
from dldist.reducer.verify import broadcast_coalesced as _broadcast_coalesced
from dldist.reducer.verify import verify_params_across_processes as _verify_params_across_processes
from dldist.types import AnyGroup, Tensor, Timeout

__all__ = [
    "GradBucket",
    "Join",
    "Logger",
    "Reducer",
    "_broadcast_coalesced",
    "_compute_bucket_assignment_by_size",
    "_register_builtin_comm_hook",
    "_register_comm_hook",
    "_verify_params_across_processes",
]


class Join:
    """The value of `with reducer.join()`."""

    def __init__(self, divide_by_initial_world_size: bool) -> None:
        self.divide_by_initial_world_size = divide_by_initial_world_size
        self.last_rank: int | None = None
        """The lowest rank that was active in the last pass. This rank has made all updates."""


class Reducer(C10dMethods):
    """Averages gradients over a group's ranks, in buckets, while gradients are still computed.

    A pass consists of prepare_for_backward(), mark_ready() for every parameter, and finish(). Calls
    must not be concurrent. If all parameters are leaves of PyTorch's autograd, a backward pass
    after prepare_for_backward() makes the other calls, and stores the averages in the parameters'
    `grad`.

    Args:
        params: Arrays, or objects with a shape and a dtype, which must match on all ranks.
        bucket_indices: The parameters of each bucket. By default, buckets are filled from the last
            parameter to the first, and rebuilt after the first pass in the order in which gradients
            were ready. Given buckets are rebuilt only with autograd.
        per_bucket_size_limits: The size limits of the given buckets; only used in statistics.
        process_group: A World or Group, or a group of new_group; None is the default world.
        expect_sparse_gradients: For each parameter, True if the gradient is sparse. Needs autograd.
        bucket_bytes_cap: The size in bytes at which a bucket is full.
        find_unused_parameters: True if parameters may have no gradient in a pass.
        gradient_as_bucket_view: True if gradients are written into gradient(index), without a copy.
        param_to_name_mapping: Names of parameters for error messages, by index.
        first_bucket_bytes_cap: The size in bytes at which the first bucket is full.
        skip_all_reduce_unused_params: True sends nothing for a bucket without used parameters. The
            unused parameters must be the same on all ranks.
        use_python_reducer: True if the caller, not the Reducer, installs hooks in autograd.
        bucket_bytes_cap_list: Size limits for rebuilding buckets after the first pass; the last
            limit applies to all further buckets. If empty, the limits stay the same.
        batched_grad_copy: True copies all gradients of a bucket when the last of them is ready.
        lazy_bucket_allocation: No effect: the ranks allocate shared bucket memory together.
        op: "avg" or "sum".
        static_graph: True if the unused parameters of the first pass are unused in all passes.
        timeout: Seconds or a timedelta for each collective. None is the group's timeout.

    Raises:
        ValueError: There are no parameters, one is not in CPU memory, or buckets are invalid.
        DistMismatchError: The parameters differ between ranks.

    Example:
        >>> reducer = dist.Reducer([array("f", [0, 0])])
        >>> reducer.reduce([array("f", [1, 2])])              # a whole pass
        [array('f', [1.0, 2.0])]
    """

    def __init__(
        self,
        params: Iterable[Any],
        bucket_indices: Sequence[Sequence[int]] | None = None,
        per_bucket_size_limits: Sequence[int] | None = None,
        process_group: AnyGroup | None = None,
        expect_sparse_gradients: Sequence[bool] = (),
        bucket_bytes_cap: int = BUCKET_BYTES,
        find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = False,
        param_to_name_mapping: Mapping[int, str] | None = None,
        first_bucket_bytes_cap: int = FIRST_BUCKET_BYTES,
        skip_all_reduce_unused_params: bool = False,
        use_python_reducer: bool = False,
        bucket_bytes_cap_list: Sequence[int] = (),
        batched_grad_copy: bool = False,
        lazy_bucket_allocation: bool = False,
        *,
        op: str = "avg",
        static_graph: bool = False,
        timeout: Timeout | None = None,
    ) -> None:
        if op not in ("avg", "sum"):
            raise ValueError(f"Reducer(): argument 'op' is unknown: got {op!r}, expected 'avg' or 'sum'")
        names = param_to_name_mapping or {}
        self._parameters = [Parameter(index, x, names.get(index)) for index, x in enumerate(params)]
        _check_parameters(self._parameters)
        self._expects_sparse = list(expect_sparse_gradients)
        has_autograd = not use_python_reducer and are_leaves(self._parameters)
        _check_sparse(self._expects_sparse, self._parameters, has_autograd)
        _check_buckets(bucket_indices, self._parameters)
        self._given_buckets = bucket_indices
        self._given_limits = per_bucket_size_limits
        self._limits = [first_bucket_bytes_cap, bucket_bytes_cap]
        self._later_limits = list(bucket_bytes_cap_list) or self._limits
        self._skips_unused = skip_all_reduce_unused_params
        self._is_batched = batched_grad_copy
        self._finds_unused = find_unused_parameters
        self._is_view = gradient_as_bucket_view
        self._op = op
        self._is_static = static_graph
        self._is_finished_manually = False
        self._timeout = timeout
        self._hook: Callable[[Any, GradBucket], Any] | None = None
        self._hook_state: Any = None
        self._is_sync = True
        self._join: Join | None = None
        self._forward_work = None
        self._bucket_dtype = None
        self._autograd: Autograd | None = None
        self._operations: Any = None
        self._buckets: list[Bucket] = []
        self.use_group(process_group)
        if has_autograd:
            self._autograd = Autograd(self)

    def __repr__(self) -> str:
        return f"<dldist.Reducer: {len(self._slots)} parameters in {len(self._buckets)} buckets, rank {self._operations.rank}>"

    def use_group(self, process_group: AnyGroup | None) -> None:
        """Continue with another group, like a new Reducer. All ranks of the group must call this.

        Use this after ranks were lost. Drops the current pass. If a hook's state is the old group,
        the state becomes the new group.

        Args:
            process_group: A World or Group, or a group of new_group; None is the default world.

        Raises:
            DistMismatchError: The parameters differ between ranks.
        """
        operations = operations_of(process_group)
        self._backend_name = _backend_name(process_group)
        if self._hook is not None and self._hook_state is self._operations:
            self._hook_state = operations
        self._operations = operations
        self._allocate = allocator_of(operations)
        self._times = Times(len(self._parameters))
        self._has_rebuilt = False
        self._static_unused: frozenset[int] | None = None
        self._order: list[int] = []
        self._has_order = False
        """True once a pass has shown the order of gradients; also on joined ranks."""
        self._deferred: Iterable[int] = ()
        used: Any = self._allocate(len(self._parameters), "int32")
        self._used = used
        self._used_map = memoryview(used)
        is_sparse = self._expects_sparse or [False] * len(self._parameters)
        self._slots = [(SparseSlot if sparse else Slot)(parameter) for sparse, parameter in zip(is_sparse, self._parameters, strict=True)]
        self._make_buckets(*self._first_assignment())
        self._first_bucket_sizes = [bucket.nbytes for bucket in self._buckets]
        self._is_open = False
        self._next_index = 0
        # verify() must be last: other ranks may need this rank to create shared buckets first.
        verify(operations, self._parameters, self._timeout)

    def _first_assignment(self) -> tuple[Sequence[Sequence[int]], Sequence[int]]:
        if self._given_buckets is not None:
            return self._given_buckets, self._given_limits or [self._limits[-1]] * len(self._given_buckets)
        # Assign the last parameters first, because backward passes begin with them.
        return self._assign(list(reversed(range(len(self._parameters)))), self._limits)

    def _assign(self, order: list[int], limits: list[int]) -> tuple[list[list[int]], list[int]]:
        parameters = [self._parameters[index] for index in order]
        return _compute_bucket_assignment_by_size(parameters, limits, self._expects_sparse, order)

    def _make_buckets(self, members: Sequence[Sequence[int]], limits: Sequence[int]) -> None:
        self._buckets = [
            self._make_bucket(number, indices, limit) for number, (indices, limit) in enumerate(zip(members, limits, strict=True))
        ]

    def _make_bucket(self, number: int, indices: Sequence[int], limit: int) -> Bucket:
        slots = [self._slots[index] for index in indices]
        kind = SparseBucket if isinstance(slots[0], SparseSlot) else Bucket
        return kind(number, slots, limit, self._allocate, self._bucket_dtype)

    @property
    def _may_rebuild(self) -> bool:
        is_free = self._given_buckets is None or self._autograd is not None
        return not self._has_rebuilt and is_free and (self._is_static or not self._finds_unused)

    def _rebuild_if_pending(self) -> None:
        """After the first pass, rebuild buckets in the order of rank 0's gradients."""
        if not self._may_rebuild:
            return
        # Parameters without a gradient come last in the order.
        order = array.array("q", dict.fromkeys([*self._order, *reversed(range(len(self._slots)))]))
        self._operations.broadcast(order, 0, timeout=self._timeout)
        if sorted(order) != list(range(len(self._slots))):
            raise _core.DistMismatchError(f"malformed order of gradients from rank 0: got {list(order)}, expected each of {len(self._slots)} once")
        self._make_buckets(*self._assign(list(order), self._later_limits))
        # A rank must not fail before all ranks have created their shared buckets.
        self._operations.barrier(timeout=self._timeout)
        self._has_rebuilt = True

    def broadcast_parameters(
        self, tensors: Sequence[Tensor] | None = None, src: int = 0, buffer_size: int = BROADCAST_BYTES
    ) -> list[Any]:
        """Copy one rank's parameters, or other tensors such as buffers of a model, to all ranks.
        Return the arrays, new ones instead of immutable ones.

        Args:
            tensors: The tensors to send or overwrite. None means the parameters.
            src: The rank of the group that has the values.
            buffer_size: The number of bytes per broadcast.

        Raises:
            ValueError: The parameters are not arrays.
        """
        parameters = self._parameters if tensors is None else [Parameter(index, x) for index, x in enumerate(tensors)]
        if any(parameter.is_template for parameter in parameters):
            raise ValueError("broadcast_parameters(): argument 'tensors': got only shapes of parameters, expected arrays")
        return broadcast(self._operations, parameters, as_int("broadcast_parameters(): argument 'buffer_size'", buffer_size), src, self._timeout)

    def prepare_for_forward(self) -> None:
        """Record the start of a forward pass, for the statistics. Optional."""
        self._times.begin_forward()

    def prepare_for_backward(self, output: Any = (), *, unused: Iterable[int] = ()) -> None:
        """Begin a pass. In a no_sync() block, gradients are accumulated and not sent.

        Args:
            output: With autograd and find_unused_parameters, the tensors from which the backward
                pass starts. Parameters that the tensors do not depend on are unused. If empty,
                unused parameters are known at the end of the pass. With static_graph, the first
                pass ends with the backward pass of these tensors.
            unused: Indices of parameters that will get no gradient on this rank; see mark_unused.

        Raises:
            RuntimeError: The previous pass has not ended.
            TypeError: `output` is not tensors of PyTorch.
        """
        outputs = tensors_of(output)
        self._check_reducer_finalized("prepare_for_backward(): ")
        if self._join is not None and self._is_sync:
            self._announce(self._join, True)
        if self._autograd is not None and self._has_order:
            self._rebuild_if_pending()
        self._begin_pass()
        if self._autograd is not None:
            self._autograd.begin_pass(outputs)
        for index in unused:
            self.mark_unused(index)

    def _begin_pass(self) -> None:
        self._is_open = True
        self._next_index = 0
        self._order = []
        for slot in self._slots:
            slot.begin_pass()
        for bucket in self._buckets:
            bucket.begin_pass()
        self._times.begin_backward()
        if not self._is_sync:
            return
        if self._detects_unused:
            self._used_map[:] = array.array("i", bytes(self._used.nbytes))
        self._deferred = self._static_unused or ()
        if self._autograd is None:
            self._mark_deferred_unused()

    def _mark_deferred_unused(self) -> None:
        """Mark parameters that are known to be unused; with autograd, during the backward pass."""
        deferred, self._deferred = self._deferred, ()
        for index in deferred:
            if not self._slots[index].is_ready:
                self._mark_slot_unused(self._slots[index])

    def mark_ready(self, index: int, gradient: Tensor | None = None) -> None:
        """Pass the gradient of a parameter. If it completes the next bucket, send the bucket.

        Args:
            index: The index of the parameter.
            gradient: The gradient, which finish() will overwrite with the average. None if the
                caller wrote it to the view gradient(index), with gradient_as_bucket_view.

        Raises:
            RuntimeError: No pass has begun, or the parameter was already marked in this pass.
            IndexError: The parameter does not exist.
            TypeError, ValueError: The gradient is not an array, or has another shape.
        """
        slot = self._unmarked_slot("mark_ready", index)
        if gradient is not None and gradient is not slot.view:
            self._copy_gradient(slot, gradient)
        elif not self._is_view:
            raise TypeError(f"mark_ready(): argument 'gradient' of parameter {slot.parameter}: got None, expected an array")
        elif slot.view is None:
            raise RuntimeError(
                f"mark_ready(): argument 'gradient' of parameter {slot.parameter}: got None, but gradient({index}) was not called "
                "after the buckets were rebuilt; write to the array that it returns"
            )
        if self._is_sync:
            self._mark_slot_ready(slot, True)
        else:
            slot.is_ready = slot.is_partial = True

    def _mark_slot_ready(self, slot: Slot, is_used: bool) -> None:
        """Record that the gradient of a parameter is in its bucket, and send full buckets."""
        slot.is_ready = True
        self._order.append(slot.parameter.index)
        if is_used:
            self._used_map[slot.parameter.index] = 1
        self._times.record_ready(slot.parameter.index)
        self._count_ready(slot)

    def mark_unused(self, index: int) -> None:
        """Mark a parameter as having no gradient on this rank in this pass; zeros are sent.

        Requires find_unused_parameters. finish() treats all unmarked parameters as unused; marking
        them allows buckets to be sent earlier. A gradient that no rank has is left unchanged.

        Args:
            index: The index of the parameter.

        Raises:
            RuntimeError: find_unused_parameters is false, no pass has begun, or it is marked
                already.
        """
        slot = self._unmarked_slot("mark_unused", index)
        if not self._detects_unused:
            raise RuntimeError(f"mark_unused(): got parameter {slot.parameter} without find_unused_parameters=True in Reducer()")
        self._mark_slot_unused(slot)

    @property
    def _detects_unused(self) -> bool:
        """True if the ranks exchange which parameters they have used in this pass."""
        return self._static_unused is None if self._is_static else self._finds_unused

    def _unmarked_slot(self, call: str, index: int) -> Slot:
        if not self._is_open:
            raise RuntimeError(f"{call}(): no pass has started; call prepare_for_backward() first")
        if self._deferred:
            self._mark_deferred_unused()
        slot = self._slot(call, index)
        if slot.is_ready:
            if slot.parameter.index in (self._static_unused or ()):
                reason = "is unused: it had no gradient in the first pass, expected the same in all with static_graph"
            else:
                reason = "is already marked in this pass"
            raise RuntimeError(f"{call}(): parameter {slot.parameter} {reason}")
        return slot

    def _slot(self, call: str, index: int) -> Slot:
        number = index if index.__class__ is int else as_index(index)
        if number is None or not 0 <= number < len(self._slots):
            raise IndexError(f"{call}(): argument 'index' is out of range: got {index!r}, expected 0 to {len(self._slots) - 1}")
        return self._slots[number]

    def _copy_gradient(self, slot: Slot, gradient: Any) -> None:
        """Copy the caller's gradient into the bucket."""
        param = slot.parameter
        family = arrays.find_family(gradient)
        if family is None:
            raise TypeError(f"{argument_names.title('gradient')} of parameter {param} must be an array, not {type(gradient).__name__}")
        shape = family.shape(gradient)
        if shape != param.shape:
            raise ValueError(f"{argument_names.title('gradient')} of parameter {param} has another shape: got {shape}, expected {param.shape}")
        self._copy_into_bucket(slot, family.source(gradient))
        if self._is_sync:
            slot.gradient = gradient

    def _copy_into_bucket(self, slot: Slot, gradient: Any) -> None:
        """Copy the gradient into the bucket, or add it to the sum of unsynchronised passes. A
        batched copy waits until the bucket is full."""
        if self._is_batched and self._is_sync and not slot.is_partial:
            self._buckets[slot.bucket_index].pending_copies.append((slot, gradient))
            return
        operation = _core._reduce_tensor if slot.is_partial else _core._copy_tensor
        try:
            operation(slot.part, arrays.source_of(gradient))
        except (TypeError, ValueError) as error:
            raise type(error)(f"mark_ready(): argument 'gradient' of parameter {slot.parameter}: {str(error).split('(): ', 1)[-1]}") from error

    def _mark_slot_unused(self, slot: Slot) -> None:
        slot.is_ready = True
        if not self._is_sync:
            return
        if slot.is_partial:
            self._used_map[slot.parameter.index] = 1
        elif self._autograd is not None:
            self._autograd.mark_unused(slot)
        else:
            slot.clear()
        self._buckets[slot.bucket_index].unused_count += 1
        self._count_ready(slot)

    def _count_ready(self, slot: Slot) -> None:
        bucket = self._buckets[slot.bucket_index]
        bucket.missing -= 1
        if bucket.missing == 0 and bucket.index == self._next_index:
            self._start_full_buckets()

    def _start_full_buckets(self) -> None:
        """Start reducing full buckets in bucket order, which must be the same on all ranks."""
        while self._next_index < len(self._buckets) and self._buckets[self._next_index].missing == 0:
            bucket = self._buckets[self._next_index]
            bucket.started_ns = self._times.record_start()
            bucket.fill()
            is_skipped = self._skips_unused and bucket.unused_count == len(bucket.slots)
            bucket.outcome = bucket.NOTHING if is_skipped else self._reduce_bucket(bucket)
            self._next_index += 1

    def _reduce_bucket(self, bucket: Bucket) -> Any:
        if self._hook is not None:
            return self._run_hook(self._grad_bucket(bucket))
        if isinstance(bucket, SparseBucket):
            return self._all_reduce_sparse(bucket.sparse_slot)
        return self._all_reduce(bucket.memory)

    def _grad_bucket(self, bucket: Bucket) -> GradBucket:
        return GradBucket(bucket, bucket is self._buckets[-1])

    def _run_hook(self, bucket: GradBucket) -> Any:
        assert self._hook is not None
        return self._hook(self._hook_state, bucket)

    def _all_reduce_sparse(self, slot: SparseSlot) -> Any:
        """Return the average of a sparse gradient. Blocks until the gradient is reduced."""
        if slot.rows is None:
            sparse.all_reduce(self._operations, [slot.sent], "sum", self._timeout, False, TypeError("a gradient is not sparse"))
        else:
            self._operations.all_reduce(slot.sent, "sum", timeout=self._timeout)
        return slot.sent.div_(self._divisor()) if self._op == "avg" else slot.sent

    def _divisor(self) -> int:
        """Return the number by which to divide the sum of gradients."""
        if self._forward_work is not None:
            work, is_static = self._forward_work
            return self._operations.size if is_static else _active_ranks_of(work)
        return self._operations.size if self._join is None or self._join.divide_by_initial_world_size else self._active_count

    def _all_reduce(self, buffer: Any) -> Any:
        op: Any = self._op
        if op == "avg" and self._forward_work is not None:
            # Active ranks divide before the sum: joined ranks send zeros and lack the divisor.
            self._buckets[0].view_of(buffer).div_(self._divisor())
            op = "sum"
        if op == "avg" and self._join is not None and not self._join.divide_by_initial_world_size:
            op = _core.ReduceOp("premul_sum", 1 / self._active_count)
        return self._operations.all_reduce(buffer, op, timeout=self._timeout, async_op=True)

    def finish(self) -> None:
        """End the pass: wait until all buckets are reduced, and store the averages.

        The averages are in gradients() and, if writable, in the arrays passed to mark_ready.

        Raises:
            RuntimeError: Parameters have no gradient; the message names them. Mark these parameters
                and call finish() again, or call reset().
            DistMismatchError, DistTimeoutError, DistPeerLostError, DistAbortedError: A collective
                failed. The pass has ended and the group is unusable; use_group() selects another.
        """
        if not self._is_open:
            raise RuntimeError("finish(): no pass has started; call prepare_for_backward() first")
        if self._is_sync:
            self._mark_missing_unused()
            try:
                self._wait_for_all()
            except BaseException:
                self.reset()
                raise
            self._return_gradients()
        self._is_open = False
        if not self._is_sync:
            return
        self._has_order = True
        if self._autograd is None:
            self._rebuild_if_pending()

    def _mark_missing_unused(self) -> None:
        self._mark_deferred_unused()
        text = self._missing_text()
        if text and not self._detects_unused:
            raise RuntimeError(
                f"finish(): {text}if this is intended, create the Reducer with find_unused_parameters=True, "
                "or with static_graph=True if it is so in every pass"
            )
        for slot in self._slots:
            if not slot.is_ready:
                self._mark_slot_unused(slot)

    def _missing_text(self) -> str:
        names = [str(slot.parameter) for slot in self._slots if not slot.is_ready]
        if not names:
            return ""
        shown_names = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
        plural = "parameters {} have" if len(names) > 1 else "parameter {} has"
        return f"{plural.format(shown_names)} no gradient on rank {self._operations.rank}: "

    def _wait_for_all(self) -> None:
        self._start_full_buckets()  # also start full buckets left by an exception
        if self._detects_unused:
            self._operations.all_reduce(self._used, "sum", timeout=self._timeout)
        for bucket in self._buckets:
            if bucket.outcome is not bucket.NOTHING:
                collect(bucket)
            self._times.record_end(bucket.started_ns, bucket.outcome)
            bucket.outcome = None
        if self._autograd is not None:
            self._autograd.wait_for_futures()
        self._forward_work = None
        self._times.end_pass()
        if self._is_static and self._static_unused is None:
            self._static_unused = frozenset(range(len(self._slots))).difference(self._order)

    def _return_gradients(self) -> None:
        is_optimizer_in_backward = self._autograd is not None and self._autograd.optimizer_in_backward
        for slot in self._slots:
            slot.is_partial = False
            if not self._is_used(slot):
                slot.restore()
            elif not self._is_view and not is_optimizer_in_backward:
                slot.return_gradient()
        if self._autograd is not None:
            self._autograd.restore_gradients(self._is_used)

    def _is_used(self, slot: Slot) -> bool:
        """Return True if any rank has a gradient for the slot's parameter."""
        return not (self._finds_unused or self._is_static) or bool(self._used_map[slot.parameter.index])

    def gradient(self, index: int) -> Any:
        """Return the gradient of a parameter.

        Args:
            index: The index of the parameter.

        Returns:
            With gradient_as_bucket_view, a view of the bucket: write the gradient into it, and read
            the average from it. Buckets are rebuilt after the first pass: call this again then.
            Otherwise the array passed to mark_ready; after finish(), a new array if that array is
            read-only. None if no rank had a gradient.
        """
        slot = self._slot("gradient", index)
        return slot.get_view() if self._is_view else slot.gradient

    def gradients(self) -> list[Any]:
        """Return gradient() for every parameter."""
        return [self.gradient(index) for index in range(len(self._slots))]

    def reduce(self, gradients: Sequence[Tensor | None]) -> list[Any]:
        """Run a whole pass with complete gradients, and return gradients().

        Args:
            gradients: One gradient for each parameter; None for an unused parameter.

        Raises:
            ValueError: The number of gradients differs from the number of parameters.
            RuntimeError, DistError: As in finish(). The pass has ended.
        """
        gradients = list(gradients)
        if len(gradients) != len(self._slots):
            raise ValueError(f"reduce(): argument 'gradients' has another length: got {len(gradients)}, expected {len(self._slots)}")
        self.prepare_for_backward()
        try:
            for bucket in self._buckets:
                for slot in bucket.slots:
                    if gradients[slot.parameter.index] is not None:
                        self.mark_ready(slot.parameter.index, gradients[slot.parameter.index])
            self.finish()
        except BaseException:
            self.reset()
            raise
        return self.gradients()

    def reset(self) -> None:
        """Drop the current pass and gradients of no_sync() passes. All ranks must call this."""
        self._is_open = False
        for bucket in self._buckets:
            if is_pending(bucket.outcome):
                with contextlib.suppress(_core.DistError):  # a failed work has ended
                    bucket.move()
            bucket.outcome = None
        for slot in self._slots:
            slot.is_partial = False

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients on this rank, without sending them, in this `with` block.

        The next pass after the block adds the sum to its own gradients. If a framework accumulates
        gradients, pass only the framework's final sums. A caller that writes gradients to views
        must accumulate in the views.
        """
        previous, self._is_sync = self._is_sync, False
        try:
            yield
        finally:
            self._is_sync = previous

    @contextlib.contextmanager
    def join(self, divide_by_initial_world_size: bool = True) -> Iterator[Join]:
        """Allow ranks to run different numbers of passes in this `with` block.

        A rank without further passes contributes zeros until all ranks have finished. Only the
        ranks in the last pass have made all updates, so call
        broadcast_parameters(src=joined.last_rank) after the block.

        Args:
            divide_by_initial_world_size: True averages over all ranks, False over active ranks.
        """
        self._join = joined = Join(divide_by_initial_world_size)
        try:
            yield joined
            while self._announce(joined, False):
                self._run_shadow_pass()
        finally:
            self._join = None

    def _announce(self, joined: Join, is_active: bool) -> int:
        """Exchange which ranks have gradients in the next pass; return how many have."""
        active = bytearray(self._operations.size)
        self._operations.all_gather_single(active, bytes([is_active]), timeout=self._timeout)
        self._active_count = sum(active)
        if self._active_count:
            joined.last_rank = active.index(1)
        return self._active_count

    def _run_shadow_pass(self) -> None:
        self._begin_pass()
        for slot in self._slots:
            if not slot.is_ready:
                self._mark_slot_unused(slot)
        self.finish()

    def register_comm_hook(self, state: Any, hook: Callable[[Any, GradBucket], Any]) -> None:
        """Let hook(state, bucket) reduce full buckets. All ranks must register the same hook.

        dldist.comm_hooks has such hooks.

        Args:
            state: The first argument of the hook.
            hook: Must return the result: an array of the bucket's length and of any floating-point
                dtype or the bucket's, or a Future or Work of an array. To run several collectives,
                return a function: finish() calls such functions in bucket order.

        Raises:
            TypeError: `hook` is not callable.
            RuntimeError: A hook is registered already, or a pass is in progress.

        Example:
            >>> from dldist import comm_hooks
            >>> reducer = dist.Reducer([array("f", [0, 0])])
            >>> reducer.register_comm_hook(None, comm_hooks.bf16_compress_hook)
            >>> reducer.reduce([array("f", [1, 2])])
            [array('f', [1.0, 2.0])]
        """
        if not callable(hook):
            raise TypeError(f"register_comm_hook(): argument 'hook' must be callable, not {type(hook).__name__}")
        if self._hook is not None:
            raise RuntimeError(
                "register_comm_hook(): the Reducer already has a hook: register_comm_hook or register_builtin_comm_hook can only be called once."
            )
        if self._is_open:
            raise RuntimeError("register_comm_hook(): got a call during a pass, expected it before the first pass or between passes")
        self._hook, self._hook_state = hook, state

    def stats(self) -> dict[str, Any]:
        """Return statistics under the names of torch's Logger. Times are in nanoseconds."""
        rebuilt = [bucket.nbytes for bucket in self._buckets] if self._has_rebuilt else []
        members = [[slot.parameter.index for slot in bucket.slots] for bucket in self._buckets] if self._has_rebuilt else []
        is_counted = (self._finds_unused or self._is_static) and self._times.passes > 0
        unused = [slot.parameter.nbytes for slot in self._slots if is_counted and not self._used_map[slot.parameter.index]]
        return {
            "iteration": self._times.passes,
            "rank": self._operations.rank,
            "world_size": self._operations.size,
            "backend_name": self._backend_name,
            "num_parameter_tensors": len(self._parameters),
            "total_parameter_size_bytes": sum(parameter.nbytes for parameter in self._parameters),
            "dtypes": ", ".join(sorted({parameter.dtype for parameter in self._parameters})),
            "bucket_cap_bytes": self._limits[-1],
            "bucket_sizes": ", ".join(map(str, self._first_bucket_sizes)),
            "has_rebuilt_buckets": int(self._has_rebuilt),
            "rebuilt_bucket_sizes": ", ".join(map(str, rebuilt)),
            "rebuilt_per_bucket_param_indices": ", ".join(" ".join(map(str, indices)) for indices in members),
            "prev_iteration_grad_ready_order_indices": ", ".join(map(str, self._order)),
            "num_buckets_reduced": self._next_index,
            "unused_parameter_size": sum(unused),
            "find_unused_parameters": int(self._finds_unused),
            "gradient_as_bucket_view": int(self._is_view),
            "static_graph": int(self._is_static),
            "comm_hook": getattr(self._hook, "__qualname__", type(self._hook).__name__) if self._hook else "",
            **self._times.describe(),
        }


def _check_parameters(parameters: Sequence[Parameter]) -> None:
    if not parameters:
        raise ValueError("Reducer(): argument 'params' is empty: got 0 parameters, expected at least 1")
    for parameter in parameters:
        if parameter.device != "cpu":
            raise ValueError(f"Reducer(): argument 'params': parameter {parameter} is on another device: got {parameter.device}, expected cpu")


def _check_sparse(expects_sparse: Sequence[bool], parameters: Sequence[Parameter], has_autograd: bool) -> None:
    if any(expects_sparse) and not has_autograd:
        raise ValueError("Reducer(): argument 'expect_sparse_gradients': got sparse gradients of other parameters, expected leaves of autograd")
    if expects_sparse and len(expects_sparse) != len(parameters):
        raise ValueError(f"Reducer(): argument 'expect_sparse_gradients' has another length: got {len(expects_sparse)}, expected {len(parameters)}")


def _active_ranks_of(work: Any) -> int:
    """Wait for an all_reduce of one number, and return the sum."""
    work.wait()
    result = work.result()
    value = result[0] if isinstance(result, (list, tuple)) else result
    return int(value.item() if hasattr(value, "item") else value[0])


def _check_buckets(bucket_indices: Sequence[Sequence[int]] | None, parameters: Sequence[Parameter]) -> None:
    """Check that every parameter is in exactly one bucket, and that each bucket has one dtype."""
    if bucket_indices is None:
        return
    flat = [index for indices in bucket_indices for index in indices]
    if sorted(flat) != list(range(len(parameters))) or not all(bucket_indices):
        raise ValueError(f"Reducer(): argument 'bucket_indices': got {bucket_indices}, expected each parameter once, and no empty bucket")
    for number, indices in enumerate(bucket_indices):
        dtypes = {parameters[index].dtype for index in indices}
        if len(dtypes) > 1:
            raise _core.DistArgumentError(f"Reducer(): argument 'bucket_indices[{number}]' has several dtypes: got {sorted(dtypes)}, expected one")


def _backend_name(process_group: Any) -> str:
    if isinstance(process_group, _core.Group):
        return "dldist"
    return get_backend(process_group)
