"""Runs functional calls: directly, asynchronously, or through a library that traces them."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, TypeVar

from dldist import _core
from dldist._backends import registry
from dldist._base import arrays as base_arrays
from dldist._base.array_types import Timeout
from dldist._base.future import wait_for
from dldist._base.probes import NO_RANK
from dldist.functional import reductions

# Initial contents of results, with the numbers of dd_ffi_fill in csrc/xla/ffi.h.
NOTHING, COPIES, ZEROS = range(3)

_Result = TypeVar("_Result")


class Form:
    """A functional call: the group, the operation on arrays, and the shapes of the results.

    A Form must hold no array, because a compiled function keeps the Forms of its calls alive.
    """

    def __init__(self, name: str, x: Any, group: Any, timeout: Any, async_op: bool, op: Any = None) -> None:
        if hasattr(op, "rank"):
            raise TypeError(f"{name}(): argument 'op' must be a reduction such as 'sum', not {type(op).__name__}; pass a group as group=")
        self.name = name
        self.group = group
        self.timeout = timeout
        self.async_op = async_op
        self.operations = operations_of(group)
        self.rank: int = self.operations.rank
        self.size: int = self.operations.size
        x = base_arrays.as_value(x)
        self._family = base_arrays.value_family_of(x, name)
        self.has_slices = self._family.has_slices
        self.shape = self._family.shape(x)
        self.shapes: Sequence[tuple[int, ...]] | None = None
        self.transpose: Callable[..., list[Any]] | None = None
        self._has_gradient = op is None or reductions.is_linear(op)

    def axis(self, axis: int, argument: str = "axis", new: int = 0) -> int:
        """Return the axis as a non-negative number. Results have `new` more axes than x."""
        count = len(self.shape) + new
        number = as_index(axis)
        if number is None or not -count <= number < count:
            raise ValueError(
                f"{self.name}(): argument '{argument}' is out of range: got {axis!r}, expected {-count} to {count - 1} for shape {self.shape}"
            )
        axis = number % count
        if axis > 0 and not self.has_slices:
            raise ValueError(f"{self.name}(): argument '{argument}': got {axis}, expected 0, the only axis along which this type can be sliced")
        return axis

    def share(self, axis: int) -> int:
        """Return the length of a rank's part of an axis; ValueError if it cannot be divided."""
        extent = self.shape[axis]
        if extent % self.size != 0:
            raise ValueError(f"{self.name}(): axis {axis} of argument 'x' is not divisible: got {extent}, expected a multiple of {self.size} (ranks)")
        return extent // self.size

    def with_extent(self, axis: int, extent: int) -> tuple[int, ...]:
        """Return x's shape with another length of one axis."""
        return (*self.shape[:axis], extent, *self.shape[axis + 1 :])

    def check_rank(self, rank: Any, argument: str) -> int:
        number = as_index(rank)
        if number is None or number not in range(self.size):
            raise ValueError(f"{self.name}(): argument '{argument}': invalid rank: got {rank!r}, expected 0 to {self.size - 1}")
        return number

    def check_peer(self, rank: Any, argument: str) -> int:
        return NO_RANK if as_index(rank) == NO_RANK else self.check_rank(rank, argument)

    def run(
        self,
        arrays: Sequence[Any],
        start: Callable[..., Any],
        shapes: Sequence[tuple[int, ...]] | None,
        again: Callable[..., Any],
        *,
        fill: int = NOTHING,
        transpose: Callable[..., list[Any]] | None = None,
        pack: Callable[..., Any] = lambda result=None: result,
    ) -> Any:
        """Run the call. Return pack(*results), or a Pending for this value.

        start(calls, *sources, *outputs, timeout=, async_op=) makes the calls and returns their
        works. `shapes` are the outputs' shapes, or None if this rank has no result; all outputs are
        then None. `fill` is the outputs' initial content; COPIES copies the sources.
        transpose(*gradients) converts the results' gradients to the arrays' gradients, or is None;
        it is not used for a reduction without a gradient. again(*arrays, group=, timeout=) makes the
        same call on other arrays.
        """
        arrays = [base_arrays.as_value(x) for x in arrays]
        self._start_calls = start
        self.shapes = shapes
        self.fill = fill
        self.transpose = transpose if self._has_gradient else None
        self._again = again
        library = self._transforming_library(arrays)
        if library is not None and self.async_op:
            raise ValueError(f"{self.name}(): argument 'async_op': got True, expected False for arrays that are traced or need a gradient")
        if library is not None:
            return pack(*library.run(self, arrays))
        wait_for_compiled_calls()
        outputs, works = self._start(arrays)
        if not self.async_op:
            return pack(*self._finish(arrays, outputs))
        return Pending(works if isinstance(works, list) else [works], lambda: pack(*self._finish(arrays, outputs)))

    def _transforming_library(self, arrays: Sequence[Any]) -> Any:
        """Return the module for the library that traces or differentiates these arrays, or None."""
        if any(map(base_arrays.is_traced, arrays)):
            from dldist.functional import jax

            return jax
        if self.transpose is not None and "torch" in sys.modules:
            from dldist.functional import torch

            if torch.wants_gradient(arrays):
                return torch
        return None

    def run_eagerly(self, arrays: Sequence[Any]) -> list[Any]:
        """Run the call on concrete arrays in place of the original ones, and return the results."""
        return self._finish(arrays, self._start(arrays)[0])

    def call_batched(self, *arrays: Any) -> list[Any]:
        """Make the same call on arrays with one more axis at the end."""
        results = self._again(*arrays, group=self.group, timeout=self.timeout)
        if self.shapes is None:
            return []
        # Only the root of a reduce has a result; any array will do on other ranks.
        return results if isinstance(results, list) else [arrays[0] if results is None else results]

    def describe(self, calls: Any, sources: Sequence[Any], results: Sequence[Any]) -> None:
        """Make the calls on `calls` with these arrays. `results` is empty if this rank has none."""
        self._start_calls(calls, *sources, *(results or [None] * len(sources)), timeout=self.timeout, async_op=False)

    def _families(self, arrays: Sequence[Any]) -> list[base_arrays.Family]:
        return [base_arrays.value_family_of(x, self.name) for x in arrays]

    def _start(self, arrays: Sequence[Any]) -> tuple[list[Any], Any]:
        families = self._families(arrays)
        sources = [family.source(x) for family, x in zip(families, arrays, strict=True)]
        outputs: list[Any] = [None for _ in arrays]
        if self.shapes is not None:
            outputs = [family.empty_like(x, shape) for family, x, shape in zip(families, arrays, self.shapes, strict=True)]
        if self.fill == COPIES:
            _core._copy_tensors(outputs, sources)
        elif self.fill == ZEROS:
            for family, output in zip(families, outputs, strict=True):
                family.clear(output)
        works = self._start_calls(self.current_operations(), *sources, *outputs, timeout=self.timeout, async_op=self.async_op)
        return outputs, works

    def _finish(self, arrays: Sequence[Any], outputs: list[Any]) -> list[Any]:
        if self.shapes is None:
            return []
        return [family.finish(output, x) for family, x, output in zip(self._families(arrays), arrays, outputs, strict=True)]

    def current_operations(self) -> Any:
        """Return the group's operations now, because the default world may change between calls."""
        operations = operations_of(self.group)
        if (operations.rank, operations.size) != (self.rank, self.size):
            raise ValueError(
                f"{self.name}(): compiled for another rank: got rank {operations.rank} of {operations.size}, expected "
                f"{self.rank} of {self.size}; compile the function again (jax.clear_caches())"
            )
        return operations


