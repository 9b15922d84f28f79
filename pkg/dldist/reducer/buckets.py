"""What a Reducer's buckets are made of: which parameter is in which bucket, and where. Nothing is sent here."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from dldist import _core
from dldist._base import arrays
from dldist._base.arrays import private_memory

Allocate = Callable[[int, str], _core.SharedArray]

FIRST_BUCKET_BYTES = 1 << 20
"""The first bucket is small, so that something is under way early."""
BUCKET_BYTES = 25 << 20
_NO_LIMIT = 0


def allocator_of(operations: Any) -> Allocate:
    """What makes memory that the ranks of a host share, if the group has such."""
    if isinstance(operations, _core.Group) and not isinstance(operations, _core.NcclGroup):
        return operations.empty
    return private_memory


class Parameter:
    """What is known of a parameter: an array, or anything with a shape and a dtype (jax.ShapeDtypeStruct)."""

    __slots__ = ("device", "dtype", "family", "index", "is_template", "like", "name", "nbytes", "prototype", "shape")

    def __init__(self, index: int, like: Any, name: str | None = None) -> None:
        self.index = index
        self.like = like
        """What the caller gave; `prototype` is an array in any case, maybe of another shape."""
        self.name = name
        family = arrays.find_family(like)
        self.is_template = family is None
        if self.is_template and not (hasattr(like, "shape") and hasattr(like, "dtype")):
            raise TypeError(f"parameter {index} must be an array, or have a shape and a dtype, not {type(like).__name__}")
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
    """Buckets, as lists of indices, and the limit in bytes that each of them has.

    Tensors of a dtype and device fill one bucket after the other. A bucket is full when it has reached its limit: the first of
    each kind that of bucket_size[0], and so on, the last limit for all that follow. `tensor_indices` gives the tensors other
    numbers than their places; without it the buckets are sorted by their first tensor.
    """
    if not tensors or not bucket_size:
        raise ValueError("_compute_bucket_assignment_by_size(): there must be tensors, and a limit for buckets")
    if tensor_indices and len(tensor_indices) != len(tensors):
        raise ValueError(
            f"_compute_bucket_assignment_by_size(): {len(tensor_indices)} tensor_indices for {len(tensors)} tensors"
        )
    indices = tensor_indices or range(len(tensors))
    parameters = [x if isinstance(x, Parameter) else Parameter(i, x) for i, x in zip(indices, tensors, strict=True)]
    sparse = {index for index, is_sparse in enumerate(expect_sparse_gradient) if is_sparse}
    full: list[tuple[list[int], int]] = []
    # By kind of tensor: the bucket that is being filled, its bytes, and how many are full.
    filling: dict[tuple[str, str], list[int]] = {}
    nbytes: Counter[tuple[str, str]] = Counter()
    turns: Counter[tuple[str, str]] = Counter()

    def limit_of(kind: tuple[str, str]) -> int:
        return bucket_size[min(turns[kind], len(bucket_size) - 1)]

    for index, parameter in zip(indices, parameters, strict=True):
        if index in sparse:  # is never part of anything
            full.append(([index], _NO_LIMIT))
            continue
        kind = (parameter.dtype, parameter.device)
        filling.setdefault(kind, []).append(index)
        nbytes[kind] += parameter.nbytes
        if nbytes[kind] >= limit_of(kind):
            full.append((filling.pop(kind), limit_of(kind)))
            nbytes[kind] = 0
            turns[kind] += 1
    buckets = full + [(members, limit_of(kind)) for kind, members in filling.items()]
    if not tensor_indices:
        buckets.sort(key=lambda bucket: min(bucket[0]))
    return [members for members, _ in buckets], [limit for _, limit in buckets]


class Slot:
    """The place of a parameter's gradient in a bucket, and how far that is in the current pass."""

    __slots__ = ("bucket_index", "gradient", "is_partial", "is_ready", "parameter", "part", "saved", "view")

    def __init__(self, parameter: Parameter) -> None:
        self.parameter = parameter
        self.bucket_index: int  # no reference: memory of buckets is given back with the last one, not when a collector comes by
        self.part: _core.SharedArray  # as soon as it is in a bucket
        self.is_ready = False
        self.is_partial = False
        """Has the sum of passes without synchronisation, to which the next gradient is added."""
        self.gradient: Any = None
        """The array that the caller has handed in; after the pass what the caller gets."""
        self.view: Any = None
        """The part as an array of the parameter's library, once somebody has asked for it."""
        self.saved: _core.SharedArray | None = None
        """What was there before it was cleared, if somebody can see that."""

    def begin_pass(self) -> None:
        self.is_ready = False
        self.gradient = self.saved = None

    def get_view(self) -> Any:
        if self.view is None:
            self.view = self.parameter.family.view(self.part, self.parameter.prototype)
        return self.view

    def clear(self) -> None:
        """Zeros, for a pass in which there is no gradient."""
        if self.view is not None:
            self.save()
        _core._copy_tensor(self.part, self._private_memory())

    def save(self) -> None:
        """Keep what is there, which this pass is going to change."""
        self.saved = self._private_memory()
        _core._copy_tensor(self.saved, self.part)

    def restore(self) -> None:
        """What was there before clear()."""
        if self.saved is not None:
            _core._copy_tensor(self.part, self.saved)

    def hand_back(self) -> None:
        """Put the result into the caller's array, or make a new one where that cannot be written to or there is none."""
        parameter = self.parameter
        if self.gradient is None:
            self.gradient = arrays.new_array(parameter.family, parameter.prototype, self.part)
        else:
            self.gradient = arrays.written(arrays.family_of(self.gradient, "finish"), self.gradient, self.part)

    def _private_memory(self) -> _core.SharedArray:
        return private_memory(self.parameter.shape, self.part.dtype)


