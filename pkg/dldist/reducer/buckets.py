"""Buckets of parameters: assignment and memory. Nothing is sent here."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from dldist import _core
from dldist._base import argument_names, arrays
from dldist._base.arrays import private_memory

Allocate = Callable[[int, str], _core.SharedArray]

FIRST_BUCKET_BYTES = 1 << 20
"""Bytes of the first bucket: small, so that communication starts early."""
BUCKET_BYTES = 25 << 20
_NO_LIMIT = 0


def allocator_of(operations: Any) -> Allocate:
    """Return a function that allocates memory: shared on a host if the group can, else private."""
    if isinstance(operations, _core.Group) and not isinstance(operations, _core.NcclGroup):
        return operations.empty
    return private_memory


class Parameter:
    """A parameter: an array, or an object with a shape and a dtype (jax.ShapeDtypeStruct)."""

    __slots__ = ("device", "dtype", "family", "index", "is_template", "like", "name", "nbytes", "prototype", "shape")

    def __init__(self, index: int, like: Any, name: str | None = None) -> None:
        self.index = index
        self.like = like
        """The caller's object. `prototype` is an array of its kind, maybe of another shape."""
        self.name = name
        family = arrays.find_family(like)
        self.is_template = family is None
        if self.is_template and not (hasattr(like, "shape") and hasattr(like, "dtype")):
            where = argument_names.title(f"params[{index}]")
            raise TypeError(f"{where} must be an array, or have a shape and a dtype, not {type(like).__name__}")
        self.prototype = arrays.prototype_of(like) if self.is_template else like
        self.family = family or arrays.family_of(self.prototype, "Reducer")
        seen = _core._describe_tensor(self.family.source(self.prototype), False)
        self.shape: tuple[int, ...] = tuple(like.shape) if self.is_template else seen["shape"]
        self.dtype: str = seen["dtype"]
        self.device: str = seen["device"]
        self.nbytes = self.count * private_memory(1, self.dtype).nbytes

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"{self.index} ({self.name})" if self.name else str(self.index)


def compute_bucket_assignment_by_size(
    tensors: Sequence[Any],
    bucket_size: Sequence[int],
    expect_sparse_gradient: Sequence[bool] = (),
    tensor_indices: Sequence[int] = (),
    logger: Any = None,
) -> tuple[list[list[int]], list[int]]:
    """Return the buckets, as lists of tensor indices, and the byte limit of each bucket.

    Tensors of one dtype and device fill one bucket after another. A bucket is full once it reaches
    its limit: bucket_size[i] for the i-th bucket of that kind, or the last limit for later buckets.
    `tensor_indices` renumbers the tensors; without it, buckets are sorted by first tensor.
    """
    if not tensors or not bucket_size:
        raise ValueError("_compute_bucket_assignment_by_size(): arguments 'tensors' and 'bucket_size' must not be empty")
    if tensor_indices and len(tensor_indices) != len(tensors):
        raise ValueError(
            f"_compute_bucket_assignment_by_size(): argument 'tensor_indices' has another length: got {len(tensor_indices)}, expected {len(tensors)}"
        )
    indices = tensor_indices or range(len(tensors))
    parameters = [x if isinstance(x, Parameter) else Parameter(i, x) for i, x in zip(indices, tensors, strict=True)]
    sparse = {index for index, is_sparse in enumerate(expect_sparse_gradient) if is_sparse}
    full: list[tuple[list[int], int]] = []
    # For each dtype and device: the bucket being filled, its bytes, and the number of full buckets.
    filling: dict[tuple[str, str], list[int]] = {}
    nbytes: Counter[tuple[str, str]] = Counter()
    limit_index: Counter[tuple[str, str]] = Counter()

    def limit_of(kind: tuple[str, str]) -> int:
        return bucket_size[min(limit_index[kind], len(bucket_size) - 1)]

    for index, parameter in zip(indices, parameters, strict=True):
        if index in sparse:  # a sparse gradient has its own bucket
            full.append(([index], _NO_LIMIT))
            continue
        kind = (parameter.dtype, parameter.device)
        filling.setdefault(kind, []).append(index)
        nbytes[kind] += parameter.nbytes
        if nbytes[kind] >= limit_of(kind):
            full.append((filling.pop(kind), limit_of(kind)))
            nbytes[kind] = 0
            limit_index[kind] += 1
    buckets = full + [(members, limit_of(kind)) for kind, members in filling.items()]
    if not tensor_indices:
        buckets.sort(key=lambda bucket: min(bucket[0]))
    return [members for members, _ in buckets], [limit for _, limit in buckets]