def as_index(value: Any) -> int | None:
    """Return an integer of any library as an int, or None if the value is no integer."""
    try:
        return operator.index(value)
    except TypeError:
        return None


def operations_of(group: Any) -> Any:
    """Return the object that runs a group's operations, with the methods of dldist.Group."""
    if isinstance(group, _core.Group):
        return group
    try:
        return registry.operations(group)
    except ValueError as error:
        if str(error) == registry.NOT_INITIALIZED:
            raise ValueError(f"{registry.NOT_INITIALIZED[:-1]}, or pass group=") from None
        raise


def wait_for_compiled_calls() -> None:
    """Wait for the collectives of compiled calls, which may run after the calls return, so that
    later calls keep the order."""
    compiled = sys.modules.get("dldist.functional.jax")
    if compiled is not None:
        compiled.flush()


class Pending(Generic[_Result]):
    """The result of an asynchronous call. numpy.asarray() and from_dlpack() wait for it."""

    __slots__ = ("_finish", "_result", "_works")

    def __init__(self, works: list[_core.Work], finish: Callable[[], _Result]) -> None:
        self._works = works
        self._finish: Callable[[], _Result] | None = finish
        self._result: Any = None

    def done(self) -> bool:
        """Return True if wait() would return or raise without blocking."""
        return all(work.is_completed() for work in self._works)

    def wait(self, timeout: Timeout | None = None) -> _Result:
        """Wait for the result and return it. Every call returns the same object.

        Args:
            timeout: Seconds or a timedelta, for each operation. None is its own; 0 does not wait.

        Raises:
            DistTimeoutError: The timeout expired. The operation continues; wait() can be called again.
        """
        for work in self._works:
            wait_for(work, timeout)
        return self._take()

    def __await__(self) -> Generator[Any, None, _Result]:
        for work in self._works:
            yield from work.__await__()
        return self._take()

    def _take(self) -> _Result:
        finish = self._finish
        if finish is not None:
            self._result = finish()
            self._finish = None
        return self._result  # type: ignore[no-any-return]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        import numpy

        array = numpy.asarray(self.wait())
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError(f"copy=False: converting {array.dtype} to {dtype} requires a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack__(self, **options: Any) -> Any:
        result: Any = self.wait()
        return result.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        result: Any = self.wait()
        return result.__dlpack_device__()  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<dldist.functional.Pending: {'done' if self.done() else 'under way'}>"
