"""The backend "fake": one process acts as a rank of a group of any size, without communication."""

from __future__ import annotations

import copy
import ctypes
from functools import cache
from math import prod
from typing import Any, NoReturn

from dldist import _core
from dldist._backends.backend_base import Backend, BackendOptions
from dldist._backends.low_level import CALLS, Call, Side
from dldist._base.argument_names import read_ranks
from dldist._base.operations import flat
from dldist._base.works import FakeWork

_CPU = 1  # DLPack's device type for the CPU


@cache
def _single_rank_group() -> _core.Group:
    """Return a group of one rank, which can create arrays of any dtype."""
    return _core.Group(None, 0, 1)


class _Elements:
    """The elements of a CPU array in row-major order, as one piece of memory.

    The memory is the array's, or a packed copy that write_back() copies back into the array.
    """

    def __init__(self, tensor: Any, writable: bool = False) -> None:
        description = _core._describe_tensor(tensor, writable)
        self.tensor = tensor
        self.dtype, self.size, self.address = description["dtype"], description["itemsize"], description["data"]
        self.packed = None
        if not description["is_contiguous"]:
            self.packed = _single_rank_group().empty((description["count"],), self.dtype)
            _core._copy_tensor(self.packed, tensor)
            self.address = _core._describe_tensor(self.packed, True)["data"]

    def write_back(self) -> None:
        if self.packed is not None:
            _core._copy_tensor(self.tensor, self.packed)


def _is_on_cpu(tensor: Any) -> bool:
    """True if an array has CPU memory. Arrays on torch's meta device, for example, have none."""
    try:
        return _core._describe_tensor(tensor, False)["device_type"] == _CPU
    except (ValueError, BufferError):
        return False


def _shape(tensor: Any) -> tuple[int, ...]:
    return _core._describe_tensor(tensor, False)["shape"] if _is_on_cpu(tensor) else tuple(tensor.shape)


_Part = tuple[Any, int, int]
"""Elements of a tensor in row-major order: the tensor, the first index, and the count."""


def _whole_tensor(tensor: Any) -> _Part:
    return tensor, 0, prod(_shape(tensor))


def _copy_elements(call: str, dst: Any, dst_start: int, dst_count: int, src: Any, start: int, count: int) -> None:
    """Copy `count` elements of src from `start` to dst from `dst_start`; `dst_count` must equal `count`."""
    if dst_count != count:
        raise RuntimeError(f"FakeProcessGroup::{call}: output has another shape: got {_shape(dst)}, expected {_shape(src)}, as the input")
    available = prod(_shape(src)) - start
    if count > available:
        raise RuntimeError(f"FakeProcessGroup::{call}: input has another number of elements: got {available}, expected {count}, as the output")
    if not _is_on_cpu(dst) or not _is_on_cpu(src):
        # This memory is not on the CPU, so only the tensors' own library can copy it.
        dst.reshape(-1)[dst_start : dst_start + count] = src.reshape(-1)[start : start + count]
        return
    source, target = _Elements(src), _Elements(dst, writable=True)
    if source.dtype != target.dtype:
        raise RuntimeError(f"FakeProcessGroup::{call}: output has another dtype: got {target.dtype}, expected {source.dtype}, as the input")
    size = source.size
    ctypes.memmove(target.address + dst_start * size, source.address + start * size, count * size)
    target.write_back()


def _fill(call: str, dst: Any, dst_start: int, dst_count: int, src: Any, start: int, count: int) -> None:
    """Fill `dst_count` elements of dst from index `dst_start` by repeating `count` elements of src, the last
    repetition cut off. Fill with zeros if `count` is 0."""
    if count == 0 and dst_count > 0:
        src, start, count = _zeros_like(dst, dst_count), 0, dst_count
    for filled in range(0, dst_count, count or 1):
        part = min(count, dst_count - filled)
        _copy_elements(call, dst, dst_start + filled, part, src, start, part)


def _zeros_like(tensor: Any, count: int) -> Any:
    """Return `count` zeros of the tensor's dtype, from which _copy_elements can copy to the tensor."""
    if not _is_on_cpu(tensor):
        return tensor.new_zeros(count)
    zeros = _single_rank_group().empty((count,), _core._describe_tensor(tensor, False)["dtype"])
    ctypes.memset(_core._describe_tensor(zeros, True)["data"], 0, zeros.nbytes)
    return zeros


