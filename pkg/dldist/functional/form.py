"""How a functional call is carried out: now, later, or by the library that traces or differentiates it."""

from __future__ import annotations

import operator
import sys

from dldist import _core
from dldist.base import arrays as base_arrays
from dldist.functional.pending import Pending

TYPE_CHECKING = False  # as in the modules that have to be cheap to import
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any


class Form:
    """A call: the group, what it makes of arrays, and what the results look like.

    It keeps no array: a compiled function keeps the forms of its calls.
    """

    def __init__(self, name: str, x: Any, group: Any, timeout: Any = None) -> None:
        self.name = name
        self.group = group
        self.timeout = timeout
        self.operations = operations_of(group)
        self.rank: int = self.operations.rank
        self.size: int = self.operations.size
        self._family = base_arrays.family_of(x, name)
        self.shape = self._family.shape(x)
        self.shapes: Sequence[tuple[int, ...]] | None = None
        self.transpose: Callable[..., list[Any]] | None = None

    # ---- what the caller has asked for

    def axis(self, axis: int, argument: str = "axis", new: int = 0) -> int:
        """A number of an axis as one that is not negative; `new` is how many axes the result has more than x."""
        count = len(self.shape) + new
        number = as_index(axis)
        if number is None or not -count <= number < count:
            raise ValueError(
                f"{self.name}(): argument '{argument}' is {axis!r}, and there are {count} axes: x has the shape {self.shape}"
            )
        axis = number % count
        if axis > 0 and not self._family.has_slices:
            raise ValueError(
                f"{self.name}(): argument '{argument}' is {axis}: arrays of this type can only be taken apart along axis 0"
            )
        return axis

    def share(self, axis: int) -> int:
        """The part of one rank of an axis that all of them share."""
        extent = self.shape[axis]
        if extent % self.size != 0:
            raise ValueError(f"{self.name}(): axis {axis} of {self.shape} cannot be shared evenly by {self.size} ranks")
        return extent // self.size

    def with_extent(self, axis: int, extent: int) -> tuple[int, ...]:
        """The shape of x with another extent along an axis."""
        return (*self.shape[:axis], extent, *self.shape[axis + 1 :])

    def as_rank(self, rank: Any, argument: str) -> int:
        number = as_index(rank)
        if number is None or number not in range(self.size):
            raise ValueError(f"{self.name}(): argument '{argument}': invalid rank: {rank!r} is not in 0 to {self.size - 1}")
        return number

    # ---- running it

    def run(
        self,
        arrays: Sequence[Any],
        start: Callable[..., Any],
        shapes: Sequence[tuple[int, ...]] | None,
        *,
        fill: bool = False,
        transpose: Callable[..., Any] | None = None,
        pack: Callable[[list[Any]], Any] = list,
        async_op: bool = False,
    ) -> Any:
        """pack(the results), or a Pending of that.

        start(operations, sources, outputs, how) makes the calls, and returns their works where how["async_op"] is set. `shapes`
        are those of the outputs, None when this rank gets nothing; `fill` has the outputs begin as copies of the sources.
        transpose(*gradients of the results) gives those of the arrays; without it there are none.
        """
        self._start_calls = start
        self.shapes = shapes
        self._fill = fill
        if transpose is not None:
            self.transpose = transpose
        library = self._library_in_charge(arrays)
        if library is not None and async_op:
            raise ValueError(f"{self.name}(): async_op=True is not for arrays that are traced or need a gradient")
        if library is not None:
            return pack(library.run(self, arrays))
        let_compiled_calls_finish()
        if not async_op:
            return pack(self.run_now(arrays))
        families, outputs, works = self._start(arrays, True)
        return Pending(works, lambda: pack(_finish(families, arrays, outputs)))

    def _library_in_charge(self, arrays: Sequence[Any]) -> Any:
        """The module of ours for a library that traces the arrays, or wants to know how the results come into being."""
        if any(map(base_arrays.is_traced, arrays)):
            from dldist.functional import jax

            return jax
        if self.transpose is not None and "torch" in sys.modules:
            from dldist.functional import torch

            if torch.wants_gradient(arrays):
                return torch
        return None

    def run_now(self, arrays: Sequence[Any]) -> list[Any]:
        """The results for arrays that have their values: those of the call, or others in their place."""
        families, outputs, _ = self._start(arrays, False)
        return _finish(families, arrays, outputs)

    def _start(self, arrays: Sequence[Any], async_op: bool) -> tuple[list[base_arrays.Family], list[Any], list[_core.Work]]:
        families = [base_arrays.family_of(x, self.name) for x in arrays]
        outputs = []
        if self.shapes is not None:
            outputs = [family.empty_like(x, shape) for family, x, shape in zip(families, arrays, self.shapes, strict=True)]
        sources = [family.source(x) for family, x in zip(families, arrays, strict=True)]
        if self._fill:
            _core._copy_tensors(outputs, sources)
        how = {"timeout": self.timeout, "async_op": async_op}
        works = self._start_calls(self._operations_now(), sources, outputs, how)
        return families, outputs, works if isinstance(works, list) else [works] if async_op else []

    def _operations_now(self) -> Any:
        """The default world may be another one when a compiled function is called again."""
        operations = operations_of(self.group)
        if (operations.rank, operations.size) != (self.rank, self.size):
            raise ValueError(
                f"{self.name}(): compiled as rank {self.rank} of {self.size}, and called as rank {operations.rank} of "
                f"{operations.size}: compile the function again (jax.clear_caches())"
            )
        return operations


def _finish(families: list[base_arrays.Family], arrays: Sequence[Any], outputs: list[Any]) -> list[Any]:
    # Where this rank gets nothing there are no outputs, however many arrays there are.
    return [family.finish(output, x) for family, x, output in zip(families, arrays, outputs, strict=False)]


def as_index(value: Any) -> int | None:
    """A whole number of any library, None for anything else."""
    try:
        return operator.index(value)
    except TypeError:
        return None


def operations_of(group: Any) -> Any:
    """What runs the operations of a group: methods as those of dldist.Group."""
    if isinstance(group, _core.Group):
        return group
    from dldist.c10d import registry

    return registry.operations(group)


def let_compiled_calls_finish() -> None:
    """A call of a function of jax.jit returns before its collectives have been made, and all ranks need one order."""
    compiled = sys.modules.get("dldist.functional.jax")
    if compiled is not None:
        compiled.flush()