class Slot:
    """A parameter's gradient in a bucket, with its state in the current pass."""

    __slots__ = ("bucket_index", "gradient", "is_partial", "is_ready", "parameter", "part", "saved", "view")

    def __init__(self, parameter: Parameter) -> None:
        self.parameter = parameter
        self.bucket_index: int  # not a reference: a cycle would delay freeing buckets
        self.part: _core.SharedArray  # set when the slot is put into a bucket
        self.is_ready = False
        self.is_partial = False
        """True if `part` has the sum of unsynchronised passes, to which gradients are added."""
        self.gradient: Any = None
        """The array that the caller passed; after the pass, the array with the result."""
        self.view: Any = None
        """`part` as an array of the parameter's library, created on first use."""
        self.saved: _core.SharedArray | None = None
        """The content of `part` before clear(), if the caller has a view of it."""

    def begin_pass(self) -> None:
        self.is_ready = False
        self.gradient = self.saved = None

    def get_view(self) -> Any:
        if self.view is None:
            self.view = self.parameter.family.view(self.part, self.parameter.prototype)
        return self.view

    def clear(self) -> None:
        """Set the gradient to zeros, for a pass without a gradient."""
        if self.view is not None:
            self.save()
        _core._copy_tensor(self.part, self._private_memory())

    def save(self) -> None:
        """Save the content of `part` before this pass changes it."""
        self.saved = self._private_memory()
        _core._copy_tensor(self.saved, self.part)

    def restore(self) -> None:
        """Restore the content that save() has saved, if any."""
        if self.saved is not None:
            _core._copy_tensor(self.part, self.saved)

    def return_gradient(self) -> None:
        """Write the result to the caller's array or, if missing or read-only, to a new array."""
        parameter = self.parameter
        if self.gradient is None:
            self.gradient = arrays.new_array(parameter.family, parameter.prototype, self.part)
        else:
            self.gradient = arrays.write_or_replace(arrays.family_of(self.gradient, "finish"), self.gradient, self.part)

    def _private_memory(self) -> _core.SharedArray:
        return private_memory(self.parameter.shape, self.part.dtype)


class SparseSlot(Slot):
    """A sparse gradient of torch, which is its own bucket, outside of bucket memory."""

    __slots__ = ("rows", "sent")

    def __init__(self, parameter: Parameter) -> None:
        super().__init__(parameter)
        self.sent: Any = None
        """The tensor to reduce: the gradient, or only its rows that may be non-zero."""
        self.rows: Any = None
        """The indices of the rows in `sent`, if these are known on all ranks; otherwise None."""

    def clear(self) -> None: ...

    def restore(self) -> None: ...

    def return_gradient(self) -> None: ...

    def result(self, torch: Any) -> Any:
        """Return the average as a tensor like the gradient."""
        if self.rows is None or self.sent.layout is not torch.strided:
            return self.sent
        return torch.sparse_coo_tensor(self.rows[None], self.sent, self.parameter.shape, is_coalesced=True, check_invariants=False)


class Bucket:
    """Gradients of one dtype, contiguous in memory, which are reduced together."""

    __slots__ = (
        "_allocate",
        "_dtype",
        "_scratch",
        "index",
        "limit",
        "memory",
        "missing",
        "outcome",
        "slots",
        "started_ns",
        "unused_count",
        "pending_copies",
    )

    is_sparse = False
    NOTHING = object()
    """The value of `outcome` for a bucket that is not sent."""

    def __init__(self, index: int, slots: list[Slot], limit: int, allocate: Allocate, dtype: str | None = None) -> None:
        self.index = index
        self.slots = slots
        self.limit = limit
        self._allocate = allocate
        self._dtype = dtype or slots[0].parameter.dtype
        self.begin_pass()
        self.move()

    def begin_pass(self) -> None:
        self.missing = len(self.slots)
        """The number of gradients in the bucket that are not ready."""
        self.unused_count = 0
        """The number of the bucket's parameters without a gradient on this rank."""
        self.pending_copies: list[tuple[Slot, Any]] = []
        """Pairs of a slot and a gradient, to copy together when the bucket is full."""
        self.outcome: Any = None
        """The result of the reduction: a Work, a Future, an array, or a function to call."""
        self.started_ns = 0

    def move(self) -> None:
        """Copy the slots' content to new memory, because the old memory may still be in use."""
        counts = [slot.parameter.count for slot in self.slots]
        self.memory = self._allocate(sum(counts), self._dtype)
        self._scratch: dict[str, _core.SharedArray] = {}
        start = 0
        for slot, count in zip(self.slots, counts, strict=True):
            previous, slot.part = getattr(slot, "part", None), self.memory.part(start, slot.parameter.shape)
            if previous is not None and previous.dtype == self._dtype:
                _core._copy_tensor(slot.part, previous)
            slot.bucket_index, slot.view = self.index, None
            start += count

    def fill(self) -> None:
        """Copy all gradients in `pending_copies` into the bucket."""
        pending_copies, self.pending_copies = self.pending_copies, []
        if pending_copies:
            _core._copy_tensors([slot.part for slot, _ in pending_copies], [arrays.source_of(gradient) for _, gradient in pending_copies])

    def view_of(self, memory: Any) -> Any:
        """Return bucket memory as an array of the parameters' library."""
        parameter = self.slots[0].parameter
        return parameter.family.view(memory, parameter.prototype) if isinstance(memory, _core.SharedArray) else memory

    def get_scratch(self, dtype: str) -> _core.SharedArray:
        """Return memory for the same number of elements of another dtype."""
        if dtype not in self._scratch:
            self._scratch[dtype] = self._allocate(self.memory.shape[0], dtype)
        return self._scratch[dtype]

    @property
    def nbytes(self) -> int:
        return self.memory.nbytes

    def accept(self, outcome: Any) -> None:
        """Store the result of a communication hook in the bucket's memory."""
        if outcome is not self.memory:
            _core._convert_tensor(self.memory, arrays.source_of(outcome))


class SparseBucket(Bucket):
    """A bucket of one sparse gradient."""

    __slots__ = ()

    is_sparse = True

    def move(self) -> None:
        (slot,) = self.slots
        slot.bucket_index = self.index
        self.memory = private_memory(0, self._dtype)

    @property
    def nbytes(self) -> int:
        return self.slots[0].parameter.nbytes

    @property
    def sparse_slot(self) -> SparseSlot:
        (slot,) = self.slots
        assert isinstance(slot, SparseSlot)
        return slot

    def accept(self, outcome: Any) -> None:
        self.sparse_slot.sent = outcome