def _reduce_equal(tensor: Any, op: _core.ReduceOp, size: int) -> None:
    """Replace a tensor by the reduction of `size` tensors equal to it."""
    if not _has_memory(tensor):
        return
    elements = _Elements(tensor, writable=True)
    power = elements.packed if elements.packed is not None else tensor
    _single_rank_group().all_reduce(power, op)  # checks the dtype; applies PREMUL_SUM's factor
    if op.name != "AVG":
        result = None
        for bit in range(size.bit_length()):  # exponentiation by squaring
            if bit:
                _core._reduce_tensor(power, _copy(power), int(op.op))
            if size >> bit & 1:
                if result is None:
                    result = _copy(power)
                else:
                    _core._reduce_tensor(result, power, int(op.op))
        _core._copy_tensor(power, result)
    elements.write_back()


def _copy(tensor: Any) -> Any:
    description = _core._describe_tensor(tensor, False)
    made = _single_rank_group().empty(description["shape"], description["dtype"])
    _core._copy_tensor(made, tensor)
    return made


def _has_memory(tensor: Any) -> bool:
    """Return False for torch's meta device. Raise RuntimeError for memory of other devices."""
    try:
        device = _core._describe_tensor(tensor, False)["device_type"]
    except (ValueError, BufferError):
        return False
    if device != _CPU:
        raise RuntimeError("FakeProcessGroup: simulate_uniform_ranks: got a tensor in other memory, expected one in CPU memory")
    return True


def check_splits(splits: list[int], tensor: Any, size: int) -> None:
    """Raise like c10d if split sizes of an all-to-all are wrong. [] means equal parts."""
    shape = _shape(tensor)
    length = shape[0] if shape else 1
    if not splits:
        if length % size != 0:
            raise RuntimeError("Tensor's dim 0 does not divide equally across group size")
        return
    if len(splits) != size:
        raise RuntimeError("Number of tensor splits not equal to group size")
    if any(split < 0 for split in splits):
        raise RuntimeError("Split sizes must be non-negative")
    if sum(splits) != length:
        raise RuntimeError("Split sizes doesn't match total dim 0 size")


class FakeOptions(BackendOptions):
    """FakeProcessGroup.Options.

    error_on_collective makes every collective raise RuntimeError. simulate_uniform_ranks simulates
    a group whose ranks all have this rank's inputs: reductions reduce, an all-to-all receives from
    every rank the part that this rank sends to itself, and works' futures have the outputs.
    """

    def __init__(self) -> None:
        super().__init__("fake")
        self.fake_option = 0
        self.error_on_collective = False
        self.simulate_uniform_ranks = False


_MESSAGES = {"send", "recv", "recv_anysource"}
_NOT_COLLECTIVE = _MESSAGES | {"monitored_barrier"}


