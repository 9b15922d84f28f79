"""Communication hooks for Reducer.register_comm_hook: send fewer bytes for less exact averages.

    reducer.register_comm_hook(group, comm_hooks.bf16_compress_hook)
    reducer.register_comm_hook(comm_hooks.PowerSGDState(group, matrix_approximation_rank=2), comm_hooks.powerSGD_hook)

The state of all hooks except powerSGD_hook is the group, or None for the default world.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dldist import _core
from dldist._base import argument_names
from dldist._base.future import Future
from dldist.functional.form import operations_of
from dldist.reducer.comm import GradBucket
from dldist.types import AnyGroup

Hook = Callable[[Any, GradBucket], Any]

__all__ = [
    "PowerSGDState",
    "allreduce_hook",
    "bf16_compress_hook",
    "bf16_compress_wrapper",
    "fp16_compress_hook",
    "fp16_compress_wrapper",
    "powerSGD_hook",
]


def allreduce_hook(process_group: AnyGroup | None, bucket: GradBucket) -> Future:
    """Average the gradients, as without a hook, and return a Future of the average.

    Args:
        process_group: The state of the hook: a group, or None for the default world.
        bucket: The gradients.
    """
    work = operations_of(process_group).all_reduce(bucket.buffer(), "avg", async_op=True)
    future: Future = work.get_future()
    return future


def fp16_compress_hook(process_group: AnyGroup | None, bucket: GradBucket) -> Future:
    """Average the gradients rounded to float16. Values above 65504 become infinite.

    Arguments and result are as for allreduce_hook.
    """
    return _average_as("float16", process_group, bucket)


def bf16_compress_hook(process_group: AnyGroup | None, bucket: GradBucket) -> Future:
    """Average the gradients rounded to bfloat16, which has the range of float32.

    Arguments and result are as for allreduce_hook.
    """
    return _average_as("bfloat16", process_group, bucket)


def _average_as(dtype: str, process_group: AnyGroup | None, bucket: GradBucket) -> Future:
    compressed = _compress(dtype, bucket)
    work = operations_of(process_group).all_reduce(compressed, "avg", async_op=True)

    def decompress(done: Future) -> Any:
        done.value()
        _core._convert_tensor(bucket.memory, compressed)
        return bucket.memory

    future: Future = work.get_future().then(decompress)
    return future


def _compress(dtype: str, bucket: GradBucket) -> _core.SharedArray:
    compressed = bucket.scratch(dtype)
    _core._convert_tensor(compressed, bucket.memory)
    return compressed


def fp16_compress_wrapper(hook: Hook) -> Hook:
    """Return a hook that rounds gradients to float16 before another hook reduces them.

    Args:
        hook: The hook that reduces the rounded gradients.

    Example:
        >>> from dldist import comm_hooks
        >>> hook = comm_hooks.fp16_compress_wrapper(comm_hooks.allreduce_hook)
    """
    return _with_compression("float16", hook)


def bf16_compress_wrapper(hook: Hook) -> Hook:
    """Return a hook that rounds gradients to bfloat16 before another hook reduces them."""
    return _with_compression("bfloat16", hook)


def _with_compression(dtype: str, hook: Hook) -> Hook:
    def compress_and_call(state: Any, bucket: GradBucket) -> Any:
        bucket.set_buffer(bucket.view(_compress(dtype, bucket)))
        return hook(state, bucket)

    return compress_and_call


# ---- PowerSGD


class PowerSGDState:
    """The state that powerSGD_hook keeps between passes, one for each Reducer. Needs NumPy.

    Args:
        process_group: A World or Group, or a group of new_group; None for the default world.
        matrix_approximation_rank: The number of columns of the two factors that are sent for each
            gradient of two or more dimensions.
        start_powerSGD_iter: The number of initial passes without compression.
        min_compression_rate: Compress only gradients whose factors are at least this many times
            smaller.
        use_error_feedback: Add the error of each pass to the gradients of the next pass.
        warm_start: Start with the factors of the last pass.
        random_seed: The seed for the first factors. All arguments must be the same on all ranks.

    Raises:
        ValueError: `start_powerSGD_iter` is less than 2 with feedback or a warm start.
    """

    def __init__(
        self,
        process_group: AnyGroup | None = None,
        matrix_approximation_rank: int = 1,
        start_powerSGD_iter: int = 1000,
        min_compression_rate: float = 2,
        use_error_feedback: bool = True,
        warm_start: bool = True,
        random_seed: int = 0,
    ) -> None:
        import numpy

        if start_powerSGD_iter < 2 and (use_error_feedback or warm_start):
            raise ValueError(
                f"PowerSGDState(): argument 'start_powerSGD_iter' is too small: got {start_powerSGD_iter}, expected at least 2 with "
                "use_error_feedback or warm_start, as buckets are rebuilt after the first pass"
            )
        self.process_group = process_group
        self.matrix_approximation_rank = matrix_approximation_rank
        self.start_powerSGD_iter = start_powerSGD_iter
        self.min_compression_rate = min_compression_rate
        self.use_error_feedback = use_error_feedback
        self.warm_start = warm_start
        self.rng = argument_names.convert("random_seed", numpy.random.default_rng, random_seed, "an integer")
        self.iter = 0
        """The number of passes so far, each over all buckets."""
        self.errors: dict[int, Any] = {}
        """The accumulated compression error of each bucket's gradients, by bucket index."""
        self.right_factors: dict[int, list[Any]] = {}
        """The right factors of the last pass, for each bucket's matrices."""
        self.sent_elements = self.whole_elements = 0

    def compression_rate(self) -> float:
        """Return the elements of all compressed passes, divided by the elements sent for them."""
        return self.whole_elements / max(self.sent_elements, 1)

    def _is_compressed(self, shape: tuple[int, ...]) -> bool:
        rows, columns = _as_matrix(shape)
        rank = min(self.matrix_approximation_rank, rows, columns)
        return len(shape) > 1 and rank * (rows + columns) * self.min_compression_rate < rows * columns

    def _new_right_factors(self, matrices: list[Any]) -> list[Any]:
        import numpy

        factors = []
        for matrix in matrices:
            rank = min(self.matrix_approximation_rank, *matrix.shape)
            random = self.rng.standard_normal((matrix.shape[1], rank)).astype(matrix.dtype)
            factors.append(numpy.linalg.qr(random)[0])
        return factors


