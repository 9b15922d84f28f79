"""The backend "fake": one process that plays a rank of a group of any size. Nothing is sent, and every call ends at once."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, NoReturn

from dldist import _core
from dldist.c10d.backend_base import Backend, BackendOptions
from dldist.c10d.work import FakeWork

_CPU = 1  # DLPack's number of it


# --- copies ---


@cache
def _itemsize(dtype: str) -> int:
    return _alone().empty((1,), dtype).nbytes


@cache
def _alone() -> _core.Group:
    """A group of one, which can make arrays of any dtype."""
    return _core.Group(None, 0, 1)


class _Elements:
    """The elements of an array on the CPU, in row-major order, as one piece of memory.

    That is the array's own memory, or a packed copy, which write_back() puts into the array.
    """

    def __init__(self, tensor: Any, writable: bool = False) -> None:
        found = _core._describe_tensor(tensor, writable)
        self.tensor = tensor
        self.dtype = found["dtype"]
        self.size = _itemsize(self.dtype)
        self.count = found["count"]
        self.packed = None
        self.address = found["data"]
        if not found["is_contiguous"]:
            self.packed = _alone().empty((self.count,), self.dtype)
            _core._copy_tensor(self.packed, tensor)
            self.address = _core._describe_tensor(self.packed, True)["data"]

    def write_back(self) -> None:
        if self.packed is not None:
            _core._copy_tensor(self.tensor, self.packed)


def _is_on_cpu(tensor: Any) -> bool:
    """Whether an array's memory can be read here; some have none at all, such as those of torch's meta device."""
    try:
        return _core._describe_tensor(tensor, False)["device_type"] == _CPU
    except (ValueError, BufferError):
        return False


def _shape(tensor: Any) -> tuple[int, ...]:
    return _core._describe_tensor(tensor, False)["shape"] if _is_on_cpu(tensor) else tuple(tensor.shape)


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


def _put(call: str, dst: Any, at: int, src: Any, start: int, count: int) -> None:
    """Copy `count` elements of src, from `start`, to dst, from `at`; both in row-major order."""
    room, have = _count(_shape(dst)) - at, _count(_shape(src)) - start
    if count > room or count > have:
        raise RuntimeError(f"FakeProcessGroup::{call}: {count} elements, of {have} in the input, for {room} in the output")
    if not _is_on_cpu(dst) or not _is_on_cpu(src):
        # Memory that only its library can copy.
        dst.reshape(-1)[at : at + count] = src.reshape(-1)[start : start + count]
        return
    source, target = _Elements(src), _Elements(dst, writable=True)
    if source.dtype != target.dtype:
        raise RuntimeError(
            f"FakeProcessGroup::{call}: the output is of {target.dtype}, and the input of {source.dtype}"
        )
    size = source.size
    ctypes.memmove(target.address + at * size, source.address + start * size, count * size)
    target.write_back()


def _copy(call: str, dst: Any, src: Any) -> None:
    shapes = _shape(dst), _shape(src)
    if _count(shapes[0]) != _count(shapes[1]):
        raise RuntimeError(f"FakeProcessGroup::{call}: the output has shape {shapes[0]}, and the input {shapes[1]}")
    _put(call, dst, 0, src, 0, _count(shapes[0]))


def check_splits(splits: list[int], tensor: Any, size: int) -> None:
    """What c10d asks of the split sizes of an all-to-all; an empty list stands for equal parts."""
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


# --- the backend ---


class FakeOptions(BackendOptions):
    """FakeProcessGroup.Options: error_on_collective makes every collective raise RuntimeError."""

    def __init__(self) -> None:
        super().__init__("fake")
        self.fake_option = 0
        self.error_on_collective = False


_NOT_COLLECTIVE = {"send", "recv", "recv_anysource", "monitored_barrier"}


class FakeProcessGroup(Backend):
    """A backend without peers: outputs are filled from this rank's own inputs, and works are FakeWork.

    Made by _create_internal(), or by init_process_group(backend="fake").
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

    def _perform(self, method: str, *arguments: Any) -> Any:
        if self._options.error_on_collective and method not in _NOT_COLLECTIVE:
            raise RuntimeError("FakeProcessGroup collective operation error (error_on_collective=true)")
        super()._perform(method, *arguments)
        return FakeWork()

    def _check_list(self, call: str, what: str, tensors: Any) -> None:
        if len(tensors) != self._size:
            raise RuntimeError(
                f"FakeProcessGroup::{call}: Incorrect {what} list size {len(tensors)}. {what.capitalize()} list size should "
                f"be {self._size}, same as size of the process group."
            )

    def _nothing(self, *_: Any) -> None:
        """What moves no data, as there is nobody to send it to."""

    _run_allreduce = _run_allreduce_coalesced = _run_allreduce_sparse = _nothing
    _run_broadcast = _run_reduce = _run_barrier = _nothing
    _run_send = _run_recv = _run_recv_anysource = _nothing

    def _run_allgather(self, output_lists: Any, inputs: Any, opts: Any) -> None:
        for output in output_lists[0]:
            _copy("allgather", output, inputs[0])

    def _run_allgather_coalesced(self, output_lists: Any, inputs: Any, opts: Any) -> None:
        if len(output_lists) != self._size:
            raise RuntimeError("FakeProcessGroup::allgather_coalesced: output lists should be equal to world size")
        for outputs in output_lists:
            for output, input in zip(outputs, inputs, strict=True):
                _copy("allgather_coalesced", output, input)

    def _run_all_gather_single(self, output: Any, input: Any, opts: Any) -> None:
        room, count = _count(_shape(output)), _count(_shape(input))
        if room != count * self._size:
            raise RuntimeError("output tensor size must be equal to world_size times input tensor size")
        for rank in range(self._size):
            _put("all_gather_single", output, rank * count, input, 0, count)

    def _run_all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> None:
        for output, input in zip(outputs, inputs, strict=True):
            self._run_all_gather_single(output, input, opts)

    def _run_gather(self, output_lists: Any, inputs: Any, opts: Any) -> None:
        if opts.rootRank != self._rank:
            if output_lists and output_lists[0]:
                raise RuntimeError("FakeProcessGroup::gather: requires empty output on non-root")
            return
        outputs = output_lists[0] if output_lists else []
        self._check_list("gather", "output", outputs)
        for output in outputs:
            _copy("gather", output, inputs[0])

    def _run_scatter(self, outputs: Any, input_lists: Any, opts: Any) -> None:
        inputs = input_lists[0] if input_lists else []
        if opts.rootRank != self._rank:
            if inputs:
                raise RuntimeError("FakeProcessGroup::scatter: requires empty input on non-root")
            return
        self._check_list("scatter", "input", inputs)
        _copy("scatter", outputs[0], inputs[self._rank])

    def _run_reduce_scatter(self, outputs: Any, input_lists: Any, opts: Any) -> None:
        if not input_lists or len(input_lists[0]) != self._size:
            raise RuntimeError("FakeProcessGroup::reduce_scatter: invalid input tensor list size, must be world size")
        _copy("reduce_scatter", outputs[0], input_lists[0][self._rank])

    def _run_reduce_scatter_single(self, output: Any, input: Any, opts: Any) -> None:
        count = _count(_shape(output))
        if _count(_shape(input)) != count * self._size:
            raise RuntimeError("input tensor must be the same size as output size times world size")
        _put("reduce_scatter_single", output, 0, input, self._rank * count, count)

    def _run_reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> None:
        for output, input in zip(outputs, inputs, strict=True):
            self._run_reduce_scatter_single(output, input, opts)

    def _run_alltoall(self, outputs: Any, inputs: Any, opts: Any) -> None:
        for what, tensors in (("input", inputs), ("output", outputs)):
            if len(tensors) != self._size:
                raise RuntimeError(
                    f"FakeProcessGroup::alltoall: {what} tensor list size {len(tensors)} does not match world size {self._size}"
                )
        for output, input in zip(outputs, inputs, strict=True):
            _copy("alltoall", output, input)

    def _run_all_to_all_single(
        self, output: Any, input: Any, output_splits: list[int], input_splits: list[int], opts: Any
    ) -> None:
        check_splits(output_splits, output, self._size)
        check_splits(input_splits, input, self._size)
        if not output_splits:
            _copy("all_to_all_single", output, input)
            return
        row = _count(_shape(output)[1:])
        at = 0
        for split in output_splits:
            # As c10d's: every part begins with the input's beginning.
            _put("all_to_all_single", output, at, input, 0, split * row)
            at += split * row

    def _start_coalescing(self) -> None:
        """Nothing: calls end at once."""

    def _end_coalescing(self) -> FakeWork:
        return FakeWork()


# --- the store ---


class FakeStore(_core.Store):
    """A store that keeps nothing, and where everything that is waited for is there."""

    def __init__(self) -> None:
        super().__init__()

    def set(self, key: Any, value: Any) -> None:
        pass

    def get(self, key: Any, timeout: Any = None) -> bytes:
        return b""

    def add(self, key: Any, amount: Any) -> int:
        return amount

    def wait(self, keys: Any, timeout: Any = None) -> None:
        pass

    def check(self, keys: Any) -> bool:
        return True

    def delete_key(self, key: Any) -> bool:
        return True

    def num_keys(self) -> int:
        return 0

    def clone(self) -> FakeStore:
        return FakeStore()

    def _refuse(self, *_: Any) -> NoReturn:
        raise NotImplementedError("FakeStore does not keep values")

    compare_set = append = list_keys = _refuse  # type: ignore[assignment]