class FakeProcessGroup(Backend):
    """A backend without peers. Outputs are filled from this rank's own inputs; works are FakeWork.

    Create it by _create_internal() or init_process_group(backend="fake").
    """

    Options: type[Any] = FakeOptions
    _options: Any

    def __init__(self, *_: Any, **__: Any) -> None:
        raise TypeError("FakeProcessGroup: No constructor defined! Use init_process_group(backend='fake').")

    @classmethod
    def _create_internal(cls, rank: int, world_size: int, options: FakeOptions | None = None) -> FakeProcessGroup:
        self = cls.__new__(cls)
        Backend.__init__(self, rank, world_size)
        self._options = options if options is not None else FakeOptions()
        return self

    def getBackendName(self) -> str:
        return "fake"

    supports_splitting = True

    def split(self, store: Any, ranks: list[int], opts: Any = None) -> FakeProcessGroup | None:
        """Create a backend for some ranks, with this one's options unless `opts` is FakeOptions."""
        ranks = read_ranks(ranks, self._size)
        if self._rank not in ranks:
            return None
        made = opts if isinstance(opts, FakeOptions) else copy.copy(self._options)
        if opts is not None:
            made._set_identity(opts._timeout, ranks, opts.group_name)
        return self._create_internal(ranks.index(self._rank), len(ranks), made)

    def _perform(self, method: str, *arguments: Any) -> Any:
        if self._options.error_on_collective and method not in _NOT_COLLECTIVE:
            raise RuntimeError("FakeProcessGroup collective operation error (error_on_collective=true)")
        call = CALLS.get(method)
        if call is None and method not in _MESSAGES:
            raise self._unsupported(method)
        if call is None or not call.sides:
            return FakeWork()
        values = call.to_operation_values(self, arguments, getattr(arguments[-1], "reduceOp", None))
        if len(call.sides) == 2:
            self._fill_outputs(call, values, arguments)
        return FakeWork(self._reduce_outputs(call, values) if self._options.simulate_uniform_ranks else ())

    def _reduce_outputs(self, call: Call, values: list[Any]) -> list[Any]:
        """Return the outputs, reduced as if every rank had this rank's inputs."""
        parameters = call.operation.parameters
        outputs = flat(values[call.sides[0].parameter])
        if "root" in parameters and call.name != "broadcast" and values[parameters.index("root")] != self._rank:
            return []
        if "op" in parameters:
            for tensor in outputs:
                _reduce_equal(tensor, values[parameters.index("op")], self._size)
        return outputs

    def _fill_outputs(self, call: Call, values: list[Any], arguments: tuple[Any, ...]) -> None:
        """Fill the outputs from this rank's inputs."""
        output, input = call.sides
        outputs, inputs = values[output.parameter], values[input.parameter]
        if outputs is None or inputs is None:
            return  # only the root has outputs to fill
        if call.splits:
            self._exchange(call.name, outputs, inputs, *arguments[2:4])
            return
        output_parts, input_parts = self._parts(call.name, output, outputs, inputs), self._parts(call.name, input, inputs, outputs)
        is_uniform_exchange = self._options.simulate_uniform_ranks and call.operation.collective == "all_to_all"
        if is_uniform_exchange or len(output_parts) == 1 < len(input_parts):
            input_parts = input_parts[self._rank : self._rank + 1]
        copy_part = _fill if is_uniform_exchange else _copy_elements
        for rank, parts in enumerate(output_parts):
            for part, source in zip(parts, input_parts[rank if len(input_parts) > 1 else 0], strict=True):
                copy_part(call.name, *part, *source)

    def _parts(self, call: str, side: Side, tensors: Any, others: Any) -> list[list[_Part]]:
        """Return a side's parts: a list of parts for each rank, or one list of whole tensors."""
        if side.kind in ("one", "many"):
            return [[_whole_tensor(tensor) for tensor in (tensors if side.kind == "many" else [tensors])]]
        if side.kind in ("ranks", "lists"):
            if len(tensors) != self._size:
                raise RuntimeError(
                    f"FakeProcessGroup::{call}: Incorrect {side.label} list size {len(tensors)}. {side.label.capitalize()} list "
                    f"size should be {self._size}, same as size of the process group."
                )
            return [[_whole_tensor(tensor) for tensor in (item if side.kind == "lists" else [item])] for item in tensors]
        pairs = zip(tensors, others, strict=True) if side.kind == "wholes" else [(tensors, others)]
        shares = [(full, self._share_size(side.label, full, part)) for full, part in pairs]
        return [[(full, rank * count, count) for full, count in shares] for rank in range(self._size)]

    def _share_size(self, label: str, full: Any, part: Any) -> int:
        """Return the number of elements of a rank's part of `full`. Raise if `part` has another."""
        count = prod(_shape(part))
        if prod(_shape(full)) != count * self._size:
            raise RuntimeError(
                "output tensor size must be equal to world_size times input tensor size"
                if label == "output"
                else "input tensor must be the same size as output size times world size"
            )
        return count

    def _exchange(self, call: str, output: Any, input: Any, output_splits: list[int], input_splits: list[int]) -> None:
        check_splits(output_splits, output, self._size)
        check_splits(input_splits, input, self._size)
        if self._options.simulate_uniform_ranks:
            own_share = self._shares(input, input_splits)[self._rank]
            for part in self._shares(output, output_splits):
                _fill(call, *part, *own_share)
            return
        if not output_splits:
            _copy_elements(call, *_whole_tensor(output), *_whole_tensor(input))
            return
        row = prod(_shape(output)[1:])
        offset = 0
        for split in output_splits:
            # As in c10d, copy every part from the start of the input.
            _copy_elements(call, output, offset, split * row, input, 0, split * row)
            offset += split * row

    def _shares(self, tensor: Any, splits: list[int]) -> list[_Part]:
        """Return each rank's part of an all-to-all's tensor."""
        _, _, count = _whole_tensor(tensor)
        row = prod(_shape(tensor)[1:])
        counts = [split * row for split in splits] or [count // self._size] * self._size
        return [(tensor, sum(counts[:rank]), counts[rank]) for rank in range(self._size)]

    def _start_coalescing(self) -> None:
        """Do nothing: calls end immediately."""

    def _end_coalescing(self) -> FakeWork:
        return FakeWork()


class FakeStore(_core.Store):
    """A store that keeps no values but reports that every key exists."""

    def __init__(self) -> None:
        super().__init__()

    def add(self, key: Any, amount: Any) -> int:
        return amount

    def clone(self) -> FakeStore:
        return FakeStore()

    def _raise_unsupported(self, *_: Any) -> NoReturn:
        raise NotImplementedError("FakeStore stores no values; use a HashStore")

    compare_set = append = list_keys = _raise_unsupported  # type: ignore[assignment]


_RESULTS = {"set": None, "get": b"", "wait": None, "check": True, "delete_key": True, "num_keys": 0}

for _name, _value in _RESULTS.items():
    setattr(FakeStore, _name, lambda *_, _value=_value, **__: _value)
