"""Tests that run on several ranks: run_ranks and @distributed use new processes, @threads threads.

    from dldist.testing import distributed

    @distributed(nranks=2)
    def test_sum():
        x = np.ones(3)
        dldist.all_reduce(x)
        assert x.tolist() == [2, 2, 2]

See docs/testing.md. pytest is not needed, and not imported.
"""

from __future__ import annotations

import functools
import inspect
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
import unittest
import warnings
from collections.abc import Callable, Mapping
from multiprocessing import connection
from typing import Any, NoReturn

from dldist import _core
from dldist._base import argument_names
from dldist._base.options import to_timedelta
from dldist._launch import child_calls, processes, rank_environment, testing_child
from dldist._objects import pickling

__all__ = ["RanksFailed", "distributed", "run_ranks", "threads"]

# Seconds for the other ranks to fail and report, after a rank has failed.
_GRACE_S = 2.0
_DUMP_S = 2.0
_MARK = "_dldist_body"
# The options of coverage.py that also apply to the ranks.
_COVERAGE_OPTIONS = [f"run:{name}" for name in "branch source source_pkgs include omit relative_files".split()]
# pytest and unittest omit the frames of this module from tracebacks.
__tracebackhide__ = __unittest = True


class RanksFailed(AssertionError):
    """Raised if ranks failed in different ways. The text has all tracebacks."""


class _Rank(child_calls.Call):
    """A new interpreter that runs a function as one rank, and the outcome."""

    def __init__(self, number: int, env: dict[str, str], job: bytes) -> None:
        self.has_timed_out = False
        self._files = [tempfile.TemporaryFile() for _ in ("stdout", "stderr", "report")]
        parent_end, child_end = connection.Pipe()
        fds = child_end.fileno(), self._files[2].fileno()
        code = f"import sys; sys.path[:] = {sys.path!r}; from dldist._launch import testing_child as c; c.main(*{fds})"
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stdout=self._files[0],
            stderr=self._files[1],
            env=env,
        )
        super().__init__(number, processes.Child(process.pid, process.wait), parent_end)
        child_end.close()
        try:
            parent_end.send_bytes(job)
        except OSError:
            pass  # the process has ended; read_message() will detect it

    def take(self) -> None:
        """Read the process's message, or record why there is none."""
        try:
            if not self.read_message():
                self.failure = f"ended without a result: {self._describe_end()}\n{self._read(1)}"
        except Exception as error:
            self.failure = f"its result cannot be unpickled:\n{''.join(traceback.format_exception(error))}"
            self.error = error

    def _describe_end(self) -> str:
        has_ended = self.child.wait(_DUMP_S)
        return processes.describe_exit(self.child.code or 0) if has_ended else "it closed its pipe"

    def record_timeout(self, seconds: float) -> None:
        self.has_timed_out = True
        lines = self._read(2).splitlines(keepends=True)
        stacks = "".join(line for line in lines if not re.search(r'File "<(string|frozen importlib)|testing_child\.py"', line))
        where = stacks or "unknown: the interpreter was starting, or the program handles SIGQUIT"
        self.failure = f"was still running after {seconds:.1f} s, here:\n{where}"

    def _read(self, index: int) -> str:
        self._files[index].seek(0)
        return self._files[index].read().decode(errors="replace")

    def add_coverage(self, data: Any) -> None:
        """Add the lines that the rank has run to the data of coverage.py."""
        self._files[2].seek(0)
        if not self.has_timed_out and (report := self._files[2].read()):
            new = type(data)(no_disk=True)
            new.loads(report)
            data.update(new)

    def close(self) -> None:
        """End the process, and print the output."""
        if self.is_read and not self.failure:
            self.child.wait(_DUMP_S)  # limited, as the test's threads may keep running
        super().close()
        for index, stream in enumerate((sys.stdout, sys.stderr)):
            for line in self._read(index).splitlines():
                print(f"[rank{self.number}]: {line}", file=stream)
        for file in self._files:
            file.close()


def run_ranks(
    fn: Callable[..., Any],
    nranks: int,
    *args: Any,
    timeout: float = 30.0,
    env: Mapping[str, str] | None = None,
    init: bool = True,
) -> list[Any]:
    """Run a function on several new processes, and return a list of the results.

    Each process has its rank in the environment; the output is printed afterwards. If a rank fails,
    the others have two seconds to fail as well. If a rank raises a skip exception, the test is
    skipped.

    Args:
        fn: The function. Each rank calls `fn(*args)`.
        nranks: The number of ranks.
        args: The arguments, which are pickled.
        timeout: Seconds until running ranks are ended. The error shows the position of each rank.
        env: Environment variables in addition to this process's.
        init: True to create the default world before the call, and close it afterwards.

    Raises:
        RanksFailed: Ranks failed. The text has all tracebacks.
        Exception: The exception of the lowest rank, if all ranks raised the same type.

    Example:
        >>> run_ranks(max, 2, 3, 4, init=False)
        [4, 4]
    """
    return _run(_target(fn), nranks, args, {}, timeout, env, init)


