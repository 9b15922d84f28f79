"""dist.spawn: a function on several processes of this host, from a script or a notebook."""

from __future__ import annotations

import ctypes
import multiprocessing
import multiprocessing.connection
import os
import pickle
import secrets
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from dldist import _core
from dldist.launch import by_value

_KILL_AFTER_S = 1.5
# A process that has lost another may be quicker to end than the one that is lost.
_CULPRIT_GRACE_S = 0.5
_PR_SET_PDEATHSIG = 1


class ProcessException(_core.DistError):
    """A process of spawn() has failed: error_index is its number, error_pid its process."""

    def __init__(self, msg: str, error_index: int, error_pid: int) -> None:
        super().__init__(msg)
        self.msg = msg
        self.error_index = error_index
        self.error_pid = error_pid

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.msg, self.error_index, self.error_pid), vars(self)


class ProcessRaisedException(ProcessException):
    """The function raised. Its exception is __cause__, where it could be pickled."""


class ProcessExitedException(ProcessException):
    """A process ended by an exit code or a signal."""

    def __init__(self, msg: str, error_index: int, error_pid: int, exit_code: int, signal_name: str | None = None) -> None:
        super().__init__(msg, error_index, error_pid)
        self.exit_code = exit_code
        self.signal_name = signal_name

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.msg, self.error_index, self.error_pid, self.exit_code, self.signal_name), vars(self)