class SparseSlot(Slot):
    """A sparse gradient of torch. It is a bucket by itself, and in no memory of ours."""

    __slots__ = ("rows", "sent")

    def __init__(self, parameter: Parameter) -> None:
        super().__init__(parameter)
        self.sent: Any = None
        """What is reduced: the gradient, or only its rows."""
        self.rows: Any = None
        """The numbers of these rows, where all ranks know which there are."""

    def clear(self) -> None: ...

    def restore(self) -> None: ...

    def hand_back(self) -> None: ...

    def result(self, torch: Any) -> Any:
        """The average."""
        if self.rows is None or self.sent.layout is not torch.strided:
            return self.sent
        return torch.sparse_coo_tensor(self.rows[None], self.sent, self.parameter.shape, is_coalesced=True, check_invariants=False)


class Bucket:
    """Gradients of one dtype, one after the other in memory that is reduced as a whole."""

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
        "waiting",
    )

    is_sparse = False
    NOTHING = object()
    """The outcome of a bucket that is not sent."""

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
        """How many of its gradients are not ready yet."""
        self.unused_count = 0
        """How many parameters have none on this rank."""
        self.waiting: list[tuple[Slot, Any]] = []
        """Gradients that are to be copied all at once."""
        self.outcome: Any = None
        """What reducing it gave: a Work, a Future, an array, or a function to call."""
        self.started_ns = 0

    def move(self) -> None:
        """Into new memory, with what the slots have had elsewhere: somebody may still use that."""
        counts = [slot.parameter.count for slot in self.slots]
        self.memory = self._allocate(sum(counts), self._dtype)
        self._scratch: dict[str, _core.SharedArray] = {}
        start = 0
        for slot, count in zip(self.slots, counts, strict=True):
            before, slot.part = getattr(slot, "part", None), self.memory.part(start, slot.parameter.shape)
            if before is not None and before.dtype == self._dtype:
                _core._copy_tensor(slot.part, before)
            slot.bucket_index, slot.view = self.index, None
            start += count

    def fill(self) -> None:
        """Copy the gradients that have waited for the others."""
        waiting, self.waiting = self.waiting, []
        if waiting:
            _core._copy_tensors([slot.part for slot, _ in waiting], [arrays.source_of(gradient) for _, gradient in waiting])

    def view_of(self, memory: Any) -> Any:
        """Our memory as an array of the library that the parameters are of."""
        parameter = self.slots[0].parameter
        return parameter.family.view(memory, parameter.prototype) if isinstance(memory, _core.SharedArray) else memory

    def get_scratch(self, dtype: str) -> _core.SharedArray:
        """Memory for as many elements of another dtype."""
        if dtype not in self._scratch:
            self._scratch[dtype] = self._allocate(self.memory.shape[0], dtype)
        return self._scratch[dtype]

    @property
    def nbytes(self) -> int:
        return self.memory.nbytes

    def accept(self, outcome: Any) -> None:
        """Take what a communication hook has made of it."""
        if outcome is not self.memory:
            _core._convert_tensor(self.memory, arrays.source_of(outcome))


class SparseBucket(Bucket):
    """One sparse gradient, which is reduced by itself."""

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