def distributed(
    nranks: int = 2, timeout: float = 30.0, init: bool = True, env: Mapping[str, str] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Decorator: run the test's body on several new processes, as run_ranks does.

    The test may be a function, or a method of a class or unittest.TestCase, whose setUp and
    tearDown run on each rank. Arguments, such as fixtures and parameters of pytest, are pickled.

    Args:
        nranks: The number of ranks.
        timeout: Seconds for the whole test.
        init: True to create the default world before the body runs.
        env: Environment variables in addition to this process's.
    """
    if callable(nranks):
        raise TypeError("distributed(): got a function, expected a call: @distributed() or @distributed(nranks=3)")

    def decorate(body: Callable[..., Any]) -> Callable[..., None]:
        signature = inspect.signature(body)
        names = list(signature.parameters)
        is_method, has_world = names[:1] == ["self"], init and "world" in names

        @functools.wraps(body)
        def test(*args: Any, **kwargs: Any) -> None:
            # Each rank creates its own instance, because few instances can be pickled.
            target = _target(body, is_method) | {"has_world": has_world}
            _run(target, nranks, args[1:] if is_method else args, kwargs, timeout, env, init)

        if has_world:  # otherwise pytest would look for a fixture
            rest = [parameter for name, parameter in signature.parameters.items() if name != "world"]
            test.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
        setattr(test, _MARK, body)
        return test

    return decorate


def _target(fn: Callable[..., Any], is_method: bool = False) -> dict[str, Any]:
    """Describe a function so that another interpreter can find it."""
    if not callable(fn):
        raise TypeError(f"run_ranks(): argument 'fn' must be callable, not {type(fn).__name__}")
    is_function = isinstance(fn, types.FunctionType) and pickling.is_importable(fn)
    if is_method and not is_function:
        raise TypeError(f"distributed(): {fn.__qualname__} is in a nested class, expected a class at the top level of a module")
    module = sys.modules.get(getattr(fn, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    if not is_function or module is None:
        main = file if module is sys.modules["__main__"] else None
        return {"pickle": pickling.dumps(fn), "main": os.path.abspath(main) if main else None}
    names, loader = fn.__module__.split("."), module.__loader__
    parents = [sys.modules.get(".".join(names[:count])) for count in range(1, len(names))]
    return {
        "module": fn.__module__,
        "file": os.path.abspath(file) if file else None,
        "qualname": fn.__qualname__,
        "is_method": is_method,
        "packages": [(parent.__name__, parent.__file__, list(parent.__path__)) for parent in parents if parent and hasattr(parent, "__path__")],
        # pytest's option -v if pytest has rewritten the module's assertions here: the ranks then do so too.
        "verbosity": loader.config.option.verbose if type(loader).__name__ == "AssertionRewritingHook" else None,  # type: ignore
    }


def _pickled(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    for name, value in [*enumerate(args), *kwargs.items()]:
        try:
            pickle.dumps(value)
        except Exception as error:
            raise TypeError(f"argument {name!r} cannot be sent to the ranks: got {type(value).__name__}: {error}; create it in the test") from error
    return pickle.dumps((args, kwargs))


def _run(
    target: dict[str, Any],
    nranks: int,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    timeout: float,
    env: Mapping[str, str] | None,
    init: bool,
) -> list[Any]:
    if not isinstance(nranks, int) or isinstance(nranks, bool) or nranks < 1:
        raise ValueError(f"{argument_names.title('nranks')} is out of range: got {nranks!r}, expected 1 or more")
    to_timedelta(timeout)  # checks it
    env = argument_names.convert("env", lambda each: {os.fsdecode(k): os.fsdecode(v) for k, v in dict(each).items()}, env or {}, "texts by name")
    store, environments = rank_environment.serve_store(nranks)
    coverage = getattr(sys.modules.get("coverage"), "Coverage", None)
    measurement = coverage.current() if coverage is not None else None
    options = measurement and {name: measurement.get_option(name) for name in _COVERAGE_OPTIONS}
    job = pickle.dumps(
        {**target, "arguments": _pickled(args, kwargs), "init": init, "parent": os.getpid(), "timeout": timeout, "coverage": options}
    )
    ranks: list[_Rank] = []
    try:
        for number, place in enumerate(environments):
            ranks.append(_Rank(number, {**os.environ, **place, **env}, job))
        _wait(ranks, timeout)
        if measurement is not None:
            with warnings.catch_warnings(action="ignore"):  # get_data() warns of modules that are imported later
                data = measurement.get_data()
            for rank in ranks:
                rank.add_coverage(data)
    finally:
        for rank in ranks:
            rank.close()
        del store
    failed = [rank for rank in ranks if rank.failure]
    reasons = [rank.skip for rank in ranks if rank.skip is not None]
    if reasons and all(rank.has_timed_out or child_calls.is_consequence(rank.error) for rank in failed):
        raise unittest.SkipTest(reasons[0])
    if failed:
        _raise(failed, nranks)
    return [rank.result for rank in ranks]


def _wait(ranks: list[_Rank], timeout: float) -> None:
    start = time.monotonic()
    deadline = start + timeout
    while late := [rank for rank in ranks if not rank.is_read]:
        left = deadline - time.monotonic()
        if left <= 0:
            break
        for rank in child_calls.wait_any(late, left):
            rank.take()
            if rank.failure or rank.skip is not None:
                deadline = min(deadline, time.monotonic() + _GRACE_S)
    seconds = time.monotonic() - start
    # On SIGQUIT, each rank writes its position.
    processes.end([rank.child for rank in late], signal.SIGQUIT, _DUMP_S)
    for rank in late:
        rank.record_timeout(seconds)


def _raise(failed: list[_Rank], nranks: int) -> NoReturn:
    """Raise one exception for all failures. The likely cause comes first."""
    failed.sort(key=lambda rank: child_calls.is_consequence(rank.error))
    first = failed[0].error
    texts = [f"---- rank {rank.number} ----\n{rank.failure.rstrip()}" for rank in failed]
    summary = f"{len(failed)} of {nranks} ranks failed: {', '.join(str(number) for number in sorted(r.number for r in failed))}"
    text = "\n".join([summary, *texts])
    if first is not None and len(failed) == nranks and all(type(rank.error) is type(first) for rank in failed):
        first.add_note(text)
        raise first
    lines = (failed[0].failure if first is None else traceback.format_exception_only(first)[0]).splitlines()
    reason = lines[-1 if lines[0].startswith("Traceback") else 0].removesuffix(", here:")
    raise RanksFailed(f"rank {failed[0].number}: {reason}\n{text}") from None


# ---- threads


def threads(nranks: int = 2, timeout: float = 30.0) -> Callable[[Callable[..., Any]], Callable[..., list[Any] | None]]:
    """Decorator: run the body on several threads, each with its own Group as the first argument.

    Threads start much faster than processes. Use them for code that takes its group as an argument.
    The decorated function returns a list of the results, or None if no rank returned a value.

    Args:
        nranks: The number of ranks.
        timeout: Seconds for each operation of the group, and for the whole test.

    Example:
        >>> @threads(3)
        ... def ranks(group):
        ...     group.barrier()
        ...     return group.rank
        >>> ranks()
        [0, 1, 2]
    """

    def decorate(body: Callable[..., Any]) -> Callable[..., list[Any] | None]:
        names = list(inspect.signature(body).parameters.values())
        self_count = 1 if names and names[0].name == "self" else 0
        if len(names) <= self_count:
            raise TypeError(f"threads(): {body.__qualname__} takes no argument, expected a first argument for the group")

        def test(*args: Any, **kwargs: Any) -> list[Any] | None:
            results = _run_threads(body, nranks, args[:self_count], args[self_count:], kwargs, timeout)
            # Test runners complain about tests that return a value, so return None if none did.
            return results if any(result is not None for result in results) else None

        # Remove __wrapped__, which pytest would inspect and look for a fixture for the group.
        functools.update_wrapper(test, body)
        del test.__wrapped__  # type: ignore[attr-defined]
        test.__signature__ = inspect.Signature(names[:self_count] + names[self_count + 1 :])  # type: ignore[attr-defined]
        return test

    return decorate


def _run_threads(
    body: Callable[..., Any],
    nranks: int,
    before: tuple[Any, ...],
    after: tuple[Any, ...],
    kwargs: dict[str, Any],
    timeout: float,
) -> list[Any]:
    store = _core.HashStore(timeout=timeout)
    results: list[Any] = [None] * nranks
    errors: dict[int, BaseException] = {}

    def run(rank: int) -> None:
        try:
            with _core.Group(store, rank, nranks, timeout=timeout) as group:
                results[rank] = testing_child.run_body(body, (*before, group, *after), kwargs)
                testing_child.check_operations(store, nranks, threading.get_ident())
        except BaseException as error:
            errors[rank] = error

    running = [threading.Thread(target=run, args=(rank,), name=f"rank{rank}", daemon=True) for rank in range(nranks)]
    for thread in running:
        thread.start()
    deadline = time.monotonic() + timeout + _GRACE_S
    for thread in running:
        thread.join(max(deadline - time.monotonic(), 0.0))
    unfinished = {rank: thread for rank, thread in enumerate(running) if thread.is_alive()}
    if unfinished or errors:
        _raise_of_threads(errors, unfinished, nranks)
    return results


def _raise_of_threads(errors: dict[int, BaseException], unfinished: dict[int, threading.Thread], nranks: int) -> NoReturn:
    order = sorted(errors, key=lambda rank: (child_calls.is_consequence(errors[rank]), rank))
    causes = {type(errors[rank]) for rank in order if not child_calls.is_consequence(errors[rank])}
    if order and not unfinished and causes <= {type(errors[order[0]])}:
        raise errors[order[0]]
    texts = [f"---- rank {rank} ----\n{''.join(traceback.format_exception(errors[rank])).rstrip()}" for rank in order]
    frames = sys._current_frames()
    for rank, thread in unfinished.items():
        where = frames.get(thread.ident or 0)
        texts.append(f"---- rank {rank} ----\nis still running, here:\n{''.join(traceback.format_stack(where)).rstrip()}")
    raise RanksFailed("\n".join([f"{len(texts)} of {nranks} ranks failed", *texts])) from None