def _as_matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    return (shape[0], math.prod(shape[1:])) if shape else (1, 1)


def powerSGD_hook(state: PowerSGDState, bucket: GradBucket) -> Any:
    """Average gradients approximated by low-rank matrices (PowerSGD). Needs NumPy.

    Args:
        state: A PowerSGDState.
        bucket: The gradients.
    """
    if bucket.is_last():
        state.iter += 1
    if state.iter - bucket.is_last() < state.start_powerSGD_iter:
        return allreduce_hook(state.process_group, bucket)
    return _PowerSGDStep(state, bucket).finish


class _PowerSGDStep:
    """One bucket in one pass: the constructor sends left factors, finish() sends right factors."""

    def __init__(self, state: PowerSGDState, bucket: GradBucket) -> None:
        self._state = state
        self._index = bucket.index()
        self._operations = operations_of(state.process_group)
        self._gradient = _read(bucket)
        if state.use_error_feedback:
            error = state.errors.get(self._index)
            if error is not None and error.shape == self._gradient.shape:
                self._gradient += error
        self._approximation = self._gradient.copy()
        self._split(bucket.shapes())
        self._factors = self._right_factors()
        # Send the left factors and the uncompressed gradients as one array.
        left = [matrix @ factor for matrix, factor in zip(self._matrices, self._factors, strict=True)]
        self._shapes = [part.shape for part in (*left, *self._others)]
        self._left = _join([*left, *self._others], self._gradient.dtype)
        self._work = self._operations.all_reduce(self._left, "avg", async_op=True)

    def _split(self, shapes: list[tuple[int, ...]]) -> None:
        """Make views of the gradient and its approximation: matrices to compress, and the rest."""
        self._matrices, self._results = [], []
        self._others, self._other_results = [], []
        start = 0
        for shape in shapes:
            range_ = slice(start, start + math.prod(shape))
            gradient, approximation = self._gradient[range_], self._approximation[range_]
            if self._state._is_compressed(shape):
                self._matrices.append(gradient.reshape(_as_matrix(shape)))
                self._results.append(approximation.reshape(_as_matrix(shape)))
            else:
                self._others.append(gradient)
                self._other_results.append(approximation)
            start = range_.stop

    def _right_factors(self) -> list[Any]:
        saved_factors = self._state.right_factors.get(self._index, [])
        if self._state.warm_start and [q.shape[0] for q in saved_factors] == [m.shape[1] for m in self._matrices]:
            return saved_factors
        return self._state._new_right_factors(self._matrices)

    def finish(self) -> Any:
        import numpy

        self._work.wait()
        parts = _split_flat(self._left, self._shapes)
        lefts = [numpy.linalg.qr(left)[0] for left in parts[: len(self._matrices)]]
        rights = [matrix.T @ left for matrix, left in zip(self._matrices, lefts, strict=True)]
        sent = _join(rights, self._gradient.dtype)
        self._operations.all_reduce(sent, "avg")
        rights = _split_flat(sent, [right.shape for right in rights])
        for result, left, right in zip(self._results, lefts, rights, strict=True):
            numpy.matmul(left, right.T, out=result)
        for result, part in zip(self._other_results, parts[len(self._matrices) :], strict=True):
            result[...] = part
        self._state.right_factors[self._index] = rights
        self._state.sent_elements += len(self._left) + len(sent)
        self._state.whole_elements += len(self._gradient)
        if self._state.use_error_feedback:
            self._state.errors[self._index] = self._gradient - self._approximation
        return self._approximation


def _read(bucket: GradBucket) -> Any:
    """Copy a bucket's gradients to a NumPy array."""
    import numpy

    values = numpy.empty(bucket.memory.shape, "float64" if bucket.memory.dtype == "float64" else "float32")
    _core._convert_tensor(values, bucket.memory)
    return values


def _join(arrays: list[Any], dtype: Any) -> Any:
    import numpy

    return numpy.concatenate([array.ravel() for array in arrays]) if arrays else numpy.empty(0, dtype)


def _split_flat(flat: Any, shapes: list[tuple[int, ...]]) -> list[Any]:
    """Copy arrays of these shapes out of the flat array."""
    parts, start = [], 0
    for shape in shapes:
        stop = start + math.prod(shape)
        parts.append(flat[start:stop].reshape(shape).copy())
        start = stop
    return parts
