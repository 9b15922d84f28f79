"""dldist.spawn: runs a function in several processes of this host, from a script or notebook."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar, overload

from dldist import _core
from dldist._base import uncaught
from dldist._launch import child_calls, processes, rank_environment
from dldist._objects import pickling

_Result = TypeVar("_Result")
_KILL_AFTER_S = 1.5
# Seconds to wait for the cause: a lost process may end after the one that noticed the loss.
_CAUSE_TIMEOUT_S = 0.5


class ProcessException(_core.DistError):
    """Raised if a process of spawn() failed: number error_index, with the pid error_pid."""

    def __init__(self, msg: str, error_index: int, error_pid: int) -> None:
        super().__init__(msg)
        self.msg = msg
        self.error_index = error_index
        self.error_pid = error_pid

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.msg, self.error_index, self.error_pid), vars(self)


class ProcessRaisedException(ProcessException):
    """Raised if the function raised an exception, which is the __cause__ if it could be pickled."""


class ProcessExitedException(ProcessException):
    """Raised if a process ended with a non-zero exit code or by a signal."""

    def __init__(self, msg: str, error_index: int, error_pid: int, exit_code: int, signal_name: str | None = None) -> None:
        super().__init__(msg, error_index, error_pid)
        self.exit_code = exit_code
        self.signal_name = signal_name

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.msg, self.error_index, self.error_pid, self.exit_code, self.signal_name), vars(self)


class _Call:
    """The function and its arguments, pickled only while a process starts, as queues require."""

    def __init__(self, fn: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.fn, self.args = fn, args

    def __reduce__(self) -> tuple[Any, ...]:
        if pickling.has_importable_main() and pickling.is_importable(self.fn):
            return _Call, (self.fn, self.args)
        return _unpack, (pickling.dumps((self.fn, self.args)),)


def _unpack(data: bytes) -> _Call:
    return _Call(*pickling.loads(data))


def _child(call: _Call, rank: int, env: dict[str, str], channel: Any, parent: int | None) -> None:
    if parent is not None:
        processes.kill_on_exit_of(parent)
    os.environ.update(env)
    # SIGTERM must end the process without a traceback.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        data = pickling.dumps_object(("result", call.fn(rank, *call.args)))
    except KeyboardInterrupt:
        os._exit(128 + signal.SIGINT)  # exit silently: the parent handles the Ctrl-C
    except Exception as error:
        channel.send_bytes(pickle.dumps(child_calls.failure(error)))
        uncaught.abort_groups(error)
        sys.exit(1)
    channel.send_bytes(data)


class ProcessContext(Generic[_Result]):
    """The running processes; the result of spawn() with join=False."""

    def __init__(self, store: _core.TCPStore, count: int) -> None:
        self.processes: list[Any] = []
        self.results: list[_Result | None] = [None] * count
        """The function's result in each process; None if the function has not returned."""
        self._store = store
        self._running: list[child_calls.Call] = []
        self._failures: list[ProcessException] = []

    def __repr__(self) -> str:
        nrunning = sum(not call.child.has_ended() for call in self._running)
        return f"<dldist.ProcessContext: {len(self.processes)} processes, {nrunning} running, pids {self.pids()}>"

    def pids(self) -> list[int]:
        """Return the processes' ids."""
        return [process.pid for process in self.processes]

    def join(self, timeout: float | None = None) -> bool:
        """Wait until all processes have ended. Return False if `timeout` seconds pass first.

        On the first failure, or Ctrl-C while waiting, end all processes and raise the exception.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            while self._running:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self._poll(left)
                if self._failures:
                    self._fail()
        except BaseException:
            self.terminate()
            raise
        return True

    def terminate(self) -> None:
        """End all running processes: by SIGTERM, then by SIGKILL after 1.5 s."""
        processes.end([call.child for call in self._running], signal.SIGTERM, _KILL_AFTER_S)
        for call in self._running:
            call.close()
        self._running.clear()

    def _watch(self, process: Any, channel: Any) -> None:
        def reap() -> int:
            process.join()
            return int(process.exitcode)

        self._running.append(child_calls.Call(len(self.processes), processes.Child(process.pid, reap), channel))
        self.processes.append(process)

    def _poll(self, timeout: float | None) -> None:
        for call in child_calls.wait_any(self._running, timeout):
            self._read_message(call)
            if call.child.has_ended():
                self._running.remove(call)
                call.close()
                self._record_end(call)

    def _read_message(self, call: child_calls.Call) -> None:
        try:
            has_message = call.read_message()
        except Exception as unreadable:
            unreadable.add_note(f"spawn(): while reading the result of process {call.number}")
            raise
        self.results[call.number] = call.result
        if has_message and call.failure:
            text = f"\n\n-- Process {call.number} terminated with the following error:\n{call.failure}"
            failure = ProcessRaisedException(text, call.number, call.child.pid)
            failure.__cause__ = call.error
            self._failures.append(failure)

    def _record_end(self, call: child_calls.Call) -> None:
        code = call.child.code or 0
        if code == 0 or call.failure:
            return  # return: the process succeeded, or its failure is recorded
        name = processes.signal_name(-code) if code < 0 else None
        cause = f"exit code {code}" if name is None else f"signal {name}"
        text = f"process {call.number} terminated with {cause}"
        self._failures.append(ProcessExitedException(text, call.number, call.child.pid, code, name))

    def _fail(self) -> None:
        """Raise the failure that caused the others. Wait for it, as it may be reported last."""
        deadline = time.monotonic() + _CAUSE_TIMEOUT_S
        while self._running and all(child_calls.is_consequence(failure.__cause__) for failure in self._failures):
            left = deadline - time.monotonic()
            if left <= 0:
                break
            self._poll(left)
        raise min(self._failures, key=lambda failure: child_calls.is_consequence(failure.__cause__))


@overload
def spawn(
    fn: Callable[..., _Result],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    *,
    join: Literal[True] = True,
    daemon: bool = False,
    timeout: float | None = None,
) -> list[_Result]: ...
@overload
def spawn(
    fn: Callable[..., _Result],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    *,
    join: Literal[False],
    daemon: bool = False,
    timeout: float | None = None,
) -> ProcessContext[_Result]: ...
def spawn(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    *,
    join: bool = True,
    daemon: bool = False,
    timeout: float | None = None,
) -> list[Any] | ProcessContext[Any]:
    """Run `fn(i, *args)` in new processes of this host, numbered by i from 0. Return a list of the
    results by process, or a ProcessContext.

    In each process, the environment has a rank, so init_process_group() needs no arguments. If a
    process fails, the other processes are ended.

    Args:
        fn: The function. Must be picklable, like `args`.
        args: The arguments that follow the process's number.
        nprocs: The number of processes.
        join: If True, wait for all processes. If False, return a ProcessContext immediately.
        daemon: If True, the processes end with this one, like multiprocessing's daemons.
        timeout: Time limit for all processes, in seconds. None means no limit.

    Raises:
        ProcessRaisedException: The function raised. The message has the traceback.
        ProcessExitedException: A process ended with a non-zero exit code or by a signal.
        DistTimeoutError: The time limit has passed. All processes have been ended.

    Example:
        >>> def double(i, by):
        ...     return i * by
        >>> spawn(double, (2,), nprocs=3)  # doctest: +SKIP
        [0, 2, 4]
    """
    _check(fn, args, nprocs)
    context = multiprocessing.get_context("spawn")
    store, environments = rank_environment.serve_store(nprocs)
    running: ProcessContext[Any] = ProcessContext(store, nprocs)
    # Let the kernel kill the child only if this is the main thread: it kills the child when the
    # thread that started it ends, even if the process continues.
    parent = os.getpid() if threading.current_thread() is threading.main_thread() else None
    try:
        for rank, env in enumerate(environments):
            receiver, sender = context.Pipe(duplex=False)
            process: Any = context.Process(
                target=_child, args=(_Call(fn, tuple(args)), rank, env, sender, parent), daemon=daemon
            )
            process.start()
            sender.close()
            running._watch(process, receiver)
    except BaseException:
        running.terminate()
        raise
    if not join:
        return running
    if not running.join(timeout):
        unfinished = sorted(call.number for call in running._running)
        running.terminate()
        raise _core.DistTimeoutError(f"spawn(): of {nprocs} processes these did not end within the timeout of {timeout} s: {unfinished}")
    return running.results


def _check(fn: object, args: object, nprocs: object) -> None:
    if not callable(fn):
        raise TypeError(f"spawn(): argument 'fn' must be callable, not {type(fn).__name__}")
    if not isinstance(args, (tuple, list)):
        raise TypeError(f"spawn(): argument 'args' must be a tuple, not {type(args).__name__}; 'nprocs' comes after it, as in torch")
    if not isinstance(nprocs, int) or isinstance(nprocs, bool):
        raise TypeError(f"spawn(): argument 'nprocs' must be int, not {type(nprocs).__name__}")
    if nprocs < 1:
        raise ValueError(f"spawn(): argument 'nprocs' must be 1 or more, not {nprocs}")
