"""Works that are implemented in Python, for Python backends and for operations that start later."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from datetime import timedelta
from functools import cached_property
from time import monotonic
from typing import Any

from dldist import _core
from dldist._base.future import Future, await_work
from dldist._base.options import to_timedelta
from dldist._base.probes import ANY_TAG, NO_RANK


class FakeWork(_core.Work):
    """The work of an operation that does nothing. Its future's value is the outputs, or None."""

    def __init__(self, outputs: Iterable[Any] = ()) -> None:
        super().__init__()
        self.seq_id = -1
        self._outputs = list(outputs)

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def result(self) -> list[Any]:
        if not self._outputs:
            raise RuntimeError("FakeWork.result(): the work has no output")
        return self._outputs

    def get_future(self) -> Future:
        future = Future()
        future.set_result(self._outputs or None)
        return future

    getFuture = get_future


class FutureWork(_core.Work):
    """A work that ends when a future is done."""

    def __init__(self, future: Future) -> None:
        super().__init__()
        if not isinstance(future, Future):
            raise TypeError(f"_create_work_from_future(): argument 'future' must be Future, not {type(future).__name__}")
        self._future = future

    def wait(self, timeout: Any = None) -> bool:
        self._future.wait(_limit(timeout).total_seconds() or None)
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._future.done()

    def is_success(self) -> bool:
        return self._future.done() and self._future.exception() is None

    def exception(self) -> BaseException | None:
        return self._future.exception()

    def result(self) -> Any:
        return self._future.value()

    def get_future(self) -> Future:
        return self._future

    def __await__(self) -> Generator[Any, None, Any]:
        return await_work(self)

    def _watch(self, callback: Callable[[], object]) -> None:
        self._future.add_done_callback(lambda _: callback())


def done_work(value: Any, kind: type[FutureWork] = FutureWork) -> FutureWork:
    """Return a completed work whose future has this value."""
    future = Future()
    future.set_result(value)
    return kind(future)


class ObjectWork(FutureWork):
    """The work of sending or receiving an object, which wait() and result() return.

    `works` yields the works of the object's messages, each once the one before it has ended. It
    runs on the thread that starts the operation, then on the completion thread. `read` makes the
    object from its return value, on a thread that wants the object, because this may run the
    program's code.
    """

    def __init__(self, name: str, works: Generator[_core.Work, None, Any], read: Callable[[Any], Any]) -> None:
        super().__init__(Future())
        self._name = name
        self._works = works
        self._read = read
        self._message = self._pending = next(works)
        self._advance(self._message)

    def _advance(self, work: _core.Work) -> None:
        try:
            while work.is_completed():
                work.wait()
                work = next(self._works)
            self._pending = work
            work._watch(lambda: self._advance(work))
        except StopIteration as end:
            self._future._complete(end.value, None)
        except Exception as error:
            self._future._complete(None, error)

    @cached_property
    def _object(self) -> Any:
        return self._read(self._future.value())

    def wait(self, timeout: Any = None) -> Any:
        start = monotonic()
        pending = self._pending
        try:
            # This raises in a forked child, where the future never ends.
            pending.wait(timeout)
        except Exception:
            if not pending.is_completed():
                raise
        seconds = _limit(timeout).total_seconds()
        super().wait(seconds and max(seconds - monotonic() + start, 1e-6))
        return self._object

    def result(self) -> Any:
        return self._object

    def exception(self) -> BaseException | None:
        try:
            _ = self.is_completed() and self._object
        except Exception as error:
            return error
        return None

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def get_future(self) -> Future:
        return self._future.then(lambda _: self._object)

    def source_rank(self) -> int:
        return self._message.source_rank()

    def received_tag(self) -> int:
        return self._message.received_tag()

    def cancel(self) -> bool:
        is_cancelled = self._message.cancel()
        if is_cancelled:
            self._advance(self._message)  # the completion thread may be later
        return is_cancelled

    def __repr__(self) -> str:
        state = "under way" if not self.is_completed() else "done" if self._future.exception() is None else "failed"
        return f"<dldist.Work: {self._name}, {state}>"


class SkippedMessage(FutureWork):
    """The completed work of a message to or from NO_RANK."""

    def source_rank(self) -> int:
        return NO_RANK

    _source_rank = source_rank

    def received_tag(self) -> int:
        return ANY_TAG

    def received_nbytes(self) -> int:
        return 0


def skipped_message(tensor: Any = None) -> FutureWork:
    """Return the work of a message to NO_RANK, or of one from NO_RANK, which leaves `tensor` as it is."""
    return done_work([] if tensor is None else [tensor], SkippedMessage)


class PythonCallbackWork(FutureWork):
    """A work whose wait() calls callback(timeout), which returns True if the operation has ended.

    The callback gets a timedelta; 0 means no limit. The work is completed once the callback has
    returned True or raised. Its future's value is an empty list.
    """

    def __init__(self, callback: Callable[[timedelta], bool]) -> None:
        super().__init__(Future())
        if not callable(callback):
            raise TypeError(f"PythonCallbackWork(): argument 'callback' must be callable, not {type(callback).__name__}")
        self._callback = callback

    def wait(self, timeout: Any = None) -> bool:
        try:
            has_ended = bool(self._callback(_limit(timeout)))
        except Exception as error:
            self._future._complete(None, error)
            raise
        if has_ended:
            self._future._complete([], None)
        return has_ended

    def is_success(self) -> bool:
        return self._future.exception() is None


class ChainedWork(FutureWork):
    """A work that calls `next_call` once another work has succeeded. Its result is `value`."""

    def __init__(self, work: _core.Work, next_call: Callable[[], object], value: Any) -> None:
        self._first_future = work.get_future()
        super().__init__(self._first_future.then(lambda first: self._run_next(first, next_call, value)))
        self._work = work

    @staticmethod
    def _run_next(first: Future, next_call: Callable[[], object], value: Any) -> Any:
        first.value()  # raises the operation's error if it failed
        next_call()
        return value

    def wait(self, timeout: Any = None) -> bool:
        self._first_future.wait(_limit(timeout).total_seconds() or None)
        return super().wait()

    def is_completed(self) -> bool:
        return self._first_future.done() and super().is_completed()

    def _get_duration(self) -> float:
        return self._work._get_duration()

    def _get_sequence_number(self) -> int:
        return self._work._get_sequence_number()

    def source_rank(self) -> int:
        return self._work.source_rank()


def _create_work_from_future(future: Future) -> FutureWork:
    """Return a work that ends when the future does."""
    return FutureWork(future)


def _limit(timeout: Any) -> timedelta:
    """Convert a timeout to a timedelta. None becomes 0, which means no limit."""
    return to_timedelta(0 if timeout is None else timeout)


class _IllegalWork(_core.Work):
    """The placeholder that a call in a coalescing block returns. Wait for the block instead."""

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("__") and hasattr(_core.Work, name):
            raise ValueError(f"Illegal to call {name} on IllegalWork object")
        return super().__getattribute__(name)
