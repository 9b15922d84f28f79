"""dldist.Future, and `await` for a Work."""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Callable, Generator
from datetime import timedelta
from typing import Any

from dldist import _core
from dldist._base.array_types import Timeout
from dldist._base.options import to_timedelta


class Future:
    """A value that becomes available later: set by set_result or set_exception, or a Work's result.

    Callbacks get the future as their argument. They run on the thread that sets the value; for a
    Work, on a thread of dldist or the thread that waits for this future. If the future is already
    done, add_done_callback runs the callback.
    """

    __slots__ = ("__weakref__", "_callbacks", "_error", "_wait_lock", "_is_done", "_lock", "_unwrap", "_value", "_work")

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._is_done = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Future], object]] = []
        self._wait_lock: Any = None
        """A lock that is released when the future is done; the first waiting thread creates it."""
        self._work: _core.Work | None = None
        self._unwrap: Callable[[Any], object] | None = None

    def done(self) -> bool:
        """Return True if the future has a value or an exception."""
        if self._work is not None and not self._is_done and self._work.is_completed():
            self._complete_from_work()
        return self._is_done

    def wait(self, timeout: Timeout | None = None) -> Any:
        """Wait for the value and return it.

        Args:
            timeout: Seconds or a timedelta. None means no limit (an operation has its own); 0
                checks once.

        Raises:
            DistTimeoutError: The future is not done yet. wait() can be called again.
            BaseException: The exception that was set instead of a value.
        """
        if not self.done():
            if self._work is not None:
                try:
                    wait_for(self._work, timeout)
                except Exception:
                    if not self._work.is_completed():
                        raise
                self._complete_from_work()
            else:
                self._wait(timeout)
        return self.value()

    def _wait(self, timeout: Timeout | None) -> None:
        with self._lock:
            if self._is_done:
                return
            if self._wait_lock is None:
                self._wait_lock = allocate_lock()
                self._wait_lock.acquire()
        seconds = -1.0 if timeout is None else min(seconds_of(timeout), 1e9)
        if self._wait_lock.acquire(True, seconds):
            self._wait_lock.release()  # wakes the next waiting thread
        elif not self._is_done:
            raise _core.DistTimeoutError(f"Operation timed out! The future has no value after {seconds} s (timeout)")

    def value(self) -> Any:
        """Return the value. The future must be done."""
        if not self.done():
            raise RuntimeError("value(): the future has no value; call wait() first")
        if self._error is not None:
            raise self._error
        if self._unwrap is not None:
            self._unwrap(self._value)
        return self._value

    def _set_unwrap_func(self, callback: Callable[[Any], object]) -> None:
        """Set a function that value() calls with the value. It may raise, like RPC's function."""
        if not callable(callback):
            raise TypeError(f"_set_unwrap_func(): argument 'callback' must be callable, not {type(callback).__name__}")
        self._unwrap = callback

    def exception(self) -> BaseException | None:
        """Return the exception, or None if the future has a value or is not done."""
        return self._error if self.done() else None

    def set_result(self, value: Any) -> None:
        """Set the value. The future must not be done."""
        self._set(value, None)

    def set_exception(self, error: BaseException) -> None:
        """Set an exception instead of a value. The future must not be done."""
        if not isinstance(error, BaseException):
            raise TypeError(f"set_exception(): argument 'error' must be an exception, not {type(error).__name__}")
        self._set(None, error)

    def _set(self, value: Any, error: BaseException | None) -> None:
        if self._work is not None or not self._complete(value, error):
            raise RuntimeError("the future already has a value, or a work will set it: expected a pending future")

    def _complete(self, value: Any, error: BaseException | None) -> bool:
        with self._lock:
            if self._is_done:
                return False
            self._value, self._error = value, error
            self._is_done = True
            callbacks, self._callbacks = self._callbacks, []
            if self._wait_lock is not None:
                self._wait_lock.release()
        for callback in callbacks:
            _core._call_and_report(callback, self)
        return True

    def add_done_callback(self, callback: Callable[[Future], object]) -> None:
        """Call callback(self) when the future is done. If it is already done, call it now.

        An Exception that the callback raises goes to sys.unraisablehook. SystemExit and
        KeyboardInterrupt propagate on the thread that runs the callback, as in concurrent.futures.
        """
        if not callable(callback):
            raise TypeError(f"add_done_callback(): argument 'callback' must be callable, not {type(callback).__name__}")
        with self._lock:
            is_done = self._is_done
            if not is_done:
                self._callbacks.append(callback)
                is_first = len(self._callbacks) == 1
        if is_done:
            _core._call_and_report(callback, self)
        elif self._work is not None and is_first:
            self._work._watch(self._complete_from_work)

    def then(self, callback: Callable[[Future], object]) -> Future:
        """Return a future for the result of callback(self), which runs when this future is done."""
        after = Future()

        def run(done: Future) -> None:
            try:
                value = callback(done)
            except BaseException as error:
                after.set_exception(error)
            else:
                after.set_result(value)

        self.add_done_callback(run)
        return after

    def _complete_from_work(self) -> None:
        work = self._work
        assert work is not None
        error = work.exception()
        self._complete(None if error is not None else work.result(), error)


def seconds_of(timeout: Any) -> float:
    """Convert a timeout, a timedelta or a number of seconds, to seconds."""
    return to_timedelta(timeout.total_seconds() if isinstance(timeout, timedelta) else timeout).total_seconds()


def wait_for(work: _core.Work, timeout: Timeout | None) -> None:
    """Wait for a work. timeout=0 checks once, although in Work.wait(0) 0 means no limit."""
    if timeout is not None and seconds_of(timeout) == 0 and not work.is_completed():
        raise _core.DistTimeoutError("Operation timed out! It has not ended, and timeout=0 does not wait (timeout)")
    work.wait(timeout)


def future_of(work: _core.Work) -> Future:
    future = Future()
    future._work = work
    return future


def await_work(work: _core.Work) -> Generator[Any, None, list[Any]]:
    """Return the iterator for a work's __await__."""
    import asyncio

    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def resolve() -> None:
        if not done.done():
            done.set_result(None)

    def notify() -> None:
        try:
            loop.call_soon_threadsafe(resolve)
        except RuntimeError:
            pass  # the event loop is closed: nothing awaits the work

    def run() -> Generator[Any, None, list[Any]]:
        if not work.is_completed():
            work._watch(notify)
            yield from done
        return work.result()

    return run()