def serve_store() -> tuple[_core.TCPStore, dict[str, str]]:
    """A store for processes of this host, and what they have in their environment to find it."""
    secret = os.environ.get("DLDIST_SECRET", "") or secrets.token_hex(16)
    store = _core.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, secret=secret)
    return store, {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "DLDIST_SECRET": secret,
        # The store is there: no rank is to serve one. DLDIST_AGENT_STORE says where, for a program that changes
        # MASTER_ADDR or MASTER_PORT afterwards and means a store of its own.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "DLDIST_AGENT_STORE": f"127.0.0.1:{store.port}",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }


def rank_environment(rank: int, size: int) -> dict[str, str]:
    """The numbers of one of `size` processes of one host."""
    numbers = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size}
    return {name: str(number) for name, number in (numbers | {"GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1}).items()}


def die_with(parent: int) -> None:
    """Have this process killed when the thread that has started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


class _Call:
    """The function and its arguments, pickled while the process is started: the only moment in which queues and locks can be."""

    def __init__(self, fn: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.fn, self.args = fn, args

    def __reduce__(self) -> tuple[Any, ...]:
        if by_value.has_importable_main() and by_value.is_importable(self.fn):
            return _Call, (self.fn, self.args)
        return _unpack, (by_value.dumps((self.fn, self.args)),)


def _unpack(data: bytes) -> _Call:
    return _Call(*by_value.loads(data))


def _child(call: _Call, rank: int, env: dict[str, str], channel: Any, parent: int | None) -> None:
    if parent is not None:
        die_with(parent)
    os.environ.update(env)
    # Nobody writes a traceback for being told to end.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        message = (True, call.fn(rank, *call.args), None)
        data = by_value.dumps_object(message)
    except KeyboardInterrupt:
        os._exit(128 + signal.SIGINT)  # the parent has had it, too
    except Exception as error:
        channel.send_bytes(pickle.dumps((False, *describe(error))))
        sys.exit(1)
    channel.send_bytes(data)


def describe(error: BaseException) -> tuple[str, bytes | None]:
    """An exception as another process can have it: its traceback, and itself where that can be pickled."""
    text = "".join(traceback.format_exception(error))
    try:
        data = by_value.dumps_object(error)
        pickle.loads(data)
    except Exception:  # whatever __reduce__ and __init__ of anybody's exception do
        return text, None
    return text, data


def revive(data: bytes | None) -> BaseException | None:
    """The exception that describe() has packed, if this process can have it."""
    try:
        return None if data is None else pickle.loads(data)
    except Exception:
        return None


def is_consequence(error: BaseException | None) -> bool:
    """Whether a rank has raised this only because another one has failed."""
    return isinstance(error, (_core.DistPeerLostError, _core.DistAbortedError))


class ProcessContext:
    """Processes that run; what spawn() gives with join=False."""

    def __init__(self, store: _core.TCPStore) -> None:
        self.processes: list[Any] = []
        self.results: list[Any] = []
        """What the function has returned in each process; None where it has not yet."""
        self._store = store
        self._channels: dict[int, Any] = {}
        self._running: dict[int, int] = {}
        """The pidfds of those that run. Their sentinels are pipes, which children of their own may keep open."""
        self._failures: list[ProcessException] = []

    def pids(self) -> list[int]:
        """The processes' ids."""
        return [process.pid for process in self.processes]

    def join(self, timeout: float | None = None) -> bool:
        """Wait until all have ended: True; False when they have not within `timeout` seconds.

        The first failure ends all of them and is raised. So does an exception that comes while waiting, such as Ctrl-C.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            while self._running:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self._look(left)
                if self._failures:
                    self._fail()
        except BaseException:
            self.terminate()
            raise
        return True

    def terminate(self) -> None:
        """End all that still run: SIGTERM, and SIGKILL after a moment."""
        deadline = time.monotonic() + _KILL_AFTER_S
        running = [(self.processes[index], pidfd) for index, pidfd in self._running.items()]
        for process, _ in running:
            process.terminate()
        for process, pidfd in running:
            multiprocessing.connection.wait([pidfd], max(deadline - time.monotonic(), 0.0))
            if process.is_alive():
                process.kill()
            process.join()
        for pidfd in self._running.values():
            os.close(pidfd)
        self._running.clear()
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

    def _look(self, timeout: float | None) -> None:
        ends = {pidfd: index for index, pidfd in self._running.items()}
        channels = {channel: index for index, channel in self._channels.items()}
        for ready in multiprocessing.connection.wait([*channels, *ends], timeout):
            if ready in channels:
                self._receive(channels[ready])
            else:
                self._note_end(ends[ready])  # type: ignore[index]

    def _receive(self, index: int) -> None:
        channel = self._channels.pop(index)
        try:
            data = channel.recv_bytes() if channel.poll() else b""
        except (EOFError, OSError):
            data = b""
        finally:
            channel.close()
        if not data:
            return  # how it has ended is seen by its exit code
        try:
            is_good, value, *error = pickle.loads(data)
        except Exception as unreadable:
            unreadable.add_note(f"spawn(): while the result of process {index} was read")
            raise
        if is_good:
            self.results[index] = value
            return
        cause = revive(error[0])
        failure = ProcessRaisedException(
            f"\n\n-- Process {index} terminated with the following error:\n{value}", index, self.processes[index].pid
        )
        failure.__cause__ = cause
        self._failures.append(failure)

    def _note_end(self, index: int) -> None:
        if index in self._channels:
            self._receive(index)
        process = self.processes[index]
        process.join()
        os.close(self._running.pop(index))
        if process.exitcode == 0 or any(failure.error_index == index for failure in self._failures):
            return
        code, name = process.exitcode, None
        how = f"exit code {code}"
        if code < 0:
            name = next((known.name for known in signal.Signals if known == -code), f"<Unknown signal {-code}>")
            how = f"signal {name}"
        self._failures.append(
            ProcessExitedException(f"process {index} terminated with {how}", index, process.pid, code, name)
        )

    def _fail(self) -> None:
        """Raises the failure that began it all: perhaps not the first that was seen."""
        deadline = time.monotonic() + _CULPRIT_GRACE_S
        while all(is_consequence(failure.__cause__) for failure in self._failures):
            left = deadline - time.monotonic()
            if left <= 0 or not self._running:
                break
            self._look(left)
        raise next(
            (failure for failure in self._failures if not is_consequence(failure.__cause__)), self._failures[0]
        )


def spawn(
    fn: Callable[..., Any],
    nprocs: int = 1,
    args: tuple[Any, ...] = (),
    *,
    join: bool = True,
    daemon: bool = False,
    timeout: float | None = None,
) -> Any:
    """Run `fn(i, *args)` in `nprocs` new processes, i from 0; gives the list of what they returned.

    Each has a rank in its environment, so init_process_group() works in them without arguments. With join=False gives a
    ProcessContext at once. When one fails the others are ended, and its traceback is raised: ProcessRaisedException, or
    ProcessExitedException. `timeout` limits the time of all, in seconds: DistTimeoutError.

    >>> def double(i, by):
    ...     return i * by
    >>> spawn(double, 3, (2,))  # doctest: +SKIP
    [0, 2, 4]
    """
    _check(fn, nprocs, args)
    context = multiprocessing.get_context("spawn")
    store, env = serve_store()
    running = ProcessContext(store)
    running.results = [None] * nprocs
    # The kernel's way to end a process with its parent goes by thread: in others than the main one it would be too early.
    parent = os.getpid() if threading.current_thread() is threading.main_thread() else None
    try:
        for rank in range(nprocs):
            receiver, sender = context.Pipe(duplex=False)
            running._channels[rank] = receiver
            everything = env | rank_environment(rank, nprocs)
            process: Any = context.Process(
                target=_child, args=(_Call(fn, tuple(args)), rank, everything, sender, parent), daemon=daemon
            )
            process.start()
            sender.close()
            running.processes.append(process)
            running._running[rank] = os.pidfd_open(process.pid)
    except BaseException:
        running.terminate()
        raise
    if not join:
        return running
    if not running.join(timeout):
        late = sorted(running._running)
        running.terminate()
        raise _core.DistTimeoutError(f"spawn(): of {nprocs} processes these did not end within the timeout of {timeout} s: {late}")
    return running.results


def _check(fn: object, nprocs: object, args: object) -> None:
    if not callable(fn):
        raise TypeError(f"spawn(): argument 'fn' must be callable, not {type(fn).__name__}")
    if not isinstance(nprocs, int) or isinstance(nprocs, bool):
        raise TypeError(f"spawn(): argument 'nprocs' must be int, not {type(nprocs).__name__}")
    if nprocs < 1:
        raise ValueError(f"spawn(): argument 'nprocs' must be 1 or more, not {nprocs}")
    if not isinstance(args, (tuple, list)):
        raise TypeError(f"spawn(): argument 'args' must be a tuple, not {type(args).__name__}")
