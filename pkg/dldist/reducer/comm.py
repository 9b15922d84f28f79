"""The buckets that communication hooks get, and the results of hooks."""

from __future__ import annotations

from typing import Any

from dldist import _core
from dldist._base import arrays
from dldist.reducer.buckets import Bucket, SparseBucket


class GradBucket:
    """A full bucket, which a Reducer passes to a communication hook."""

    __slots__ = ("_bucket", "_buffer", "_is_last")

    def __init__(self, bucket: Bucket, is_last: bool) -> None:
        self._bucket = bucket
        self._is_last = is_last
        self._buffer: Any = bucket.sparse_slot.sent if isinstance(bucket, SparseBucket) else None

    def __repr__(self) -> str:
        return f"<dldist.GradBucket: number {self.index()}, {self.memory!r}>"

    @property
    def memory(self) -> _core.SharedArray:
        """The gradients, contiguous, in memory that the ranks of a host share."""
        return self._bucket.memory

    def index(self) -> int:
        """Return the bucket's index. Bucket 0 is reduced first."""
        return self._bucket.index

    def is_last(self) -> bool:
        """Return True if this is the last bucket of the pass."""
        return self._is_last

    def buffer(self) -> Any:
        """Return the gradients as a writable 1-D array (NumPy's if the library's are immutable)."""
        return self.view(self.memory) if self._buffer is None else self._buffer

    def set_buffer(self, buffer: Any) -> None:
        """Replace the array of buffer() and gradients(). The hook must still return a result."""
        self._buffer = buffer

    def gradients(self) -> list[Any]:
        """Return the gradients in the bucket, as views of buffer()."""
        if self._buffer is None:
            return [self.view(slot.part) for slot in self._bucket.slots]
        if self._bucket.is_sparse:
            return [self._buffer]
        counts = [slot.parameter.count for slot in self._bucket.slots]
        pieces = arrays.pieces(self._buffer, 0, counts)
        return [piece.reshape(slot.parameter.shape) for piece, slot in zip(pieces, self._bucket.slots, strict=True)]

    def parameters(self) -> list[Any]:
        """Return the parameters of these gradients, as passed to the Reducer."""
        return [slot.parameter.like for slot in self._bucket.slots]

    def scratch(self, dtype: str) -> _core.SharedArray:
        """Return memory for the bucket's elements in another dtype. It is reused in every pass."""
        return self._bucket.get_scratch(dtype)

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the gradients in the bucket."""
        return [slot.parameter.shape for slot in self._bucket.slots]

    def view(self, memory: _core.SharedArray) -> Any:
        """Return memory from scratch() as an array of the same library as buffer()."""
        return self._bucket.view_of(memory)


def collect(bucket: Bucket) -> None:
    """Wait until a bucket has been reduced, and store the result in its memory."""
    outcome = bucket.outcome
    if callable(outcome):
        outcome = outcome()
    if isinstance(outcome, _core.Work):
        outcome.wait()
        outcome = outcome.result()
    elif hasattr(outcome, "wait"):
        outcome = outcome.wait()
    if isinstance(outcome, (list, tuple)) and len(outcome) == 1:
        outcome = outcome[0]
    try:
        bucket.accept(outcome)
    except (TypeError, ValueError) as error:
        text = (
            f"the communication hook's result for bucket {bucket.index} must be an array of its length, or a Future, a Work or a "
            f"function that gives one: {error}"
        )
        # Add the text of torch's error, which programs may search for.
        if isinstance(error, TypeError):
            text += f" (callback must return a torch.futures.Future object, but got {type(outcome).__name__})"
            raise _core.DistTypeError(text) from error
        raise type(error)(text) from error


def is_pending(outcome: Any) -> bool:
    """Return True if the operation is known to be unfinished and may write to the bucket."""
    if isinstance(outcome, _core.Work):
        return not outcome.is_completed()
    is_done = getattr(outcome, "done", None)
    return not is_done() if callable(is_done) else callable(outcome) or hasattr(outcome, "wait")
